"""A tactile skin under meshes: one with an octree, which it feels, and one without, which it does not, as in C."""

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import TOO_LARGE

import mjx_lite as mjx
from mjx_lite.testing import compare

pytestmark = TOO_LARGE

XML = """
<mujoco>
  <asset>
    <mesh name="skin" builtin="plate" params="7 7" scale=".1 .1 .1" inertia="shell"/>
    <mesh name="rock" vertex="-.1 -.1 -.1 .1 -.1 -.1 -.1 .1 -.1 .1 .1 -.1 -.08 -.1 .1 .1 -.05 .1 -.1 .1 .1 .1 .1 .15"/>
    <mesh name="flint" vertex="-.1 -.1 -.1 .1 -.1 -.1 -.1 .1 -.1 0 0 .1"/>
  </asset>
  <worldbody>
    <geom type="plane" size="1 1 1" contype="2" conaffinity="0"/>
    <geom name="skin" type="mesh" mesh="skin" pos="0 0 .1" contype="0" conaffinity="0"/>
    <body><freejoint/><geom type="mesh" mesh="rock" contype="0" conaffinity="2"/></body>
    <body><freejoint/><geom type="mesh" mesh="flint" contype="0" conaffinity="2"/></body>
    <body pos="0 0 9"><geom type="sdf" mesh="rock" contype="0" conaffinity="0"/></body>
  </worldbody>
  <sensor><tactile name="t" geom="skin" mesh="skin"/></sensor>
</mujoco>"""


@pytest.fixture(scope="module")
def skin():
  """Model, C's Data, and the sensor as a function of positions and velocities."""
  model = mujoco.MjModel.from_xml_string(XML)
  m = mjx.put_model(model)
  d = mjx.make_data(m)

  def sensor(qpos, qvel):
    x = mjx.com_pos(m, mjx.kinematics(m, d.replace(qpos=qpos, qvel=qvel)))
    return mjx.sensor_vel(m, mjx.com_vel(m, mjx.collision(m, x))).sensordata

  return model, mujoco.MjData(model), mjx.jit(sensor), sensor


def random_state(model, rng, height):
  """Both meshes on the skin, in any orientation, at random velocities."""
  qpos = np.zeros(model.nq)
  for first in (0, 7):
    quat = rng.normal(size=4)
    qpos[first : first + 7] = [*rng.uniform(-0.05, 0.05, 2), height, *(quat / np.linalg.norm(quat))]
  return qpos, rng.normal(size=model.nv)


def test_octrees_are_sensed_as_in_c(skin):
  model, data, sensor, _ = skin
  assert model.mesh_octadr.tolist()[1] >= 0 > model.mesh_octadr[2]
  rng, deep, none = np.random.default_rng(0), 0, 0
  for height in np.linspace(0.02, 0.2, 30):
    data.qpos[:], data.qvel[:] = random_state(model, rng, height)
    mujoco.mj_forward(model, data)
    ours = np.asarray(sensor(data.qpos, data.qvel))
    assert compare.relative_error(ours, data.sensordata).max() < 1e-10
    deep, none = deep + (ours[:49] > 0).sum(), none + (data.ncon > 0 and not ours.any())
  assert deep > 100 and none < 10
  data.qpos[2] = 1  # now what touches is the mesh without octree alone
  data.qpos[9] = 0.02
  mujoco.mj_forward(model, data)
  assert data.ncon and not data.sensordata.any() and not np.asarray(sensor(data.qpos, data.qvel)).any()


def test_gradients(skin):
  model, _, _, sensor = skin
  rng = np.random.default_rng(1)
  at = tuple(map(jnp.asarray, random_state(model, rng, 0.04)))
  w = jnp.asarray(rng.normal(size=model.nsensordata))
  assert_gradients(lambda q, v: w @ sensor(q, v), at, [rng.normal(size=x.shape) for x in at])
