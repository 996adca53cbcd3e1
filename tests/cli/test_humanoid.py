"""The shipped humanoid, judged by C: sizes, stability, and no feature beyond what the first slice supports."""

import mujoco
import numpy as np
import pytest

from mjx_lite.cli import common


@pytest.fixture(scope="module")
def mj_model():
  return common.load_model("humanoid")


def test_sizes(mj_model):
  assert (mj_model.nv, mj_model.nu, mj_model.njnt) == (27, 21, 22)
  assert not any((mj_model.ntendon, mj_model.neq, mj_model.nsensor, mj_model.na, mj_model.dof_frictionloss.any()))
  np.testing.assert_array_equal(mj_model.actuator_ctrlrange, np.tile([-1.0, 1.0], (21, 1)))


def test_keyframe_stands_on_both_feet(mj_model):
  d = common.initial_data(mj_model)
  mujoco.mj_forward(mj_model, d)
  touching = {mj_model.geom(c.geom[1]).name for c in d.contact}
  assert touching == {f"{side}_foot_{edge}" for side in ("left", "right") for edge in ("inner", "outer")}
  assert max(abs(c.dist) for c in d.contact) < 1e-3
  # it falls when nothing holds it, and comes to rest on the floor
  for _ in range(1200):
    mujoco.mj_step(mj_model, d)
  assert 0 < d.qpos[2] < 0.6 and np.abs(d.qvel).max() < 1


def test_stable_under_random_control(mj_model):
  d = common.initial_data(mj_model)
  for ctrl in common.random_control(mj_model, 2000, 1, 0)[:, 0]:
    d.ctrl[:] = ctrl
    mujoco.mj_step(mj_model, d)
    assert np.abs(d.qvel).max() < 100
    assert min((c.dist for c in d.contact), default=0) > -0.1
  assert not any(w.number for w in d.warning)


def test_controls_are_smooth_and_in_range(mj_model):
  ctrl = common.random_control(mj_model, 200, 3, 1)
  assert ctrl.shape == (200, 3, 21) and ctrl.dtype == np.float32
  assert np.abs(ctrl).max() <= 1 and np.abs(np.diff(ctrl, axis=0)).mean() < 0.5 * np.abs(ctrl).mean()
  np.testing.assert_array_equal(ctrl, common.random_control(mj_model, 200, 3, 1))
