"""Inverse dynamics: C's, that of forward dynamics, and its derivative."""

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal, relative_error

I = mujoco.mjtIntegrator


def on_its_way(name, integrator, invdiscrete):
  model = optimal(load(name)).__copy__()
  model.opt.integrator = integrator
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_FWDINV
  if invdiscrete:
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_INVDISCRETE
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(40):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    mujoco.mj_step(model, data)
  data.qacc[:] = rng.normal(size=model.nv)
  return model, data


@pytest.mark.parametrize(
  "name, integrator, invdiscrete",
  [("tendons", I.mjINT_IMPLICIT, True), ("media", I.mjINT_IMPLICITFAST, True), ("joints", I.mjINT_EULER, True),
   ("elliptic", I.mjINT_RK4, False)],
)  # fmt: skip
def test_inverse_equals_c(name, integrator, invdiscrete):
  model, data = on_its_way(name, integrator, invdiscrete)
  m = mjx.put_model(model)
  d = mjx.jit(mjx.inverse)(m, mjx.put_data(m, data))
  mujoco.mj_inverse(model, data)
  for field in ("qfrc_inverse", "qfrc_constraint", "qacc"):
    assert relative_error(np.asarray(getattr(d, field)), getattr(data, field)).max() < 1e-9, field


# P41, P42
def test_forward_and_inverse_agree():
  """The flag FWDINV says by how much they differ; C's numbers, too, are round-off."""
  model, data = on_its_way("elliptic", I.mjINT_EULER, False)
  m = mjx.put_model(model)
  before = mjx.put_data(m, data)
  d = mjx.jit(mjx.step)(m, before)
  mujoco.mj_step(model, data)
  assert d.solver_fwdinv.max() < 1e-8 * np.abs(data.qfrc_constraint).max()
  # applied forces are missed by as much as the solver misses the optimum; those of the constraints are those of its qacc
  missed = []
  for iterations in (1, 3):
    hasty = m.tree_replace({"opt.iterations": iterations})
    poor = mjx.jit(mjx.step)(hasty, before.replace(qacc_warmstart=0 * d.qacc))
    assert poor.solver_fwdinv[0] < 1e-8 * np.abs(data.qfrc_constraint).max()
    missed.append(poor.solver_fwdinv[1])
  assert missed[0] > 3 * missed[1] > 1e3 * d.solver_fwdinv[1]


def test_discrete_inverse_of_runge_kutta_is_refused():
  model = load("joints").__copy__()
  model.opt.integrator = I.mjINT_RK4
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_INVDISCRETE
  m = mjx.put_model(model)
  with pytest.raises(ValueError, match=r"INVDISCRETE .* RK4"):
    mjx.inverse(m, mjx.make_data(m))


def test_gradients():
  model, data = on_its_way("media", I.mjINT_IMPLICITFAST, True)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  rng = np.random.default_rng(1)
  w = jnp.asarray(rng.normal(size=m.nv))

  def f(dq, qvel, qacc, mass):
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    return w @ mjx.inverse(m.replace(body_mass=mass), d.replace(qpos=q, qvel=qvel, qacc=qacc)).qfrc_inverse

  at = (jnp.zeros(m.nv), d.qvel, d.qacc, m.body_mass)
  assert_gradients(f, at, [rng.normal(size=x.shape) * (jnp.abs(x) if k == 3 else 1) for k, x in enumerate(at)])
