"""The user's functions in the loop against MuJoCo's callbacks; under vmap and grad; what is missing or wrong is said."""

import contextlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.testing import compare

XML = """
<mujoco>
  <option timestep="0.005" integrator="{integrator}"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 1"/>
    <body name="a" pos="0 0 0.5">
      <joint name="x" axis="0 1 0" damping="0.1"/><geom size="0.05" fromto="0 0 0 0.3 0 0" type="capsule"/>
      <body pos="0.3 0 0"><joint name="y" axis="0 1 0"/><geom size="0.05" fromto="0 0 0 0.3 0 0" type="capsule"/></body>
    </body>
    <body name="b" pos="1 0 0.09"><freejoint/><geom size="0.1"/></body>
    <body name="c" pos="1 1 0.09"><freejoint/><geom size="0.1"/></body>
  </worldbody>
  <actuator>
    <motor joint="x"/>
    <general joint="y" dyntype="user" gaintype="user" biastype="user" actdim="2"/>
    <general joint="x" dyntype="user" gaintype="fixed" gainprm="2"/>
  </actuator>
  <sensor>
    <user name="p" dim="2" needstage="pos"/><user name="v" dim="1" needstage="vel" cutoff="0.5"/>
    <jointvel joint="x"/><user name="f" dim="1" needstage="acc"/><user name="p1" dim="1" needstage="pos"/>
  </sensor>
</mujoco>"""


# written for numpy and jax arrays alike
def control(m, d, xp=jnp):
  return xp.stack([xp.sin(3 * d.time) - 0.1 * d.qvel[0], 0.3 + d.qpos[1], d.xpos[2, 0]])


def passive(m, d, xp=jnp):
  return -0.05 * d.qvel * abs(d.qvel) + 0.1 * d.qfrc_damper


def act_dyn(m, d, xp=jnp):
  return xp.stack([d.act[1], d.ctrl[1] - 3 * d.act[0] - d.act[1], d.ctrl[2] - d.act[2] ** 3])


def act_gain(m, d, xp=jnp):
  return xp.stack([0.0, 1 + d.actuator_length[1] ** 2, 0.0])


def act_bias(m, d, xp=jnp):
  return xp.stack([0.0, -0.2 * d.actuator_velocity[1], 0.0])


def sensor(m, d, stage, xp=jnp):
  values = {
    mjx.Stage.POS: lambda: xp.stack([d.xpos[2, 0], d.qpos[0] * d.qpos[1], d.time]),
    mjx.Stage.VEL: lambda: xp.stack([d.cvel[2, 1]]),
    mjx.Stage.ACC: lambda: xp.stack([d.qacc[0]]),
  }
  return values[stage]()


def contact(m, d):
  return ~jnp.any(d.contact.geom == 4, axis=1)  # the last ball falls through the floor


ALL = mjx.Callbacks(control, passive, contact, sensor, act_dyn, act_gain, act_bias)


@contextlib.contextmanager
def callbacks_of_c():
  stacked = type("xp", (), {"stack": staticmethod(lambda x: np.array(x, float)), "sin": np.sin})
  called = {"control": 0}

  def set_control(m, d):
    called["control"] += 1
    d.ctrl[:] = control(m, d, stacked)

  def set_passive(m, d):
    d.qfrc_passive[:] += passive(m, d)

  def set_sensor(m, d, stage):
    mine = [i for i in range(m.nsensor) if m.sensor_type[i] == mjx.SensorType.USER and m.sensor_needstage[i] == stage]
    place = np.concatenate([m.sensor_adr[i] + np.arange(m.sensor_dim[i]) for i in mine])
    d.sensordata[place] = sensor(m, d, mjx.Stage(int(stage)), stacked)

  def rates(m, d, i):
    d.act_dot[:2] = act_dyn(m, d, stacked)[:2]
    return float(act_dyn(m, d, stacked)[2])

  setters = {
    mujoco.set_mjcb_control: set_control, mujoco.set_mjcb_passive: set_passive, mujoco.set_mjcb_sensor: set_sensor,
    mujoco.set_mjcb_contactfilter: lambda m, d, a, b: int(4 in (a, b)), mujoco.set_mjcb_act_dyn: rates,
    mujoco.set_mjcb_act_gain: lambda m, d, i: float(act_gain(m, d, stacked)[i]),
    mujoco.set_mjcb_act_bias: lambda m, d, i: float(act_bias(m, d, stacked)[i]),
  }  # fmt: skip
  try:
    for put, function in setters.items():
      put(function)
    yield called
  finally:
    for put in setters:
      put(None)


def load(integrator="Euler"):
  return compare.optimal(mujoco.MjModel.from_xml_string(XML.format(integrator=integrator)))


# P23
@pytest.mark.parametrize("integrator", ["RK4", "implicit"])
def test_equal_to_c(integrator):
  model = load(integrator)
  m, c = mjx.put_model(model), mujoco.MjData(model)
  d, step = mjx.make_data(m), mjx.jit(lambda m, d: mjx.step(m, d, callbacks=ALL))
  with callbacks_of_c() as called:
    for _ in range(40):
      d = step(m, d)
      mujoco.mj_step(model, c)
  assert called["control"] == 40 * (4 if integrator == "RK4" else 1)
  for name in ("qpos", "qvel", "act", "ctrl", "sensordata", "qfrc_passive", "qfrc_actuator", "actuator_force"):
    np.testing.assert_allclose(getattr(d, name), getattr(c, name), rtol=1e-9, atol=1e-10, err_msg=name)
  assert c.xpos[4, 2] < 0.05 < c.xpos[3, 2] and d.sensordata[2] == 0.5


def test_rollout_batch_and_gradient():
  """A rollout of a batch is steps one after another; derivatives go through the functions."""
  m = mjx.put_model(load())
  d = mjx.make_data(m)
  d = d.replace(qvel=d.qvel + 0.3)
  step = mjx.jit(lambda m, d: mjx.step(m, d, callbacks=ALL))
  one = step(m, step(m, d))
  two = lambda d: mjx.rollout(m, d, steps=2, callbacks=ALL)[0].qpos  # noqa: E731
  many = jax.vmap(lambda s: d.replace(qvel=s * d.qvel))(jnp.array([0.5, 1.0, 2.0]))
  qpos = mjx.jit(jax.vmap(two))(many)
  np.testing.assert_allclose(qpos[1], one.qpos, rtol=1e-12, atol=1e-12)
  assert np.any(qpos[0] != qpos[1])
  arm = lambda s: two(d.replace(qpos=d.qpos.at[0].add(s)))[1]  # noqa: E731
  both = mjx.jit(jax.value_and_grad(arm))
  (_, slope), (right, _), (left, _) = (both(0.1 + s) for s in (0, 1e-6, -1e-6))
  np.testing.assert_allclose(slope, (right - left) / 2e-6, rtol=1e-6)


def test_what_is_missing_is_said():
  m = mjx.put_model(load())
  d = mjx.make_data(m)
  for name in ("sensor", "act_dyn", "act_gain", "act_bias"):
    with pytest.raises(ValueError, match=rf"elements of type USER.*Callbacks\({name}=\.\.\.\)"):
      jax.eval_shape(lambda d, name=name: mjx.step(m, d, callbacks=ALL._replace(**{name: None})), d)
  with pytest.raises(ValueError, match=r"callback control has to return an array of shape \(3,\), not \(2,\)"):
    jax.eval_shape(lambda d: mjx.step(m, d, callbacks=ALL._replace(control=lambda m, d: jnp.zeros(2))), d)
