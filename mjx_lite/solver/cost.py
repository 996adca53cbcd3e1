"""The constraint cost s(jar): zones, forces and curvature of each row.

Rows of equalities (the first) are quadratic; friction rows (the next) are quadratic within the bound R*eta and linear
outside; the others push only, they are active where jar < 0. Source: MuJoCo documentation, Computation, Constraint
solver; `mj_constraintUpdate`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.jacobian import JacobianPlan
from mjx_lite.constraint.rows import Rows
from mjx_lite.core.enums import ConstraintState
from mjx_lite.math import vector


class Zones(NamedTuple):
  """Forces and curvature of the rows at a point; each (nefc, W)."""

  force: jax.Array
  weight: jax.Array  # second derivative of the cost


def _friction(p: JacobianPlan) -> slice:
  return slice(p.nequality, p.nequality + p.nfriction)


def _pushed(p: JacobianPlan, jar: jax.Array) -> jax.Array:
  """Rows whose cost is quadratic here, friction rows aside."""
  if not p.nequality:
    return jar < 0
  return (jar < 0) | (np.arange(len(jar)) < p.nequality)[:, None]


def zones(p: JacobianPlan, rows: Rows, jar: jax.Array) -> Zones:
  """Row forces -s'(jar) and curvatures s''(jar)."""
  d = rows.D
  pushed = _pushed(p, jar)
  force, weight = jnp.where(pushed, -d * jar, 0), jnp.where(pushed, d, 0)
  if p.nfriction:
    f = _friction(p)
    x, d, bound = jar[f], d[f], rows.frictionloss[f]
    inside = jnp.abs(x) * d < bound
    slip = jnp.where(d > 0, -jnp.sign(x) * bound, 0)
    force = jnp.concatenate([force[: f.start], jnp.where(inside, -d * x, slip), force[f.stop :]])
    weight = jnp.concatenate([weight[: f.start], jnp.where(inside, d, 0), weight[f.stop :]])
  return Zones(force, weight)


def row_cost(p: JacobianPlan, rows: Rows, jar: jax.Array) -> jax.Array:
  """Total cost of the rows (W,)."""
  d, x = _quadratic(p, rows), _excess(p, jar)
  total = 0.5 * vector.total(d * x * x)
  return total + vector.total(_huber(p, rows, jar)) if p.nfriction else total


def _quadratic(p, rows):
  """D, without the friction rows."""
  if not p.nfriction:
    return rows.D
  f, index = _friction(p), np.arange(len(rows.D))[:, None]
  return jnp.where((index >= f.start) & (index < f.stop), 0, rows.D)


def _excess(p, jar):
  """jar where it costs, friction rows aside."""
  push = jnp.minimum(jar, 0)
  if not p.nequality:
    return push
  return jnp.where((np.arange(len(jar)) < p.nequality)[:, None], jar, push)


def _huber(p, rows, jar):
  f = _friction(p)
  d, eta, x = rows.D[f], rows.frictionloss[f], jnp.abs(jar[f])
  inside = x * d < eta
  r = jnp.where(d > 0, rows.R[f], 0)
  return jnp.where(inside, 0.5 * d * x * x, jnp.where(d > 0, eta * (x - 0.5 * r * eta), 0))


class Line(NamedTuple):
  """The cost along a line: value relative to the start, slope, curvature; each (W,)."""

  cost: jax.Array
  slope: jax.Array
  curvature: jax.Array


def along(p: JacobianPlan, rows: Rows, jar, jv, gauss1, gauss2, alpha: jax.Array) -> Line:
  """Cost of a step alpha (W,) along jv, relative to none; differences are taken row by row, without cancellation.

  The smooth part is `gauss1 alpha + gauss2 alpha^2`. Source: `PrimalEval`.
  """
  x = jar + alpha * jv
  z = zones(p, rows, x)
  before, after = _excess(p, jar), _excess(p, x)
  cost = 0.5 * vector.total(_quadratic(p, rows) * (after - before) * (after + before))
  if p.nfriction:
    cost = cost + vector.total(_huber(p, rows, x) - _huber(p, rows, jar))
  slope = gauss1 + 2 * gauss2 * alpha - vector.total(z.force * jv)
  return Line(cost + alpha * (gauss1 + alpha * gauss2), slope, 2 * gauss2 + vector.total(z.weight * jv * jv))


def state(p: JacobianPlan, rows: Rows, jar: jax.Array) -> jax.Array:
  """Zone of each row as mjtConstraintState."""
  s = ConstraintState
  push = jnp.where(_pushed(p, jar) & (rows.D > 0), int(s.QUADRATIC), int(s.SATISFIED))
  f = _friction(p)
  x = jar[f]
  inside = jnp.abs(x) * rows.D[f] < rows.frictionloss[f]
  slip = jnp.where(inside, int(s.QUADRATIC), jnp.where(x > 0, int(s.LINEARPOS), int(s.LINEARNEG)))
  slip = jnp.where(rows.D[f] > 0, slip, int(s.SATISFIED))
  return jnp.concatenate([push[: f.start], slip, push[f.stop :]]).astype(jnp.int32)
