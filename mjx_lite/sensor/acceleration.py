"""Sensors of the acceleration stage, except the contact sensor.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact_force
from mjx_lite.math import vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.enums import TrnType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import rows
from mjx_lite.sensor import frames
from mjx_lite.sensor.group import Part, split
from mjx_lite.sensor.position import FrameTables, first_active
from mjx_lite.sensor.site_volume import volume


def accelerometer(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the acceleration of a site relative to free fall, in the frame of the site [m/s^2]."""
  return vector.mat_t_vec(frames.orientation(d, t.object), frames.acceleration(d, t.object).linear)


def force(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the force on the site's body from its parent body, in the site's frame [N]."""
  return vector.mat_t_vec(frames.orientation(d, t.object), frames.wrench(d, t.object).linear)


def torque(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the torque about the site on the site's body from its parent body, in the site's frame [N m]."""
  return vector.mat_t_vec(frames.orientation(d, t.object), frames.wrench(d, t.object).angular)


def frame_linacc(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the acceleration of a frame relative to free fall [m/s^2]."""
  return frames.acceleration(d, t.object).linear


def frame_angacc(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the angular acceleration of a frame [rad/s^2]."""
  return frames.acceleration(d, t.object).angular


def limit_force(m: Model, d: Data, row: np.ndarray) -> jax.Array:
  """Return the force of an active limit; zero where the limit is not active."""
  return first_active(d.efc_D > 0, d.efc_force, row) if (row >= 0).any() else jnp.zeros((len(row), 1), d.qpos.dtype)


def plan_tendon_actuators(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Plan the sums over the first outputs of the actuators on each tendon."""
  on = np.flatnonzero(s["actuator_trntype"] == TrnType.TENDON)
  mask = np.zeros((len(ids), s["nout"]))
  for i, tendon in enumerate(s["sensor_objid"][ids]):
    mask[i, s["actuator_outadr"][on[s["actuator_trnid"][on, 0] == tendon]]] = 1
  return [Part(ids, plan_sum(mask))]


def tendon_actuator_force(m: Model, d: Data, t: SumPlan) -> jax.Array:
  """Return the sum of the forces of the actuators on a tendon [N]."""
  return mask_sum(t, d.actuator_force)


class TouchTables(NamedTuple):
  """Contact slots of the bodies of n sites of one shape, padded to the longest list."""

  shape: int
  site: np.ndarray  # (n,)
  slot: np.ndarray  # (n, k)
  sign: np.ndarray  # (n, k) factor that turns the normal away from the body: 1 or -1; 0 is padding
  body: np.ndarray | None  # (n,) bodies of the sites if the slots' geoms are chosen at run time, which then decide `sign`


def plan_touch(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors by the shape of their site."""
  out = []
  for (shape,), members in split(ids, s["site_type"][s["sensor_objid"][ids]]):
    site = s["sensor_objid"][members].astype(int)
    lists, all_slots = [], np.arange(len(s["slot_body"]))
    for b in s["site_bodyid"][site]:
      if s["slot_chosen"]:
        lists.append((all_slots, 0 * all_slots))
        continue
      slot = np.flatnonzero((s["slot_body"] == b).any(axis=1))
      lists.append((slot, np.where(s["slot_body"][slot, 1] == b, -1, 1)))
    body = s["site_bodyid"][site] if s["slot_chosen"] else None
    out.append(Part(members, TouchTables(shape, site, *padded(lists), body)))
  return out


def padded(lists: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Pad lists of slots, and of their signs, to arrays (n, k)."""
  longest = max((len(x) for x, _ in lists), default=0)
  slot, sign = np.zeros((len(lists), longest), int), np.zeros((len(lists), longest), int)
  for i, (x, y) in enumerate(lists):
    slot[i, : len(x)], sign[i, : len(x)] = x, y
  return slot, sign


def touch(m: Model, d: Data, t: TouchTables) -> jax.Array:
  """Return the sum of the normal forces whose rays away from the body hit the site [N].

  Gradient: that of the forces; the choice of the forces that count has none.
  """
  if not t.slot.shape[1]:
    return jnp.zeros((len(t.site), 1), d.qpos.dtype)
  c = d.contact
  normal_force = rows(contact_force.local(m, d.efc_force, c)[:, 0], t.slot)
  sign = t.sign[..., None]
  if t.body is not None:
    first, second = (jnp.asarray(m.geom_bodyid)[c.geom[:, side]] == t.body[:, None, None] for side in (0, 1))
    sign = jnp.where(second, -1, jnp.where(first, 1, 0))
  ray = rows(c.frame[:, 0], t.slot) * sign[:, :, None]
  meets = volume.hit(t.shape, volume.gather(m, d, t.site[:, None]), rows(c.pos, t.slot), ray)
  counts = (sign != 0) & (normal_force > 0) & meets
  return jnp.sum(jnp.where(counts, normal_force, 0), axis=1)
