"""Every stage and every field of models by chance, along trajectories that C simulates."""

import mujoco
import numpy as np
import pytest
from models import TOO_LARGE
from random_models import acts_on_every_row, random_model
from test_stages import randomise_inputs

from mjx_lite.testing import compare

pytestmark = TOO_LARGE
CASES = [(seed, rich) for rich in (False, True) for seed in range(60)]
IN_CI = ((3, False), (10, False), (20, True))
ROUND_OFF = 1e-9  # masses by chance differ by powers of ten, and what goes through the inverse of M loses a digit


@pytest.mark.parametrize("seed, rich", [x if x in IN_CI else pytest.param(*x, marks=pytest.mark.slow) for x in CASES])
def test_stages_equal_c(seed, rich):
  model = compare.optimal(random_model(seed, rich=rich))
  # made at the last place of Runge-Kutta's step, which is known to C alone: see `rungekutta4` and `get_data`
  left_out = {"efc_J", "ten_J"} if model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4 else set()
  fields = {x for stage in compare.STAGE_FIELDS.values() for x in stage} - left_out
  engine, data, rng = compare.Engine(model), mujoco.MjData(model), np.random.default_rng(seed)
  data.qvel[:] = 0.3 * rng.normal(size=model.nv)
  compared = 0
  for step in range(120):
    mujoco.mj_step(model, data)
    if data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number or (compared and np.abs(data.qvel).max() > 50):
      break  # what chance has put together flies apart, and far from where it is one sees less of it
    if step % 10 == 0:
      randomise_inputs(model, data, rng)
      if acts_on_every_row(model, data):
        wrong = [e for e in compare.compare_stages(model, data, fields, engine=engine) if not (e.ok or e.worst < ROUND_OFF)]
        assert not wrong, "\n".join(f"step {step}: {e}" for e in wrong)
        compared += 1
  assert compared
