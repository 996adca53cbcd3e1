"""Signed distance of two geoms."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import convex, hulls
from mjx_lite.collision.driver import type_name
from mjx_lite.collision.hulls import HullOf
from mjx_lite.collision.primitive import COLLIDERS
from mjx_lite.collision.shapes import Shape, first_min
from mjx_lite.core.types import Model


class Distance(NamedTuple):
  """Signed distance (W,) [m], and the segment (6, W) [m] from the first geom to the second."""

  dist: jax.Array
  fromto: jax.Array


def distance(m: Model, xpos: jax.Array, xmat: jax.Array, distmax: jax.Array, geom1: int, geom2: int) -> Distance:
  """Distance of two geoms, negative where they overlap; distmax and a zero segment where they are farther apart.

  Args:
    xpos, xmat: poses of all geoms.
    distmax: (W,) or (1,) [m].
    geom1, geom2: ids.

  Source: `mj_geomDistance`. Of two boxes the exact distance is meant, not the separating axis of their contacts.
  Gradient: of the nearest features; zero where the distance is distmax.
  """
  flip = m.geom_type[geom1] > m.geom_type[geom2]
  a, b = (geom2, geom1) if flip else (geom1, geom2)
  types = type_name(m.geom_type[a]), type_name(m.geom_type[b])
  if types not in COLLIDERS:
    zero = jnp.zeros_like(xpos[0, 0])
    return Distance(zero + distmax, jnp.zeros((6, *zero.shape), zero.dtype))
  hull_a, hull_b = _hull(m, a), _hull(m, b)
  shape = lambda g, hull: Shape(xpos[g : g + 1], xmat[g : g + 1], m.geom_size[g : g + 1], hull)  # noqa: E731
  shape_a, shape_b = shape(a, hull_a), shape(b, hull_b)
  collider = COLLIDERS[types].fn
  reach = distmax[None]
  if collider is None or types == ("box", "box"):
    found = convex.collide(convex.plan([types], hull_a, hull_b), shape_a, shape_b, reach, m.opt.ccd_iterations, multiccd=False)
  else:
    found = collider(shape_a, shape_b, reach)
  dist, pos, normal = found.dist[0], found.pos[0], found.frame[0, :, 0]
  nearest = first_min(jax.lax.stop_gradient(dist), axis=0)
  dist = jnp.sum(jnp.where(nearest, dist, 0), axis=0)
  pos, normal = (jnp.sum(jnp.where(nearest[:, None], x, 0), axis=0) for x in (pos, normal))
  near = dist < distmax
  dist = jnp.where(near, dist, distmax)
  half = 0.5 * jnp.where(near, dist, 0) * normal
  ends = (pos + half, pos - half) if flip else (pos - half, pos + half)
  return Distance(dist, jnp.where(near, jnp.concatenate(ends), 0))


def _hull(m: Model, geom: int) -> HullOf | None:
  if type_name(m.geom_type[geom]) != "mesh":
    return None
  mesh = np.array([m.geom_dataid[geom]])
  tables = hulls.plan(m.layout.static, mesh)
  return HullOf(tables, tables.start[mesh], tables.count[mesh])
