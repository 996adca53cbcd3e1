"""Iterates of the solvers beside C's, not only where they end: what is left where iterations or line searches are cut short."""

import jax
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

S = mujoco.mjtSolver
PYRAMIDAL, ELLIPTIC = mujoco.mjtCone.mjCONE_PYRAMIDAL, mujoco.mjtCone.mjCONE_ELLIPTIC
# a table that tips on four spheres with a condim each, all of its contacts there; an arm with friction and limits on it
SCENE = """
<mujoco>
  <option timestep="0.004" impratio="1.5" gravity="2 .7 -9"><flag island="disable"/></option>
  <default><geom friction=".3 .03 .02"/></default>
  <worldbody>
    <geom type="plane" size="1 1 .1" condim="1"/>
    <body name="table" pos="0 0 .198">
      <freejoint/>
      <geom type="box" size=".2 .2 .02" contype="0" conaffinity="0"/>
      <geom size=".05" pos=".2 .15 -.15" condim="1"/><geom size=".05" pos="-.2 .15 -.15" condim="3"/>
      <geom size=".05" pos=".2 -.15 -.15" condim="4"/><geom size=".05" pos="-.15 -.15 -.15" condim="6"/>
      <body pos="0 0 .05">
        <joint name="a" axis="0 1 0" damping=".3" range="-5 20" ref="5" frictionloss=".02" solreflimit=".03 1"/>
        <geom type="capsule" size=".03" fromto="0 0 0 .1 0 .2" contype="0" conaffinity="0"/>
        <body pos=".1 0 .2">
          <joint axis="1 1 0" frictionloss=".05"/><geom size=".05" pos="-.04 0 .05" contype="0" conaffinity="0"/>
        </body>
      </body>
    </body>
  </worldbody>
  <equality><connect body1="table" anchor="0 0 .1" solref=".5 1" solimp=".1 .2 .01"/></equality>
</mujoco>
"""


def states(model, n, every=3):
  """Data of C along a trajectory, its contacts there."""
  data, rng, found = mujoco.MjData(model), np.random.default_rng(0), []
  for i in range(n * every):
    data.qfrc_applied[:] = 0.1 * rng.normal(size=model.nv)
    mujoco.mj_step(model, data)
    if i % every == every - 1:
      found.append(data.__copy__())
  return found


def run(model, data):
  """C's forward of a copy."""
  data = data.__copy__()
  mujoco.mj_forward(model, data)
  return data


def inertia(model, data):
  full = np.zeros((model.nv, model.nv))
  mujoco.mj_fullM(model, data, full)
  return full


@pytest.mark.parametrize("ls_iterations", [5, 50])
@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
@pytest.mark.parametrize("solver", [S.mjSOL_NEWTON, S.mjSOL_CG])
def test_first_iterates_are_those_of_c(solver, cone, ls_iterations):
  """Cost, gradient, acceleration, and points of the line search, of the first five iterations."""
  model = mujoco.MjModel.from_xml_string(SCENE)
  model.opt.solver, model.opt.cone, model.opt.ls_iterations = solver, cone, ls_iterations
  starts = states(model, 6)
  for data in starts:
    data.qacc_warmstart[:] = 0
  for n in (1, 2, 5):
    model.opt.iterations = n
    m = mjx.put_model(model)
    many = jax.tree.map(lambda *x: np.stack(x), *(mjx.put_data(m, data) for data in starts))
    d, theirs = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many), [run(model, data) for data in starts]
    for i, c in enumerate(theirs):
      assert d.solver_niter[i] == c.solver_niter[0], (n, i)
      np.testing.assert_allclose(d.qacc[i], c.qacc, rtol=0, atol=1e-9 * np.abs(c.qacc).max(), err_msg=f"{n} {i}")
  statistics = mjx.jit(jax.vmap(mjx.solver_statistics, in_axes=(None, 0)))(m, d)
  hard = 0
  for i, c in enumerate(theirs):
    force = np.linalg.norm(c.qfrc_constraint) / np.trace(inertia(model, c))
    s = jax.tree.map(lambda x, i=i: x[i], statistics)
    for k in range(c.solver_niter[0]):
      np.testing.assert_allclose(s.improvement[k], c.solver[k].improvement, atol=1e-9 * c.solver[0].improvement)
      np.testing.assert_allclose(s.gradient[k], c.solver[k].gradient, atol=1e-9 * force)
      assert s.neval[k] == c.solver[k].neval, (i, k)
      hard += c.solver[k].neval > 3
  assert hard > 3


@pytest.mark.parametrize("warmstart", [False, True])
@pytest.mark.parametrize("cone", [PYRAMIDAL, ELLIPTIC])
def test_sweeps_are_those_of_c(cone, warmstart):
  """Accelerations after 20 sweeps of the dual solver, and improvement in each, where every constraint is there."""
  model = mujoco.MjModel.from_xml_string(SCENE)
  model.opt.solver, model.opt.cone, model.opt.iterations, model.opt.tolerance = S.mjSOL_PGS, cone, 20, 0
  rng, m, starts = np.random.default_rng(0), mjx.put_model(model), []
  for _ in range(4):
    data = mujoco.MjData(model)
    data.qpos[-2] = np.radians(21)
    data.qvel[:], data.qfrc_applied[:] = 0.1 * rng.normal(size=model.nv), rng.normal(size=model.nv)
    if warmstart:
      mujoco.mj_forward(model, data)
      data.qacc_warmstart[:] = 0.8 * data.qacc
    starts.append(data)
  many = jax.tree.map(lambda *x: np.stack(x), *(mjx.put_data(m, data) for data in starts))
  d = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  statistics = mjx.jit(jax.vmap(mjx.solver_statistics, in_axes=(None, 0)))(m, d)
  for i, data in enumerate(starts):
    theirs = run(model, data)
    assert theirs.ncon == 4 and theirs.solver_niter[0] == 20 == d.solver_niter[i]
    assert theirs.nefc == 3 + 2 + 1 + (1 + 3 + 4 + 6 if cone == ELLIPTIC else 1 + 4 + 6 + 10)
    np.testing.assert_allclose(d.qacc[i], theirs.qacc, rtol=0, atol=1e-9 * np.abs(theirs.qacc).max())
    gains = [theirs.solver[k].improvement for k in range(20)]
    np.testing.assert_allclose(statistics.improvement[i], gains, rtol=0, atol=1e-9 * max(gains))
