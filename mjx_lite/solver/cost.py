"""The constraint cost s(jar): zones, forces and curvature of each row.

The first rows are those of equalities; their cost is quadratic. The next rows are friction rows; their cost is quadratic within
the bound R*eta and linear outside. All other rows only push: they are active where jar < 0. The rows of an elliptic contact act
together. With T = |(mu_j jar_j)|, they are free where jar_0 >= T, and quadratic row by row where mu^2 jar_0 + T <= 0 (mu is
that of the regularised cone). In the middle zone between the two, the cost is D_0 / (1 + mu^2) (jar_0 - T)^2 / 2.

Source: MuJoCo documentation, Computation, Constraint solver; `mj_constraintUpdate`.

Tests: tests/solver/test_iterates.py, tests/solver/test_combinations.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import Rows
from mjx_lite.math import safe, vector
from mjx_lite.model.enums import ConstraintState
from mjx_lite.ops import lanes, linear
from mjx_lite.ops.rows import each, each_below, update, upto
from mjx_lite.ops.rows import total as rows_total


class Zones(NamedTuple):
  """Forces and curvature of the rows at a point."""

  force: jax.Array  # (nefc, W)
  weight: jax.Array  # (nefc, W) second derivative of the cost, row by row; zero for cones in the middle zone
  cone: jax.Array | None  # (ncon, ndir, ndir, W) second derivative of cones in the middle zone


class _Cones(NamedTuple):
  """Parameters of elliptic contacts."""

  d: jax.Array  # (ncon, ndir, W)
  mu: jax.Array  # (ncon, ndir - 1, W) friction coefficients
  regular_mu: jax.Array  # (ncon, W) that of the regularised cone

  @property
  def number(self) -> jax.Array:
    """Number (W,) of slots up to the last contact."""
    return upto(self.d[:, 0] != 0)


class _Cone(NamedTuple):
  """Elliptic contacts at a point."""

  jar: jax.Array  # (ncon, ndir, W)
  slide: jax.Array  # (ncon, ndir - 1, W) mu_j jar_j
  size: jax.Array  # (ncon, W) norm T of `slide`
  gap: jax.Array  # (ncon, W) jar_0 - T
  strength: jax.Array  # (ncon, W) D_0 / (1 + mu^2)
  free: jax.Array  # (ncon, W) whether no force acts
  middle: jax.Array  # (ncon, W) whether the cost is that of the middle zone

  @property
  def bottom(self) -> jax.Array:
    """Mask (ncon, W) of the contacts whose cost is quadratic row by row."""
    return ~self.free & ~self.middle


class _ConeMove(NamedTuple):
  """Change of the elliptic contacts along a line."""

  normal: jax.Array  # (ncon, W) rate of jar_0
  slide: jax.Array  # (ncon, ndir - 1, W) rate of mu_j jar_j
  square: jax.Array  # (ncon, W) squared length of `slide`
  start: jax.Array  # (ncon, W) product of `slide` with `_Cone.slide` at the start


def _contact_start(p: Any) -> int:
  return len(p.jacobian.order)


def is_cone(p: Any) -> bool:
  """Return whether contacts have elliptic cones."""
  return p.contact.elliptic and p.contact.ncon > 0 and p.contact.ndir > 1


def _cones(p: Any, rows: Rows) -> _Cones:
  width = rows.D.shape[-1]
  mu, regular_mu = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (rows.jacobian.mu, rows.contact_mu))
  return _Cones(_by_contact(p, rows.D), mu[:, : p.contact.ndir - 1], regular_mu)


def _by_contact(p: Any, x: jax.Array) -> jax.Array:
  """Return the contact rows as (ncon, ndir, W)."""
  return x[_contact_start(p) :].reshape(p.contact.ncon, p.contact.ndir, -1)


def _cone_at(c: _Cones, x: jax.Array) -> _Cone:
  slide = x[:, 1:] * c.mu
  size, mu, d = safe.norm(slide), c.regular_mu, c.d[:, 0]
  free = (x[:, 0] >= size) & ((size > 0) | (x[:, 0] >= 0))
  middle = ~free & (mu * mu * x[:, 0] + size > 0) & (size > 0)
  return _Cone(jar=x, slide=slide, size=size, gap=x[:, 0] - size, strength=d / (1 + mu * mu), free=free, middle=middle)


def _independent(p: Any, x: jax.Array) -> jax.Array:
  """Return the independent rows: all rows, or all rows before the contact rows if contacts have cones."""
  return x[: _contact_start(p)] if is_cone(p) else x


class _IndependentRows(NamedTuple):
  """Independent rows (n, W), each quadratic inside its zone and linear outside."""

  d: jax.Array
  bound: jax.Array | None  # slope of the linear zone; None without friction rows
  equality: np.ndarray | None  # (n, 1) mask; None without equalities
  friction: np.ndarray | None  # (n, 1) mask; None without friction rows

  def inside(self, x: jax.Array) -> jax.Array:
    """Return the mask of quadratic rows: equalities always, friction within its bound, other rows where x < 0."""
    inside = x < 0 if self.equality is None else (x < 0) | self.equality
    if self.bound is None or self.friction is None:
      return inside
    return jnp.where(self.friction, jnp.abs(x) * self.d < self.bound, inside)

  def force(self, inside: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(inside, -self.d * x, 0 if self.bound is None else -jnp.sign(x) * self.bound)

  def cost(self, inside: jax.Array, x: jax.Array) -> jax.Array:
    if self.bound is None:
      return jnp.where(inside, 0.5 * self.d * x * x, 0)
    begin = safe.divide(self.bound, self.d)  # of the linear zone
    return jnp.where(inside, 0.5 * self.d * x * x, self.bound * (jnp.abs(x) - 0.5 * begin))


def _independent_rows(p: Any, rows: Rows) -> _IndependentRows:
  """Return the independent rows; the bound is zero for all rows that are not active friction."""
  d = _independent(p, rows.D)
  equality = np.arange(len(d))[:, None] < p.jacobian.nequality if p.jacobian.nequality else None
  if not p.jacobian.nfriction:
    return _IndependentRows(d, None, equality, None)
  friction = _is_friction(p, len(d))
  bound = jnp.where(friction & (d > 0), _independent(p, rows.frictionloss), 0)
  return _IndependentRows(d, bound, equality, friction)


def _is_friction(p: Any, n: int) -> np.ndarray:
  """Return the mask (n, 1) of the friction rows among the first n rows."""
  row, first = np.arange(n)[:, None], p.jacobian.nequality
  return (row >= first) & (row < first + p.jacobian.nfriction)


def zones(p: Any, rows: Rows, jar: jax.Array, before: Zones | None = None) -> Zones:
  """Compute the row forces -s'(jar) and curvatures s''(jar).

  Args:
    p: the model's plans.
    rows: the rows.
    jar: (nefc, W) J a - aref.
    before: those of the same rows at another jar, if there are any; see `rows.each`.

  Gradient: zero for the friction directions at the tip of a cone.
  """
  x, independent = _independent(p, jar), _independent_rows(p, rows)

  def at(r):
    independent, x = r
    inside = independent.inside(x)
    return independent.force(inside, x), jnp.where(inside, independent.d, 0)

  old = None if before is None else tuple(_independent(p, y) for y in (before.force, before.weight))
  force, weight = each(at, (independent, x), upto(independent.d != 0), old)
  if not is_cone(p):
    return Zones(force, weight, None)

  def at_contact(r):
    cones, x = r
    c = linear.materialize(_cone_at(cones, x))
    middle_force, block = _middle(cones.mu, c)
    bottom = c.bottom[:, None]
    return jnp.where(bottom, -cones.d * c.jar, middle_force), jnp.where(bottom, cones.d, 0), block

  cones = _cones(p, rows)
  old = None if before is None else (*(_by_contact(p, y) for y in (before.force, before.weight)), before.cone)
  push, stiff, block = each(at_contact, (cones, _by_contact(p, jar)), cones.number, old)
  width = jar.shape[-1]
  return Zones(
    jnp.concatenate([force, push.reshape(-1, width)]), jnp.concatenate([weight, stiff.reshape(-1, width)]), block
  )  # fmt: skip


def _middle(mu: jax.Array, c: _Cone) -> tuple[jax.Array, jax.Array]:
  """Compute the force (ncon, ndir, W) and curvature (ncon, ndir, ndir, W) of cones in the middle zone; zero elsewhere."""
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


def advance(p: Any, rows: Rows, jar: jax.Array, jv: jax.Array, alpha: jax.Array) -> jax.Array:
  """Compute jar + alpha jv (nefc, W); in kernels, only rows up to the last one in use change."""
  if not lanes.packs():
    return linear.no_alias(jar + alpha * jv, jar, jv)

  def add(v, x):
    return x + alpha * v

  d, x, v = (_independent(p, y) for y in (rows.D, jar, jv))
  moved = update(add, v, upto(d != 0), x)
  if not is_cone(p):
    return moved
  by_contact = update(add, _by_contact(p, jv), _cones(p, rows).number, _by_contact(p, jar))
  return jnp.concatenate([moved, by_contact.reshape(-1, jar.shape[-1])])


def squares(rows: Rows, z: Zones, y: jax.Array) -> jax.Array:
  """Compute the sum (W,) of weight y^2 over the rows, for y (nefc, W)."""
  return rows_total(lambda r: r[0] * r[1] * r[1], (z.weight, y), upto(rows.D != 0))


def mul_curvature(p: Any, z: Zones, y: jax.Array) -> jax.Array:
  """Multiply the curvature with a vector y of the rows (nefc, W)."""
  out = z.weight * y
  if z.cone is None:
    return out
  c, start = p.contact, _contact_start(p)
  by_contact = y[start:].reshape(c.ncon, c.ndir, -1)
  block = each(lambda r: vector.mat_vec(*r), (z.cone, by_contact), upto(z.cone[:, 0, 0] > 0))
  return jnp.concatenate([out[:start], out[start:] + block.reshape(-1, y.shape[-1])])


def row_cost(p: Any, rows: Rows, jar: jax.Array) -> jax.Array:
  """Compute the total cost (W,) of the rows."""
  x, independent = _independent(p, jar), _independent_rows(p, rows)

  def at(r):
    independent, x = r
    return independent.cost(independent.inside(x), x)

  total = rows_total(at, (independent, x), upto(independent.d != 0))
  if not is_cone(p):
    return total

  def at_contact(r):
    cones, x = r
    c = _cone_at(cones, x)
    return _middle_cost(c) + _bottom_cost(c, cones.d)

  cones = _cones(p, rows)
  return total + rows_total(at_contact, (cones, _by_contact(p, jar)), cones.number)


def _bottom_cost(c: _Cone, d: jax.Array):
  return jnp.where(c.bottom, 0.5 * vector.dot(d * c.jar, c.jar), 0)


def _middle_cost(c: _Cone):
  return jnp.where(c.middle, 0.5 * c.strength * c.gap * c.gap, 0)


def _middle_change(c0: _Cone, c1: _Cone, v: _ConeMove, alpha):
  """Compute the cost of the middle zone after a step minus the cost before.

  The result is exact to its own round-off where both points are in the middle zone, else to the round-off of the costs.
  """
  both = c0.middle & c1.middle
  growth = alpha * (2 * v.start + alpha * v.square)
  growth = growth / jnp.where(both, c0.size + c1.size, 1)
  change = 0.5 * c0.strength * (alpha * v.normal - growth) * (c0.gap + c1.gap)
  return jnp.where(both, change, _middle_cost(c1) - _middle_cost(c0))


def _middle_slope(c: _Cone, v: _ConeMove):
  """Compute the slope and curvature of the middle zone's cost along a line."""
  strength, inverse = jnp.where(c.middle, c.strength, 0), jnp.where(c.middle, 1 / jnp.where(c.middle, c.size, 1), 0)
  growth = vector.dot(c.slide, v.slide) * inverse
  closing = v.normal - growth
  return strength * c.gap * closing, strength * (closing * closing - c.gap * (v.square - growth * growth) * inverse)


