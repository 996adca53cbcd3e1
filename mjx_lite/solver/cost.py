"""The constraint cost s(jar): zones, forces and curvature of each row.

Friction rows (the first `nf`) are quadratic within the bound R*eta and linear outside; the others push only, they are
active where jar < 0. Source: MuJoCo documentation, Computation, Constraint solver; `mj_constraintUpdate`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.constraint.rows import Rows
from mjx_lite.core.enums import ConstraintState
from mjx_lite.math import vector


class Zones(NamedTuple):
  """Forces and curvature of the rows at a point; each (nefc, W)."""

  force: jax.Array
  weight: jax.Array  # second derivative of the cost


def zones(rows: Rows, nf: int, jar: jax.Array) -> Zones:
  """Row forces -s'(jar) and curvatures s''(jar)."""
  d, eta = rows.D, rows.frictionloss
  pushed = jar < 0
  force, weight = jnp.where(pushed, -d * jar, 0), jnp.where(pushed, d, 0)
  if nf:
    bound = eta[:nf]
    inside = jnp.abs(jar[:nf]) * d[:nf] < bound
    slip = jnp.where(d[:nf] > 0, -jnp.sign(jar[:nf]) * bound, 0)
    force = jnp.concatenate([jnp.where(inside, -d[:nf] * jar[:nf], slip), force[nf:]])
    weight = jnp.concatenate([jnp.where(inside, d[:nf], 0), weight[nf:]])
  return Zones(force, weight)


def row_cost(rows: Rows, nf: int, jar: jax.Array) -> jax.Array:
  """Total cost of the rows (W,)."""
  d = rows.D
  push = jnp.minimum(jar[nf:], 0)
  total = 0.5 * vector.total(d[nf:] * push * push)
  return total + vector.total(_huber(rows, nf, jar)) if nf else total


def _huber(rows, nf, jar):
  d, eta, x = rows.D[:nf], rows.frictionloss[:nf], jnp.abs(jar[:nf])
  inside = x * d < eta
  r = jnp.where(d > 0, rows.R[:nf], 0)
  return jnp.where(inside, 0.5 * d * x * x, jnp.where(d > 0, eta * (x - 0.5 * r * eta), 0))


class Line(NamedTuple):
  """The cost along a line: value relative to the start, slope, curvature; each (W,)."""

  cost: jax.Array
  slope: jax.Array
  curvature: jax.Array


def along(rows: Rows, nf: int, jar: jax.Array, jv: jax.Array, gauss1: jax.Array, gauss2: jax.Array, alpha: jax.Array) -> Line:
  """Cost of a step alpha (W,) along jv, relative to none; differences are taken row by row, without cancellation.

  The smooth part is `gauss1 alpha + gauss2 alpha^2`. Source: `PrimalEval`.
  """
  x = jar + alpha * jv
  z = zones(rows, nf, x)
  before, after = jnp.minimum(jar[nf:], 0), jnp.minimum(x[nf:], 0)
  cost = 0.5 * vector.total(rows.D[nf:] * (after - before) * (after + before))
  if nf:
    cost = cost + vector.total(_huber(rows, nf, x) - _huber(rows, nf, jar))
  slope = gauss1 + 2 * gauss2 * alpha - vector.total(z.force * jv)
  return Line(cost + alpha * (gauss1 + alpha * gauss2), slope, 2 * gauss2 + vector.total(z.weight * jv * jv))


def state(rows: Rows, nf: int, jar: jax.Array) -> jax.Array:
  """Zone of each row as mjtConstraintState."""
  s = ConstraintState
  push = jnp.where((jar < 0) & (rows.D > 0), int(s.QUADRATIC), int(s.SATISFIED))
  x = jar[:nf]
  inside = jnp.abs(x) * rows.D[:nf] < rows.frictionloss[:nf]
  slip = jnp.where(inside, int(s.QUADRATIC), jnp.where(x > 0, int(s.LINEARPOS), int(s.LINEARNEG)))
  slip = jnp.where(rows.D[:nf] > 0, slip, int(s.SATISFIED))
  return jnp.concatenate([slip, push[nf:]]).astype(jnp.int32)
