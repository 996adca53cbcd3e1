"""Weakly typed arrays, as `jnp.full(3, 0.2)`: no result is one, and a second call compiles nothing."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import control

XML = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 .11"><joint name="up" type="slide" axis="0 0 1" range="-.005 1" limited="true"/><geom size=".1"/></body>
  </worldbody>
  <actuator><motor joint="up" ctrlrange="-1 1"/></actuator>
  <keyframe><key qpos=".1"/></keyframe>
</mujoco>
"""
COST = control.Cost(lambda m, d, u: jnp.concatenate([d.qpos, u]), lambda m, d: d.qpos)


def weak(*shape):
  x = jnp.full(shape, 0.2)
  assert x.weak_type
  return x


def _scene(dtype=np.float64):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML), dtype=dtype)
  return m, mjx.make_data(m)


def _weakened(x):
  """The same tree with weakly typed floats."""
  return jax.tree.map(lambda x: weak(*x.shape) if jnp.issubdtype(x.dtype, jnp.floating) else x, x)


RESULTS = {
  "make_data": lambda m, d: mjx.make_data(_weakened(m)),
  "replace": lambda m, d: d.replace(ctrl=weak(1), qpos=weak(1), contact=d.contact.replace(dist=weak(1))),
  "tree_replace": lambda m, d: (d.tree_replace({"contact.dist": weak(1)}), m.tree_replace({"opt.timestep": weak()})),
  "replace of a Model": lambda m, d: m.replace(body_mass=weak(2), opt=m.opt.replace(gravity=weak(3), timestep=0.2)),
  "with_params": lambda m, d: m.with_params(body_mass=weak(2)),
  "set_const": lambda m, d: mjx.set_const(_weakened(m)),
  "step": lambda m, d: mjx.step(m, _weakened(d)),
  "kinematics": lambda m, d: mjx.kinematics(_weakened(m), _weakened(d)),
  "reset": lambda m, d: mjx.reset(m, _weakened(d), False, 0),
  "where": lambda m, d: mjx.where(True, _weakened(d), _weakened(d)),
  "set_state": lambda m, d: mjx.set_state(m, d, weak(1), int(mjx.State.QPOS)),
  "bind": lambda m, d: d.bind(m, m.joint("up")).set("qpos", 0.3),
  "rollout": lambda m, d: mjx.rollout(m, _weakened(d), weak(3, 1)),
  "rollout under a policy": lambda m, d: mjx.rollout(m, _weakened(d), lambda m, d: weak(1), steps=2),
  "transition_jac": lambda m, d: mjx.transition_jac(m, _weakened(d)),
  "local_to_global": lambda m, d: mjx.local_to_global(weak(3), weak(4), weak(3), weak(4)),
  "integrate_pos": lambda m, d: mjx.integrate_pos(m, weak(1), weak(1), 0.1),
  "simulate": lambda m, d: control.simulate(m, _weakened(d), weak(3, 1), COST),
  "ilqr": lambda m, d: control.ilqr(m, d, weak(3, 1), COST, iterations=2),
  "shoot": lambda m, d: control.shoot(m, d, weak(3, 1), COST, iterations=2, bounds=(weak(1) - 1, weak(1))),
  "lqr": lambda m, d: control.lqr(weak(2, 2), weak(2, 1), weak(2, 2) + jnp.eye(2), weak(1, 1)),
  **{
    method: lambda m, d, method=method: control.improve(
      m, d, control.Plan(weak(3, 1), weak(3, 1)), COST, jax.random.key(0), length=3, method=method, samples=4
    )
    for method in ("predictive", "mppi", "cem")
  },
}


@pytest.mark.parametrize("name", RESULTS)
def test_no_result_is_weakly_typed(name):
  m, d = _scene()
  for x in jax.tree.leaves(jax.jit(RESULTS[name])(m, d)):
    assert not x.weak_type


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_have_the_types_of_the_model(dtype):
  m, d = _scene(dtype)
  end, record = mjx.rollout(m, d, weak(2, 1))
  assert all(x.dtype == dtype and not x.weak_type for x in (end.qpos, end.time, record["qpos"]))
  assert [x.dtype for x in jax.tree.leaves(end)] == [x.dtype for x in jax.tree.leaves(d)]


OPTIMISERS = {
  "shoot": (lambda m, d, u: control.shoot(m, d, u, COST, iterations=2).ctrl, lambda: weak(3, 1)),
  "ilqr": (lambda m, d, u: control.ilqr(m, d, u, COST, iterations=2).ctrl, lambda: weak(3, 1)),
  "improve": (
    lambda m, d, u: control.improve(m, d, u, COST, jax.random.key(0), length=3, samples=4)[0],
    lambda: control.Plan(weak(3, 1), weak(3, 1)),
  ),
  "rollout": (lambda m, d, u: mjx.rollout(m, d, u)[1]["qpos"], lambda: weak(3, 1)),
}


@pytest.mark.parametrize("jit", [jax.jit, mjx.jit])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_second_call_of_an_optimiser_compiles_nothing(name, jit):
  m, d = _scene()
  function, start = OPTIMISERS[name]
  compiled, u = jit(function), start()
  for _ in range(3):
    u = compiled(m, d, u)
  # with plain `jax.jit`: once for what is weakly typed, once for all that comes after
  assert compiled._cache_size() == 1 + (jit is jax.jit and jax.tree.leaves(start())[0].weak_type)


@pytest.mark.parametrize("how", [jax.jit, mjx.jit, lambda f: mjx.jit(f, one_world=True)])
def test_a_changed_data_compiles_nothing(how):
  m, d = _scene()
  step = how(lambda m, d: mjx.step(m, d))
  after = step(m, d)
  size = step._cache_size()
  for ctrl in (weak(1), jnp.zeros(1)):
    after = step(m, after.replace(ctrl=ctrl, time=0.5))
  assert step._cache_size() == size


@pytest.mark.parametrize(("model", "given"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_arrays_of_another_precision_become_the_model_s(model, given):
  """In steps and rollouts of one world and of many, and in derivatives."""
  m, d = _scene(model)
  height = np.array([0.02], given)
  mass = m.body_mass.astype(given)
  other = m.replace(body_mass=mass), d.replace(qpos=jnp.asarray(height))
  own = m.replace(body_mass=mass.astype(model)), d.replace(qpos=jnp.asarray(height, model))
  batch = jax.vmap(lambda m, d: mjx.rollout(m, d, steps=2)[0], in_axes=(None, 0))
  many = [jax.tree.map(lambda x: jnp.stack([x, x]), d) for _, d in (other, own)]
  functions = [(mjx.step, other, own), (lambda m, d: mjx.rollout(m, d, steps=2)[0], other, own),
               (batch, (other[0], many[0]), (own[0], many[1]))]  # fmt: skip
  for function, a, b in functions:
    for x, y in zip(*(jax.tree.leaves(jax.jit(function)(*z)) for z in (a, b)), strict=True):
      assert x.dtype == y.dtype
      np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-14)
  slope = jax.grad(lambda q: mjx.rollout(m, d.replace(qpos=q), steps=2)[0].qvel.sum())(jnp.asarray(height))
  assert slope.dtype == given and np.isfinite(slope).all()
