"""Gradients with respect to every block of inputs: against differences of the engine, and against differences of C."""

import copy
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.check_grad import loss_weights
from mjx_lite.cli.compare import optimal

# scene, steps of C before the state
IN_CI = (("joints", 90, 10),)
SLOW = tuple(
  (name, before, n)
  for name, before in (
    ("elliptic", 60), ("transmissions", 40), ("tendons", 60), ("equalities", 30), ("boxes", 80), ("actuators", 40),
    ("tendon_armature", 40), ("tendon_limits", 40), ("media", 30), ("yielding", 40), ("pairs", 60), ("delays", 40),
    ("trees", 150), ("humanoid", 80),
  )
  for n in (1, 10)
)  # fmt: skip


def state_of(name, before):
  model = optimal(load(name))
  data = mujoco.MjData(model)
  data.ctrl[:] = np.random.default_rng(0).uniform(-0.4, 0.4, model.nu)
  mujoco.mj_step(model, data, before)
  return model, data


def loss_of_c(model, data, field, x, steps, weights):
  """The loss of `check_grad` by C, with one field changed."""
  model, d = copy.copy(model), mujoco.MjData(model)
  signature = mujoco.mjtState.mjSTATE_INTEGRATION
  state = np.empty(mujoco.mj_stateSize(model, signature))
  mujoco.mj_getState(model, data, state, signature)
  mujoco.mj_setState(model, d, state, signature)
  if field == "qpos":
    mujoco.mj_integratePos(model, d.qpos, np.array(x), 1)
  elif hasattr(d, field):
    getattr(d, field)[:] = x
  elif hasattr(model, field):
    getattr(model, field)[:] = x
    mujoco.mj_setConst(model, mujoco.MjData(model))
  else:
    setattr(model.opt, field, x)
  mujoco.mj_step(model, d, steps)
  moved = np.zeros(model.nv)
  mujoco.mj_differentiatePos(model, moved, 1, data.qpos, d.qpos)
  return sum(w @ y for w, y in zip(weights, (moved, d.qvel, d.act), strict=True))


@pytest.mark.parametrize("name, before, steps", [*IN_CI, *(pytest.param(*a, marks=pytest.mark.slow) for a in SLOW)])
def test_gradients(name, before, steps):
  model, data = state_of(name, before)
  m = mjx.put_model(model)
  lines = []
  found = mjx.check_grad(m, mjx.put_data(m, data), steps=steps, write=lines.append)
  table = "\n".join(lines)
  assert len(found) > 10 and sum("no sensitivity" not in x.flags for x in found) > 5, table
  weights, largest = loss_weights(m), max(abs(x.difference) for x in found)
  for x in found:
    assert x.ok, table
    if "not smooth" in x.flags:
      continue
    small = 1e-3 * largest
    assert x.error <= 2e-6, table
    if x.field == "body_ipos" and (model.body_simple > 0).any():
      continue  # C refuses to move the centre of mass of a body that it compiled as simple
    at = np.zeros(model.nv) if x.field == "qpos" else np.array(_read(model, data, x.field))
    f = lambda e, x=x, at=at: loss_of_c(model, data, x.field, at + e * x.direction, steps, weights)  # noqa: E731
    of_c = (f(1e-5) - f(-1e-5)) / 2e-5
    np.testing.assert_allclose(x.autodiff, of_c, rtol=1e-4, atol=1e-4 * small, err_msg=f"{x.block}\n{table}")


def _read(model, data, field):
  return next(getattr(of, field) for of in (data, model, model.opt) if hasattr(of, field))


def test_flags(monkeypatch):
  """A loss whose derivative is wrong, has a kink, is zero and is infinite, in one input each."""

  def loss(at, m, d, weights, *, fields, steps):
    jump = jnp.abs(at["inertia"][1] - m.body_inertia[1]).sum()
    infinite = jnp.sqrt(jnp.abs(at["centre of mass"] - m.body_ipos)).sum()
    wrong = at["mass"][1] * jax.lax.stop_gradient(at["mass"][1])
    return wrong + jump + infinite

  monkeypatch.setattr(sys.modules[loss_weights.__module__], "_loss", loss)
  model = load("joints")
  m = mjx.put_model(model)
  found = mjx.check_grad(m, mjx.make_data(m), blocks=("mass", "inertia", "centre of mass", "damping"), write=None)
  flags = {x.block: x.flags for x in found}
  assert "wrong" in flags["mass"] and "not smooth" in flags["inertia"]
  assert "not finite" in flags["centre of mass"] and "no sensitivity" in flags["damping"]
  assert [x.ok for x in found] == [False, True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("name, before", [("trees", 150), ("joints", 90), ("elliptic", 60), ("humanoid", 80)])
def test_single_precision(name, before):
  """Gradients in float32 are those in float64 to a hundredth."""
  model, data = state_of(name, before)
  model.opt.tolerance, model.opt.ls_tolerance = 1e-8, 0.01
  found = []
  for dtype in (np.float64, np.float32):
    m = mjx.put_model(model, dtype=dtype)
    d = mjx.put_data(m, data)
    w = np.random.default_rng(0).normal(size=model.nv)

    def f(qvel, mass, m=m, d=d, w=w):
      after, _ = mjx.rollout(m.with_params(body_mass=mass), d.replace(qvel=qvel), steps=10, record=())
      return jnp.vdot(jnp.asarray(w, qvel.dtype), after.qvel)

    found.append(mjx.jit(jax.grad(f, argnums=(0, 1)))(d.qvel, m.body_mass))
  for double, single in zip(*found, strict=True):
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, rtol=1e-2, atol=1e-2 * np.abs(double).max())
