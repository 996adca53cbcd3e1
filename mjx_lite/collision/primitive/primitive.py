"""Closed-form colliders of planes, spheres and capsules, and the table of all colliders.

The first shape always has the lower MuJoCo geom type (plane, sphere, capsule, box). Comparisons without
gradient decide which feature touches. Distance, point and normal are then differentiable functions of that feature.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import convex
from mjx_lite.collision.primitive import box, curved
from mjx_lite.collision.primitive.plane_mesh import plane_mesh
from mjx_lite.collision.shapes import Collider, Contacts, Shape, make_contacts, only_where, rank_among
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear


def _spheres(
  a: jax.Array, radius_a: jax.Array, b: jax.Array, radius_b: jax.Array, otherwise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return distance (..., W) [m], position and normal (..., 3, W) of spheres with centres a and b.

  Args:
    otherwise: normal where the centres coincide.
  """
  unit, length = safe.normalize_with_norm(b - a)
  normal = jnp.where((length < safe.MINVAL)[..., None, :], otherwise, unit)
  dist = length - radius_a - radius_b
  return dist, a + (radius_a + 0.5 * dist)[..., None, :] * normal, normal


def _across(a: Shape, b: Shape) -> jax.Array:
  """Return the normal of coincident spheres: the cross product of the z axes, or x where they are parallel; no gradient."""
  return jax.lax.stop_gradient(safe.normalize(vector.cross(a.axis(2), b.axis(2))))


def _capsule_ends(c: Shape, signs: tuple[int, ...]) -> jax.Array:
  """Return the ends (P, n, 3, W) of the segment of a capsule."""
  sign = jnp.asarray(signs, c.pos.dtype)[:, None, None]
  return c.pos[:, None] + sign * (c.axis(2) * c.size[..., 1:2, :])[:, None]


