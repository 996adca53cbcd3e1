"""Signed distance of two geoms.

Tests: tests/collision/test_queries.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import convex, hulls
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.driver import type_name
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.sdf.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.collision.shapes import Shape, first_min
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class Distance(NamedTuple):
  """Signed distances of geoms.

  Attributes:
    dist: (..., W) signed distance [m].
    fromto: (..., 6, W) the two ends of the segment from the first geom to the second [m].
    lost: (W,) mask of the worlds in which a search ran out of iterations or rounds.
  """

  dist: jax.Array
  fromto: jax.Array
  lost: jax.Array


def distance(m: Model, xpos: jax.Array, xmat: jax.Array, distmax: jax.Array, geom1: int, geom2: int) -> Distance:
  """Compute the distance (W,) of two geoms and its segment (6, W). Source: `mj_geomDistance`. Arguments: see `distances`."""
  found = distances(m, xpos, xmat, distmax[None], np.array([geom1]), np.array([geom2]))
  return found._replace(dist=found.dist[0], fromto=found.fromto[0])


def distances(m: Model, xpos: jax.Array, xmat: jax.Array, distmax: jax.Array, geom1: np.ndarray, geom2: np.ndarray) -> Distance:
  """Compute the distances (n, W) of pairs of geoms, negative where the geoms overlap [m].

  Geoms that are farther apart than `distmax` have distance `distmax` and a zero segment. For two boxes the result is the exact
  distance, not the separation of their contacts. For distance fields only penetration depths are found.

  Args:
    m: the model.
    xpos, xmat: poses of all geoms, (ngeom, 3, W) [m] and (ngeom, 3, 3, W).
    distmax: (n, W or 1) largest distance of interest [m].
    geom1, geom2: ids (n,).

  Source: `mj_geomDistance`.
  Gradient: of the nearest features; zero where the distance is `distmax`.
  """
  flip = m.geom_type[geom1] > m.geom_type[geom2]
  a, b = np.where(flip, geom2, geom1), np.where(flip, geom1, geom2)
  types = [(type_name(m.geom_type[i]), type_name(m.geom_type[j])) for i, j in zip(a, b, strict=True)]
  parts, order = [], []
  for kinds in sorted(set(types)):
    index = np.flatnonzero([t == kinds for t in types])
    order.append(index)
    parts.append(_distances_of_types(m, xpos, xmat, rows(distmax, index), kinds, a[index], b[index], flip[index]))
  back = np.argsort(np.concatenate(order))
  dist, fromto = (join([getattr(x, k) for x in parts], back) for k in ("dist", "fromto"))
  return Distance(dist, fromto, jnp.any(jnp.stack([x.lost for x in parts]), axis=0))


def _distances_of_types(m, xpos, xmat, distmax, types, a, b, flip) -> Distance:
  """Compute the distances of pairs of one geom-type pair, the lower type first; `flip` says which pairs were swapped."""
  lost = jnp.zeros(xpos.shape[-1], bool)
  if types not in COLLIDERS and types not in FIELD_COLLIDERS:
    zero = jnp.zeros_like(rows(xpos, a)[:, 0])
    return Distance(zero + distmax, jnp.zeros((len(a), 6, zero.shape[-1]), zero.dtype), lost)
  hull_a, hull_b = (_hull(m, g, t) for g, t in zip((a, b), types, strict=True))
  shape = lambda g, hull: Shape(rows(xpos, g), rows(xmat, g), rows(m.geom_size, g), hull)  # noqa: E731
  shape_a, shape_b = shape(a, hull_a), shape(b, hull_b)
  if types in FIELD_COLLIDERS:
    field = FIELD_COLLIDERS[types]
    found = field.collide(field.plan(m.layout.static, a, b), shape_a, shape_b, None)
  elif (collider := COLLIDERS[types].fn) is None or types == ("box", "box"):
    p = convex.plan([types] * len(a), hull_a, hull_b)
    found, lost = convex.collide(p, shape_a, shape_b, distmax, m.opt.ccd_iterations, multiccd=False)
  else:
    found = collider(shape_a, shape_b, distmax)
  pos, normal = jnp.broadcast_arrays(found.pos, found.frame[:, :, 0])
  nearest = first_min(jax.lax.stop_gradient(found.dist), axis=1)
  dist = jnp.sum(jnp.where(nearest, found.dist, 0), axis=1)
  pos, normal = (jnp.sum(jnp.where(nearest[:, :, None], x, 0), axis=1) for x in (pos, normal))
  near = dist < distmax
  dist = jnp.where(near, dist, distmax)
  half = 0.5 * jnp.where(near, dist, 0)[:, None] * normal * np.where(flip, -1, 1)[:, None, None]
  ends = jnp.concatenate([pos - half, pos + half], axis=1)
  return Distance(dist, jnp.where(near[:, None], ends, 0), lost)


def _hull(m: Model, geoms: np.ndarray, kind: str) -> GeomHulls | None:
  if kind not in ("mesh", "sdf"):
    return None
  mesh = m.geom_dataid[geoms]
  tables = hulls.plan(m.layout.static, mesh)
  return GeomHulls(tables, tables.start[mesh], tables.nvert[mesh])
