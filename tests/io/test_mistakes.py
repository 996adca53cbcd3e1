"""What a user gets wrong is named, with what to do."""

import jax
import jax.numpy as jnp
import mujoco
import pytest

import mjx_lite as mjx
from mjx_lite import envs

XML = """
<mujoco>
  <worldbody><body><joint name="x" type="slide"/><geom size=".1"/></body></worldbody>
  <actuator><motor joint="x"/></actuator>
</mujoco>
"""


def _scene():
  mj_model = mujoco.MjModel.from_xml_string(XML)
  m = mjx.put_model(mj_model)
  return mj_model, m, mjx.make_data(m)


MISTAKES = {
  "ctrl of another rank": (lambda _, m, d: mjx.step(m, d.replace(ctrl=jnp.zeros((1, 1)))), ValueError, r"ctrl has .*\(1, 1\)"),
  "a list": (lambda _, m, d: mjx.step(m, d.replace(ctrl=[1.0])), TypeError, "ctrl has to be an array, not list"),
  "step of MjData": (lambda x, m, _: mjx.step(m, mujoco.MjData(x)), TypeError, "use put_data"),
  "make_data of nothing": (lambda *_: mjx.make_data(None), TypeError, "not NoneType"),
  "put_data of a Data": (lambda x, _, d: mjx.put_data(x, d), TypeError, "not Data"),
  "get_data of a Model": (lambda _, m, d: mjx.get_data(m, d), TypeError, "not Model and Data"),
  "steps below zero": (lambda _, m, d: mjx.rollout(m, d, steps=-3), ValueError, "steps .* not -3"),
  "steps and a half": (lambda _, m, d: mjx.rollout(m, d, steps=2.5), ValueError, "steps .* not 2.5"),
  "a record of no field": (lambda _, m, d: mjx.rollout(m, d, steps=2, record=("qposs",)), ValueError, "'qposs'"),
  "a parameter that is none": (lambda _, m, __: m.with_params(bodymass=1), ValueError, "no field 'bodymass'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_names_it(name):
  make, kind, message = MISTAKES[name]
  with pytest.raises(kind, match=message):
    make(*_scene())


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_one_key_for_many_worlds(key):
  many = envs.wrap(envs.load("pendulum"), episode_length=10)
  with pytest.raises(ValueError, match="split"):
    many.reset(key(0))
