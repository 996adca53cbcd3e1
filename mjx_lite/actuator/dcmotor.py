"""DC motors with an on-board controller, winding current and temperature, cogging, and friction by bristles.

Parameters: gain (R, K, alpha, T0, kp, ki, kd, Vmax); dynamics (te, dimax, RT, C, Ta, sigma0, sigma1, slew, Imax); bias (cogging
amplitude, poles, phase, F_C, F_S, v_S). The states that a motor has are fixed when the model is put.

Tests: tests/actuator/test_actuator_trajectories.py, tests/math/test_quotient.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import setpoint
from mjx_lite.actuator.laws import Rates
from mjx_lite.actuator.plan import BRISTLE, CURRENT, INTEGRAL, TEMPERATURE, Group
from mjx_lite.actuator.state import State
from mjx_lite.math import safe, trig
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows, rows_or_zero


def _columns(prm, actuators, *columns):
  prm = rows(prm, actuators)
  return [prm[:, c] for c in columns]


def _slot(m, group, which):
  """Return the addresses of a state of the group's motors, and the indices of the motors that have the state."""
  adr = m.plan.actuator.slot[group.actuators, which]
  return adr, np.flatnonzero(adr >= 0)


def _voltage(m, group, state):
  """Compute the terminal voltage: the controller's, limited by the supply, plus the raw input. Source: `dcmotorVoltage`."""
  controlled = (m.plan.actuator.input[group.actuators, :3] >= 0).any(axis=1)
  position, velocity, feed, volts = setpoint.inputs(m, group.actuators, state.ctrl)
  if not controlled.any():
    return volts
  R, K, kp, ki, kd, vmax = _columns(m.actuator_gainprm, group.actuators, 0, 1, 4, 5, 6, 7)
  speed, integral = rows(state.velocity, group.outputs), rows_or_zero(state.act, _slot(m, group, INTEGRAL)[0])
  torque = kp * (position - rows(state.length, group.outputs)) + kd * (velocity - speed) + ki * integral + feed
  command = safe.divide(R, K) * torque + K * speed
  command = jnp.where(vmax > 0, jnp.clip(command, -vmax, vmax), command)
  return jnp.where(controlled[:, None], command, 0) + volts


def _resistance(m, group, state):
  """Compute the resistance of the winding at its temperature."""
  R, alpha, reference = _columns(m.actuator_gainprm, group.actuators, 0, 2, 3)
  adr, has = _slot(m, group, TEMPERATURE)
  if not has.size:
    return R
  (ambient,) = _columns(m.actuator_dynprm, group.actuators, 4)
  warm = R * (1 + alpha * (rows_or_zero(state.act, adr) + ambient - reference))
  return jnp.where((adr >= 0)[:, None], warm, R)


def dynamics(m: Model, group: Group, state: State) -> Rates:
  """Compute the rates of the integral of the position error, of temperature, bristles and current.

  Source: `mj_fwdActuation`.
  """
  speed, resistance, volts = rows(state.velocity, group.outputs), _resistance(m, group, state), _voltage(m, group, state)
  (K,) = _columns(m.actuator_gainprm, group.actuators, 1)
  steady = safe.divide(volts - K * speed, resistance)
  current, with_current = _slot(m, group, CURRENT)
  rates = []

  adr, has = _slot(m, group, INTEGRAL)
  if has.size:
    error = rows(state.ctrl, group.first_ctrl[has]) - rows(state.length, group.outputs[has])
    (limit,) = _columns(m.actuator_dynprm, group.actuators[has], 8)
    rates.append((adr[has], setpoint.hold_integral(error, rows(state.act, adr[has]), limit)))

  adr, has = _slot(m, group, TEMPERATURE)
  if has.size:
    amps = jnp.where((current[has] >= 0)[:, None], rows_or_zero(state.act, current[has]), rows(steady, has))
    outside, capacity = _columns(m.actuator_dynprm, group.actuators[has], 2, 3)
    heat = rows(resistance, has) * amps * amps - rows(state.act, adr[has]) / outside
    rates.append((adr[has], heat / capacity))

  adr, has = _slot(m, group, BRISTLE)
  if has.size:
    v = rows(speed, has)
    rates.append((adr[has], _bristle_rate(m, group.actuators[has], v) * rows(state.act, adr[has]) + v))

  if with_current.size:
    te, limit = _columns(m.actuator_dynprm, group.actuators[with_current], 0, 1)
    adr = current[with_current]
    rate = (rows(steady, with_current) - rows(state.act, adr)) / te
    rates.append((adr, jnp.where(limit > 0, jnp.clip(rate, -limit, limit), rate)))
  return rates


