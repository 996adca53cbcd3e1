"""Pictures: mujoco.Renderer draws worlds in a separate process; PNG and MP4 files."""

from mjx_lite.viz.backend import Backend, choose_backend
from mjx_lite.viz.draw import NoPicture, render_grid, why_no_mp4, write_mp4, write_png
from mjx_lite.viz.film import FLAGS, FRAMES, STATE, render

__all__ = [
  "FLAGS", "FRAMES", "STATE", "Backend", "NoPicture", "choose_backend", "render", "render_grid", "why_no_mp4", "write_mp4",
  "write_png",
]  # fmt: skip
