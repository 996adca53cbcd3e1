"""Which OpenGL platforms are tried, on which operating system."""

import sys

import pytest

from mjx_lite.viz import backend


@pytest.mark.parametrize(
  "system, wish, names",
  [
    ("linux", "", ["egl", "osmesa"]), ("linux", "osmesa", ["osmesa", "egl"]), ("linux", "glfw", ["glfw", "egl", "osmesa"]),
    ("darwin", "", ["cgl", "glfw"]), ("win32", "", ["wgl", "glfw"]), ("win32", "glfw", ["glfw", "wgl"]),
  ],
)  # fmt: skip
def test_platforms(system, wish, names, monkeypatch):
  tried = []
  monkeypatch.setattr(sys, "platform", system)
  monkeypatch.setenv("MUJOCO_GL", wish)
  monkeypatch.setattr(backend, "_probe", lambda name: tried.append(name) or "none here")
  found = backend.choose_backend.__wrapped__()
  assert tried == names and found.name is None and all(name in found.message for name in names)
