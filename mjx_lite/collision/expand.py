"""The shortest way out of each other of two polytopes that overlap, from one that is the shortest of its neighbourhood.

A polytope inside of Y = A - B grows towards the face of its own that is nearest to the origin, until that face is one of Y.
It begins as the two sides of a triangle, and ends when no face is nearer than the one known. Of a curved Y no face is ever one
of its own: how far it reaches along their normals tells where the search for the foot is to begin again. Half-edges from vertex
i to j are entries (j, i) of square arrays, which hold the plane of the face: the other face at an edge is the transposed entry.
Where rounding spoils it (faces in one plane), what was found before stays.

Source: `epa`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import first_min
from mjx_lite.core import linear
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest

_VERTICES = 32
_FLAT = 1e-3  # sine between two sides up to which vertices lie on a line
_NONE = np.array([0, 0, 0, np.inf])[:, None]


class Way(NamedTuple):
  """A way out: its normal (3,), which of three vertices are on its face (3,), and what is kept of them (3, k)."""

  normal: jax.Array
  on: jax.Array
  kept: jax.Array


class _Grown(NamedTuple):
  """Vertices are where worlds are, V of them."""

  y: jax.Array  # (3, V)
  kept: jax.Array  # (k, V)
  plane: jax.Array  # (V, 4, V) at [j, :, i] normal of the face of half-edge i to j, and its height above the origin; or `_NONE`
  look: jax.Array  # (1,) whether it still grows
  better: jax.Array  # (1,) whether a nearer face of Y is found
  number: jax.Array  # of vertices


def shortest(
  furthest: Callable[[jax.Array], tuple[jax.Array, jax.Array]], y: jax.Array, way: Way, depth: jax.Array, tolerance: jax.Array
) -> Way:
  """The way out through the face of Y nearest to the origin.

  Args:
    furthest: the vertex of Y (3, 1) farthest in a direction (3, 1), and what is to be kept of it (k, 1).
    y: (3, 3) vertices of Y in rows, those of the face found among them.
    way: the way out that is known.
    depth: (1,) height above the origin of Y's plane there.
    tolerance: (1,) heights that count as none.
  """
  normal = way.normal[:, None]
  g = jax.lax.while_loop(
    lambda g: g.look[0] & (g.number < _VERTICES), lambda g: _grow(g, furthest, depth, tolerance),
    _begin(*_triangle(furthest, y.T, way.kept.T, normal)),
  )  # fmt: skip
  i, j, height, n = _nearest(g)
  # the third vertex is that with half-edges from j and to i in the same plane
  heights = g.plane[:, 3]
  of_j, to_i = _column(heights, j[0]), _column(heights.T, i[0])
  k = jnp.argmax((of_j == height) & (to_i == height))[None].astype(jnp.int32)
  corner = jnp.concatenate([i, j, k])
  off = jnp.max(jnp.abs(vector.dot(_column(g.y, corner), n) - height))
  better = g.better & (jnp.abs(vector.dot(n, n) - 1) < 1e-3) & (off < 4 * tolerance)
  new = Way(n[:, 0], jnp.ones_like(way.on), _column(g.kept, corner).T)
  return jax.tree.map(lambda x, old: jnp.where(better[0], x, old), new, way)


def lowest(
  furthest: Callable[[jax.Array], tuple[jax.Array, jax.Array]], y: jax.Array, way: Way, depth: jax.Array, tolerance: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Where Y is curved, a direction (3,) in which it reaches little, and how far (): of the normals of faces that had a vertex.

  Args: those of `shortest`. No way is looked for that is shorter by less than the tolerance.
  """

  def grow(state):
    g, low, best = state
    *_, height, n = _nearest(g)
    w, new = furthest(n)
    w = linear.materialized(w)
    reach = vector.dot(n, w)
    nearer = reach < low
    low, best = jnp.where(nearer, reach, low), jnp.where(nearer, n, best)
    return _take_in(g, w, new, (height < low - tolerance) & (reach > height + tolerance), 0 * tolerance), low, best

  normal = way.normal[:, None]
  g = _begin(*_triangle(furthest, y.T, way.kept.T, normal))
  state = jax.lax.while_loop(lambda s: s[0].look[0] & (s[0].number < _VERTICES), grow, (g, depth, normal))
  return state[2][:, 0], state[1][0]


def _column(x: jax.Array, index: jax.Array) -> jax.Array:
  return x.at[..., index].get(mode="promise_in_bounds")


