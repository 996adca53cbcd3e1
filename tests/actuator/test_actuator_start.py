"""What an actuator starts with, and what put_model refuses."""

import jax
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.errors import UnsupportedModelError


def test_history_and_controls_start_as_in_c():
  model = load("delays")
  m = mjx.put_model(model)
  c = mujoco.MjData(model)
  np.testing.assert_array_equal(mjx.make_data(m).history, c.history)
  d = mjx.put_data(m, c)
  many = jax.tree.map(lambda x: np.stack([x, x]), d)
  many.qpos[0] = np.nan  # this world is reset
  many.ctrl[:] = 0.3
  many.history[0] = 99
  after = jax.vmap(mjx.step, in_axes=(None, 0))(m, many)
  mujoco.mj_step(model, c)  # with zero control, as after a reset
  np.testing.assert_array_equal(after.history[0], c.history)
  assert after.history[1, 7] == 0.3  # the first buffer is [user, cursor, 5 times, 5 values]


XML = """<mujoco><worldbody><body><joint name="j"/><geom size=".1"/></body></worldbody>
<actuator><general name="it" joint="j" {}/></actuator></mujoco>"""


def test_refused():
  model = mujoco.MjModel.from_xml_string(XML.format('biastype="dcmotor"'))
  with pytest.raises(UnsupportedModelError, match="actuator 'it'") as e:
    mjx.put_model(model)
  assert "NONE/FIXED/DCMOTOR" in str(e.value)
