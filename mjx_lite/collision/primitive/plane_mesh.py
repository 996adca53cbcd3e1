"""Collider of a plane and the convex hull of a mesh.

Tests: tests/collision/test_primitive.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.collision.convex.hulls import take
from mjx_lite.collision.shapes import Contacts, Shape, first_min, make_contacts, only_where
from mjx_lite.math import vector


def plane_mesh(a: Shape, b: Shape, margin: jax.Array) -> Contacts:
  """Collide a plane with a mesh, at most 4 contacts: the lowest vertex, then corners of its polygon that faces the plane most.

  The corners span a wide quadrilateral (`hulls.Hulls.vert_quad`). Corners above the mesh's centre do not count. In C the choice
  among equally low vertices is arbitrary.

  Source: 4.0's `mjc_PlaneConvex` after MuJoCo Warp's `plane_convex`.
  """
  del margin
  hull, normal = b.hull, a.axis(2)
  assert hull is not None
  tables = hull.tables
  down = jax.lax.stop_gradient(-vector.mat_t_vec(b.mat, normal))
  index = hull.farthest(down)

  # the polygon at the lowest vertex that faces down most
  polys = take(tables.vert_poly, index)
  facing = vector.dot(take(tables.poly_normal, polys, down.dtype), down[:, None])
  chosen = first_min(only_where(polys >= 0, -facing), axis=1)
  quad = vector.fold(jnp.add, jnp.where(chosen[:, :, None], take(tables.vert_quad, index), 0), 1)
  quad = jnp.where((polys[:, :1] >= 0) | (jnp.arange(4) > 0)[:, None], quad, index[:, None])
  exists = (quad >= 0) & ((polys[:, :1] >= 0) | (jnp.arange(4) == 0)[:, None])

  corner = vector.mat_vec(b.mat[:, None], take(tables.vert, quad, down.dtype))
  below = (vector.dot(corner, normal[:, None]) <= 0) | (jnp.arange(4) == 0)[:, None]
  point = b.pos[:, None] + corner
  dist = vector.dot(point - a.pos[:, None], normal[:, None])
  pos = point - 0.5 * dist[..., None, :] * normal[:, None]
  dist = only_where(exists & below, dist)
  width = max(dist.shape[-1], b.size.shape[-1])
  return make_contacts(jnp.broadcast_to(dist, (*dist.shape[:-1], width)), pos, normal[:, None])
