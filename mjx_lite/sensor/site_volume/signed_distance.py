"""Signed distances of points from convex solids, exact everywhere (unlike the fields of `collision.field`).

An exact distance is a convex function, so the point of an object that is farthest outside is an extreme point.

Tests: tests/sensor/test_enclosure.py.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import hulls
from mjx_lite.collision.sdf import field
from mjx_lite.math import safe, vector
from mjx_lite.model.enums import GeomType

_NEWTON = 20  # steps; about six are needed
_CHUNK = 16  # triangles per iteration


def _exact(kind: int) -> Any:
  """Return the distance function of a field that is exact."""
  return lambda p, s: field.FIELDS[kind](p, s)[0]


def _box(p, s):
  beyond = jnp.abs(p) - s
  nearest = safe.largest(beyond, axis=beyond.ndim - 2)
  return safe.norm(jnp.where(beyond > 0, beyond, 0)) + jnp.where(nearest < 0, nearest, 0)


def _ellipsoid(p, s):
  """Return the distance along the normal at the nearest point of the surface. This point is searched without derivatives.

  Gradient: where several points of the surface are nearest (inside), that of one of these points.
  """
  size, away = jax.lax.stop_gradient((s, jnp.abs(p)))
  unit = _nearest_on_ellipsoid(size, away) * jnp.where(p < 0, -1, 1).astype(p.dtype)
  return vector.dot(safe.normalize(unit / size), p - s * unit)


def _nearest_on_ellipsoid(s, p):
  """Return y, the point of the surface nearest to p >= 0, divided by the size: `y_i = s_i p_i / (u + s_i^2 - min s^2)`.

  Newton's method solves 1 - 1 / |y| = 0 for u, from a u that is too small. Where p has no component along the shortest axis,
  there may be no solution u >= 0. Then the component of y along the shortest axis makes |y| = 1.
  """
  short = jnp.argmin(s, axis=-2, keepdims=True) == np.arange(3)[:, None]
  least = jnp.min(s, axis=-2, keepdims=True)
  over = (s - least) * (s + least)
  start = jnp.max(s * p - over, axis=-2, keepdims=True)

  def at(u):
    return safe.divide(s * p, u + over)

  def step(_, u):
    y = at(u)
    square = vector.dot(y, y)[..., None, :]
    slope = vector.dot(y, safe.divide(y, u + over))[..., None, :]
    return jnp.maximum(u, u + safe.divide(square, slope) * (safe.sqrt(square) - 1))

  y = at(jax.lax.fori_loop(0, _NEWTON, step, jnp.maximum(start, 0)))
  missing = safe.sqrt(1 - vector.dot(y, y))[..., None, :]
  return safe.normalize(jnp.where(short & (y == 0), missing, y))


# shape of a solid of size (..., 3, W) -> signed distance (..., W) of points (..., 3, W) in its frame [m]
SOLIDS: dict[int, Any] = {
  GeomType.SPHERE: _exact(GeomType.SPHERE),
  GeomType.CAPSULE: _exact(GeomType.CAPSULE),
  GeomType.ELLIPSOID: _ellipsoid,
  GeomType.CYLINDER: _exact(GeomType.CYLINDER),
  GeomType.BOX: _box,
}


def to_file(s: Mapping[str, Any], mesh: int, x: np.ndarray) -> np.ndarray:
  """Rotate vectors (n, 3) from the frame of a mesh to the frame of its file; the shift between the frames is left out."""
  w, u = s["mesh_quat"][mesh, 0], s["mesh_quat"][mesh, 1:]
  return x + 2 * np.cross(u, np.cross(u, x) + w * x)


def triangles(s: Mapping[str, Any], mesh: int) -> np.ndarray:
  """Return corners and outward normal (n, 4, 3) of the triangles of a mesh's hull, in the frame of its file, as for sites."""
  hull = hulls.plan(dict(s), np.array([mesh]), np.zeros(0, int))
  vert = to_file(s, mesh, hull.vert) + s["mesh_pos"][mesh]
  normal = to_file(s, mesh, hull.poly_normal)
  polys = [(poly[poly >= 0], n) for poly, n in zip(hull.poly_vert, normal, strict=True)]
  return np.array([[*vert[poly[[0, k, k + 1]]], n] for poly, n in polys for k in range(1, len(poly) - 1)])


def from_hull(table: np.ndarray, p: jax.Array) -> jax.Array:
  """Return signed distances (..., W) of points (..., 3, W) from a hull of `triangles`: inside, the distance from its planes.

  Gradient: that of the nearest point or plane; on the surface, that of a plane.
  """
  still = jax.lax.stop_gradient(p)
  pad = -len(table) % _CHUNK
  chunks = np.concatenate([table, np.repeat(table[:1], pad, axis=0)]).reshape(-1, _CHUNK, 4, 3)
  shape = (1,) * (p.ndim - 2)

  def visit(carry, chunk):
    a, b, c, normal = (chunk[:, k].reshape(_CHUNK, *shape, 3, 1) for k in range(4))
    height, square, point = _to_triangle(still, a, b, c, normal)
    far, near, highest, plane = carry
    square, point = _best(jnp.less, *_along(jnp.argmin, square, point), far, near)
    height, plane = _best(jnp.greater, *_along(jnp.argmax, height, _plane(a, normal, p)), highest, plane)
    return (square, point, height, plane), None

  inf, zero = jnp.full_like(still[..., 0, :], jnp.inf), jnp.zeros_like(still)
  start = inf, zero, -inf, jnp.concatenate([zero, zero[..., :1, :]], axis=-2)
  (_, point, _, plane), _ = jax.lax.scan(visit, start, jnp.asarray(chunks, p.dtype))
  height = vector.dot(plane[..., :3, :], p) - plane[..., 3, :]
  return jnp.where(height > 0, safe.norm(p - point), height)


def _plane(a, normal, p):
  plane = jnp.concatenate([normal, vector.dot(normal, a)[..., None, :]], axis=-2)
  return jnp.broadcast_to(plane, (_CHUNK, *p.shape[:-2], 4, p.shape[-1]))


def _to_triangle(p, a, b, c, normal):
  """Return heights of p above triangles, squared distances from the triangles, and the nearest points of the triangles."""
  height = vector.dot(p - a, normal)
  square, point, within = jnp.full_like(height, jnp.inf), p - height[..., None, :] * normal, True
  best = point
  for start, end in ((a, b), (b, c), (c, a)):
    edge, r = end - start, p - start
    within &= vector.dot(vector.cross(edge, r), normal) >= 0
    along = jnp.clip(safe.divide(vector.dot(r, edge), vector.dot(edge, edge)), 0, 1)
    nearest = start + along[..., None, :] * edge
    off = p - nearest
    square, best = _best(jnp.less, vector.dot(off, off), nearest, square, best)
  square, best = jnp.where(within, height * height, square), jnp.where(within[..., None, :], point, best)
  return height, square, best


def _along(which, value, entries):
  """Return the smallest or largest value along the first axis, and the entry of `entries` at the same index."""
  index = which(value, axis=0, keepdims=True)
  return jnp.take_along_axis(value, index, axis=0)[0], jnp.take_along_axis(entries, index[..., None, :], axis=0)[0]


def _best(better, value, entry, best_value, best_entry):
  """Return the better of two values, and the entry that belongs to it."""
  first = better(value, best_value)
  return jnp.where(first, value, best_value), jnp.where(first[..., None, :], entry, best_entry)
