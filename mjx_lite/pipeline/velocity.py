"""Stages that depend on positions and velocities.

Tests: tests/parity/test_stages.py, tests/parity/test_stages_alone.py.
"""

import jax.numpy as jnp

from mjx_lite.actuator import transmission as transmission_
from mjx_lite.constraint import adhesion
from mjx_lite.math import vector
from mjx_lite.model import callbacks as user
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.constraint import build_rows
from mjx_lite.smooth import (
  com,
  energy,
  fluid,
)
from mjx_lite.smooth import passive as passive_
from mjx_lite.smooth import rne as rne_
from mjx_lite.tendon import force as tendon_force
from mjx_lite.tendon import inertia as tendon_inertia
from mjx_lite.tendon import tendon as tendon_


def com_vel(m: Model, d: Data) -> Data:
  """Compute body velocities."""
  return d.replace(**com.com_vel(m, d.cdof, d.qvel)._asdict())


def passive(m: Model, d: Data) -> Data:
  """Compute passive forces."""
  f = passive_.passive(m, d.qpos, d.qvel, d.cdof, d.xipos, d.subtree_com, d.plastic)
  if m.ntendon:
    t = tendon_force.forces(m, d.ten_length, d.ten_velocity, d.ten_J, d.plastic)
    f = f._replace(spring=f.spring + t.spring, damper=f.damper + t.damper, passive=f.passive + t.spring + t.damper)
  d = d.replace(**{f"qfrc_{k}": x for k, x in f._asdict().items()})
  if not m.plan.fluid.exists or not m.opt.use_passive:
    d = d.replace(qfrc_fluid=jnp.zeros_like(d.qvel))
  else:
    drag = fluid.fluid(m, d.cdof, d.cvel, d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
    d = d.replace(qfrc_fluid=drag, qfrc_passive=d.qfrc_passive + drag)
  if m.plan.contact.adhesive:
    pull = adhesion.force(m, d.contact, d.cdof, d.subtree_com) if m.opt.use_passive else jnp.zeros_like(d.qvel)
    d = d.replace(qfrc_adhesion=pull, qfrc_passive=d.qfrc_passive + pull)
  if m.layout.callbacks.passive is None or not m.opt.use_passive:
    return d
  return d.replace(qfrc_passive=d.qfrc_passive + user.call(m, d, "passive", m.nv))


def rne(m: Model, d: Data, flg_acc: bool = False) -> Data:
  """Compute the bias force; with flg_acc, include the inertial forces of qacc, without armature."""
  if flg_acc:
    carried = rne_.rne_postconstraint(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel, d.qacc, jnp.zeros_like(d.cvel))
    return d.replace(qfrc_bias=vector.dot(d.cdof, carried.cfrc_int[m.dof_bodyid]))
  return d.replace(qfrc_bias=rne_.rne(m, d.cinert, d.cdof, d.cvel, d.cdof_dot, d.qvel))


def tendon_bias(m: Model, d: Data) -> Data:
  """Add the bias force of the tendons' armature."""
  if not m.plan.tendon_inertia.present:
    return d
  bias = tendon_inertia.bias(m, d.site_xpos, d.subtree_com, d.cvel, d.cdof_dot, d.qvel, d.ten_J)
  return d.replace(qfrc_bias=d.qfrc_bias + bias)


def energy_pos(m: Model, d: Data) -> Data:
  """Compute the potential energy."""
  return d.replace(energy=jnp.stack([energy.potential(m, d.qpos, d.xipos, d.ten_length, d.plastic), d.energy[1]]))


def energy_vel(m: Model, d: Data) -> Data:
  """Compute the kinetic energy."""
  return d.replace(energy=jnp.stack([d.energy[0], energy.kinetic(m, d.cinert, d.cdof, d.M, d.qvel)]))


def fwd_velocity(m: Model, d: Data) -> Data:
  """Compute everything that depends on positions and velocities only, constraint rows included."""
  return build_rows(m, velocities(m, d))[0]


def velocities(m: Model, d: Data) -> Data:
  """Compute velocities, passive forces and bias forces."""
  d = d.replace(actuator_velocity=transmission_.velocity(m, d.actuator_moment, d.qvel))
  if m.ntendon:
    d = d.replace(ten_velocity=tendon_.velocity(m, d.ten_J, d.qvel))
  d = com_vel(m, d)
  d = passive(m, d)
  d = rne(m, d)
  return tendon_bias(m, d)
