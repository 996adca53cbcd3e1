"""PID controllers.

Parameters: gain (ki), bias (0, -kp, -kv), dynamics (imax, slewmax). The terms of length and velocity are the affine bias; this
file has the terms of the inputs.

Tests: tests/actuator/test_actuator_trajectories.py.
"""

import jax
import numpy as np

from mjx_lite.actuator import circle, setpoint
from mjx_lite.actuator.laws import Rates
from mjx_lite.actuator.plan import INTEGRAL, Group
from mjx_lite.actuator.state import State
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


def dynamics(m: Model, group: Group, state: State) -> Rates:
  """Return the rate of the integral of the position error. Source: `mj_fwdActuation`."""
  adr = m.plan.actuator.slot[group.actuators, INTEGRAL]
  has = np.flatnonzero(adr >= 0)
  if not has.size:
    return []
  actuators, adr = group.actuators[has], adr[has]
  length = rows(state.length, group.outputs[has])
  error = circle.wrap(m, actuators, rows(state.ctrl, group.first_ctrl[has]), length) - length
  return [(adr, setpoint.hold_integral(error, rows(state.act, adr), rows(m.actuator_dynprm, actuators)[:, 0]))]


def gain(m: Model, group: Group, state: State) -> jax.Array:
  """Compute the force of setpoints, feed-forward and integral. Source: `mj_fwdActuation`."""
  position, velocity, feed, _ = setpoint.inputs(m, group.actuators, state.ctrl)
  prm = rows(m.actuator_biasprm, group.actuators)
  position = circle.wrap(m, group.actuators, position, rows(state.length, group.outputs))
  integral = rows(m.actuator_gainprm, group.actuators)[:, 0] * rows(state.gain_input, group.actuators)
  return -prm[:, 1] * position - prm[:, 2] * velocity + feed + integral
