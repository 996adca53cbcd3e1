"""Wrenches that connects, welds and tendons put on bodies, as `rne_postconstraint` counts them."""

import mujoco
import numpy as np
import pytest
from models import load
from test_stages import randomise_inputs

import mjx_lite as mjx
from mjx_lite.testing import compare

FIELDS = ("cacc", "cfrc_ext", "cfrc_int")


@pytest.mark.parametrize("name", ["equalities", "tendon_limits", "tendon_armature"])
def test_wrenches_equal_c(name):
  model, rng = compare.optimal(load(name)), np.random.default_rng(0)
  m, data = mjx.put_model(model), mujoco.MjData(model)
  step, carried = mjx.jit(mjx.step), mjx.jit(mjx.rne_postconstraint)
  for i in range(120):
    if i % 10 == 0:
      randomise_inputs(model, data, rng)
    if i % 30 == 25:
      before = mjx.put_data(m, data)
      d = carried(m, step(m, before).replace(qpos=before.qpos, qvel=before.qvel))
      theirs = compare._state_only(model, data)
      mujoco.mj_forward(model, theirs)
      mujoco.mj_rnePostConstraint(model, theirs)
      for field in FIELDS:
        error = compare.relative_error(np.asarray(getattr(d, field)), getattr(theirs, field))
        assert error.max() < 1e-9, (i, field, error.max())
      assert np.any(theirs.cfrc_ext)
    mujoco.mj_step(model, data)
