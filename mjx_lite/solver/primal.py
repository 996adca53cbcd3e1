"""The primal problem, and the parts that its solvers share: start, exact line search, termination.

Tests: tests/solver/test_iterates.py, tests/solver/test_iterations.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Rows
from mjx_lite.math import safe, vector
from mjx_lite.model.types import Model
from mjx_lite.ops import lanes, linear
from mjx_lite.solver import cost, linesearch, operator
from mjx_lite.solver.operator import Metric

_SAFETY = 10  # safety factor on the decrement that is expected at a gradient


class Problem(NamedTuple):
  """The problem of minimising 1/2 (a-a_s)'M(a-a_s) + s(Ja - aref), with every array on which the solution depends."""

  model: Model
  metric: Metric
  rows: Rows
  qfrc_smooth: jax.Array
  qacc_smooth: jax.Array
  scale: jax.Array  # (W,) 1/trace(M), the scale of costs and gradients


class Solution(NamedTuple):
  """Minimiser, values at the minimiser, and record of the iterations."""

  qacc: jax.Array
  ma: jax.Array  # M qacc
  jar: jax.Array  # J qacc - aref
  niter: jax.Array
  stopped: jax.Array  # whether the last step gained too little to continue
  force: jax.Array | None = None  # (nefc, W) if the solver has its own forces, else None: forces follow from `jar`


class Direction(NamedTuple):
  """Next search direction."""

  direction: jax.Array  # (nv, W)
  decrement: jax.Array  # (W,) half of gradient times preconditioned gradient: the gain that the quadratic model predicts
  memory: Any  # data of this direction that the next one needs


class Method(NamedTuple):
  """Rule that chooses search directions."""

  start: Callable[[Problem], Any]  # memory before the first direction
  direction: Callable[..., Direction]  # (problem, zones, gradient, whether to restart (W,), memory)
  conjugate: bool  # whether a direction depends on the last one; if not, a small decrement ends the iteration


class _Iterate(NamedTuple):
  qacc: jax.Array
  ma: jax.Array  # M qacc
  jar: jax.Array  # J qacc - aref
  improvement: jax.Array  # decrease of the cost in the last step, scaled
  done: jax.Array
  stuck: jax.Array  # no step was found along the last direction
  neval: jax.Array  # points of the last line search
  niter: jax.Array
  iteration: jax.Array  # () number of passes of the loop
  memory: Any
  zones: cost.Zones  # at qacc, as are grad and steepness
  grad: jax.Array
  steepness: jax.Array


def minimize(p: Problem, warmstart: jax.Array, method: Method) -> Solution:
  """Iterate from warmstart or qacc_smooth, whichever has the lower cost.

  A world stops when its last improvement or its gradient is below the tolerance; with Newton's method, also when the decrement
  is. All three are scaled by 1/trace(M). A world also stops when no step decreases the cost; conjugate gradients try a fresh
  direction first. With Newton's method, a world also stops when the last step was at the level of round-off. All other worlds
  continue. Newton's method does not factor just to find that a step is not needed: the decrement is proportional to the square
  of the gradient, so the last decrement predicts the next one.

  Source: `mj_solPrimal`; MuJoCo documentation, Computation, Solver algorithms.
  """
  m = p.model
  iterate = start(p, warmstart, method.start(p))
  if m.opt.iterations == 1:
    iterate, _ = _search(p, method, iterate)
  else:
    body = functools.partial(step, p, method)
    iterate = jax.lax.while_loop(lambda s: (s.iteration < m.opt.iterations) & ~jnp.all(s.done), body, iterate)
  gained = (iterate.improvement > 0) & (iterate.improvement < m.opt.tolerance)
  return Solution(iterate.qacc, iterate.ma, iterate.jar, iterate.niter, iterate.done | gained)