def plane_sphere(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide a plane with a sphere, 1 contact. Source: `mjc_PlaneSphere`."""
  del margin
  normal, radius = a.axis(2), b.size[..., 0, :]
  dist = vector.dot(b.pos - a.pos, normal) - radius
  pos = b.pos - (radius + 0.5 * dist)[..., None, :] * normal
  return make_contacts(dist[:, None], pos[:, None], normal[:, None])


def plane_capsule(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide a plane with a capsule, 2 contacts: the end at +z, then the end at -z. The first tangent is along the capsule.

  Where the capsule is perpendicular to the plane up to round-off, the tangents are noise in C.

  Source: `mjc_PlaneCapsule`.
  Gradient: where the capsule is perpendicular to the plane (within 1e-6), the tangents do not rotate with the capsule.
  """
  del margin
  normal, axis, radius = a.axis(2), b.axis(2), b.size[..., :1, :]
  end = _capsule_ends(b, (1, -1))
  dist = vector.dot(end - a.pos[:, None], normal[:, None]) - radius
  pos = end - (radius + 0.5 * dist)[..., None, :] * normal[:, None]
  across = jax.lax.stop_gradient(axis - vector.dot(axis, normal)[..., None, :] * normal)
  upright = vector.dot(across, across)[..., None, :] < 1e-12
  tangent = jnp.where(upright, safe.normalize(across), axis)
  return make_contacts(dist, pos, normal[:, None], tangent[:, None])


def plane_box(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide a plane with a box, 4 contacts: of the corners below the centre, the first four within the margin.

  Bit k of i is the sign of corner i along axis k (1: positive). Where corners have the height of the centre up to round-off,
  more than four corners may qualify, and C chooses an arbitrary four.

  Source: `mjc_PlaneBox`.
  """
  normal = a.axis(2)
  signs = np.array([[1 if i >> k & 1 else -1 for k in range(3)] for i in range(8)])
  half = vector.mat_t_vec(b.mat, normal) * b.size
  center = vector.dot(b.pos - a.pos, normal)

  # the k-th qualifying corner goes to slot k
  height = sum(signs[:, k, None] * jax.lax.stop_gradient(half)[:, None, k] for k in range(3))
  fits = (height <= 0) & (jax.lax.stop_gradient(center)[:, None] + height <= margin[:, None])
  chosen = linear.materialize(fits[:, None] & (rank_among(fits)[0][:, None] == np.arange(4, dtype=np.int32)[:, None, None]))
  sign = linear.materialize(linear.add_up(jnp.where(chosen[..., None, :], signs[:, :, None].astype(half.dtype), 0), -3))

  # distance and midpoint of the chosen corners
  dist = center[:, None] + vector.dot(sign, half[:, None])
  corner = b.pos[:, None] + vector.mat_vec(b.mat[:, None], sign * b.size[:, None])
  pos = corner - 0.5 * dist[..., None, :] * normal[:, None]
  return make_contacts(only_where(vector.fold(jnp.logical_or, chosen, 2), dist), pos, normal[:, None])


def sphere_sphere(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide two spheres, 1 contact.

  Source: `mjc_SphereSphere`.
  Gradient: zero for distance and normal where the centres coincide.
  """
  del margin
  found = _spheres(a.pos, a.size[..., 0, :], b.pos, b.size[..., 0, :], _across(a, b))
  return make_contacts(*(x[:, None] for x in found))


def sphere_capsule(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide a sphere with a capsule, 1 contact: the sphere against the nearest sphere of the capsule.

  Source: `mjc_SphereCapsule`.
  Gradient: zero for distance and normal where the sphere's centre is on the capsule's segment.
  """
  del margin
  axis, half = b.axis(2), b.size[..., 1, :]
  x = jnp.clip(vector.dot(axis, a.pos - b.pos), -half, half)
  nearest = b.pos + x[..., None, :] * axis
  found = _spheres(a.pos, a.size[..., 0, :], nearest, b.size[..., 0, :], _across(a, b))
  return make_contacts(*(y[:, None] for y in found))


def _segment_weights(
  start_a: jax.Array, a: jax.Array, start_b: jax.Array, b: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return weights (P, 2, W) of the closest points of two segments, start + weight * vector, and whether they are parallel.

  Parallel segments (sine below 1e-4) give the two ends of their overlap, other segments the same pair of points twice.

  Source: 4.0's `mjc_segWeights` after MuJoCo Warp's `_segment_weights`.
  """
  between = start_a - start_b
  aa, bb, ab = vector.dot(a, a), vector.dot(b, b), vector.dot(a, b)
  a_between, b_between = vector.dot(a, between), vector.dot(b, between)
  normal = vector.cross(a, b)
  det = vector.dot(normal, normal)
  point_a, point_b = aa <= safe.MINVAL, bb <= safe.MINVAL
  parallel = (det <= 1e-8 * aa * bb) & ~point_a & ~point_b

  # projections of the ends of b on a
  ends = jnp.stack([-a_between, ab - a_between], axis=1)
  ends = jnp.clip(safe.divide(ends, aa[:, None]), 0, 1)

  # nearest points of the infinite lines, or the ends of a; where b's weight is not in [0, 1], an end of b
  det = jnp.where(det <= 1e-8 * aa * bb, 0, det)
  lines = jnp.clip(safe.divide(vector.dot(normal, vector.cross(b, between)), det), 0, 1)
  s = jnp.where(point_a, 0, jnp.where(point_b, ends[:, 0], lines))[:, None]
  s = jnp.where(parallel[:, None], jnp.arange(2, dtype=s.dtype)[:, None], s)
  t = safe.divide(ab[:, None] * s + b_between[:, None], bb[:, None])
  s = jnp.where(t < 0, ends[:, :1], jnp.where(t > 1, ends[:, 1:], s))
  return s, jnp.clip(t, 0, 1), parallel


def capsule_capsule(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide two capsules, 1 contact, or 2 at the ends of the overlap where they are parallel (sine below 1e-4).

  Where the segments meet up to round-off but not exactly, the normal is noise in C. On one line, both contacts coincide.

  Source: 4.0's `mjc_CapsuleCapsule` after MuJoCo Warp's `capsule_capsule`.
  Gradient: zero for distance and normal where the segments meet; for parallel capsules that of the two ends, held fixed.
  """
  del margin
  half_a, half_b = a.axis(2) * a.size[..., 1:2, :], b.axis(2) * b.size[..., 1:2, :]
  start_a, start_b = a.pos - half_a, b.pos - half_b
  s, t, parallel = _segment_weights(start_a, 2 * half_a, start_b, 2 * half_b)
  point_a = start_a[:, None] + s[..., None, :] * (2 * half_a)[:, None]
  point_b = start_b[:, None] + t[..., None, :] * (2 * half_b)[:, None]
  dist, pos, normal = _spheres(point_a, a.size[..., :1, :], point_b, b.size[..., :1, :], _across(a, b)[:, None])
  exists = parallel[:, None] | np.array([True, False])[:, None]
  return make_contacts(only_where(exists, dist), pos, normal)


COLLIDERS: dict[tuple[str, str], Collider] = {
  ("plane", "sphere"): Collider(plane_sphere, ncon=1),
  ("plane", "capsule"): Collider(plane_capsule, ncon=2),
  ("plane", "ellipsoid"): Collider(curved.plane_ellipsoid, ncon=1),
  ("plane", "cylinder"): Collider(curved.plane_cylinder, ncon=4),
  ("plane", "box"): Collider(plane_box, ncon=4),
  ("plane", "mesh"): Collider(plane_mesh, ncon=4),
  ("plane", "sdf"): Collider(plane_mesh, ncon=4),
  ("sphere", "sphere"): Collider(sphere_sphere, ncon=1),
  ("sphere", "capsule"): Collider(sphere_capsule, ncon=1),
  ("sphere", "cylinder"): Collider(curved.sphere_cylinder, ncon=1),
  ("sphere", "box"): Collider(box.sphere_box, ncon=1),
  ("capsule", "capsule"): Collider(capsule_capsule, ncon=2),
  ("capsule", "box"): Collider(box.capsule_box, ncon=2),
  ("box", "box"): Collider(box.box_box, ncon=8),
  **{types: Collider(None, ncon) for types, ncon in convex.PAIRS.items()},
}
