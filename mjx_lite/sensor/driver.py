"""Evaluation of all sensors of a stage, with cutoffs, delays and intervals.

Tests: tests/sensor/test_sensors.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import history
from mjx_lite.model.enums import DataType, SensorType, Stage
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import join, put, rows, rows_or_zero
from mjx_lite.sensor.group import Marked, spread
from mjx_lite.sensor.table import NEEDS_RNE_POSTCONSTRAINT, NEEDS_SUBTREE_VEL, SENSORS


class Group(NamedTuple):
  """Sensors of one type that one call of the sensor function computes."""

  kind: int  # SensorType
  tables: Any


class LatePlan(NamedTuple):
  """The sensors of a stage that have a history."""

  ids: np.ndarray  # (n,)
  row: np.ndarray  # (n, widest) index of each value among the values of the stage, -1 is padding
  out: np.ndarray  # (n, widest) index of each value in sensordata, -1 is padding
  flat: np.ndarray  # entries of `row` without padding
  interp: np.ndarray  # (n,) order of interpolation
  buffers: history.HistoryPlan


class StagePlan(NamedTuple):
  """The sensors of a stage. Their values are in the order of the groups."""

  groups: tuple[Group, ...]
  out: np.ndarray  # index in sensordata of each value
  sensor: np.ndarray  # sensor of each value
  low: np.ndarray  # whether minus the cutoff is a lower bound
  high: np.ndarray  # whether the cutoff is an upper bound
  late: LatePlan
  needs: frozenset[str]  # stages computed on demand: 'subtree_vel', 'rne_postconstraint'


class SensorPlan(NamedTuple):
  """Plans of the sensors by stage, and the initial history."""

  position: StagePlan
  velocity: StagePlan
  acceleration: StagePlan
  energies: frozenset[int]  # types of the energy sensors in the model
  start_constant: np.ndarray  # (nhistory,) initial history of sensors: a constant
  start_steps: np.ndarray  # (nhistory,) and a multiple of the timestep, added to the constant


def plan(s: Mapping[str, Any], values: Mapping[str, np.ndarray], timestep: float) -> SensorPlan:
  """Group the sensors by stage and type.

  Args:
    s: static fields of the model, `slot_body` and `slot_geom` of the contact slots, `row_type` and `row_id` of the
      constraint rows.
    values: float fields at the time of `put_model`. They decide when the samples of a sensor with an interval were taken before
      the start.
    timestep: timestep at the time of `put_model` [s].
  """
  constant, steps = _start(s, values["sensor_interval"], timestep)
  position, velocity, acceleration = (_stage(s, stage) for stage in (Stage.POS, Stage.VEL, Stage.ACC))
  energies = {int(t) for t in s["sensor_type"]} & {int(SensorType.E_POTENTIAL), int(SensorType.E_KINETIC)}
  return SensorPlan(
    position=position,
    velocity=velocity,
    acceleration=acceleration,
    energies=frozenset(energies),
    start_constant=constant,
    start_steps=steps,
  )


def _stage(s, stage):
  in_stage = np.flatnonzero((s["sensor_needstage"] == stage) & np.isin(s["sensor_type"], list(SENSORS)))
  groups, ids = [], []
  for kind in np.unique(s["sensor_type"][in_stage]):
    for part in SENSORS[int(kind)].plan(dict(s), in_stage[s["sensor_type"][in_stage] == kind]):
      groups.append(Group(int(kind), part.tables))
      ids.append(part.ids)
  order = np.concatenate([np.zeros(0, int), *ids]).astype(int)
  sensor = np.repeat(order, s["sensor_dim"][order])
  has_cutoff = ~np.isin(s["sensor_type"][sensor], (SensorType.CONTACT, SensorType.GEOMFROMTO))
  real, positive = (has_cutoff & (s["sensor_datatype"][sensor] == t) for t in (DataType.REAL, DataType.POSITIVE))
  needs = {
    name
    for name, kinds in (("subtree_vel", NEEDS_SUBTREE_VEL), ("rne_postconstraint", NEEDS_RNE_POSTCONSTRAINT))
    if np.isin(s["sensor_type"][in_stage], kinds).any()
  }
  out = spread(dict(s), order)
  return StagePlan(
    groups=tuple(groups),
    out=out,
    sensor=sensor,
    low=real,
    high=real | positive,
    late=_late(s, order, out),
    needs=frozenset(needs),
  )


def _late(s, order, out):
  ids = order[s["sensor_history"][order, 0] > 0]
  size, dim = s["sensor_history"][ids, 0], s["sensor_dim"][ids]
  buffers = history.plan(size, s["sensor_historyadr"][ids], dim)
  column = np.arange(buffers.value.shape[2])
  out_index = np.where(column < dim[:, None], s["sensor_adr"][ids, None] + column, -1)
  number = {int(p): i for i, p in enumerate(out)}
  row = np.array([[number.get(int(p), -1) for p in line] for line in out_index], int).reshape(out_index.shape)
  return LatePlan(ids=ids, row=row, out=out_index, flat=row[row >= 0], interp=s["sensor_history"][ids, 1], buffers=buffers)


def _start(s, interval, timestep):
  """Return the initial history of the sensors: a constant and a multiple of the timestep. Source: `mj_resetData`."""
  constant, steps = np.zeros(s["nhistory"]), np.zeros(s["nhistory"])
  for i in np.flatnonzero(s["sensor_history"][:, 0] > 0):
    n, first, (period, phase) = s["sensor_history"][i, 0], s["sensor_historyadr"][i], interval[i]
    constant[first + 1] = n - 1
    if period > 0:
      before = phase if phase else -period
      constant[first] = before
      steps[first + 2 : first + 2 + n] = np.ceil((before - (n - 1 - np.arange(n)) * period) / timestep)
    else:
      steps[first] = -1
      steps[first + 2 : first + 2 + n] = np.arange(n) - n
  return constant, steps


def start(m: Model, timestep: jax.Array) -> jax.Array:
  """Return the history (nhistory, W) of actuators and sensors before the first step, for a timestep (W,) [s]."""
  p = m.plan.sensor
  constant, steps = jnp.asarray(p.start_constant, m.layout.dtype), jnp.asarray(p.start_steps, m.layout.dtype)
  return history.start(m, timestep) + constant[:, None] + steps[:, None] * timestep


def values(m: Model, d: Data, p: StagePlan) -> Marked:
  """Return the values (n, W) of all sensors of a stage after the cutoff, and the worlds where a search ended at its limit.

  Source: `mj_computeSensor`.
  Gradient: zero beyond the cutoff.
  """
  parts = [SENSORS[g.kind].run(m, d, g.tables) for g in p.groups]
  lost = [y.lost for y in parts if isinstance(y, Marked) and y.lost is not None]
  parts = [y.values if isinstance(y, Marked) else y for y in parts]
  x = join([y.reshape(-1, y.shape[-1]) for y in parts])
  cutoff = rows(m.sensor_cutoff, p.sensor)
  on = cutoff > 0
  high = jnp.where(on & p.high[:, None], cutoff, jnp.inf)
  x = jnp.clip(x, jnp.where(on & p.low[:, None], -cutoff, -jnp.inf), high)
  return Marked(x, jnp.any(jnp.stack(jnp.broadcast_arrays(*lost)), axis=0) if lost else None)


def run(m: Model, d: Data, p: StagePlan) -> Marked:
  """Return sensordata (nsensordata, W) with the values of a stage, and the worlds where a search ended at its limit.

  A sensor with a delay is read from its history. A sensor with an interval is measured when its next time is due, and read
  from its history otherwise.

  Source: `mj_sensorPos`, `mj_sensorVel`, `mj_sensorAcc`.
  """
  (x, lost), late = values(m, d, p), p.late
  if len(late.ids):
    delay, interval = rows(m.sensor_delay, late.ids), rows(m.sensor_interval, late.ids)[:, 0]
    past = history.read(late.buffers, d.history, d.time - delay, late.interp)
    waits = (delay > 0) | (interval > 0) & ~_is_due(late, d.history, interval, d.time)
    now = rows_or_zero(x, late.row)
    read = jnp.where(waits[:, None], past, now).reshape(-1, now.shape[-1])
    x = put(x, late.flat, rows(read, np.flatnonzero(late.row >= 0)))
  return Marked(put(d.sensordata, p.out, x), lost)


def _is_due(late, past, interval, time):
  """Return whether each sensor measures now (n, W); a sensor without an interval always does."""
  user = rows(past, late.buffers.cursor - 1)
  return ~(interval > 0) | (user + interval <= time)


def record(m: Model, d: Data, past: jax.Array, p: StagePlan) -> jax.Array:
  """Return the history with the present values of the sensors of a stage recorded. Source: `mj_advance`."""
  late = p.late
  if not len(late.ids):
    return past
  delay, interval = rows(m.sensor_delay, late.ids), rows(m.sensor_interval, late.ids)[:, 0]
  due = _is_due(late, past, interval, d.time)
  fresh, shown = rows_or_zero(values(m, d, p).values, late.row), rows_or_zero(d.sensordata, late.out)
  x = jnp.where((delay > 0)[:, None], fresh, shown)
  past = history.insert(late.buffers, past, d.time, x, due)
  user = rows(past, late.buffers.cursor - 1)
  return put(past, late.buffers.cursor - 1, jnp.where(due & (interval > 0), user + interval, user))
