"""An arm whose links differ in mass by 1e5, in float32: finite, without resets, and near to what C gives in float64."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx

LINK = (
  '<body pos=".3 0 0"><joint axis="{}" range="-60 60" damping=".02"/>'
  '<geom type="capsule" size=".03" fromto="0 0 0 .3 0 0" mass="{}"/>'
)
LINKS = 6
ARM = (
  '<mujoco><compiler autolimits="true"/><option timestep="0.002" iterations="20"/><worldbody><geom type="plane" size="5 5 .1"/>'
  '<body pos="0 0 .4">'
  + "".join(LINK.format("0 1 0" if i % 2 else "0 .3 1", 10.0 if i % 2 else 1e-4) for i in range(LINKS))
  + "</body>" * LINKS
  + "</body></worldbody></mujoco>"
)


def test_float32_stays_finite():
  model = mujoco.MjModel.from_xml_string(ARM)
  m = mjx.put_model(model, dtype=np.float32)
  assert model.body_mass[2:].max() / model.body_mass[2:].min() > 0.99e5

  def step(d, force):
    d = mjx.step(m, d.replace(qfrc_applied=force))
    return d, (d.qpos, jnp.abs(d.qvel).max())

  rng = np.random.default_rng(0)
  force = np.repeat(20 * rng.normal(size=(20, model.nv)), 50, axis=0).astype(np.float32)
  d, (qpos, speed) = mjx.jit(lambda d, f: jax.lax.scan(step, d, f))(mjx.make_data(m), jnp.asarray(force))
  assert d.qpos.dtype == np.float32
  assert np.isfinite(qpos).all() and np.asarray(speed).max() < 1e3
  assert np.asarray(d.status.count)[int(mjx.Warning.RESET)] == 0
  data = mujoco.MjData(model)
  for i in range(20):
    data.qfrc_applied[:] = force[i]
    mujoco.mj_step(model, data)
  np.testing.assert_allclose(qpos[19], data.qpos, atol=1e-3)
  assert np.ptp(qpos, axis=0).max() > 0.3
