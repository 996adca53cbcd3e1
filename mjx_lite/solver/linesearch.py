"""Exact line search on the convex, piecewise smooth cost along a direction."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint.rows import Rows
from mjx_lite.math import vector
from mjx_lite.solver import cost


class Search(NamedTuple):
  """Result: step length, cost drop, number of points that were evaluated, each (W,)."""

  alpha: jax.Array
  improvement: jax.Array
  neval: jax.Array


class _State(NamedTuple):
  count: jax.Array
  alpha: jax.Array  # next point
  low: jax.Array  # largest step known to be short of the minimum
  high: jax.Array  # smallest step known to be beyond it
  last: jax.Array  # how far the last point was from the one before
  best: jax.Array
  best_cost: jax.Array
  best_slope: jax.Array  # its magnitude
  neval: jax.Array
  done: jax.Array


def search(plan: Any, rows: Rows, zones: cost.Zones, jar, jv, slope, gauss2, gtol, iterations: int) -> Search:
  """Minimise the cost along jv.

  Newton's method from step 0, kept inside the bracket of the slope's sign change and bisecting where it leaves it, or where
  its steps do not halve. At most `iterations` points are evaluated; of those the best is taken, or none if no point is better
  than the start.

  Args:
    plan: the model's plans.
    rows: the rows.
    zones: at jar.
    jar: (nefc, W) at the start.
    jv: (nefc, W).
    slope: (W,) at the start: gradient times direction.
    gauss2: (W,) half of the curvature of the smooth part.
    gtol: (W,) the search ends where |slope| < gtol.
    iterations: number of points.

  Source: `PrimalSearch`, with one point per evaluation.
  """
  least = jnp.maximum(gtol, jnp.finfo(jar.dtype).eps ** 0.5 * jnp.abs(slope))  # no better than Newton's next direction
  zero, infinite = jnp.zeros_like(slope), jnp.full_like(slope, jnp.inf)
  curvature = 2 * gauss2 + vector.total(cost.mul_curvature(plan, zones, jv) * jv)
  first = -slope / jnp.maximum(curvature, jnp.finfo(jar.dtype).tiny)
  none = jnp.zeros(slope.shape, jnp.int32)
  state = _State(jnp.zeros((), jnp.int32), first, zero, infinite, infinite, zero, zero, -slope, none, ~(slope < 0))

  line = cost.along(plan, rows, zones, jar, jv, slope, gauss2)

  def step(s: _State) -> _State:
    at = line(s.alpha)
    found = ~s.done & (jnp.abs(at.slope) < least)
    # costs closer than their round-off are told apart by the slope
    flatter = (jnp.abs(at.slope) < s.best_slope) & (at.cost <= s.best_cost + at.noise)
    better = ~s.done & ((at.cost < s.best_cost - at.noise) | flatter)
    low = jnp.where(at.slope < 0, s.alpha, s.low)
    high = jnp.where(at.slope < 0, s.high, s.alpha)
    move = at.slope / jnp.maximum(at.curvature, jnp.finfo(jar.dtype).tiny)
    newton = s.alpha - move
    middle = jnp.where(jnp.isinf(high), 2 * s.alpha, 0.5 * (low + high))
    converges = (newton > low) & (newton < high) & (jnp.abs(move) < 0.5 * s.last)
    following = jnp.where(converges, newton, middle)
    stuck = following == s.alpha
    return _State(
      s.count + 1,
      jnp.where(s.done, s.alpha, following),
      jnp.where(s.done, s.low, low),
      jnp.where(s.done, s.high, high),
      jnp.where(s.done, s.last, jnp.abs(following - s.alpha)),
      jnp.where(better, s.alpha, s.best),
      jnp.where(better, at.cost, s.best_cost),
      jnp.where(better, jnp.abs(at.slope), s.best_slope),
      s.neval + (~s.done).astype(s.neval.dtype),
      s.done | found | stuck,
    )

  state = jax.lax.while_loop(lambda s: (s.count < iterations) & ~jnp.all(s.done), step, state)
  return Search(state.best, -state.best_cost, state.neval)
