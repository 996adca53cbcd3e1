"""Setpoints of rotational transmissions: lengths that differ by a full rotation are equivalent.

Tests: tests/actuator/test_servos.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator.plan import BALL_CIRCLE, NO_CIRCLE, SITE_CIRCLE
from mjx_lite.math import safe
from mjx_lite.model.enums import GainType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows


def wrap(m: Model, actuators: np.ndarray, x: jax.Array, anchor: jax.Array) -> jax.Array:
  """Replace setpoints x (n, W) of actuators by the equivalent values nearest to an anchor (n, W).

  Setpoints of actuators that are no servo on a rotational transmission do not change.

  Source: `wrapSetpoint`.
  Gradient: the number of full rotations is constant.
  """
  on_circle = np.flatnonzero(m.plan.actuator.circle[actuators] != NO_CIRCLE)
  if not on_circle.size:
    return x
  length = period(m, actuators[on_circle])
  setpoint, near = rows(x, on_circle), rows(anchor, on_circle)
  rotations = (setpoint - near) / jnp.where(length > 0, length, 1)
  whole = jax.lax.stop_gradient(jnp.trunc(rotations + jnp.copysign(0.5, rotations)))  # round half away from zero
  return put(x, on_circle, jnp.where(length > 0, setpoint - length * whole, setpoint))


def period(m: Model, actuators: np.ndarray) -> jax.Array:
  """Return the length (n, W or 1) of a full rotation. Source: `wrapPeriod`.

  The length is 0 for actuators on no circle, and for actuators whose parameters make them no servo.
  """
  gear = rows(m.actuator_gear, m.actuator_outadr[actuators])
  kind = m.plan.actuator.circle[actuators][:, None]
  linear = jnp.any(gear[:, :3] != 0, axis=1)
  ball, site = safe.norm(gear[:, :3]), jnp.where(linear, 0, safe.norm(gear[:, 3:]))
  rotation = 2 * jnp.pi * jnp.where(kind == BALL_CIRCLE, ball, jnp.where(kind == SITE_CIRCLE, site, 0))
  matched = rows(m.actuator_gainprm, actuators)[:, 0] == -rows(m.actuator_biasprm, actuators)[:, 1]
  return jnp.where((m.actuator_gaintype[actuators] == GainType.PID)[:, None] | matched, rotation, 0)
