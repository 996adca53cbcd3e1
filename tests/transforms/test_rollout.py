"""Rollouts: what is recorded, checkpoints, policies, devices, memory of reverse mode."""

import dataclasses

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from jax.interpreters import partial_eval as pe

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.compiler.scalars import loop_arguments
from mjx_lite.rollout import STEPPED, checkpointed_scan

XML = """
<mujoco>
  <worldbody>
    <body><joint name="a" axis="0 1 0" damping="0.1"/><geom size="0.1" pos="0.5 0 0" contype="0" conaffinity="0"/></body>
  </worldbody>
  <actuator><motor joint="a"/></actuator>
</mujoco>
"""
TOUCHING = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 .11"><joint name="up" type="slide" axis="0 0 1" range="-.005 1" limited="true"/><geom size=".1"/>
      <site name="s"/></body>
  </worldbody>
  <actuator><motor joint="up"/></actuator>
  <sensor><accelerometer site="s"/><velocimeter site="s"/><touch site="s"/></sensor>
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

  def stored(every):  # by 100 further steps
    def f(ctrl):
      return jnp.sum(batched(m, d, ctrl, checkpoint=every, record=())[0].qpos)

    found = [jax.eval_shape(lambda u: jax.vjp(f, u)[1], jnp.zeros((WORLDS, n, m.nu))) for n in (100, 200)]
    few, many = (sum(x.size for x in jax.tree.leaves(y)) for y in found)
    return many - few

  state = 100 * WORLDS * (mjx.state_size(m, mjx.State.INTEGRATION) + 16)
  assert max(stored(1), stored(None)) < 2 * state
  inputs = 100 * WORLDS * m.nu
  status = 10 * WORLDS * len(mjx.Warning)  # steps that are computed again begin with it
  assert stored(10) - inputs < 0.2 * (stored(1) - inputs) + status


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


def _by_hand(m, d, controls, policy=None):
  for u in controls:
    d = mjx.step(m, d.replace(ctrl=u if policy is None else policy(m, d)))
  return d


def _compare(end, expected, tolerance, inputs=("ctrl",)):
  for f in (f.name for f in dataclasses.fields(mjx.Data) if f.name not in inputs):
    for a, b in zip(jax.tree.leaves(getattr(end, f)), jax.tree.leaves(getattr(expected, f)), strict=True):
      np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0)), err_msg=f)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keep", [(), "all"])
