"""Contact manifold of two shapes: up to four contacts, from a face clipped by a face or an edge clipped by a face.

The search starts from the normal and the features of the single contact. It looks for two faces that face each other, or for an
edge that lies in a face. The part of the incident polygon or edge above the reference face gives up to four contacts.

Differs: where the cap of a cylinder touches a shape, C may build contacts from a generator of the cylinder and a face that
looks sideways. These contacts report a graze. Here the single contact stays.

Source: `multicontact`, 4.0's after MuJoCo Warp's `collision_gjk.py`.

Tests: tests/collision/test_convex.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex.faces import GeomFaces
from mjx_lite.collision.convex.hulls import take
from mjx_lite.collision.shapes import entries, first_min, only_where
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import largest, true_rows
from mjx_lite.model.enums import GeomType
from mjx_lite.ops import linear, loops
from mjx_lite.ops.lanes import Lanes
from mjx_lite.ops.select import over

_FACE_TOL, _EDGE_TOL = 0.996, 0.0888  # least |cosine| of facing faces, largest |slope| of an edge in a face
_HALFSPACE = -1e-10
_FACING = 1e-6  # cosine of a face and the normal, above which the sign is not due to rounding


class Side(NamedTuple):
  """One geom of each pair, in the frame of the first geom.

  Attributes:
    size, faces: size (P, 3, W or 1) [m] and faces of the geom.
    types: (P,) names of the geom types; (P, W) numbers (GeomType) where the geoms are chosen at run time.
    mat, pos: pose of the geom (P, 3, 3, W), (P, 3, W).
    vertex: (P, 3, W) support indices of the three vertices found; an unused vertex repeats a used one.
    point: (P, 3, W) witness point on the surface of the geom [m].
  """

  size: jax.Array
  faces: GeomFaces
  types: np.ndarray | jax.Array
  mat: jax.Array
  pos: jax.Array
  vertex: jax.Array
  point: jax.Array


def take_lanes(s: Side, lanes: Lanes | None) -> Side:
  """Gather the sides of the pairs in the lanes, (1, ..., lanes); None keeps all pairs."""
  if lanes is None:
    return s
  numbers = s.types
  if isinstance(numbers, np.ndarray):
    numbers = np.array([int(GeomType[t.upper()]) for t in numbers], np.int32)[:, None]
  faces = s.faces._replace(first=lanes.take(s.faces.first.reshape(len(s.faces.first), -1)))
  size, mat, pos, vertex, point = (lanes.take(x) for x in (s.size, s.mat, s.pos, s.vertex, s.point))
  return Side(size=size, faces=faces, types=lanes.take(numbers), mat=mat, pos=pos, vertex=vertex, point=point)


class Manifold(NamedTuple):
  """Contacts in the frame of the first geom: distances (P, 4, W), positions (P, 4, 3, W), normal (P, 3, W), number (P, W)."""

  dist: jax.Array
  pos: jax.Array
  normal: jax.Array
  ncon: jax.Array


class _Found(NamedTuple):
  """Faces and edges of one geom at its features. Normals point outward."""

  dim: jax.Array  # (P, W) number of distinct vertices: 1 vertex, 2 edge, 3 face
  face: jax.Array  # (P, degree, W) ids
  ok: jax.Array  # (P, degree, W) which entries of `face` are valid
  normal: jax.Array  # (P, degree, 3, W)
  begin: jax.Array  # (P, 3, W) common start of the edges
  end: jax.Array  # (P, edges, 3, W)
  edge_ok: jax.Array  # (P, edges, W)


def _is(s: Side, name: str, ndim: int) -> Any:
  """Return a mask of the geoms of a type, broadcastable to an array of `ndim` axes."""
  return over(s.types == (name if isinstance(s.types, np.ndarray) else int(GeomType[name.upper()])), ndim)


def _scale(s: Side) -> jax.Array:
  size = s.size
  by_type = {
    "box": size,
    "cylinder": jnp.stack([size[:, 0], size[:, 0], size[:, 1]], axis=1),
  }
  out = jnp.ones_like(size)
  for t, x in by_type.items():
    out = jnp.where(_is(s, t, 3), x, out)
  return out


def _world(s: Side, local: jax.Array) -> jax.Array:
  """Transform points (P, n, 3, W) from the geom's frame to the common frame."""
  return s.pos[:, None] + vector.mat_vec(s.mat[:, None], local)


