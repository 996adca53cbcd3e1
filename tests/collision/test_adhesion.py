"""Contacts that pull, where the other tests do not have them: elliptic, discrete, with capacities; their derivatives."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import SCENES, load

import mjx_lite as mjx
from mjx_lite.testing import compare


def test_stages_equal_c_with_elliptic_cones_in_the_discrete_metric_and_with_capacities():
  spec = mujoco.MjSpec.from_file(str(SCENES / "sticky.xml"))
  spec.option.cone, spec.option.integrator = mujoco.mjtCone.mjCONE_ELLIPTIC, mujoco.mjtIntegrator.mjINT_DISCRETE
  model = compare.optimal(spec.compile())
  engine, data, wrong, dims = compare.Engine(model, ncon_max=24), mujoco.MjData(model), [], set()
  assert engine.m.plan.contact.chosen
  rng = np.random.default_rng(0)
  for i in range(160):
    if i % 10 == 0:
      data.ctrl[:] = rng.uniform(size=model.nu)
      data.xfrc_applied[1:, :3] = 0.5 * rng.normal(size=(model.nbody - 1, 3)) * model.body_mass[1:, None]
      wrong += [f"step {i}: {e}" for e in compare.compare_stages(model, data, engine=engine) if not e.ok]
    mujoco.mj_step(model, data)
    dims |= {(c.geom2, c.dim) for c in data.contact if c.adhesion}
  assert not wrong, "\n".join(wrong[:20])
  ball = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "first")
  assert {(ball, 1), (ball, 6)} <= dims


@pytest.fixture(scope="module")
def step():
  """A ball over a floor by its height and velocity; and the magnet's strength."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <geom type="plane" size="1 1 1" adhesion=".5"/>
        <body><joint type="slide" axis="0 0 1"/><joint type="slide" axis="1 0 0"/>
          <geom name="ball" size=".1" mass=".1" adhesion="1" margin=".02" gap=".03" friction=".7"/></body>
      </worldbody>
    </mujoco>""")
  m = mjx.put_model(compare.optimal(model))

  def after(height, qvel, adhesion):
    d = mjx.make_data(m).replace(qpos=jnp.array([height, 0]), qvel=qvel)
    return mjx.step(m.replace(geom_adhesion=jnp.array([0.5, adhesion])), d)

  def value(x):
    d = after(x[0], x[1:3], x[3])
    return jnp.dot(d.qvel, np.array([1.0, 0.3])), (d.contact.dim[0], d.contact.exclude[0])

  return mjx.jit(jax.vmap(jax.value_and_grad(value, has_aux=True)))


def test_derivatives_in_the_gap_touching_and_between(step):
  # beyond the gap, in it, touching, without adhesion in the gap, and where gap and touch begin
  heights, strength = [0.2, 0.13, 0.11, 0.13, 0.15, 0.12], [1, 1, 1, -0.5, 1, 1]
  x = np.array([[h, -0.1, 0.2, s] for h, s in zip(heights, strength, strict=True)])
  (_, (dim, exclude)), got = step(x)
  np.testing.assert_array_equal(exclude[:4], [-1, 0, 0, 1])
  np.testing.assert_array_equal(dim[1:3], [1, 3])
  assert np.isfinite(got).all()
  differences = [(step(x + h)[0][0] - step(x - h)[0][0]) / 2e-6 for h in 1e-6 * np.eye(4)]
  np.testing.assert_allclose(got[:3], np.stack(differences, axis=1)[:3], rtol=2e-6, atol=1e-8)
  assert abs(got[1, 0]) > 1 and abs(got[2, 0]) > 1  # it matters how far away the floor is


def test_soft_gradients_are_refused():
  m = mjx.put_model(load("sticky"), contact_gradient="smooth")
  with pytest.raises(ValueError, match="adhesion"):
    jax.eval_shape(jax.grad(lambda v: jnp.sum(mjx.step(m, mjx.make_data(m).replace(qvel=v)).qvel)), jnp.zeros(m.nv))


def test_geoms_that_touch_nothing_may_have_adhesion():
  model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><body><joint axis="0 1 0" range="0 1"/><geom size=".1" pos=".3 0 0" adhesion="1"/></body>
    </worldbody></mujoco>""")
  m = mjx.put_model(model)
  assert m.plan.sizes["nefc"] and not m.plan.sizes["ncon"]
  assert jax.eval_shape(mjx.step, m, mjx.make_data(m)).qvel.shape == (1,)
