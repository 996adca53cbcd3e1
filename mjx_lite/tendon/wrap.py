"""Shortest paths around spheres and cylinders, in one batch.

Both cases are the planar problem of a circle. For a sphere, the plane contains the centre and the two end points. For a
cylinder, the plane is perpendicular to the axis, and the height is spread evenly along the path. A path may also have to pass
through the inside of the hull (a side site within the radius); then the path touches the hull from inside in one point.

The decisions whether a path wraps, and on which side, are piecewise constant. The points of tangency have closed forms, so
the points and the lengths are differentiated directly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, trig, vector
from mjx_lite.model.enums import MINVAL
from mjx_lite.ops.select import join, rows

_ITERATIONS, _TOLERANCE = 20, 1e-6  # of Newton's method for the inside wrap, as in C


class Wrap(NamedTuple):
  """Result of `wrap`: the points where the path touches the hull; without wrapping, both points are x1."""

  wrapped: jax.Array  # (n, W)
  point0: jax.Array  # (n, 3, W)
  point1: jax.Array  # (n, 3, W)
  length: jax.Array  # (n, W) length on the hull between the two points


class Planar(NamedTuple):
  """Result of the planar problem."""

  wrapped: jax.Array
  point0: jax.Array  # (n, 2, W)
  point1: jax.Array  # (n, 2, W)
  arc: jax.Array  # (n, W)


def wrap(x0, x1, pos, mat, radius, side, cylinder: np.ndarray, sided: np.ndarray) -> Wrap:
  """Wrap n segments, each around its own sphere or cylinder.

  Args:
    x0: one end (n, 3, W) [m].
    x1: the other end (n, 3, W) [m].
    pos: centre of the geom (n, 3, W) [m].
    mat: orientation of the geom (n, 3, 3, W); a cylinder's axis is z.
    radius: (n, W) [m].
    side: side sites (k, 3, W) of the segments that have one [m].
    cylinder: (n,) True for a cylinder.
    sided: indices (k,) of the segments with a side site.

  Source: `mju_wrap`; the side of the path is its homotopy class as in MuJoCo 4.0 (XML reference, spatial-geom-sidesite).
  Gradient: that of the branch taken; finite where a path begins to wrap or an end lies on the hull.
  """
  p0, p1 = (vector.mat_t_vec(mat, x - pos) for x in (x0, x1))
  ball, every = np.flatnonzero(~cylinder), np.arange(len(cylinder))
  plane = _sphere_plane(rows(p0, ball), rows(p1, ball))
  q0, q1 = (_to_plane(plane, cylinder, p, every) for p in (p0, p1))
  far = (safe.norm(p0) >= MINVAL) & (safe.norm(p1) >= MINVAL)
  found = _planar(q0, q1, pos, mat, radius, side, plane, cylinder, sided)
  wrapped = found.wrapped & far
  height0, height1, length = _heights(found, q0, q1)
  on = wrapped[:, None]
  point0 = jnp.where(on, _from_plane(plane, cylinder, pos, mat, found.point0, height0), x1)
  point1 = jnp.where(on, _from_plane(plane, cylinder, pos, mat, found.point1, height1), x1)
  return Wrap(wrapped, point0, point1, jnp.where(wrapped, length, 0))


def _to_plane(plane, cylinder, p, segments):
  """Return coordinates in the plane, and along the plane's normal, of points p in the frames of the geoms of some segments."""
  b, c = np.flatnonzero(~cylinder[segments]), np.flatnonzero(cylinder[segments])
  a0, a1 = (rows(a, np.searchsorted(np.flatnonzero(~cylinder), segments[b])) for a in plane)
  pb = rows(p, b)
  u, v = vector.dot(pb, a0), vector.dot(pb, a1)
  return join([jnp.stack([u, v, jnp.zeros_like(u)], axis=1), rows(p, c)], np.argsort(np.r_[b, c]))


