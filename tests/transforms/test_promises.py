"""What MuJoCo's documentation promises of states, steps and resets, checked without C where a law is enough.

P01 and so on are the numbers of the promises, here and where other tests keep some of them.
"""

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.model import pytree

XML = """
<mujoco>
  <size nkey="3" nuserdata="2"/>
  <option timestep="0.004"/>
  <worldbody>
    <geom type="plane" size="3 3 1"/>
    <body name="tool" mocap="true" pos="0 0 1" euler="0 0 20"><geom size="0.02" contype="0" conaffinity="0"/></body>
    <body name="brick" pos="0 0 0.09" euler="5 8 0"><freejoint/><geom type="box" size="0.2 0.15 0.1"/>
      <body pos="0.3 0 0.1"><joint name="ball" type="ball"/><geom type="capsule" size="0.03 0.1" pos="0 0 0.1"/></body>
    </body>
    <body name="arm" pos="1 0 0.6"><site name="s" pos="0.3 0 0"/><joint name="hinge" axis="0 1 0"/>
      <geom type="capsule" size="0.05" fromto="0 0 0 0.3 0 0"/></body>
  </worldbody>
  <equality><connect body1="arm" body2="tool" anchor="0.3 0 0" active="false"/></equality>
  <actuator><motor joint="hinge" ctrlrange="-1 1"/><general joint="hinge" dyntype="filter" dynprm="0.1"/></actuator>
  <sensor><jointpos joint="hinge"/><gyro site="s"/><accelerometer site="s"/></sensor>
  <keyframe><key name="two" time="2" qvel="1 2 3 4 5 6 7 8 9 10" act="0.5"/></keyframe>
</mujoco>"""

INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata")
INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


