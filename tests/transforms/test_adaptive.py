"""Steps in substeps of controlled error: the motion, and its derivatives through stiff impacts."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

# a ball that is thrown to the floor in a plane, and rolls and bounces; the force of the contact begins at zero
BALL = """
<mujoco>
  <option gravity="0 0 -2" timestep="0.01" tolerance="1e-12"><flag refsafe="disable"/></option>
  <default><geom solimp="0 0.95 0.001 0.5 2" solref="0.02 0.3"/></default>
  <worldbody>
    <geom type="plane" size="20 20 1"/>
    <body pos="0 0 0.1">
      <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/><geom size="0.05"/>
    </body>
  </worldbody>
</mujoco>
"""
# Paulus et al., arXiv 2506.14186: a cube tossed onto the floor
CUBE = """
<mujoco>
  <option gravity="0 0 -2" timestep="0.01" tolerance="1e-10"><flag refsafe="disable" eulerdamp="disable"/></option>
  <default><geom solimp="0 0.95 0.001 0.5 2" solref="0.005 1"/></default>
  <worldbody>
    <geom type="plane" size="20 20 1" contype="0" conaffinity="1"/>
    <body pos="0 0 0.1"><freejoint/><geom type="box" size="0.05 0.05 0.05" density="100" euler="60 0 0"/></body>
  </worldbody>
</mujoco>
"""
STEPS = 30
STARTS = np.array([[1.0, -1.5, 3.0], [0.3, -0.7, -5.0]])  # velocities of two balls


def model_of(xml, timestep=0.01):
  model = mujoco.MjModel.from_xml_string(xml)
  model.opt.timestep = timestep
  return model


def end_of_c(qvel, timestep):
  """Where C's ball is after the same time, by Euler's method in tiny steps."""
  model = model_of(BALL, timestep)
  data = mujoco.MjData(model)
  data.qvel[:] = qvel
  mujoco.mj_step(model, data, round(0.01 * STEPS / timestep))
  return data.qpos.copy()


def converged(qvel):
  """End, and its derivatives (qpos, qvel), extrapolated to steps of length zero."""
  out = []
  for h in (2e-5, 1e-5):
    ends = [[end_of_c(qvel + e * way, h) for e in (-1e-3, 1e-3)] for way in np.eye(3)]
    out.append((end_of_c(qvel, h), np.stack([(high - low) / 2e-3 for low, high in ends], 1)))
  return [2 * fine - coarse for coarse, fine in zip(*out, strict=True)]


def test_impacts_of_a_ball():
  """Two worlds that touch at other times, each with its own substeps: ends and derivatives are C's in tiny steps."""
  m = mjx.put_model(model_of(BALL))
  d = mjx.make_data(m)
  many = jax.tree.map(lambda x: jnp.stack([x, x]), d)

  def ends(qvel, timestep, weight, o):
    m2 = m.replace(opt=m.opt.replace(timestep=timestep))
    roll = jax.vmap(lambda d: mjx.rollout(m2, d, steps=STEPS, record=(), adaptive=o)[0])
    after = roll(many.replace(qvel=qvel))
    return jnp.vdot(weight, after.qpos), after

  gradient = mjx.jit(jax.grad(ends, argnums=(0, 1), has_aux=True), static_argnums=3)
  fine, h = mjx.Adaptive(1e-8, 1024), m.opt.timestep
  expected = [converged(v) for v in STARTS]
  rows, moments = [], []
  for k in range(3):
    weight = jnp.zeros((2, 3)).at[:, k].set(1)
    (of_qvel, of_timestep), after = gradient(jnp.asarray(STARTS), h, weight, fine)
    rows.append(of_qvel)
    moments.append((of_timestep, STEPS * after.qvel[:, k]))
  assert not after.status.count.any()
  for i, (end, jacobian) in enumerate(expected):
    np.testing.assert_allclose(after.qpos[i], end, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(np.stack([x[i] for x in rows]), jacobian, rtol=2e-2, atol=5e-3 * np.abs(jacobian).max())
  # a longer timestep is more time
  for found, way in moments:
    np.testing.assert_allclose(found, way.sum(), atol=3e-2 * np.abs(way).sum())
  np.testing.assert_allclose(after.time, 0.01 * STEPS)


def test_too_few_substeps_are_marked():
  m = mjx.put_model(model_of(BALL))
  d = mjx.make_data(m).replace(qvel=jnp.asarray(STARTS[0]))
  run = lambda n: mjx.rollout(m, d, steps=STEPS, record=lambda m, d: d.status.bits, adaptive=mjx.Adaptive(1e-6, n))  # noqa: E731
  after, bits = mjx.jit(run, static_argnums=0)(2)
  count = after.status.count[mjx.Warning.SUBSTEPS]
  assert 0 < count < STEPS and (bits >> mjx.Warning.SUBSTEPS & 1).sum() == count
  assert np.isfinite(after.qpos).all()


def test_the_discrete_integrator_is_refused():
  model = model_of(BALL)
  model.opt.integrator = mujoco.mjtIntegrator.mjINT_DISCRETE
  m = mjx.put_model(model)
  with pytest.raises(ValueError, match="discrete"):
    mjx.rollout(m, mjx.make_data(m), steps=2, adaptive=mjx.Adaptive())


def _tossed(m, vertical, **options):
  """Where the cube is after a second, by its vertical velocity at first."""
  d = mjx.make_data(m)
  d = d.replace(qpos=d.qpos.at[2].set(0.2), qvel=d.qvel.at[1].set(-0.1).at[2].set(vertical))
  after, _ = mjx.rollout(m, d, record=(), **options)
  return after.qpos[1]


@pytest.mark.slow
def test_tossed_cube():
  """The derivative is within 5 % of what Euler's method converges to, at far less cost than Euler at 3e-5 s."""
  found = {}
  for h, tolerance in ((0.01, 1e-5), (0.01, 1e-6), (0.01, 1e-7), (1e-5, None)):
    m = mjx.put_model(model_of(CUBE, h))
    o = tolerance and mjx.Adaptive(tolerance)
    f = lambda u, m=m, h=h, o=o: _tossed(m, u, steps=round(1 / h), adaptive=o)  # noqa: E731
    found[tolerance] = mjx.jit(jax.grad(f))(jnp.float64(-2.0))
  for tolerance in (1e-5, 1e-6, 1e-7):
    np.testing.assert_allclose(found[tolerance], found[None], rtol=0.05)
