"""Support functions on the native layout: Jacobians, velocities of frames, contact forces.

Ids are traced integers with a world axis, (W,) or (1,). Keyword arguments are static.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite import pipeline
from mjx_lite.actuator import history
from mjx_lite.collision.query import distance, ray
from mjx_lite.constraint import contact_force as contact_force_
from mjx_lite.math import quat, spatial, vector
from mjx_lite.model.enums import ObjType
from mjx_lite.model.pytree import strong
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import pick, rows
from mjx_lite.sensor.frames import FRAMES
from mjx_lite.smooth import jacobian, momentum


def jac(m: Model, d: Data, point: jax.Array, body_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a global point (3,) [m] on a body: of its position, and of the body's rotation.

  Args:
    m: the model.
    d: Data after `com_pos`.
    point: (3,) [m], global.
    body_id: id of the body.
  """
  position, rotation = jacobian.jac(m, d.cdof, d.subtree_com, point, body_id)
  return position, rotation


def jac_body(m: Model, d: Data, body_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a body's frame: of its position, and of its rotation.

  Args:
    m: the model.
    d: Data after `com_pos`.
    body_id: id of the body.
  """
  return _jac_frame(m, d, ObjType.XBODY, body_id)


def jac_body_com(m: Model, d: Data, body_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a body's inertial frame: of its position, and of its rotation.

  Args:
    m: the model.
    d: Data after `com_pos`.
    body_id: id of the body.
  """
  return _jac_frame(m, d, ObjType.BODY, body_id)


def jac_geom(m: Model, d: Data, geom_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a geom's frame: of its position, and of its rotation.

  Args:
    m: the model.
    d: Data after `com_pos`.
    geom_id: id of the geom.
  """
  return _jac_frame(m, d, ObjType.GEOM, geom_id)


def jac_site(m: Model, d: Data, site_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a site's frame: of its position, and of its rotation.

  Args:
    m: the model.
    d: Data after `com_pos`.
    site_id: id of the site.
  """
  return _jac_frame(m, d, ObjType.SITE, site_id)


def _jac_frame(m, d, objtype, objid):
  pos, _, body = _frame(m, d, objtype, objid)
  return jac(m, d, pos, body)


def jac_subtree_com(m: Model, d: Data, body_id: jax.Array) -> jax.Array:
  """Return the Jacobian (nv, 3) of the centre of mass of a body's subtree.

  Args:
    m: the model.
    d: Data after `crb`.
    body_id: id of the body.
  """
  return momentum.jac_subtree_com(m, pipeline.composite(m, d), d.cdof, body_id)


def jac_point_axis(m: Model, d: Data, point: jax.Array, axis: jax.Array, body_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return Jacobians (nv, 3) of a global point (3,) [m] and of a global axis (3,) that are fixed to a body.

  Args:
    m: the model.
    d: Data after `com_pos`.
    point: (3,) [m], global.
    axis: (3,), global.
    body_id: id of the body.
  """
  position, rotation = jac(m, d, point, body_id)
  return position, vector.cross(rotation, axis[None])


def jac_dot(m: Model, d: Data, point: jax.Array, body_id: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return time derivatives (nv, 3) of the Jacobians of a global point (3,) [m] that is fixed to a body.

  Args:
    m: the model.
    d: Data after `com_vel`.
    point: (3,) [m], global.
    body_id: id of the body.
  """
  position, rotation = jacobian.jac_dot(m, d.cdof, d.cdof_dot, d.cvel, d.subtree_com, point, body_id)
  return position, rotation


def angmom_mat(m: Model, d: Data, body_id: jax.Array) -> jax.Array:
  """Return the matrix A (nv, 3) of a body's subtree: its angular momentum about its centre of mass is A' qvel [kg m^2/s].

  Args:
    m: the model.
    d: Data after `crb`.
    body_id: id of the body.
  """
  return momentum.angmom_mat(m, pipeline.composite(m, d), d.cdof, d.subtree_com, body_id)


def apply_ft(m: Model, d: Data, force: jax.Array, torque: jax.Array, point: jax.Array, body_id: jax.Array) -> jax.Array:
  """Return the joint-space force (nv,) of a force (3,) [N] and a torque (3,) [N m] on a body at a global point (3,) [m].

  Args:
    m: the model.
    d: Data after `com_pos`.
    force: (3,) [N], global.
    torque: (3,) [N m], global.
    point: (3,) [m], global.
    body_id: id of the body.
  """
  return jacobian.apply_ft(m, d.cdof, d.subtree_com, force, torque, point, body_id)


def object_velocity(m: Model, d: Data, objid: jax.Array, *, objtype: int, local: bool) -> jax.Array:
  """Return the velocity (6,), rotation first, of an object's frame."""
  pos, mat, body = _frame(m, d, objtype, objid)
  return jacobian.velocity(m, d.cvel, d.subtree_com, pos, mat if local else None, body)


def object_acceleration(m: Model, d: Data, objid: jax.Array, *, objtype: int, local: bool) -> jax.Array:
  """Return the acceleration relative to free fall (6,), rotation first, of an object's frame; `cacc` is computed if missing."""
  d = d if hasattr(d, "cacc") else pipeline.rne_postconstraint(m, d)
  pos, mat, body = _frame(m, d, objtype, objid)
  return jacobian.acceleration(m, d.cacc, d.cvel, d.subtree_com, pos, mat if local else None, body)


def _frame(m, d, objtype, objid):
  """Return position, orientation and body id of an object."""
  owner, pos, mat, _ = FRAMES[ObjType(objtype)]
  body = objid if owner is None else pick(getattr(m, owner)[:, None], objid)
  return pick(getattr(d, pos), objid), pick(getattr(d, mat), objid), body


def contact_force(m: Model, d: Data, contact_id: jax.Array, *, to_world_frame: bool) -> jax.Array:
  """Return force and torque (6,) of a contact slot on its second geom, at the contact's position; zero without a contact."""
  force = pick(contact_force_.local(m, d.efc_force, d.contact), contact_id)
  if not to_world_frame:
    return force
  frame = pick(d.contact.frame, contact_id)
  return jnp.concatenate([vector.mat_t_vec(frame, force[k : k + 3]) for k in (0, 3)])


class Contacts(NamedTuple):
  """Contacts of a world, one entry per slot. The entries of empty slots have no meaning, but their forces are zero."""

  active: jax.Array  # (ncon,) mask of contacts that have constraint rows
  geom: jax.Array  # (ncon, 2)
  dist: jax.Array  # (ncon,) [m], negative where the geoms penetrate
  pos: jax.Array  # (ncon, 3) [m]
  frame: jax.Array  # (ncon, 3, 3) axes in rows, the normal (from the first geom to the second) first
  force: jax.Array  # (ncon, 6) force [N] and torque [N m] on the second geom at pos, in the contact's frame
  force_world: jax.Array  # (ncon, 6) the same forces and torques in world axes


def contacts(m: Model, d: Data) -> Contacts:
  """Return all contacts with their forces. d is Data after `solve`."""
  c = d.contact
  force = _contact_forces(m, d)
  turned = jnp.concatenate([vector.mat_t_vec(c.frame, force[:, k : k + 3]) for k in (0, 3)], axis=1)
  return Contacts(c.exclude == 0, c.geom, c.dist, c.pos, c.frame, force, turned)


def _contact_forces(m, d):
  if not m.plan.contact.ncon:
    return jnp.zeros((0, 6, d.qpos.shape[-1]), d.qpos.dtype)
  return contact_force_.local(m, d.efc_force, d.contact)


def net_contact_force(m: Model, d: Data) -> jax.Array:
  """Return the sum of contact forces on every body (nbody, 6): force [N], then torque [N m] about its centre of mass.

  The result is in world axes. It is the `xfrc_applied` of equal effect; the entry of the world body is zero. d is Data after
  `solve`.
  """
  if not m.plan.contact.ncon:
    return jnp.zeros_like(d.xfrc_applied)
  wrench = contact_force_.on_bodies(m, _contact_forces(m, d), d.contact, d.subtree_com)
  torque, force = spatial.split(wrench)
  arm = d.xipos - rows(d.subtree_com, m.body_rootid)
  return jnp.concatenate([force, torque - vector.cross(arm, force)], axis=1)


def geom_distance(m: Model, d: Data, distmax: jax.Array, *, geom1: int, geom2: int) -> tuple[jax.Array, jax.Array]:
  """Return the signed distance [m] of two geoms, and the segment (6,) between them."""
  found = distance.distance(m, d.geom_xpos, d.geom_xmat, distmax, geom1, geom2)
  return found.dist, found.fromto


def read_sensor(m: Model, d: Data, time: jax.Array, *, sensor: int, interp: int) -> jax.Array:
  """Return the values (n,) of a sensor at a time minus its delay."""
  adr = slice(m.sensor_adr[sensor], m.sensor_adr[sensor] + m.sensor_dim[sensor])
  buffer = _Buffer(*(getattr(m, f"sensor_{k}")[sensor] for k in ("history", "historyadr", "dim", "delay")))
  return _read(d, d.sensordata[adr], buffer, time, interp)


def read_ctrl(m: Model, d: Data, time: jax.Array, *, actuator: int, interp: int) -> jax.Array:
  """Return the controls (n,) of an actuator at a time minus its delay."""
  adr = slice(m.actuator_ctrladr[actuator], m.actuator_ctrladr[actuator] + m.actuator_ctrlnum[actuator])
  buffer = _Buffer(*(getattr(m, f"actuator_{k}")[actuator] for k in ("history", "historyadr", "ctrlnum", "delay")))
  return _read(d, d.ctrl[adr], buffer, time, interp)


class _Buffer(NamedTuple):
  """Delay line: number of samples and interpolation order, address of its start, length of a sample, delay [s]."""

  history: np.ndarray
  adr: int
  dim: int
  delay: jax.Array


def _read(d, now, b, time, interp):
  samples, own = b.history
  if not samples:
    return now
  p = history.plan(*(np.array([x]) for x in (samples, b.adr, b.dim)))
  return history.read(p, d.history, (time - b.delay)[None], np.array([own if interp < 0 else interp]))[0]


def multi_ray(
  m: Model, d: Data, pnt: jax.Array, vec: jax.Array, *, geomgroup: tuple[int, ...], flg_static: bool,
  bodyexclude: tuple[int, ...],
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
  """Return lengths (n,) and ids (n,) of the first geoms that rays (n, 3) from a point (3,) meet."""
  hit = ray.cast(m, d.geom_xpos, d.geom_xmat, pnt[None], vec, geomgroup, flg_static, bodyexclude)
  return hit.dist, hit.geom


def local_to_global(world_pos, world_quat, local_pos, local_quat) -> tuple[jax.Array, jax.Array]:
  """Return position (3,) [m] and rotation matrix (3, 3) in the world of a pose that is given in a body's frame.

  Args:
    world_pos: position of the body (3,) [m].
    world_quat: orientation of the body (4,).
    local_pos: position in the body's frame (3,) [m].
    local_quat: orientation in the body's frame (4,).

  Source: `mj_local2Global`.
  """
  pos, turn, shift, inner = (strong(jnp.asarray(x))[..., None] for x in (world_pos, world_quat, local_pos, local_quat))
  return (pos + quat.rotate(turn, shift))[..., 0], quat.to_mat(quat.mul(turn, inner))[..., 0]
