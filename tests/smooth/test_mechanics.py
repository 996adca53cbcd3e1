"""What MuJoCo says of joints, frames, actuators, tendons and springs, one by one, in a model without any geom.

Numbers follow from the definitions; the parity of every stage with C is tests/parity.
"""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

XML = """
<mujoco>
  <option timestep="0.004"/>
  <default><joint armature="0.01"/></default>
  <worldbody>
    <site name="w0" pos="0 0 3"/><site name="w1" pos="2 0 3"/><site name="w2" pos="2 0 4"/>
    <body name="free" pos="0 0 1" euler="10 20 30"><joint name="free" type="free" stiffness="20"/>
      <inertial pos="0.1 0.05 0" mass="2" diaginertia="0.1 0.2 0.25"/>
      <site name="tip" pos="0.1 0.2 0.3" euler="40 0 20"/></body>
    <body name="xy" pos="1 0 0"><joint name="x" axis="1 0 0"/><joint name="y" axis="0 1 0"/>
      <inertial pos="0 0 0.1" mass="1" diaginertia="0.1 0.1 0.1"/></body>
    <body name="yx" pos="2 0 0"><joint name="y2" axis="0 1 0"/><joint name="x2" axis="1 0 0"/>
      <inertial pos="0 0 0.1" mass="1" diaginertia="0.1 0.1 0.1"/></body>
    <body name="ball" pos="3 0 0" euler="0 50 0"><joint name="ball" type="ball" stiffness="5" limited="true" range="0 30"/>
      <inertial pos="0 0 0.1" mass="1" diaginertia="0.1 0.1 0.1"/></body>
    <body name="arm" pos="4 0 0"><joint name="h" axis="0 1 0"/><inertial pos="0.2 0 0" mass="1" diaginertia="0.1 0.1 0.1"/>
      <body name="fore" pos="0.4 0 0"><joint name="k" axis="0 1 0"/>
        <inertial pos="0.2 0 0" mass="1" diaginertia="0.1 0.1 0.1"/></body></body>
    <body name="target" mocap="true" pos="5 0 1"/>
    <body name="led" pos="5 0 1"><freejoint/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.1 0.1"/></body>
  </worldbody>
  <tendon>
    <fixed name="sum"><joint joint="h" coef="1.5"/><joint joint="k" coef="-2"/></fixed>
    <spatial name="pulley"><site site="w0"/><site site="w1"/><pulley divisor="2"/><site site="w1"/><site site="w2"/></spatial>
    <spatial name="straight"><site site="w0"/><site site="tip"/></spatial>
  </tendon>
  <equality><weld body1="led" body2="target"/></equality>
  <actuator>
    <motor name="joint" joint="free" gear="1 2 3 0.4 0.5 0.6"/>
    <motor name="parent" jointinparent="free" gear="1 2 3 0.4 0.5 0.6"/>
    <motor name="site" site="tip" gear="1 2 3 0.4 0.5 0.6"/>
    <motor name="turn" joint="ball" gear="0 0 3"/>
    <position name="position" joint="h" kp="2" gear="3"/>
    <motor name="motor" joint="k" gear="3"/>
    <general name="filter" joint="x" dyntype="filter" dynprm="0.1" gainprm="2"/>
    <general name="integrator" joint="y" dyntype="integrator" gainprm="2"/>
    <motor name="clamped" joint="x2" ctrlrange="-1 1"/>
    <motor name="strong" joint="y2" ctrlrange="-3 3" forcerange="-2 2"/>
  </actuator>
</mujoco>"""

TURN = np.full(4, 0.5)  # by 120 degrees about (1, 1, 1)
GEAR = np.array([1, 2, 3, 0.4, 0.5, 0.6])


@pytest.fixture(scope="module")
def world():
  """Models of C and ours, our Data at the start, and forward compiled."""
  model = mujoco.MjModel.from_xml_string(XML)
  m = mjx.put_model(model)
  return model, m, mjx.make_data(m), mjx.jit(mjx.forward)


