"""Orientation servos: one actuator with three outputs, along the geodesic to a target orientation.

The lengths of the outputs are the rotation vector of the current orientation. The velocities are the local angular velocity.

Tests: tests/actuator/test_servos.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator.plan import Group
from mjx_lite.actuator.state import State
from mjx_lite.math import quat, safe
from mjx_lite.model.enums import CtrlChart
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, put, rows


def _blocks(x, adr, width):
  """Return the blocks (n, width, W) of consecutive rows that start at adr."""
  return rows(x, adr[:, None] + np.arange(width))


def _target(m, group, state):
  """Return the target quaternions (n, 4, W), from a control or a state that is a rotation vector or a quaternion."""
  stateful = m.actuator_actnum[group.actuators] > 0
  as_quat = ~stateful & (m.actuator_ctrlspec[group.actuators] == CtrlChart.QUAT)
  adr = m.actuator_ctrladr[group.actuators]
  direct, given = np.flatnonzero(~stateful & ~as_quat), np.flatnonzero(as_quat)
  stored = np.flatnonzero(stateful)
  parts = [
    quat.from_rotvec(_blocks(state.ctrl, adr[direct], 3)),
    safe.normalize(_blocks(state.ctrl, adr[given], 4)),
    quat.from_rotvec(_blocks(state.act_used, m.actuator_actadr[group.actuators[stored]], 3)),
  ]
  index = (direct, given, stored)
  order = np.argsort(np.concatenate(index))
  return join([p for p, i in zip(parts, index, strict=True) if len(i)], order)


def gain(m: Model, group: Group, state: State) -> jax.Array:
  """Compute kp times the rotation vector from the current orientation to the target, in the local frame.

  Source: `mj_fwdActuation`.
  Gradient: one-sided at a target opposite to the orientation.
  """
  n = len(group.actuators)
  current = quat.from_rotvec(_blocks(state.length, m.actuator_outadr[group.actuators], 3))
  error = quat.sub(_target(m, group, state), current)
  force = rows(m.actuator_gainprm, group.actuators)[:, :1] * error
  return force.reshape(3 * n, force.shape[-1])


def bias(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the constant and damping force, with the same parameters for each output. Source: `mj_fwdActuation`."""
  prm = rows(m.actuator_biasprm, m.plan.actuator.owner[group.outputs])
  return prm[:, 0] + prm[:, 2] * rows(state.velocity, group.outputs)


def size(force: jax.Array) -> jax.Array:
  """Return the norm of the three forces of an actuator (3n, W), repeated for each of the three."""
  f = force.reshape(-1, 3, force.shape[-1])
  return jnp.broadcast_to(safe.norm(f)[:, None], f.shape).reshape(force.shape)


def limit(m: Model, actuators: np.ndarray, force: jax.Array) -> jax.Array:
  """Scale the forces (3n, W) of actuators to at most the upper end of their force range."""
  f = force.reshape(len(actuators), 3, force.shape[-1])
  size, most = safe.norm(f), rows(m.actuator_forcerange, actuators)[:, 1]
  over = size > most
  return (f * jnp.where(over, most / jnp.where(over, size, 1), 1)[:, None]).reshape(force.shape)


def reanchor(m: Model, group: Group, act: jax.Array) -> jax.Array:
  """Replace targets beyond half a rotation in the states (na, W) by the shorter equivalent rotation. Source: `mj_advance`."""
  actuators = group.actuators[m.actuator_actnum[group.actuators] > 0]
  if not actuators.size:
    return act
  adr = m.actuator_actadr[actuators][:, None] + np.arange(3)
  target = rows(act, adr)
  angle = safe.norm(target)
  rotations = jax.lax.stop_gradient(jnp.floor(angle / (2 * jnp.pi) + 0.5))
  beyond = angle > jnp.pi
  scale = jnp.where(beyond, 1 - 2 * jnp.pi * rotations / jnp.where(beyond, angle, 1), 1)
  new = target * scale[:, None]
  return put(act, adr.ravel(), new.reshape(adr.size, new.shape[-1]))