class Line(NamedTuple):
  """The cost along a line: value relative to the start, slope, curvature; each (W,)."""

  cost: jax.Array
  slope: jax.Array
  curvature: jax.Array


def along(p: Any, rows: Rows, start: Zones, jar, jv, slope, gauss2) -> Callable[[jax.Array], Line]:
  """Return a function of a step alpha (W,) along jv that computes the cost relative to that at alpha = 0.

  The cost is the linear term with the slope at the start, plus a second-order remainder of each row. The remainder has no
  cancellation where the row stays in a quadratic zone. So near the minimum, the line is as exact as the gradient from which its
  direction was computed.

  Args:
    p: the model's plans.
    rows: the rows.
    start: zones at jar.
    jar: (nefc, W) at the start.
    jv: (nefc, W).
    slope: (W,) at the start, of the rows and the smooth part.
    gauss2: (W,) half of the curvature of the smooth part.

  Source: `PrimalEval`.
  """
  kinds = [_independent_along(p, rows, start, jar, jv)]
  if is_cone(p):
    kinds.append(_cones_along(p, rows, start, jar, jv))

  def line(alpha: jax.Array) -> Line:
    cost, rise, bend = (vector.add(parts) for parts in zip(*(kind(alpha) for kind in kinds), strict=True))
    cost = cost + alpha * (slope + alpha * gauss2)
    return Line(cost, slope + 2 * gauss2 * alpha + rise, 2 * gauss2 + bend)

  return line


