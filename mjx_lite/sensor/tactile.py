"""Tactile sensors: how deep the vertices of a mesh are in the geoms that touch a body, and how fast they slip.

Distances of points to geoms are MuJoCo's signed distance functions, which inside boxes and ellipsoids are not the distance
to the surface.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import GeomType
from mjx_lite.core.select import rows
from mjx_lite.core.types import Data, Model
from mjx_lite.math import safe, spatial, vector
from mjx_lite.sensor.group import Part


def _components(x):
  return tuple(x[..., k, :] for k in range(3))


def _capsule(p, s):
  x, y, z = _components(p)
  return safe.norm(jnp.stack([x, y, z - jnp.clip(z, -s[..., 1, :], s[..., 1, :])], axis=-2)) - s[..., 0, :]


def _ellipsoid(p, s):
  q = p / s
  size = safe.norm(q)
  return size * safe.divide(size - 1, safe.norm(q / s))


def _cylinder(p, s):
  x, y, z = _components(p)
  a, b = safe.sqrt(x * x + y * y) - s[..., 0, :], jnp.abs(z) - s[..., 1, :]
  out = jnp.stack([jnp.maximum(a, 0), jnp.maximum(b, 0), 0 * a], axis=-2)
  return jnp.minimum(jnp.maximum(a, b), 0) + safe.norm(out)


def _box(p, s):
  """Inside, the distance to the surface along a unit field that turns from radial to the normals of the faces."""
  a = jnp.abs(p) - s
  inside = jnp.all(a < 0, axis=-2)
  field = safe.divide(s, jnp.where(inside[..., None, :], -a, 1))
  field = field / safe.norm(field)[..., None, :]
  return jnp.where(inside, -jnp.min(-a / field, axis=-2), safe.norm(jnp.maximum(a, 0)))


# shape of a geom -> signed distance of a point in its frame
DISTANCES: dict[int, Callable[[jax.Array, jax.Array], jax.Array]] = {
  GeomType.PLANE: lambda p, s: p[..., 2, :],
  GeomType.SPHERE: lambda p, s: safe.norm(p) - s[..., 0, :],
  GeomType.CAPSULE: _capsule,
  GeomType.ELLIPSOID: _ellipsoid,
  GeomType.CYLINDER: _cylinder,
  GeomType.BOX: _box,
}


class TactileTables(NamedTuple):
  """One sensor: there are few, and they have many taxels."""

  geom: int  # whose frame the mesh is in
  body: int  # what its body is welded to
  vertex: np.ndarray  # (n, 3)
  tangent: np.ndarray  # (2 or 0, n, 3)
  others: tuple[tuple[int, np.ndarray, np.ndarray], ...]  # shape, geoms (k,), which slots make them touch (k, nslot)


def plan(s: dict[str, Any], who: np.ndarray) -> list[Part]:
  """Every sensor by itself."""
  return [Part(np.array([i]), _tables(s, i)) for i in who]


def touching(s: dict[str, Any], geom: int, slot_geom: np.ndarray) -> np.ndarray:
  """Geoms on the other side (nslot,) of what a geom's body is welded to; -1 for slots without it."""
  weld = s["body_weldid"][s["geom_bodyid"]]
  mine = weld[slot_geom] == weld[geom]
  return np.where(mine[:, 0], slot_geom[:, 1], np.where(mine[:, 1], slot_geom[:, 0], -1))


def _tables(s, i) -> TactileTables:
  mesh, geom = int(s["sensor_objid"][i]), int(s["sensor_refid"][i])
  n, adr, first = (int(s[k][mesh]) for k in ("mesh_vertnum", "mesh_vertadr", "mesh_normaladr"))
  vertex = np.asarray(s["mesh_vert"], float).reshape(-1, 3)[adr : adr + n]
  normal = np.asarray(s["mesh_normal"], float).reshape(-1, 3)[first:]
  tangent = np.zeros((2, n, 3))
  if s["mesh_normalnum"][mesh] == 3 * n:  # otherwise the mesh has normals alone, and slips are zero
    tangent = normal[: 3 * n].reshape(n, 3, 3)[:, 1:].swapaxes(0, 1)
  tangent = tangent[: s["sensor_dim"][i] // n - 1]
  other = touching(s, geom, s["slot_geom"])
  others = []
  for kind in DISTANCES:
    geoms = np.array([g for g in np.unique(other) if g >= 0 and s["geom_type"][g] == kind], int)
    if len(geoms):
      others.append((int(kind), geoms, geoms[:, None] == other))
  return TactileTables(geom, int(s["body_weldid"][s["geom_bodyid"][geom]]), vertex, tangent, tuple(others))


def tactile(m: Model, d: Data, t: TactileTables) -> jax.Array:
  """Penetration of every taxel [m], then its slip along two tangents [m/s].

  Source: `mj_computeSensorAcc`, case mjSENS_TACTILE; the other side's velocity is that at its geom's centre.
  Gradient: zero where a taxel touches nothing.
  """
  frame = rows(d.geom_xmat, np.array([t.geom]))
  point = vector.mat_vec(frame, jnp.asarray(t.vertex, d.qpos.dtype)[..., None]) + rows(d.geom_xpos, np.array([t.geom]))
  depth, slips = jnp.zeros_like(point[:, 0]), [jnp.zeros_like(point[:, 0])] * len(t.tangent)
  mine = _velocity(m, d, np.array([t.body]), point)
  for kind, geoms, slots in t.others:
    touches = jnp.any((d.contact.exclude >= 0) & slots[..., None], axis=1)
    pos, mat = rows(d.geom_xpos, geoms)[:, None], rows(d.geom_xmat, geoms)[:, None]
    dist = DISTANCES[kind](vector.mat_t_vec(mat, point - pos), rows(m.geom_size, geoms)[:, None])
    deep = touches[:, None] & (dist < 0)
    depth = jnp.maximum(depth, jnp.max(jnp.where(deep, -dist, 0), axis=0))
    relative = mine - _velocity(m, d, m.geom_bodyid[geoms], pos[:, 0])[:, None]
    for k, tangent in enumerate(t.tangent):
      along = vector.mat_vec(frame, jnp.asarray(tangent, d.qpos.dtype)[..., None])
      slips[k] = slips[k] + jnp.sum(jnp.where(deep, jnp.abs(vector.dot(relative, along)), 0), axis=0)
  return jnp.concatenate([depth, *slips])


def _velocity(m, d, body, point):
  """Velocities of points (n, 3, W) of bodies."""
  omega, v = spatial.split(rows(d.cvel, body))
  return v + vector.cross(omega, point - rows(d.subtree_com, m.body_rootid[body]))