def _features(s: Side, dtype) -> _Found:
  t = s.faces.tables
  first = over(s.faces.first.clip(0), 3)
  has = over(s.faces.first >= 0, 3)
  capsule, cylinder = (_is(s, k, 2) for k in ("capsule", "cylinder"))
  index = first + s.vertex
  i0, i1, i2 = (index[:, k] for k in range(3))
  dim = jnp.where((i1 == i0) & (i2 == i0), 1, jnp.where((i1 == i0) | (i2 == i0) | (i1 == i2), 2, 3))
  dim = jnp.where(capsule, 1, dim)

  # faces that contain all three vertices
  at = take(t.at, index)  # (P, 3, degree, W)
  face = at[:, 0]
  ok = (face >= 0) & has
  for k in (1, 2):
    ok &= vector.fold(jnp.logical_or, face[:, :, None] == at[:, k][:, None], 2)
  normal = vector.mat_vec(s.mat[:, None], take(t.normal, face, dtype))

  # edges: the edge to the other vertex, or all edges at the vertex
  scale = _scale(s)[:, None]
  begin = take(t.corner, take(t.here, i0), dtype)
  second = jnp.where(i1 == i0, i2, i1)
  sides = take(t.side, i0)
  end = take(t.corner, sides, dtype)
  one = jnp.arange(sides.shape[1])[:, None] == 0
  end = jnp.where((dim == 2)[:, None, None], take(t.corner, take(t.here, second), dtype)[:, None], end)
  edge_ok = jnp.where((dim == 2)[:, None], one, sides >= 0) & has
  begin, end = _world(s, begin[:, None] * scale)[:, 0], _world(s, end * scale)
  # capsules and cylinders: the generator through the witness point
  axis, half = s.mat[..., 2, :], s.size[:, 1]
  along = vector.dot(s.point - s.pos, axis)
  low, high = (s.point + (sign * half - along)[:, None] * axis for sign in (-1, 1))
  top = cylinder & (i0 == first[:, 0])
  generator = capsule | cylinder
  begin = jnp.where(generator[:, None], jnp.where(top[:, None], high, low), begin)
  end = jnp.where(generator[:, None, None], jnp.where(top[:, None], low, high)[:, None], end)
  edge_ok = jnp.where(generator[:, None], one & (dim < 3)[:, None], edge_ok)
  return _Found(dim=dim, face=face, ok=ok, normal=normal, begin=begin, end=end, edge_ok=edge_ok)


def _pick(mask: jax.Array, x: jax.Array) -> jax.Array:
  """Return the element of x (P, n, ..., W) that the one-hot mask (P, n, W) selects."""
  mask = mask.reshape(*mask.shape[:2], *[1] * (x.ndim - 3), mask.shape[-1])
  return jnp.sum(jnp.where(mask, x, 0), axis=1)


def _edge_in_face(edges: _Found, faces: _Found, outward: jax.Array):
  """Find the first face parallel to an edge of the other geom, and its first such edge: whether found, and one-hot masks."""
  along = safe.normalize(edges.end - edges.begin[:, None])
  slope = jnp.abs(vector.dot(along[:, None], faces.normal[:, :, None]))
  ok = faces.ok & (vector.dot(faces.normal, outward[:, None]) > _FACING)
  fits = ok[:, :, None] & edges.edge_ok[:, None] & (slope < _EDGE_TOL)
  by_face = vector.fold(jnp.logical_or, fits, 2)
  face = first_min(jnp.where(by_face, 0, 1))
  edge = first_min(jnp.where(vector.fold(jnp.logical_or, fits & face[:, :, None], 1), 0, 1))
  return jnp.any(by_face, axis=1), face, edge


