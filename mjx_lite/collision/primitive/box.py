"""Closed-form colliders of a box with a sphere, a capsule and a box.

Tests: tests/collision/test_primitive.py, tests/gradients/test_ties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.primitive import segment_box
from mjx_lite.collision.shapes import Contacts, Shape, first_min, make_contacts, only_where, rank_among
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear

_LEVEL = {8: 1e-10, 4: 1e-5}  # by dtype: a centre up to this relative height above a side is level with the side


def _local_sphere_box(center: jax.Array, radius: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return distance (..., W), position and normal (..., 3, W) of a sphere and a box, all in the frame of the box."""
  # centre outside: towards the nearest point of the box. A centre that is level with a side to round-off counts as inside: the
  # second sphere of a capsule is level where the capsule leaves a face. The derivatives by size and by centre cancel there only
  # if all kernels decide the same, and each XLA kernel repeats the comparison with its own rounding
  side = size * (1 + _LEVEL[center.dtype.itemsize])
  nearest = jnp.where(center > side, size, jnp.where(center < -side, -size, center))
  toward, gap = safe.normalize_with_norm(nearest - center)

  # centre inside: away from the nearest face, or the face of lower index if two faces are equally near. In the middle of a box
  # round-off decides, so the choice is computed once: distance and normal must use the same face
  depth = size - jnp.abs(jax.lax.stop_gradient(center))
  upper, lowest = linear.materialize((center > 0, first_min(depth)))
  inward = jnp.where(upper, -1, 1) * lowest.astype(center.dtype)
  inside = gap <= safe.MINVAL
  gap = jnp.where(inside, -vector.dot(inward, inward * size + center), gap)
  normal = jnp.where(inside[..., None, :], inward, toward)
  return gap - radius, center + (0.5 * (radius + gap))[..., None, :] * normal, normal


