"""DC motors with an on-board controller, winding current and temperature, cogging, and friction by bristles.

Parameters: gain (R, K, alpha, T0, kp, ki, kd, Vmax); dynamics (te, dimax, RT, C, Ta, sigma0, sigma1, slew, Imax); bias (cogging
amplitude, poles, phase, F_C, F_S, v_S). The states that a motor has are fixed when the model is put.
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


def _columns(prm, who, *columns):
  prm = rows(prm, who)
  return [prm[:, c] for c in columns]


def _slot(m, k, which):
  """Return the addresses of a state of the group's motors, and the indices of the motors that have the state."""
  adr = m.plan.actuator.slot[k.who, which]
  return adr, np.flatnonzero(adr >= 0)


def _voltage(m, k, x):
  """Compute the terminal voltage: the controller's, limited by the supply, plus the raw input. Source: `dcmotorVoltage`."""
  controlled = (m.plan.actuator.input[k.who, :3] >= 0).any(axis=1)
  position, velocity, feed, volts = setpoint.inputs(m, k.who, x.ctrl)
  if not controlled.any():
    return volts
  R, K, kp, ki, kd, vmax = _columns(m.actuator_gainprm, k.who, 0, 1, 4, 5, 6, 7)
  speed, integral = rows(x.velocity, k.out), rows_or_zero(x.act, _slot(m, k, INTEGRAL)[0])
  torque = kp * (position - rows(x.length, k.out)) + kd * (velocity - speed) + ki * integral + feed
  drive = safe.divide(R, K) * torque + K * speed
  drive = jnp.where(vmax > 0, jnp.clip(drive, -vmax, vmax), drive)
  return jnp.where(controlled[:, None], drive, 0) + volts


def _resistance(m, k, x):
  """Compute the resistance of the winding at its temperature."""
  R, alpha, reference = _columns(m.actuator_gainprm, k.who, 0, 2, 3)
  adr, has = _slot(m, k, TEMPERATURE)
  if not has.size:
    return R
  (ambient,) = _columns(m.actuator_dynprm, k.who, 4)
  warm = R * (1 + alpha * (rows_or_zero(x.act, adr) + ambient - reference))
  return jnp.where((adr >= 0)[:, None], warm, R)


def dynamics(m: Model, k: Group, x: State) -> Rates:
  """Compute the rates of the integral of the position error, of temperature, bristles and current.

  Source: `mj_fwdActuation`.
  """
  speed, resistance, volts = rows(x.velocity, k.out), _resistance(m, k, x), _voltage(m, k, x)
  (K,) = _columns(m.actuator_gainprm, k.who, 1)
  steady = safe.divide(volts - K * speed, resistance)
  current, with_current = _slot(m, k, CURRENT)
  rates = []

  adr, has = _slot(m, k, INTEGRAL)
  if has.size:
    error = rows(x.ctrl, k.ctrl[has]) - rows(x.length, k.out[has])
    (limit,) = _columns(m.actuator_dynprm, k.who[has], 8)
    rates.append((adr[has], setpoint.hold_integral(error, rows(x.act, adr[has]), limit)))

  adr, has = _slot(m, k, TEMPERATURE)
  if has.size:
    amps = jnp.where((current[has] >= 0)[:, None], rows_or_zero(x.act, current[has]), rows(steady, has))
    outside, capacity = _columns(m.actuator_dynprm, k.who[has], 2, 3)
    heat = rows(resistance, has) * amps * amps - rows(x.act, adr[has]) / outside
    rates.append((adr[has], heat / capacity))

  adr, has = _slot(m, k, BRISTLE)
  if has.size:
    v = rows(speed, has)
    rates.append((adr[has], _bristle_rate(m, k.who[has], v) * rows(x.act, adr[has]) + v))

  if with_current.size:
    te, limit = _columns(m.actuator_dynprm, k.who[with_current], 0, 1)
    adr = current[with_current]
    rate = (rows(steady, with_current) - rows(x.act, adr)) / te
    rates.append((adr, jnp.where(limit > 0, jnp.clip(rate, -limit, limit), rate)))
  return rates