def _polygon(s: Side, face: jax.Array, dtype) -> tuple[jax.Array, jax.Array]:
  """Return the corners (P, n, 3, W) of faces, and the number of corners (P, W)."""
  t = s.faces.tables
  corner = take(t.polygon, face)
  return _world(s, take(t.corner, corner, dtype) * _scale(s)[:, None]), take(t.ncorner, face)


def manifold(a: Side, b: Side, normal: jax.Array, limit: jax.Array, close: jax.Array) -> Manifold:
  """Compute the contacts of two faces, or of an edge and a face; their number is 0 where there is no such pair.

  An edge may be parallel to a face that looks sideways. The distance is then that of the edge and the face, as in C; where
  shapes overlap deeply, this may be a graze. The exception is a cylinder that touches the other geom with its cap: all its
  generators are equally good, and C's choice is arbitrary. There the single contact stays, as it mostly does in C.

  Args:
    a, b: the geoms.
    normal: (P, 3, W) of the single contact, from a to b.
    limit: (P, W) distance above which there is no contact.
    close: (P, W) whether there is a contact at all.
  """
  dtype = normal.dtype
  # capsules are inflated by half the limit along the contact normal, other geoms along the normal of the face
  swell = jnp.where(_is(a, "capsule", 2), 0.5 * limit, 0)
  a = a._replace(point=a.point + swell[:, None] * normal)
  fixed_a, fixed_b, n = jax.lax.stop_gradient((_features(a, dtype), _features(b, dtype), normal))
  pair = _facing_features(fixed_a, fixed_b, n)
  p = _polygons(a, b, fixed_a, fixed_b, pair, dtype)

  # no sides where there is nothing to clip
  have = close & (pair.two_faces | p.is_edge) & ~(pair.edge_of_a & _on_cap(a, n)) & ~(pair.edge_of_b & _on_cap(b, n))
  points, count = _clip(p.reference, jnp.where(have, p.nreference, 0), p.incident, p.nincident, p.out, limit - swell)
  points, count = _reduce(points, jnp.where(have, count, 0), p.is_edge, p.edge[:, 1] - p.edge[:, 0])
  above = vector.dot(points - p.reference[:, :1], p.out[:, None])
  on_reference = points - above[..., None, :] * p.out[:, None]
  dist = swell[:, None] - above * vector.dot(p.out, p.toward)[:, None]
  on_incident = on_reference - dist[..., None, :] * p.toward[:, None]
  good = have & (p.nreference > 2) & (vector.dot(p.normal, n) > _FACING)
  count = jnp.where(good, count, 0)
  dist = only_where(jnp.arange(4)[:, None] < count[:, None], dist)
  return Manifold(dist, 0.5 * (on_reference + on_incident), p.normal, count)


class _Pair(NamedTuple):
  """The features that touch: two faces, or an edge of one geom and a face of the other.

  Attributes:
    two_faces, edge_of_a, edge_of_b: (P, W) which of the three holds, if any.
    face_a, face_b: (P, degree, W) one-hot masks of the faces.
    edge_a, edge_b: (P, edges, W) one-hot masks of the edges.
  """

  two_faces: jax.Array
  edge_of_a: jax.Array
  edge_of_b: jax.Array
  face_a: jax.Array
  face_b: jax.Array
  edge_a: jax.Array
  edge_b: jax.Array


def _facing_features(a: _Found, b: _Found, n: jax.Array) -> _Pair:
  """Find two faces that face each other, or an edge in a face, for a normal (P, 3, W) from a to b."""
  facing = vector.dot(a.normal[:, :, None], b.normal[:, None])
  able = (a.ok & (vector.dot(a.normal, n[:, None]) > _FACING))[:, :, None]
  able &= (b.ok & (vector.dot(b.normal, n[:, None]) < -_FACING))[:, None]
  facing = only_where(able, facing)
  row = vector.fold(jnp.minimum, facing, 2)
  pick_a = first_min(row)
  pick_b = first_min(_pick(pick_a, facing))
  two_faces = jnp.min(row, axis=1) < -_FACE_TOL

  # an edge in a face
  has_face_a, has_face_b = jnp.any(a.ok, axis=1), jnp.any(b.ok, axis=1)
  try_a = ~two_faces & (a.dim < 3) & has_face_b & ((a.dim <= b.dim) | ~has_face_a)
  found_a, face_b, edge_a = _edge_in_face(a, b, -n)
  try_b = ~two_faces & ~(try_a & found_a) & (b.dim < 3)
  found_b, face_a, edge_b = _edge_in_face(b, a, n)
  edge_of_a, edge_of_b = try_a & found_a, try_b & found_b
  return _Pair(
    two_faces=two_faces,
    edge_of_a=edge_of_a,
    edge_of_b=edge_of_b,
    face_a=jnp.where(two_faces[:, None], pick_a, face_a),
    face_b=jnp.where(two_faces[:, None], pick_b, face_b),
    edge_a=edge_a,
    edge_b=edge_b,
  )


