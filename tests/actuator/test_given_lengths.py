"""Laws on transmissions that have tests of their own: the forces, given the lengths that C makes."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.actuator import activation
from mjx_lite.io import validate
from mjx_lite.smooth import transmission

ORIENTATION = """
<mujoco>
  <worldbody>
    <body>
      <joint name="ball" type="ball" damping="0.1"/>
      <geom size="0.1" pos="0.1 0.2 0"/>
    </body>
  </worldbody>
  <actuator>
    <orientation joint="ball" kp="2" kv="0.1" forcerange="0 1.5"/>
    <orientation joint="ball" kp="2" kv="0.3" input="quat" nsample="3" delay="0.003"/>
    <general joint="ball" gaintype="so3" biastype="so3" dyntype="integrator" gainprm="3" biasprm="0.2 -3 -.1"/>
    <general joint="ball" gaintype="so3" biastype="so3" dyntype="integrator" gainprm="3" biasprm="0 -3 -.1" actearly="true"
             actrange="-2.5 2.6"/>
    <motor joint="ball" gear="0.3 0.1 0"/>
  </actuator>
</mujoco>
"""


TENDON_AND_SITE = """
<mujoco>
  <worldbody>
    <body>
      <joint name="a" damping="0.1"/>
      <joint name="b" type="slide" damping="1"/>
      <geom size="0.1" pos="0.1 0.2 0"/>
      <body pos="0.3 0 0">
        <joint name="c" type="ball" damping="0.1"/>
        <geom size="0.1" pos="0.1 0.2 0"/>
        <site name="tip" pos="0.1 0 0"/>
      </body>
    </body>
    <site name="ref"/>
  </worldbody>
  <tendon>
    <fixed name="free"><joint joint="a" coef="1"/><joint joint="b" coef="0.3"/></fixed>
    <fixed name="limited" actuatorfrcrange="-1 0.7"><joint joint="a" coef="0.5"/></fixed>
    <fixed name="other" actuatorfrcrange="-0.6 1.7"><joint joint="b" coef="0.5"/></fixed>
  </tendon>
  <actuator>
    <motor tendon="limited"/>
    <motor joint="a"/>
    <position tendon="limited" kp="3" forcerange="-0.6 0.5"/>
    <motor tendon="free" gear="5"/>
    <dcmotor tendon="other" resistance="2" motorconst="0.3" cogging="0.5 3 1"/>
    <motor tendon="other" group="1"/>
    <motor tendon="other" gear="2"/>
    <position site="tip" refsite="ref" gear="0 0 0 0.5 0.2 0" kp="2"/>
    <position site="tip" refsite="ref" gear="0 0 0.1 0.5 0.2 0" kp="2"/>
    <general site="tip" refsite="ref" gear="0 0 0 0.5 0.2 0" gainprm="2" biastype="affine" biasprm="0 -1 0"/>
    <intvelocity site="tip" refsite="ref" gear="0 0 0 0 0.2 0" kp="2"/>
    <pid site="tip" refsite="ref" gear="0 0 0 0 0 0.4" kp="2" ki="1" slewmax="9"/>
  </actuator>
</mujoco>
"""


@pytest.fixture
def put(monkeypatch):
  """put_model that takes any transmission; what it makes is not used."""
  monkeypatch.setattr(validate, "check", lambda m: None)
  monkeypatch.setattr(transmission, "plan", lambda s: None)
  monkeypatch.setattr(transmission, "to_joints", lambda m, moment, force: jnp.zeros((m.nv, force.shape[-1])))
  return mjx.put_model


def test_tendons_and_sites(put):
  """Limits of the total force on a tendon; setpoints on a circle between two sites."""
  model = mujoco.MjModel.from_xml_string(TENDON_AND_SITE)
  model.opt.disableactuator = 2
  m, data, rng = put(model), mujoco.MjData(model), np.random.default_rng(0)
  stage, seen = jax.jit(mjx.fwd_actuation), np.zeros(4, int)
  for i in range(120):
    if i % 4 == 0:
      data.ctrl[:] = 4 * rng.uniform(-1, 1, model.nu)
    mujoco.mj_forward(model, data)
    ours = stage(m, mjx.put_data(m, data))
    for field in ("actuator_force", "act_dot"):
      np.testing.assert_allclose(getattr(ours, field), getattr(data, field), rtol=1e-11, atol=1e-12, err_msg=f"{i} {field}")
    total = data.actuator_force[0] + data.actuator_force[2]
    seen += np.isclose([total, total, data.actuator_force[2], data.actuator_force[2]], [-1, 0.7, -0.6, 0.5])
    mujoco.mj_step(model, data)
  assert seen.all()


def test_orientation(put):
  model = mujoco.MjModel.from_xml_string(ORIENTATION)
  m, data, rng = put(model), mujoco.MjData(model), np.random.default_rng(0)
  np.testing.assert_array_equal(mjx.make_data(m).ctrl, data.ctrl)
  np.testing.assert_array_equal(mjx.make_data(m).history, data.history)
  stage, wrapped = jax.jit(mjx.fwd_actuation), 0
  advance = jax.jit(lambda *x: activation.advance(jax.tree.map(lambda y: y[..., None], m), *(y[:, None] for y in x))[:, 0])
  for i in range(200):
    if i % 10 == 0:
      data.ctrl[:] = 4 * rng.uniform(-1, 1, model.nu)
      data.ctrl[3:7] *= i % 3 > 0  # a zero quaternion means the identity
    if i % 50 == 20:
      data.act[:] = 3.4 * rng.uniform(-1, 1, model.na)
    mujoco.mj_forward(model, data)
    ours = stage(m, mjx.put_data(m, data))
    for field in ("actuator_force", "act_dot"):
      np.testing.assert_allclose(getattr(ours, field), getattr(data, field), rtol=1e-11, atol=1e-12, err_msg=f"{i} {field}")
    act = advance(data.act, data.act_dot, data.actuator_length, data.actuator_velocity)
    plain = data.act + model.opt.timestep * data.act_dot
    mujoco.mj_step(model, data)
    np.testing.assert_allclose(act, data.act, rtol=1e-12, atol=1e-13)
    wrapped += np.abs(plain[:3] - data.act[:3]).max() > 1
  assert wrapped


def test_gradient_of_orientation_is_finite_at_rest(put):
  m = put(mujoco.MjModel.from_xml_string(ORIENTATION))
  d = mjx.make_data(m)

  def f(ctrl, act, length, velocity, gain):
    m2 = m.replace(actuator_gainprm=gain)
    out = mjx.fwd_actuation(m2, d.replace(ctrl=ctrl, act=act, actuator_length=length, actuator_velocity=velocity))
    return jnp.dot(out.actuator_force, jnp.arange(1.0, 1 + m.nout))

  zero = jnp.zeros(m.nout)
  for ctrl in (d.ctrl, d.ctrl * 0, d.ctrl + 1):
    g = jax.jit(jax.grad(f, argnums=range(5)))(ctrl, d.act, zero, zero, m.actuator_gainprm)
    assert all(np.isfinite(x).all() for x in g)
  assert np.any(g[0]) and np.any(g[1]) and np.any(g[2])
