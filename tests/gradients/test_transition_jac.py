"""The linearised step against MuJoCo's finite differences; Hessian-vector products."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal

# a body that rolls on the ground, and servos with an activation on a ball joint and a hinge
XML = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.09"><freejoint/><geom type="capsule" size="0.1 0.2" euler="90 20 0"/></body>
    <body pos="1 0 1">
      <joint name="b" type="ball" damping="0.1"/><geom size="0.1" pos="0.3 0 0"/>
      <body pos="0.5 0 0"><joint name="h" axis="0 1 0"/><geom size="0.1" pos="0.3 0 0"/></body>
    </body>
  </worldbody>
  <actuator>
    <general joint="h" dyntype="filter" dynprm="0.1" gainprm="2" biastype="affine" biasprm="0 -2 -0.1"/>
    <motor joint="b" gear="1 0.5 0"/>
  </actuator>
</mujoco>
"""
SLOW = ("elliptic", "transmissions", "equalities", "media", "trees", "pairs", "humanoid")


def states(model, n):
  """States of C along a trajectory under random controls."""
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(n):
    data.ctrl[:] = rng.uniform(-0.4, 0.4, model.nu)
    mujoco.mj_step(model, data, 40)
    yield data


def differences(model, data):
  nx, ns = 2 * model.nv + model.na, model.nsensordata
  out = [np.zeros(shape) for shape in ((nx, nx), (nx, model.nu), (ns, nx), (ns, model.nu))]
  mujoco.mjd_transitionFD(model, data, 1e-6, True, *out)
  return out


def model_of(name):
  return optimal(mujoco.MjModel.from_xml_string(XML) if name == "inline" else load(name))


def assert_blocks_equal(found, expected, rtol, atol):
  """Blocks of a batch of states, found (world first) and of C (a list of blocks for each state)."""
  for i, of_c in enumerate(expected):
    for block, ours, theirs in zip(found._fields, found, of_c, strict=True):
      assert ours[i].shape == theirs.shape
      scale = np.abs(theirs).max(initial=1e-3)
      np.testing.assert_allclose(ours[i], theirs, rtol=rtol, atol=atol * scale, err_msg=f"{block}, state {i}")


@pytest.mark.parametrize("name", ["inline", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_equals_finite_differences_of_c(name):
  model = model_of(name)
  m = mjx.put_model(model)
  data, expected = [], []
  for state in states(model, 2):
    data.append(mjx.put_data(m, state))
    expected.append(differences(model, state))
  many = jax.tree.map(lambda *x: jnp.stack(x), *data)
  found = mjx.jit(jax.vmap(mjx.transition_jac, in_axes=(None, 0)))(m, many)
  assert_blocks_equal(found, expected, rtol=1e-5, atol=1e-6)


def inverse_differences(model, data, eps):
  nv, ns = model.nv, model.nsensordata
  out = [np.zeros((nv, n)) for n in (nv, nv, nv, ns, ns, ns)]
  mujoco.mjd_inverseFD(model, data, eps, True, *out, None)
  return [x.T for x in out]


@pytest.mark.parametrize("name", ["inline", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_inverse_equals_finite_differences_of_c(name):
  model = model_of(name)
  m = mjx.put_model(model)
  data, expected = [], []
  for state in states(model, 2):
    mujoco.mj_forward(model, state)
    data.append(mjx.put_data(m, state))
    # C's differences are one-sided: the error of first order is taken out with two widths
    fine, coarse = (inverse_differences(model, state, eps) for eps in (5e-7, 1e-6))
    expected.append([2 * a - b for a, b in zip(fine, coarse, strict=True)])
  many = jax.tree.map(lambda *x: jnp.stack(x), *data)
  found = mjx.jit(jax.vmap(lambda d: mjx.inverse_jac(m, d, actuation=True)))(many)
  assert_blocks_equal(found, expected, rtol=1e-4, atol=3e-6)


def test_hessian_vector_product():
  """Through several steps: the difference of two gradients."""
  model = optimal(mujoco.MjModel.from_xml_string(XML))
  m = mjx.put_model(model)
  data = next(states(model, 1))
  d, direction = mjx.put_data(m, data), jnp.asarray(np.random.default_rng(1).normal(size=model.nv))

  def f(qvel):
    after, _ = mjx.rollout(m, d.replace(qvel=qvel), steps=3, record=())
    return jnp.sum(after.qvel**2) + jnp.sum(after.qpos[:3])

  product = mjx.jit(lambda v: mjx.hvp(f, v, direction))(d.qvel)
  gradient, e = mjx.jit(jax.grad(f)), 1e-5
  expected = (gradient(d.qvel + e * direction) - gradient(d.qvel - e * direction)) / (2 * e)
  np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
