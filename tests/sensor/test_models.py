"""Sensors of real models as they come: C's sensors of what the engine computed, so that no solver or collider stands between.

Those are compared along trajectories elsewhere (tests/parity, tests/collision).
"""

import importlib.util
import pathlib
import sys

import jax
import mujoco
import numpy as np
import pytest
from models import OTHERS
from robots import ROBOTS, on_floor, start
from robots import load as load_robot

import mjx_lite as mjx
from mjx_lite.testing import compare

# all models of the packages that have sensors; jumping_ball stands for those without a test of their own in CI
SENSING = (
  *(f"dm_{k}" for k in (
    "cheetah", "dog", "finger", "fish", "hopper", "humanoid", "humanoid_CMU", "manipulator", "quadruped", "stacker", "swimmer",
    "walker",
  )),
  "myo_osl/myolegs_osl",
  *(f"gym_{k}" for k in ("a2", "aliengo", "b2", "go1", "go2", "hyqreal1", "pegasus")),
  *(f"walker_{k}" for k in ("humanoid_CMU_V2019", "humanoid_CMU_V2020", "rodent", "jumping_ball_with_head", "dog", "fruitfly")),
)  # fmt: skip
IN_CI = ("dm_swimmer",)


def load(name):
  if name in ROBOTS:
    return load_robot(name)
  package, file = OTHERS[name]
  found = importlib.util.find_spec(package)
  if found is None and package == "dm_control" and sys.version_info >= (3, 13):
    pytest.skip("dm_control needs labmaze, which has no wheels for Python 3.13")
  assert found is not None and found.submodule_search_locations, f"pip install mjx_lite[test] brings {package}"
  return on_floor(mujoco.MjSpec.from_file(str(pathlib.Path(found.submodule_search_locations[0]) / file)))


def states(model, number):
  """States of C along a trajectory under random controls."""
  rng, data = np.random.default_rng(0), mujoco.MjData(model)
  start(model, data)
  low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
  for _ in range(number):
    data.ctrl[:] = rng.uniform(low, high)
    data.qfrc_applied[:] = 2 * rng.normal(size=model.nv) * model.dof_M0
    mujoco.mj_step(model, data, max(1, round(0.1 / model.opt.timestep)))
    yield compare._state_only(model, data)


def sensor_errors(model, number=8):
  """Worst relative error of each sensor, which sensors ever said something, and in how many states there were contacts."""
  seen = list(states(model, number))
  capacity = mjx.suggest_capacity(model, np.array([x.qpos for x in seen])) if model.ngeom > 25 else {}
  m = mjx.put_model(model, **capacity)
  forward = mjx.jit(mjx.forward)
  worst, alive, touching = np.zeros(model.nsensor), np.zeros(model.nsensor, bool), 0
  for state in seen:
    d = forward(m, mjx.put_data(m, state))
    ours = mjx.get_data(model, d)
    theirs = mjx.get_data(model, d)
    theirs.sensordata[:] = 0
    for stage in (mujoco.mj_sensorPos, mujoco.mj_sensorVel, mujoco.mj_sensorAcc):
      stage(model, theirs)
    for i in range(model.nsensor):
      a, b = ours.sensor(i).data, theirs.sensor(i).data
      worst[i] = max(worst[i], compare.relative_error(a, b).max())
      alive[i] |= b.any()
    touching += bool(ours.ncon)
  return worst, alive, touching


@pytest.mark.parametrize("name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in SENSING])
def test_sensors_of_a_model_equal_c(name):
  model = load(name)
  assert model.nsensor
  worst, alive, _ = sensor_errors(model)
  assert not {model.sensor(i).name or i: worst[i] for i in np.flatnonzero(~(worst <= 1e-10))}
  assert alive.any() or name in ("dm_manipulator", "dm_stacker")  # touch sensors of an empty hand
  jax.clear_caches()
