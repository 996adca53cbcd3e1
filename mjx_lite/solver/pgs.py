"""Projected Gauss-Seidel on the dual problem, with Nesterov's momentum."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import vector
from mjx_lite.solver import cost, dual, operator, primal
from mjx_lite.solver.dual import Dual
from mjx_lite.solver.primal import Problem, Solution


class _Iterate(NamedTuple):
  force: jax.Array
  before: jax.Array  # force before the last extrapolation
  momentum: jax.Array  # (W,) iterations since the momentum was dropped
  done: jax.Array
  niter: jax.Array
  count: jax.Array


def minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimiser by projected Gauss-Seidel, from the forces at warmstart or from none if those cost more.

  Rows are visited in random order, another one than C's, so iterates differ from C's and the solution does not. It converges
  linearly; Newton's method is faster in all but the smallest problems.

  Source: `mj_solPGS`.
  """
  m = p.model
  problem, s = start(p, warmstart)
  s = jax.lax.while_loop(lambda s: (s.count < m.opt.iterations) & ~jnp.all(s.done), lambda s: step(p, problem, s), s)
  qacc = dual.acceleration(p, problem, s.force)
  ma, jar = primal.point(p, qacc)
  return Solution(qacc, ma, jar, s.niter, s.done, s.force)


def start(p: Problem, warmstart: jax.Array) -> tuple[Dual, _Iterate]:
  """The dual problem and the first iterate."""
  m = p.model
  problem = dual.build(p, operator.factor_m(m, p.metric))
  force = jnp.zeros_like(problem.b)
  if m.opt.use_warmstart:
    warm = cost.zones(m.plan, p.rows, primal.point(p, warmstart)[1]).force
    force = jnp.where(dual.cost(problem, warm) > 0, 0, warm)
  width = force.shape[-1]
  none = jnp.zeros((width,), jnp.int32)
  return problem, _Iterate(force, force, none, jnp.zeros((width,), bool), none, jnp.int32(0))


def step(p: Problem, problem: Dual, s: _Iterate) -> _Iterate:
  """The next iterate."""
  k = s.momentum.astype(s.force.dtype)
  beta = jnp.where(s.count > 0, jnp.maximum((k - 1) / (k + 2), 0), 0)
  ahead = _project(p, problem, s.force + beta * (s.force - s.before))
  ahead = jnp.where(beta > 0, ahead, s.force)
  new = _sweep(p, problem, ahead, jax.random.fold_in(jax.random.key(0), s.count))
  change = new - ahead
  gain = -vector.total(change * (0.5 * (dual.residual(problem, ahead) + dual.residual(problem, new))))
  opposed = vector.total(change * (ahead - s.force)) < 0
  niter = s.niter + (~s.done).astype(s.niter.dtype)
  finished = p.scale * gain < p.model.opt.tolerance
  return _Iterate(
    jnp.where(s.done, s.force, new), s.force, jnp.where(opposed & (s.count > 0), 0, s.momentum + 1),
    s.done | finished, niter, s.count + 1,
  )  # fmt: skip


def _sweep(p: Problem, problem: Dual, force: jax.Array, key: jax.Array) -> jax.Array:
  """Forces after one sweep."""
  plan, nrow = p.model.plan, force.shape[0]
  if not cost.is_cone(plan):
    return dual.sweep_rows(problem, force, jax.random.permutation(key, nrow), problem.r)
  contacts = len(plan.jacobian.order)
  force = dual.sweep_rows(problem, force, jax.random.permutation(key, contacts), problem.r)
  return dual.sweep_cones(problem, force, jax.random.permutation(key, plan.contact.ncon), contacts, True, problem.r)


def _project(p: Problem, problem: Dual, force: jax.Array) -> jax.Array:
  """Forces moved into what the constraints can exert."""
  plan = p.model.plan
  if not cost.is_cone(plan):
    return jnp.clip(force, problem.low, problem.high)
  n = len(plan.jacobian.order)
  c = plan.contact
  f = force[n:].reshape(c.ncon, c.ndir, -1)
  normal, mu = jnp.maximum(f[:, :1], 0), problem.mu
  y = jnp.where(mu > 0, f[:, 1:] / jnp.where(mu > 0, mu, 1), 0)
  size = jnp.sqrt(jnp.sum(y * y, axis=1, keepdims=True))
  shrunk = f[:, 1:] * jnp.where(size > normal, normal / jnp.where(size > normal, size, 1), 1)
  cones = jnp.concatenate([normal, shrunk], axis=1).reshape(c.ncon * c.ndir, -1)
  return jnp.concatenate([jnp.clip(force[:n], problem.low[:n], problem.high[:n]), cones])
