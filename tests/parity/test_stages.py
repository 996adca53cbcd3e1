"""Every stage, every field, along trajectories that C simulates under random controls and forces."""

import mujoco
import numpy as np
import pytest
from models import LARGE, OTHERS, REAL, SCENE_NAMES, SLOW, TOO_LARGE, load

from mjx_lite.testing import compare

NAMES = [
  pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW) + [TOO_LARGE] * (n in LARGE))
  for n in (*SCENE_NAMES, "humanoid", *REAL, *OTHERS)
]


# P131
@pytest.mark.parametrize("name", NAMES)
def test_stages_equal_c(name):
  model = compare.optimal(load(name))
  engine, data, rng = compare.Engine(model), mujoco.MjData(model), np.random.default_rng(0)
  wrong, seen = [], set()
  for i in range(240):
    if i % 12 == 0:
      randomise_inputs(model, data, rng)
      for error in compare.compare_stages(model, data, engine=engine):
        seen.add(error.field)
        if not error.ok:
          wrong.append(f"step {i}: {error}")
    mujoco.mj_step(model, data)
  assert not wrong, "\n".join(wrong[:20])
  assert {"xpos", "time"} <= seen


def randomise_inputs(model, data, rng):
  """Controls over their range and beyond it, forces in proportion to inertia."""
  data.ctrl[:] = 1.2 * rng.uniform(-1, 1, model.nu)
  data.qfrc_applied[:] = 0.3 * rng.normal(size=model.nv) * model.dof_M0
  data.xfrc_applied[:, :3] = rng.normal(size=(model.nbody, 3)) * model.body_mass[:, None]
  data.xfrc_applied[:, 3:] = rng.normal(size=(model.nbody, 3)) * model.body_inertia
  data.mocap_pos[:] += 0.01 * rng.normal(size=(model.nmocap, 3))
  data.mocap_quat[:] += 0.1 * rng.normal(size=(model.nmocap, 4))
