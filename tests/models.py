"""Models for the tests: the project's scenes, and real ones from installed packages, cut down to what is supported."""

import functools
import pathlib

import mujoco

SCENES = pathlib.Path(__file__).parent / "scenes"
MJX_DATA = pathlib.Path(mujoco.__file__).parent / "mjx" / "test_data"
SHIPPED = pathlib.Path(__file__).parent.parent / "mjx_lite" / "models"

SCENE_NAMES = tuple(sorted(p.stem for p in SCENES.glob("*.xml")))
# real models nobody here wrote: name -> file in the package mujoco-mjx
REAL = {
  "humanoid_mjx": "humanoid/humanoid.xml",
  "humanoids_1": "humanoid/01_humanoids.xml",
  "humanoids_2": "humanoid/02_humanoids.xml",
  "humanoids_3": "humanoid/03_humanoids.xml",
  "quadruped": "barkour_v0/assets/barkour_v0_mjx.xml",
  "hand": "shadow_hand/scene_right.xml",
}
# longer than CI has time for; run with `-m slow`
SLOW = ("humanoids_3",)


@functools.cache
def load(name: str) -> mujoco.MjModel:
  """A scene, the shipped humanoid ('humanoid'), or a real model cut down."""
  if name in SCENE_NAMES:
    return mujoco.MjModel.from_xml_path(str(SCENES / f"{name}.xml"))
  if name == "humanoid":
    return mujoco.MjModel.from_xml_path(str(SHIPPED / "humanoid.xml"))
  return strip(mujoco.MjSpec.from_file(str(MJX_DATA / REAL[name])))


def strip(spec: mujoco.MjSpec) -> mujoco.MjModel:
  """Compile without sensors, tendons and what acts on them; meshes and other shapes without a collider do not collide."""
  for sensor in list(spec.sensors):
    spec.delete(sensor)
  for actuator in list(spec.actuators):
    if actuator.trntype == mujoco.mjtTrn.mjTRN_TENDON:
      spec.delete(actuator)
  for tendon in list(spec.tendons):
    spec.delete(tendon)
  collides = (
    mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX,
  )  # fmt: skip
  planes = 0
  for geom in spec.geoms:
    planes += geom.type == mujoco.mjtGeom.mjGEOM_PLANE
    if geom.type not in collides:
      geom.contype = geom.conaffinity = 0
  if not planes:
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[10, 10, 0.1])
  return spec.compile()