@pytest.fixture(scope="module")
def world():
  """Model, compiled step and forward, and a Data that moves, in contact, with all inputs set."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML))
  d, rng = mjx.make_data(m, keep="all"), np.random.default_rng(0)
  d = d.replace(
    qvel=jnp.asarray(rng.normal(size=m.nv)), act=jnp.array([0.3]), ctrl=jnp.array([5.0, -0.4]), time=jnp.array(0.7),
    qfrc_applied=jnp.asarray(rng.normal(size=m.nv)), xfrc_applied=jnp.asarray(rng.normal(size=(m.nbody, 6))),
    eq_active=jnp.array([True]), mocap_quat=d.mocap_quat * 3, userdata=jnp.array([1.0, 2.0]),
  )  # fmt: skip
  return m, mjx.jit(mjx.step), mjx.jit(mjx.forward), d


# P01, P02, P09
def test_a_step_depends_on_the_integration_state_alone(world):
  """Nothing else that a Data holds matters, be it nonsense, and the same state gives the same bits."""
  m, step, _, d = world
  used = step(m, d)
  fresh = mjx.set_state(m, mjx.make_data(m, keep="all"), mjx.get_state(m, used, INTEGRATION), INTEGRATION)
  state = {"time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "contact", "status", *INPUTS}
  nonsense = used.replace(
    **{k: getattr(used, k) + 7 for k, spec in pytree.specs(mjx.Data).items() if k not in state and spec["dtype"] == "float"}
  )
  assert np.any(nonsense.xpos != used.xpos)
  after = [step(m, x) for x in (used, used, fresh, nonsense)]
  for other in after[1:]:
    for name in ("qpos", "qvel", "qacc", "act", "time", "sensordata", "efc_force", "xpos"):
      np.testing.assert_array_equal(getattr(other, name), getattr(after[0], name), err_msg=name)
  assert after[0].contact.dist.min() < 0 < np.abs(after[0].efc_force).max()


# P05, P24
def test_inputs_are_read_only(world):
  """Not cleared, clamped or normalised by a step; forward leaves the state alone, too."""
  m, step, forward, d = world
  assert d.ctrl[0] > m.actuator_ctrlrange[0, 1] and np.linalg.norm(d.mocap_quat) > 2
  for after, names in ((step(m, d), INPUTS), (forward(m, d), (*INPUTS, "qpos", "qvel", "act", "time"))):
    for name in names:
      np.testing.assert_array_equal(getattr(after, name), getattr(d, name), err_msg=name)


# P12
def test_time_and_state_advance_by_the_timestep(world):
  m, step, forward, d = world
  a, b = step(m, d), forward(m, d)
  assert a.time == d.time + m.opt.timestep
  np.testing.assert_allclose(a.qvel - d.qvel, m.opt.timestep * b.qacc, rtol=1e-9, atol=1e-12)
  np.testing.assert_allclose(mjx.differentiate_pos(m, m.opt.timestep, d.qpos, a.qpos), a.qvel, rtol=1e-9, atol=1e-9)


# P10
def test_positions_and_their_differences_are_inverse(world):
  m, _, _, d = world
  v = jnp.asarray(np.random.default_rng(1).normal(size=m.nv))
  moved = mjx.integrate_pos(m, d.qpos, v, jnp.asarray(0.3))
  np.testing.assert_allclose(mjx.differentiate_pos(m, jnp.asarray(0.3), d.qpos, moved), v, rtol=1e-12, atol=1e-12)


# P11
def test_quaternions(world):
  """Read as if normalised, the zero one as no rotation; written normalised by a step, left alone by forward."""
  m, step, forward, d = world
  unit = np.array(d.qpos)
  unit[3:7] = [0.6, 0, 0.8, 0]
  long, none = unit.copy(), unit.copy()
  long[3:7] *= 5
  none[3:7], unit0 = 0, unit.copy()
  unit0[3:7] = [1, 0, 0, 0]
  for given, means in ((long, unit), (none, unit0)):
    x, y = (forward(m, d.replace(qpos=jnp.asarray(q))) for q in (given, means))
    np.testing.assert_array_equal(x.qpos, given)
    np.testing.assert_allclose(x.xquat, y.xquat, atol=1e-12)
    np.testing.assert_allclose(x.qacc, y.qacc, rtol=1e-7, atol=1e-9)
  assert abs(np.linalg.norm(step(m, d.replace(qpos=jnp.asarray(long))).qpos[3:7]) - 1) < 1e-12


# P25
def test_later_stages_do_not_feed_back(world):
  """What follows from positions knows no velocities and forces, and what follows from velocities knows no forces."""
  m, _, forward, d = world
  base = forward(m, d)
  pushed = forward(m, d.replace(ctrl=d.ctrl * 0, qfrc_applied=d.qfrc_applied + 1, xfrc_applied=d.xfrc_applied * 0))
  faster = forward(m, d.replace(qvel=d.qvel + 1))
  position = ("xpos", "xmat", "cdof", "cinert", "M", "qLD", "subtree_com", "efc_pos", "efc_D", "actuator_moment")
  velocity = ("cvel", "cdof_dot", "qfrc_bias", "qfrc_passive", "efc_vel", "efc_aref", "actuator_velocity")
  for other, names in ((pushed, (*position, *velocity)), (faster, position)):
    assert np.any(other.qacc != base.qacc)
    for name in names:
      np.testing.assert_array_equal(getattr(other, name), getattr(base, name), err_msg=name)
  np.testing.assert_array_equal(pushed.sensordata[:4], base.sensordata[:4])
  assert np.any(pushed.sensordata[4:] != base.sensordata[4:])


# P28
def test_options_change_between_steps(world):
  """Without another trace, to what a model made with them does."""
  m, step, _, d = world
  before, traces = step(m, d), step._cache_size()
  values = {k: jnp.asarray(np.array(x)) for k, x in (("gravity", [0.0, 1, -3]), ("timestep", 0.001), ("tolerance", 1e-12))}
  changed = step(m.replace(opt=m.opt.replace(**values)), d)
  model = mujoco.MjModel.from_xml_string(XML)
  for k, x in values.items():
    setattr(model.opt, k, np.array(x) if x.ndim else float(x))
  fresh = step(mjx.put_model(model), d)
  assert step._cache_size() == traces
  np.testing.assert_array_equal(changed.qvel, fresh.qvel)
  assert np.any(changed.qvel != before.qvel)


# P06, P08, P60
def test_keyframes(world):
  """What a keyframe does not say is that of the reference configuration or zero; frames beyond those named are there."""
  m, _, _, d = world
  c = mujoco.MjData(mujoco.MjModel.from_xml_string(XML))
  assert m.nkey == 3
  for key in range(3):
    mujoco.mj_resetDataKeyframe(c.model, c, key)
    ours = mjx.reset(m, d, key=key)
    for name in ("time", "qpos", "qvel", "act", "mocap_pos", "mocap_quat", *INPUTS, "qacc_warmstart"):
      np.testing.assert_array_equal(getattr(ours, name), getattr(c, name), err_msg=name)
  assert mjx.reset(m, d, key="two").time == 2
  blank = mjx.make_data(m)
  for name in INPUTS:
    assert name.startswith(("mocap", "eq_")) or not np.any(getattr(blank, name)), name
  np.testing.assert_array_equal(blank.mocap_pos[0], m.body_pos[1])


# P13
def test_units():
  """Metres and kilograms or centimetres and grams: the same motion, impact included."""
  text = """<mujoco><option timestep="0.002" gravity="0 0 {g}"/><worldbody><geom type="plane" size="{l0} {l0} {l0}"/>
    <body pos="0 0 {l1}" euler="20 30 0"><freejoint/><geom type="box" size="{l2} {l3} {l2}" density="{rho}"
    friction="1 {f} {f}" solimp="0.9 0.95 {w}"/></body></worldbody></mujoco>"""
  length = dict(l0=1, l1=0.25, l2=0.1, l3=0.15, f=0.005, w=0.001)
  ends = []
  step = mjx.jit(mjx.step)
  for unit, mass in ((1, 1), (100, 1000)):
    model = mujoco.MjModel.from_xml_string(
      text.format(g=-9.81 * unit, rho=1000 * mass / unit**3, **{k: x * unit for k, x in length.items()})
    )
    model.opt.tolerance, model.opt.impratio = 0, 1
    m = mjx.put_model(model)
    d = mjx.make_data(m)
    d = d.replace(qvel=jnp.array([0.3 * unit, 0, 0, 1, 2, 3]))
    for _ in range(120):
      d = step(m, d)
    ends.append(np.concatenate([d.qpos[:3] / unit, d.qpos[3:]]))
  np.testing.assert_allclose(ends[1], ends[0], atol=2e-4)
  assert ends[0][2] < 0.2


SENSORS = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 1"/>
    <body name="ball" pos="2 0 0.099"><freejoint/><geom size="0.1"/>
      <site name="below" pos="0 0 -0.2" size="0.03"/><site name="above" pos="0 0 0.2" size="0.03"/>
      <site name="around" pos="0 0 -0.1" size="0.05"/>
    </body>
    <body name="post" pos="0 0 1"><geom size="0.05" contype="0" conaffinity="0"/>
      <site name="flat"/><site name="tilted" euler="90 0 0"/>
      <site name="down" euler="180 0 0"/><site name="up"/>
      <body name="child" pos="0 0 0.3"><geom type="box" size="0.1 0.1 0.1" mass="2"/><site name="joint" pos="0 0 -0.1"/></body>
    </body>
    <geom name="glass" type="box" size="0.1 0.1 0.01" pos="0 0 0.5" rgba="1 1 1 0" contype="0" conaffinity="0"/>
    <body pos="0 1 1"><geom name="bubble" size="0.1" contype="0" conaffinity="0"/></body>
    <site name="within" pos="0 1 1" euler="0 40 0"/>
    <site name="sky" pos="4 4 1"/>
    <body name="odd" pos="0 0 1"><inertial pos="0.3 0 0" mass="1" diaginertia="1 1 1"/></body>
    <body pos="-1 0 1"><joint name="j" axis="0 1 0" ref="0"/><geom size="0.05" contype="0" conaffinity="0"/></body>
  </worldbody>
  <sensor>
    <touch name="below" site="below"/><touch name="above" site="above"/><touch name="around" site="around"/>
    <accelerometer name="flat" site="flat"/><accelerometer name="tilted" site="tilted"/>
    <force name="weight" site="joint"/>
    <rangefinder name="floor" site="down"/><rangefinder name="near" site="down" cutoff="0.4"/>
    <rangefinder name="sky" site="sky"/><rangefinder name="within" site="within"/>
    <framepos name="xbody" objtype="xbody" objname="odd"/><framepos name="body" objtype="body" objname="odd"/>
    <jointpos name="noisy" joint="j" noise="0.5"/><jointpos name="cut" joint="j" cutoff="0.3" noise="0.5"/>
  </sensor>
</mujoco>"""


