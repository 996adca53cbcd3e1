"""Orientation servos, setpoints on circles between sites, and limits of the total force on a tendon."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from test_actuator_trajectories import compare_along

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal

SERVOS = """
<mujoco>
  <worldbody>
    <site name="ref" euler="10 20 30"/>
    <body>
      <joint name="ball" type="ball" damping="0.1" armature="0.02"/>
      <geom size="0.1" pos="0.1 0.2 0"/>
      <site name="tip" pos="0.1 0 0" euler="30 0 50"/>
    </body>
  </worldbody>
  <actuator>
    <orientation joint="ball" kp="2" kv="0.1" forcerange="0 1.5"/>
    <orientation joint="ball" kp="2" kv="0.3" input="quat" nsample="3" delay="0.003"/>
    <general joint="ball" gaintype="so3" biastype="so3" dyntype="integrator" gainprm="3" biasprm="0.2 -3 -.1"/>
    <general joint="ball" gaintype="so3" biastype="so3" dyntype="integrator" gainprm="3" biasprm="0 -3 -.1" actearly="true"
             actrange="-2.5 2.6"/>
    <orientation site="tip" refsite="ref" kp="1" kv="0.1"/>
    <position site="tip" refsite="ref" gear="0 0 0 0.5 0.2 0" kp="0.6"/>
    <position site="tip" refsite="ref" gear="0 0 0.1 0.5 0.2 0" kp="0.5"/>
    <general site="tip" refsite="ref" gear="0 0 0 0.5 0.2 0" gainprm="0.2" biastype="affine" biasprm="0 -1 0"/>
    <intvelocity site="tip" refsite="ref" gear="0 0 0 0 0.2 0" kp="0.2"/>
    <pid site="tip" refsite="ref" gear="0 0 0 0 0 0.4" kp="0.2" ki="1" slewmax="9"/>
  </actuator>
</mujoco>
"""


def test_servos():
  """Targets beyond half a turn, states that are put on the other side, a quaternion that is zero."""
  model, rng, reanchored = optimal(mujoco.MjModel.from_xml_string(SERVOS)), np.random.default_rng(0), []

  def control(i, data):
    if i % 10 == 0:
      data.ctrl[:] = 4 * rng.uniform(-1, 1, model.nu)
      data.ctrl[3:7] *= i % 3 > 0
    if i % 40 == 20:
      data.act[:] = 3.4 * rng.uniform(-1, 1, model.na)
    reanchored.append(np.linalg.norm(data.act[:3]) > np.pi + 0.05)

  wrong, _ = compare_along(model, 160, control)
  assert any(reanchored)
  assert not wrong, "\n".join(wrong[:20])


def test_gradient_of_servos_is_finite_at_rest():
  model = mujoco.MjModel.from_xml_string(SERVOS)
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  np.testing.assert_array_equal(d.ctrl, mujoco.MjData(model).ctrl)
  np.testing.assert_array_equal(d.history, mujoco.MjData(model).history)

  def f(ctrl, act, length, velocity, gain):
    m2 = m.replace(actuator_gainprm=gain)
    out = mjx.fwd_actuation(m2, d.replace(ctrl=ctrl, act=act, actuator_length=length, actuator_velocity=velocity))
    return jnp.dot(out.actuator_force, jnp.arange(1.0, 1 + m.nout))

  zero, grad = jnp.zeros(m.nout), jax.jit(jax.grad(f, argnums=range(5)))
  for ctrl in (d.ctrl, d.ctrl * 0, d.ctrl + 1):
    g = grad(ctrl, d.act, zero, zero, m.actuator_gainprm)
    assert all(np.isfinite(x).all() for x in g)
  assert np.any(g[0]) and np.any(g[1]) and np.any(g[2])


TENDONS = """
<mujoco>
  <worldbody>
    <body>
      <joint name="a" damping="0.1"/>
      <joint name="b" type="slide" damping="1"/>
      <geom size="0.1" pos="0.1 0.2 0"/>
    </body>
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
  </actuator>
</mujoco>
"""


def test_limits_of_tendons():
  """Each end of the range of a tendon and of an actuator on it is reached; a group is off."""
  model, rng, seen = optimal(mujoco.MjModel.from_xml_string(TENDONS)), np.random.default_rng(0), np.zeros(4, int)
  model.opt.disableactuator = 2

  def control(i, data):
    force = data.actuator_force  # of the step before
    seen[:] += np.isclose([force[0] + force[2]] * 2 + [force[2]] * 2, [-1, 0.7, -0.6, 0.5])
    if i % 4 == 0:
      data.ctrl[:] = 4 * rng.uniform(-1, 1, model.nu)

  wrong, _ = compare_along(model, 120, control)
  assert seen.all()
  assert not wrong, "\n".join(wrong[:20])
