"""Delay lines: ring buffers of past samples, with interpolation between the samples.

A buffer lies in `Data.history` as [user, cursor, times (n), values (n, dim)]; the cursor is the index of the newest sample. All
buffers are handled at once, padded to the longest. A sample is found by comparing times, not by counting from the cursor, so
the order of the samples in memory does not matter.

Tests: tests/actuator/test_actuator_trajectories.py, tests/actuator/test_actuator_start.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows, rows_or_zero

HOLD, LINEAR, CUBIC = range(3)  # interpolation between samples


class HistoryPlan(NamedTuple):
  """Addresses of buffers in the history; padded entries have address 0 and are not valid."""

  size: np.ndarray  # (n,) samples of a buffer
  cursor: np.ndarray  # (n,)
  time: np.ndarray  # (n, longest)
  value: np.ndarray  # (n, longest, widest)
  next: np.ndarray  # (n, longest) next index in the ring
  valid: np.ndarray  # (n, longest)
  valid_value: np.ndarray  # (n, longest, widest)


def plan(size: np.ndarray, adr: np.ndarray, dim: np.ndarray) -> HistoryPlan:
  """Build the addresses of the buffers that start at adr (n,) and hold size (n,) samples of dim (n,) numbers."""
  sample, column = np.arange(max(size, default=0)), np.arange(max(dim, default=0))
  size, adr, dim = (np.asarray(x, int)[:, None] for x in (size, adr, dim))
  valid = sample < size
  valid_value = valid[..., None] & (column < dim[..., None])
  value = (adr + 2 + size + sample * dim)[..., None] + column
  return HistoryPlan(
    size=size[:, 0], cursor=adr[:, 0] + 1, time=np.where(valid, adr + 2 + sample, 0), value=np.where(valid_value, value, 0),
    next=np.where(valid, (sample + 1) % np.maximum(size, 1), 0), valid=valid, valid_value=valid_value,
  )  # fmt: skip


def initial(p: HistoryPlan, nhistory: int, values: np.ndarray) -> np.ndarray:
  """Return the history before the first step as (nhistory, 2): a constant and a multiple of the timestep.

  The samples are those of the steps before time zero.

  Args:
    p: the buffers; all other entries of the history are zero.
    nhistory: size of the history.
    values: (n, widest) value of all samples of a buffer.

  Source: `mj_resetData`.
  """
  out = np.zeros((nhistory, 2))
  out[p.cursor, 0] = p.size - 1
  out[p.time[p.valid], 1] = (np.arange(p.valid.shape[1]) - p.size[:, None])[p.valid]
  out[p.value[p.valid_value], 0] = np.broadcast_to(values[:, None], p.value.shape)[p.valid_value]
  return out


def _tolerance(t: jax.Array) -> jax.Array | float:
  """Return the difference below which times are equal: MuJoCo's tolerance in 64 bits, a multiple of round-off in 32 bits."""
  eps = float(jnp.finfo(t.dtype).eps)
  return safe.MINVAL if eps < safe.MINVAL else 8 * eps * jnp.maximum(jnp.abs(t), 1)


def _latest(times, among):
  """Return the mask of the sample with the largest time among the samples in `among`; empty if `among` is empty."""
  return among & (times == jnp.max(jnp.where(among, times, -jnp.inf), axis=1, keepdims=True))


def _earliest(times, among):
  return among & (times == jnp.min(jnp.where(among, times, jnp.inf), axis=1, keepdims=True))


def read(p: HistoryPlan, history: jax.Array, t: jax.Array, interp: np.ndarray) -> jax.Array:
  """Read the values (n, widest, W) of the buffers at the times t (n, W).

  Before the oldest sample, the value is that of the oldest; after the newest sample, that of the newest. The slope of the cubic
  at a sample is that between the sample's two neighbours, and zero at the ends of the buffer.

  Source: `mju_historyRead`.
  Gradient: with respect to time, zero for a hold, else that of the piece in which t lies.
  """
  times, values = rows(history, p.time), rows(history, p.value)
  t = t[:, None]
  before = p.valid[..., None] & (times < t)
  after = p.valid[..., None] & ~(times < t)

  def sample(at):
    time = jnp.sum(jnp.where(at, times, 0), axis=1)
    return jnp.any(at, axis=1)[:, None], time[:, None], jnp.sum(jnp.where(at[:, :, None], values, 0), axis=1)

  at_lo, at_hi = _latest(times, before), _earliest(times, after)
  (has_lo, t_lo, lo), (has_hi, t_hi, hi) = sample(at_lo), sample(at_hi)
  between = has_lo & has_hi
  dt = jnp.where(between, t_hi - t_lo, 1)
  alpha = jnp.where(between, (t - t_lo) / dt, 0)
  out = lo
  if (interp == LINEAR).any():
    out = jnp.where((interp == LINEAR)[:, None, None], lo + alpha * (hi - lo), out)
  if (interp == CUBIC).any():
    has_first, t_first, first = sample(_latest(times, before & ~at_lo))
    has_last, t_last, last = sample(_earliest(times, after & ~at_hi))
    slope_lo = jnp.where(has_first & between, (hi - first) / jnp.where(has_first & between, t_hi - t_first, 1), 0)
    slope_hi = jnp.where(has_last & between, (last - lo) / jnp.where(has_last & between, t_last - t_lo, 1), 0)
    out = jnp.where((interp == CUBIC)[:, None, None], _hermite(alpha, dt, lo, hi, slope_lo, slope_hi), out)
  eps = _tolerance(t)
  use_hi = ~has_lo | has_hi & (t_hi - t < eps)
  use_lo = ~has_hi | has_lo & (t - t_lo <= eps)
  return jnp.where(use_hi, hi, jnp.where(use_lo, lo, out))


