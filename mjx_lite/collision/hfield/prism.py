"""Nearest features of a height-field prism and a point or a segment, in closed form.

A prism stands on a right triangle in the plane z = -base and ends in a triangle of the surface. All prisms use the same
coordinates: the origin lies below the right angle, u and v run along the legs. Corner 0 is at the right angle, corner 1 at the
end of u, corner 2 at the end of v. Edge 0 joins corners 0 and 1, edge 1 corners 0 and 2, edge 2 corners 1 and 2. Wall i is
below edge i, post i (a vertical edge) below corner i.

Comparisons without gradient decide which feature is nearest. Distance, position and normal are then differentiable functions of
that feature. A vector is a tuple of components (P, W): a stacked array would only be split again.

Tests: tests/collision/test_hfield_closed.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import NO_CONTACT
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear

Vec = Sequence[Any]  # three components (P, W)

# kinds of features; a feature is a kind and the number of its wall, edge, post or corner
_TOP, _BOTTOM, _WALL, _TOP_EDGE, _BOTTOM_EDGE, _POST, _TOP_CORNER, _BOTTOM_CORNER = range(8)
_FACES = [(_TOP, 0), (_BOTTOM, 0), (_WALL, 0), (_WALL, 1), (_WALL, 2)]
_EDGES = [(kind, i) for kind in (_TOP_EDGE, _BOTTOM_EDGE, _POST) for i in range(3)]
_CORNERS = [(kind, i) for kind in (_TOP_CORNER, _BOTTOM_CORNER) for i in range(3)]
_ENDS = ((0, 1), (0, 2), (1, 2))  # corners at the ends of the edges
_SMALL = 64  # units of round-off of the prism's size; a shape at less distance counts as touching


class Prisms(NamedTuple):
  """P prisms.

  Attributes:
    leg: lengths (P, 1) along u and v [m]; constant.
    height: z of the upper corners (P, W) [m]; without gradient.
    base: depth (P, 1) of the base below z = 0 [m]; constant.
  """

  leg: tuple[np.ndarray, np.ndarray]
  height: Vec
  base: np.ndarray

  @property
  def corners(self) -> list[Vec]:
    """The three upper corners, (u, v, z) [m]."""
    du, dv = self.leg
    return [(0 * du, 0 * dv, self.height[0]), (du, 0 * dv, self.height[1]), (0 * du, dv, self.height[2])]

  @property
  def long(self) -> np.ndarray:
    """Length (P, 1) of the longest edge of the base [m]."""
    return np.hypot(*self.leg)

  @property
  def top(self) -> Vec:
    """Upward unit normal of the surface triangle."""
    su, sv = ((h - self.height[0]) * (1 / d) for h, d in zip(self.height[1:], self.leg, strict=True))
    up = jax.lax.rsqrt(1 + su * su + sv * sv)
    return -su * up, -sv * up, up

  @property
  def epsilon(self) -> float:
    """Relative error that counts as rounding."""
    return _SMALL * float(jnp.finfo(self.height[0].dtype).eps)

  @property
  def rounding(self) -> np.ndarray:
    """Distance (P, 1) that counts as zero [m]."""
    return self.epsilon * (self.long + self.base)


class Nearest(NamedTuple):
  """Signed distance (P, W) from a prism [m], negative inside; outward normal of the prism; nearest point of the other shape."""

  dist: jax.Array
  normal: Vec
  point: Vec


def point(prisms: Prisms, p: Vec) -> Nearest:
  """Compute the distance of points from prisms; inside a prism, from its nearest face.

  Args:
    prisms: the prisms.
    p: (u, v, z) of the points.

  Gradient: that of the nearest feature; on the surface, that of a face.
  """
  code = linear.materialize(_nearest(prisms, _without_gradient(p)).code)
  return _from_point(_geometry(prisms, code & 7, code >> 3 & 3), p)


def segment(prisms: Prisms, c: Vec, a: Vec) -> Nearest:
  """Compute the distance of segments from prisms; where they overlap, along the direction of least overlap.

  Args:
    prisms: the prisms.
    c: (u, v, z) of the midpoints.
    a: vector from the midpoint to an end; not zero.

  Gradient: that of the nearest features; where a segment is parallel to a face or an edge, that of an end or a corner.
  """
  code = linear.materialize(_features(prisms, _without_gradient(c), _without_gradient(a)))
  kind, end = code & 7, (code >> 5 & 3) - 1
  g, inner = _geometry(prisms, kind, code >> 3 & 3), end == 0

  # the point on the segment: an end, or the point nearest to the line of an edge or to a corner
  off, across = _minus(c, g.start), vector.cross_parts(g.edge, a)
  square = _dot(across, across)
  is_line = inner & g.is_edge & (square > 0)
  ao, eo, aa, ae, ee = _dot(a, off), _dot(g.edge, off), _dot(a, a), _dot(a, g.edge), _dot(g.edge, g.edge)
  along = jnp.where(is_line, ae * eo - ee * ao, -ao) / jnp.where(is_line, square, aa)
  p = _plus(c, a, jnp.where(inner, along, end.astype(aa.dtype)))

  # two lines have a common normal, even where they intersect
  near = _from_point(g, p)
  turned = jnp.where(
    code >= _SEPARATE, _dot(_without_gradient(across), _without_gradient(off)) < 0, _is_inward(prisms, kind, g.start, across)
  )
  length = jnp.sqrt(jnp.where(is_line, square, 1))
  length = jnp.where(turned, -length, length)
  normal = tuple(jnp.where(is_line, x / length, y) for x, y in zip(across, near.normal, strict=True))
  return Nearest(jnp.where(is_line, _dot(normal, off), near.dist), normal, p)


_END = 32  # in a code, factor of the point on a segment: end -1, end 1, or 0 for an interior point
_SEPARATE = 128  # added to the code of an interior point if segment and prism do not overlap


def _code(kind: Any, number: Any, end: Any = 0) -> Any:
  """Encode a feature of the prism and a point on the segment as one integer."""
  return kind + 8 * number + _END * (end + 1)


class _Feature(NamedTuple):
  """Code of the feature nearest to a point, and squared distance [m^2], zero inside."""

  code: jax.Array
  square: jax.Array


def _nearest(prisms: Prisms, p: Vec) -> _Feature:
  """Return the feature nearest to a point; inside the prism, the nearest face."""
  (du, dv), (u, v, z) = prisms.leg, p
  planes, top = _planes(prisms, p), prisms.top

  # seen from above: the nearest point of the triangle, and whether p is above the surface at that point
  flat = _nearest_edge([(x, y, 0) for x, y, _ in prisms.corners], (u, v, 0))
  within = (planes[2] <= 0) & (planes[3] <= 0) & (planes[4] <= 0)
  over = jnp.where(within, planes[0], z - flat.between(prisms.height)) > 0
  under = z < -prisms.base

  # in space: the nearest point of the upper triangle
  tall = _nearest_edge(prisms.corners, p)
  foot_u, foot_v = u - planes[0] * top[0], v - planes[0] * top[1]
  on_top = (foot_u >= 0) & (foot_v >= 0) & (foot_u * dv + foot_v * du <= du * dv)

  kind = jnp.where(flat.at_corner, _POST, _WALL)
  kind = jnp.where(under, jnp.where(within, _BOTTOM, jnp.where(flat.at_corner, _BOTTOM_CORNER, _BOTTOM_EDGE)), kind)
  kind = jnp.where(over, jnp.where(on_top, _TOP, jnp.where(tall.at_corner, _TOP_CORNER, _TOP_EDGE)), kind)
  square = jnp.where(within, 0, flat.square) + jnp.where(under, (z + prisms.base) ** 2, 0)
  square = jnp.where(over, jnp.where(on_top, planes[0] ** 2, tall.square), square)

  # inside, or nearer to the surface than round-off: the nearest face
  nearest, face = _first(planes, jnp.greater, [_code(*f) for f in _FACES])
  inside = (nearest <= 0) | (square < prisms.rounding**2)
  return _Feature(jnp.where(inside, face, _code(kind, jnp.where(over, tall.number, flat.number))), square)


def _along_normals(prisms: Prisms, x: Vec) -> list[jax.Array]:
  """Return the components of a vector along the normals of the faces: top, bottom and walls."""
  (du, dv), (u, v, z) = prisms.leg, x
  return [_dot(prisms.top, x), -z, -v, -u, (u * dv + v * du) * (1 / prisms.long)]


def _planes(prisms: Prisms, p: Vec) -> list[jax.Array]:
  """Return the signed distances of a point from the planes of the faces [m]."""
  (du, dv), (_, bottom, *walls) = prisms.leg, _along_normals(prisms, p)
  top = _dot(prisms.top, (p[0], p[1], p[2] - prisms.height[0]))
  return [top, bottom - prisms.base, *walls[:2], walls[2] - du * dv / prisms.long]


class _Edge(NamedTuple):
  """Edge of a triangle nearest to a point, or the corner at the end of that edge.

  Attributes:
    number: number of the edge, or of the corner.
    at_corner: whether the nearest point is a corner.
    square: squared distance [m^2].
    edge, share: number of the edge, and position of the nearest point along the edge, from 0 to 1.
  """

  number: jax.Array
  at_corner: jax.Array
  square: jax.Array
  edge: jax.Array
  share: jax.Array

  def between(self, values: Vec) -> jax.Array:
    """Interpolate values at the corners to the nearest point, linearly along the edge."""
    return _pick([values[i] + self.share * (values[k] - values[i]) for i, k in _ENDS], self.edge)


def _nearest_edge(corner: Sequence[Vec], p: Vec) -> _Edge:
  """Return the edge of a triangle nearest to a point."""
  squares, shares = [], []
  for i, k in _ENDS:
    e, off = _minus(corner[k], corner[i]), _minus(p, corner[i])
    t = jnp.clip(_dot(e, off) / _dot(e, e), 0, 1)
    off = _plus(off, e, -t)
    squares.append(_dot(off, off))
    shares.append(t)
  square, edge = _first(squares, jnp.less, range(3))
  share = _pick(shares, edge)
  first, last = jnp.where(edge == 2, 1, 0), jnp.where(edge == 0, 1, 2)
  number = jnp.where(share <= 0, first, jnp.where(share >= 1, last, edge))
  return _Edge(number, (share <= 0) | (share >= 1), square, edge, share)


class _Geometry(NamedTuple):
  """A feature: one of its points, its direction if it is an edge or a post (else zero), its outward normal if it is a face."""

  start: Vec
  edge: Vec
  face: Vec
  is_face: jax.Array
  is_edge: jax.Array


def _geometry(prisms: Prisms, kind: jax.Array, number: jax.Array) -> _Geometry:
  """Return the geometry of features of prisms."""
  is_post, is_wall = kind == _POST, kind == _WALL
  is_edge = (kind == _TOP_EDGE) | (kind == _BOTTOM_EDGE)
  low = (kind == _BOTTOM) | (kind == _BOTTOM_EDGE) | (kind == _BOTTOM_CORNER)
  first = jnp.where(is_wall | is_edge, jnp.where(number == 2, 1, 0), number)
  last = jnp.where(number == 0, 1, 2)
  corners = prisms.corners
  start, end = ([_pick([c[k] for c in corners], i) for k in range(3)] for i in (first, last))
  edge = [jnp.where(is_edge, y - x, 0) for x, y in zip(start, end, strict=True)]
  edge[2] = jnp.where(is_post, 1, jnp.where(low, 0, edge[2]))

  du, dv = prisms.leg
  walls = (0 * du, -1 + 0 * du, dv / prisms.long), (-1 + 0 * du, 0 * du, du / prisms.long)
  face = [jnp.where(is_wall, _pick(w, number), jnp.where(low, 0, x)) for w, x in zip(walls, prisms.top[:2], strict=True)]
  face.append(jnp.where(is_wall, 0, jnp.where(low, -1, prisms.top[2])))
  start = *start[:2], jnp.where(low, -prisms.base, start[2])
  return _Geometry(start, tuple(edge), tuple(face), kind <= _WALL, is_edge | is_post)


def _from_point(g: _Geometry, p: Vec) -> Nearest:
  """Compute the distance of points from features."""
  off = _minus(p, g.start)
  away = _plus(off, g.edge, -_dot(g.edge, off) / jnp.where(g.is_edge, _dot(g.edge, g.edge), 1))
  square = _dot(away, away)
  separate = ~g.is_face & (square >= safe.smallest(square.dtype) ** 2)
  length = jnp.sqrt(jnp.where(separate, square, 1))
  normal = tuple(jnp.where(separate, x / length, y) for x, y in zip(away, g.face, strict=True))
  return Nearest(jnp.where(separate, length, _dot(g.face, off)), normal, p)


def _features(prisms: Prisms, c: Vec, a: Vec) -> jax.Array:
  """Return the code of the nearest features of a prism and a segment."""
  crossed, slopes = _crossings(prisms, c, a), _along_normals(prisms, a)
  facing = [x - jnp.abs(y) for x, y in zip(_planes(prisms, c), slopes, strict=True)]

  # overlapping: the axis of least overlap; on a tie a face normal
  codes = [_code(*f, jnp.where(slope > 0, -1, 1)) for f, slope in zip(_FACES, slopes, strict=True)]
  face, by_face = _first(facing, jnp.greater, codes)
  edge, by_edge = _first(list(crossed.separation), jnp.greater, [_code(*f) for f in _EDGES])
  overlapping = jnp.where(edge > face + prisms.rounding, by_edge, by_face)

  # separate: an end, or the edge or corner nearest to an interior point
  ends = _nearest(prisms, tuple(jnp.stack([x - y, x + y]) for x, y in zip(c, a, strict=True)))
  square, by_end = _first(list(ends.square), jnp.less, [ends.code[0] - _END, ends.code[1] + _END])
  inner, by_inner = _first(list(crossed.square), jnp.less, [_code(*f) + _SEPARATE for f in _EDGES + _CORNERS])
  separate = jnp.where(inner < square * (1 - prisms.epsilon), by_inner, by_end)
  return jnp.where(jnp.maximum(face, edge) > prisms.rounding, separate, overlapping)


class _Crossings(NamedTuple):
  """Distances between a segment and the edges and corners of a prism.

  Attributes:
    separation: (9, P, W) along the common normals of segment and edges, negative where the shapes overlap [m].
    square: (15, P, W) squared distance to each edge and corner [m^2]; `NO_CONTACT` where the nearest points are end points.
  """

  separation: jax.Array
  square: jax.Array


def _crossings(prisms: Prisms, c: Vec, a: Vec) -> _Crossings:
  """Compute the distances between a segment and all edges and corners."""
  (du, dv), (h0, h1, h2) = prisms.leg, prisms.height
  low, zero, far = jnp.broadcast_to(-prisms.base, h0.shape), jnp.zeros_like(h0), jnp.asarray(NO_CONTACT, h0.dtype)
  us, vs = (0 * du, du, 0 * du), (0 * dv, 0 * dv, dv)

  # the edges of the top, the edges of the bottom, and the posts from bottom to top
  ends = [*_ENDS, *_ENDS, *((i, i) for i in range(3))]
  start = *(np.stack([x[i] for i, _ in ends]) for x in (us, vs)), jnp.stack([h0, h0, h1, *[low] * 6])
  rise = jnp.stack([h1 - h0, h2 - h0, h2 - h1, zero, zero, zero, h0 - low, h1 - low, h2 - low])
  e: Any = *(np.stack([x[k] - x[i] for i, k in ends]) for x in (us, vs)), rise
  off, across = _minus(c, start), vector.cross_parts(e, a)
  ao, eo, aa, ae, ee, square = _dot(a, off), _dot(e, off), _dot(a, a), _dot(a, e), _dot(e, e), _dot(across, across)
  crosses = square > prisms.epsilon * aa * ee
  inverse = jax.lax.rsqrt(jnp.where(crosses, square, 1))
  kind = np.array([kind for kind, _ in _EDGES])[:, None, None]
  inverse = jnp.where(_is_inward(prisms, kind, start, across), -inverse, inverse)
  dist = _dot(across, off) * inverse
  corners = [(us[k], vs[k], jnp.stack([prisms.height[k]] * 3 + [low] * 6)) for k in range(3)]
  reach = [_dot(across, _minus(x, start)) * inverse for x in corners]
  # a normal counts where no corner lies farther along the normal than the edge
  counts = crosses & (jnp.maximum(jnp.maximum(*reach[:2]), reach[2]) <= prisms.rounding)
  separation = jnp.where(counts, dist, -far)
  on_segment, on_edge = ae * eo - ee * ao, aa * eo - ae * ao
  between = crosses & (jnp.abs(on_segment) < square) & (on_edge > 0) & (on_edge < square)
  of_edge = jnp.where(between, dist * dist, far)

  off = _minus(c, (np.stack(us * 2), np.stack(vs * 2), jnp.stack([h0, h1, h2, low, low, low])))
  t = -_dot(a, off) / aa
  off = _plus(off, a, t)
  of_corner = jnp.where(jnp.abs(t) < 1, _dot(off, off), far)
  return _Crossings(separation, jnp.concatenate([of_edge, of_corner]))


def _is_inward(prisms: Prisms, kind: Any, start: Vec, across: Vec) -> jax.Array:
  """Return whether the common normal of an edge and a segment points into the prism."""
  (du, dv), (x, y, z) = prisms.leg, across
  inward = x * (du / 3 - start[0]) + y * (dv / 3 - start[1])
  return jnp.where(kind == _TOP_EDGE, -z, jnp.where(kind == _BOTTOM_EDGE, z, inward)) > 0


def _without_gradient(x: Vec) -> Vec:
  """Stop the gradient of a vector."""
  return tuple(jax.lax.stop_gradient(y) for y in x)


def _minus(a: Vec, b: Vec) -> Vec:
  return tuple(x - y for x, y in zip(a, b, strict=True))


def _plus(a: Vec, b: Vec, t: Any) -> Vec:
  """Return a + t b."""
  return tuple(x + t * y for x, y in zip(a, b, strict=True))


def _dot(a: Vec, b: Vec) -> jax.Array:
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _pick(options: Sequence[Any], number: jax.Array) -> jax.Array:
  """Return the option with a number; the last option for all larger numbers."""
  found = options[-1]
  for k in range(len(options) - 2, -1, -1):
    found = jnp.where(number == k, options[k], found)
  return found


def _first(values: Sequence[jax.Array], better: Callable[..., Any], labels: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
  """Return the best of some values, and the label of the first value that attains the best."""
  best, found = values[0], labels[0]
  for x, label in zip(values[1:], labels[1:], strict=True):
    found, best = jnp.where(better(x, best), label, found), jnp.where(better(x, best), x, best)
  return best, found