def _from_plane(plane, cylinder, pos, mat, point, height):
  """Return the world positions of points in the planes at heights along the planes' normals."""
  ball, can = np.flatnonzero(~cylinder), np.flatnonzero(cylinder)
  local = jnp.concatenate([point, height[:, None]], axis=1)
  b = rows(local, ball)
  in_ball = plane[0] * b[:, 0, None] + plane[1] * b[:, 1, None]
  return pos + vector.mat_vec(mat, join([in_ball, rows(local, can)], np.argsort(np.r_[ball, can])))


def _planar(q0, q1, pos, mat, radius, side, plane, cylinder, sided) -> Planar:
  """Find the paths in the planes between the ends q0 and q1, first those without a side site."""
  plain = np.setdiff1d(np.arange(len(cylinder)), sided)
  parts = []
  if len(plain):
    parts.append(circle(rows(q0, plain)[:, :2], rows(q1, plain)[:, :2], rows(radius, plain)))
  if len(sided):
    local = vector.mat_t_vec(rows(mat, sided), side - rows(pos, sided))
    mark = _to_plane(plane, cylinder, local, sided)[:, :2]
    parts.append(_sided(rows(q0, sided)[:, :2], rows(q1, sided)[:, :2], rows(radius, sided), local, mark))
  return Planar(*(join(list(x), np.argsort(np.r_[plain, sided])) for x in zip(*parts, strict=True)))


def _heights(found: Planar, q0, q1):
  """Spread the height evenly along the path; return the heights of both points, and the length between the points."""
  z0, z1 = q0[:, 2], q1[:, 2]
  len0, len1 = safe.norm(found.point0 - q0[:, :2]), safe.norm(found.point1 - q1[:, :2])
  rise = safe.divide(z1 - z0, len0 + found.arc + len1)
  height0, height1 = z0 + rise * len0, z0 + rise * (len0 + found.arc)
  length = safe.sqrt(found.arc * found.arc + (height1 - height0) * (height1 - height0))
  return height0, height1, length


def _sphere_plane(p0, p1):
  """Return the axes of the plane through the centre and both ends; if these points are in line, of any plane through them."""
  axis0 = safe.normalize(p0)
  normal = vector.cross(p0, p1)
  in_line = vector.dot(normal, normal)[:, None] < MINVAL * MINVAL
  size = jnp.abs(axis0)
  x, y, z = (size[:, k] for k in range(3))
  largest = jnp.where((z > x) & (z > y), 2, jnp.where((y > x) & (y > z), 1, 0))
  other_axes = (largest[:, None] != np.arange(3)[:, None]).astype(p0.dtype)
  normal = safe.normalize(jnp.where(in_line, vector.cross(axis0, other_axes), normal))
  return axis0, safe.normalize(vector.cross(normal, axis0))


def _angle(p, q):
  """Return the signed angle from p to q about the origin."""
  return safe.arctan2(p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0], vector.dot(p, q))


def _cross(a, b):
  return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def _intersect(p1, p2, p3, p4):
  """Return whether two planar segments meet; parallel segments do not."""
  u, v, w = p2 - p1, p4 - p3, p1 - p3
  det = _cross(u, v)
  sign = jnp.where(det > 0, 1, -1).astype(det.dtype)
  a, b, size = sign * _cross(v, w), sign * _cross(u, w), jnp.abs(det)
  return (size >= MINVAL) & (a >= 0) & (a <= size) & (b >= 0) & (b <= size)


