"""Rangefinders: one ray along the z axis of a site, or one through every pixel of a camera."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import ray
from mjx_lite.core.enums import ObjType, Projection, RayDataField
from mjx_lite.core.select import rows
from mjx_lite.core.types import Data, Model
from mjx_lite.math import safe, vector
from mjx_lite.sensor import frames
from mjx_lite.sensor.group import Part, split

# field -> how many numbers it has, in MuJoCo's order
FIELDS = {
  RayDataField.DIST: 1, RayDataField.DIR: 3, RayDataField.ORIGIN: 3, RayDataField.POINT: 3, RayDataField.NORMAL: 3,
  RayDataField.DEPTH: 1,
}  # fmt: skip
SITE = -1  # in place of a projection


class RayTables(NamedTuple):
  """Rays of the sensors of one specification, and of one projection if they are those of cameras."""

  fields: tuple[int, ...]  # RayDataField
  projection: int
  owner: frames.Objects  # of every ray
  camera: np.ndarray  # (n,) its camera, 0 for a site
  pixel: np.ndarray  # (n, 2) column and row
  body: np.ndarray  # (n,) body that it does not see


def plan(s: dict[str, Any], who: np.ndarray) -> list[Part]:
  """Sensors by their data and projection."""
  is_cam, obj = s["sensor_objtype"][who] == ObjType.CAMERA, s["sensor_objid"][who]
  projection = np.full(len(who), SITE)
  projection[is_cam] = s["cam_projection"][obj[is_cam]]
  out = []
  for (spec, how), some in split(who, s["sensor_intprm"][who, 0], projection):
    chosen = tuple(int(f) for f in FIELDS if spec & (1 << f))
    obj, pixel = s["sensor_objid"][some].astype(int), [np.zeros((1, 2))] * len(some)
    if how != SITE:
      pixel = [np.stack(np.meshgrid(*map(np.arange, s["cam_resolution"][c])), axis=-1).reshape(-1, 2) for c in obj]
    each = np.repeat(obj, [len(p) for p in pixel])
    owner = frames.plan(s, np.full(len(each), ObjType.SITE if how == SITE else ObjType.CAMERA), each)
    camera = each * (how != SITE)
    out.append(Part(some, RayTables(chosen, how, owner, camera, np.concatenate(pixel), owner.body)))
  return out


def _pixel_rays(m: Model, t: RayTables) -> tuple[jax.Array, jax.Array]:
  """Origins and directions (n, 3, W) in the frames of cameras. Source: `mju_camIntrinsics`, `mju_camPixelRay`."""
  fovy = rows(m.cam_fovy, t.camera)
  size = np.asarray(m.cam_resolution)[t.camera][..., None].astype(float)
  col, row = (t.pixel[:, k, None] + 0.5 for k in (0, 1))
  zero = jnp.zeros_like(fovy)
  if t.projection == Projection.ORTHOGRAPHIC:
    x, y = ((c - 0.5 * size[:, k]) / (0.5 * size[:, k]) * 0.5 * fovy for k, c in enumerate((col, row)))
    return jnp.stack([x, -y, zero], axis=1), jnp.stack([zero, zero, zero - 1], axis=1)
  sensor, intrinsic = rows(m.cam_sensorsize, t.camera), rows(m.cam_intrinsic, t.camera)
  physical = (sensor[:, 0] != 0) & (sensor[:, 1] != 0)
  ratio = intrinsic.astype(jnp.float32) / jnp.where(physical[:, None], jnp.tile(sensor, (1, 2, 1)), 1).astype(jnp.float32)
  inner = (ratio * np.tile(size, (1, 2, 1)).astype(np.float32)).astype(fovy.dtype)  # in single precision, as in C
  by_angle = 0.5 / jnp.tan(fovy * (np.pi / 360)) * size[:, 1]
  focal = [jnp.where(physical, inner[:, k], by_angle) for k in (0, 1)]
  centre = [jnp.where(physical, inner[:, 2 + k], 0.5 * size[:, k]) for k in (0, 1)]
  direction = jnp.stack([(col - centre[0]) / focal[0], -(row - centre[1]) / focal[1], zero - 1], axis=1)
  return jnp.zeros_like(direction), safe.normalize(direction)


def rangefinder(m: Model, d: Data, t: RayTables) -> jax.Array:
  """What the rays meet, in the fields asked for: a row of sensordata per ray.

  Source: `mj_computeSensorPos`, case mjSENS_RANGEFINDER.
  Gradient: of the surface that is met; zero for a ray that meets nothing, but for its origin.
  """
  pos, mat = frames.position(d, t.owner), frames.orientation(d, t.owner)
  if t.projection == SITE:
    origin, direction = pos, mat[:, :, 2]
  else:
    shift, inside = _pixel_rays(m, t)
    origin, direction = pos + vector.mat_vec(mat, shift), vector.mat_vec(mat, inside)
  geoms = ray.visible(m, (), True, ())
  blind = m.geom_bodyid[:, None] == t.body
  geoms = geoms[~blind[geoms].all(axis=1)]
  hit = ray.first_hit(m, d.geom_xpos, d.geom_xmat, origin, direction, geoms, blind, RayDataField.NORMAL in t.fields)
  dist, met = hit.dist[:, None], (hit.geom >= 0)[:, None]
  point = jnp.where(met, origin + hit.dist[:, None] * direction, 0)
  along = dist if t.projection == SITE else -vector.dot(point - pos, mat[:, :, 2])[:, None]
  values = {
    RayDataField.DIST: dist, RayDataField.DIR: jnp.where(met, direction, 0), RayDataField.ORIGIN: origin,
    RayDataField.POINT: point, RayDataField.NORMAL: hit.normal, RayDataField.DEPTH: jnp.where(met, along, -1),
  }  # fmt: skip
  chosen = [values[f] for f in t.fields]
  width = max(x.shape[-1] for x in chosen)
  return jnp.concatenate([jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in chosen], axis=1)
