"""The nearest feature of a height field's prism to a point, in closed form.

A prism stands on a right triangle in the plane z = -base and ends in a triangle of the surface. All prisms look alike in
coordinates whose origin lies below the right angle, u and v along the legs: corner 0 at the right angle, 1 at the end of u, 2 at
that of v; edge 0 from corner 0 to 1, edge 1 from 0 to 2, edge 2 from 1 to 2; wall i below edge i.

Which feature it is, is decided by comparisons, which carry no gradient; distance, point and normal are then differentiable
functions of that feature. Everything is in components (P, W): a vector that is put together would be taken apart again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe
from mjx_lite.math.once import once_chosen, unit

Vec = tuple[jax.Array, jax.Array, jax.Array]

# kinds of features, each with the number of a wall, an edge or a corner
_TOP, _BOTTOM, _WALL, _TOP_EDGE, _BOTTOM_EDGE, _TOP_CORNER, _BOTTOM_CORNER, _POST = range(8)
_ENDS = ((0, 1), (0, 2), (1, 2))  # corners at the ends of the edges
_SMALL = 64  # roundings of the size of a prism, up to which a point counts as one of its surface


class Prisms(NamedTuple):
  """P prisms.

  Attributes:
    leg: lengths (P, 1) along u and v [m]; constant.
    height: z of the upper corners (P, W) [m]; without gradient.
    base: (P, 1) how far the base is below z = 0 [m]; constant.
  """

  leg: tuple[np.ndarray, np.ndarray]
  height: Vec
  base: np.ndarray


class Nearest(NamedTuple):
  """Signed distance (P, W) of a point from a prism, negative inside, and the normal there, which points outwards."""

  dist: jax.Array
  normal: Vec


def point(prisms: Prisms, p: Vec) -> Nearest:
  """Distance of points from prisms: inside, from the face that is nearest.

  Args:
    prisms: the prisms.
    p: (u, v, z) of the points.

  Gradient: of the feature that is nearest; on the surface that of a face.
  """
  kind, number = _feature(prisms, tuple(jax.lax.stop_gradient(x) for x in p))
  return _from_feature(prisms, p, kind, number)


def _feature(prisms: Prisms, p: Vec) -> tuple[jax.Array, jax.Array]:
  """Kind and number (P, W) of the feature nearest to a point."""
  (du, dv), (h0, h1, h2), (u, v, z) = prisms.leg, prisms.height, p
  slope_u, slope_v = (h1 - h0) * (1 / du), (h2 - h0) * (1 / dv)
  steep = 1 + slope_u * slope_u + slope_v * slope_v
  above = z - h0 - slope_u * u - slope_v * v
  long = np.hypot(du, dv)
  walls = (-v, -u, (u * dv + v * du - du * dv) * (1 / long))

  # seen from above: the nearest point of the triangle, and how high the surface is there
  flat = _nearest_edge(prisms.leg, (0 * z,) * 3, (u, v, 0 * z))
  within = (walls[0] <= 0) & (walls[1] <= 0) & (walls[2] <= 0)
  over = jnp.where(within, above, z - flat.height(prisms.height)) > 0
  under = z < -prisms.base

  # in space: the nearest point of the upper triangle
  tall = _nearest_edge(prisms.leg, prisms.height, p)
  lift = above / steep
  foot_u, foot_v = u + lift * slope_u, v + lift * slope_v
  on_top = (foot_u >= 0) & (foot_v >= 0) & (foot_u * dv + foot_v * du <= du * dv)

  kind = jnp.where(flat.at_corner, _POST, _WALL)
  kind = jnp.where(under, jnp.where(within, _BOTTOM, jnp.where(flat.at_corner, _BOTTOM_CORNER, _BOTTOM_EDGE)), kind)
  kind = jnp.where(over, jnp.where(on_top, _TOP, jnp.where(tall.at_corner, _TOP_CORNER, _TOP_EDGE)), kind)
  number = jnp.where(over, tall.number, flat.number)

  # inside, and so near to an edge that the way to it is rounding: the face that is nearest
  planes = (above * jax.lax.rsqrt(steep), -z - prisms.base, *walls)
  nearest, face = _first(planes, jnp.greater)
  size = _SMALL * float(jnp.finfo(z.dtype).eps) * (long + prisms.base)
  touches = jnp.where(over, tall.square, flat.square + jnp.where(under, (z + prisms.base) ** 2, 0)) < size * size
  inside = (nearest <= 0) | touches
  kind = jnp.where(inside, jnp.where(face < _WALL, face, _WALL), kind)
  number = jnp.where(inside, jnp.maximum(face - _WALL, 0), number)
  code = once_chosen((4 * kind + number).astype(z.dtype), unit(z)).astype(jnp.int32)
  return code >> 2, code & 3


class _Edge(NamedTuple):
  """The edge of a triangle that is nearest to a point, or the corner at its end.

  Attributes:
    number: of the edge, or of the corner.
    at_corner: whether it is one.
    square: of the distance [m^2].
    where: which edge it is, and how far along it the point is, from 0 to 1.
  """

  number: jax.Array
  at_corner: jax.Array
  square: jax.Array
  where: tuple[jax.Array, jax.Array]

  def height(self, height: Vec) -> jax.Array:
    """That of a surface at the nearest point, from its heights at the corners."""
    edge, t = self.where
    return _pick([height[a] + t * (height[b] - height[a]) for a, b in _ENDS], edge)


def _nearest_edge(leg: tuple[np.ndarray, np.ndarray], height: Vec, p: Vec) -> _Edge:
  """The edge nearest to a point of a triangle that stands over the legs at some heights."""
  corner = _corners(leg, height)
  squares, along = [], []
  for a, b in _ENDS:
    e = [y - x for x, y in zip(corner[a], corner[b], strict=True)]
    off = [x - y for x, y in zip(p, corner[a], strict=True)]
    t = jnp.clip(_dot(e, off) / _dot(e, e), 0, 1)
    off = [x - t * y for x, y in zip(off, e, strict=True)]
    squares.append(_dot(off, off))
    along.append(t)
  square, edge = _first(squares, jnp.less)
  t = _pick(along, edge)
  at_corner = (t <= 0) | (t >= 1)
  first, last = (_pick([jnp.asarray(ends[k]) for ends in _ENDS], edge) for k in (0, 1))
  number = jnp.where(t <= 0, first, jnp.where(t >= 1, last, edge))
  return _Edge(number, at_corner, square, (edge, t))


def _from_feature(prisms: Prisms, p: Vec, kind: jax.Array, number: jax.Array) -> Nearest:
  """Distance of points from features of prisms."""
  (du, dv), height = prisms.leg, prisms.height
  is_face, is_edge = kind <= _WALL, (kind == _TOP_EDGE) | (kind == _BOTTOM_EDGE)
  is_wall, is_post = kind == _WALL, kind == _POST
  low = (kind == _BOTTOM) | (kind == _BOTTOM_EDGE) | (kind == _BOTTOM_CORNER)

  # a point of the feature, and the direction in which it goes on, if it is an edge
  corners = _corners(prisms.leg, height)
  first = jnp.where(is_wall | is_edge, jnp.where(number == 2, 1, 0), number)
  last = jnp.where(number == 0, 1, 2)
  start, end = ([_pick([c[k] for c in corners], i) for k in range(3)] for i in (first, last))
  off = [x - y for x, y in zip(p, (*start[:2], jnp.where(low, -prisms.base, start[2])), strict=True)]
  edge = [jnp.where(is_edge, y - x, 0) for x, y in zip(start, end, strict=True)]
  edge[2] = jnp.where(is_post, 1, jnp.where(low, 0, edge[2]))
  across = _dot(edge, off) / jnp.where(is_edge | is_post, _dot(edge, edge), 1)
  away = [x - across * y for x, y in zip(off, edge, strict=True)]
  square = _dot(away, away)
  apart = ~is_face & (square > 0)
  length = jnp.sqrt(jnp.where(apart, square, 1))

  # outward normals of the faces
  slope_u, slope_v = (height[1] - height[0]) * (1 / du), (height[2] - height[0]) * (1 / dv)
  steep = jax.lax.rsqrt(1 + slope_u * slope_u + slope_v * slope_v)
  long = np.hypot(du, dv)
  top = -slope_u * steep, -slope_v * steep, steep
  wall = [_pick([jnp.asarray(n, steep.dtype) for n in x], number) for x in ((0, -1, dv / long), (-1, 0, du / long))]
  face = [jnp.where(is_wall, x, jnp.where(low, 0, y)) for x, y in zip(wall, top[:2], strict=True)]
  face.append(jnp.where(is_wall, 0, jnp.where(low, -1, top[2])))

  normal = tuple(jnp.where(apart, x / length, y) for x, y in zip(away, face, strict=True))
  return Nearest(jnp.where(apart, length, _dot(face, off)), normal)


def _corners(leg: tuple[np.ndarray, np.ndarray], height: Vec) -> list[Vec]:
  """Those of the surface's triangle."""
  du, dv = (jnp.asarray(x, height[0].dtype) for x in leg)
  zero = jnp.zeros_like(du)
  return [(zero, zero, height[0]), (du, zero, height[1]), (zero, dv, height[2])]


def _dot(a, b) -> jax.Array:
  """Scalar product of vectors in components."""
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _pick(options: list[jax.Array], number: jax.Array) -> jax.Array:
  """The option of a number; the last for all that are too large."""
  found = options[-1]
  for k in range(len(options) - 2, -1, -1):
    found = jnp.where(number == k, options[k], found)
  return found


def _first(values, better) -> tuple[jax.Array, jax.Array]:
  """The best of some values, and the number of the first that is."""
  best, number = values[0], jnp.zeros(jnp.shape(values[0]), jnp.int32)
  for k, x in enumerate(values[1:], 1):
    number, best = jnp.where(better(x, best), k, number), jnp.where(better(x, best), x, best)
  return best, number
