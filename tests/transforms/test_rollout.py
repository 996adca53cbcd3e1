"""Rollouts: what is recorded, checkpoints, policies, devices, memory of reverse mode."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.rollout import checkpointed_scan

XML = """
<mujoco>
  <worldbody>
    <body><joint name="a" axis="0 1 0" damping="0.1"/><geom size="0.1" pos="0.5 0 0" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><motor joint="a"/></actuator>
</mujoco>
"""
STEPS, WORLDS = 7, 4


@pytest.fixture(scope="module")
def pendula():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML))
  d = mjx.make_data(m)
  rng = np.random.default_rng(0)
  many = jax.vmap(lambda v: d.replace(qvel=v))(jnp.asarray(rng.normal(size=(WORLDS, 1))))
  return m, many, jnp.asarray(rng.normal(size=(WORLDS, STEPS, m.nu)))


def batched(m, d, ctrl, **options):
  return jax.vmap(lambda d, u: mjx.rollout(m, d, u, **options))(d, ctrl)


@pytest.mark.parametrize("every", [1, 3, 7, 10])
def test_checkpoints_change_nothing(every):
  """Values and gradients of a scan, segments that do not divide its length among them."""

  def body(x, u):
    x = jnp.sin(x + u)
    return x, {"x": x * u}

  def loss(x, us, every):
    x, ys = checkpointed_scan(body, x, us, STEPS, every)
    return x**3 + jnp.sum(ys["x"] ** 2), ys["x"]

  at = jnp.float64(0.3), jnp.linspace(-1, 1, STEPS)
  f = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
  for found, expected in zip(jax.tree.leaves(f(*at, every)), jax.tree.leaves(f(*at, None)), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)


def test_checkpoints_bound_the_memory(pendula):
  m, d, _ = pendula

  def stored(every):
    def f(ctrl):
      return jnp.sum(batched(m, d, ctrl, checkpoint=every, record=())[0].qpos)

    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(lambda u: jax.vjp(f, u)[1], jnp.zeros((WORLDS, 100, m.nu)))))

  state = 100 * WORLDS * (mjx.state_size(m, mjx.State.INTEGRATION) + 16)
  assert stored(1) < 2 * state < 0.5 * stored(None)
  inputs = 100 * WORLDS * m.nu
  assert stored(10) - inputs < 0.3 * (stored(1) - inputs)


def test_records_and_policies(pendula):
  m, d, ctrl = pendula
  first = jax.tree.map(lambda x: x[0], d)
  _, names = mjx.jit(lambda d: mjx.rollout(m, d, ctrl[0], record=("qpos", "qfrc_bias", "contact.dist")))(first)
  assert names["contact.dist"].shape == (STEPS, 0) and names["qfrc_bias"].shape == (STEPS, 1)

  # a policy and a record that close over values of the trace, batched, differentiated with respect to these
  def loss(gain):
    policy = lambda m, d: gain * d.qvel  # noqa: E731
    record = lambda m, d: gain[0] * jnp.sin(d.qpos[0])  # noqa: E731
    _, out = jax.vmap(lambda d: mjx.rollout(m, d, policy, steps=STEPS, record=record))(d)
    return jnp.sum(out**2)

  f, gain = mjx.jit(jax.value_and_grad(loss)), jnp.array([-0.4])
  value, grad = f(gain)
  difference = (f(gain + 1e-6)[0] - f(gain - 1e-6)[0]) / 2e-6
  np.testing.assert_allclose(grad[0], difference, rtol=1e-7)
  assert value > 0 and abs(difference) > 1e-6


def test_devices(pendula):
  """Divided among the devices that there are (CI has one) the worlds do what they do together."""
  m, d, ctrl = pendula
  last, record = mjx.jit(batched)(m, d, ctrl)
  divided, divided_record = mjx.jit(lambda m, d, u: mjx.rollout(m, d, u, devices=jax.devices()[:1]))(m, d, ctrl)
  np.testing.assert_allclose(divided.qpos, last.qpos, rtol=1e-14)
  np.testing.assert_allclose(divided_record["qvel"], record["qvel"], rtol=1e-14)
  with pytest.raises(ValueError, match="leading world axis"):
    mjx.rollout(m, jax.tree.map(lambda x: x[0], d), ctrl[0], devices=jax.devices()[:1])


def test_what_does_not_fit_is_refused(pendula):
  m, d, ctrl = pendula
  first = jax.tree.map(lambda x: x[0], d)
  with pytest.raises(ValueError, match="steps="):
    mjx.rollout(m, first)
  with pytest.raises(ValueError, match="ctrl"):
    mjx.rollout(m, first, ctrl)
  with pytest.raises(ValueError, match="7 steps of this model"):
    mjx.rollout(m, first, jnp.zeros((STEPS, 3)))
