"""Models for the tests: the project's scenes, and real ones from installed packages, cut down to what is supported."""

import functools
import importlib.util
import pathlib
import sys

import mujoco
import pytest

from mjx_lite.sensor.table import SENSORS

SCENES = pathlib.Path(__file__).parents[1] / "scenes"
MJX_DATA = pathlib.Path(mujoco.__file__).parent / "mjx" / "test_data"
SHIPPED = pathlib.Path(__file__).parents[2] / "mjx_lite" / "models"

# compared in tests/collision and tests/sensor: C's own accuracy there is ccd_tolerance; capacities
ELSEWHERE = ("convex", "hills", "pile", "sdf", "sensor_rays", "shapes")
SCENE_NAMES = tuple(sorted(p.stem for p in SCENES.glob("*.xml") if p.stem not in ELSEWHERE))
# models with a step or a stage that is too large for machine code, which the engine says
LARGE = ("discrete",)
TOO_LARGE = pytest.mark.filterwarnings("ignore:.*is too (large|long):mjx_lite.errors.SlowPathWarning")
# tests that watch a program by callbacks, which machine code has not
WATCHED = pytest.mark.filterwarnings("ignore:.*debug_callback has no rule:mjx_lite.errors.SlowPathWarning")
# real models nobody here wrote: name -> file in the package mujoco-mjx
REAL = {
  "humanoid_mjx": "humanoid/humanoid.xml",
  "humanoids_1": "humanoid/01_humanoids.xml",
  "humanoids_2": "humanoid/02_humanoids.xml",
  "humanoids_3": "humanoid/03_humanoids.xml",
  "quadruped": "barkour_v0/assets/barkour_v0_mjx.xml",
  "hand": "shadow_hand/scene_right.xml",
}
# files of other packages, with all that belongs to smooth dynamics left in
OTHERS = {
  **{f"dm_{k}": ("dm_control", f"suite/{k}.xml") for k in (
    "acrobot", "ball_in_cup", "cartpole", "cheetah", "dog", "finger", "fish", "hopper", "humanoid", "humanoid_CMU", "lqr",
    "manipulator", "pendulum", "point_mass", "quadruped", "reacher", "stacker", "swimmer", "walker",
  )},
  **{f"gym_{k}": ("gymnasium", f"envs/mujoco/assets/{k}.xml") for k in (
    "ant", "half_cheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum", "inverted_pendulum", "point",
    "pusher", "pusher_v5", "reacher", "swimmer", "walker2d", "walker2d_v5",
  )},
  **{f"myo_{k}": ("myo_sim", f"models/legacy/{k}.xml") for k in (
    "elbow/myoelbow_1dof6muscles", "elbow/myoelbow_2dof6muscles", "elbow/myoelbow_1dof6muscles_1dofexo",
    "finger/myofinger_v0", "finger/motorfinger_v0", "osl/myolegs_osl",
  )},
}  # fmt: skip
# longer than CI has time for; run with `-m slow`
IN_CI = ("dm_ball_in_cup", "dm_fish", "gym_humanoid", "myo_elbow/myoelbow_2dof6muscles")
SLOW = ("humanoids_2", "humanoids_3", *(k for k in OTHERS if k not in IN_CI))


@functools.cache
def load(name: str) -> mujoco.MjModel:
  """A scene, the shipped humanoid ('humanoid'), or a real model cut down."""
  if name in SCENE_NAMES or name in ELSEWHERE:
    return mujoco.MjModel.from_xml_path(str(SCENES / f"{name}.xml"))
  if name == "humanoid":
    return mujoco.MjModel.from_xml_path(str(SHIPPED / "humanoid.xml"))
  if name in REAL:
    return strip(mujoco.MjSpec.from_file(str(MJX_DATA / REAL[name])))
  package, file = OTHERS[name]
  found = importlib.util.find_spec(package)
  if found is None and package == "dm_control" and sys.version_info >= (3, 13):
    pytest.skip("dm_control needs labmaze, which has no wheels for this Python")
  assert found is not None and found.submodule_search_locations, f"pip install mjx_lite[test] brings {package}"
  spec = mujoco.MjSpec.from_file(str(pathlib.Path(found.submodule_search_locations[0]) / file))
  # stages are compared at the optimum, to which Newton's method gets in the fewest iterations, and before noslip leaves it;
  # Runge-Kutta leaves the stages of its last place (tests/integrate)
  if spec.option.integrator == mujoco.mjtIntegrator.mjINT_RK4:
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
  spec.option.solver = mujoco.mjtSolver.mjSOL_NEWTON
  spec.option.noslip_iterations = 0
  if name == "gym_point":  # its sphere slides on the floor at distance 0, where round-off decides whether there is a contact
    spec.geom("floor").pos[2] = 1e-3
  return strip(spec)


def strip(spec: mujoco.MjSpec) -> mujoco.MjModel:
  """Compile without the sensors that are not supported, and without convex pairs: those are compared in tests/collision.

  C iterates there to its own tolerance, which is coarser than that of the comparison of stages.
  """
  for sensor in list(spec.sensors):
    if int(sensor.type) not in SENSORS:
      spec.delete(sensor)
  collides = (
    mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX,
  )  # fmt: skip
  shape = {g.name: g.type for g in spec.geoms}
  for pair in list(spec.pairs):
    if not {shape[pair.geomname1], shape[pair.geomname2]} <= {*collides}:
      spec.delete(pair)
  planes = 0
  for geom in spec.geoms:
    planes += geom.type == mujoco.mjtGeom.mjGEOM_PLANE
    if geom.type not in collides:
      geom.contype = geom.conaffinity = 0
  if not planes:
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[10, 10, 0.1])
  return spec.compile()