def point(p: Problem, qacc: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Compute M a and J a - aref at an acceleration."""
  return operator.mul_m(p.model, p.metric, qacc), _residual(p, qacc)


def _residual(p: Problem, qacc: jax.Array) -> jax.Array:
  jacc = jacobian.mul(p.model, p.rows.jacobian, p.metric.cdof, qacc)
  return linear.no_alias(jacc - p.rows.aref, jacc)


def gradient(p: Problem, ma: jax.Array, zones: cost.Zones) -> jax.Array:
  """Compute the gradient of the objective: M a - f_smooth - J' force."""
  pull = jacobian.mul_t(p.model, p.rows.jacobian, p.metric.cdof, zones.force)
  return linear.no_alias(ma - p.qfrc_smooth - pull, ma, pull)


def steepness(p: Problem, grad: jax.Array) -> jax.Array:
  """Compute the scaled length (W,) of a gradient."""
  return p.scale * norm(grad)


def norm(x: jax.Array) -> jax.Array:
  """Compute the length (W,) of vectors (n, W)."""
  return safe.sqrt(vector.total(x * x))


def _least_gain(p, s, zones):
  """Return the improvement (W,) below which a Newton step moved only the last digits and a further step would not help."""
  size = vector.total(jnp.abs(s.qacc * s.ma)) + cost.squares(p.rows, zones, s.jar)
  return p.scale * size * jnp.finfo(size.dtype).eps ** 1.5


def start(p: Problem, warmstart: jax.Array, memory: Any) -> _Iterate:
  """Compute the first iterate."""
  m = p.model
  jar = _residual(p, p.qacc_smooth)
  qacc, ma = p.qacc_smooth, p.qfrc_smooth
  if m.opt.use_warmstart:
    ma_warm, jar_warm = point(p, warmstart)
    gauss = 0.5 * vector.total((ma_warm - p.qfrc_smooth) * (warmstart - p.qacc_smooth))
    warm = linear.materialize(gauss + cost.row_cost(m.plan, p.rows, jar_warm) < cost.row_cost(m.plan, p.rows, jar))
    qacc, ma, jar = (
      linear.no_alias(jnp.where(warm, a, b), a, b) for a, b in ((warmstart, qacc), (ma_warm, ma), (jar_warm, jar))
    )
  width = jar.shape[-1]
  none, infinite = jnp.zeros((width,), bool), jnp.full((width,), jnp.inf, qacc.dtype)
  zero = jnp.zeros((width,), jnp.int32)
  zones, grad, steep = _slope(p, ma, jar)
  return _Iterate(
    qacc=qacc,
    ma=ma,
    jar=jar,
    improvement=infinite,
    done=none,
    stuck=none,
    neval=zero,
    niter=zero,
    iteration=jnp.int32(0),
    memory=memory,
    zones=zones,
    grad=grad,
    steepness=steep,
  )


def _slope(
  p: Problem, ma: jax.Array, jar: jax.Array, before: cost.Zones | None = None
) -> tuple[cost.Zones, jax.Array, jax.Array]:
  """Compute zones of the rows, gradient and steepness at an iterate; `before` are zones of the last one."""
  zones = cost.zones(p.model.plan, p.rows, jar, before)
  grad = gradient(p, ma, zones)
  return zones, grad, steepness(p, grad)


def step(p: Problem, method: Method, s: _Iterate) -> _Iterate:
  """Compute the next iterate and mark the worlds that end there."""
  tol = p.model.opt.tolerance
  after, decrement = _search(p, method, s)
  zones, grad, steep = _slope(p, after.ma, after.jar, s.zones)
  ended = ((after.improvement > 0) & (after.improvement < tol)) | (steep < tol)
  if not method.conjugate:
    expected = _SAFETY * p.scale * decrement * (steep / jnp.where(s.steepness > 0, s.steepness, 1)) ** 2
    ended = ended | (expected < tol) | (after.improvement < _least_gain(p, after, zones))
  done = after.done | ended
  # a world that is done gets a zero gradient, else the whole batch would wait for its next direction and step
  grad = jnp.where(done, 0, grad)
  if operator.is_coupled(p.model) and not lanes.packs():  # in a kernel the worlds that are done stay as they are
    zones = jax.tree.map(lambda x: jnp.where(done, 0, x), zones)
  return after._replace(done=done, zones=zones, grad=grad, steepness=steep)


def _search(p: Problem, method: Method, s: _Iterate) -> tuple[_Iterate, jax.Array]:
  """Find the best point along the next direction; also return the decrement (W,) before the step.

  Zones and gradient of the result are still those of the last iterate.
  """
  m = p.model
  tol = m.opt.tolerance
  first = s.niter == 0
  direction, decrement, memory = method.direction(p, s.zones, s.grad, first | s.stuck, s.memory)

  spent = p.scale * decrement < tol
  # at the start, a small decrement is enough for conjugate gradients with an exact preconditioner; Newton's method
  # also needs a small gradient, because its forces are exact
  at_start = spent if method.conjugate and not m.opt.is_discrete else (s.steepness < tol) & spent
  done = s.done | jnp.where(first, at_start, False if method.conjugate else spent)

  # exact line search
  mv = operator.mul_m(m, p.metric, direction)
  jv = jacobian.mul(m, p.rows.jacobian, p.metric.cdof, direction)
  slope, curvature, length2 = map(vector.total, (s.grad * direction, direction * mv, direction * direction))
  gtol = tol * m.opt.ls_tolerance * safe.sqrt(length2) / p.scale
  found = linesearch.search(m.plan, p.rows, s.zones, s.jar, jv, slope, 0.5 * curvature, gtol, m.opt.ls_iterations)
  alpha = linear.materialize(jnp.where(done, 0, found.alpha))  # one buffer: see linear.materialize
  stuck = alpha == 0
  qacc, ma = (linear.no_alias(a + alpha * b, a, b) for a, b in ((s.qacc, direction), (s.ma, mv)))
  jar = cost.advance(m.plan, p.rows, s.jar, jv, alpha)
  after = s._replace(
    qacc=qacc,
    ma=ma,
    jar=jar,
    improvement=jnp.where(done, s.improvement, p.scale * found.improvement),
    done=done | (stuck & (s.stuck if method.conjugate else True)),
    stuck=stuck,
    neval=found.neval,
    niter=s.niter + (alpha != 0).astype(s.niter.dtype),
    iteration=s.iteration + 1,
    memory=memory,
  )
  return after, decrement
