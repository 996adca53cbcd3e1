"""The discrete integrator beyond the parity of its stages: inverse dynamics, steps in two parts, free bodies, gradients."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import TOO_LARGE, load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal, relative_error

pytestmark = TOO_LARGE


@functools.cache
def moving_state():
  model = optimal(load("discrete"))
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(60):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    mujoco.mj_step(model, data)
  m = mjx.put_model(model)
  return model, data, m, mjx.put_data(m, data)


def test_inverse_equals_c_and_forward():
  model, data, m, d = moving_state()

  def inverses(m, d):
    d = mjx.step2(m, mjx.step1(m, d)).replace(qpos=d.qpos, qvel=d.qvel, time=d.time, act=d.act)
    shifted = mjx.inverse(m, d.replace(qacc=d.qacc + 0.1 * jnp.sin(jnp.arange(m.nv))))
    return mjx.inverse(m, d), shifted, mjx.xfrc_accumulate(m, d)

  back, shifted, applied = mjx.jit(inverses)(m, d)
  force = data.qfrc_applied + np.asarray(back.qfrc_actuator) + np.asarray(applied)
  np.testing.assert_allclose(back.qfrc_inverse, force, atol=1e-8)

  theirs = mujoco.MjData(model)
  state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
  mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
  mujoco.mj_setState(model, theirs, state, mujoco.mjtState.mjSTATE_INTEGRATION)
  mujoco.mj_forward(model, theirs)
  assert relative_error(np.asarray(back.qacc), theirs.qacc).max() < 1e-8
  theirs.qacc[:] += 0.1 * np.sin(np.arange(model.nv))
  mujoco.mj_inverse(model, theirs)
  for field in ("qfrc_inverse", "qfrc_constraint", "qacc"):
    assert relative_error(np.asarray(getattr(shifted, field)), getattr(theirs, field)).max() < 1e-8, field


def test_springs_of_plain_joints_alone():
  """A model whose springs are all of joints with one dof."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><option integrator="discrete" timestep=".01"/><worldbody><body>
    <joint axis="0 1 0" stiffness="3 .5 .2" springref="20"/><geom size=".1" pos=".3 0 0"/></body></worldbody></mujoco>""")
  m, c = mjx.put_model(model), mujoco.MjData(model)
  after = mjx.jit(lambda m, d: mjx.rollout(m, d, steps=5)[0])(m, mjx.put_data(m, c))
  mujoco.mj_step(model, c, 5)
  np.testing.assert_allclose(after.qpos, c.qpos, rtol=1e-10)


@pytest.mark.slow
def test_gradients():
  _, _, m, d = moving_state()
  rng = np.random.default_rng(1)
  w = jnp.asarray(rng.normal(size=m.nv))

  def f(dq, qvel, ctrl, stiffness, tendon, timestep):
    m2 = m.replace(jnt_stiffness=stiffness, tendon_stiffness=tendon, opt=m.opt.replace(timestep=timestep))
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    return w @ mjx.step(m2, d.replace(qpos=q, qvel=qvel, ctrl=ctrl)).qvel

  at = (jnp.zeros(m.nv), d.qvel, d.ctrl, m.jnt_stiffness, m.tendon_stiffness, m.opt.timestep)
  assert_gradients(f, at, [rng.normal(size=x.shape) * (1e-2 if k < 2 else 1) for k, x in enumerate(at)])


@pytest.mark.slow
def test_gradient_is_finite_at_rest():
  _, _, m, _ = moving_state()
  start = mjx.make_data(m)
  rest = mjx.jit(jax.grad(lambda q: jnp.sum(mjx.step(m, start.replace(qpos=q)).qvel ** 2)))(start.qpos)
  assert np.isfinite(rest).all()