class _Polygons(NamedTuple):
  """The reference polygon, and the incident polygon or edge that the reference polygon clips.

  Attributes:
    reference, incident: (P, n, 3, W) corners [m].
    nreference, nincident: (P, W) numbers of corners.
    edge: (P, n, 3, W) the two ends of the edge, the last one repeated [m].
    is_edge: (P, W) whether an edge is clipped.
    out: (P, 3, W) outward normal of the reference polygon.
    toward: (P, 3, W) direction from the incident feature to the reference polygon.
    normal: (P, 3, W) of the contacts.
  """

  reference: jax.Array
  incident: jax.Array
  nreference: jax.Array
  nincident: jax.Array
  edge: jax.Array
  is_edge: jax.Array
  out: jax.Array
  toward: jax.Array
  normal: jax.Array


def _polygons(a: Side, b: Side, fixed_a: _Found, fixed_b: _Found, pair: _Pair, dtype) -> _Polygons:
  """Compute the polygons of a pair of features, with gradient."""
  fa, fb = _features(a, dtype), _features(b, dtype)
  id_a, id_b = (jnp.maximum(_pick(p, f.face), 0) for p, f in ((pair.face_a, fixed_a), (pair.face_b, fixed_b)))
  normal_a, normal_b = _pick(pair.face_a, fa.normal), _pick(pair.face_b, fb.normal)
  (poly_a, count_a), (poly_b, count_b) = _polygon(a, id_a, dtype), _polygon(b, id_b, dtype)
  size = max(poly_a.shape[1], poly_b.shape[1], 2)
  poly_a, poly_b = (jnp.pad(x, ((0, 0), (0, size - x.shape[1]), (0, 0), (0, 0)), mode="edge") for x in (poly_a, poly_b))
  edge = jnp.where(
    pair.edge_of_a[:, None, None],
    jnp.stack([fa.begin, _pick(pair.edge_a, fa.end)], axis=1), jnp.stack([fb.begin, _pick(pair.edge_b, fb.end)], axis=1),
  )  # fmt: skip
  edge = jnp.pad(edge, ((0, 0), (0, size - 2), (0, 0), (0, 0)), mode="edge")
  is_edge = pair.edge_of_a | pair.edge_of_b
  reference = jnp.where(pair.edge_of_a[:, None, None], poly_b, poly_a)
  nreference = jnp.where(pair.edge_of_a, count_b, count_a)
  incident = jnp.where(is_edge[:, None, None], edge, poly_b)
  nincident = jnp.where(is_edge, 2, count_b)
  out = jnp.where(pair.edge_of_a[:, None], normal_b, normal_a)
  toward = jnp.where(pair.edge_of_a[:, None], -normal_b, jnp.where(pair.edge_of_b[:, None], -normal_a, normal_b))
  normal = jnp.where(pair.edge_of_b[:, None], normal_a, -normal_b)
  return _Polygons(
    reference=reference,
    incident=incident,
    nreference=nreference,
    nincident=nincident,
    edge=edge,
    is_edge=is_edge,
    out=out,
    toward=toward,
    normal=normal,
  )


def _on_cap(s: Side, normal: jax.Array) -> jax.Array:
  """Return a mask (P, W) of the cylinders whose cap is the contact feature."""
  return _is(s, "cylinder", 2) & (jnp.abs(vector.dot(normal, s.mat[..., 2, :])) > 1 - _FACING)


