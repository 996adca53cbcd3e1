"""Exact line search on the convex, piecewise smooth cost along a direction; it visits the same points as C.

First, Newton's method runs from step 0 until the slope changes its sign; then the minimum is bracketed. Rounds follow. In each
round, the ends of the bracket move to the best of three points: the middle, and the Newton steps from the two ends.

The body of the loop evaluates the cost once, at the next point of any phase. A second evaluation in the program would be
compiled a second time, and the worlds of a batch may be in different rounds.

Tests: tests/solver/test_iterates.py, tests/solver/test_iterates_single.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint.rows import Rows
from mjx_lite.math import vector
from mjx_lite.solver import cost

ROUND_OFF = 3000  # of a slope, in units of the last place of the slope at the start
_ONWARD, _NEXT_BOTH, _NEXT_ONE, _NEXT_TWO, _MIDDLE = range(5)  # purpose of the next point


class Search(NamedTuple):
  """Result: step length, decrease of the cost, number of points with known cost; each (W,)."""

  alpha: jax.Array
  improvement: jax.Array
  neval: jax.Array


class _Point(NamedTuple):
  """A point of the line; each field is (W,)."""

  alpha: jax.Array
  cost: jax.Array  # relative to step 0
  slope: jax.Array
  curvature: jax.Array

  def newton(self) -> jax.Array:
    """Return the step of Newton's method from this point."""
    return self.alpha - self.slope / self.curvature


class _State(NamedTuple):
  alpha: jax.Array  # next point
  aim: jax.Array  # purpose of the next point
  one: _Point  # one end of the bracket; the last point while there is no bracket
  two: _Point  # the other end; the point before the last while there is no bracket
  next_one: _Point  # Newton steps from the ends
  next_two: _Point
  found: _Point  # result
  neval: jax.Array
  done: jax.Array


def search(plan: Any, rows: Rows, zones: cost.Zones, jar, jv, slope, gauss2, gtol, iterations: int) -> Search:
  """Minimise the cost along jv.

  The search ends where |slope| < gtol, or when `iterations` points are known, step 0 among them. In the second case the result
  is the better end of the bracket, or the last point if there is no bracket. The step is zero where it would not decrease the
  cost.

  Args:
    plan: the model's plans.
    rows: the rows.
    zones: zones at jar.
    jar: (nefc, W) at the start.
    jv: (nefc, W).
    slope: (W,) at the start: gradient times direction.
    gauss2: (W,) half of the curvature of the smooth part.
    gtol: (W,) slope at which the search ends.
    iterations: number of points.

  Source: `PrimalSearch`.
  Differs: the search also ends where the slope is within its round-off; C goes on to its last iteration.
  """
  eps, tiny = jnp.finfo(jar.dtype).eps, jnp.finfo(jar.dtype).tiny
  least = jnp.maximum(gtol, ROUND_OFF * eps * jnp.abs(slope))
  curvature = 2 * gauss2 + vector.total(cost.mul_curvature(plan, zones, jv) * jv)
  zero = jnp.zeros_like(slope)
  start = _Point(zero, zero, slope, jnp.maximum(curvature, tiny))
  line = cost.along(plan, rows, zones, jar, jv, slope, gauss2)
  one = jnp.ones(slope.shape, jnp.int32)

  def step(s: _State) -> _State:
    at = line(s.alpha)
    x = _Point(s.alpha, at.cost, at.slope, jnp.maximum(at.curvature, tiny))
    after = _follow(s, x, s.neval + 1, least, iterations)
    # all other fields of worlds that are done are not read
    neval = jnp.where(s.done, s.neval, after.neval)
    return after._replace(found=_where(s.done, s.found, after.found), neval=neval, done=s.done | after.done)

  state = _State(
    alpha=start.newton(),
    aim=0 * one,
    one=start,
    two=start,
    next_one=start,
    next_two=start,
    found=start,
    neval=one,
    done=~(slope < 0),
  )
  state = jax.lax.while_loop(lambda s: ~jnp.all(s.done), step, state)
  x = state.found
  # costs that differ only by round-off are compared by the slope
  noise = 8 * eps * jnp.abs(x.alpha * slope)
  alpha = jnp.where((jnp.abs(x.cost) > noise) | (jnp.abs(x.slope) < jnp.abs(slope)), x.alpha, 0)
  return Search(alpha, -x.cost, state.neval)


