"""Sensors, and fields that only sensors and users read.

Tests: tests/sensor/test_sensors.py, tests/parity/test_wrenches.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact_force, equality, jacobian
from mjx_lite.model import status
from mjx_lite.model.enums import SensorType
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.constraint import equality_state
from mjx_lite.pipeline.velocity import energy_pos, energy_vel
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import (
  applied,
  momentum,
)
from mjx_lite.smooth import rne as rne_
from mjx_lite.tendon import force as tendon_force
from mjx_lite.tendon import inertia as tendon_inertia
from mjx_lite.tendon import tendon as tendon_


def subtree_vel(m: Model, d: Data) -> Data:
  """Compute velocities of the subtrees' centres of mass, and angular momenta about these centres."""
  return d.replace(**momentum.subtree_vel(m, d.cinert, d.cvel, d.subtree_com)._asdict())


def rne_postconstraint(m: Model, d: Data) -> Data:
  """Compute body accelerations relative to free fall, external and internal wrenches, all about the trees' centres of mass."""
  c = d.contact
  is_world = (np.arange(m.nbody) == 0)[:, None, None]
  ext = jnp.where(is_world, 0, applied.about_tree(m, d.xipos, d.subtree_com, d.xfrc_applied))
  if m.plan.contact.ncon:
    force = contact_force.local(m, d.efc_force, c)
    ext = ext + contact_force.on_bodies(m, force, c, d.subtree_com)
  if len(m.plan.rows.equality.point):
    ext = ext + equality.on_bodies(m, m.plan.rows.equality, equality_state(d), d.efc_force)
  if len(m.plan.tendon.every_tendon):
    ext = ext + tendon_.on_bodies(m, _tension(m, d), d.site_xpos, d.geom_xpos, d.geom_xmat, d.subtree_com)
  carried = rne_.rne_postconstraint(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel, d.qacc, ext)
  return d.replace(**carried._asdict())


def _tension(m: Model, d: Data) -> jax.Array:
  """Return the sum of all forces along the tendons (ntendon, W)."""
  out = tendon_force.tension(m, d.ten_length, d.ten_velocity, d.plastic) + jacobian.on_tendons(m, d.efc_force)
  if len(m.plan.tendon_force.actuator):
    out = out + tendon_force.actuator_tension(m, d.actuator_force)
  if m.plan.rows.equality.tendon.any():
    out = out + equality.on_tendons(m, m.plan.rows.equality, equality_state(d), d.efc_force)
  if m.plan.tendon_inertia.present:
    x = (d.site_xpos, d.subtree_com, d.cvel, d.cdof_dot, d.qvel, d.qacc, d.ten_J)
    out = out + tendon_inertia.tension(m, *x)
  return out


def sensor_pos(m: Model, d: Data) -> Data:
  """Compute sensors that need positions only, and the energies if sensors read them.

  Differs: the sensor of kinetic energy always reads the energy of the present state. With the flag ENERGY, C reads that of the
  previous call: `mj_fwdVelocity`, which marks the energy as old, comes after the sensors that need positions only.
  """
  d = _sensors(m, d, m.plan.sensor.position)
  if not m.opt.use_sensor or SensorType.E_POTENTIAL not in m.plan.sensor.energies:
    return d
  d = energy_pos(m, d)
  return energy_vel(m, d) if SensorType.E_KINETIC in m.plan.sensor.energies else d


def sensor_vel(m: Model, d: Data) -> Data:
  """Compute sensors that need velocities."""
  return _sensors(m, d, m.plan.sensor.velocity)


def sensor_acc(m: Model, d: Data) -> Data:
  """Compute sensors that need accelerations or forces."""
  return _sensors(m, d, m.plan.sensor.acceleration)


def _sensors(m: Model, d: Data, stage: sensor.StagePlan) -> Data:
  if not m.opt.use_sensor or not stage.groups:
    return d
  d = compute_for_sensors(m, d, stage)
  found = sensor.run(m, d, stage)
  if found.lost is not None:
    d = d.replace(status=status.mark(d.status, Warning.CCD, found.lost))
  return d.replace(sensordata=found.values)


def compute_for_sensors(m: Model, d: Data, stage: sensor.StagePlan) -> Data:
  """Compute fields that the sensors of a stage read and that no other stage needs."""
  d = subtree_vel(m, d) if "subtree_vel" in stage.needs else d
  return rne_postconstraint(m, d) if "rne_postconstraint" in stage.needs else d
