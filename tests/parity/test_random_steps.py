"""Steps of models by chance: gradients beside differences, many worlds beside one, single precision beside C."""

import functools

import jax
import mujoco
import numpy as np
import pytest
from random_models import acts_on_every_row, random_model

import mjx_lite as mjx
from mjx_lite.testing import compare

IN_CI = (36,)
# of the first sixty those that stay about where they are: of the others one sees less
STAY = (0, 2, 4, 8, 9, 10, 13, 14, 15, 16, 18, 19, 25, 27, 28, 29, 32, 35, 36, 37, 39, 40, 43, 45, 49, 50, 51, 55, 58)
SEEDS = [k if k in IN_CI else pytest.param(k, marks=pytest.mark.slow) for k in STAY]


@functools.cache
def on_its_way(seed):
  """A model solved to the optimum, and four states of C's trajectory."""
  model, states = compare.optimal(random_model(seed)), []
  data, rng = mujoco.MjData(model), np.random.default_rng(seed)
  data.qvel[:] = 0.3 * rng.normal(size=model.nv)
  for _ in range(4):
    data.ctrl[:] = rng.uniform(-0.3, 0.3, model.nu)
    mujoco.mj_step(model, data, 10)
    states.append(data.__copy__())
  assert not data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number and np.abs(data.qvel).max() < 30
  return model, states


def stacked(m, states):
  return jax.tree.map(lambda *x: np.stack(x), *(mjx.put_data(m, s) for s in states))


@pytest.mark.slow  # those in CI are of test_check_grad.py
@pytest.mark.parametrize("seed", STAY)
def test_gradients_equal_differences(seed):
  """Of every block of inputs that the model has, away from switches."""
  model, states = on_its_way(seed)
  assert acts_on_every_row(model, states[-1])
  m, lines = mjx.put_model(model), []
  found = mjx.check_grad(m, mjx.put_data(m, states[-1]), tolerance=1e-5, write=lines.append)
  assert len(found) > 10 and sum("not smooth" in x.flags for x in found) < 4
  assert all(x.ok for x in found), "\n".join(lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_among_others_is_as_alone(seed):
  model, states = on_its_way(seed)
  m = mjx.put_model(model)
  many, step = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, stacked(m, states)), mjx.jit(mjx.step)
  for i, s in enumerate(states):
    for (path, x), y in zip(jax.tree.leaves_with_path(step(m, mjx.put_data(m, s))), jax.tree.leaves(many), strict=True):
      name = jax.tree_util.keystr(path)
      if not any(k in name for k in ("solver", "status")):  # to the last bit of the optimum: by which iteration, is round-off
        np.testing.assert_allclose(y[i], x, rtol=1e-6, atol=1e-7 * max(1, np.abs(x).max(initial=0)), err_msg=name)


@pytest.mark.parametrize("seed", SEEDS)
def test_single_precision_follows_c(seed):
  model, states = on_its_way(seed)
  model = model.__copy__()
  model.opt.tolerance, model.opt.ls_tolerance = 1e-8, 0.01
  m = mjx.put_model(model, dtype=np.float32)
  after = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, stacked(m, states))
  assert not any(x.dtype == np.float64 for x in jax.tree.leaves(after))
  for qvel, s in zip(after.qvel, states, strict=True):
    data = s.__copy__()
    mujoco.mj_step(model, data)
    scale = 1 + np.abs(data.qvel).max() + model.opt.timestep * np.abs(data.qacc).max()
    np.testing.assert_allclose(qvel, data.qvel, rtol=0, atol=1e-4 * scale)