def _clip(reference, nreference, incident, nincident, out, limit):
  """Clip the incident polygon to the part above the reference polygon, up to the limit: points (P, n, 3, W) and their count."""
  nref = reference.shape[1]
  reference, incident = linear.materialize((reference, incident))
  size = reference.shape[1] + incident.shape[1]
  slot = np.arange(size, dtype=np.int32)[:, None]
  poly = jnp.pad(incident, ((0, 0), (0, size - incident.shape[1]), (0, 0), (0, 0)), mode="edge")
  last = np.arange(nref, dtype=np.int32)[:, None] == nreference[:, None] - 1
  following = jnp.where(last[:, :, None], reference[:, :1], jnp.roll(reference, -1, axis=1))
  plane = vector.cross(following - reference, out[:, None])
  plane = linear.materialize(safe.normalize(plane))
  exists = np.arange(nref, dtype=np.int32)[:, None] < nreference[:, None]

  sides = tuple(jnp.moveaxis(x, 1, 0) for x in (reference, plane, exists))
  number = jnp.sum(jnp.any(exists, axis=(0, 2)), dtype=jnp.int32)  # most faces have fewer sides than the tables allow

  def cut(k, state):
    poly, count = state
    return _cut(poly, count, jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), sides))

  poly, count = loops.repeat(cut, number, nref, (poly, nincident + jnp.zeros_like(nreference)))

  # drop the points that are too high, and close the gaps
  keep = (slot < count[:, None]) & (vector.dot(poly - reference[:, :1], out[:, None]) <= limit[:, None])
  number = vector.fold(jnp.add, keep.astype(jnp.int32), 1)
  source = true_rows(jnp.moveaxis(keep, 1, 0).reshape(size, -1), size, jnp.max(number))
  source = jnp.minimum(jnp.moveaxis(source.reshape(size, *number.shape), 0, 1), size - 1)
  return jnp.take_along_axis(poly, source[:, :, None], axis=1), number


def _cut(poly, count, side):
  """Cut polygons by the half space of a side, given as a point on it, its inward normal, and whether it exists."""
  size = poly.shape[1]
  slot = np.arange(size, dtype=np.int32)[:, None]
  point, normal, real = side
  height = linear.materialize(vector.dot(poly - point[:, None], normal[:, None]))
  inside = height > _HALFSPACE
  wrap = slot == count[:, None] - 1
  after = jnp.where(wrap[:, :, None], poly[:, :1], jnp.roll(poly, -1, axis=1))
  change = jnp.where(wrap, inside[:, :1], jnp.roll(inside, -1, axis=1)) != inside
  change &= slot < count[:, None]
  # the corners inside form one run; where rounding splits it, the corners between the parts lie on the side
  begins_inside = inside[:, 0]
  leaves = largest(jnp.where(change & inside, slot + 1, 0)) - 1
  enters = largest(jnp.where(change & ~inside, jnp.where(begins_inside[:, None], slot + 1, size - slot), 0))
  enters = jnp.where(begins_inside, enters - 1, size - enters)
  crosses, wraps = leaves >= 0, leaves < enters
  ends = jnp.where(crosses[:, None], jnp.stack([enters, leaves], axis=1), 0)
  following = jnp.where(ends == count[:, None] - 1, 0, jnp.minimum(ends + 1, size - 1))
  low, high = (entries(height, k) for k in (ends, following))
  t = jnp.clip(safe.divide(low, low - high), 0, 1)
  begin = entries(poly, ends)
  enter, leave = linear.materialize(jnp.moveaxis(begin + t[:, :, None] * (entries(poly, following) - begin), 1, 0))

  enters, leaves = (jnp.where(crosses, x, k)[:, None] for x, k in ((enters, size), (leaves, size)))
  crosses, wraps = crosses[:, None], wraps[:, None]
  first = jnp.where(wraps, leaves + 1, 0)  # index of the corner where the polygon enters
  source = jnp.where(crosses & (slot >= first), enters + jnp.maximum(slot - first - 1, 0), slot)
  new = entries(after, linear.materialize(jnp.minimum(source, size - 1)))
  new = jnp.where((crosses & (slot == first))[:, :, None], enter[:, None], new)
  new = jnp.where((crosses & (slot == jnp.where(wraps, leaves, leaves - enters + 1)))[:, :, None], leave[:, None], new)
  remaining = leaves - enters + 2 + jnp.where(wraps, count[:, None], 0)
  number = jnp.where(crosses, remaining, jnp.where(begins_inside, count, 0)[:, None])[:, 0]
  real = real & jnp.any(normal != 0, axis=1)
  return jnp.where(real[:, None, None], new, poly), jnp.where(real, jnp.minimum(number, size), count)


