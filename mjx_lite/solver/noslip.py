"""Friction without regularisation, computed after the solver to prevent creep; normal forces do not change.

Tests: tests/solver/test_solvers.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.solver import cost, dual
from mjx_lite.solver.dual import Dual
from mjx_lite.solver.primal import Problem


class NoSlip(NamedTuple):
  """Result of `refine`."""

  force: jax.Array  # (nefc, W)
  qacc: jax.Array  # (nv, W)
  niter: jax.Array  # (W,)


def refine(p: Problem, problem: Dual, force: jax.Array) -> NoSlip:
  """Replace the friction in the solver's forces (nefc, W): minimise the dual cost without regularisation.

  A sweep visits the friction rows, then the contacts in their order: pairs of opposing edges, or elliptic friction in its
  ellipsoid. A world stops when a sweep gains less than noslip_tolerance; the gain is scaled by 1/trace(M).

  Source: `mj_solNoSlip`.
  Gradient: through the sweeps, at most noslip_iterations; the number of sweeps of a world counts as constant.
  """
  plan = p.model.plan
  first, contacts = plan.jacobian.nequality, len(plan.jacobian.order)
  friction = first + np.arange(plan.jacobian.nfriction)
  c = plan.contact
  edges = contacts + c.nrow * np.flatnonzero(c.frictional)[:, None] + 2 * np.arange((c.nrow if c.ndir > 1 else 0) // 2)

  def sweep(f):
    f = dual.sweep_rows(problem, f, jnp.asarray(friction))
    if cost.is_cone(plan):
      return dual.sweep_friction(problem, f, contacts)
    return dual.sweep_edges(problem, f, jnp.asarray(edges.ravel()))

  def step(carry, count):
    f, done, niter = carry
    new = sweep(f)
    gain = -vector.total((new - f) * (0.5 * (_rest(problem, f) + _rest(problem, new))))
    gain = gain + jnp.where(count == 0, 0.5 * vector.total(f * f * problem.r), 0)
    ends = p.scale * gain < p.model.opt.noslip_tolerance
    return (jnp.where(done, f, new), done | ends, niter + (~done).astype(niter.dtype)), None

  width = force.shape[-1]
  start = force, jnp.zeros((width,), bool), jnp.zeros((width,), jnp.int32)
  (force, _, niter), _ = jax.lax.scan(step, start, np.arange(p.model.opt.noslip_iterations))
  return NoSlip(force, dual.acceleration(p, problem, force), niter)


def _rest(problem, force):
  """Compute A f + b."""
  return dual.residual(problem, force) - problem.r * force
