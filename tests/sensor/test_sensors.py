"""Every sensor against C along trajectories, one by one; delays, intervals and histories; skipped stages; refusals."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import TOO_LARGE, load

import mjx_lite as mjx
from mjx_lite.errors import UnsupportedModelError
from mjx_lite.sensor.table import SENSORS
from mjx_lite.testing import compare

# sensors of the scene that have nothing to say: contacts of two geoms that never meet, a tendon without actuator
SILENT = {"net_none", "tendonactfrc_both"}


def worst_by_sensor(model, ours, theirs, worst):
  for i in range(model.nsensor):
    own = slice(model.sensor_adr[i], model.sensor_adr[i] + model.sensor_dim[i])
    error = compare.relative_error(ours.sensordata[own], theirs.sensordata[own]).max()
    worst[i] = max(worst.get(i, 0.0), error)


def state_only(model, data):
  return compare._state_only(model, data)


def along(name, steps, every):
  """Worst error of each sensor, of the history, and whether a sensor was ever not zero."""
  model, rng = compare.optimal(load(name)), np.random.default_rng(0)
  engine, data, worst, alive, history = compare.Engine(model), mujoco.MjData(model), {}, set(), 0.0
  for i in range(steps):
    if i % 10 == 0:
      data.ctrl[:] = 1.2 * rng.uniform(-1, 1, model.nu)
      data.xfrc_applied[:, :3] = rng.normal(size=(model.nbody, 3)) * model.body_mass[:, None]
    if i % every == 0:
      ours, theirs = engine.step(data), state_only(model, data)
      mujoco.mj_step(model, theirs)
      np.testing.assert_array_equal(ours.contact.geom, theirs.contact.geom)
      worst_by_sensor(model, ours, theirs, worst)
      history = max(history, compare.relative_error(ours.history, theirs.history).max(initial=0))
      alive |= {k for k in range(model.nsensor) if theirs.sensor(k).data.any()}
    mujoco.mj_step(model, data)
  return model, worst, history, alive


@pytest.mark.parametrize("name, steps, every", [("sensors", 200, 8), pytest.param("sensor_rays", 150, 10, marks=TOO_LARGE)])
def test_every_sensor_equals_c(name, steps, every):
  model, worst, _, alive = along(name, steps, every)
  named = [f"{mjx.SensorType(int(t)).name} {model.sensor(i).name}" for i, t in enumerate(model.sensor_type)]
  assert not {named[i]: e for i, e in worst.items() if not e <= 1e-10}
  assert {model.sensor(i).name for i in range(model.nsensor) if i not in alive} <= SILENT


def test_the_scenes_have_every_type():
  types = {int(t) for name in ("sensors", "sensor_rays") for t in load(name).sensor_type}
  assert types | {mjx.SensorType.USER} == set(SENSORS)  # test_callbacks.py has the user's


def test_delays_equal_c():
  model, worst, history, alive = along("sensor_delays", 90, 1)
  assert not {model.sensor(i).name: e for i, e in worst.items() if not e <= 1e-10}
  assert history <= 1e-10 and len(alive) == model.nsensor


def test_delays_under_runge_kutta():
  """What is recorded is measured at the beginning of the step, not at the places in between."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><option timestep="0.01" integrator="RK4"/><worldbody>
    <body><joint name="j" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/><site name="s" pos=".3 0 0"/></body></worldbody>
    <sensor><framepos name="pos" objtype="site" objname="s" delay=".02" nsample="3"/>
    <accelerometer site="s" delay=".013" nsample="3" interp="linear"/><force site="s" interval=".02" nsample="2"/></sensor>
    </mujoco>""")
  engine, data = compare.Engine(model), mujoco.MjData(model)
  data.qvel[:] = 3
  for _ in range(8):
    errors = compare.compare_stages(model, data, ("sensordata", "history", "qpos"), engine=engine)
    assert len(errors) == 3 and max(e.worst for e in errors) < 1e-10, errors
    mujoco.mj_step(model, data)
  assert data.sensor("pos").data.any()


def test_a_bad_acceleration_leaves_no_trace():
  """The history of a world that is reset has no NaN."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><body><joint axis="0 1 0"/><geom size=".1" pos=".3 0 0"/>
    <site name="s"/></body></worldbody><sensor><accelerometer site="s" delay=".006" nsample="5"/></sensor></mujoco>""")
  m = mjx.put_model(model)
  step, d = mjx.jit(mjx.step), mjx.make_data(m)
  bad = step(m, step(m, d).replace(qfrc_applied=d.qfrc_applied + np.nan))
  assert bad.status.count[mjx.Warning.RESET] == 1
  for _ in range(5):
    assert np.isfinite(bad.history).all()
    bad = step(m, bad)
  assert np.isfinite(bad.sensordata).all()


def test_history_starts_as_in_c():
  model = load("sensor_delays")
  m, c = mjx.put_model(model), mujoco.MjData(model)
  d = mjx.make_data(m)
  np.testing.assert_array_equal(d.history, c.history)
  np.testing.assert_array_equal(mjx.reset_data(m, d.replace(history=d.history + 3)).history, c.history)


def test_histories_are_read_as_in_c():
  """At any time, however it is asked for."""
  model = load("sensor_delays")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  rng = np.random.default_rng(0)
  for _ in range(40):
    data.ctrl[:] = rng.normal(size=model.nu)
    mujoco.mj_step(model, data)
  d = mjx.put_data(m, data)
  orders = (-1, 0, 1, 2)

  def look(d, time):
    sensors = [mjx.read_sensor(m, d, i, time, order) for i in range(model.nsensor) for order in orders]
    return jnp.concatenate([*sensors, *(mjx.read_ctrl(m, d, 0, time, order) for order in orders)])

  look, differing = mjx.jit(look), set()
  for time in (data.time - 0.02, data.time - 0.0031, data.time, data.time + 1):
    theirs = []
    for i in range(model.nsensor):
      for order in orders:
        theirs.append(np.zeros(model.sensor_dim[i]))
        mujoco.mj_readSensor(model, data, i, time, theirs[-1], order)
        differing |= {order} if np.any(theirs[-1] != data.sensor(i).data) else set()
    for order in orders:
      theirs.append(np.zeros(1))
      mujoco.mj_readCtrl(model, data, 0, time, theirs[-1], order)
    np.testing.assert_allclose(look(d, time), np.concatenate(theirs), rtol=1e-12, atol=1e-12)
  assert differing == set(orders)
  with pytest.raises(IndexError, match="nsensor = 14"):
    mjx.read_sensor(m, d, 14, 0.0)


SMALL = """
<mujoco>
  <option timestep="0.004"/>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.09"><freejoint/><geom size="0.1"/><site name="s" size="0.1"/>
      <body pos="0.2 0 0"><joint name="j" axis="0 1 0"/><geom size="0.05"/></body>
    </body>
  </worldbody>
  <actuator><motor joint="j"/></actuator>
  <sensor>
    <jointpos joint="j" cutoff="0.3"/><framepos objtype="site" objname="s" cutoff="0.02"/>
    <gyro site="s"/><accelerometer site="s"/><touch site="s"/>
  </sensor>