def circle(e0: jax.Array, e1: jax.Array, radius: jax.Array, mark: jax.Array | None = None) -> Planar:
  """Find the path around the outside of a circle about the origin.

  Without a mark, the path takes the shorter side, and wraps only if the straight segment meets the circle. With a mark, the
  path is the path end 0 - mark - end 1, pulled tight: the angle by which this path winds about the origin selects the side.

  Args:
    e0: one end (n, 2, W).
    e1: the other end (n, 2, W).
    radius: (n, W).
    mark: unit vectors (n, 2, W) or None.
  """
  dif = e1 - e0
  ok = (vector.dot(e0, e0) >= radius * radius) & (vector.dot(e1, e1) >= radius * radius) & (radius >= MINVAL)
  ok &= vector.dot(dif, dif) >= MINVAL
  # regular substitutes where nothing can wrap, so that all expressions below are finite
  away = np.array([[2], [0]], e0.dtype)
  e0, e1 = jnp.where(ok[:, None], e0, away), jnp.where(ok[:, None], e1, away[::-1])
  radius = jnp.where(ok, radius, 1)

  dif, r2 = e1 - e0, radius * radius
  nearest = jnp.clip(-safe.divide(vector.dot(dif, e0), vector.dot(dif, dif)), 0, 1)
  foot = e0 + nearest[:, None] * dif
  clear = vector.dot(foot, foot) > r2

  # the two points of tangency are a middle plus and minus an offset
  def tangents(e):
    d2 = vector.dot(e, e)
    swing = radius * safe.sqrt(d2 - r2) / d2
    return e * (r2 / d2)[:, None], jnp.stack([e[:, 1], -e[:, 0]], axis=1) * swing[:, None]

  (mid0, off0), (mid1, off1) = tangents(e0), tangents(e1)
  clockwise, counter = (mid0 + off0, mid1 - off1), (mid0 - off0, mid1 + off1)
  crossed = [_intersect(e0, t0, e1, t1) for t0, t1 in (clockwise, counter)]
  winding = None if mark is None else _angle(e0, mark) + _angle(mark, e1)
  if winding is None:
    chord = [vector.dot(t0 - t1, t0 - t1) for t0, t1 in (clockwise, counter)]
    cost = [jnp.where(x, 1e4, c) for x, c in zip(crossed, chord, strict=True)]
    is_counter = ~(cost[0] < cost[1])
  else:
    clear &= jnp.abs(winding - _angle(e0, e1)) < jnp.pi
    is_counter = winding > 0
  wrapped = ok & ~clear & ~jnp.where(is_counter, crossed[1], crossed[0])
  sign = jnp.where(is_counter, -1, 1).astype(e0.dtype)
  t0, t1 = mid0 + sign[:, None] * off0, mid1 - sign[:, None] * off1
  if winding is None:
    arc = -sign * _angle(t0, t1)
    arc = jnp.where(arc < 0, arc + 2 * jnp.pi, arc)
  else:
    arc = jnp.abs(winding - _angle(e0, t0) - _angle(t1, e1))
  return Planar(wrapped, t0, t1, radius * arc)


def _sided(e0, e1, radius, local, mark):
  """Find paths with a side site: through the inside where the site is in the hull, else around the outside."""
  through = safe.norm(local) < radius
  norm = safe.norm(mark)[:, None]
  east = np.array([[1], [0]], e0.dtype)
  mark = jax.lax.stop_gradient(jnp.where(norm < MINVAL, east, mark / jnp.where(norm < MINVAL, 1, norm)))
  outside, inner = circle(e0, e1, radius, mark), inside(e0, e1, radius, through)
  return Planar(
    jnp.where(through, inner.wrapped, outside.wrapped),
    jnp.where(through[:, None], inner[1], outside[1]),
    jnp.where(through[:, None], inner[2], outside[2]),
    jnp.where(through, 0, outside.arc),
  )


