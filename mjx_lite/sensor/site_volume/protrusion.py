"""Protrusion of objects from sites: the largest signed distance from the site over all points of the object.

A site is convex, so its distance (`signed_distance`) is a convex function, and the farthest point of an object is an extreme
point: an end, a corner or a vertex. For curved objects an iteration from several directions finds the point. Each iteration
goes to the object's point that is farthest along the gradient of the distance at the last point. The distance never decreases.

Tests: tests/sensor/test_enclosure.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import hulls
from mjx_lite.math import safe, vector
from mjx_lite.model import topology
from mjx_lite.model.enums import GeomType, ObjType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import join, rows
from mjx_lite.sensor.group import Part, split
from mjx_lite.sensor.site_volume import signed_distance, volume

_SIDES = np.array([(x, y, z) for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1) if (x, y, z) != (0, 0, 0)], np.int32)
_ROUNDS = 40  # iterations that follow the gradient
_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.int32)
_ENDS = np.array([(0, 0, -1), (0, 0, 1)], np.int32)


# ------------------------------------------------------------------------------------------------- points of objects


class _InSite(NamedTuple):
  """Objects of one shape in the frames of their sites."""

  pos: jax.Array  # (n, 3, W)
  mat: jax.Array  # (n, 3, 3, W)
  size: jax.Array  # (n, 3, W)
  site_size: jax.Array  # (n, 3, W)


def _at(x: _InSite, local: jax.Array) -> jax.Array:
  """Transform points (n, k, 3, W) from the objects' frames to the sites' frames."""
  return x.pos[:, None] + vector.mat_vec(x.mat[:, None], local)


def _ball(x: _InSite, distance: Any) -> jax.Array:
  return distance(x.pos, x.site_size) + x.size[:, 0]


def _capsule(x: _InSite, distance: Any) -> jax.Array:
  ends = x.size[:, None, 1:2] * _ENDS[..., None]
  return _farthest(x, distance, ends) + x.size[:, 0]


def _box(x: _InSite, distance: Any) -> jax.Array:
  return _farthest(x, distance, x.size[:, None] * _CORNERS[..., None])


def _farthest(x: _InSite, distance: Any, local: jax.Array) -> jax.Array:
  return safe.largest(distance(_at(x, local), x.site_size[:, None]), axis=1)


def _ellipsoid_point(size, direction):
  return size * safe.normalize(size * direction)


def _cylinder_point(size, direction):
  rim = size[..., :1, :] * safe.normalize(direction[..., :2, :])
  end = jnp.where(direction[..., 2:, :] < 0, -size[..., 1:2, :], size[..., 1:2, :])
  return jnp.concatenate([rim, end], axis=-2)


def _curved(point: Any) -> Any:
  """Return the largest-distance function of a shape, from its support function (size, direction) -> point, both local."""

  def largest(x: _InSite, distance: Any) -> jax.Array:
    def local(x, normal):
      return point(x.size[:, None], vector.mat_t_vec(x.mat[:, None], normal))

    still = jax.lax.stop_gradient(x)

    def follow(_, normal):
      value, back = jax.vjp(lambda p: distance(p, still.site_size[:, None]), _at(still, local(still, normal)))
      return back(jnp.ones_like(value))[0]

    sides = jnp.broadcast_to(_SIDES[..., None].astype(x.pos.dtype), (*x.pos.shape[:1], *_SIDES.shape, x.pos.shape[-1]))
    normal = jax.lax.fori_loop(0, _ROUNDS, follow, jnp.concatenate([sides, still.pos[:, None]], axis=1))
    return _farthest(x, distance, local(x, jax.lax.stop_gradient(normal)))

  return largest


# shape of an object -> largest distance (n, W) of its points [m]; meshes use their vertices
OBJECTS: dict[int, Any] = {
  GeomType.SPHERE: _ball,
  GeomType.CAPSULE: _capsule,
  GeomType.ELLIPSOID: _curved(_ellipsoid_point),
  GeomType.CYLINDER: _curved(_cylinder_point),
  GeomType.BOX: _box,
  GeomType.MESH: None,
}


# ------------------------------------------------------------------------------------------------------------ sensor


class Group(NamedTuple):
  """Objects of one shape, all geoms or all sites; every mesh is a separate group."""

  is_geom: bool
  shape: int
  ids: np.ndarray  # (n,) geoms or sites
  site: np.ndarray  # (n,) site of each object
  vert: np.ndarray  # (nvert, 3) vertices of a mesh [m], in the frame of the object


class EnclosureTables(NamedTuple):
  """Sensors of sites of one shape, or of one mesh."""

  shape: int  # type of the sites
  hull: np.ndarray | None  # triangles of the mesh, None for other shapes
  groups: tuple[Group, ...]
  order: np.ndarray  # object -> row in the concatenation of the groups
  own: np.ndarray  # (n, k) objects of each sensor, padded with the last object


def objects(s: Mapping[str, Any], sensor: int) -> list[tuple[bool, int]]:
  """List the objects of a sensor as (is a geom, id). BODY means the geoms of the body, XBODY the geoms of its subtree."""
  kind, obj = s["sensor_objtype"][sensor], int(s["sensor_objid"][sensor])
  if kind in (ObjType.GEOM, ObjType.SITE):
    return [(bool(kind == ObjType.GEOM), obj)]
  bodies = np.flatnonzero(topology.subtrees(s)[obj]) if kind == ObjType.XBODY else [obj]
  return [(True, int(g)) for g in np.flatnonzero(np.isin(s["geom_bodyid"], bodies))]


def plan(s: Mapping[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors by the shape of their site; every mesh is a separate shape."""
  site = s["sensor_refid"][ids]
  mesh = np.where(s["site_type"][site] == GeomType.MESH, s["site_dataid"][site], -1)
  return [Part(members, _tables(s, shape, i, members)) for (shape, i), members in split(ids, s["site_type"][site], mesh)]


