"""Trajectories drawn: shapes, cameras, tiles, overlays that show forces, and refusals."""

import mujoco
import numpy as np
import pytest

from mjx_lite import viz

_CANNOT_DRAW = viz.choose_backend().name is None
needs_opengl = pytest.mark.skipif(_CANNOT_DRAW, reason="no OpenGL platform here")
XML = """
<mujoco>
  <visual><map force="0.05"/></visual>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="plane" size="2 2 .1"/>
    <camera name="above" pos="0 0 2"/>
    <body name="box" pos="0 0 0.0999"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def box():
  m = mujoco.MjModel.from_xml_string(XML)
  qpos = np.tile(m.qpos0, (3, 6, 1))  # (worlds, steps, nq)
  qpos[..., 0] += 0.4 * np.arange(3)[:, None]
  qpos[..., 2] += 0.01 * np.arange(6)  # the box leaves the floor
  return m, qpos


@needs_opengl
def test_shapes_and_overlays(box, tmp_path):
  m, qpos = box
  small = dict(width=96, height=64)
  plain = viz.render(m, qpos[0, 0], path=tmp_path / "x.png", **small)
  assert plain.shape == (64, 96, 3) and plain.any() and (tmp_path / "x.png").exists()
  film = viz.render(m, {"qpos": qpos, "qvel": np.zeros((3, 6, 6))}, fps=250, overlays="contactforce", **small)
  assert film.shape == (3, 64, 96, 3)  # every second step of 2 ms
  bare = viz.render(m, {"qpos": qpos, "qvel": np.zeros((3, 6, 6))}, fps=250, **small)
  assert (film[0] != bare[0]).any(axis=-1).sum() > 20  # arrows where the boxes press on the floor
  assert (film[2] == bare[2]).all()  # and none where they do not
  framed = viz.render(m, qpos[0, 0], overlays=["frame_body"], **small)
  assert (framed != plain).any()


@needs_opengl
def test_scene_option_and_time_between_states(box):
  m, qpos = box
  small, still = dict(width=96, height=64), {"qpos": qpos[0], "qvel": np.zeros((6, 6))}
  option = mujoco.MjvOption()
  option.geomgroup[0] = 0
  hidden = viz.render(m, still, scene_option=option, fps=250, dt=0.001, **small)
  assert hidden.shape == (2, 64, 96, 3)  # every fourth state
  plain = viz.render(m, still, fps=250, dt=0.001, **small)
  forces = viz.render(m, still, fps=250, dt=0.001, scene_option=option, overlays=["contactforce"], **small)
  assert (hidden != plain).any() and (forces[0] != hidden[0]).any(axis=-1).sum() > 20
  assert not option.flags[mujoco.mjtVisFlag.mjVIS_CONTACTFORCE]  # the caller's own stays as it was


@needs_opengl
def test_tiles_have_a_world_each(box):
  m, qpos = box
  tiles = viz.render(m, qpos[:, :1], grid=(2, 2), camera="above", width=96, height=64)
  assert tiles.shape == (1, 64, 96, 3)
  alone = viz.render(m, qpos[1, :1], camera="above", width=48, height=32)
  assert (tiles[0, :32, 48:] == alone[0]).all()  # the second world
  assert (tiles[0, :32, :48] != tiles[0, :32, 48:]).any()
  assert not tiles[0, 32:, 48:].any()  # no fourth


def test_refusals(box, tmp_path, monkeypatch):
  m, qpos = box
  monkeypatch.setattr("mjx_lite.viz.film.draw", None)  # nothing is drawn that cannot be written
  monkeypatch.setattr("mjx_lite.viz.film.why_no_mp4", lambda: "no ffmpeg")
  messages = {"x.gif": "must end in", "x": "must end in", "no/x.mp4": "does not exist", "x.png": "18", "x.mp4": "no ffmpeg"}
  for name, message in messages.items():
    with pytest.raises((ValueError, OSError, RuntimeError), match=message):
      viz.render(m, qpos.reshape(18, -1), path=tmp_path / name)
  with pytest.raises(ValueError, match="no camera 'left'"):
    viz.render(m, qpos, camera="left")
  with pytest.raises(ValueError, match="no overlay 'forces'"):
    viz.render(m, qpos, overlays=["forces"])
  with pytest.raises(ValueError, match="no room for 3 worlds"):
    viz.render(m, qpos, grid=(1, 2))
  with pytest.raises(ValueError, match="leading axes must be those of qpos"):
    viz.render(m, {"qpos": qpos, "qvel": np.zeros((2, 6, 6))})