def dofs(model, name):
  """Addresses of a joint's coordinates and dofs."""
  q, v = model.joint(name).qposadr[0], model.joint(name).dofadr[0]
  n, k = {0: (7, 6), 1: (4, 3)}.get(int(model.joint(name).type[0]), (1, 1))
  return slice(q, q + n), slice(v, v + k)


def product(*quats):
  """Of quaternions, from left to right."""
  out = np.array([1.0, 0, 0, 0])
  for x in quats:
    last = out.copy()
    mujoco.mju_mulQuat(out, last, np.asarray(x, float))
  return out


def about(axis, angle):
  out = np.zeros(4)
  mujoco.mju_axisAngle2Quat(out, np.asarray(axis, float), angle)
  return out


def rotation(quat):
  out = np.zeros(9)
  mujoco.mju_quat2Mat(out, np.asarray(quat, float))
  return out.reshape(3, 3)


# P110
def test_velocity_of_a_free_joint(world):
  """Linear velocity of the world, angular velocity of the body."""
  model, m, d, forward = world
  (q, v), body = dofs(model, "free"), model.body("free").id
  qvel = np.array([1, 2, 3, 0, 0, 2.0])
  quarter = about([1, 0, 0], np.pi / 2)
  d = forward(m, d.replace(qpos=d.qpos.at[q].set(np.r_[0, 0, 1, quarter]), qvel=d.qvel.at[v].set(qvel)))
  np.testing.assert_allclose(mjx.object_velocity(m, d, mjx.ObjType.XBODY, body), [0, -2, 0, 1, 2, 3], atol=1e-12)
  moved = mjx.integrate_pos(m, d.qpos, d.qvel, 0.1)[q]
  np.testing.assert_allclose(moved[:3], [0.1, 0.2, 1.3])
  np.testing.assert_allclose(moved[3:], product(quarter, about([0, 0, 1], 0.2)), atol=1e-12)


# P111
def test_joints_turn_one_after_another(world):
  model, m, d, forward = world
  values = dict(x=0.5, y=0.7, x2=0.5, y2=0.7)
  for name, x in values.items():
    d = d.replace(qpos=d.qpos.at[dofs(model, name)[0]].set(x))
  d = forward(m, d)
  turns = about([1, 0, 0], 0.5), about([0, 1, 0], 0.7)
  np.testing.assert_allclose(d.xquat[model.body("xy").id], product(*turns), atol=1e-12)
  np.testing.assert_allclose(d.xquat[model.body("yx").id], product(*turns[::-1]), atol=1e-12)
  assert np.abs(d.xquat[model.body("xy").id] - d.xquat[model.body("yx").id]).max() > 0.1


# P112
def test_jacobians_are_velocities_and_transpose_forces(world):
  """Of a point that moves with a body, and of a force at a body's centre of mass."""
  model, m, d, forward = world
  rng, body = np.random.default_rng(0), model.body("fore").id
  d = d.replace(qpos=mjx.integrate_pos(m, d.qpos, jnp.asarray(rng.normal(size=m.nv)), 0.3), qvel=rng.normal(size=m.nv))
  wrench = rng.normal(size=6)
  pulled = forward(m, d.replace(xfrc_applied=d.xfrc_applied.at[body].set(wrench)))
  for b in (body, model.body("free").id):
    point = rng.normal(size=3)
    jacp, jacr = mjx.jac(m, pulled, point, b)
    speed = np.asarray(mjx.object_velocity(m, pulled, mjx.ObjType.XBODY, b))
    np.testing.assert_allclose(jacr.T @ d.qvel, speed[:3], atol=1e-12)
    np.testing.assert_allclose(jacp.T @ d.qvel, speed[3:] + np.cross(speed[:3], point - pulled.xpos[b]), atol=1e-12)
  jacp, jacr = mjx.jac(m, pulled, pulled.xipos[body], body)
  same = forward(m, d.replace(qfrc_applied=jacp @ wrench[:3] + jacr @ wrench[3:]))
  np.testing.assert_allclose(same.qacc, pulled.qacc, rtol=1e-9, atol=1e-9)
  assert np.abs(same.qacc - forward(m, d).qacc).max() > 0.1


