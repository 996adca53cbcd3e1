"""Pictures: the grid, the files, and a clear message where nothing can draw."""

import struct
import zlib

import numpy as np
import pytest

from mjx_lite import viz
from mjx_lite.cli import common
from mjx_lite.viz import backend

_CANNOT_DRAW = viz.choose_backend().name is None


@pytest.fixture
def fresh_choice():
  """Forgets the platform that was chosen, before and after."""
  backend.choose_backend.cache_clear()
  yield
  backend.choose_backend.cache_clear()


def test_png_can_be_read_back(tmp_path):
  image = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).astype(np.uint8)
  viz.write_png(tmp_path / "x.png", image)
  content = (tmp_path / "x.png").read_bytes()
  assert content[:8] == b"\x89PNG\r\n\x1a\n"
  assert struct.unpack(">II", content[16:24]) == (7, 5)
  start = content.index(b"IDAT")
  length = struct.unpack(">I", content[start - 4 : start])[0]
  lines = np.frombuffer(zlib.decompress(content[start + 4 : start + 4 + length]), np.uint8).reshape(5, 1 + 3 * 7)
  np.testing.assert_array_equal(lines[:, 1:].reshape(5, 7, 3), image)


@pytest.mark.skipif(_CANNOT_DRAW, reason="no OpenGL platform here")
def test_grid_shows_every_world():
  m = common.load_model("humanoid")
  qpos = np.tile(common.initial_data(m).qpos, (4, 1))
  four = viz.render_grid(m, qpos, width=160, height=120)
  assert four.shape == (120, 160, 3) and four.dtype == np.uint8
  moved = qpos.copy()
  moved[3, 2] += 0.5
  assert (viz.render_grid(m, moved, width=160, height=120) != four).any()
  film = viz.render_grid(m, np.stack([qpos, moved]), width=160, height=120)
  assert film.shape == (2, 120, 160, 3)
  # films are drawn with coarser shadows
  assert np.abs(film[0].astype(float) - four).mean() < 5
  assert (film[0] != film[1]).any()


def test_wrong_shape_is_refused():
  m = common.load_model("humanoid")
  with pytest.raises(ValueError, match="28"):
    viz.render_grid(m, np.zeros((2, 5)))


def test_drawing_switched_off(monkeypatch, fresh_choice):
  monkeypatch.setenv("MUJOCO_GL", "off")
  choice = viz.choose_backend()
  assert choice.name is None and "MUJOCO_GL=off" in choice.message


def test_message_says_what_to_install(monkeypatch, fresh_choice):
  monkeypatch.setattr(backend, "_probe", lambda name: f"no {name} here")
  with pytest.raises(viz.NoPicture, match="apt-get install libegl1") as error:
    viz.render_grid(common.load_model("humanoid"), np.zeros((1, 28)))
  assert "egl: no egl here" in str(error.value) and "osmesa: no osmesa here" in str(error.value)


def test_wish_is_tried_first(monkeypatch, fresh_choice):
  monkeypatch.setenv("MUJOCO_GL", "osmesa")
  asked = []
  monkeypatch.setattr(backend, "_probe", lambda name: asked.append(name) or None)
  assert viz.choose_backend().name == "osmesa" and asked == ["osmesa"]


@pytest.mark.skipif(viz.why_no_mp4() is not None, reason=f"no film: {viz.why_no_mp4()}")
def test_mp4(tmp_path):
  assert viz.write_mp4(tmp_path / "x.mp4", np.zeros((3, 32, 32, 3), np.uint8), 30) is None
  assert (tmp_path / "x.mp4").stat().st_size > 100
