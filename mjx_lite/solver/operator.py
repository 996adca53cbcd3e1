"""The solver's linear algebra: M x and (M + J' W J)^-1 x, in one of two ways chosen at plan time.

*articulated*: every contact touches at most one moving body; there are no equalities, no limits of ball joints, no rows
of tendons, no armature of tendons and no effective metric. Then a row adds to the diagonal or to one body's inertia, and an
articulated-body pass solves in O(n); neither M nor J is formed.
*dense*: always right.
"""

from typing import Any, NamedTuple

import jax

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.core.types import Model
from mjx_lite.math import linalg, vector
from mjx_lite.smooth import articulated, inertia, mass, transmission
from mjx_lite.solver.cost import Zones


class Metric(NamedTuple):
  """What M is made of; with the discrete integrator its effective metric takes the place of M."""

  cinert: jax.Array
  cdof: jax.Array
  M: jax.Array  # packed
  effective: jax.Array | None = None  # (nv, nv, W)
  backbone: jax.Array | None = None  # (nC, W) packed: the effective metric but for what tendons and actuators couple


def is_tree_sparse(m: Model) -> bool:
  """True if the articulated operator serves."""
  p = m.plan.jacobian
  coupling = m.opt.is_discrete or len(p.ball_row) or p.nequality or len(p.tendon_row)
  return m.plan.contact.tree_sparse and not coupling and mass.is_articulated(m)


def mul_m(m: Model, metric: Metric, x: jax.Array) -> jax.Array:
  """M x."""
  if metric.effective is not None:
    return vector.mat_vec(metric.effective, x)
  return mass.mul(m, metric.cinert, metric.cdof, metric.M, x)


def dense_m(m: Model, metric: Metric) -> jax.Array:
  """M (nv, nv, W)."""
  return inertia.full(m, metric.M) if metric.effective is None else metric.effective


def factor_m(m: Model, metric: Metric) -> Any:
  """Factor of M, or of the backbone of the effective metric, for `mass.solve`."""
  if metric.backbone is not None:
    return mass.dense_factor(m, metric.backbone)
  return mass.factor(m, metric.cinert, metric.cdof, metric.M)


def factor(m: Model, metric: Metric, j: Jacobian, zones: Zones) -> Any:
  """Factor of M + J' H J, H the curvature of the rows."""
  weight, cone = zones.weight, zones.cone
  if not is_tree_sparse(m):
    return linalg.cholesky(dense_m(m, metric) + jacobian.dense_curvature(m, j, metric.cdof, weight, cone))
  stiffness = jacobian.body_curvature(m, j, weight, cone) if m.plan.contact.ncon else None
  diagonal = transmission.dof_armature(m) + jacobian.unit_curvature(m, weight)
  return articulated.factor(m, metric.cinert, metric.cdof, diagonal, stiffness)


def solve(m: Model, f: Any, x: jax.Array) -> jax.Array:
  """Solve with the factor."""
  return articulated.solve(m, f, x) if is_tree_sparse(m) else linalg.cholesky_solve(f, x)