def inside(e0: jax.Array, e1: jax.Array, radius: jax.Array, wanted: jax.Array) -> Planar:
  """Find the path that touches a circle about the origin from the inside; both ends are outside of the circle.

  At the point of contact both straight parts make the same angle phi with the normal, and
  asin(A sin(phi)) + asin(B sin(phi)) - 2 phi + G = 0, where A and B are the radius over the ends' distances and G is the
  angle between the ends. Newton's method finds phi; the implicit function theorem gives the derivative of phi.

  Args:
    e0: one end (n, 2, W).
    e1: the other end (n, 2, W).
    radius: (n, W).
    wanted: (n, W) False where the result is not used.
  """
  len0, len1, dif = safe.norm(e0), safe.norm(e1), e1 - e0
  dd = vector.dot(dif, dif)
  ok = (len0 > radius) & (len1 > radius) & (radius >= MINVAL)
  share = -safe.divide(vector.dot(dif, e0), dd)
  foot = e0 + share[:, None] * dif
  ok &= ~((dd > MINVAL) & (share > 0) & (share < 1) & (safe.norm(foot) <= radius))
  away = np.array([[2], [0]], e0.dtype)
  e0, e1 = jnp.where(ok[:, None], e0, away), jnp.where(ok[:, None], e1, away[::-1])
  radius, len0, len1, dd = (jnp.where(ok, x, y) for x, y in ((radius, 1), (len0, 2), (len1, 2), (dd, 8)))

  cos_g = (len0 * len0 + len1 * len1 - dd) / (2 * len0 * len1)
  ok &= cos_g >= -1 + MINVAL
  below = 1 - jnp.finfo(radius.dtype).eps  # an end within round-off of the hull: keep arcsin's slope finite
  a, b, g = jnp.minimum(radius / len0, below), jnp.minimum(radius / len1, below), safe.arccos(cos_g)
  phi, solved = _newton(*jax.lax.stop_gradient((a, b, g)), ok & wanted & (cos_g <= 1 - MINVAL))
  phi = _implicit(jnp.where(solved, phi, 0.5), a, b, g)

  is_counter = (_cross(e0, e1) > 0)[:, None]
  start = jnp.where(is_counter, e0 / len0[:, None], e1 / len1[:, None])
  angle = phi - trig.arcsin(jnp.where(is_counter[:, 0], a, b) * trig.cos_sin(phi)[1])
  c, s = trig.cos_sin(angle)
  point = jnp.stack([c * start[:, 0] - s * start[:, 1], s * start[:, 0] + c * start[:, 1]], axis=1)
  point = radius[:, None] * jnp.where(solved[:, None], point, safe.normalize(e0 + e1))
  return Planar(ok, point, point, jnp.zeros_like(radius))


def _residual(phi, a, b, g):
  sin = trig.cos_sin(phi)[1]
  return trig.arcsin(a * sin) + trig.arcsin(b * sin) - 2 * phi + g


def _slope(phi, a, b):
  c, s = trig.cos_sin(phi)
  root = lambda x: jnp.sqrt(jnp.maximum(1 - x * x, MINVAL * MINVAL))  # noqa: E731
  return c * (a / root(a * s) + b / root(b * s)) - 2


def _newton(a, b, g, wanted):
  """Find the root phi, and where it was found. Newton's method ends at C's tolerance, so the point is C's to round-off."""
  phi = jnp.full_like(g, 0.5 * jnp.pi)
  f = _residual(phi, a, b, g)

  def continues(s):
    return jnp.any(s[3]) & (s[0] < _ITERATIONS)

  def body(s):
    iteration, phi, f, active, good = s
    df = _slope(phi, a, b)
    following = phi - f / jnp.where(df > -MINVAL, -1, df)
    bad = active & ((df > -MINVAL) | (following > phi))
    phi = jnp.where(active & ~bad, following, phi)
    f = jnp.where(active & ~bad, _residual(phi, a, b, g), f)
    bad |= active & (f > _TOLERANCE)
    good &= ~bad
    return iteration + 1, phi, f, active & ~bad & (jnp.abs(f) > _TOLERANCE), good

  good = wanted & (f <= 0)
  state = (jnp.int32(0), phi, f, good & (jnp.abs(f) > _TOLERANCE), good)
  _, phi, _, active, good = jax.lax.while_loop(continues, body, state)
  return phi, good & ~active


def _implicit(phi, a, b, g):
  """Return phi with the derivative of the root of the residual."""
  phi = jax.lax.stop_gradient(phi)
  f = _residual(phi, a, b, g)
  return phi - (f - jax.lax.stop_gradient(f)) / jax.lax.stop_gradient(_slope(phi, a, b))