def sphere_box(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the contact of a sphere and a box: 1 slot.

  Where the centre is inside the box and two faces are equally near to round-off, C's choice between the two faces is arbitrary.

  Source: `mjraw_SphereBox`.
  Gradient: inside the box and on its surface, the derivative for the nearest face.
  """
  del margin
  center = vector.mat_t_vec(b.mat, a.pos - b.pos)
  dist, pos, normal = _local_sphere_box(center, a.size[..., 0, :], b.size)
  pos = b.pos + vector.mat_vec(b.mat, pos)
  return make_contacts(dist[:, None], pos[:, None], vector.mat_vec(b.mat, normal)[:, None])


# the 12 edges in C's order: the one-hot axis of the edge, and the signs of its coordinates (0 along the edge)
_EDGES = [(j, i) for j in range(3) for i in range(8) if not i >> j & 1]
_EDGE_AXIS = np.array([[k == j for k in range(3)] for j, _ in _EDGES])[..., None]
_EDGE_SIDE = np.array([[0 if k == j else 2 * (i >> k & 1) - 1 for k in range(3)] for j, i in _EDGES], np.int32)[..., None]


def capsule_box(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the contacts of a capsule and a box: at most 2, from two spheres of the capsule against the box.

  The first sphere is at the point of the segment nearest to the box. From this point the segment is followed over the nearest
  feature of the box; the second sphere is where the segment ends or leaves the feature. Round-off decides in C:

  * which end comes first, where the segment is parallel to a face;
  * which of two equally near edges is used, where the segment passes through the box;
  * whether and where there is a second contact, for a segment perpendicular to an axis of the box, if the nearest feature is an
    edge or a corner, or if the segment is level with a side. Here this second contact exists, and the segment does not leave
    the box along that axis. Where each product in the component along that axis is zero, there is no round-off, and the
    contacts are those of C.

  Source: `mjraw_CapsuleBox`.
  Gradient: of each sphere as the sphere moves along the segment; the choice of the nearest feature is constant.
  """
  del margin
  size, radius = b.size, a.size[..., :1, :]
  pos = vector.mat_t_vec(b.mat, a.pos - b.pos)
  half = vector.mat_t_vec(b.mat, a.axis(2)) * a.size[..., 1:2, :]
  # decided without an addition: whether a sum cancels exactly differs between programs
  exact = jnp.all((b.mat == 0) | (a.axis(2)[..., None, :] == 0), axis=-3)
  fixed = jax.lax.stop_gradient((pos, half, size))

  # squared distance of the ends from the box; only ends that are beyond at most one face count
  tip_sign = np.array([-1, 1])
  tip = fixed[0][:, None] + tip_sign[:, None, None] * fixed[1][:, None]
  beyond = jnp.maximum(jnp.abs(tip) - fixed[2][:, None], 0)
  tip_dist = only_where(jnp.sum(beyond > 0, axis=-2) <= 1, vector.dot(beyond, beyond))
  best_tip = jnp.min(tip_dist, axis=1)

  # squared distance of the edges; of nearly equal edges the first is used, and an end is preferred to an edge
  pos_0, half_0, size_0 = (x[:, None] for x in fixed)
  _, _, end, edge_dist = segment_box.segment_edge(pos_0, half_0, size_0, jnp.asarray(_EDGE_AXIS), jnp.asarray(_EDGE_SIDE))
  best_edge = jnp.min(edge_dist, axis=1)
  reach = jnp.sum(fixed[2], axis=-2)
  tie = safe.MINVAL + segment_box.TIES[pos.dtype.itemsize][1] * reach * jnp.sqrt(jnp.minimum(best_edge, best_tip))
  chosen = first_min(jnp.maximum(edge_dist, (best_edge + tie)[:, None]))
  end = jnp.sum(jnp.where(chosen, end, 0), axis=1)
  # edges that meet in a corner are equally near to the segment. Each edge gives the same derivative, a mixture of edges does
  # not: so the choice is computed once
  masks = (*(chosen[:, k] for k in range(12)), best_edge >= best_tip - tie, tip_dist[:, 0] <= tip_dist[:, 1], end > 0, end < 0)
  *chosen, is_tip, is_low, is_high_end, is_low_end = linear.materialize(masks)
  chosen = jnp.stack(chosen, axis=1)
  end = jnp.where(is_high_end, 1, jnp.where(is_low_end, -1, 0))

  # axis and side of the nearest edge, and the weights again, now with gradient
  axis = jnp.any(chosen[..., None, :] & _EDGE_AXIS, axis=1)
  side = jnp.sum(jnp.where(chosen[..., None, :], _EDGE_SIDE, 0), axis=1).astype(pos.dtype)
  on_seg, on_edge, _, _ = segment_box.segment_edge(pos, half, size, axis, side)
  corner = jnp.where(axis, jnp.where(end > 0, 1, -1)[..., None, :], side)
  first = jnp.where(is_tip, jnp.where(is_low, -1, 1), on_seg)
  second, ok = segment_box.second_weight(
    segment_box.First(
      pos=pos,
      half=half,
      exact=exact,
      size=size,
      weight=first,
      on_edge=on_edge,
      axis=axis,
      corner=corner,
      is_face=is_tip,
      is_edge=end == 0,
    )
  )

  center = pos[:, None] + jnp.stack([first, second], axis=1)[..., None, :] * half[:, None]
  dist, local, normal = _local_sphere_box(center, radius, size[:, None])
  dist = only_where(jnp.stack([jnp.ones_like(ok), ok], axis=1), dist)
  point = b.pos[:, None] + vector.mat_vec(b.mat[:, None], local)
  return make_contacts(dist, point, vector.mat_vec(b.mat[:, None], normal))


# rounding scales of box-box by dtype: separation relative to the summed half sizes; squared sine below which edges are
# parallel; component of a unit axis below which its sign is undecided; squared relative distance of duplicate points
_SCALES = {8: (1e-13, 1e-16, 1e-9, 1e-14), 4: (1e-6, 1e-7, 1e-5, 1e-10)}
_EDGE_BIAS = 1e-6  # relative amount by which an edge axis must beat a face axis
_MAXVERT = 8  # a rectangle clipped by four half planes


def _next(x: jax.Array, k: int, axis: int = -2) -> jax.Array:
  """Shift x cyclically along a coordinate axis: element i of the result is element i + k of x."""
  return jnp.roll(x, -k, axis=axis)


def _clip(poly: jax.Array, count: jax.Array, coord: int, sign: int, limit: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Clip a convex polygon to the half space `sign * vertex[coord] <= limit`.

  Args:
    poly: (P, n, 3, W) vertices in cyclic order; the first `count` (P, W) vertices exist.
    coord, sign: coordinate and sign of the half space's normal.
    limit: (P, W) [m].

  Returns:
    vertices (P, n + 1, 3, W) of the clipped polygon and their number (P, W).

  Source: `clipHalfPlane` (Sutherland-Hodgman).
  """
  n = poly.shape[1]
  index = np.arange(n, dtype=np.int32)[:, None]
  last = index == count[:, None] - 1
  following = jnp.where(last[..., None, :], poly[:, :1], _next(poly, 1, axis=1))

  # a vertex level with the plane to round-off counts as in the plane; else an edge along the plane would cross it anywhere
  def above(x):
    height = sign * x[..., coord, :] - limit[:, None]
    return jnp.where(jnp.abs(height) <= _SCALES[height.dtype.itemsize][0] * limit[:, None], 0, height)

  over, over_next = above(poly), above(following)
  crossing = poly + safe.divide(over, over - over_next)[..., None, :] * (following - poly)

  # candidates: every vertex and the crossing behind it. The valid candidates are moved to the front
  crosses = ((over < 0) & (over_next > 0)) | ((over > 0) & (over_next < 0))
  offers = linear.materialize(jnp.stack([poly, crossing], axis=2).reshape(poly.shape[0], 2 * n, *poly.shape[2:]))
  holds = jnp.stack([over <= 0, crosses], axis=2) & (index < count[:, None])[:, :, None]
  holds = holds.reshape(offers.shape[0], 2 * n, -1)
  rank, number = rank_among(holds)
  slot = np.arange(n + 1, dtype=np.int32)[:, None, None]
  takes = linear.materialize(holds[:, None] & (rank[:, None] == slot))
  out = linear.materialize(linear.add_up(jnp.where(takes[..., None, :], offers[:, None], 0), -3))
  return out, jnp.minimum(number, n + 1)


def _separating_axis(
  rot: jax.Array, pos_a: jax.Array, pos_b: jax.Array, size_a: jax.Array, size_b: jax.Array, limit: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Find the axis of largest separation of two boxes; a face is preferred to an edge pair that is hardly better.

  Args:
    rot: (P, 3, 3, W) axes of b in the frame of a.
    pos_a, pos_b: (P, 3, W) centre of b in the frame of a, and centre of a in the frame of b [m].
    size_a, size_b: (P, 3, W) half sizes [m].
    limit: (P, W) separation above which there is no contact [m].

  Returns:
    a one-hot mask of the best face (P, 6, W), first the faces of a, then the faces of b; a one-hot mask of the best edge pair
    (P, 3, 3, W); whether to use the edge pair (P, W); whether some axis separates the boxes (P, W).

  Source: stage 1 of `mjc_BoxBox`.
  """
  rot_abs = jnp.abs(rot)
  face_a = jnp.abs(pos_a) - size_a - vector.mat_vec(rot_abs, size_b)
  face_b = jnp.abs(pos_b) - size_b - vector.mat_t_vec(rot_abs, size_a)
  face = jnp.concatenate(jnp.broadcast_arrays(face_a, face_b), axis=-2)
  best = jnp.max(face, axis=-2)
  chosen = first_min(-face)

  # the cross product of axis i of a and axis j of b is (-rot[i + 2, j], rot[i + 1, j]) along axes (i + 1, i + 2) of a, and
  # (rot[i, j + 2], -rot[i, j + 1]) along axes (j + 1, j + 2) of b. For parallel edges it is zero, and a face serves as well
  rot1, rot2 = _next(rot, 1, axis=-3), _next(rot, 2, axis=-3)
  (pos1, pos2), (size_a1, size_a2) = ([_next(x, k)[..., :, None, :] for k in (1, 2)] for x in (pos_a, size_a))
  size_b1, size_b2 = (_next(size_b, k)[..., None, :, :] for k in (1, 2))
  length = safe.norm(jnp.stack([rot1, rot2], axis=-2))
  radius_a = size_a1 * jnp.abs(rot2) + size_a2 * jnp.abs(rot1)
  radius_b = size_b1 * _next(rot_abs, 2) + size_b2 * _next(rot_abs, 1)
  edge = safe.divide(jnp.abs(rot1 * pos2 - rot2 * pos1) - radius_a - radius_b, length)
  edge = -only_where(length * length >= _SCALES[rot.dtype.itemsize][1], -edge)
  edge = edge.reshape(edge.shape[0], 9, -1)

  # an edge pair must be clearly better than the faces, and a later pair clearly better than an earlier pair
  beats = edge - _EDGE_BIAS * jnp.abs(edge) > best[:, None]
  better = -only_where(beats, -edge)
  best_edge = jnp.max(better, axis=1)
  pair = first_min(-jnp.minimum(better, (best_edge - _EDGE_BIAS * jnp.abs(best_edge))[:, None]))
  pair = pair.reshape(pair.shape[0], 3, 3, -1)

  # an edge axis within 8 degrees of the best face's normal must be better by 5 percent
  axis = _edge_axis(rot, jnp.any(pair, axis=2), jnp.any(pair, axis=1), pos_a)
  normal = jnp.where(chosen[:, :3], 1, 0) + vector.mat_vec(rot, jnp.where(chosen[:, 3:], 1, 0).astype(rot.dtype))
  alias = jnp.abs(vector.dot(axis, normal)) > 0.99
  close = best_edge < best + 0.05 * jnp.abs(best) + safe.MINVAL
  use_edge = jnp.any(beats, axis=1) & ~(alias & close)
  separated = (best > limit) | jnp.any(edge > limit[:, None], axis=1)
  return chosen, pair, use_edge, separated


def _edge_axis(rot: jax.Array, edge_a: jax.Array, edge_b: jax.Array, pos: jax.Array) -> jax.Array:
  """Return the unit normal (P, 3, W) of an edge pair in the frame of a, from a to b at `pos`; edges are one-hot (P, 3, W)."""
  axis = safe.normalize(vector.cross(edge_a.astype(rot.dtype), vector.mat_vec(rot, edge_b.astype(rot.dtype))))
  return jnp.where(vector.dot(axis, pos)[..., None, :] < 0, -1, 1) * axis


def _edge_contact(
  rot: jax.Array, pos: jax.Array, size_a: jax.Array, size_b: jax.Array, edge_a: jax.Array, edge_b: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Compute distance (P, W), position and normal (P, 3, W) of two edges, in the frame of a.

  Where a component of the normal vanishes, two parallel edges of that box are candidates; the nearer edge is used.

  Args:
    rot, pos: axes (P, 3, 3, W) and centre (P, 3, W) of b.
    size_a, size_b: (P, 3, W) half sizes [m].
    edge_a, edge_b: (P, 3, W) one-hot axes of the edges.

  Source: stage 2a of `mjc_BoxBox`.
  """
  tiny = _SCALES[rot.dtype.itemsize][2]
  axis = _edge_axis(rot, edge_a, edge_b, pos)
  axis_b = vector.mat_t_vec(rot, axis)

  # midpoints of the candidate edges: both signs of an undecided component, on either box
  def middles(toward, size, edge, flip):
    side = jnp.where(toward >= 0, size, -size)[:, None]
    side = jnp.where((jnp.abs(toward) < tiny)[:, None] & flip[:, None, None], -side, side)
    return jnp.where(edge[:, None], 0, side)

  mid_a = middles(axis, size_a, edge_a, np.array([False, False, True, True]))
  mid_b = middles(-axis_b, size_b, edge_b, np.array([False, True, False, True]))
  mid_b = pos[:, None] + vector.mat_vec(rot[:, None], mid_b)

  # closest points of each pair of edges
  along_a, along_b = edge_a.astype(rot.dtype), vector.mat_vec(rot, edge_b.astype(rot.dtype))
  reach_a, reach_b = (vector.dot(e, s)[:, None] for e, s in ((edge_a, size_a), (edge_b, size_b)))
  cosine = vector.dot(along_a, along_b)[:, None]
  ahead_a = vector.dot(along_a[:, None], mid_b - mid_a)
  ahead_b = vector.dot(along_b[:, None], mid_b - mid_a)
  s = safe.divide(ahead_a - cosine * ahead_b, 1 - cosine * cosine)
  t = jnp.clip(cosine * jnp.clip(s, -reach_a, reach_a) - ahead_b, -reach_b, reach_b)
  s = jnp.clip(ahead_a + cosine * t, -reach_a, reach_a)
  point_a = mid_a + s[..., None, :] * along_a[:, None]
  point_b = mid_b + t[..., None, :] * along_b[:, None]
  gap = point_b - point_a

  nearest = first_min(jax.lax.stop_gradient(vector.dot(gap, gap)), axis=1)[..., None, :]
  gap = jnp.sum(jnp.where(nearest, gap, 0), axis=1)
  middle = jnp.sum(jnp.where(nearest, 0.5 * (point_a + point_b), 0), axis=1)
  return vector.dot(gap, axis), middle, axis


def _face_basis(mat: jax.Array, axis: jax.Array) -> jax.Array:
  """Shift the axes of a box (P, 3, 3, W), in columns, cyclically so that the axis of a one-hot mask (P, 3, W) is the last."""
  columns = [jnp.where(jnp.roll(axis, k, axis=-2)[:, None], mat, 0).sum(axis=-2) for k in (1, 2, 3)]
  return jnp.stack(columns, axis=-2)


def _face_contacts(a: Shape, b: Shape, face: jax.Array, margin: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Compute distances (P, 8, W), positions (P, 8, 3, W) and normal (P, 3, W) of a face of one box against the other box.

  The face is the reference face. The opposite face of the other box, the incident face, is clipped by the reference's sides.

  Args:
    face: (P, 6, W) one-hot mask of the reference face, first the faces of a, then the faces of b.

  Source: stage 2b of `mjc_BoxBox`.
  """
  is_of_a = jnp.any(face[:, :3], axis=-2)
  a_vec, a_mat = is_of_a[:, None], is_of_a[:, None, None]
  pos, pos_inc = jnp.where(a_vec, a.pos, b.pos), jnp.where(a_vec, b.pos, a.pos)
  mat, mat_inc = jnp.where(a_mat, a.mat, b.mat), jnp.where(a_mat, b.mat, a.mat)
  size, size_inc = jnp.where(a_vec, a.size, b.size), jnp.where(a_vec, b.size, a.size)

  # reference face: axes x and y are in its plane, z is its outward normal
  axis = face[:, :3] | face[:, 3:]
  basis = _face_basis(mat, axis)
  out = jnp.where(vector.dot(basis[..., 2, :], pos_inc - pos) >= 0, 1, -1).astype(pos.dtype)
  basis = basis * jnp.stack([jnp.ones_like(out), jnp.ones_like(out), out], axis=-2)[:, None]
  size = _face_basis(size[:, None], axis)[:, 0]

  # incident face: centre and half edges in these axes
  half = vector.mat_mat(vector.transpose(basis), mat_inc) * size_inc[:, None]
  slope = vector.mat_t_vec(mat_inc, basis[..., 2, :])
  half = _face_basis(half, first_min(-jnp.abs(jax.lax.stop_gradient(slope))))
  u, v, w = (half[..., k, :] for k in range(3))
  center = vector.mat_t_vec(basis, pos_inc - pos) + jnp.where(w[..., 2:, :] > 0, -w, w)
  top = size[..., 2, :]
  center = center - top[..., None, :] * np.array([0, 0, 1])[:, None]

  # clip the incident face by the four sides
  u_sign, v_sign = (np.array(x)[:, None, None] for x in ((1, -1, -1, 1), (1, 1, -1, -1)))
  poly = center[:, None] + u_sign * u[:, None] + v_sign * v[:, None]
  count = jnp.full(is_of_a.shape, 4, jnp.int32)
  for coord, sign in ((0, 1), (0, -1), (1, 1), (1, -1)):
    poly, count = _clip(poly, count, coord, sign, size[..., coord, :])

  # drop points above the margin and duplicate points
  dist = poly[..., 2, :]
  keep = (count[:, None] > np.arange(_MAXVERT, dtype=np.int32)[:, None]) & (dist <= margin[:, None])
  flat = jax.lax.stop_gradient(poly)[..., :2, :]
  spread = linear.add_up((flat[:, :, None] - flat[:, None]) ** 2, -2)
  radius = _SCALES[poly.dtype.itemsize][3] * linear.add_up(size[..., :2, :] ** 2, -2)
  same = (linear.materialize(spread) < radius[:, None, None]) & keep[:, None] & np.tri(_MAXVERT, k=-1, dtype=bool)[..., None]
  dist = only_where(keep & ~vector.fold(jnp.logical_or, same, 2), dist)

  # contact points are midway between the faces
  point = jnp.stack([poly[..., 0, :], poly[..., 1, :], 0.5 * poly[..., 2, :] + top[:, None]], axis=-2)
  return dist, pos[:, None] + vector.mat_vec(basis[:, None], point), jnp.where(a_vec, 1, -1) * basis[..., 2, :]


def box_box(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the contacts of two boxes, at most 8: an edge against an edge (slot 0), or a face clipped by a face.

  Round-off decides in C which of several equally separating axes is used, and with the axis the reference face, the incident
  face and the edges. It also decides on which side of a clipping plane a vertex in that plane lies: a duplicate point may
  remain or vanish, and the list of points may start elsewhere.

  Source: `mjc_BoxBox`.
  Gradient: of the chosen features; the choice is constant.
  """
  rot = vector.mat_mat(vector.transpose(a.mat), b.mat)
  pos_a, pos_b = vector.mat_t_vec(a.mat, b.pos - a.pos), vector.mat_t_vec(b.mat, a.pos - b.pos)
  limit = margin + _SCALES[rot.dtype.itemsize][0] * jnp.sum(a.size + b.size, axis=-2)
  stopped = jax.lax.stop_gradient((rot, pos_a, pos_b, a.size, b.size, limit))
  face, pair, use_edge, separated = _separating_axis(*stopped)

  edge_dist, middle, axis = _edge_contact(rot, pos_a, a.size, b.size, jnp.any(pair, axis=2), jnp.any(pair, axis=1))
  edge_dist = only_where(edge_dist <= limit, edge_dist)
  edge_pos = a.pos + vector.mat_vec(a.mat, middle)
  dist, pos, normal = _face_contacts(a, b, face, margin)

  first = np.arange(_MAXVERT)[:, None] == 0
  dist = jnp.where(use_edge[:, None], only_where(first, edge_dist[:, None]), dist)
  pos = jnp.where(use_edge[:, None, None], edge_pos[:, None], pos)
  normal = jnp.where(use_edge[:, None], vector.mat_vec(a.mat, axis), normal)
  return make_contacts(only_where(~separated[:, None], dist), pos, normal[:, None])
