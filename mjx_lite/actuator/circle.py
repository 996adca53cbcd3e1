"""Setpoints of rotational transmissions: a length and a length a turn further mean the same."""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator.plan import BALL_CIRCLE, NO_CIRCLE, SITE_CIRCLE
from mjx_lite.core.enums import GainType
from mjx_lite.core.select import put, rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe


def wrap(m: Model, who: np.ndarray, x: jax.Array, anchor: jax.Array) -> jax.Array:
  """Setpoints x (n, W) of the actuators `who`, each by its representative nearest to an anchor (n, W).

  Those of actuators that are no servo on a rotational transmission stay as they are.

  Source: `wrapSetpoint`.
  Gradient: the number of turns is constant.
  """
  round_ = np.flatnonzero(m.plan.actuator.circle[who] != NO_CIRCLE)
  if not round_.size:
    return x
  length = period(m, who[round_])
  some, to = rows(x, round_), rows(anchor, round_)
  turns = (some - to) / jnp.where(length > 0, length, 1)
  whole = jax.lax.stop_gradient(jnp.trunc(turns + jnp.copysign(0.5, turns)))  # half away from zero
  return put(x, round_, jnp.where(length > 0, some - length * whole, some))


def period(m: Model, who: np.ndarray) -> jax.Array:
  """Length of a turn (n, W or 1), 0 for those on no circle or whose parameters make them no servo. Source: `wrapPeriod`."""
  gear = rows(m.actuator_gear, m.actuator_outadr[who])
  kind = m.plan.actuator.circle[who][:, None]
  linear = jnp.any(gear[:, :3] != 0, axis=1)
  ball, site = safe.norm(gear[:, :3]), jnp.where(linear, 0, safe.norm(gear[:, 3:]))
  turn = 2 * jnp.pi * jnp.where(kind == BALL_CIRCLE, ball, jnp.where(kind == SITE_CIRCLE, site, 0))
  matched = rows(m.actuator_gainprm, who)[:, 0] == -rows(m.actuator_biasprm, who)[:, 1]
  return jnp.where((m.actuator_gaintype[who] == GainType.PID)[:, None] | matched, turn, 0)
