"""The README's code runs as it is written, at a smaller size and with a small stand-in for the robot it names."""

import pathlib
import re

import features
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import viz

BLOCKS = re.findall(r"^```python\n(.*?)^```", features.README.read_text(), re.S | re.M)
ROBOT = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <light pos="0 0 3"/>
    <body name="torso">
      <freejoint/><geom size="0.1" mass="2"/><site name="imu"/>
      <body name="leg" pos="0 0 -0.1">
        <joint name="hip" axis="0 1 0" damping="0.3"/><geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="servo" joint="hip" kp="20" kv="1"/></actuator>
  <sensor><jointpos name="encoder" joint="hip"/><gyro name="gyro" site="imu"/></sensor>
</mujoco>
"""


@pytest.fixture
def robot(tmp_path, monkeypatch):
  """The model that the README's lines speak of, as a file in the working directory."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path("humanoid.xml").write_text(ROBOT)
  return mujoco.MjModel.from_xml_string(ROBOT)


def run(first, names, **smaller):
  """Executes the block that begins so; `smaller` are other words for some of its own."""
  (block,) = [x for x in BLOCKS if x.startswith(first)]
  for word, other in smaller.items():
    assert word in block
    block = block.replace(word, other)
  exec(compile(block, "README.md", "exec"), names)
  return names


@pytest.mark.parametrize("part", features.PARTS)
def test_what_is_written_from_tables_is_as_they_are(part):
  assert re.search(features.marked(part), features.README.read_text(), re.S)[2] == features.PARTS[part](), (
    "run `python tests/features.py`"
  )


def test_every_block_is_run():
  assert [x.split("\n")[0] for x in BLOCKS] == [
    "import jax, mujoco", "from mjx_lite import sysid, viz", "from mjx_lite import control, envs",
    "run = mjx.jit(lambda m, d, u: mjx.rollout(m, d, u, devices=jax.devices()))",
  ]  # fmt: skip


def test_first_steps(robot):
  out = run("import jax, mujoco", {}, **{"1024": "4"})
  assert out["worlds"].qpos.shape == (4, robot.nq) and out["worlds"].time.shape == (4,)
  assert out["gradient"].shape == (4, 1)


@pytest.mark.slow
def test_identification_and_film(robot, monkeypatch):
  c, d, rows = robot, mujoco.MjData(robot), []
  c.dof_damping[6], c.body_mass[1] = 0.5, 2.5
  c.body_inertia[1] *= 2.5 / 2
  mujoco.mj_setConst(c, d)
  ctrl = 0.5 * np.sin(0.2 * np.arange(60))[:, None]
  for u in ctrl:
    d.ctrl[:] = u
    mujoco.mj_step(c, d)
    rows.append(d.sensordata.copy())
  seen = np.array(rows) + 1e-4 * np.random.default_rng(0).normal(size=(60, 4))
  mj_model = mujoco.MjModel.from_xml_string(ROBOT)
  m = mjx.put_model(mj_model)
  record = mjx.jit(lambda m, u: mjx.rollout(m, mjx.make_data(m), u)[1])(m, jnp.asarray(ctrl))
  names = dict(m=m, mj_model=mj_model, ctrl=ctrl, angles=seen[:, 0], rates=seen[:, 1:], record=record)
  for name in ("write_mp4", "why_no_mp4"):  # they want mediapy and ffmpeg
    monkeypatch.setattr(f"mjx_lite.viz.film.{name}", lambda *_: None)
  if viz.choose_backend().name is None:
    with pytest.raises(viz.NoPicture):
      run("from mjx_lite import sysid, viz", names)
  else:
    assert run("from mjx_lite import sysid, viz", names)["film"].shape == (60 // 7 + 1, 360, 640, 3)
  np.testing.assert_allclose(names["fit"].values, [0.5, 2.5, 20], rtol=0.02)


def test_learning_and_control(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = dict(jax=jax, mjx=mjx)
  smaller = {"256": "4", "iterations=80": "iterations=1, config=ppo.Config(worlds=4, unroll=8)", "steps=500": "steps=20"}
  out = run("from mjx_lite import control, envs", names, **smaller)
  assert out["state"].obs.shape == (4, 5) and out["policy"](jnp.zeros(5)).shape == (1,)
  assert pathlib.Path("run").is_dir()
  np.testing.assert_allclose(out["balanced"].qpos, 0, atol=1e-9)


def test_many_devices(robot):
  m = mjx.put_model(robot)
  d = jax.vmap(lambda v: mjx.make_data(m).replace(qvel=v))(jnp.zeros((4, m.nv)))
  out = run("run = mjx.jit", dict(m=m, d=d, ctrl=jnp.zeros((4, 3, m.nu)), jax=jax, np=np, mjx=mjx))
  assert out["record"]["qpos"].shape == (4, 3, m.nq)
  np.testing.assert_allclose(out["step"](m, out["end"]).time, 4 * m.opt.timestep, rtol=1e-6)
