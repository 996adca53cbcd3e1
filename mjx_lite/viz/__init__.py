"""Pictures: worlds drawn by mujoco.Renderer in a process of its own, PNG and MP4 files."""

from mjx_lite.viz.backend import Backend, choose_backend
from mjx_lite.viz.render import NoPicture, render_grid, why_no_mp4, write_mp4, write_png

__all__ = ["Backend", "NoPicture", "choose_backend", "render_grid", "why_no_mp4", "write_mp4", "write_png"]
