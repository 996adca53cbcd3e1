"""The drawing process: `python worker.py JOB.npz OUT.npy`, with MUJOCO_GL set by the caller.

A separate process, because MuJoCo binds one OpenGL platform when it is imported, and a broken driver may end a process.
It imports nothing but mujoco and NumPy, so it starts at once.
"""

import sys

import mujoco
import numpy as np

_GROUND = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)


def _draw(job) -> np.ndarray:
  """Draws every frame of `job`: all worlds of a frame in one scene, shifted to their places on the grid."""
  m = mujoco.MjModel.from_binary_path(str(job["model"]))
  qpos, offset = job["qpos"], job["offset"]
  frames, worlds = qpos.shape[:2]
  width, height = (int(x) for x in job["size"])
  m.vis.global_.offwidth = max(m.vis.global_.offwidth, width)
  m.vis.global_.offheight = max(m.vis.global_.offheight, height)

  if frames > 1:
    # software rendering takes most of its time for these
    m.vis.quality.shadowsize = min(m.vis.quality.shadowsize, 1024)
    m.vis.quality.offsamples = min(m.vis.quality.offsamples, 2)

  # shadows and clipping planes reach over the whole grid
  spread = float(job["spread"])
  m.stat.extent = max(m.stat.extent, spread)
  m.vis.map.shadowclip = 1.0
  m.vis.map.fogstart, m.vis.map.fogend = 1.2, 4.0
  m.vis.map.zfar = max(m.vis.map.zfar, 30.0)

  camera = mujoco.MjvCamera()
  camera.lookat[:] = job["lookat"]
  camera.distance, camera.azimuth, camera.elevation = (float(x) for x in job["view"])

  d = mujoco.MjData(m)
  ground = np.isin(m.geom_type, _GROUND)
  images = np.zeros((frames, height, width, 3), np.uint8)
  with mujoco.Renderer(m, height, width, max_geom=worlds * (m.ngeom + 8) + 200) as renderer:
    option, perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
    everything = int(mujoco.mjtCatBit.mjCAT_ALL)
    for frame in range(frames):
      for world in range(worlds):
        d.qpos[:] = qpos[frame, world]
        mujoco.mj_kinematics(m, d)
        mujoco.mj_comPos(m, d)
        mujoco.mj_camlight(m, d)
        if world == 0:
          renderer.update_scene(d, camera)
          first = 0
        else:
          first = renderer.scene.ngeom
          mujoco.mjv_addGeoms(m, d, option, perturb, everything, renderer.scene)
        _place(renderer.scene, first, ground, offset[world], hide_ground=world > 0)
      images[frame] = renderer.render()
  return images


def _place(scene, first: int, ground: np.ndarray, offset: np.ndarray, hide_ground: bool) -> None:
  """Shifts the geoms of a scene from number `first` on, and hides the repeated ground of all worlds but one."""
  for i in range(first, scene.ngeom):
    geom = scene.geoms[i]
    is_ground = geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.objid >= 0 and ground[geom.objid]
    if not is_ground:
      geom.pos[:] += offset
    elif hide_ground:
      geom.rgba[3] = 0


if __name__ == "__main__":
  with np.load(sys.argv[1]) as job:
    np.save(sys.argv[2], _draw(job))
