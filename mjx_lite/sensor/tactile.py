"""Tactile sensors: penetration depth and slip velocity of the vertices of a mesh in the geoms that touch a body.

Distances of points to geoms are MuJoCo's signed distance functions. Inside boxes and ellipsoids these functions are not the
distance to the surface.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.sdf import field
from mjx_lite.math import safe, spatial, vector
from mjx_lite.model.enums import GeomType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import rows
from mjx_lite.sensor.group import Part

# geom types that taxels sense, besides meshes with an octree
DISTANCES = tuple(field.FIELDS)


class TactileTables(NamedTuple):
  """Tables of one sensor. A model has few tactile sensors, with many taxels each."""

  geom: int  # geom whose frame the mesh is in
  body: int  # root of the bodies welded to the geom's body
  vertex: np.ndarray  # (n, 3) taxels [m]
  tangent: np.ndarray  # (2 or 0, n, 3)
  targets: tuple[tuple[int, np.ndarray, np.ndarray], ...]  # shape, geoms (k,), mask (k, nslot) of their contact slots
  trees: field.Octrees  # octrees of the meshes in `targets`


def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Plan every sensor separately."""
  return [Part(np.array([i]), _tables(s, i)) for i in ids]


def touching(s: dict[str, Any], geom: int, slot_geom: np.ndarray) -> np.ndarray:
  """Return for each slot (nslot,) the geom in contact with a geom's body or a body welded to it; -1 for all other slots."""
  weld = s["body_weldid"][s["geom_bodyid"]]
  touches_body = weld[slot_geom] == weld[geom]
  return np.where(touches_body[:, 0], slot_geom[:, 1], np.where(touches_body[:, 1], slot_geom[:, 0], -1))


def _tables(s, i) -> TactileTables:
  mesh, geom = int(s["sensor_objid"][i]), int(s["sensor_refid"][i])
  n, adr, first = (int(s[k][mesh]) for k in ("mesh_vertnum", "mesh_vertadr", "mesh_normaladr"))
  vertex = np.asarray(s["mesh_vert"], float).reshape(-1, 3)[adr : adr + n]
  normal = np.asarray(s["mesh_normal"], float).reshape(-1, 3)[first:]
  tangent = np.zeros((2, n, 3))
  if s["mesh_normalnum"][mesh] == 3 * n:  # otherwise the mesh has only normals, and slips are zero
    tangent = normal[: 3 * n].reshape(n, 3, 3)[:, 1:].swapaxes(0, 1)
  tangent = tangent[: s["sensor_dim"][i] // n - 1]
  slot_target = touching(s, geom, s["slot_geom"])
  targets = []
  trees = field.octrees(s, np.zeros(0, int))
  for kind in (*DISTANCES, GeomType.MESH):
    geoms = np.array([g for g in np.unique(slot_target) if g >= 0 and s["geom_type"][g] == kind], int)
    if kind == GeomType.MESH:
      geoms = geoms[s["mesh_octadr"][s["geom_dataid"][geoms]] >= 0]
      trees = field.octrees(s, s["geom_dataid"][geoms])
    if len(geoms):
      targets.append((int(kind), geoms, geoms[:, None] == slot_target))
  return TactileTables(
    geom=geom,
    body=int(s["body_weldid"][s["geom_bodyid"][geom]]),
    vertex=vertex,
    tangent=tangent,
    targets=tuple(targets),
    trees=trees,
  )


def tactile(m: Model, d: Data, t: TactileTables) -> jax.Array:
  """Return the penetration of every taxel [m], then the slip of every taxel along two tangents [m/s].

  Source: `mj_computeSensorAcc`, case mjSENS_TACTILE; since 4.0 the velocity of the other geom is taken at the taxel.
  Gradient: zero where a taxel touches nothing.
  """
  frame = rows(d.geom_xmat, np.array([t.geom]))
  point = vector.mat_vec(frame, jnp.asarray(t.vertex, d.qpos.dtype)[..., None]) + rows(d.geom_xpos, np.array([t.geom]))
  depth, slips = jnp.zeros_like(point[:, 0]), [jnp.zeros_like(point[:, 0])] * len(t.tangent)
  own_velocity = _velocity(m, d, np.array([t.body]), point)
  for kind, geoms, slots in t.targets:
    touches = jnp.any((d.contact.exclude >= 0) & slots[..., None], axis=1)
    pos, mat = rows(d.geom_xpos, geoms)[:, None], rows(d.geom_xmat, geoms)[:, None]
    local = vector.mat_t_vec(mat, point - pos)
    if kind == GeomType.MESH:
      dist, _ = field.interpolate(t.trees, t.trees.row[m.geom_dataid[geoms]], local)
    else:
      dist, _ = field.FIELDS[kind](local, rows(m.geom_size, geoms)[:, None])
    deep = touches[:, None] & (dist < 0)
    depth = jnp.maximum(depth, safe.largest(jnp.where(deep, -dist, 0), axis=0))
    relative = own_velocity - _velocity(m, d, m.geom_bodyid[geoms], point)
    for k, tangent in enumerate(t.tangent):
      along = vector.mat_vec(frame, jnp.asarray(tangent, d.qpos.dtype)[..., None])
      slips[k] = slips[k] + jnp.sum(jnp.where(deep, jnp.abs(vector.dot(relative, along)), 0), axis=0)
  return jnp.concatenate([depth, *slips])


def _velocity(m, d, body, point):
  """Return the velocities (k, n, 3, W) of points (n, 3, W) that move with bodies (k,) [m/s]."""
  omega, v = spatial.split(rows(d.cvel, body)[:, None])
  return v + vector.cross(omega, point - rows(d.subtree_com, m.body_rootid[body])[:, None])