def test_the_end_has_the_computed_fields_of_the_last_step(keep, dtype):
  """As MJX's users expect: accelerations, sensors, contacts, ... are those of the last step, under jit, vmap and policies."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TOUCHING), dtype=dtype)
  d = mjx.make_data(m, keep=keep)
  d = d.replace(qvel=d.qvel + 0.1)
  ctrl = np.random.default_rng(0).normal(size=(4, m.nu)).astype(dtype)
  tolerance = 1e-9 if dtype == np.float64 else 2e-3
  expected = jax.jit(_by_hand)(m, d, ctrl)
  assert np.any(np.asarray(expected.sensordata)) and np.any(np.asarray(expected.xpos))
  ends = [mjx.jit(lambda u: mjx.rollout(m, d, u)[0])(ctrl)]
  if not keep:
    many = jax.tree.map(lambda x: jnp.stack([x, x]), d)
    each = jax.vmap(lambda d, u: mjx.rollout(m, d, u, checkpoint=3)[0])
    ends.append(jax.tree.map(lambda x: x[1], mjx.jit(each)(many, np.stack([ctrl * 0, ctrl]))))
    if dtype == np.float64:
      ends.append(mjx.rollout(m, d, ctrl, checkpoint=None)[0])  # eager
  for end in ends:
    assert jax.tree.structure(end) == jax.tree.structure(d)
    np.testing.assert_array_equal(end.ctrl, d.ctrl)
    _compare(end, expected, tolerance)


def test_the_end_under_a_policy_and_without_steps(pendula):
  m, many, _ = pendula
  d = jax.tree.map(lambda x: x[0], many)
  policy = lambda m, d: -d.qvel  # noqa: E731
  end = mjx.rollout(m, d, policy, steps=3)[0]
  _compare(end, _by_hand(m, d, range(3), policy), 1e-12)
  assert end.actuator_force != 0
  none = mjx.rollout(m, d, steps=0)[0]
  _compare(none, d, 0)
  each = jax.vmap(lambda d: mjx.rollout(m, d, policy, steps=3)[0])(many)
  _compare(jax.tree.map(lambda x: x[0], each), end, 1e-12)


def test_the_end_of_adaptive_steps(pendula):
  m, many, ctrl = pendula
  d = jax.tree.map(lambda x: x[0], many)
  end = mjx.rollout(m, d, ctrl[0], adaptive=mjx.Adaptive(1e-6))[0]
  before = mjx.rollout(m, d, ctrl[0, :-1], adaptive=mjx.Adaptive(1e-6))[0]
  expected = mjx.forward(m, before.replace(ctrl=ctrl[0, -1]))
  for name in ("qacc", "actuator_force", "xpos", "qfrc_bias"):
    np.testing.assert_allclose(getattr(end, name), getattr(expected, name), rtol=1e-9, err_msg=name)


def test_derivatives_of_the_end(pendula):
  """Of a computed field: as of the same steps one by one; of the state: the same program as without computed fields."""
  m, many, ctrl = pendula
  d = jax.tree.map(lambda x: x[0], many)
  for of in (lambda d: jnp.sum(d.qacc * d.xipos[1, 0]), lambda d: jnp.sum(d.qpos)):
    g = jax.grad(lambda u: of(mjx.rollout(m, d, u)[0]))(ctrl[0])  # noqa: B023
    np.testing.assert_allclose(g, jax.grad(lambda u: of(_by_hand(m, d, u)))(ctrl[0]), rtol=1e-9)  # noqa: B023
  summed = lambda u: jax.vmap(lambda u: mjx.rollout(m, d, u)[0].qacc.sum())(u).sum()  # noqa: E731
  one = lambda u: mjx.rollout(m, d, u)[0].qacc.sum()  # noqa: E731
  np.testing.assert_allclose(jax.grad(summed)(ctrl), jax.vmap(jax.grad(one))(ctrl), rtol=1e-9)


def _loops(jaxpr):
  """Numbers of arrays that the scans of a program carry, those inside the engine's calls too."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "scan":
      yield loop_arguments(eqn)[1]
    inner = [eqn.params]
    if eqn.primitive is worlds.native_p:
      avals = worlds.shapes_of([v.aval for v in eqn.invars])
      inner = [worlds.trace(eqn.params["call"], eqn.params["batched"], avals)]
    for x in jax.tree.leaves(inner, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
      x = getattr(x, "jaxpr", x)
      if hasattr(x, "eqns"):
        yield from _loops(x)


def _carried(function, *args):
  """The most that a loop carries, once JAX has taken out what nobody reads."""
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  alive, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return max(_loops(alive))


def test_what_nobody_reads_is_not_carried(pendula):
  m, many, ctrl = pendula
  d, u = jax.tree.map(lambda x: x[0], many), ctrl[0]
  run = lambda d, u: mjx.rollout(m, d, u)  # noqa: E731
  state = len(jax.tree.leaves({k: getattr(d, k) for k in STEPPED}))
  assert _carried(run, d, u) > 2 * state
  assert _carried(lambda d, u: run(d, u)[1], d, u) <= state + 1  # the number of the step
  assert _carried(lambda d, u: run(d, u)[0].qpos, d, u) <= state + 1
  assert _carried(lambda d, u: run(d, u)[0].sensordata, d, u) <= state + 2
  assert _carried(lambda d, u: batched(m, d, u)[0].qpos, many, ctrl) <= state + 1
  assert _carried(lambda d: mjx.rollout(m, d, lambda m, d: -d.qvel, steps=3)[0].qvel, d) <= state + 1
  # forward mode carries a tangent of each float, reverse mode a cotangent
  assert _carried(jax.grad(lambda u: run(d, u)[0].qpos.sum()), u) <= 2 * state + 2
  assert _carried(jax.grad(lambda u: batched(m, many, u)[0].qpos.sum()), ctrl) <= 2 * state + 2


def test_controls_that_are_lists_are_not_passed_over(pendula):
  m, many, ctrl = pendula
  d = jax.tree.map(lambda x: x[0], many)
  expected = mjx.rollout(m, d, ctrl[0])[0].qpos
  assert expected != d.qpos
  for given in (ctrl[0].tolist(), tuple(map(tuple, ctrl[0].tolist())), np.asarray(ctrl[0])):
    for options in ({}, dict(steps=STEPS)):
      np.testing.assert_allclose(mjx.rollout(m, d, given, **options)[0].qpos, expected, rtol=1e-12)
