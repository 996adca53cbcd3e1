"""Rangefinders: one ray along the z axis of a site, or one through every pixel of a camera.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.query import ray
from mjx_lite.math import safe, trig, vector
from mjx_lite.model.enums import ObjType, Projection, RayDataField
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import join, rows
from mjx_lite.sensor import frames
from mjx_lite.sensor.group import Part

# field -> its size, in MuJoCo's order
FIELDS = {
  RayDataField.DIST: 1, RayDataField.DIR: 3, RayDataField.ORIGIN: 3, RayDataField.POINT: 3, RayDataField.NORMAL: 3,
  RayDataField.DEPTH: 1,
}  # fmt: skip


class RayTables(NamedTuple):
  """Rays of all sensors, which are cast together; rays of cameras come first."""

  normals: bool  # whether some sensor reports normals
  camera: frames.Objects  # camera of each of its rays
  site: frames.Objects  # site of each ray of a site
  orthographic: np.ndarray  # (ncamera,) whether a camera ray is parallel to the camera's axis
  id: np.ndarray  # (ncamera,) camera
  pixel: np.ndarray  # (ncamera, 2) column and row
  body: np.ndarray  # (n,) body that a ray ignores
  value_index: np.ndarray  # index of every sensor value among the values of all fields of all rays


def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Plan all sensors together, sensors of cameras first."""
  is_cam = s["sensor_objtype"][ids] == ObjType.CAMERA
  ids = np.concatenate([ids[is_cam], ids[~is_cam]])
  obj, spec, ncam = s["sensor_objid"][ids].astype(int), s["sensor_intprm"][ids, 0], int(is_cam.sum())
  pixel = [np.stack(np.meshgrid(*map(np.arange, s["cam_resolution"][c])), axis=-1).reshape(-1, 2) for c in obj[:ncam]]
  pixel = np.concatenate([np.zeros((0, 2), int), *pixel])
  count = np.ones(len(ids), int)
  count[:ncam] = [np.prod(s["cam_resolution"][c]) for c in obj[:ncam]]
  cam, site = np.repeat(obj[:ncam], count[:ncam]), obj[ncam:]
  cameras, sites = (frames.plan(s, np.full(len(x), kind), x) for x, kind in ((cam, ObjType.CAMERA), (site, ObjType.SITE)))
  ends = np.cumsum(list(FIELDS.values()))
  columns = [np.concatenate([np.arange(e - n, e) for (f, n), e in zip(FIELDS.items(), ends, strict=True) if x & (1 << f)])
            for x in np.repeat(spec, count)]  # fmt: skip
  value_index = np.concatenate([i * ends[-1] + w for i, w in enumerate(columns)])
  normals = bool((spec & (1 << RayDataField.NORMAL)).any())
  parallel = s["cam_projection"][cam] == Projection.ORTHOGRAPHIC
  body = np.concatenate([cameras.body, sites.body])
  return [
    Part(
      ids,
      RayTables(
        normals=normals,
        camera=cameras,
        site=sites,
        orthographic=parallel,
        id=cam,
        pixel=pixel,
        body=body,
        value_index=value_index,
      ),
    )
  ]


def _pixel_rays(m: Model, t: RayTables) -> tuple[jax.Array, jax.Array]:
  """Return origins [m] and directions (n, 3, W) in the frames of cameras. Source: `mju_camIntrinsics`, `mju_camPixelRay`."""
  fovy, sensor, intrinsic = rows(m.cam_fovy, t.id), rows(m.cam_sensorsize, t.id), rows(m.cam_intrinsic, t.id)
  size, pixel = (np.asarray(x)[..., None].astype(fovy.dtype) for x in (m.cam_resolution[t.id], t.pixel))
  middle = pixel + 0.5
  parallel = t.orthographic[:, None]
  shift = (middle / (0.5 * size) - 1) * 0.5 * fovy[:, None]
  zero = jnp.zeros_like(fovy)
  physical = jnp.all(sensor != 0, axis=1)[:, None]
  ratio = intrinsic.astype(jnp.float32) / jnp.where(physical, jnp.tile(sensor, (1, 2, 1)), 1).astype(jnp.float32)
  inner = (ratio * np.tile(size, (1, 2, 1)).astype(np.float32)).astype(fovy.dtype)  # in single precision, as in C
  cos, sin = trig.cos_sin(jnp.where(parallel, 45, fovy) * (np.pi / 360))
  by_angle = 0.5 * cos / sin * size[:, 1]
  x = (middle - jnp.where(physical, inner[:, 2:], 0.5 * size)) / jnp.where(physical, inner[:, :2], by_angle[:, None])
  origin = jnp.where(parallel[:, None], jnp.stack([shift[:, 0], -shift[:, 1], zero], axis=1), 0)
  spread = jnp.where(parallel[:, None], 0, x)
  return origin, safe.normalize(jnp.stack([spread[:, 0], -spread[:, 1], zero - 1], axis=1))


def rangefinder(m: Model, d: Data, t: RayTables) -> jax.Array:
  """Cast the rays, and return the fields that the sensors request.

  Source: `mj_computeSensorPos`, case mjSENS_RANGEFINDER.
  Gradient: that of the surface hit; zero for a ray that hits nothing, except for the field of its origin.
  """
  origins, directions, depths = [], [], []
  if len(t.id):
    pos, mat = frames.position(d, t.camera), frames.orientation(d, t.camera)
    shift, inside = _pixel_rays(m, t)
    origins.append(pos + vector.mat_vec(mat, shift))
    directions.append(vector.mat_vec(mat, inside))
    depths.append(-inside[:, 2])  # depth per unit of length: the rays start in the plane of the camera
  if len(t.site.body):
    origins.append(frames.position(d, t.site))
    directions.append(frames.orientation(d, t.site)[:, :, 2])
    depths.append(jnp.ones_like(origins[-1][:, 0]))
  origin, direction, depth = join(origins), join(directions), join(depths)
  geoms = ray.visible(m, (), True, ())
  blind = m.geom_bodyid[:, None] == t.body
  geoms = geoms[~blind[geoms].all(axis=1)]
  hit = ray.first_hit(m, d.geom_xpos, d.geom_xmat, origin, direction, geoms, blind, t.normals)
  dist, is_hit = hit.dist[:, None], (hit.geom >= 0)[:, None]
  point, normal = origin + dist * direction, jnp.zeros_like(origin) if hit.normal is None else hit.normal
  fields = [dist, direction, origin, point, normal, dist * depth[:, None]]
  width = max(x.shape[-1] for x in fields)
  missed = np.array([-1.0] * 1 + [0] * 12 + [-1])[:, None]
  table = jnp.concatenate([jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in fields], axis=1)
  always = (np.arange(14) >= 4) & (np.arange(14) < 7)  # the origin
  table = jnp.where(is_hit | always[:, None], table, missed.astype(table.dtype))
  return rows(table.reshape(-1, width), t.value_index)
