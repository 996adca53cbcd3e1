"""Actuators along trajectories with controls that C has to clamp, wrap round a circle, delay, or reject."""

import mujoco
import numpy as np
import pytest
from models import load

from mjx_lite.testing import compare

FIELDS = ("act_dot", "actuator_force", "qfrc_actuator", "act", "history", "qpos", "qvel")


def compare_along(model, steps, control):
  """Errors beyond the tolerance along a trajectory of C; `control(i, data)` sets the inputs before step i.

  Where a control is bad the integrated state is not compared: C's velocity slopes (of implicitfast) then mix the controls as
  given with the zeros that it takes in their place; ours are those at the zeros.
  """
  engine, data, wrong = compare.Engine(model), mujoco.MjData(model), []
  for i in range(steps):
    control(i, data)
    errors = compare.compare_stages(model, data, FIELDS, engine=engine)
    bad = not np.isfinite(data.ctrl).all()
    wrong += [f"step {i}: {e}" for e in errors if not e.ok and not (bad and e.stage == "integrate")]
    mujoco.mj_step(model, data)
  return wrong, data


@pytest.mark.parametrize("name, scale", [("actuators", 7.0), ("delays", 1.2)])
def test_wild_controls(name, scale):
  """Far out of range, now and then NaN or infinite."""
  model, rng = compare.optimal(load(name)), np.random.default_rng(3)

  def control(i, data):
    if i % 4 == 0:
      data.ctrl[:] = scale * rng.uniform(-1, 1, model.nu)
    if i % 23 == 22:
      data.ctrl[rng.integers(model.nu)] = (np.nan, np.inf, -np.inf)[i % 3]

  wrong, data = compare_along(model, 120, control)
  assert data.warning[mujoco.mjtWarning.mjWARN_BADCTRL].number > 3
  assert not wrong, "\n".join(wrong[:20])


def test_time_set_back():
  """Samples that are older than some or all in the buffer, and one of the same time."""
  model, rng = compare.optimal(load("delays")), np.random.default_rng(4)

  def control(i, data):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    if i % 5 == 4:
      data.time -= (0.004, 0.0105, 0.0065, 0.3)[(i // 5) % 4]

  wrong, _ = compare_along(model, 80, control)
  assert not wrong, "\n".join(wrong[:20])


# P117, P118
@pytest.mark.parametrize("flag", [0, mujoco.mjtDisableBit.mjDSBL_ACTUATION, mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL])
def test_switches(flag):
  """Groups other than the scene's, no clamp of controls, no actuation at all (the history goes on)."""
  model, rng = compare.optimal(load("delays")), np.random.default_rng(5)
  model.opt.disableflags |= flag
  model.actuator_group[:] = np.arange(model.nactuator)
  model.opt.disableactuator = 0b1000110010

  def control(i, data):
    data.act[:] += 0.01  # would stay zero without actuation
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)

  wrong, data = compare_along(model, 20, control)
  assert np.any(data.history[2:])
  assert not wrong, "\n".join(wrong[:20])
