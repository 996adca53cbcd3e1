"""The constraint cost s(jar): zones, forces and curvature of each row.

Rows of equalities (the first) are quadratic; friction rows (the next) are quadratic within the bound R*eta and linear
outside; the others push only, they are active where jar < 0. The rows of an elliptic contact act together: with
T = |(mu_j jar_j)| they are free where jar_0 >= T, quadratic row by row where mu^2 jar_0 + T <= 0 (mu of the regularised
cone), and between the two the cost is D_0 / (1 + mu^2) (jar_0 - T)^2 / 2.

Source: MuJoCo documentation, Computation, Constraint solver; `mj_constraintUpdate`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import Rows
from mjx_lite.core.enums import ConstraintState
from mjx_lite.math import safe, vector


class Zones(NamedTuple):
  """Forces and curvature of the rows at a point."""

  force: jax.Array  # (nefc, W)
  weight: jax.Array  # (nefc, W) second derivative of the cost of rows that stand alone
  cone: jax.Array | None  # (ncon, ndir, ndir, W) that of elliptic contacts in their middle zone


class _Cone(NamedTuple):
  """Elliptic contacts at a point."""

  jar: jax.Array  # (ncon, ndir, W)
  slide: jax.Array  # (ncon, ndir - 1, W) mu_j jar_j
  size: jax.Array  # (ncon, W) their norm T
  gap: jax.Array  # (ncon, W) jar_0 - T
  strength: jax.Array  # (ncon, W) D_0 / (1 + mu^2)
  free: jax.Array  # (ncon, W)
  middle: jax.Array  # (ncon, W)


def _friction(p: Any) -> slice:
  return slice(p.jacobian.nequality, p.jacobian.nequality + p.jacobian.nfriction)


def _contact_start(p: Any) -> int:
  return len(p.jacobian.order)


def is_cone(p: Any) -> bool:
  """Whether contacts have elliptic cones."""
  return p.contact.elliptic and p.contact.ncon > 0 and p.contact.ndir > 1


def _cone(p: Any, rows: Rows, jar: jax.Array) -> _Cone:
  c = p.contact
  x = jar[_contact_start(p) :].reshape(c.ncon, c.ndir, -1)
  d = rows.D[_contact_start(p) :].reshape(c.ncon, c.ndir, -1)[:, 0]
  slide = x[:, 1:] * rows.jacobian.mu[:, : c.ndir - 1]
  size, mu = safe.norm(slide), rows.contact_mu
  free = (x[:, 0] >= size) & ((size > 0) | (x[:, 0] >= 0))
  middle = ~free & (mu * mu * x[:, 0] + size > 0) & (size > 0)
  return _Cone(x, slide, size, x[:, 0] - size, d / (1 + mu * mu), free, middle)


def _pushed(p: Any, rows: Rows, jar: jax.Array, cone: _Cone | None) -> jax.Array:
  """Rows whose cost is quadratic here, friction rows aside."""
  pushed = jar < 0
  if p.jacobian.nequality:
    pushed = pushed | (np.arange(len(jar)) < p.jacobian.nequality)[:, None]
  if cone is None:
    return pushed
  bottom = jnp.broadcast_to((~cone.free & ~cone.middle)[:, None], cone.jar.shape).reshape(-1, jar.shape[-1])
  return jnp.concatenate([pushed[: _contact_start(p)], bottom])


def zones(p: Any, rows: Rows, jar: jax.Array) -> Zones:
  """Row forces -s'(jar) and curvatures s''(jar).

  Args:
    p: the model's plans.

  Gradient: at the tip of a cone, zero of the friction directions.
  """
  d = rows.D
  cone = _cone(p, rows, jar) if is_cone(p) else None
  pushed = _pushed(p, rows, jar, cone)
  force, weight = jnp.where(pushed, -d * jar, 0), jnp.where(pushed, d, 0)
  if p.jacobian.nfriction:
    f = _friction(p)
    x, d, bound = jar[f], d[f], rows.frictionloss[f]
    inside = jnp.abs(x) * d < bound
    slip = jnp.where(d > 0, -jnp.sign(x) * bound, 0)
    force = jnp.concatenate([force[: f.start], jnp.where(inside, -d * x, slip), force[f.stop :]])
    weight = jnp.concatenate([weight[: f.start], jnp.where(inside, d, 0), weight[f.stop :]])
  if cone is None:
    return Zones(force, weight, None)
  between, block = _middle(rows.jacobian.mu[:, : p.contact.ndir - 1], cone)
  start = _contact_start(p)
  force = jnp.concatenate([force[:start], force[start:] + between.reshape(-1, jar.shape[-1])])
  return Zones(force, weight, block)


def _middle(mu: jax.Array, c: _Cone) -> tuple[jax.Array, jax.Array]:
  """Force (ncon, ndir, W) and curvature (ncon, ndir, ndir, W) of cones in the middle zone, zero elsewhere."""
  strength = jnp.where(c.middle, c.strength, 0)
  inverse = jnp.where(c.middle, 1 / jnp.where(c.middle, c.size, 1), 0)
  normal = -strength * c.gap
  unit = c.slide * inverse[:, None] * mu  # derivative of T
  force = jnp.concatenate([normal[:, None], -normal[:, None] * unit], axis=1)
  ratio = c.jar[:, 0] * inverse
  eye = np.eye(mu.shape[1])[..., None].astype(mu.dtype)
  tangent = ratio[:, None, None] * unit[:, :, None] * unit[:, None] + (1 - ratio)[:, None, None] * eye * (mu * mu)[:, None]
  top = jnp.concatenate([jnp.ones_like(unit[:, :1]), -unit], axis=1)[:, None]
  below = jnp.concatenate([-unit[:, :, None], tangent], axis=2)
  return force, strength[:, None, None] * jnp.concatenate([top, below], axis=1)


def mul_curvature(p: Any, z: Zones, y: jax.Array) -> jax.Array:
  """Curvature times a vector of the rows (nefc, W)."""
  out = z.weight * y
  if z.cone is None:
    return out
  c, start = p.contact, _contact_start(p)
  block = vector.mat_vec(z.cone, y[start:].reshape(c.ncon, c.ndir, -1))
  return jnp.concatenate([out[:start], out[start:] + block.reshape(-1, y.shape[-1])])


def row_cost(p: Any, rows: Rows, jar: jax.Array) -> jax.Array:
  """Total cost of the rows (W,)."""
  cone = _cone(p, rows, jar) if is_cone(p) else None
  x = jnp.where(_pushed(p, rows, jar, cone), jar, 0)
  total = 0.5 * vector.total(_quadratic(p, rows) * x * x)
  if cone is not None:
    total = total + vector.total(_middle_cost(cone))
  return total + vector.total(_huber(p, rows, jar)) if p.jacobian.nfriction else total


def _quadratic(p, rows):
  """D, without the friction rows."""
  if not p.jacobian.nfriction:
    return rows.D
  f, index = _friction(p), np.arange(len(rows.D))[:, None]
  return jnp.where((index >= f.start) & (index < f.stop), 0, rows.D)


def _middle_cost(c: _Cone):
  return jnp.where(c.middle, 0.5 * c.strength * c.gap * c.gap, 0)


def _middle_change(p, rows, c0: _Cone, c1: _Cone, jv, alpha):
  """Cost of the middle zone after a step minus that before, and the size of what was subtracted for it.

  It is exact to its own round-off where both are in the zone; else to that of the costs.
  """
  v = jv[_contact_start(p) :].reshape(c0.jar.shape)
  slide = v[:, 1:] * rows.jacobian.mu[:, : v.shape[1] - 1]
  both = c0.middle & c1.middle
  longer = alpha * (2 * vector.dot(c0.slide, slide) + alpha * vector.dot(slide, slide))
  longer = longer / jnp.where(both, c0.size + c1.size, 1)
  change = 0.5 * c0.strength * (alpha * v[:, 0] - longer) * (c0.gap + c1.gap)
  after, before = _middle_cost(c1), _middle_cost(c0)
  return jnp.where(both, change, after - before), jnp.where(both, 0, jnp.abs(after) + jnp.abs(before))


def _huber(p, rows, jar):
  f = _friction(p)
  d, eta, x = rows.D[f], rows.frictionloss[f], jnp.abs(jar[f])
  inside = x * d < eta
  r = jnp.where(d > 0, rows.R[f], 0)
  return jnp.where(inside, 0.5 * d * x * x, jnp.where(d > 0, eta * (x - 0.5 * r * eta), 0))


class Line(NamedTuple):
  """The cost along a line: value relative to the start and its round-off, slope, curvature; each (W,)."""

  cost: jax.Array
  noise: jax.Array
  slope: jax.Array
  curvature: jax.Array


def along(p: Any, rows: Rows, start: Zones, jar, jv, slope, gauss2, alpha: jax.Array) -> Line:
  """Cost of a step alpha (W,) along jv, relative to none.

  It is counted from the slope at the start: what a row adds is its second-order remainder, which has no cancellation where
  the row stays in a quadratic zone. So near the minimum the line stays as exact as the gradient that gave its direction.

  Args:
    p: the model's plans.
    rows: the rows.
    start: zones at jar.
    jar: (nefc, W) at the start.
    jv: (nefc, W).
    slope: (W,) at the start, of rows and smooth part.
    gauss2: (W,) half of the curvature of the smooth part.
    alpha: (W,).

  Source: `PrimalEval`.
  """
  move = alpha * jv
  x = jar + move
  end = zones(p, rows, x)
  both = (start.weight > 0) & (end.weight > 0)
  cones = [_cone(p, rows, y) if is_cone(p) else None for y in (jar, x)]
  pushed = [_pushed(p, rows, y, c) for y, c in zip((jar, x), cones, strict=True)]
  before, after = (jnp.where(on, y, 0) for on, y in zip(pushed, (jar, x), strict=True))
  crossing = 0.5 * _quadratic(p, rows) * (after - before) * (after + before) + start.force * move
  subtracted = jnp.zeros_like(slope)
  if p.jacobian.nfriction:
    f = _friction(p)
    after, before = _huber(p, rows, x), _huber(p, rows, jar)
    kinked = crossing[f] + after - before
    subtracted += vector.total(jnp.where(both[f], 0, jnp.abs(after) + jnp.abs(before)))
    crossing = jnp.concatenate([crossing[: f.start], kinked, crossing[f.stop :]])
  cost = vector.total(jnp.where(both, 0.5 * start.weight * move * move, crossing))
  rise = vector.total(jnp.where(both, start.weight * move, start.force - end.force) * jv)
  bend = vector.total(mul_curvature(p, end, jv) * jv)
  if cones[0] is not None and cones[1] is not None:
    change, size = map(vector.total, _middle_change(p, rows, cones[0], cones[1], jv, alpha))
    cost, subtracted = cost + change, subtracted + size
  cost = cost + alpha * (slope + alpha * gauss2)
  noise = 8 * jnp.finfo(jar.dtype).eps * (jnp.abs(alpha * slope) + subtracted)
  return Line(cost, noise, slope + 2 * gauss2 * alpha + rise, 2 * gauss2 + bend)


def state(p: Any, rows: Rows, jar: jax.Array) -> jax.Array:
  """Zone of each row as mjtConstraintState."""
  s = ConstraintState
  cone = _cone(p, rows, jar) if is_cone(p) else None
  push = jnp.where(_pushed(p, rows, jar, cone) & (rows.D > 0), int(s.QUADRATIC), int(s.SATISFIED))
  if cone is not None:
    start = _contact_start(p)
    middle = jnp.broadcast_to(cone.middle[:, None], cone.jar.shape).reshape(-1, jar.shape[-1]) & (rows.D[start:] > 0)
    push = jnp.concatenate([push[:start], jnp.where(middle, int(s.CONE), push[start:])])
  f = _friction(p)
  x = jar[f]
  inside = jnp.abs(x) * rows.D[f] < rows.frictionloss[f]
  slip = jnp.where(inside, int(s.QUADRATIC), jnp.where(x > 0, int(s.LINEARPOS), int(s.LINEARNEG)))
  slip = jnp.where(rows.D[f] > 0, slip, int(s.SATISFIED))
  return jnp.concatenate([push[: f.start], slip, push[f.stop :]]).astype(jnp.int32)