def _independent_along(p: Any, rows: Rows, start: Zones, jar, jv) -> Callable[[jax.Array], Line]:
  """Return the function that computes the independent rows' part of the line."""
  independent = _independent_rows(p, rows)
  x0, v, force0 = (_independent(p, x) for x in (jar, jv, start.force))
  number = upto(independent.d != 0)

  def begin(r):
    independent, x0 = r
    inside0 = independent.inside(x0)
    return inside0, independent.cost(inside0, x0), jnp.where(inside0, independent.d, 0)

  at_start = each_below(begin, (independent, x0), number)

  def line(alpha):
    def at(r):
      independent, x0, v, force0, (inside0, cost0, weight0) = r
      step = alpha * v
      x = x0 + step
      inside = independent.inside(x)
      both, cost1, weight = inside0 & inside, independent.cost(inside, x), jnp.where(inside, independent.d, 0)
      cost = jnp.where(both, 0.5 * weight0 * step * step, cost1 - cost0 + force0 * step)
      rise = jnp.where(both, weight0 * step, force0 - independent.force(inside, x)) * v
      return Line(cost, rise, weight * v * v)

    return rows_total(at, (independent, x0, v, force0, at_start), number)

  return line


def _cones_along(p: Any, rows: Rows, start: Zones, jar, jv) -> Callable[[jax.Array], Line]:
  """Return the function that computes the elliptic contacts' part of the line."""
  cones = _cones(p, rows)
  x0, v, force = (_by_contact(p, x) for x in (jar, jv, start.force))

  def begin(r):
    cones, x0, v, force = r
    c0, slide = _cone_at(cones, x0), v[:, 1:] * cones.mu
    move = _ConeMove(v[:, 0], slide, vector.dot(slide, slide), vector.dot(c0.slide, slide))
    return c0, move, _bottom_cost(c0, cones.d), vector.dot(force, v), vector.dot(cones.d * v, v)

  at_start = each_below(begin, (cones, x0, v, force), cones.number)

  def line(alpha):
    def at(r):
      cones, v, (c0, move, energy0, push, square) = r
      c1 = _cone_at(cones, c0.jar + alpha * v)
      size1 = linear.materialize(c1.size)
      c1 = linear.materialize(c1._replace(size=size1, gap=c1.jar[:, 0] - size1))
      both, weight = c0.bottom & c1.bottom, jnp.where(c1.bottom, square, 0)
      cost = jnp.where(both, 0.5 * alpha * alpha * square, _bottom_cost(c1, cones.d) - energy0 + alpha * push)
      rise = jnp.where(both, alpha * square, push + jnp.where(c1.bottom, vector.dot(cones.d * c1.jar, v), 0))
      change = _middle_change(c0, c1, move, alpha)
      middle_rise, middle_weight = _middle_slope(c1, move)
      terms = cost + change, rise + middle_rise, weight + middle_weight
      return Line(*(linear.no_alias(x, c1.size, c1.gap) for x in terms))

    return rows_total(at, (cones, v, at_start), cones.number)

  return line


def state(p: Any, rows: Rows, jar: jax.Array) -> jax.Array:
  """Return the zone (nefc, W) of each row as mjtConstraintState."""
  s = ConstraintState
  x, independent = _independent(p, jar), _independent_rows(p, rows)
  outside = int(s.SATISFIED)
  if independent.bound is not None:
    outside = jnp.where(_is_friction(p, len(x)), jnp.where(x > 0, int(s.LINEARPOS), int(s.LINEARNEG)), outside)
  zone = jnp.where(independent.d > 0, jnp.where(independent.inside(x), int(s.QUADRATIC), outside), int(s.SATISFIED))
  parts = [zone]
  if is_cone(p):
    c = _cone_at(_cones(p, rows), _by_contact(p, jar))
    zone = jnp.where(c.middle, int(s.CONE), jnp.where(c.bottom, int(s.QUADRATIC), int(s.SATISFIED)))
    zone = jnp.where(_by_contact(p, rows.D) > 0, zone[:, None], int(s.SATISFIED))
    parts.append(zone.reshape(-1, jar.shape[-1]))
  return jnp.concatenate(parts).astype(jnp.int32)
