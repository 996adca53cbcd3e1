"""Newton's method on the primal problem."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe, vector
from mjx_lite.solver import cost, linesearch, operator
from mjx_lite.solver.operator import Metric


class Problem(NamedTuple):
  """Minimise ½(a-a_s)'M(a-a_s) + s(Ja - aref); every array that the solution depends on."""

  model: Model
  metric: Metric
  rows: Rows
  qfrc_smooth: jax.Array
  qacc_smooth: jax.Array
  scale: jax.Array  # (W,) 1/trace(M): what costs and gradients are measured in


class Solution(NamedTuple):
  """Minimiser, what is known there, and how it was reached."""

  qacc: jax.Array
  ma: jax.Array  # M qacc
  jar: jax.Array  # J qacc - aref
  niter: jax.Array
  stopped: jax.Array  # the last step gained too little to go on


class _Iterate(NamedTuple):
  qacc: jax.Array
  ma: jax.Array  # M qacc
  jar: jax.Array  # J qacc - aref
  improvement: jax.Array  # of the last step, scaled
  done: jax.Array
  niter: jax.Array
  count: jax.Array


def minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Iterate from the cheaper of warmstart and qacc_smooth.

  A world stops when its last improvement, its gradient or its Newton decrement is below the tolerance, all scaled by
  1/trace(M); the others go on.

  Source: `mj_solPrimal`; MuJoCo documentation, Computation, Newton method.
  """
  m = p.model
  iterate = _start(p, warmstart)
  body = lambda s: _step(p, s)  # noqa: E731
  if m.opt.iterations == 1:
    iterate = body(iterate)
  else:
    iterate = jax.lax.while_loop(lambda s: (s.count < m.opt.iterations) & ~jnp.all(s.done), body, iterate)
  gained = (iterate.improvement > 0) & (iterate.improvement < m.opt.tolerance)
  return Solution(iterate.qacc, iterate.ma, iterate.jar, iterate.niter, iterate.done | gained)


def point(p: Problem, qacc: jax.Array) -> tuple[jax.Array, jax.Array]:
  """M a and J a - aref at an acceleration."""
  jar = jacobian.mul(p.model, p.rows.jacobian, p.metric.cdof, qacc) - p.rows.aref
  return operator.mul_m(p.model, p.metric, qacc), jar


def gradient(p: Problem, ma: jax.Array, zones: cost.Zones) -> jax.Array:
  """Gradient of the objective: M a - f_smooth - J' force."""
  return ma - p.qfrc_smooth - jacobian.mul_t(p.model, p.rows.jacobian, p.metric.cdof, zones.force)


def is_small(p: Problem, grad: jax.Array) -> jax.Array:
  """(W,) whether a gradient is below the tolerance."""
  return p.scale * _norm(grad) < p.model.opt.tolerance


def _norm(x):
  return safe.sqrt(vector.total(x * x))


def _start(p, warmstart):
  m = p.model
  jar = jacobian.mul(m, p.rows.jacobian, p.metric.cdof, p.qacc_smooth) - p.rows.aref
  qacc, ma = p.qacc_smooth, p.qfrc_smooth
  if m.opt.use_warmstart:
    ma_warm, jar_warm = point(p, warmstart)
    gauss = 0.5 * vector.total((ma_warm - p.qfrc_smooth) * (warmstart - p.qacc_smooth))
    warm = gauss + cost.row_cost(m.plan, p.rows, jar_warm) < cost.row_cost(m.plan, p.rows, jar)
    qacc, ma, jar = (jnp.where(warm, a, b) for a, b in ((warmstart, qacc), (ma_warm, ma), (jar_warm, jar)))
  width = jar.shape[-1]
  none = jnp.zeros((width,), bool)
  return _Iterate(qacc, ma, jar, jnp.full((width,), jnp.inf, qacc.dtype), none, jnp.zeros((width,), jnp.int32), jnp.int32(0))


def _step(p, s):
  m = p.model
  tol = m.opt.tolerance

  # Newton direction at the current point
  z = cost.zones(m.plan, p.rows, s.jar)
  grad = gradient(p, s.ma, z)
  factor = operator.factor(m, p.metric, p.rows.jacobian, z)
  direction = -operator.solve(m, factor, grad)

  # stop where the step that led here was the last; at the start the gradient and the decrement have to be small
  small = is_small(p, grad)
  decrement = -0.5 * p.scale * vector.total(grad * direction)
  later = ((s.improvement > 0) & (s.improvement < tol)) | small | (decrement < tol)
  done = s.done | jnp.where(s.niter > 0, later, small & (decrement < tol))

  # exact line search
  mv = operator.mul_m(m, p.metric, direction)
  jv = jacobian.mul(m, p.rows.jacobian, p.metric.cdof, direction)
  gauss1 = vector.total(direction * (s.ma - p.qfrc_smooth))
  gauss2 = 0.5 * vector.total(direction * mv)
  gtol = tol * m.opt.ls_tolerance * _norm(direction) / p.scale
  found = linesearch.search(m.plan, p.rows, s.jar, jv, gauss1, gauss2, gtol, m.opt.ls_iterations)
  alpha = jnp.where(done, 0, found.alpha)
  return _Iterate(
    s.qacc + alpha * direction,
    s.ma + alpha * mv,
    s.jar + alpha * jv,
    jnp.where(done, s.improvement, p.scale * found.improvement),
    done | (alpha == 0),
    s.niter + (~done).astype(s.niter.dtype),
    s.count + 1,
  )
