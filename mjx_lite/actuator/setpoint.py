"""Common parts of on-board controllers: inputs, and limits of the rate of a setpoint and of an integral.

Tests: tests/actuator/test_actuator_trajectories.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import circle
from mjx_lite.actuator.laws import Rates
from mjx_lite.actuator.plan import SLEW
from mjx_lite.model.enums import DynType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows, rows_or_zero


def slew(m: Model, ctrl: jax.Array, act: jax.Array) -> tuple[jax.Array, Rates]:
  """Limit the rate of setpoints; return the controls (nu, W), and the rates of the states that store the setpoints.

  The first control of an actuator is limited, whatever its meaning.

  Source: `slewLimit`.
  """
  adr = m.plan.actuator.slot[:, SLEW]
  actuators = np.flatnonzero(adr >= 0)
  if not actuators.size:
    return ctrl, []
  column = np.where(m.actuator_dyntype[actuators] == DynType.PID, 1, 7)
  prm = m.actuator_dynprm
  step = rows(prm.reshape(-1, prm.shape[-1]), prm.shape[1] * actuators + column) * m.opt.timestep
  previous = rows(act, adr[actuators])
  first = m.actuator_ctrladr[actuators]
  wanted = circle.wrap(m, actuators, rows(ctrl, first), previous)
  limited = jnp.where(step > 0, jnp.clip(wanted, previous - step, previous + step), wanted)
  return put(ctrl, first, limited), [(adr[actuators], (limited - previous) / m.opt.timestep)]


def inputs(m: Model, actuators: np.ndarray, ctrl: jax.Array) -> list[jax.Array]:
  """Return the controls of actuators by meaning: position, velocity, feed-forward, voltage; absent ones are zero."""
  return [rows_or_zero(ctrl, adr) for adr in m.plan.actuator.input[actuators].T]


def hold_integral(error: jax.Array, integral: jax.Array, limit: jax.Array) -> jax.Array:
  """Return the rate of an integral that stops at its limits; a limit that is not positive is no limit."""
  high, low = (limit > 0) & (integral >= limit), (limit > 0) & (integral <= -limit)
  return jnp.where(high & (error > 0) | low & (error < 0), 0, error)
