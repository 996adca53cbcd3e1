"""The derivative of the minimiser, by the implicit function theorem.

The solution a(t) of a problem that depends on parameters t satisfies, for every t,

  r(t, a) = M a - f_smooth - J' f(J a - aref) = 0,   f = -s'.

Differentiating along a direction dt, with H = dr/da = M + J' s'' J the Newton Hessian at the solution,

  H da = -(dr/dt) dt.

So one solve with the solver's own operator gives the derivative, whatever loop found a: any solver, any number of iterations,
no cost to the forward pass. The residual is an ordinary function, hence the right-hand side is too; the solve is a
`custom_linear_solve` of a symmetric operator, hence it can be transposed and differentiated again. Warm start, tolerance and
iteration count have no influence at the solution: their tangent is zero.

In the soft modes of contact gradients, the derivative is that of another problem: the problem with softened contact rows. That
problem is solved too, with the solution as its start, but only where a derivative is taken.

Where the loop stopped before the tolerance was reached, H and r are those at the last point. The dual solver returns its own
forces; their derivative is the derivative of the forces that belong to its acceleration.

Tests: tests/solver/test_solvers.py, tests/solver/test_first_slots.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from mjx_lite.constraint import jacobian, soft
from mjx_lite.ops import lanes, select, tiles
from mjx_lite.solver import cost, operator, primal
from mjx_lite.solver.primal import Problem, Solution
from mjx_lite.solver.table import SOLVERS

SOLUTION = "qacc"  # checkpoint name: reverse mode saves the solution, so that it is not computed again


@jax.custom_jvp
def solve(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimise the problem; the result is differentiable in every array of `p`."""
  return _minimize(p, warmstart)


def _minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimise with the first contact slots alone, where all other slots are empty; loops over rows in kernels end earlier."""

  def whole():
    return SOLVERS[p.model.opt.solver](p, warmstart)

  may_shorten = tiles.choose(warmstart, single=True, tile=True, batch=False) and not lanes.packs()
  if p.model.plan.contact.first_slots is None or not may_shorten:
    return whole()
  short, rest_D = _shorten(p)
  return jax.lax.cond(jnp.any(rest_D != 0), whole, lambda: _append_empty(_minimize(short, warmstart), rest_D))


def _shorten(p: Problem) -> tuple[Problem, jax.Array]:
  """Return the problem of the first contact slots alone, and D (n, W) of all other rows; D is zero for empty slots."""
  m, rows, j = p.model, p.rows, p.rows.jacobian
  c = m.plan.contact
  assert c.first_slots is not None and j.body is not None
  start, ncon = len(m.plan.jacobian.order), c.first_slots.ncon
  end = start + ncon * c.nrow
  side = np.concatenate([np.arange(ncon), c.ncon + np.arange(ncon)])
  short_jacobian = j._replace(basis=select.rows(j.basis, side), mu=j.mu[:ncon], body=select.rows(j.body, side))
  cut = {k: getattr(rows, k)[:end] for k in rows._fields if k not in ("jacobian", "contact_mu")}
  short_rows = rows._replace(jacobian=short_jacobian, contact_mu=rows.contact_mu[:ncon], **cut)
  short_model = m.tree_replace({"layout": m.layout.with_part("contact", c.first_slots)})
  return p._replace(model=short_model, rows=short_rows), rows.D[end:]


def _append_empty(s: Solution, rest_D: jax.Array) -> Solution:
  """Append the rows of empty slots, on which no force acts."""
  jar, force = (None if x is None else jnp.concatenate([x, jnp.zeros_like(rest_D, shape=(len(rest_D), x.shape[-1]))])
                for x in (s.jar, s.force))  # fmt: skip
  return s._replace(jar=jar, force=force)


@solve.defjvp
def _solve_jvp(primals, tangents):
  p, warmstart = primals
  p_dot, _ = tangents
  solution = solve(p, warmstart)
  qacc = checkpoint_name(solution.qacc, SOLUTION)
  ma, jar = primal.point(p, qacc)
  solution = solution._replace(qacc=qacc, ma=ma, jar=jar)
  if p.model.opt.contact_gradient in soft.WEIGHTS:
    start = jax.lax.stop_gradient(solution.qacc)
    return solution, jax.jvp(lambda q: solve(_softened(q), start), (p,), (p_dot,))[1]
  _, residual_dot = jax.jvp(lambda q: _residual(q, qacc), (p,), (p_dot,))
  qacc_dot = _solve_hessian(p, qacc, -residual_dot)
  _, (ma_dot, jar_dot) = jax.jvp(primal.point, (p, qacc), (p_dot, qacc_dot))
  none: Any = lambda x: np.zeros(x.shape, jax.dtypes.float0)  # noqa: E731
  force_dot = None if solution.force is None else jax.jvp(_force, (p, solution.jar), (p_dot, jar_dot))[1]
  return solution, Solution(qacc_dot, ma_dot, jar_dot, none(solution.niter), none(solution.stopped), force_dot)


def _softened(p):
  return p._replace(model=p.model.tree_replace({"opt.contact_gradient": "exact"}), rows=soft.soften(p.model, p.rows))


def _force(p, jar):
  return cost.zones(p.model.plan, p.rows, jar).force


def _residual(p, qacc):
  ma, jar = primal.point(p, qacc)
  return primal.gradient(p, ma, cost.zones(p.model.plan, p.rows, jar))


def _solve_hessian(p, qacc, b):
  """Compute H^-1 b at the solution."""
  m, j, cdof = p.model, p.rows.jacobian, p.metric.cdof
  jar = jacobian.mul(m, j, cdof, qacc) - p.rows.aref
  zones = cost.zones(m.plan, p.rows, jar)

  def hessian(x):
    y = jacobian.mul(m, j, cdof, x)
    return operator.mul_m(m, p.metric, x) + jacobian.mul_t(m, j, cdof, cost.mul_curvature(m.plan, zones, y))

  fixed, fixed_zones = jax.lax.stop_gradient((p, zones))
  factor = operator.factor(fixed.model, fixed.metric, fixed.rows.jacobian, fixed_zones)

  def solve_fixed(_, x):
    return operator.solve(fixed.model, factor, x, 0.9)

  return jax.lax.custom_linear_solve(hessian, b, solve_fixed, symmetric=True)
