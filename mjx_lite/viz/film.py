"""Pictures and films of trajectories: from the model's cameras or a free camera, with MuJoCo's overlays."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from mjx_lite import Data, Model
from mjx_lite.viz.draw import arrange, draw, why_no_mp4, write_mp4, write_png
from mjx_lite.viz.worker import STATE

OPTION = (
  "actuatorgroup", "bvh_depth", "flags", "flex_layer", "flexgroup", "frame", "geomgroup", "jointgroup", "label", "sitegroup",
  "skingroup", "tendongroup",
)  # fmt: skip
FLAGS = {x.name[len("mjVIS_") :].lower(): int(x) for x in mujoco.mjtVisFlag.__members__.values() if x.name != "mjNVISFLAG"}
FRAMES = {
  "frame_" + x.name[len("mjFRAME_") :].lower(): int(x)
  for x in mujoco.mjtFrame.__members__.values()
  if x.name not in ("mjNFRAME", "mjFRAME_NONE")
}


def render(
  mj_model: mujoco.MjModel,
  trajectory: Any,
  *,
  camera: str | int | mujoco.MjvCamera | None = None,
  grid: tuple[int, int] | None = None,
  overlays: Sequence[str] = (),
  scene_option: mujoco.MjvOption | None = None,
  fps: float | None = None,
  dt: float | None = None,
  width: int = 640,
  height: int = 360,
  spacing: float | None = None,
  path: str | os.PathLike | None = None,
) -> np.ndarray:
  """Draw a state, a trajectory, or a batch of trajectories, as `rollout` and its `vmap` record them.

  Args:
    mj_model: the compiled MuJoCo model.
    trajectory: qpos; or a record or Data with qpos and, if present, qvel, act, ctrl, applied forces and mocap poses, on which
      contact forces depend. The leading axes are () for one state, (steps,), or (worlds, steps).
    camera: name or id of a camera of the model, or a MjvCamera; a free camera with all worlds in sight if None.
    grid: (rows, columns) of tiles: one tile per world. None: all worlds stand on one floor in one scene.
    overlays: visual flags of MuJoCo: 'contactforce', 'contactpoint', 'com', 'joint', 'actuator', 'transparent', ...
      (`viz.FLAGS`), and one of 'frame_body', 'frame_geom', 'frame_site', 'frame_contact', ... (`viz.FRAMES`).
    scene_option: MuJoCo's MjvOption (visible groups, frames and labels), to which the overlays are added.
    fps: pictures per second of simulated time; one picture per state if None.
    dt: time between two states of the trajectory [s]; the model's timestep if None.
    width: width of a picture with all worlds [pixel].
    height: height of a picture with all worlds [pixel].
    spacing: distance between worlds on one floor [m]; by default computed from the model's extent.
    path: optional file to write: .png for one picture, .mp4 for a film.

  Returns:
    RGB bytes: (height, width, 3) for a state, (pictures, height, width, 3) for a trajectory.

  Raises:
    NoPicture: no OpenGL platform works here; the message says what to install.
  """
  state, still = _states(mj_model, trajectory)
  interval = float(mj_model.opt.timestep if dt is None else dt)
  stride = 1 if fps is None else max(1, round(1 / (fps * interval)))
  state = {k: np.swapaxes(x, 0, 1)[::stride] for k, x in state.items()}  # (pictures, worlds, n)
  pictures, worlds = state["qpos"].shape[:2]
  option = _option(overlays, scene_option)
  if path is not None:
    _check_path(path, pictures)
  if grid is not None and grid[0] * grid[1] < worlds:
    raise ValueError(f"grid = {grid[0]} by {grid[1]} has no room for {worlds} worlds: give more rows or columns.")
  view = _view(mj_model, worlds, camera, grid, spacing)
  images = draw(mj_model, dict(state, size=np.array([width, height]), forward=True, **view, **option))
  if path is not None:
    _write(path, images, still, fps or 1 / interval)
  return images[0] if still else images


def _states(mj_model, trajectory):
  """Return the fields of the state by name, (worlds, steps, n) each, and whether the trajectory is a single state."""
  if isinstance(mj_model, Model):
    raise TypeError("render needs the mujoco.MjModel, not the Model that put_model returns.")
  if isinstance(trajectory, Data):
    trajectory = {k: getattr(trajectory, k) for k in STATE}
  given = trajectory if isinstance(trajectory, dict) else {"qpos": trajectory}
  if "qpos" not in given:
    raise ValueError(f"the trajectory has no qpos, only {sorted(given)}.")
  qpos = np.asarray(given["qpos"])
  lead = qpos.shape[:-1]
  if not 1 <= qpos.ndim <= 3 or qpos.shape[-1] != mj_model.nq or 0 in lead:
    raise ValueError(f"qpos has shape {qpos.shape}; the required shape is ([worlds,] [steps,] {mj_model.nq}).")
  lead3 = (1,) * (2 - len(lead)) + lead
  out = {}
  for k in (k for k in STATE if k in given):
    x = np.asarray(given[k], np.float64)
    if x.shape[: len(lead)] != lead:
      raise ValueError(f"{k} has shape {x.shape}; the leading axes must be those of qpos, which has shape {qpos.shape}.")
    out[k] = x.reshape(*lead3, -1) if x.size else np.zeros((*lead3, 0))
  return out, not lead


def _option(overlays, scene_option):
  """Return the fields of the scene option by name, with the overlays added."""
  given = scene_option or mujoco.MjvOption()
  out = {f"option_{k}": np.array(getattr(given, k)) for k in OPTION}
  for name in [overlays] if isinstance(overlays, str) else overlays:
    if name in FLAGS:
      out["option_flags"][FLAGS[name]] = 1
    elif name in FRAMES:
      out["option_frame"] = np.array(FRAMES[name])
    else:
      raise ValueError(f"there is no overlay {name!r}: use {', '.join([*FLAGS, *FRAMES])}.")
  return out


def _view(mj_model, worlds, camera, grid, spacing):
  """Return the entries of a job that place the worlds and the camera."""
  spacing = spacing or float(np.clip(1.1 * mj_model.stat.extent, 0.5, 10.0))
  offset, lookat, distance = arrange(mj_model, 1 if grid else worlds, spacing, 90.0)
  lookat, view, fixed = _camera(mj_model, camera, lookat, distance)
  return dict(
    offset=np.tile(offset, (worlds, 1)) if grid else offset,
    lookat=lookat,
    view=view,
    spread=distance,
    tiles=np.array(grid or (0, 0)),
    camera=fixed,
  )


def _camera(mj_model, camera, lookat, distance):
  """Return the camera's target, (distance, azimuth, elevation), and the id of the model's camera, or -1 for a free camera."""
  if isinstance(camera, mujoco.MjvCamera):
    fixed = camera.fixedcamid if camera.type == mujoco.mjtCamera.mjCAMERA_FIXED else -1
    return np.array(camera.lookat), np.array([camera.distance, camera.azimuth, camera.elevation]), fixed
  view = np.array([distance, 90.0, -40.0 if distance > 4 * mj_model.stat.extent else -25.0])
  if camera is None:
    return lookat, view, -1
  i = mujoco.mj_name2id(mj_model, mujoco.mjtObj.mjOBJ_CAMERA, camera) if isinstance(camera, str) else int(camera)
  if not 0 <= i < mj_model.ncam:
    raise ValueError(
      f"the model has no camera {camera!r}: use one of {[mj_model.camera(i).name for i in range(mj_model.ncam)]}."
    )
  return lookat, view, i


def _check_path(path, pictures):
  """Raise an error if the file cannot be written, before anything is drawn."""
  path = pathlib.Path(path)
  if path.suffix not in (".png", ".mp4"):
    raise ValueError(f"the name of {path} must end in .png, for one picture, or in .mp4, for a film.")
  if not path.parent.is_dir():
    raise FileNotFoundError(f"the folder of {path} does not exist: make the folder first.")
  if path.suffix == ".png" and pictures > 1:
    raise ValueError(f"{path} can store one picture, but the trajectory has {pictures}: write an .mp4, or give one state.")
  if path.suffix == ".mp4" and (why := why_no_mp4()) is not None:
    raise RuntimeError(f"{path} cannot be written: {why}.")


def _write(path, images, still, fps):
  """Write a picture or a film."""
  if str(path).endswith(".png"):
    write_png(path, images[0])
  elif (why := write_mp4(path, images, fps)) is not None:
    raise RuntimeError(f"{path} was not written: {why}.")
