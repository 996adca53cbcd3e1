"""PID controllers.

Parameters: gain (ki), bias (0, -kp, -kv), dynamics (imax, slewmax). The terms of length and velocity are the affine bias; this
file has the terms of the inputs.
"""

import jax
import numpy as np

from mjx_lite.actuator import circle, setpoint
from mjx_lite.actuator.laws import Rates
from mjx_lite.actuator.plan import INTEGRAL, Group
from mjx_lite.actuator.state import State
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


def dynamics(m: Model, k: Group, x: State) -> Rates:
  """Return the rate of the integral of the position error. Source: `mj_fwdActuation`."""
  adr = m.plan.actuator.slot[k.who, INTEGRAL]
  has = np.flatnonzero(adr >= 0)
  if not has.size:
    return []
  who, adr = k.who[has], adr[has]
  length = rows(x.length, k.out[has])
  error = circle.wrap(m, who, rows(x.ctrl, k.ctrl[has]), length) - length
  return [(adr, setpoint.hold_integral(error, rows(x.act, adr), rows(m.actuator_dynprm, who)[:, 0]))]


def gain(m: Model, k: Group, x: State) -> jax.Array:
  """Compute the force of setpoints, feed-forward and integral. Source: `mj_fwdActuation`."""
  position, velocity, feed, _ = setpoint.inputs(m, k.who, x.ctrl)
  prm = rows(m.actuator_biasprm, k.who)
  position = circle.wrap(m, k.who, position, rows(x.length, k.out))
  integral = rows(m.actuator_gainprm, k.who)[:, 0] * rows(x.drive, k.who)
  return -prm[:, 1] * position - prm[:, 2] * velocity + feed + integral