def _reduce(points: jax.Array, count: jax.Array, is_edge: jax.Array, along: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Choose at most four points: the two ends of an edge along a direction (P, 3, W), or a wide quadrilateral of a polygon."""
  fixed = jax.lax.stop_gradient(points)
  size = points.shape[1]
  have = np.arange(size)[:, None] < count[:, None]
  # an edge's points are on a line
  along = vector.dot(fixed - fixed[:, :1], jax.lax.stop_gradient(along)[:, None])
  low, high = only_where(have, along), only_where(have, -along)
  first, last = jnp.argmin(low, axis=1), jnp.argmin(high, axis=1)
  nothing = jnp.min(low, axis=1) + jnp.min(high, axis=1) >= 0
  far = [jnp.minimum(first, last), jnp.maximum(first, last)]
  ends = [jnp.where(nothing, k, x) for k, x in enumerate(far)]
  four = [jnp.full_like(first, k) for k in range(4)]
  quad = _wide(fixed, count, is_edge)
  two = is_edge & (count > 2)
  more = ~is_edge & (count > 4)
  chosen = [jnp.where(two, ends[min(k, 1)], jnp.where(more, quad[k], four[k])) for k in range(4)]
  index = jnp.minimum(jnp.stack(chosen, axis=1), size - 1)
  count = jnp.where(two, 2, jnp.minimum(count, 4))
  return jnp.take_along_axis(points, index[:, :, None], axis=1), count


def _wide(points, count, is_edge):
  """Find the corners of a wide quadrilateral in a polygon. Source: `polygonQuad`, the same rotating search step by step."""
  n = jnp.maximum(count, 1)
  zero = jnp.zeros_like(count)

  def next_one(corner):
    return jnp.where(corner + 1 == n, 0, corner + 1)

  def area(q):
    p = [jnp.take_along_axis(points, x[:, None, None], axis=1)[:, 0] for x in q]
    c = vector.cross(p[0] - p[2], p[1] - p[3])
    return vector.dot(c, c)

  def step(s):
    q, best, biggest, mode, steps = s
    tried = linear.materialize([jnp.where(mode == k, next_one(q[k]), q[k]) for k in range(4)])
    size = linear.materialize(area(tried))
    better = linear.materialize((size > biggest) & (q[0] < n))
    q2 = [jnp.where(better, y, x) for x, y in zip(q, tried, strict=True)]
    best = [jnp.where(better, y, x) for x, y in zip(best, q2, strict=True)]
    # the first corner moves on when the fourth cannot
    advance = ~better & (mode == 3)
    b = jnp.where(advance & (q2[1] == q2[0]), next_one(q2[1]), q2[1])
    c = jnp.where(advance & (q2[1] == q2[0]) & (q2[2] == b), next_one(q2[2]), q2[2])
    d = jnp.where(advance & (q2[1] == q2[0]) & (q2[2] == b) & (q2[3] == c), next_one(q2[3]), q2[3])
    q2 = [jnp.where(advance, q2[0] + 1, q2[0]), b, c, d]
    mode = jnp.where(better, jnp.maximum(mode - 1, 1), jnp.minimum(mode + 1, 3))
    return q2, best, jnp.where(better, size, biggest), mode, steps + 1

  start = [zero + k for k in range(4)]
  need = ~is_edge & (count > 4)
  state = (start, start, area(start), zero + 3, jnp.int32(0))
  bound = 6 * points.shape[1]
  return jax.lax.while_loop(lambda s: jnp.any(need & (s[0][0] < n)) & (s[4] < bound), step, state)[1]