def _tables(s, shape, site_mesh, sensors):
  lists = [objects(s, i) for i in sensors]
  site = np.repeat(s["sensor_refid"][sensors], [len(x) for x in lists])
  flat = [x for objs in lists for x in objs]
  is_geom, ids = (np.array([x[k] for x in flat], t) for k, t in ((0, bool), (1, int)))
  kind = np.array([s["geom_type" if g else "site_type"][i] for g, i in flat], int)
  data = np.array([s["geom_dataid" if g else "site_dataid"][i] for g, i in flat], int)
  mesh = np.where(kind == GeomType.MESH, data, -1)
  groups, order = [], []
  for (geom, k, i), members in split(np.arange(len(flat)), is_geom, kind, mesh):
    groups.append(Group(bool(geom), k, ids[members], site[members], _vertices(s, i, bool(geom))))
    order.append(members)
  count = np.array([len(x) for x in lists])
  own = (np.cumsum(count) - count)[:, None] + np.minimum(np.arange(count.max()), count[:, None] - 1)
  hull = signed_distance.triangles(s, site_mesh) if site_mesh >= 0 else None
  return EnclosureTables(shape, hull, tuple(groups), np.argsort(np.concatenate(order)), own)


def _vertices(s, mesh, is_geom):
  """Return the vertices of a hull; a geom has the frame of the mesh, a site the frame of the mesh file."""
  if mesh < 0:
    return np.zeros((0, 3))
  vert = hulls.plan(dict(s), np.array([mesh]), np.zeros(0, int)).vert
  if is_geom:
    return vert
  return signed_distance.to_file(s, mesh, vert) + s["mesh_pos"][mesh]


def protrusion(m: Model, d: Data, t: EnclosureTables) -> jax.Array:
  """Return by how much objects stick out of sites (n, W) [m]; minus the least gap where an object is inside.

  Differs: the sensor `enclosed` reports the point that is farthest out. C's search may end at a nearer point: never for
  ellipsoids, in 3 % of random poses for boxes and spheres, in a quarter for cylinders, in four of ten for meshes. C's value is
  then less by up to a tenth of the site's size. The signs differ only where the object sticks out by at most this amount.

  Source: `mjc_hausdorff`.
  Gradient: that of the point that is farthest out.
  """
  hull = t.hull
  distance = signed_distance.SOLIDS[t.shape] if hull is None else lambda p, _: signed_distance.from_hull(hull, p)
  found = join([_protrusion(m, d, distance, g) for g in t.groups], t.order)
  return safe.largest(rows(found, t.own), axis=1)


def _protrusion(m, d, distance, g):
  kind = "geom" if g.is_geom else "site"
  pos, mat = (rows(getattr(d, f"{kind}_{name}"), g.ids) for name in ("xpos", "xmat"))
  size = rows(getattr(m, f"{kind}_size"), g.ids)
  site = volume.gather(m, d, g.site)
  local_mat = vector.mat_mat(vector.transpose(site.mat), mat)
  x = _InSite(vector.mat_t_vec(site.mat, pos - site.pos), local_mat, size, site.size)
  if g.shape == GeomType.MESH:
    return _farthest(x, distance, jnp.asarray(g.vert, pos.dtype)[None, ..., None])
  return OBJECTS[g.shape](x, distance)