def _follow(s: _State, x: _Point, neval: jax.Array, least: jax.Array, iterations: int) -> _State:
  """Compute the next state from the point x: use the point for its purpose, decide whether to end, choose the next point."""
  spent = neval >= iterations
  onward, middle = s.aim == _ONWARD, s.aim == _MIDDLE

  # one side: continue while the slope keeps its sign
  before = _where(s.one.alpha == 0, x, s.one)  # the first point has no predecessor to compare with
  same_side = (jnp.sign(x.slope) == jnp.sign(before.slope)) & (jnp.abs(x.slope) >= least)
  hit = onward & (jnp.abs(x.slope) < least) & (x.cost < 0)
  continues = onward & same_side & ~spent
  ends = hit | (onward & spent)

  # the bracket: Newton steps from its ends
  next_one = _where((s.aim == _NEXT_BOTH) | (s.aim == _NEXT_ONE), x, s.next_one)
  next_two = _where(onward, x, _where(s.aim == _NEXT_TWO, x, s.next_two))

  # the middle: the best of the three points that are flat enough; if none is, the ends move
  candidates = s.next_one, s.next_two, x
  flat, best = jnp.zeros_like(spent), x
  for c in candidates:
    better = (jnp.abs(c.slope) < least) & (~flat | (c.cost < best.cost))
    flat, best = flat | better, _where(better, c, best)
  (one, moved_one), (two, moved_two) = (_closer(p, candidates) for p in (s.one, s.two))
  still = ~moved_one & ~moved_two
  found_middle = middle & (flat | still)

  one = _where(onward, x, _where(middle, one, s.one))
  two = _where(onward, s.one, _where(middle, two, s.two))

  # next point: after a middle the Newton steps of the ends that moved, after the last Newton step the next middle
  open_ = onward & ~continues & ~ends
  to_one = continues | open_ | (middle & moved_one)
  to_two = (s.aim == _NEXT_BOTH) | (middle & ~moved_one)
  round_ends = ~to_one & ~to_two
  aim = jnp.where(continues, _ONWARD, jnp.where(open_ | (middle & ~moved_two), _NEXT_ONE, _NEXT_BOTH))
  aim = jnp.where(to_one, aim, jnp.where(to_two, _NEXT_TWO, _MIDDLE)).astype(s.aim.dtype)
  alpha = jnp.where(to_one, one.newton(), jnp.where(to_two, two.newton(), 0.5 * (one.alpha + two.alpha)))

  exhausted = round_ends & spent
  lower = _where(one.cost <= two.cost, one, two)
  none = lower._replace(alpha=jnp.zeros_like(lower.alpha), cost=jnp.zeros_like(lower.cost))
  found = _where(middle, _where(flat, best, x), _where(onward, x, _where(lower.cost < 0, lower, none)))
  return _State(
    alpha=alpha,
    aim=aim,
    one=one,
    two=two,
    next_one=next_one,
    next_two=next_two,
    found=found,
    neval=neval,
    done=ends | found_middle | exhausted,
  )


def _closer(p: _Point, candidates: tuple[_Point, ...]) -> tuple[_Point, jax.Array]:
  """Move an end of the bracket to the candidate on its side with the least slope; also return whether the end moved."""
  moved = jnp.zeros(p.alpha.shape, bool)
  for c in candidates:
    closer = (p.slope * c.slope > 0) & (jnp.abs(c.slope) < jnp.abs(p.slope))
    moved, p = moved | closer, _where(closer, c, p)
  return p, moved


def _where(condition: jax.Array, a: _Point, b: _Point) -> _Point:
  return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
