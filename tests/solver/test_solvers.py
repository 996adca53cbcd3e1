"""Every solver reaches the optimum, which is unique: that of Newton's method and of C."""

import jax
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.cli.compare import optimal, relative_error


@pytest.mark.parametrize("name", ["elliptic", "pairs"])
def test_conjugate_gradients(name):
  model = optimal(load(name))
  reference = model.__copy__()
  model.opt.solver, model.opt.iterations = mujoco.mjtSolver.mjSOL_CG, 500
  m, forward = mjx.put_model(model), mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))
  data, rng, states, theirs = mujoco.MjData(model), np.random.default_rng(0), [], []
  for k in range(48):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    mujoco.mj_step(reference, data)
    if k % 6 == 0:
      mujoco.mj_forward(reference, data)
      states.append(mjx.put_data(m, data))
      theirs.append((data.qacc.copy(), data.qfrc_constraint.copy()))
  d = forward(m, jax.tree.map(lambda *x: np.stack(x), *states))
  assert np.asarray(d.solver_niter).max() > 3
  for i, (qacc, force) in enumerate(theirs):
    assert relative_error(np.asarray(d.qacc[i]), qacc).max() < 1e-8
    assert relative_error(np.asarray(d.qfrc_constraint[i]), force).max() < 1e-8
