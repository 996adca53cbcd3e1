"""Actuator forces from controls, activations, lengths and velocities.

Tests: tests/actuator/test_actuator_trajectories.py, tests/actuator/test_servos.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import dcmotor, history, setpoint, so3, transmission
from mjx_lite.actuator.activation import disabled, next_activation
from mjx_lite.actuator.state import State, UserLaws
from mjx_lite.actuator.table import BIASES, DYNAMICS, GAINS
from mjx_lite.math.tree import mask_sum, plan_sum
from mjx_lite.model.enums import MAXVAL, BiasType, DynType, GainType, TrnType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import assemble_rows, join, put, rows, rows_or_zero


class Actuation(NamedTuple):
  """Result of `actuation`."""

  act_dot: jax.Array
  force: jax.Array
  qfrc: jax.Array


def effective_ctrl(m: Model, time, ctrl, past) -> tuple[jax.Array, jax.Array]:
  """Return the controls (nu, W) that take effect at a time, and the mask (W,) of worlds with a bad control.

  Controls with a delay are read from the history. Controls are clamped to their range. If any control of a world then is NaN,
  infinite or beyond 1e10, all controls of that world are set to zero.

  Source: `mj_fwdActuation`.
  """
  ctrl = history.delayed_ctrl(m, past, time, ctrl)
  if m.opt.use_clampctrl:
    ctrl = _clamp(ctrl, m.actuator_ctrlrange, m.actuator_ctrllimited)
  bad = jnp.any(~(jnp.abs(ctrl) <= MAXVAL), axis=0)
  return jnp.where(bad, 0, ctrl), bad


def actuation(m: Model, ctrl, act, length, velocity, moment, qfrc_gravcomp, user: UserLaws) -> Actuation:
  """Compute the rates of activations, the output forces, and the joint force of these outputs.

  The order is C's: limits of setpoint rates, activation dynamics, gain times input plus bias, limits of tendons, of the
  outputs, mechanical forces of motors, limits of joints.

  Args:
    m: the model.
    ctrl: (nu, W) from `effective_ctrl`.
    act: (na, W).
    length: (nout, W) of the outputs.
    velocity: (nout, W) of the outputs.
    moment: (nJmom, W) packed.
    qfrc_gravcomp: (nv, W).
    user: results of the user's functions.

  Source: `mj_fwdActuation`.
  """
  p = m.plan.actuator
  force, act_dot, state = _without_limits(m, ctrl, act, length, velocity, user)
  off = disabled(m)
  force = _limit(m, _limit_tendons(m, force))
  for group in p.biases:
    if group.kind == BiasType.DCMOTOR:
      more = jnp.where(off[group.actuators][:, None], 0, dcmotor.mechanical(m, group, state, act_dot))
      force = put(force, group.outputs, rows(force, group.outputs) + more)
  return Actuation(act_dot, force, _to_joints(m, moment, force, qfrc_gravcomp))


def _without_limits(m, ctrl, act, length, velocity, user, hold_integrals=False):
  """Compute the output forces (nout, W) before any limit and without the motors' mechanical part, act_dot, and the laws' state.

  With `hold_integrals`, the rates of the controllers' integrals have no derivative.
  """
  p = m.plan.actuator
  ctrl, slewed = setpoint.slew(m, ctrl, act)
  state = State(ctrl=ctrl, act=act, length=length, velocity=velocity, act_used=act, gain_input=act, user=user)
  act_dot = act
  if m.na:
    rates = []
    for group in p.dynamics:
      is_constant = hold_integrals and group.kind == DynType.PID
      rates += DYNAMICS[group.kind](m, group, jax.lax.stop_gradient(state) if is_constant else state)
    act_dot = jnp.broadcast_to(assemble_rows([*slewed, *rates], m.na, act), act.shape)
    state = state._replace(act_used=_early(m, state, act_dot))
  state = state._replace(gain_input=rows_or_zero(join([ctrl, state.act_used]) if m.na else ctrl, p.source))
  force = assemble_rows([(group.outputs, GAINS[group.kind](m, group, state)) for group in p.gains], m.nout, length)
  if p.biases:
    force = force + assemble_rows([(group.outputs, BIASES[group.kind](m, group, state)) for group in p.biases], m.nout, length)
  off = disabled(m)
  return jnp.where(off[p.owner][:, None], 0, force) if off.any() else force, act_dot, state


def velocity_slope(m: Model, ctrl, act, length, velocity, qfrc_actuator, user: UserLaws) -> jax.Array:
  """Compute the derivative (nout, W) of each output's force with respect to its velocity.

  The derivative is zero where a limit of the actuator, its tendon or its joint determines the force. Of the bristles of a
  motor, only the damping counts, not the change of their yield rate. If a control is bad, C takes some slopes at the controls
  as given and some at the zeros in effect; here all slopes are taken at the zeros.

  Args:
    m: the model.
    ctrl: (nu, W) from `effective_ctrl`.
    act: (na, W).
    length: (nout, W) of the outputs.
    velocity: (nout, W) of the outputs.
    qfrc_actuator: (nv, W).
    user: results of the user's functions, taken as constants, as in C.

  Source: `mjd_actuator_vel`.
  """
  free = lambda v: _without_limits(m, ctrl, act, length, v, user)[0]  # noqa: E731
  force, slope = jax.jvp(free, (velocity,), (jnp.ones_like(velocity),))
  slope = jnp.where(_is_limited(m, force), 0, slope)
  for group in m.plan.actuator.biases:
    if group.kind == BiasType.DCMOTOR:
      bristles = jnp.maximum(rows(m.actuator_dynprm, group.actuators)[:, 6], 0)
      whole = rows(slope, group.outputs) - jnp.where(disabled(m)[group.actuators][:, None], 0, bristles)
      slope = put(slope, group.outputs, whole)
  return jnp.where(_joint_is_limited(m, qfrc_actuator), 0, slope)


def length_slope(m: Model, ctrl, act, length, velocity, qfrc_actuator, user: UserLaws) -> jax.Array:
  """Compute the derivative (nout, W) of each output's force with respect to its length.

  The derivative is zero where a limit determines the force. The arguments are those of `velocity_slope`.

  Source: `mjd_effActuation`.
  """
  free = lambda x: _without_limits(m, ctrl, act, x, velocity, user, hold_integrals=True)[0]  # noqa: E731
  force, slope = jax.jvp(free, (length,), (jnp.ones_like(length),))
  slope = jnp.where(_is_limited(m, force), 0, slope)
  for group in m.plan.actuator.biases:
    if group.kind == BiasType.DCMOTOR:
      cogging = dcmotor.cogging_slope(m, group, rows(length, group.outputs))
      whole = rows(slope, group.outputs) + jnp.where(disabled(m)[group.actuators][:, None], 0, cogging)
      slope = put(slope, group.outputs, whole)
  return jnp.where(_joint_is_limited(m, qfrc_actuator), 0, slope)


def _is_limited(m, force):
  """Return the mask (nout, W) of outputs at a limit of their actuator or tendon, from the force without limits."""
  owner = m.plan.actuator.owner
  tendons = _limit_tendons(m, force)
  at_limit = tendons != force
  limited = m.actuator_forcelimited.astype(bool)
  triple = limited & (m.actuator_gaintype == GainType.SO3)
  single = (limited & ~triple)[owner]
  if single.any():
    bounds = rows(m.actuator_forcerange, owner)
    at_limit = at_limit | (single[:, None] & ((tendons <= bounds[:, 0]) | (tendons >= bounds[:, 1])))
  if triple.any():
    out = np.flatnonzero(triple[owner])
    at_limit = put(at_limit, out, so3.size(rows(tendons, out)) >= rows(m.actuator_forcerange, owner[out])[:, 1])
  return at_limit


def _joint_is_limited(m, qfrc_actuator):
  """Return the mask (nout, W) of outputs on joints whose actuator force is at its limit."""
  owner = m.plan.actuator.owner
  on_joint = np.isin(m.actuator_trntype, (TrnType.JOINT, TrnType.JOINTINPARENT))
  joint = np.where(on_joint, m.actuator_trnid[:, 0], 0)[owner]
  limited = on_joint[owner] & m.jnt_actfrclimited[joint].astype(bool) if m.njnt else on_joint[owner]
  if not limited.any():
    return np.zeros((len(owner), 1), bool)
  bounds, total = rows(m.jnt_actfrcrange, joint), rows(qfrc_actuator, m.jnt_dofadr[joint])
  return limited[:, None] & ((total <= bounds[:, 0]) | (total >= bounds[:, 1]))


def _early(m, state, act_dot):
  """Return act, with the activations of the next step for actuators with `actearly`."""
  early = m.actuator_actearly.astype(bool)[m.plan.actuator.act_owner]
  if not early.any():
    return state.act
  return jnp.where(early[:, None], next_activation(m, state.act, act_dot, state.velocity), state.act)


def _limit_tendons(m, force):
  """Scale the forces on a tendon so that their sum is in its range; forces with sum zero do not change."""
  p = m.plan.actuator
  if not p.tendon.size:
    return force
  on_tendon = rows(force, p.tendon_out)
  same = p.tendon[:, None] == p.tendon
  total, bounds = mask_sum(plan_sum(same), on_tendon), rows(m.tendon_actfrcrange, p.tendon)
  bound = jnp.clip(total, bounds[:, 0], bounds[:, 1])
  outside = (bound != total) & (total != 0)
  return put(force, p.tendon_out, on_tendon * jnp.where(outside, bound / jnp.where(outside, total, 1), 1))


def _limit(m, force):
  """Clamp the outputs of limited actuators to their range; of an actuator with three outputs, clamp the norm."""
  limited = m.actuator_forcelimited.astype(bool)
  triple = limited & (m.actuator_gaintype == GainType.SO3)
  owner = m.plan.actuator.owner
  force = _clamp(force, rows(m.actuator_forcerange, owner), (limited & ~triple)[owner])
  if not triple.any():
    return force
  out = np.flatnonzero(triple[owner])
  return put(force, out, so3.limit(m, np.flatnonzero(triple), rows(force, out)))


def _to_joints(m, moment, force, qfrc_gravcomp):
  """Compute the joint force of outputs and of gravity compensation by actuators, within the limits of the joints."""
  qfrc = transmission.to_joints(m, moment, force)
  if m.ngravcomp:
    qfrc = qfrc + jnp.where(m.jnt_actgravcomp[m.dof_jntid].astype(bool)[:, None], qfrc_gravcomp, 0)
  first = m.jnt_dofadr[m.dof_jntid] == np.arange(m.nv)  # C clamps the first dof of the joint
  limited = m.jnt_actfrclimited[m.dof_jntid].astype(bool) & first
  return _clamp(qfrc, rows(m.jnt_actfrcrange, m.dof_jntid), limited)


def _clamp(x, bounds, limited):
  """Clip the rows that are limited to bounds (n, 2, W)."""
  if not np.any(limited):
    return x
  return jnp.where(np.asarray(limited, bool)[:, None], jnp.clip(x, bounds[:, 0], bounds[:, 1]), x)
