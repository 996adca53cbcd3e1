"""Transmissions: lengths, moment arms and velocities of the actuators' outputs.

The moment matrix is stored packed, row by row of the outputs, as MuJoCo does (`actuator_moment`, nJmom entries).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import JointType
from mjx_lite.core.select import join, rows
from mjx_lite.core.types import Model
from mjx_lite.math import quat, safe, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum


class TransmissionPlan(NamedTuple):
  """Index tables, all by actuator output."""

  scalar: np.ndarray  # outputs on slide and hinge joints
  ball: np.ndarray  # outputs on ball joints
  ball_adr: np.ndarray  # (n, 4) qpos addresses of their quaternions
  free: np.ndarray  # outputs on free joints
  order: np.ndarray  # output -> row in the concatenation (scalar, ball, free)
  scalar_adr: np.ndarray  # qpos addresses of the scalar outputs
  entry_gear: np.ndarray  # (nJmom,) entry of the flattened gear
  entry_dof: np.ndarray  # (nJmom,)
  out_entry: SumPlan  # output <- entries
  dof_entry: SumPlan  # dof <- entries
  entry_out: np.ndarray  # (nJmom,)


class Transmission(NamedTuple):
  """Result of `transmission`."""

  length: jax.Array
  moment: jax.Array


def plan(s: dict[str, Any]) -> TransmissionPlan:
  """Index tables from the static fields of the model; the transmissions are joints."""
  nout = s["nout"]
  joint = np.zeros(nout, int)
  joint[s["actuator_outadr"]] = s["actuator_trnid"][:, 0]
  kind = s["jnt_type"][joint] if s["njnt"] else np.zeros(0, int)
  scalar = np.flatnonzero((kind == JointType.SLIDE) | (kind == JointType.HINGE))
  ball, free = np.flatnonzero(kind == JointType.BALL), np.flatnonzero(kind == JointType.FREE)
  order = np.zeros(nout, int)
  order[np.concatenate([scalar, ball, free])] = np.arange(nout)
  width = {JointType.BALL: 3, JointType.FREE: 6}
  out, dof, gear = [], [], []
  for o in range(nout):
    for k in range(width.get(JointType(int(kind[o])), 1)):
      out.append(o)
      dof.append(s["jnt_dofadr"][joint[o]] + k)
      gear.append(6 * o + k)
  out, dof, gear = (np.array(x, int) for x in (out, dof, gear))
  by_out, by_dof = np.zeros((nout, len(out))), np.zeros((s["nv"], len(out)))
  by_out[out, np.arange(len(out))] = 1
  by_dof[dof, np.arange(len(out))] = 1
  adr = s["jnt_qposadr"]
  return TransmissionPlan(
    scalar, ball, adr[joint[ball]][:, None] + np.arange(4), free, order, adr[joint[scalar]],
    gear, dof, plan_sum(by_out), plan_sum(by_dof), out,
  )  # fmt: skip


def transmission(m: Model, qpos: jax.Array) -> Transmission:
  """Lengths and packed moments.

  The length is gear times the joint's position; for a ball joint gear times its rotation vector; 0 for a free joint.

  Source: `mj_transmission`.
  """
  p: TransmissionPlan = m.plan.transmission
  scalar = rows(qpos, p.scalar_adr) * rows(m.actuator_gear, p.scalar)[:, 0]
  turn = quat.to_rotvec(safe.normalize(rows(qpos, p.ball_adr)))
  ball = vector.dot(turn, rows(m.actuator_gear, p.ball)[:, :3])
  length = join([scalar, ball, jnp.zeros((len(p.free), 1), qpos.dtype)], p.order)
  gear = m.actuator_gear.reshape(6 * m.nout, m.actuator_gear.shape[-1])
  return Transmission(length, rows(gear, p.entry_gear))


def velocity(m: Model, moment: jax.Array, qvel: jax.Array) -> jax.Array:
  """Velocity of the outputs: moment times qvel (nout, W)."""
  p: TransmissionPlan = m.plan.transmission
  return mask_sum(p.out_entry, moment * rows(qvel, p.entry_dof))


def to_joints(m: Model, moment: jax.Array, force: jax.Array) -> jax.Array:
  """Joint-space force (nv, W) of output forces (nout, W)."""
  p: TransmissionPlan = m.plan.transmission
  return mask_sum(p.dof_entry, moment * rows(force, p.entry_out))