# P113
def test_forces_on_a_free_joint(world):
  """Forces of the world and torques of the body; both of the world; both of the site. The length is zero."""
  model, m, d, forward = world
  q, v = dofs(model, "free")
  d = d.replace(qpos=d.qpos.at[q].set(np.r_[0.3, 0.2, 1, TURN]))
  r = rotation(TURN)
  tip = r @ rotation(model.site("tip").quat)
  arm = r @ model.site("tip").pos
  expected = {
    "joint": GEAR,
    "parent": np.r_[GEAR[:3], r.T @ GEAR[3:]],
    "site": np.r_[tip @ GEAR[:3], r.T @ (tip @ GEAR[3:] + np.cross(arm, tip @ GEAR[:3]))],
  }
  for name, force in expected.items():
    out = forward(m, d.replace(ctrl=d.ctrl.at[model.actuator(name).id].set(1)))
    np.testing.assert_allclose(out.qfrc_actuator[v], force, atol=1e-12, err_msg=name)
    assert out.actuator_length[model.actuator(name).id] == 0


# P114
@pytest.mark.parametrize("axis", [(0, 0, 1), (0.6, 0, 0.8)])
def test_angle_of_a_ball(world, axis):
  """The actuator's length is along its gear; the limit counts the angle about any axis."""
  model, m, d, forward = world
  d = forward(m, d.replace(qpos=d.qpos.at[dofs(model, "ball")[0]].set(about(axis, 0.9))))
  np.testing.assert_allclose(d.actuator_length[model.actuator("turn").id], 3 * 0.9 * axis[2], rtol=1e-12)
  row = np.flatnonzero(np.asarray(d.efc_type) == int(mjx.ConstraintType.LIMIT_JOINT))
  assert len(row) == 1 and d.efc_D[row[0]] > 0
  np.testing.assert_allclose(d.efc_pos[row[0]], np.pi / 6 - 0.9, rtol=1e-12)


# P115
def test_gear(world):
  """It scales length, velocity and moment; the gain the force alone."""
  model, m, d, forward = world
  (q, v), i = dofs(model, "h"), model.actuator("position").id
  d = d.replace(qpos=d.qpos.at[q].set(0.5), qvel=d.qvel.at[v].set(0.2), ctrl=d.ctrl.at[i].set(1))
  d = forward(m, d)
  np.testing.assert_allclose([d.actuator_length[i], d.actuator_velocity[i], d.actuator_force[i]], [1.5, 0.6, -1])
  np.testing.assert_allclose(d.qfrc_actuator[v], -3)


# P116
def test_activations(world):
  """Rates of a filter and of an integrator; forces are of the activation where there is one, else of the control."""
  model, m, d, forward = world
  at = [model.actuator(k).id for k in ("filter", "integrator")]
  d = forward(m, d.replace(act=jnp.array([0.3, 0.4]), ctrl=d.ctrl.at[np.array(at)].set(np.array([0.8, 0.7]))))
  np.testing.assert_allclose(d.act_dot, [(0.8 - 0.3) / 0.1, 0.7])
  np.testing.assert_allclose(d.actuator_force[np.array(at)], [2 * 0.3, 2 * 0.4])


# P117, P118
def test_flags_of_actuation(world):
  """Without the clamp of controls that of forces stays; without actuation there is neither force nor rate."""
  model, m, d, forward = world
  i = np.array([model.actuator(k).id for k in ("clamped", "strong", "motor")])
  d = forward(m, d.replace(ctrl=d.ctrl + 5, act=d.act + 0.5))
  actuation = mjx.jit(lambda m, d: mjx.fwd_actuation(m, d))
  for flag, force in ((0, [1, 2, 5]), (mjx.DisableBit.CLAMPCTRL, [5, 2, 5]), (mjx.DisableBit.ACTUATION, [0, 0, 0])):
    off = m.replace(opt=m.opt.replace(disableflags=int(flag)))
    out = actuation(off, d)
    np.testing.assert_array_equal(out.actuator_force[i], force)
    assert np.any(out.act_dot) == np.any(out.qfrc_actuator) == any(force)


