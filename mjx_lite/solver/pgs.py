"""Projected Gauss-Seidel on the dual problem, with Nesterov's momentum.

Tests: tests/solver/test_iterates.py.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.ops.select import pick
from mjx_lite.solver import cost, dual, operator, primal
from mjx_lite.solver.dual import Dual
from mjx_lite.solver.primal import Problem, Solution

_WORDS = 2**15  # length of the table of random numbers


class _Iterate(NamedTuple):
  force: jax.Array
  before: jax.Array  # force before the last extrapolation
  momentum: jax.Array  # (W,) iterations since the momentum was dropped
  order: jax.Array  # (n, W) order of the blocks in the last sweep
  improvement: jax.Array  # (W,) decrease of the cost in the last sweep, from the extrapolated forces, scaled
  done: jax.Array
  niter: jax.Array
  iteration: jax.Array  # () number of sweeps of the loop


def minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimise by projected Gauss-Seidel, from the forces at warmstart, or from zero forces if those at warmstart cost more.

  The method converges linearly; Newton's method is faster in all but the smallest problems.

  Each sweep visits the rows in a random order, the same as in C; the random numbers repeat after 2^15.

  Source: `mj_solPGS`.
  """
  m = p.model
  problem, s = start(p, warmstart)
  s = jax.lax.while_loop(lambda s: (s.iteration < m.opt.iterations) & ~jnp.all(s.done), lambda s: step(p, problem, s), s)
  qacc = dual.acceleration(p, problem, s.force)
  ma, jar = primal.point(p, qacc)
  return Solution(qacc, ma, jar, s.niter, s.done, s.force)


def start(p: Problem, warmstart: jax.Array) -> tuple[Dual, _Iterate]:
  """Return the dual problem and the first iterate."""
  m = p.model
  problem = dual.build(p, operator.factor_m(m, p.metric))
  force = jnp.zeros_like(problem.b)
  if m.opt.use_warmstart:
    warm = cost.zones(m.plan, p.rows, primal.point(p, warmstart)[1]).force
    force = jnp.where(dual.cost(problem, warm) > 0, 0, warm)
  width = force.shape[-1]
  none, gain = jnp.zeros((width,), jnp.int32), jnp.zeros((width,), force.dtype)
  iterate = _Iterate(
    force=force,
    before=force,
    momentum=none,
    order=_blocks(p)[0],
    improvement=gain,
    done=jnp.zeros((width,), bool),
    niter=none,
    iteration=jnp.int32(0),
  )
  return problem, iterate


def step(p: Problem, problem: Dual, s: _Iterate) -> _Iterate:
  """Compute the next iterate."""
  k = s.momentum.astype(s.force.dtype)
  beta = jnp.where(s.iteration > 0, jnp.maximum((k - 1) / (k + 2), 0), 0)
  ahead = _project(p, problem, s.force + beta * (s.force - s.before))
  ahead = jnp.where(beta > 0, ahead, s.force)
  number = _blocks(p)[1]
  order = _shuffled(s.order, number, s.iteration)
  start = len(p.model.plan.jacobian.order) if cost.is_cone(p.model.plan) else len(ahead)
  new = dual.sweep_blocks(problem, ahead, order, number, start)
  change = new - ahead
  gain = -vector.total(change * (0.5 * (dual.residual(problem, ahead) + dual.residual(problem, new))))
  opposed = vector.total(change * (ahead - s.force)) < 0
  niter = s.niter + (~s.done).astype(s.niter.dtype)
  improvement = p.scale * gain
  return _Iterate(
    force=jnp.where(s.done, s.force, new),
    before=s.force,
    momentum=jnp.where(opposed & (s.iteration > 0), 0, s.momentum + 1),
    order=order,
    improvement=improvement,
    done=s.done | (improvement < p.model.opt.tolerance),
    niter=niter,
    iteration=s.iteration + 1,
  )


def _blocks(p: Problem) -> tuple[jax.Array, jax.Array]:
  """Return the existing blocks, then all others (n, W), in the numbering of `dual.sweep_blocks`; and how many exist (W,)."""
  plan, exists = p.model.plan, p.rows.D > 0
  if cost.is_cone(plan):
    first = len(plan.jacobian.order)
    exists = jnp.concatenate([exists[:first], exists[first :: plan.contact.ndir]])
  return jnp.argsort(~exists, axis=0, stable=True).astype(jnp.int32), jnp.sum(exists, axis=0, dtype=jnp.int32)


def _shuffled(order: jax.Array, number: jax.Array, sweep: jax.Array) -> jax.Array:
  """Shuffle the first `number` (W,) entries of the order (n, W) once more, by the algorithm of Fisher and Yates."""
  n = len(order)
  if n < 2:
    return order
  words, index = jnp.asarray(_words(_WORDS)), np.arange(n, dtype=np.int32)[:, None]

  def swap(k, order):
    i = n - 1 - k
    word = words[(sweep * jnp.maximum(number - 1, 0) + number - 1 - i) % _WORDS]
    j = jnp.where(i < number, word % (i + 1).astype(word.dtype), i.astype(word.dtype)).astype(jnp.int32)
    here, there = jax.lax.dynamic_index_in_dim(order, i, keepdims=False), pick(order, j)
    return jnp.where(index == i, there, jnp.where(index == j, here, order))

  return jax.lax.fori_loop(0, n - 1, swap, order)


@functools.cache
def _words(n: int) -> np.ndarray:
  """Return n random words of PCG32 with seed 0 and increment 1, without its first word.

  Source: M. O'Neill, PCG: A family of simple fast space-efficient statistically good algorithms for random number generation
  (2014); `mj_solPGS`.
  """
  state, out = 1, []
  for _ in range(n):
    word, rotation = (((state >> 18) ^ state) >> 27) & 0xFFFFFFFF, state >> 59
    out.append((word >> rotation | word << (-rotation & 31)) & 0xFFFFFFFF)
    state = (state * 6364136223846793005 + 1) & 0xFFFFFFFFFFFFFFFF
  return np.array(out, np.uint32)


def _project(p: Problem, problem: Dual, force: jax.Array) -> jax.Array:
  """Project forces onto the set of forces that the constraints can exert."""
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
