"""Sensors of energy, with the flag ENERGY and without it."""

import jax
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

SCENE = """
<mujoco>
  <option><flag energy="{flag}"/></option>
  <worldbody><body><joint axis="0 1 0" stiffness="2"/><geom type="capsule" size=".03" fromto="0 0 0 .3 0 0"/></body></worldbody>
  <sensor><e_potential/><e_kinetic/></sensor>
</mujoco>
"""


@pytest.mark.parametrize("transform", ["eager", "jit", "vmap"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("flag", ["enable", "disable"])
def test_both_are_of_the_present_state(flag, dtype, transform):
  model = mujoco.MjModel.from_xml_string(SCENE.format(flag=flag))
  data = mujoco.MjData(model)
  mujoco.mj_step(model, data, 50)
  m = mjx.put_model(model, dtype=dtype)
  d = mjx.put_data(m, data)
  if transform == "vmap":
    many = jax.tree.map(lambda x: np.stack([x, x]), d)
    d = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many))
  else:
    d = (jax.jit(mjx.forward) if transform == "jit" else mjx.forward)(m, d)
  mujoco.mj_forward(model, data)
  mujoco.mj_energyPos(model, data), mujoco.mj_energyVel(model, data)
  potential, kinetic = data.energy
  tolerance = 1e-12 if dtype == np.float64 else 1e-5
  np.testing.assert_allclose(d.sensordata, [potential, kinetic], rtol=tolerance)
  assert kinetic > 0.01 and abs(data.sensordata[0] / potential - 1) < 1e-12
  # C's differs as `sensor_pos` says
  assert (abs(data.sensordata[1] / kinetic - 1) < 1e-12) == (flag == "disable")
