"""Gradients of a step: forward = reverse = finite differences; finite at singular points."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal


def state_of(model, steps):
  data = mujoco.MjData(model)
  data.ctrl[:] = 0.3
  for _ in range(steps):
    mujoco.mj_step(model, data)
  return data


STATES = (
  ("joints", 90), ("humanoid_mjx", 60), ("transmissions", 40), ("equalities", 30), ("elliptic", 60),
  pytest.param("trees", 150, marks=pytest.mark.slow),
)  # fmt: skip


@pytest.mark.parametrize("name, steps", STATES)
def test_step_gradient(name, steps):
  model = optimal(load(name))
  m = mjx.put_model(model)
  d = mjx.put_data(m, state_of(model, steps))
  rng = np.random.default_rng(1)
  w = jnp.asarray(rng.normal(size=m.nv))
  zero = jnp.zeros(m.nv)

  def f(dq, qvel, force, mass, friction):
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    m2 = m.replace(body_mass=mass, geom_friction=friction)
    return jnp.dot(w, mjx.step(m2, d.replace(qpos=q, qvel=qvel, qfrc_applied=force)).qvel)

  at = (zero, d.qvel, zero, m.body_mass, m.geom_friction)
  directions = [rng.normal(size=x.shape) * (jnp.abs(x) if k > 2 else 1) for k, x in enumerate(at)]
  names = ("qpos", "qvel", "qfrc_applied", "body_mass", "geom_friction")
  assert_gradients(f, at, directions, names=names, forward=True)


def test_second_derivative_is_finite():
  model = optimal(load("trees"))
  m = mjx.put_model(model)
  d = mjx.put_data(m, state_of(model, 150))
  f = lambda v: jnp.sum(mjx.step(m, d.replace(qvel=v)).qvel ** 2)  # noqa: E731
  h = mjx.jit(jax.hessian(f))(d.qvel)
  assert np.isfinite(h).all()
  np.testing.assert_allclose(h, h.T, atol=1e-6 * np.abs(h).max())


# slow: joints, spheres and capsules at rest are in the models of test_singular.py too
@pytest.mark.parametrize("name", ["boxes", *(pytest.param(k, marks=pytest.mark.slow) for k in ("joints", "pairs"))])
def test_gradient_is_finite_at_rest(name):
  """Zero velocity, identity quaternions, touching bodies."""
  m = mjx.put_model(load(name))
  d = mjx.make_data(m)

  def f(qpos, qvel):
    out = mjx.step(m, d.replace(qpos=qpos, qvel=qvel))
    return jnp.sum(out.qvel**2) + jnp.sum(out.qpos**2)

  for g in mjx.jit(jax.grad(f, argnums=(0, 1)))(d.qpos, d.qvel):
    assert np.isfinite(g).all()


def test_gradient_does_not_depend_on_the_warm_start():
  model = optimal(load("humanoid_mjx"))
  m = mjx.put_model(model)
  d = mjx.put_data(m, state_of(model, 60))

  def f(v, warm):
    return jnp.sum(mjx.step(m, d.replace(qvel=v, qacc_warmstart=warm)).qvel ** 2)

  g = mjx.jit(jax.grad(f, argnums=(0, 1)))
  a, none = g(d.qvel, d.qacc_warmstart)
  b, _ = g(d.qvel, jnp.zeros_like(d.qvel))
  np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
  np.testing.assert_array_equal(none, 0)


def test_gradient_of_a_batched_rollout():
  m = mjx.put_model(load("trees").__copy__())
  m = m.replace(opt=m.opt.replace(iterations=5))
  d = mjx.make_data(m)
  many = jax.tree.map(lambda x: jnp.stack([x, x]), d)
  ctrl = jnp.zeros((2, 4, m.nu))

  def f(v):
    _, record = jax.vmap(mjx.rollout, in_axes=(None, 0, 0))(m, many.replace(qvel=v), ctrl)
    return jnp.sum(record["qpos"] ** 2)

  # reverse mode through the solver's while loop: the implicit derivative never looks at it
  g = mjx.jit(jax.grad(f))(many.qvel + 0.1)
  assert np.isfinite(g).all() and np.abs(g).max() > 0
