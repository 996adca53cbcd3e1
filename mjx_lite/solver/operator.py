"""The solver's linear algebra: M x and (M + J' W J)^-1 x, in one of two ways chosen at plan time.

*articulated*: every contact touches at most one moving body, and no ball joint has a limit. Then a row adds to the
diagonal or to one body's inertia, and an articulated-body pass solves in O(n); neither M nor J is formed.
*dense*: always right.
"""

from typing import Any, NamedTuple

import jax

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.core.types import Model
from mjx_lite.math import linalg, spatial
from mjx_lite.smooth import articulated, inertia, transmission


class Metric(NamedTuple):
  """What M is made of."""

  cinert: jax.Array
  cdof: jax.Array
  M: jax.Array  # packed


def is_tree_sparse(m: Model) -> bool:
  """True if the articulated operator serves."""
  p = m.plan.jacobian
  return m.plan.contact.tree_sparse and not len(p.ball_row) and not p.nequality


def mul_m(m: Model, metric: Metric, x: jax.Array) -> jax.Array:
  """M x."""
  return inertia.mul_m(m, metric.cinert, metric.cdof, x)


def factor(m: Model, metric: Metric, j: Jacobian, weight: jax.Array) -> Any:
  """Factor of M + J' diag(weight) J (nefc, W)."""
  if not is_tree_sparse(m):
    return linalg.cholesky(inertia.full(m, metric.M) + jacobian.dense_curvature(m, j, metric.cdof, weight))
  body = spatial.inertia_matrix(metric.cinert)
  if m.plan.contact.ncon:
    body = body + jacobian.body_curvature(m, j, weight)
  diagonal = transmission.dof_armature(m) + jacobian.unit_curvature(m, weight)
  return articulated.factor(m, body, metric.cdof, diagonal)


def solve(m: Model, f: Any, x: jax.Array) -> jax.Array:
  """Solve with the factor."""
  return articulated.solve(m, f, x) if is_tree_sparse(m) else linalg.cholesky_solve(f, x)
