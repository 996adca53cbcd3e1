"""As `test_iterates`, in single precision and with the kernels that ship: line searches and iterations that are cut short."""

import jax
import mujoco
import numpy as np
import pytest
from test_iterates import ELLIPTIC, PYRAMIDAL, SCENE, S, run, states

import mjx_lite as mjx
from mjx_lite.solver import linesearch

pytestmark = [
  pytest.mark.usefixtures("single_precision"),
  # the dual solver sorts its blocks, which is no machine code
  pytest.mark.filterwarnings("ignore:forward takes a slower path:mjx_lite.errors.SlowPathWarning"),
]


@pytest.mark.parametrize("compiled", [mjx.jit, jax.jit])
@pytest.mark.parametrize(
  ("solver", "cone", "iterations"),
  [
    (S.mjSOL_NEWTON, PYRAMIDAL, 1), (S.mjSOL_NEWTON, ELLIPTIC, 2), (S.mjSOL_CG, ELLIPTIC, 3),
    (S.mjSOL_PGS, PYRAMIDAL, 3), (S.mjSOL_PGS, ELLIPTIC, 3),
  ],
)  # fmt: skip
def test_accelerations_are_those_of_c(solver, cone, iterations, compiled):
  model = mujoco.MjModel.from_xml_string(SCENE)
  model.opt.solver, model.opt.cone, model.opt.iterations, model.opt.ls_iterations = solver, cone, iterations, 5
  starts = states(model, 6)
  for data in starts:
    data.qacc_warmstart[:] = 0
  m = mjx.put_model(model)
  many = jax.tree.map(lambda *x: np.stack(x), *(mjx.put_data(m, data) for data in starts))
  d = compiled(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  assert d.qacc.dtype == np.float32
  share = linesearch.ROUND_OFF * np.finfo(np.float32).eps  # of the slope at the start, with which a line search ends
  for i, data in enumerate(starts):
    theirs = run(model, data)
    np.testing.assert_allclose(d.qacc[i], theirs.qacc, rtol=0, atol=share * np.abs(theirs.qacc).max(), err_msg=str(i))
