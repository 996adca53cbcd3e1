"""Steps in substeps of controlled error.

Tests: tests/transforms/test_adaptive.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.integrate import adaptive, rk4
from mjx_lite.math import vector
from mjx_lite.model import callbacks as user
from mjx_lite.model import status
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.status import Warning
from mjx_lite.model.types import STATE, Data, Model
from mjx_lite.ops.loops import saved
from mjx_lite.pipeline.advance import advance_state, record_history
from mjx_lite.pipeline.dynamics import forward, forward_without_sensors
from mjx_lite.pipeline.reset import check_acc, check_state

_MOVED = tuple(k for k in STATE if k not in ("time", "history"))
# fields that change between substeps: the state, its rates, and other fields that `advance_state` reads
_CARRIED = ("time", *_MOVED, "status", "qacc", "act_dot", "actuator_length", "actuator_velocity", "ten_length", "ten_J")


def adaptive_step(m: Model, d: Data, *, accuracy: adaptive.Adaptive, callbacks: Callbacks | None = None) -> Data:
  """Advance the state by one timestep in substeps of controlled error, whatever the model's integrator.

  All fields but the state are as after `step`. Controls and other inputs are constant during the step. Contact parameters that
  are bounded by the timestep keep that bound.

  Args:
    m: the model.
    d: the Data.
    accuracy: error control of the substeps; static.
    callbacks: the user's functions in the loop; static.
  """
  if m.opt.is_discrete:
    raise ValueError("adaptive steps are not defined for the discrete integrator, whose equations depend on the timestep.")
  m = user.attach(m, callbacks)
  d = check_state(m, d)
  d = forward(m, d)
  d = check_acc(m, d)
  after, missed, sizes = adaptive.move(_substep, accuracy, m, d, {k: getattr(d, k) for k in _CARRIED})
  saved(sizes)  # the mark is read, not the result
  found = status.merge(d.status, after["status"])
  moved = {k: after[k] for k in _MOVED}
  return d.replace(
    history=record_history(m, d), time=d.time + m.opt.timestep, status=status.mark(found, Warning.SUBSTEPS, missed), **moved
  )


def _substep(m: Model, d: Data, state: dict[str, Any], h: jax.Array, tolerance: float) -> tuple[dict[str, Any], jax.Array]:
  """Return the state after a substep of length h (W,) [s], and its estimated error (W,) in units of the tolerance."""
  base = d.replace(**state)

  def pack(qvel, d):
    return jnp.concatenate([qvel, d.qacc, d.act_dot])

  def stage(carry, coefficients):
    rates, _ = carry
    i, fraction, mean = coefficients
    qvel, qacc, act_dot = jnp.split(vector.add(mean[k] * rates[k] for k in range(len(adaptive.ERROR))), [m.nv, 2 * m.nv])
    ahead = fraction * h
    at = m.replace(opt=m.opt.replace(timestep=ahead))
    moved = forward_without_sensors(m, advance_state(at, base.replace(act_dot=act_dot), qacc, qvel, base.history))
    rate = pack(rk4.position_rate(m, ahead * qvel, moved.qvel), moved)
    return (jax.lax.dynamic_update_index_in_dim(rates, rate, i, 0), {k: getattr(moved, k) for k in _CARRIED}), None

  first = pack(base.qvel, base)
  rates = jnp.concatenate([first[None], jnp.zeros((3, *first.shape), first.dtype)])
  dtype = first.dtype
  stages = np.arange(1, 4), jnp.asarray(adaptive.FRACTION, dtype), jnp.asarray(adaptive.MEAN, dtype)
  (rates, after), _ = jax.lax.scan(stage, (rates, state), stages)
  off = h * vector.add(float(e) * x for e, x in zip(adaptive.ERROR, rates, strict=True))
  size = 1 + jnp.abs(jnp.concatenate([jnp.zeros_like(base.qvel), base.qvel, base.act]))
  return after, jnp.max(jnp.abs(off) / size, axis=0, initial=0) / tolerance