# P120
def test_a_motor_is_an_applied_force(world):
  model, m, d, forward = world
  v, i = dofs(model, "k")[1], model.actuator("motor").id
  a = forward(m, d.replace(ctrl=d.ctrl.at[i].set(2)))
  b = forward(m, d.replace(qfrc_applied=d.qfrc_applied.at[v].set(6)))
  np.testing.assert_allclose(a.qacc, b.qacc, rtol=1e-12, atol=1e-12)
  assert np.abs(a.qacc - forward(m, d).qacc).max() > 1


# P121
def test_lengths_of_tendons(world):
  """A sum of joints, a path whose branch a pulley divides, a straight one."""
  model, m, d, forward = world
  for name, x in (("h", 0.3), ("k", 0.4)):
    d = d.replace(qpos=d.qpos.at[dofs(model, name)[0]].set(x))
  d = forward(m, d)
  tip = d.site_xpos[model.site("tip").id]
  np.testing.assert_allclose(d.ten_length, [1.5 * 0.3 - 2 * 0.4, 2 + 1 / 2, np.linalg.norm(tip - np.array([0, 0, 3]))])


# P129
def test_springs_of_ball_and_free_joints(world):
  """They pull back to the initial pose, rotations along the shortest path."""
  model, m, d, forward = world
  rotvec = 0.7 * np.array([0.6, 0, 0.8])
  (ball, ball_v), (free, free_v) = dofs(model, "ball"), dofs(model, "free")
  here = np.asarray(d.qpos[free])
  away = np.r_[here[:3] + np.array([0.1, 0.2, 0.3]), -product(here[3:], about(rotvec / 0.7, 0.7))]  # -q is the same rotation
  still = forward(m, d)
  assert np.abs(still.qfrc_spring).max() < 1e-12
  moved = forward(m, d.replace(qpos=d.qpos.at[ball].set(about(rotvec / 0.7, 0.7)).at[free].set(away)))
  np.testing.assert_allclose(moved.qfrc_spring[ball_v], -5 * rotvec, rtol=1e-9, atol=1e-12)
  np.testing.assert_allclose(moved.qfrc_spring[free_v], -20 * np.r_[0.1, 0.2, 0.3, rotvec], rtol=1e-9, atol=1e-12)


# P131, P132
def test_a_model_without_geoms_steps_and_a_mocap_body_leads(world):
  """As in C; what is welded to a mocap body comes along, its pose is given and not normalised."""
  model, m, d, _ = world
  assert model.ngeom == 0
  c = mujoco.MjData(model)
  pos, quat = np.array([5.1, 0.2, 1.1]), 2 * about([0, 0, 1], 0.3)
  c.mocap_pos[0], c.mocap_quat[0] = pos, quat
  d = d.replace(mocap_pos=jnp.asarray(pos[None]), mocap_quat=jnp.asarray(quat[None]))
  many = mjx.jit(lambda m, d: jax.lax.scan(lambda d, _: (mjx.step(m, d), None), d, None, length=100)[0])
  d = many(m, d)
  mujoco.mj_step(model, c, 100)
  np.testing.assert_allclose(d.qpos, c.qpos, rtol=1e-6, atol=1e-6)
  target, led = model.body("target").id, model.body("led").id
  np.testing.assert_allclose(d.xquat[target], quat / 2, atol=1e-12)
  np.testing.assert_array_equal(d.mocap_quat[0], quat)
  assert not np.any(d.cvel[target])
  np.testing.assert_allclose(d.xpos[led], pos, atol=0.01)
  np.testing.assert_allclose(d.xquat[led], quat / 2, atol=0.01)


def test_the_world_is_at_the_origin():
  """Whatever its own position says, as in C, which sets its pose anew."""
  model = mujoco.MjModel.from_xml_string(XML)
  model.body_pos[0], model.body_quat[0] = (1, 2, 3), (0, 1, 0, 0)
  data = mujoco.MjData(model)
  mujoco.mj_kinematics(model, data)
  d = mjx.jit(mjx.kinematics)(mjx.put_model(model, dtype=np.float64), mjx.put_data(model, data, dtype=np.float64))
  for field in ("xpos", "xquat", "site_xpos", "site_xmat"):
    np.testing.assert_allclose(np.reshape(getattr(d, field), getattr(data, field).shape), getattr(data, field), atol=1e-12)