def _bristle_rate(m, who, speed):
  """Compute the rate a <= 0 at which bristles yield at a speed. Source: `mj_lugreStribeck`.

  Gradient: zero at rest.
  """
  (stiffness,) = _columns(m.actuator_dynprm, who, 5)
  coulomb, static, scale = _columns(m.actuator_biasprm, who, 3, 4, 5)
  ratio = jnp.clip(safe.quotient(speed, scale), -40, 40)  # beyond this range exp(-ratio^2) is 0
  friction = coulomb + (static - coulomb) * jnp.exp(-ratio * ratio)
  return -safe.quotient(stiffness * jnp.abs(speed), friction)


def next_(m: Model, k: Group, act: jax.Array, act_dot: jax.Array, velocity: jax.Array) -> Rates:
  """Compute the states after a step: exact for the current and the bristles, clamped for the integral.

  Source: `mj_nextActivation`.
  """
  h, out = m.opt.timestep, []
  adr, has = _slot(m, k, INTEGRAL)
  if has.size:
    (limit,) = _columns(m.actuator_dynprm, k.who[has], 8)
    z = rows(act, adr[has]) + h * rows(act_dot, adr[has])
    out.append((adr[has], jnp.where(limit > 0, jnp.clip(z, -limit, limit), z)))

  adr, has = _slot(m, k, BRISTLE)
  if has.size:
    speed = rows(velocity, k.out[has])
    ah = _bristle_rate(m, k.who[has], speed) * h
    out.append((adr[has], jnp.exp(ah) * rows(act, adr[has]) + h * _relative_growth(ah) * speed))

  adr, has = _slot(m, k, CURRENT)
  if has.size:
    te = _columns(m.actuator_dynprm, k.who[has], 0)[0]
    te = jnp.maximum(te, safe.smallest(te.dtype))
    out.append((adr[has], rows(act, adr[has]) - rows(act_dot, adr[has]) * te * jnp.expm1(-h / te)))
  return out


def _relative_growth(x):
  """Compute `(exp(x) - 1) / x` for x <= 0, smooth through zero."""
  small = x > -1e-3
  y = jnp.where(small, -1, x)
  return jnp.where(small, 1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))), jnp.expm1(y) / y)


def gain(m: Model, k: Group, x: State) -> jax.Array:
  """Compute the electrical torque of the current, or of the voltage where there is no current state.

  Source: `mj_fwdActuation`.
  """
  (K,) = _columns(m.actuator_gainprm, k.who, 1)
  stateful = _slot(m, k, CURRENT)[0] >= 0
  if stateful.all():
    return K * rows(x.drive, k.who)
  direct = safe.quotient(K, _resistance(m, k, x)) * _voltage(m, k, x)
  return jnp.where(stateful[:, None], K * rows(x.drive, k.who), direct)


def bias(m: Model, k: Group, x: State) -> jax.Array:
  """Compute the torque of the back electromotive force where there is no current state. Source: `mj_fwdActuation`."""
  (K,) = _columns(m.actuator_gainprm, k.who, 1)
  direct = -safe.quotient(K, _resistance(m, k, x)) * K * rows(x.velocity, k.out)
  return jnp.where((_slot(m, k, CURRENT)[0] >= 0)[:, None], 0, direct)


def cogging_slope(m: Model, k: Group, length: jax.Array) -> jax.Array:
  """Compute the derivative (n, W) of the cogging force with respect to the length (n, W)."""
  amplitude, poles, phase = _columns(m.actuator_biasprm, k.who, 0, 1, 2)
  return amplitude * poles * trig.cos_sin(poles * length + phase)[0]


def mechanical(m: Model, k: Group, x: State, act_dot: jax.Array) -> jax.Array:
  """Compute cogging and friction (n, W), which no limit of the actuator reduces. Source: `mj_fwdActuation`."""
  amplitude, poles, phase = _columns(m.actuator_biasprm, k.who, 0, 1, 2)
  force = amplitude * trig.cos_sin(poles * rows(x.length, k.out) + phase)[1]
  adr, has = _slot(m, k, BRISTLE)
  if not has.size:
    return force
  stiffness, damping = _columns(m.actuator_dynprm, k.who[has], 5, 6)
  friction = stiffness * rows(x.act, adr[has]) + damping * rows(act_dot, adr[has])
  return put(force, has, rows(force, has) - friction)
