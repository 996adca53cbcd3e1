"""Pictures of many worlds in a grid on one floor, drawn by mujoco.Renderer; PNG and MP4 files.

Tests: tests/viz/test_render.py.
"""

import importlib.util
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from typing import Any

import mujoco
import numpy as np

from mjx_lite.viz.backend import WORKER, choose_backend, gl_environment


class NoPicture(RuntimeError):
  """Raised when nothing can be drawn here; the message says what to install."""


def render_grid(
  mj_model: mujoco.MjModel,
  qpos: np.ndarray,
  *,
  width: int = 1280,
  height: int = 720,
  spacing: float | None = None,
  azimuth: float = 90.0,
  elevation: float = -40.0,
) -> np.ndarray:
  """Draw worlds on a square grid with one shared floor.

  Args:
    mj_model: the compiled MuJoCo model
    qpos: generalised positions, (worlds, nq) for one picture or (frames, worlds, nq) for a film
    width: width of the picture [pixel]
    height: height of the picture [pixel]
    spacing: distance between worlds [m]; by default computed from the model's extent
    azimuth: azimuth of the camera [deg]
    elevation: elevation of the camera [deg]

  Returns:
    RGB bytes, (height, width, 3) or (frames, height, width, 3).

  Raises:
    NoPicture: no OpenGL platform works here.
  """
  qpos = np.asarray(qpos, np.float64)
  if qpos.ndim not in (2, 3) or qpos.shape[-1] != mj_model.nq or 0 in qpos.shape[:-1]:
    raise ValueError(
      f"qpos has shape {qpos.shape}; the required shape is (worlds, {mj_model.nq}) or (frames, worlds, {mj_model.nq})."
    )
  film = qpos[None] if qpos.ndim == 2 else qpos
  spacing = spacing or float(np.clip(1.1 * mj_model.stat.extent, 0.5, 10.0))
  offset, lookat, distance = arrange(mj_model, film.shape[1], spacing, azimuth)

  images = draw(
    mj_model,
    dict(
      qpos=film,
      offset=offset,
      size=np.array([width, height]),
      lookat=lookat,
      view=np.array([distance, azimuth, elevation]),
      spread=distance,
    ),
  )
  return images[0] if qpos.ndim == 2 else images


def draw(mj_model: mujoco.MjModel, job: dict[str, Any]) -> np.ndarray:
  """Draw in a separate process; see `worker.py` for the entries of a job.

  Raises:
    NoPicture: no OpenGL platform works here.
  """
  backend = choose_backend()
  if backend.name is None:
    raise NoPicture(backend.message)
  with tempfile.TemporaryDirectory(prefix="mjx_lite_") as folder:
    model_path, job_path, out_path = (str(pathlib.Path(folder) / x) for x in ("m.mjb", "job.npz", "out.npy"))
    mujoco.mj_saveModel(mj_model, model_path)
    np.savez(job_path, model=model_path, **job)
    done = subprocess.run(
      [sys.executable, str(WORKER), job_path, out_path],
      env=gl_environment(backend.name),
      capture_output=True,
      text=True,
    )
    if done.returncode:
      raise NoPicture(f"drawing with {backend.name} failed:\n{done.stderr.strip()[-2000:]}")
    return np.load(out_path)


def write_png(path: str | os.PathLike, image: np.ndarray) -> None:
  """Write an RGB image as a PNG file.

  Args:
    path: path of the file.
    image: uint8 (height, width, 3).
  """
  height, width, _ = image.shape
  # each line of a PNG begins with a filter type; 0 is no filter
  lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1).tobytes()

  def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

  header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
  pathlib.Path(path).write_bytes(
    b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")
  )


def why_no_mp4() -> str | None:
  """Return None if films can be written here, otherwise a message that lists the missing programs and packages."""
  missing = [] if shutil.which("ffmpeg") else ["ffmpeg is not on the PATH"]
  if importlib.util.find_spec("mediapy") is None:
    missing.append("mediapy is not installed (pip install 'mjx_lite[viz]')")
  return " and ".join(missing) or None


def write_mp4(path: str | os.PathLike, images: np.ndarray, fps: float) -> str | None:
  """Write RGB images as an MP4 file; return None, or a message if the film cannot be written.

  Args:
    path: path of the file.
    images: uint8 (frames, height, width, 3).
    fps: pictures per second.
  """
  if (why := why_no_mp4()) is not None:
    return why
  mediapy: Any = importlib.import_module("mediapy")  # optional

  try:
    mediapy.write_video(str(path), images, fps=fps)
  except Exception as error:  # a missing encoder must not lose the caller's results
    return f"ffmpeg failed: {(str(error).strip() or repr(error)).splitlines()[0]}"
  return None


def arrange(mj_model: mujoco.MjModel, worlds: int, spacing: float, azimuth: float) -> tuple[np.ndarray, np.ndarray, float]:
  """Place worlds on a square grid; return offsets (worlds, 3) [m], the camera's target (3,) [m] and its distance [m]."""
  columns = int(np.ceil(np.sqrt(worlds)))
  rows = -(-worlds // columns)
  row, column = np.divmod(np.arange(worlds), columns)
  offset = np.stack([row - (rows - 1) / 2, column - (columns - 1) / 2, 0 * row], -1) * spacing
  # aim in front of the center: near rows fill more of the picture than far rows
  lookat = np.array([-np.cos(np.radians(azimuth)), -np.sin(np.radians(azimuth)), 0.0]) * 0.11 * spacing * (columns - 1)
  lookat[2] = 0.6 * mj_model.stat.center[2]
  return offset, lookat, spacing * (0.85 * columns + 1.1)
