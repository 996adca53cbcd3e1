"""Sensors of the position stage.

Tests: tests/sensor/test_sensors.py, tests/sensor/test_energy.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import limit
from mjx_lite.math import quat, safe, trig, vector
from mjx_lite.model.enums import ConstraintType, ObjType, SensorType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import rows, rows_or_zero
from mjx_lite.sensor import frames
from mjx_lite.sensor.group import Part, split
from mjx_lite.sensor.site_volume import protrusion, volume
from mjx_lite.smooth import energy

# ------------------------------------------------------------------------------------------------- rows of a field


def plan_rows(owner: str, address: str):
  """Return a planner of sensors that read an array; `address` is mjModel's field with an object's first entry."""

  def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
    first = s[address][s["sensor_objid"][ids]] if address else s["sensor_objid"][ids]
    index = [a + np.arange(n) for a, n in zip(first, s["sensor_dim"][ids], strict=True)]
    return [Part(ids, np.concatenate(index).astype(int))]

  plan.__doc__ = f"Entries of {owner}."
  return plan


def plan_objects(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Plan sensors that read one row per object: the ids of the objects."""
  return [Part(ids, s["sensor_objid"][ids].astype(int))]


def read(field: str):
  """Return a function that reads rows of a field of Data."""

  def run(m: Model, d: Data, index: np.ndarray) -> jax.Array:
    return rows(getattr(d, field), index)

  run.__doc__ = f"Rows of {field}."
  return run


def clock(m: Model, d: Data, index: np.ndarray) -> jax.Array:
  """Return the time [s]."""
  return rows(d.time[None], index * 0)


def ball_quat(m: Model, d: Data, index: np.ndarray) -> jax.Array:
  """Return the normalised quaternion of a ball joint."""
  return safe.normalize(rows(d.qpos, index.reshape(-1, 4)))


# --------------------------------------------------------------------------------------------------------- energy


def potential(m: Model, d: Data, index: np.ndarray) -> jax.Array:
  """Return the potential energy [J]."""
  return rows(energy.potential(m, d.qpos, d.xipos, d.ten_length, d.plastic)[None], index * 0)


def kinetic(m: Model, d: Data, index: np.ndarray) -> jax.Array:
  """Return the kinetic energy of the present state [J]; C returns that of the previous call if the flag ENERGY is on."""
  return rows(energy.kinetic(m, d.cinert, d.cdof, d.M, d.qvel)[None], index * 0)


# --------------------------------------------------------------------------------------------------------- frames


class FrameTables(NamedTuple):
  """Objects and their reference frames; None for the world frame."""

  kind: int
  object: frames.Objects
  reference: frames.Objects | None


