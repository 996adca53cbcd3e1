"""The solver's linear algebra: M x and (M + J' H J)^-1 x, by one of three methods chosen at plan time.

*articulated*: for more than a few dofs, if every contact touches at most one moving body, and if there are no equalities, no
limits of ball joints, no tendon rows, no armature of tendons and no effective metric. Then a row adds to the diagonal or to the
inertia of one body. An articulated-body pass solves in O(n); neither M nor J is formed.
*coupled*: for many dofs, if there are also contacts between moving bodies, chosen at run time. A few of these contacts are a
low-rank update of the solve (`coupling`). All other contacts enter the articulated pass on both of their bodies, as if the
other body were at rest. Conjugate gradients add the coupling; without other contacts they end in one iteration.
*dense*: always applicable, and the fastest for few dofs.

Tests: tests/solver/test_coupled.py, tests/solver/test_iterations.py.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.math import krylov, linalg, vector
from mjx_lite.model.types import Model
from mjx_lite.ops import lanes
from mjx_lite.smooth import articulated, inertia, joint_params, mass
from mjx_lite.solver import coupling
from mjx_lite.solver.cost import Zones

_PRECISE_ITERATIONS = 10  # up to this number, each iteration has to be as good as possible
_MANY_DOFS = 48  # from this number on, conjugate gradients cost less than a dense factor


class Metric(NamedTuple):
  """Arrays from which M is computed; with the discrete integrator, its effective metric replaces M."""

  cinert: jax.Array
  cdof: jax.Array
  M: jax.Array  # packed
  effective: jax.Array | None = None  # (nv, nv, W)
  backbone: jax.Array | None = None  # (nC, W) packed: the effective metric without the couplings by tendons and actuators


def is_tree_sparse(m: Model) -> bool:
  """Return whether the articulated method applies."""
  return not m.plan.contact.couples and not _must_be_dense(m)


def is_coupled(m: Model) -> bool:
  """Return whether the coupled method applies."""
  c = m.plan.contact
  return c.couples > 0 and c.chosen and not _must_be_dense(m) and m.nv >= _MANY_DOFS


def _must_be_dense(m: Model) -> bool:
  """Return whether M is factored densely, or anything but contacts couples bodies that are not neighbours in the tree."""
  p = m.plan.jacobian
  return bool(m.opt.is_discrete or len(p.ball_row) or p.nequality or len(p.tendon_row)) or not mass.is_articulated(m)


def mul_m(m: Model, metric: Metric, x: jax.Array) -> jax.Array:
  """Compute M x (nv, W)."""
  if metric.effective is not None:
    return vector.mat_vec(metric.effective, x)
  return mass.mul(m, metric.cinert, metric.cdof, metric.M, x)


def dense_m(m: Model, metric: Metric) -> jax.Array:
  """Return M as a dense array (nv, nv, W)."""
  return inertia.full(m, metric.M) if metric.effective is None else metric.effective


def factor_m(m: Model, metric: Metric) -> Any:
  """Factor M, or the backbone of the effective metric, for `mass.solve`."""
  if metric.backbone is not None:
    return mass.dense_factor(m, metric.backbone)
  return mass.factor(m, metric.cinert, metric.cdof, metric.M)


class Coupled(NamedTuple):
  """Factor of the coupled method: a low-rank update by the first contacts, and the coupling by all other contacts."""

  base: articulated.Factor  # each body by itself
  update: coupling.Update | None
  pairs: jacobian.PairCoupling  # of the contacts that are not in the update
  has_pairs: jax.Array  # () whether there are such contacts
  jacobian: Jacobian
  curvature: jax.Array  # (ncon, ndir, ndir, W) of the contacts
  cdof: jax.Array


def factor(m: Model, metric: Metric, j: Jacobian, zones: Zones) -> Any:
  """Factor M + J' H J for `solve`; H is the curvature of the rows."""
  if not is_tree_sparse(m) and not is_coupled(m):
    return linalg.cholesky(dense_m(m, metric) + jacobian.dense_curvature(m, j, metric.cdof, zones.weight, zones.cone))
  diagonal = joint_params.dof_armature(m) + jacobian.unit_curvature(m, zones.weight)
  if not m.plan.contact.ncon:
    return articulated.factor(m, metric.cinert, metric.cdof, diagonal)
  curvature = jacobian.contact_curvature(m, j, zones.weight, zones.cone)
  if is_coupled(m) and lanes.packs():
    return _coupled_in_lanes(m, metric, j, curvature, diagonal)
  chosen = None if is_tree_sparse(m) else coupling.choose(m, j, curvature)
  single = curvature if chosen is None else jnp.where(chosen.among[:, None, None], 0, curvature)
  stiffen = functools.partial(jacobian.add_curvature, m, j, single)
  base = articulated.factor(m, metric.cinert, metric.cdof, diagonal, stiffen)
  if chosen is None:
    return base
  update, pairs = coupling.factor(m, base, j, curvature, chosen), jacobian.couple_pairs(m, j, curvature, chosen.unchosen)
  has_pairs = jnp.any(vector.fold(jnp.logical_or, chosen.unchosen, 0))
  return Coupled(base=base, update=update, pairs=pairs, has_pairs=has_pairs, jacobian=j, curvature=curvature, cdof=metric.cdof)


def _coupled_in_lanes(m: Model, metric: Metric, j: Jacobian, a: jax.Array, diagonal: jax.Array) -> Coupled:
  """Factor for `solve` without a low-rank update: lanes with other numbers of contacts would wait for each other's work."""
  base = articulated.factor(m, metric.cinert, metric.cdof, diagonal, functools.partial(jacobian.add_curvature, m, j, a))
  pairs = jacobian.couple_pairs(m, j, a, coupling.between(m, j, a))
  return Coupled(base=base, update=None, pairs=pairs, has_pairs=jnp.bool_(True), jacobian=j, curvature=a, cdof=metric.cdof)


def direction(m: Model, f: Any, x: jax.Array) -> jax.Array:
  """Solve like `solve`, with the loose tolerance that suffices for a search direction.

  The tolerance is half of the digits. In single precision, where round-off ends the iterations, it is a fifth if many
  iterations may follow.
  """
  single = jnp.finfo(x.dtype).bits <= 32
  return solve(m, f, x, 0.2 if single and m.opt.iterations > _PRECISE_ITERATIONS else 0.5)


def solve(m: Model, f: Any, x: jax.Array, digits: float) -> jax.Array:
  """Solve with the factor f for x (nv, W); `digits` is the argument of `krylov.split_solve`."""
  if isinstance(f, linalg.Factor):
    return linalg.factor_solve(f, x)
  if not isinstance(f, Coupled):
    return articulated.solve(m, f, x)

  def pair_coupling(y):
    return jacobian.mul_pairs(m, f.jacobian, f.curvature, f.pairs, f.cdof, y)

  def coupling_or_zero(y):
    return jax.lax.cond(f.has_pairs, pair_coupling, jnp.zeros_like, y)

  def precondition(y):
    return articulated.solve(m, f.base, y) if f.update is None else coupling.solve(m, f.base, f.update, y)

  return krylov.split_solve(precondition, coupling_or_zero, x, digits, 2 * m.nv)
