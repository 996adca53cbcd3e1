"""The shortest way out of each other of two polytopes that overlap, from one that is the shortest of its neighbourhood.

A polytope inside of Y = A - B grows towards the face of its own that is nearest to the origin, until that face is one of Y.
It begins as the two sides of a triangle, and ends when no face is nearer than the one known. Its half-edges from
vertex i to j are entries (i, j) of square arrays, which hold the plane of the face: the other face at an edge is the
transposed entry. Where rounding spoils it (faces in one plane), what was found before stays.

Source: `epa`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import entries, first_min
from mjx_lite.core import linear
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest

VERTICES = 32
_FLAT = 1e-3  # sine between two sides up to which vertices lie on a line
_NONE = np.array([0, 0, 0, np.inf])[:, None]


class Way(NamedTuple):
  """A way out: its normal (P, 3, W), which of three vertices are on its face (P, 3, W), what is kept of them (P, 3, k, W)."""

  normal: jax.Array
  on: jax.Array
  kept: jax.Array


class _Grown(NamedTuple):
  y: jax.Array  # (P, V, 3, W)
  kept: jax.Array  # (P, V, k, W)
  plane: jax.Array  # (P, V, V, 4, W) normal of the face, and height of its plane above the origin; `_NONE` for no half-edge
  look: jax.Array  # (P, W) whether it still grows
  better: jax.Array  # (P, W) whether a nearer face of Y is found
  number: jax.Array  # of vertices


def _over(x: jax.Array, y: jax.Array) -> jax.Array:
  """x (..., W) with as many axes as y, new ones before the last."""
  return x.reshape(*x.shape[:-1], *(1,) * (y.ndim - x.ndim), x.shape[-1])


def shortest(
  furthest: Callable[[jax.Array], tuple[jax.Array, jax.Array]], y: jax.Array, way: Way, depth: jax.Array, look: jax.Array,
  tolerance: jax.Array,
) -> Way:  # fmt: skip
  """The way out through the face of Y nearest to the origin.

  Args:
    furthest: the vertex of Y (P, 3, W) farthest in a direction (P, 3, W), and what is to be kept of it (P, k, W).
    y: (P, 3, 3, W) vertices of Y, those of the face found among them.
    way: the way out that is known.
    depth: (P, W) height above the origin of Y's plane there.
    look: (P, W) which pairs to look at.
    tolerance: (P, W) heights that count as none.
  """
  g = jax.lax.while_loop(
    lambda g: jnp.any(g.look) & (g.number < VERTICES), lambda g: _grow(g, furthest, depth, tolerance),
    _begin(*_triangle(furthest, y, way), look),
  )  # fmt: skip
  at, height, n = _nearest(g)
  i, j = at // VERTICES, at % VERTICES
  # the third vertex is that with half-edges from j and to i in the same plane
  heights = g.plane[:, :, :, 3]
  of_j, to_i = entries(heights, j)[:, 0], entries(jnp.swapaxes(heights, 1, 2), i)[:, 0]
  k = jnp.argmax((of_j == height[:, None]) & (to_i == height[:, None]), axis=1)[:, None].astype(jnp.int32)
  corner = jnp.concatenate([i, j, k], axis=1)
  off = jnp.max(jnp.abs(vector.dot(entries(g.y, corner), n[:, None]) - height[:, None]), axis=1)
  better = g.better & (jnp.abs(vector.dot(n, n) - 1) < 1e-3) & (off < 4 * tolerance)
  new = Way(n, jnp.ones_like(way.on), entries(g.kept, corner))
  return Way(*(jnp.where(_over(better[:, None], x), x, old) for x, old in zip(new, way, strict=True)))


def _triangle(furthest: Callable, y: jax.Array, way: Way) -> tuple[jax.Array, jax.Array]:
  """Three vertices of Y, and what is kept of them: those given, or the first and two others where these lie on a line."""

  def far(direction):
    return (x[:, None] for x in furthest(safe.normalize(direction)))

  side, other = y[:, 1] - y[:, 0], y[:, 2] - y[:, 0]
  area = vector.cross(side, other)
  flat = vector.dot(area, area) <= _FLAT**2 * vector.dot(side, side) * vector.dot(other, other)
  second, kept_second = far(-way.normal)
  across = second[:, 0] - y[:, 0]
  third, kept_third = far(vector.cross(across, first_min(jnp.abs(across)).astype(y.dtype)))
  new = (jnp.concatenate(x, axis=1) for x in ((y[:, :1], second, third), (way.kept[:, :1], kept_second, kept_third)))
  y, kept = (jnp.where(_over(flat[:, None], x), x, old) for x, old in zip(new, (y, way.kept), strict=True))
  return y, kept


def _begin(y: jax.Array, kept: jax.Array, look: jax.Array) -> _Grown:
  """The two sides of a triangle."""
  normal = safe.normalize(vector.cross(y[:, 1] - y[:, 0], y[:, 2] - y[:, 0]))
  edge = np.zeros((VERTICES, VERTICES, 1, 1))
  edge[[0, 1, 2], [1, 2, 0]] = 1
  side = (edge - edge.swapaxes(0, 1)).astype(y.dtype)
  plane = jnp.concatenate([normal, vector.dot(normal, y[:, 0])[:, None]], axis=1)[:, None, None]
  plane = jnp.where(side != 0, side * plane, _NONE.astype(y.dtype))
  y, kept = (jnp.pad(x, ((0, 0), (0, VERTICES - 3), (0, 0), (0, 0))) for x in (y, kept))
  look &= vector.dot(normal, normal) > 0.5
  return _Grown(y, kept, plane, look, jnp.zeros_like(look), jnp.int32(3))


def _nearest(g: _Grown) -> tuple[jax.Array, jax.Array, jax.Array]:
  """A half-edge (P, 1, W) of the face nearest to the origin, as i V + j, its height (P, W) and its normal (P, 3, W)."""
  plane = g.plane.reshape(len(g.plane), VERTICES**2, 4, -1)
  at = first_largest(-plane[:, :, 3])[1][:, None]
  best = linear.materialized(entries(plane, at)[:, 0])
  return at, best[:, 3], best[:, :3]


def _grow(g: _Grown, furthest: Callable, depth: jax.Array, tolerance: jax.Array) -> _Grown:
  """Take in the vertex of Y that is farthest from the nearest face: the faces that see it give way to a cone."""
  _, low, n = _nearest(g)
  w, new = furthest(n)
  w = linear.materialized(w)
  shallow, ends = linear.materialized((low < depth - tolerance, jnp.abs(vector.dot(n, w) - low) <= tolerance))
  better, look = g.better | g.look & shallow & ends, g.look & shallow & ~ends
  sees = vector.dot(g.plane[:, :, :, :3], w[:, None, None]) - g.plane[:, :, :, 3] > 0.25 * tolerance[:, None, None]
  sees = linear.materialized(sees & look[:, None, None])
  rim = sees & ~jnp.swapaxes(sees, 1, 2)

  # of the rim, one edge begins and one ends at each of its vertices: their other ends, from 1
  count = np.arange(1, VERTICES + 1, dtype=np.int32)
  after = vector.fold(jnp.maximum, jnp.where(rim, count[:, None], 0), 2)
  before = vector.fold(jnp.maximum, jnp.where(rim, count[:, None, None], 0), 1)

  # faces of the cone, known by where their edges on the rim begin, at all three edges of each
  along = entries(g.y, jnp.maximum(after - 1, 0)) - g.y
  normal = safe.normalize(vector.cross(along, w[:, None] - g.y))
  face = linear.materialized(jnp.concatenate([normal, vector.dot(normal, w[:, None])[:, :, None]], axis=2))
  none = _NONE.astype(w.dtype)
  back = jnp.where(_over(after > 0, face), face, none)
  there = jnp.where(_over(before > 0, face), entries(face, jnp.maximum(before - 1, 0)), none)
  is_new = (np.arange(VERTICES) == g.number)[:, None, None]
  plane = jnp.where(_over(rim, g.plane), face[:, :, None], jnp.where(_over(sees, g.plane), none, g.plane))
  plane = jnp.where(is_new[:, None], back[:, None], jnp.where(is_new, there[:, :, None], plane))
  y, kept = (jnp.where(is_new, x[:, None], old) for x, old in ((w, g.y), (new, g.kept)))
  return _Grown(y, kept, plane, look, better, g.number + 1)
