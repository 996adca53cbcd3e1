"""Closed-form colliders of ellipsoids and cylinders with a plane, and of a sphere with a cylinder.

Tests: tests/collision/test_primitive.py, tests/gradients/test_ties.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import Contacts, Shape, make_contacts
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear


def plane_ellipsoid(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the contact of a plane and an ellipsoid: 1 slot, the lowest point. Source: `mjc_PlaneConvex`."""
  del margin
  normal = a.axis(2)
  toward = safe.normalize(vector.mat_t_vec(b.mat, normal) * b.size)
  point = b.pos - vector.mat_vec(b.mat, toward * b.size)
  dist = vector.dot(point - a.pos, normal)
  pos = point - 0.5 * dist[..., None, :] * normal
  return make_contacts(dist[:, None], pos[:, None], normal[:, None])


# the 4 points of plane-cylinder: sign of the cap (1 is the lower cap), weights of the lowest and of the sideways radius vector
_CAP = np.array([1, -1, 1, 1], np.int32)[:, None, None]
_DOWN = np.array([1, 1, -0.5, -0.5])[:, None, None]
_ASIDE = np.sqrt(0.75) * np.array([0, 0, 1, -1])[:, None, None]


def plane_cylinder(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the 4 contacts of a plane and a cylinder.

  These are the lowest points of the lower and the upper cap, then two more points of the lower cap. The three points of the
  lower cap are the corners of an equilateral triangle.

  Source: `mjc_PlaneCylinder`.
  Gradient: where the axis is normal to the plane (within 1e-6), the triangle rotates with the cylinder.
  """
  del margin
  normal, radius, half = a.axis(2), b.size[..., :1, :], b.size[..., 1:2, :]
  axis = b.axis(2)
  slope = vector.dot(normal, axis)[..., None, :]
  # round-off decides which cap is lower where a cylinder lies on its side: compute once, so that all derivatives use one choice
  turned = linear.materialize(slope > 0)
  axis = jnp.where(turned, -axis, axis)
  down = slope * b.axis(2) - normal
  level = vector.dot(down, down)[..., None, :] < 1e-12
  down = jnp.where(level, b.axis(0), safe.normalize(down)) * radius
  aside = safe.normalize(vector.cross(down, axis)) * radius
  cap, low, wide = (jnp.asarray(x, normal.dtype) for x in (_CAP, _DOWN, _ASIDE))
  point = b.pos[:, None] + cap * (half * axis)[:, None] + low * down[:, None] + wide * aside[:, None]
  dist = vector.dot(point - a.pos[:, None], normal[:, None])
  pos = point - 0.5 * dist[..., None, :] * normal[:, None]
  return make_contacts(dist, pos, normal[:, None])


def sphere_cylinder(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Compute the contact of a sphere and a cylinder: 1 slot, with the side, a cap or a rim.

  Source: `mjc_SphereCylinder`.
  Gradient: of the nearest feature; zero for distance and normal where the centre is on the axis or the rim.
  """
  del margin
  axis, radius = b.axis(2), a.size[..., 0, :]
  radius_b, half = b.size[..., 0, :], b.size[..., 1, :]
  between = a.pos - b.pos
  along = vector.dot(between, axis)
  radial = between - along[..., None, :] * axis
  outward, away = safe.normalize_with_norm(radial)
  within, inside = jnp.abs(along) < half, vector.dot(radial, radial) < radius_b * radius_b
  use_cap = inside & (~within | (half - jnp.abs(along) < radius_b - away))
  # inside, round-off may decide which feature is nearest: compute once, for distance and normal
  upper, use_cap, use_side = linear.materialize((along > 0, use_cap, within & ~use_cap))
  up = jnp.where(upper, 1, -1).astype(along.dtype)

  # the feature is, for the side, a sphere of the cylinder's radius at the same height; for the rim a point; for a cap a plane
  on_axis = away < safe.MINVAL
  across = jax.lax.stop_gradient(safe.normalize(vector.cross(a.axis(2), axis)))
  side = jnp.where(on_axis[..., None, :], across, -outward)
  rim = b.pos + radius_b[..., None, :] * outward + (up * half)[..., None, :] * axis - a.pos
  to_rim, rim_length = safe.normalize_with_norm(rim)
  dist = jnp.where(use_side, away - radius_b, jnp.where(use_cap, up * along - half, rim_length)) - radius
  normal = jnp.where(use_side[..., None, :], side, jnp.where(use_cap[..., None, :], -up[..., None, :] * axis, to_rim))
  pos = a.pos + (radius + 0.5 * dist)[..., None, :] * normal
  return make_contacts(dist[:, None], pos[:, None], normal[:, None])