</mujoco>
"""


@pytest.fixture(scope="module")
def small():
  model = compare.optimal(mujoco.MjModel.from_xml_string(SMALL))
  data = mujoco.MjData(model)
  mujoco.mj_resetData(model, data)
  data.qvel[:], data.qpos[7], data.ctrl[:] = 0.3, -2, 0.5
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  return m, mjx.jit(mjx.forward)(m, mjx.put_data(m, data, keep=("cacc",))), (model, data)


def test_inverse_measures_too(small):
  m, d, (model, data) = small
  c = copy.copy(data)
  c.qacc[:] = np.arange(model.nv) + 0.5
  mujoco.mj_inverse(model, c)
  ours = mjx.jit(mjx.inverse)(m, d.replace(qacc=jnp.asarray(c.qacc)))
  np.testing.assert_allclose(ours.sensordata, c.sensordata, rtol=1e-9, atol=1e-9)
  assert np.any(ours.sensordata != d.sensordata)


# P123
def test_cutoff(small):
  m, d, (_, data) = small
  assert d.sensordata[0] == -0.3 and d.sensordata[3] == 0.02
  np.testing.assert_allclose(d.sensordata, data.sensordata, rtol=1e-9)
  free = mjx.jit(mjx.sensor_pos)(m.replace(sensor_cutoff=m.sensor_cutoff * 0), d)
  assert free.sensordata[0] == -2


# P26
@pytest.mark.parametrize("stage", ["POS", "VEL"])
def test_skipped_stages(small, stage):
  """What the skipped stages would compute is taken as it is: changing later inputs gives what a full forward gives."""
  m, d, _ = small
  new = d.replace(ctrl=d.ctrl + 1, qfrc_applied=d.qfrc_applied + 0.2)
  if stage == "POS":
    new = new.replace(qvel=d.qvel + 1)
  theirs = getattr(mujoco.mjtStage, f"mjSTAGE_{stage}")
  skipped = mjx.jit(lambda m, d: mjx.forward(m, d, skip_stage=theirs))(m, new)
  full = mjx.jit(mjx.forward)(m, new)
  assert np.any(full.qacc != d.qacc)
  for name in ("qacc", "sensordata", "qfrc_bias", "efc_force", "cacc"):
    np.testing.assert_allclose(getattr(skipped, name), getattr(full, name), rtol=1e-9, atol=1e-9, err_msg=name)
  # and positions are not looked at
  moved = mjx.jit(lambda m, d: mjx.forward(m, d, skip_stage=mjx.Stage[stage]))(m, new.replace(qpos=d.qpos + 0.1))
  np.testing.assert_array_equal(moved.xpos, d.xpos)


# P27, P29
def test_sensors_can_be_skipped_and_disabled(small):
  m, d, _ = small
  marked = d.replace(sensordata=d.sensordata * 0 + 7, qvel=d.qvel + 1)
  full = mjx.jit(mjx.forward)(m, marked)
  off = m.replace(opt=m.opt.replace(disableflags=m.opt.disableflags | int(mjx.DisableBit.SENSOR)))
  for without in (
    mjx.jit(lambda m, d: mjx.forward(m, d, skip_sensor=True))(m, marked), mjx.jit(mjx.forward)(off, marked)
  ):  # fmt: skip
    np.testing.assert_array_equal(without.sensordata, 7)
    for name in ("qacc", "qpos", "xpos", "qfrc_constraint", "cvel"):
      np.testing.assert_allclose(getattr(without, name), getattr(full, name), rtol=1e-13, atol=1e-13, err_msg=name)
  assert not np.any(full.sensordata == 7)


def test_batch(small):
  m, d, _ = small
  many = jax.vmap(lambda v: d.replace(qvel=v))(d.qvel + jnp.arange(3.0)[:, None])
  together = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  one = mjx.jit(mjx.forward)(m, jax.tree.map(lambda x: x[2], many))
  np.testing.assert_allclose(together.sensordata[2], one.sensordata, rtol=1e-9, atol=1e-9)
  assert np.any(together.sensordata[0] != together.sensordata[2])


def test_refused():
  xml = """<mujoco><asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><worldbody>
    <site name="s"/><site name="mesh" type="mesh" mesh="m"/><body><joint/><geom size=".1"/></body></worldbody>
    <sensor><touch name="x" site="mesh"/></sensor></mujoco>"""
  said = "sensor 'x': shape of the site = MESH is not supported; use SPHERE, CAPSULE.*MuJoCo stops"
  with pytest.raises(UnsupportedModelError, match=said):
    mjx.put_model(mujoco.MjModel.from_xml_string(xml))


# ------------------------------------------------------------------------------------------------------- gradients


def test_gradients():
  """Of every real-valued sensor at once, through the stages that lead to it, but for the solver: its results are given.

  Inputs are positions, velocities, accelerations, forces of constraints and of actuators.
  """
  model = copy.deepcopy(load("sensors"))
  model.sensor_cutoff[:] = 0
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(70):
    mujoco.mj_step(model, data)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  sharp = np.isin(model.sensor_type, [mjx.SensorType.INSIDESITE])
  owner = np.repeat(np.arange(model.nsensor), model.sensor_dim)
  size = np.array([np.abs(data.sensor(i).data).max() for i in range(model.nsensor)])
  weight = jnp.asarray(np.where(sharp, 0, 1 / np.maximum(size, 1e-2))[owner] * rng.normal(size=model.nsensordata))

  def f(dq, qvel, qacc, force, drive):
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    x = mjx.fwd_position(m, d.replace(qpos=q, qvel=qvel))
    x = mjx.fwd_velocity(m, mjx.sensor_pos(m, x))
    x = mjx.sensor_vel(m, x).replace(qacc=qacc, efc_force=force, actuator_force=drive, qfrc_actuator=0.3 * qacc)
    return jnp.dot(weight, mjx.sensor_acc(m, x).sensordata)

  at = (jnp.zeros(m.nv), d.qvel, d.qacc, jnp.asarray(rng.uniform(1, 2, d.efc_force.shape)), d.actuator_force)
  both = mjx.jit(jax.value_and_grad(f, argnums=range(5)))
  grads = both(*at)[1]
  for k, (x, g) in enumerate(zip(at, grads, strict=True)):
    assert np.isfinite(g).all()
    direction = jnp.asarray(rng.normal(size=x.shape)) * (jnp.abs(x) if k == 3 else 1)
    eps = 1e-6
    ends = [both(*at[:k], x + s * eps * direction, *at[k + 1 :])[0] for s in (1, -1)]
    expected = jnp.vdot(g, direction)
    assert abs(expected) > 1e-3
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * eps), expected, rtol=1e-5, atol=1e-6, err_msg=f"argument {k}")


@TOO_LARGE
def test_gradients_of_what_looks():
  """Of rangefinders, distances and tactile sensors with respect to positions and velocities, one sensor at a time."""
  model = copy.deepcopy(load("sensor_rays"))
  far = np.isin(model.sensor_type, [mjx.SensorType[k] for k in ("GEOMDIST", "GEOMNORMAL", "GEOMFROMTO")])
  model.sensor_cutoff[~far] = 0
  data, rng = mujoco.MjData(model), np.random.default_rng(1)
  data.qvel[:] = 0.1 * rng.normal(size=model.nv)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.jit(mjx.fwd_position)(m, mjx.put_data(m, data))  # its contacts are given
  owner = np.repeat(np.arange(model.nsensor), model.sensor_dim)

  def f(dq, qvel, weight):
    x = d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())), qvel=qvel)
    x = mjx.com_vel(m, mjx.camlight(m, mjx.com_pos(m, mjx.kinematics(m, x))))
    return jnp.dot(weight, mjx.sensor_vel(m, mjx.sensor_pos(m, x)).sensordata)

  both = mjx.jit(jax.value_and_grad(f, argnums=(0, 1)))
  at, moved = (jnp.zeros(m.nv), d.qvel), set()
  for i in range(model.nsensor):
    weight = jnp.asarray(np.where(owner == i, rng.normal(size=len(owner)), 0))
    for k, g in enumerate(both(*at, weight)[1]):
      assert np.isfinite(g).all()
      direction = jnp.asarray(rng.normal(size=model.nv))
      ends = [both(*(x + s * (j == k) * direction for j, x in enumerate(at)), weight)[0] for s in (1e-6, -1e-6)]
      expected = (ends[0] - ends[1]) / 2e-6
      np.testing.assert_allclose(jnp.vdot(g, direction), expected, rtol=1e-5, atol=1e-6, err_msg=model.sensor(i).name)
      moved |= {model.sensor(i).name} if expected != 0 else set()
  assert {model.sensor(i).name for i in range(model.nsensor)} - moved == {"down", "sky", "none", "cut", "normal_floor", "side"}