def _bristle_rate(m, actuators, speed):
  """Compute the rate a <= 0 at which bristles yield at a speed. Source: `mj_lugreStribeck`.

  Gradient: zero at rest.
  """
  (stiffness,) = _columns(m.actuator_dynprm, actuators, 5)
  coulomb, static, scale = _columns(m.actuator_biasprm, actuators, 3, 4, 5)
  ratio = jnp.clip(safe.quotient(speed, scale), -40, 40)  # beyond this range exp(-ratio^2) is 0
  friction = coulomb + (static - coulomb) * jnp.exp(-ratio * ratio)
  return -safe.quotient(stiffness * jnp.abs(speed), friction)


def next_(m: Model, group: Group, act: jax.Array, act_dot: jax.Array, velocity: jax.Array) -> Rates:
  """Compute the states after a step: exact for the current and the bristles, clamped for the integral.

  Source: `mj_nextActivation`.
  """
  h, out = m.opt.timestep, []
  adr, has = _slot(m, group, INTEGRAL)
  if has.size:
    (limit,) = _columns(m.actuator_dynprm, group.actuators[has], 8)
    z = rows(act, adr[has]) + h * rows(act_dot, adr[has])
    out.append((adr[has], jnp.where(limit > 0, jnp.clip(z, -limit, limit), z)))

  adr, has = _slot(m, group, BRISTLE)
  if has.size:
    speed = rows(velocity, group.outputs[has])
    ah = _bristle_rate(m, group.actuators[has], speed) * h
    out.append((adr[has], jnp.exp(ah) * rows(act, adr[has]) + h * _relative_growth(ah) * speed))

  adr, has = _slot(m, group, CURRENT)
  if has.size:
    te = _columns(m.actuator_dynprm, group.actuators[has], 0)[0]
    te = jnp.maximum(te, safe.smallest(te.dtype))
    out.append((adr[has], rows(act, adr[has]) - rows(act_dot, adr[has]) * te * jnp.expm1(-h / te)))
  return out


def _relative_growth(x):
  """Compute `(exp(x) - 1) / x` for x <= 0, smooth through zero."""
  small = x > -1e-3
  y = jnp.where(small, -1, x)
  return jnp.where(small, 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))), jnp.expm1(y) / y)


def gain(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the electrical torque of the current, or of the voltage where there is no current state.

  Source: `mj_fwdActuation`.
  """
  (K,) = _columns(m.actuator_gainprm, group.actuators, 1)
  stateful = _slot(m, group, CURRENT)[0] >= 0
  if stateful.all():
    return K * rows(state.gain_input, group.actuators)
  direct = safe.quotient(K, _resistance(m, group, state)) * _voltage(m, group, state)
  return jnp.where(stateful[:, None], K * rows(state.gain_input, group.actuators), direct)


def bias(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the torque of the back electromotive force where there is no current state. Source: `mj_fwdActuation`."""
  (K,) = _columns(m.actuator_gainprm, group.actuators, 1)
  direct = -safe.quotient(K, _resistance(m, group, state)) * K * rows(state.velocity, group.outputs)
  return jnp.where((_slot(m, group, CURRENT)[0] >= 0)[:, None], 0, direct)


def cogging_slope(m: Model, group: Group, length: jax.Array) -> jax.Array:
  """Compute the derivative (n, W) of the cogging force with respect to the length (n, W)."""
  amplitude, poles, phase = _columns(m.actuator_biasprm, group.actuators, 0, 1, 2)
  return amplitude * poles * trig.cos_sin(poles * length + phase)[0]


def mechanical(m: Model, group: Group, state: State, act_dot: jax.Array) -> jax.Array:
  """Compute cogging and friction (n, W), which no limit of the actuator reduces. Source: `mj_fwdActuation`."""
  amplitude, poles, phase = _columns(m.actuator_biasprm, group.actuators, 0, 1, 2)
  force = amplitude * trig.cos_sin(poles * rows(state.length, group.outputs) + phase)[1]
  adr, has = _slot(m, group, BRISTLE)
  if not has.size:
    return force
  stiffness, damping = _columns(m.actuator_dynprm, group.actuators[has], 5, 6)
  friction = stiffness * rows(state.act, adr[has]) + damping * rows(act_dot, adr[has])
  return put(force, has, rows(force, has) - friction)
