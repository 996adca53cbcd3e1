"""Reset of worlds, by the user or because their state is bad.

Tests: tests/model/test_status.py, tests/io/test_io.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import vector
from mjx_lite.model import status
from mjx_lite.model.enums import MAXVAL
from mjx_lite.model.status import Warning
from mjx_lite.model.types import INPUTS, STATE, Data, Model
from mjx_lite.ops import linear
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import (
  plastic,
)
from mjx_lite.tendon import force as tendon_force


def check_state(m: Model, d: Data) -> Data:
  """Mark worlds with a bad state, and reset them unless autoreset is off. Source: `mj_checkPos`, `mj_checkVel`."""
  d = d.replace(status=status.clear_bits(d.status))
  bad_pos, bad_vel = _bad(d.qpos), _bad(d.qvel)
  s = status.mark(d.status, Warning.BADQPOS, bad_pos)
  d = d.replace(status=status.mark(s, Warning.BADQVEL, bad_vel & ~bad_pos))
  return _reset_where(m, d, bad_pos | bad_vel)


def check_acc(m: Model, d: Data) -> Data:
  """Mark worlds with a bad acceleration, and reset them unless autoreset is off. Source: `mj_checkAcc`.

  Differs: C runs forward again after the reset and integrates. Here a reset world rests for this step, and the next step is its
  first step; status and time are C's. A loop around forward would cost every step what one step in a million needs
  (benchmarks/log.md).
  """
  bad = _bad(d.qacc)
  return _reset_where(m, d.replace(status=status.mark(d.status, Warning.BADQACC, bad)), bad)


def _bad(x):
  if not len(x):
    return jnp.zeros(x.shape[1:], bool)
  return linear.materialize(vector.fold(jnp.logical_or, ~(jnp.abs(x) <= MAXVAL), 0))


_RESET_FIELDS = (*STATE, *INPUTS, "qacc", "qfrc_smooth", "qfrc_constraint")


def _reset_where(m: Model, d: Data, bad: jax.Array) -> Data:
  """Reset the state, the inputs and the accelerations of the worlds where the mask `bad` (W,) is true."""
  if not m.opt.use_autoreset:
    return d
  d = d.replace(status=status.mark(d.status, Warning.RESET, bad))
  start = reset(m, d)
  return d.replace(**{k: jnp.where(bad, getattr(start, k), getattr(d, k)) for k in _RESET_FIELDS})


def reset(m: Model, d: Data) -> Data:
  """Reset state and inputs to their initial values. Computed fields and counters become zero, constants stay.

  Source: `mj_resetData`.
  """

  def full(x, like):
    return jnp.broadcast_to(x, like.shape).astype(like.dtype)

  zero = jax.tree.map(jnp.zeros_like, d)
  c = d.contact
  contact_ = zero.contact.replace(dim=c.dim, geom=c.geom, efc_address=c.efc_address, exclude=c.exclude * 0 - 1)
  mocap = m.body_mocapid >= 0
  order = m.body_mocapid[mocap].argsort()
  return zero.replace(
    qpos=full(m.qpos0, d.qpos), plastic=full(tendon_force.initial(m, plastic.initial(m)), d.plastic),
    contact=contact_, efc_type=d.efc_type, efc_id=d.efc_id,
    mocap_pos=full(m.body_pos[mocap][order], d.mocap_pos), mocap_quat=full(m.body_quat[mocap][order], d.mocap_quat),
    eq_active=full(jnp.asarray(m.eq_active0, bool)[:, None], d.eq_active),
    ctrl=full(m.plan.actuator.ctrl0[:, None], d.ctrl), history=full(sensor.start(m, m.opt.timestep), d.history),
  )  # fmt: skip