# P123, P124, P125, P126, P127, P128
def test_what_sensors_say():
  """Numbers that follow from their definitions."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(SENSORS))
  d = mjx.make_data(m)
  d = mjx.jit(mjx.forward)(m, d.replace(qpos=d.qpos.at[-1].set(-2)))
  said = {m.sensor(i).name: np.asarray(d.bind(m, m.sensor(i)).data) for i in range(m.nsensor)}
  # the ray points away from the body, and meets a zone below it, not one above; or the contact is in the zone
  np.testing.assert_allclose(said["below"], said["around"])
  assert said["below"] > 0 == said["above"]
  # at rest, acceleration against free fall; the force on the child, which carries its weight
  np.testing.assert_allclose(said["flat"], [0, 0, 9.81], atol=1e-9)
  np.testing.assert_allclose(said["tilted"], [0, 9.81, 0], atol=1e-9)
  np.testing.assert_allclose(said["weight"], [0, 0, 19.62], atol=1e-9)
  # neither the own body nor what cannot be seen; from within a geom its surface; -1 for nothing
  np.testing.assert_allclose([said["floor"], said["near"], said["sky"], said["within"]], [1, 0.4, -1, 0.1], atol=1e-9)
  np.testing.assert_allclose([said["xbody"], said["body"]], [[0, 0, 1], [0.3, 0, 1]], atol=1e-12)
  assert (said["noisy"], said["cut"]) == (-2, -0.3)  # no noise