def _hermite(x, dt, lo, hi, slope_lo, slope_hi):
  """Evaluate the cubic on [0, 1] with given end values and slopes."""
  y = 1 - x
  return y * y * (1 + 2 * x) * lo + x * x * (1 + 2 * y) * hi + x * y * dt * (y * slope_lo - x * slope_hi)


def insert(p: HistoryPlan, history: jax.Array, time: jax.Array, values: jax.Array, where: jax.Array | None = None) -> jax.Array:
  """Record values (n, widest, W) at a time (W,) in the buffers where `where` (n, W) holds, or in all; return the history.

  A sample of the same time is overwritten. A newer sample replaces the oldest sample, and so does a sample older than all. A
  sample in between drops the oldest sample and shifts the samples before it.

  Source: `mju_historyInsert`.
  """
  cursor, times, stored = (rows(history, i) for i in (p.cursor, p.time, p.value))
  valid, size = p.valid[..., None], p.size[:, None]
  older = valid & (times < time)
  count = jnp.sum(older, axis=1).astype(times.dtype)
  found = jnp.any(valid & ~older & (times - time < _tolerance(time)), axis=1)
  append = (count == size) & ~found
  between = ~found & ~append & (count > 0)
  # age: number of older samples, if all were in order
  age = (np.arange(p.time.shape[1])[:, None] - cursor[:, None] - 1) % size[:, None]
  target = jnp.where(found, count, jnp.where(between, count - 1, 0))
  write = valid & (age == target[:, None])
  move = valid & between[:, None] & (age < target[:, None])
  if where is not None:
    append, write, move = append & where, write & where[:, None], move & where[:, None]

  def following(adr):
    return rows(history, adr[np.arange(len(adr))[:, None], p.next])

  new_times = jnp.where(write & ~found[:, None], time, jnp.where(move, following(p.time), times))
  new = jnp.where(write[:, :, None], values[:, None], jnp.where(move[:, :, None], following(p.value), stored))
  new_cursor = jnp.where(append, (cursor + 1) % size, cursor)
  out = put(history, p.cursor, new_cursor)
  out = put(out, p.time[p.valid], _flat(new_times, p.valid))
  return put(out, p.value[p.valid_value], _flat(new, p.valid_value))


def _flat(x, mask):
  """Return the rows that a mask over all but the last axis selects."""
  return rows(x.reshape(-1, x.shape[-1]), np.flatnonzero(mask))


def start(m: Model, timestep: jax.Array) -> jax.Array:
  """Return the history (nhistory, W) before the first step, for a timestep (W,)."""
  constant, steps = jnp.asarray(m.plan.actuator.history0, m.layout.dtype).T
  return constant[:, None] + steps[:, None] * timestep


def delayed_ctrl(m: Model, history: jax.Array, time: jax.Array, ctrl: jax.Array) -> jax.Array:
  """Return the controls (nu, W); read those of actuators with a delay from the history. Source: `mj_readCtrl`."""
  p = m.plan.actuator
  if not len(p.delayed):
    return ctrl
  delay = rows(m.actuator_delay, p.delayed)
  old = read(p.history, history, time - delay, m.actuator_history[p.delayed, 1])
  is_ctrl = p.delayed_ctrl >= 0
  adr = p.delayed_ctrl[is_ctrl]
  late = jnp.broadcast_to((delay != 0)[:, None], old.shape)
  return put(ctrl, adr, jnp.where(_flat(late, is_ctrl), _flat(old, is_ctrl), rows(ctrl, adr)))


def record(m: Model, history: jax.Array, time: jax.Array, ctrl: jax.Array) -> jax.Array:
  """Record the controls of the step at time (W,), as given, in the history (nhistory, W). Source: `mj_advance`."""
  p = m.plan.actuator
  if not len(p.delayed):
    return history
  return insert(p.history, history, time, rows_or_zero(ctrl, p.delayed_ctrl))
