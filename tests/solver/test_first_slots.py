"""Models with room for many contacts: the solver looks at few of them where no more are there, with the same result."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

_GEOMS = "".join(f'<geom size="0.05" pos="{0.2 * i} {0.2 * j} 0"/>' for i in range(18) for j in range(15))
_XML = f"""
<mujoco><option solver="{{}}" cone="{{}}" iterations="200" tolerance="0"/>
  <default><geom type="sphere" contype="0" conaffinity="1" condim="3"/></default>
  <worldbody>
    <geom type="plane" size="5 5 0.1" contype="1" conaffinity="0"/>
    <body pos="0 0 0.0499"><freejoint/>{_GEOMS}</body>
    <body pos="-1 0 0.2"><joint axis="0 1 0" range="0 20" frictionloss="0.01"/><geom size="0.05" pos="0.3 0 0"/></body>
    <body pos="-2 0 0.3"><freejoint/><geom size="0.1"/><geom size="0.1" pos="0.5 0 0"/><geom size="0.1" pos="0 0.5 0"/></body>
  </worldbody>
</mujoco>"""
ROOM = 272  # of 274


def _states(model):
  """Where 18, 48, 270 and no contacts are."""
  tilted, deep, flat, high = (mujoco.MjData(model) for _ in range(4))
  for d, below in ((tilted, 0.0), (deep, 0.05)):
    d.qpos[3:7] = [np.cos(0.05), 0, np.sin(0.05), 0]
    d.qpos[2] = 0.0499 + 3.4 * np.sin(0.1) - below
    d.qpos[10] = 0.0995
  high.qpos[2] = 1
  for d in (tilted, deep, flat, high):
    d.qvel[:] = np.random.default_rng(0).normal(size=model.nv) * 0.1
    d.qpos[7] = -0.01
    mujoco.mj_forward(model, d)
  assert (tilted.ncon, deep.ncon, flat.ncon, high.ncon) == (18, 48, 270, 0)
  return tilted, deep, flat, high


def _batch(m, states):
  return jax.tree.map(lambda *x: jnp.stack(x), *(mjx.put_data(m, d) for d in states))


@pytest.mark.parametrize(("solver", "cone"), [("Newton", "elliptic"), pytest.param("PGS", "pyramidal", marks=pytest.mark.slow)])
def test_few_and_many_contacts_are_solved_alike(solver, cone):
  """In worlds that are solved together all have few, or one has more, or many."""
  model = mujoco.MjModel.from_xml_string(_XML.format(solver, cone))
  m, whole = mjx.put_model(model, ncon_max=ROOM), mjx.put_model(model, ncon_max="all")
  first = m.plan.contact.first_slots
  found = first.ncon, first.first_slots.ncon, first.first_slots.first_slots, whole.plan.contact.first_slots
  assert found == (68, 32, None, None)
  forward = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))
  tilted, deep, flat, high = _states(model)
  for pair in ((tilted, high), (tilted, deep), (tilted, flat)):
    found, expected = (forward(x, _batch(x, pair)) for x in (m, whole))
    for k, s in enumerate(pair):
      scale = 1 + np.abs(s.qacc).max()
      np.testing.assert_allclose(found.qacc[k], expected.qacc[k], atol=1e-7 * scale)
      if solver == "Newton":
        np.testing.assert_allclose(found.qacc[k], s.qacc, atol=1e-7 * scale)
      forces, expected_forces = (np.sort(np.asarray(x.efc_force[k])) for x in (found, expected))
      for end in (slice(None, 30), slice(-30, None)):  # the others are zeros of empty slots
        np.testing.assert_allclose(forces[end], expected_forces[end], atol=1e-5 * np.abs(expected_forces).max())


def test_gradient_of_few_contacts_is_that_of_differences():
  model = mujoco.MjModel.from_xml_string(_XML.format("Newton", "elliptic"))
  m = mjx.put_model(model, ncon_max=ROOM)
  d = mjx.put_data(m, _states(model)[0])
  direction = np.random.default_rng(1).normal(size=model.nv)
  qacc = jax.jit(lambda v: mjx.forward(m, d.replace(qvel=v)).qacc)
  _, slope = jax.jvp(qacc, (d.qvel,), (jnp.asarray(direction),))
  step = 1e-6
  difference = (qacc(d.qvel + step * direction) - qacc(d.qvel - step * direction)) / (2 * step)
  np.testing.assert_allclose(slope, difference, atol=1e-5 * np.abs(difference).max())
  back = jax.grad(lambda v: jnp.sum(qacc(v) ** 2))(d.qvel)
  np.testing.assert_allclose(back @ direction, 2 * qacc(d.qvel) @ slope, rtol=1e-9)
