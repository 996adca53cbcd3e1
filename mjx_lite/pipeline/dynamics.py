"""Forward dynamics: the recipe of the stages.

Tests: tests/sensor/test_sensors.py, tests/transforms/test_step.py.
"""

from typing import Any, NamedTuple

from mjx_lite.constraint.rows import Rows
from mjx_lite.model import callbacks as user
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.enums import Stage
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.acceleration import smooth_acceleration, solve_rows
from mjx_lite.pipeline.actuation import apply_control, fwd_actuation
from mjx_lite.pipeline.constraint import build_rows, rebuild_rows
from mjx_lite.pipeline.metric import apply_free_gyro, convert_rows, effective_metric
from mjx_lite.pipeline.position import collision, mass_factor, poses_and_inertias, transmission
from mjx_lite.pipeline.sensors import sensor_acc, sensor_pos, sensor_vel
from mjx_lite.pipeline.velocity import energy_pos, energy_vel, velocities


class StageCache(NamedTuple):
  """Values that the stages of one step pass on besides Data."""

  factor: Any  # factor of M
  rows: Rows


def forward(
  m: Model, d: Data, *, skip_stage: int = Stage.NONE, skip_sensor: bool = False, callbacks: Callbacks | None = None
) -> Data:
  """Compute everything that the state and the inputs determine, without a change of time.

  Args:
    m: the model.
    d: the Data.
    skip_stage: Stage.POS if d already has all results that depend on positions, Stage.VEL if it has all results that depend
      on positions and velocities; static.
    skip_sensor: leave sensordata as it is; static.
    callbacks: the user's functions in the loop; static.

  Source: `mj_forwardSkip`.
  """
  m = user.attach(m, callbacks)
  d, cache = until_velocity(m, d, int(skip_stage), skip_sensor)
  d = apply_control(m, d) if m.opt.use_actuation else d
  d = fwd_actuation(m, d)
  d = accelerations(m, d, cache)
  return d if skip_sensor else sensor_acc(m, d)


def forward_without_sensors(m: Model, d: Data) -> Data:
  """Run forward without energies and sensors, which only the user reads."""
  d, cache = until_velocity(m, d, skip_sensor=True, energies=False)
  d = apply_control(m, d) if m.opt.use_actuation else d
  d = fwd_actuation(m, d)
  return accelerations(m, d, cache)


def until_velocity(
  m: Model, d: Data, skip_stage: int = Stage.NONE, skip_sensor: bool = False, energies: bool = True
) -> tuple[Data, StageCache]:
  """Compute everything that depends on positions and velocities, from the stage after `skip_stage` on."""
  energies = energies and m.opt.use_energy
  if skip_stage < Stage.POS:
    d, factor = poses_and_inertias(m, d)
    d = collision(m, d)
    d = transmission(m, d)
    d = d if skip_sensor else sensor_pos(m, d)
    d = energy_pos(m, d) if energies else d
  else:
    factor = mass_factor(m, d)
  if skip_stage >= Stage.VEL:
    d, rows = rebuild_rows(m, d)
    return d, StageCache(factor, rows)
  d = velocities(m, d)
  d, rows = build_rows(m, d, factor)
  d = d if skip_sensor else sensor_vel(m, d)
  return (energy_vel(m, d) if energies else d), StageCache(factor, rows)


def accelerations(m: Model, d: Data, cache: StageCache) -> Data:
  """Compute accelerations and constraint forces, from actuator forces and all that depends on positions and velocities."""
  metric, rows = effective_metric(m, d), cache.rows
  if metric is None:
    return solve_rows(m, smooth_acceleration(m, d, cache.factor), rows)
  d, rows, touched = convert_rows(m, d, rows, metric)
  d = solve_rows(m, smooth_acceleration(m, d, cache.factor, metric), rows, metric)
  return apply_free_gyro(m, d, metric, touched)
