"""The drawing process: `python worker.py JOB.npz OUT.npy`, with MUJOCO_GL set by the caller.

The process is separate, because MuJoCo binds one OpenGL platform at import, and a broken driver may end a process.
The process imports only mujoco and NumPy, so the process starts fast. `film.py` takes the list STATE from here.

Entries of a job: model (path), qpos and other parts of the state (pictures, worlds, n), offset (worlds, 3), size (width,
height), lookat, view (distance, azimuth, elevation), spread. Optional entries: forward (compute forces), camera (id or -1),
tiles (rows, columns, or zeros for one scene), option_... (fields of the scene option).

Tests: tests/viz/test_film.py.
"""

import sys

import mujoco
import numpy as np

_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
STATE = ("qpos", "qvel", "act", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "eq_active")
_DECOR = 4  # maximum number of overlay geoms per geom of the model


def _draw(job) -> np.ndarray:
  """Draw every picture of `job`: all worlds in one scene, each at its offset, or one tile per world."""
  m = mujoco.MjModel.from_binary_path(str(job["model"]))
  state, offset = {k: job[k] for k in STATE if k in job}, job["offset"]
  frames, worlds = state["qpos"].shape[:2]
  width, height = (int(x) for x in job["size"])
  rows, columns = (int(x) for x in job.get("tiles", (0, 0)))
  tile = (height // rows, width // columns) if rows else (height, width)
  _prepare(m, width, height, frames, float(job["spread"]))
  camera, option = _camera(job), _option(job)

  d = mujoco.MjData(m)
  ground = np.isin(m.geom_type, _GROUND)
  images = np.zeros((frames, height, width, 3), np.uint8)
  with mujoco.Renderer(m, *tile, max_geom=worlds * (_DECOR * m.ngeom + 8 * m.nbody + 200) + 200) as renderer:
    perturb, everything = mujoco.MjvPerturb(), int(mujoco.mjtCatBit.mjCAT_ALL)
    for frame in range(frames):
      for world in range(worlds):
        _set(m, d, {k: x[frame, world] for k, x in state.items()}, bool(job.get("forward", False)))
        first = 0
        if world == 0 or rows:
          renderer.update_scene(d, camera, option)
        else:
          first = renderer.scene.ngeom
          mujoco.mjv_addGeoms(m, d, option, perturb, everything, renderer.scene)
        if rows:
          y, x = (world // columns) * tile[0], (world % columns) * tile[1]
          images[frame, y : y + tile[0], x : x + tile[1]] = renderer.render()
        else:
          _place(renderer.scene, first, ground, offset[world], hide_ground=world > 0)
      if not rows:
        images[frame] = renderer.render()
  return images


def _prepare(m, width: int, height: int, frames: int, spread: float) -> None:
  """Set buffer size, rendering quality and visible range of the model."""
  m.vis.global_.offwidth = max(m.vis.global_.offwidth, width)
  m.vis.global_.offheight = max(m.vis.global_.offheight, height)
  if frames > 1:
    # shadows and multisampling take most of the time of software rendering
    m.vis.quality.shadowsize = min(m.vis.quality.shadowsize, 1024)
    m.vis.quality.offsamples = min(m.vis.quality.offsamples, 2)
  # shadows and clipping planes cover the whole grid
  m.stat.extent = max(m.stat.extent, spread)
  m.vis.map.shadowclip = 1.0
  m.vis.map.fogstart, m.vis.map.fogend = 1.2, 4.0
  m.vis.map.zfar = max(m.vis.map.zfar, 30.0)


def _camera(job) -> mujoco.MjvCamera:
  """Make the camera: free, or a camera of the model."""
  camera = mujoco.MjvCamera()
  camera.lookat[:] = job["lookat"]
  camera.distance, camera.azimuth, camera.elevation = (float(x) for x in job["view"])
  if int(job.get("camera", -1)) >= 0:
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, int(job["camera"])
  return camera


def _option(job) -> mujoco.MjvOption:
  """Make the scene option with the fields of the job."""
  option = mujoco.MjvOption()
  for name in (k for k in job if k.startswith("option_")):
    field = name.removeprefix("option_")
    if job[name].ndim:
      getattr(option, field)[:] = job[name]
    else:
      setattr(option, field, int(job[name]))
  return option


def _set(m, d, values, forward: bool) -> None:
  """Write a state into d, and compute the poses to draw; with `forward` also contacts and forces."""
  for name, x in values.items():
    field = getattr(d, name)
    if x.size:
      field[:] = x.reshape(field.shape)
  if forward:
    mujoco.mj_forward(m, d)
    return
  mujoco.mj_kinematics(m, d)
  mujoco.mj_comPos(m, d)
  mujoco.mj_camlight(m, d)


def _place(scene, first: int, ground: np.ndarray, offset: np.ndarray, hide_ground: bool) -> None:
  """Shift the geoms of a scene from index `first` on, except ground geoms; with `hide_ground`, hide these ground geoms."""
  for i in range(first, scene.ngeom):
    geom = scene.geoms[i]
    is_ground = geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.objid >= 0 and ground[geom.objid]
    if not is_ground:
      geom.pos[:] += offset
    elif hide_ground:
      geom.rgba[3] = 0


if __name__ == "__main__":
  with np.load(sys.argv[1]) as job:
    np.save(sys.argv[2], _draw(dict(job)))
