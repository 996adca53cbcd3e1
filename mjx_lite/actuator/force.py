"""Actuator force from control, length and velocity."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import MAXVAL, BiasType, GainType, JointType, TrnType
from mjx_lite.core.select import rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe
from mjx_lite.smooth import transmission


class Actuation(NamedTuple):
  """Result of `actuation`."""

  force: jax.Array
  qfrc: jax.Array
  bad_ctrl: jax.Array  # (W,) the whole control vector was taken as zero


def _fixed_gain(prm, length, velocity):
  return prm[:, 0]


def _affine(prm, length, velocity):
  return prm[:, 0] + prm[:, 1] * length + prm[:, 2] * velocity


def _no_bias(prm, length, velocity):
  return jnp.zeros_like(length)


# one law per kind: (parameters (n, 10, W), length, velocity) -> gain or bias (n, W)
GAINS = {GainType.FIXED: _fixed_gain, GainType.AFFINE: _affine}
BIASES = {BiasType.NONE: _no_bias, BiasType.AFFINE: _affine}


def actuation(m: Model, ctrl, length, velocity, moment, qfrc_gravcomp) -> Actuation:
  """Output forces and the joint force that they make.

  Controls are clamped to their range; if any then is NaN, infinite or beyond 1e10 all of the world's are taken as zero.
  The order is C's: gain times control plus bias, clamp of the output, then of the joint.

  Source: `mj_fwdActuation`.
  """
  if m.opt.use_clampctrl:
    ctrl = _clamp(ctrl, m.actuator_ctrlrange, m.actuator_ctrllimited)
  bad = jnp.any(~(jnp.abs(ctrl) <= MAXVAL), axis=0)
  ctrl = jnp.where(bad, 0, ctrl)
  ctrl = _on_circle(m, ctrl, length)

  gain = _by_kind(GAINS, m.actuator_gaintype, m.actuator_gainprm, length, velocity)
  bias = _by_kind(BIASES, m.actuator_biastype, m.actuator_biasprm, length, velocity)
  force = gain * ctrl + bias
  groups = np.clip(m.actuator_group, 0, 30)
  disabled = (m.opt.disableactuator >> groups) & 1
  force = jnp.where(((m.actuator_group >= 0) & (m.actuator_group <= 30) & (disabled == 1))[:, None], 0, force)
  force = _clamp(force, m.actuator_forcerange, m.actuator_forcelimited)

  qfrc = transmission.to_joints(m, moment, force)
  if m.ngravcomp:
    qfrc = qfrc + jnp.where(m.jnt_actgravcomp[m.dof_jntid].astype(bool)[:, None], qfrc_gravcomp, 0)
  first = m.jnt_dofadr[m.dof_jntid] == np.arange(m.nv)  # C clamps the first dof of the joint
  limited = m.jnt_actfrclimited[m.dof_jntid].astype(bool) & first
  return Actuation(force, _clamp(qfrc, rows(m.jnt_actfrcrange, m.dof_jntid), limited), bad)


def _by_kind(table, kind, prm, length, velocity):
  """Evaluate the laws that occur and select by kind."""
  out = None
  for t in np.unique(kind):
    value = table[type(next(iter(table)))(int(t))](prm, length, velocity)
    out = value if out is None else jnp.where((kind == t)[:, None], value, out)
  return out


def _clamp(x, bounds, limited):
  """Clip the rows that are limited to bounds (n, 2, W)."""
  if not np.any(limited):
    return x
  return jnp.where(np.asarray(limited, bool)[:, None], jnp.clip(x, bounds[:, 0], bounds[:, 1]), x)


def _on_circle(m, ctrl, length):
  """A position setpoint of a ball joint means the nearest of its representatives on the circle (MuJoCo 3.11)."""
  on_joint = np.isin(m.actuator_trntype, (TrnType.JOINT, TrnType.JOINTINPARENT))
  joint = np.where(on_joint, m.actuator_trnid[:, 0], 0)
  servo = on_joint & (m.actuator_gaintype == GainType.FIXED) & (m.actuator_biastype == BiasType.AFFINE)
  servo &= m.jnt_type[joint] == JointType.BALL
  if not servo.any():
    return ctrl
  period = 2 * jnp.pi * safe.norm(m.actuator_gear[:, :3])
  is_position = servo[:, None] & (m.actuator_gainprm[:, 0] == -m.actuator_biasprm[:, 1]) & (period > 0)
  turns = (ctrl - length) / jnp.where(period > 0, period, 1)
  whole = jax.lax.stop_gradient(jnp.trunc(turns + jnp.copysign(0.5, turns)))
  return jnp.where(is_position, ctrl - period * whole, ctrl)