def _triangle(furthest: Callable, y: jax.Array, kept: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Three vertices of Y, and what is kept of them: those given, or the first and two others where these lie on a line."""

  def far(direction):
    return furthest(safe.normalize(direction))

  side, other = y[:, 1:2] - y[:, :1], y[:, 2:] - y[:, :1]
  area = vector.cross(side, other)
  flat = vector.dot(area, area) <= _FLAT**2 * vector.dot(side, side) * vector.dot(other, other)
  second, kept_second = far(-normal)
  across = second - y[:, :1]
  third, kept_third = far(vector.cross(across, first_min(jnp.abs(across)).astype(y.dtype)))
  new = (jnp.concatenate(x, axis=1) for x in ((y[:, :1], second, third), (kept[:, :1], kept_second, kept_third)))
  y, kept = (jnp.where(flat, x, old) for x, old in zip(new, (y, kept), strict=True))
  return y, kept


def _begin(y: jax.Array, kept: jax.Array) -> _Grown:
  """The two sides of a triangle."""
  normal = safe.normalize(vector.cross(y[:, 1:2] - y[:, :1], y[:, 2:] - y[:, :1]))
  edge = np.zeros((_VERTICES, 1, _VERTICES))
  edge[[1, 2, 0], :, [0, 1, 2]] = 1
  side = (edge - edge.T).astype(y.dtype)
  plane = jnp.concatenate([normal, vector.dot(normal, y[:, :1])[None]])
  plane = jnp.where(side != 0, side * plane, _NONE.astype(y.dtype))
  y, kept = (jnp.pad(x, ((0, 0), (0, _VERTICES - 3))) for x in (y, kept))
  look = vector.dot(normal, normal) > 0.5
  return _Grown(y, kept, plane, look, jnp.zeros_like(look), jnp.int32(3))


def _nearest(g: _Grown) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """A half-edge of the face nearest to the origin, from i (1,) to j (1,), the face's height (1,) and normal (3, 1)."""
  low, end = first_largest(-g.plane[:, 3])
  i = first_largest(low[:, None])[1]
  j = _column(end, i)
  best = linear.materialized(_column(jax.lax.dynamic_index_in_dim(g.plane, j[0], keepdims=False), i))
  return i, j, best[3], best[:3]


def _grow(g: _Grown, furthest: Callable, depth: jax.Array, tolerance: jax.Array) -> _Grown:
  """Take in the vertex of Y that is farthest from the nearest face, if this may be nearer than what is known and is not Y's."""
  *_, low, n = _nearest(g)
  w, new = furthest(n)
  w = linear.materialized(w)
  shallow, ends = linear.materialized((low < depth - tolerance, jnp.abs(vector.dot(n, w) - low) <= tolerance))
  g = g._replace(better=g.better | g.look & shallow & ends)
  return _take_in(g, w, new, shallow & ~ends, 0.25 * tolerance)


def _take_in(g: _Grown, w: jax.Array, new: jax.Array, look: jax.Array, tolerance: jax.Array) -> _Grown:
  """With another vertex w (3, 1), of which is kept `new`: the faces that see it give way to a cone."""
  look = g.look & look
  sees = linear.materialized((vector.dot(g.plane[:, :3], w) - g.plane[:, 3] > tolerance) & look)
  rim = linear.materialized(sees & ~sees.T)

  # of the rim, one edge begins and one ends at each of its vertices: their other ends, from 1
  count = np.arange(1, _VERTICES + 1, dtype=np.int32)
  after = linear.materialized(vector.fold(jnp.maximum, jnp.where(rim, count[:, None], 0), 0))
  before = linear.materialized(vector.fold(jnp.maximum, jnp.where(after[:, None] == count, count[:, None], 0), 0))

  # faces of the cone, known by where their edges on the rim begin, at all three edges of each
  along = _column(g.y, jnp.maximum(after - 1, 0)) - g.y
  normal = safe.normalize(vector.cross(along, w - g.y))
  face = linear.materialized(jnp.concatenate([normal, vector.dot(normal, w)[None]]))
  none = _NONE.astype(w.dtype)
  back = jnp.where(after > 0, face, none)
  there = jnp.where(before > 0, _column(face, jnp.maximum(before - 1, 0)), none)
  is_new = np.arange(_VERTICES) == g.number
  plane = jnp.where(rim[:, None], face, jnp.where(sees[:, None], none, g.plane))
  plane = jnp.where(is_new, back.T[:, :, None], jnp.where(is_new[:, None, None], there, plane))
  y, kept = (jnp.where(is_new, x, old) for x, old in ((w, g.y), (new, g.kept)))
  return _Grown(y, kept, plane, look, g.better, g.number + 1)