def plan_frames(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors by type, and by whether they have a reference frame."""
  out = []
  for (kind, has), members in split(ids, s["sensor_type"][ids], s["sensor_refid"][ids] >= 0):
    reference = frames.plan(s, s["sensor_reftype"][members], s["sensor_refid"][members]) if has else None
    out.append(
      Part(members, FrameTables(kind, frames.plan(s, s["sensor_objtype"][members], s["sensor_objid"][members]), reference))
    )
  return out


def frame_pos(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the position of a frame in its reference frame [m]."""
  pos = frames.position(d, t.object)
  if t.reference is None:
    return pos
  return vector.mat_t_vec(frames.orientation(d, t.reference), pos - frames.position(d, t.reference))


def frame_axis(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return an axis of a frame in its reference frame."""
  axis = frames.orientation(d, t.object)[:, :, t.kind - SensorType.FRAMEXAXIS]
  return axis if t.reference is None else vector.mat_t_vec(frames.orientation(d, t.reference), axis)


def frame_quat(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the orientation of a frame relative to its reference frame."""
  q = frames.quaternion(m, d, t.object)
  return q if t.reference is None else quat.mul(quat.conjugate(frames.quaternion(m, d, t.reference)), q)


def magnetometer(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the magnetic field in the frame of a site."""
  return vector.mat_t_vec(frames.orientation(d, t.object), m.opt.magnetic)


def camprojection(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the pixel coordinates of a site in the image of a camera.

  Gradient: zero where the site is in the plane of the camera and has no image.
  """
  assert t.reference is not None  # a camera
  cam = t.reference.parts[0][1][t.reference.order]
  resolution = m.cam_resolution[cam][..., None].astype(m.cam_fovy.dtype)
  width, height = resolution[:, 0], resolution[:, 1]
  sensor, intrinsic = rows(m.cam_sensorsize, cam), rows(m.cam_intrinsic, cam)
  physical = (sensor[:, 0] != 0) & (sensor[:, 1] != 0)
  focal = intrinsic[:, :2].astype(jnp.float32) / jnp.where(physical[:, None], sensor, 1).astype(jnp.float32)  # as in C
  cos, sin = trig.cos_sin(rows(m.cam_fovy, cam) * (np.pi / 360))
  by_angle = 0.5 * cos / sin * height
  fx, fy = (
    jnp.where(physical, (focal[:, k] * size.astype(np.float32)).astype(by_angle.dtype), by_angle)
    for k, size in enumerate((width, height))
  )
  x, y, z = (frame_pos(m, d, t)[:, k] for k in range(3))
  tiny = jnp.abs(z) < safe.MINVAL
  inverse = jnp.where(tiny, jnp.where(z < 0, -1 / safe.MINVAL, 1 / safe.MINVAL), 1 / jnp.where(tiny, 1, z))
  return jnp.stack([-fx * (x * inverse) + 0.5 * width, fy * (y * inverse) + 0.5 * height], axis=1)


# ----------------------------------------------------------------------------------------------------- inside site


class InsideTables(NamedTuple):
  """Objects, each with a site; all sites have one shape."""

  shape: int
  object: frames.Objects
  body: np.ndarray  # (n,) body of an object of kind BODY, else 0
  site: np.ndarray


def plan_inside(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors of points by the shape of their site, then the sensors of whole objects."""
  whole = s["sensor_intprm"][ids, 0] != 0
  out, ids, whole = [], ids[~whole], ids[whole]
  for (shape,), members in split(ids, s["site_type"][s["sensor_refid"][ids]]):
    kind, obj = s["sensor_objtype"][members], s["sensor_objid"][members].astype(int)
    body = np.where(kind == ObjType.BODY, obj, 0)
    out.append(Part(members, InsideTables(shape, frames.plan(s, kind, obj), body, s["sensor_refid"][members].astype(int))))
  return [*out, *(protrusion.plan(s, whole) if len(whole) else ())]


def inside_site(m: Model, d: Data, t: InsideTables | protrusion.EnclosureTables) -> jax.Array:
  """Return 1 where an object's origin is inside a site, else 0; for whole objects the protrusion from the site [m].

  For a body without mass but with massive descendants, the point is the centre of mass of the subtree.
  """
  if isinstance(t, protrusion.EnclosureTables):
    return protrusion.protrusion(m, d, t)
  point = frames.position(d, t.object)
  if t.body.any():
    mass, below = rows(m.body_mass, t.body), rows(m.body_subtreemass, t.body)
    use_subtree = (t.body > 0)[:, None] & (mass < safe.MINVAL) & (below >= safe.MINVAL)
    point = jnp.where(use_subtree[:, None], rows(d.subtree_com, t.body), point)
  return volume.contains(t.shape, volume.gather(m, d, t.site), point).astype(d.qpos.dtype)


# ---------------------------------------------------------------------------------------------------------- limits


def plan_limits(kind: Any):
  """Return a planner of limit sensors: the constraint rows (n, 2) of each joint or tendon; -1 for no row."""

  def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
    limit_rows = [np.flatnonzero((s["row_type"] == kind) & (s["row_id"] == i)) for i in s["sensor_objid"][ids]]
    return [Part(ids, np.array([[*r, -1, -1][:2] for r in limit_rows], int).reshape(-1, 2))]

  plan.__doc__ = f"Rows of {kind.name}."
  return plan


def first_active(active: jax.Array, x: jax.Array, row: np.ndarray) -> jax.Array:
  """Return x of the first active row of two, zero where no row is active."""
  on, value = rows_or_zero(active.astype(x.dtype), row), rows_or_zero(jnp.where(active, x, 0), row)
  return jnp.where(on[:, 0] > 0, value[:, 0], value[:, 1])


def joint_limit_pos(m: Model, d: Data, row: np.ndarray) -> jax.Array:
  """Return the distance of a joint to its limit, less the margin; zero where the limit is not active."""
  params, _ = limit.rows_joint(m, m.plan.rows.limit, d.qpos)
  return _limit_pos(m, params, row, ConstraintType.LIMIT_JOINT)


def tendon_limit_pos(m: Model, d: Data, row: np.ndarray) -> jax.Array:
  """Return the distance of a tendon to its limit, less the margin; zero where the limit is not active."""
  return _limit_pos(m, limit.rows_tendon(m, m.plan.rows.limit_tendon, d.ten_length), row, ConstraintType.LIMIT_TENDON)


def _limit_pos(m, params, row, kind):
  if not (row >= 0).any() or not (m.opt.use_constraint and m.opt.use_limit):
    return jnp.zeros((len(row), 1), params.pos.dtype)
  first = int(np.argmax(m.plan.rows.type == kind))
  return first_active(params.active, params.pos - params.margin, np.where(row < 0, -1, row - first))
