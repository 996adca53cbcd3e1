"""Muscles: activation dynamics, active and passive force.

Parameters of gain and bias: range (2), force, scale, lmin, lmax, vmax, fpmax, fvmax; of the dynamics: the two time
constants and the width of the transition between them. Lengths and velocities are divided by the optimal length.
"""

import jax
import jax.numpy as jnp

from mjx_lite.actuator.laws import Rates
from mjx_lite.actuator.plan import Group
from mjx_lite.actuator.state import State
from mjx_lite.math import safe
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


def dynamics(m: Model, group: Group, state: State) -> Rates:
  """Compute the rate of activation, which follows excitation faster up than down. Source: `mju_muscleDynamics`.

  Gradient: that of the slower branch where excitation equals activation; half the one-sided one at an excitation bound.
  """
  prm, act = rows(m.actuator_dynprm, group.actuators), rows(state.act, group.last_act)
  excess = jnp.clip(rows(state.ctrl, group.first_ctrl), 0, 1) - act
  shape = 0.5 + 1.5 * jnp.clip(act, 0, 1)
  up, down, width = prm[:, 0] * shape, prm[:, 1] / shape, prm[:, 2]
  hard = width < safe.MINVAL
  weight = jnp.where(hard, jnp.where(excess > 0, 1, 0), _sigmoid(excess / jnp.where(hard, 1, width) + 0.5))
  return [(group.last_act, safe.quotient(excess, down + (up - down) * weight))]


def _sigmoid(x):
  """Compute a quintic step from 0 to 1 on [0, 1]. Source: `mju_sigmoid`."""
  x = jnp.clip(x, 0, 1)
  return x * x * x * (3 * x * (2 * x - 5) + 10)


def gain(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the active force, which pulls: peak force times activation times a curve of length times a curve of velocity.

  Source: `mju_muscleGain`.
  Gradient: continuous, except at the edges of the pieces of the velocity curve with fvmax <= 1 and of a length curve without
  width; there it is that of the lower piece.
  """
  prm = rows(m.actuator_gainprm, group.actuators)
  lmin, lmax, vmax, fvmax = (prm[:, i] for i in (4, 5, 6, 8))
  optimal, length = _normalised(m, group, state, prm)
  velocity = safe.quotient(rows(state.velocity, group.outputs), optimal * vmax)
  y = fvmax - 1
  rise = fvmax - safe.divide((y - velocity) ** 2, y)
  curve = jnp.where(velocity <= 0, (velocity + 1) ** 2, jnp.where(velocity <= y, rise, fvmax))
  curve = jnp.where(velocity <= -1, 0, curve)
  return -_peak(m, group, prm) * _length_curve(length, lmin, lmax) * curve * rows(state.gain_input, group.actuators)


def _length_curve(length, lmin, lmax):
  """Compute a bump of four parabolas over [lmin, lmax] with its maximum at 1. Source: `mju_muscleGainLength`."""
  is_short = length <= 1
  end, width = jnp.where(is_short, lmin, lmax), 0.5 * jnp.where(is_short, 1 - lmin, lmax - 1)
  outer = jnp.where(is_short, length <= 1 - width, length > 1 + width)
  x = safe.divide(jnp.where(outer, length - end, length - 1), width)
  curve = jnp.where(outer, 0.5 * x * x, 1 - 0.5 * x * x)
  return jnp.where((lmin <= length) & (length <= lmax), curve, 0)


def bias(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the passive force beyond the optimal length, first quadratic, then linear. Source: `mju_muscleBias`.

  Gradient: continuous.
  """
  prm = rows(m.actuator_biasprm, group.actuators)
  lmax, fpmax = prm[:, 5], prm[:, 7]
  _, length = _normalised(m, group, state, prm)
  x = safe.quotient(jnp.maximum(length - 1, 0), 0.5 * (lmax - 1))
  curve = jnp.where(x <= 1, 0.5 * jnp.where(x <= 1, x, 0) ** 2, x - 0.5)
  return -_peak(m, group, prm) * fpmax * curve


def _normalised(m, group, state, prm):
  """Return the optimal length, and the length in units of the optimal length."""
  lengthrange = rows(m.actuator_lengthrange, group.outputs)
  optimal = safe.quotient(lengthrange[:, 1] - lengthrange[:, 0], prm[:, 1] - prm[:, 0])
  return optimal, prm[:, 0] + safe.quotient(rows(state.length, group.outputs) - lengthrange[:, 0], optimal)


def _peak(m, group, prm):
  """Return the peak force: as given, or scale / acc0 with the acceleration acc0 that a unit force makes."""
  scaled = safe.quotient(prm[:, 3], rows(m.actuator_acc0, group.outputs))
  return jnp.where(prm[:, 2] < 0, scaled, prm[:, 2])
