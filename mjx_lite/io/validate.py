"""Features of MuJoCo that a model may use. Every feature that is not implemented is found, named and refused here.

Tests: tests/io/test_io.py, tests/io/test_mistakes.py.
"""

from typing import Any

import mujoco
import numpy as np

from mjx_lite.actuator.table import BIASES, DYNAMICS, GAINS
from mjx_lite.actuator.transmission import TRANSMISSIONS
from mjx_lite.collision import driver, pairs
from mjx_lite.collision.hfield import hfield
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.sdf.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.constraint.equality import EQUALITIES
from mjx_lite.errors import MjxError, Problem, UnsupportedModelError
from mjx_lite.model import enums
from mjx_lite.pipeline import INTEGRATORS
from mjx_lite.sensor.site_volume.volume import SHAPES
from mjx_lite.sensor.table import SENSORS
from mjx_lite.sensor.tactile import DISTANCES
from mjx_lite.solver.table import SOLVERS

CONES = tuple(enums.ConeType)
ENABLE_FLAGS = tuple(enums.EnableBit[k] for k in ("OVERRIDE", "ENERGY", "FWDINV", "INVDISCRETE", "DIAGEXACT"))


def name_of(m: mujoco.MjModel, kind: mujoco.mjtObj, index: int | np.integer) -> str:
  """Return an element's name for messages: its name in the model, or its index."""
  label = kind.name.removeprefix("mjOBJ_").lower()
  name = mujoco.mj_id2name(m, kind, int(index))
  return f"{label} '{name}'" if name else f"{label} {index}"


def check(m: mujoco.MjModel) -> None:
  """Refuse a model that uses features that are not implemented.

  Raises:
    UnsupportedModelError: names every problem.
  """
  problems = find_problems(m)
  if problems:
    raise UnsupportedModelError(problems)


def check_numbers(m: mujoco.MjModel) -> None:
  """Refuse a model whose numbers do not define a motion; an edit of a compiled model can produce such numbers.

  Raises:
    MjxError: names the numbers.
  """
  found = []
  if not (m.opt.timestep > 0 and np.isfinite(m.opt.timestep)):
    found.append(f"option: timestep = {m.opt.timestep:g}, has to be above 0")
  body = mujoco.mjtObj.mjOBJ_BODY
  for field in ("body_mass", "body_inertia"):
    x = getattr(m, field).reshape(m.nbody, -1)
    for b in np.flatnonzero(~np.all((x >= 0) & np.isfinite(x), axis=1)):
      found.append(f"{name_of(m, body, b)}: {field} = {np.array2string(x[b])}, has to be 0 or more")
  heavy = (m.body_mass >= mujoco.mjMINVAL) & (m.body_inertia.min(axis=1) >= mujoco.mjMINVAL)
  carried = {int(w) for w in m.body_weldid[heavy]}
  for b in np.flatnonzero(m.body_jntnum > 0):
    if int(m.body_weldid[b]) not in carried:
      mass, inertia = m.body_mass[b], np.array2string(m.body_inertia[b])
      found.append(
        f"{name_of(m, body, b)}: it has joints, mass = {mass:g} and inertia = {inertia}: both have to be above 0, its own or "
        "those of a body that is fixed to it"
      )
  if found:
    raise MjxError("the model has numbers that define no motion:\n" + "\n".join(f"  {x}" for x in found))


def find_problems(m: mujoco.MjModel) -> list[Problem]:
  """Return a list of all features that the model uses and mjx_lite does not implement."""
  checks = (_options, _sizes, _distance_fields, _equalities, _tendons, _collisions, _actuators, _sensors)
  return [problem for check_one in checks for problem in check_one(m)]


def _choice(what: str, value: int, enum: Any, allowed: Any) -> list[Problem]:
  if value in allowed:
    return []
  names = ", ".join(enum(t).name for t in allowed)
  found = enum(value).name if value in {int(x) for x in enum} else str(value)
  return [Problem("option", what, found, f"use {names}")]


def _options(m):
  opt = m.opt
  yield from _choice("integrator", opt.integrator, enums.IntegratorType, tuple(INTEGRATORS))
  yield from _choice("cone", opt.cone, enums.ConeType, CONES)
  yield from _choice("solver", opt.solver, enums.SolverType, tuple(SOLVERS))
  for flag in enums.EnableBit:
    if opt.enableflags & flag and flag not in ENABLE_FLAGS:
      yield Problem("option", f"flag {flag.name.lower()}", "enable", "leave it disabled")


def _sizes(m):
  """Find elements of kinds that a model must not have."""
  kinds = (
    ("nflex", mujoco.mjtObj.mjOBJ_FLEX, "remove the flex"),
    ("nplugin", mujoco.mjtObj.mjOBJ_PLUGIN, "remove the plugin"),
  )
  for size, kind, instead in kinds:
    for i in range(getattr(m, size)):
      yield Problem(name_of(m, kind, i), kind.name.removeprefix("mjOBJ_").lower(), "present", instead)


def _distance_fields(m):
  """Find geoms whose shape is the code of a plugin."""
  for g in np.flatnonzero((m.geom_type == enums.GeomType.SDF) & (m.geom_plugin >= 0)):
    plugin = name_of(m, mujoco.mjtObj.mjOBJ_PLUGIN, m.geom_plugin[g])
    instead = "remove the plugin from the geom and from its mesh: the mesh's octree then is the distance field"
    yield Problem(name_of(m, mujoco.mjtObj.mjOBJ_GEOM, g), "plugin", plugin, instead)


def _equalities(m):
  for i in np.flatnonzero(~np.isin(m.eq_type, EQUALITIES)):
    kind = enums.EqType(int(m.eq_type[i])).name
    able = ", ".join(t.name for t in EQUALITIES)
    yield Problem(name_of(m, mujoco.mjtObj.mjOBJ_EQUALITY, i), "type", kind, f"use {able}")


def _tendons(m):
  kind = mujoco.mjtObj.mjOBJ_TENDON
  around = np.isin(m.wrap_type, (enums.WrapType.SPHERE, enums.WrapType.CYLINDER))
  for i in np.flatnonzero(m.actuator_trntype == enums.TrnType.TENDON):
    t = m.actuator_trnid[i, 0]
    if m.actuator_armature[i] and around[m.tendon_adr[t] : m.tendon_adr[t] + m.tendon_num[t]].any():
      yield Problem(
        name_of(m, mujoco.mjtObj.mjOBJ_ACTUATOR, i), "armature", f"{m.actuator_armature[i]:g}",
        f"use 0: {name_of(m, kind, t)} wraps around a geom, for which MuJoCo has no armature",
      )  # fmt: skip


def _collisions(m):
  """Find candidate pairs whose geom types have no collider, or that cover too many cells of a height field."""
  static = _static(m)
  values = {k: getattr(m, k) for k in ("geom_rbound", "geom_margin", "geom_gap", "pair_margin", "pair_gap")}
  missing: dict[tuple[str, str], list[tuple[int, int]]] = {}
  for p in pairs.candidates(static, m.opt.disableflags):
    types = driver.type_name(m.geom_type[p.geom1]), driver.type_name(m.geom_type[p.geom2])
    if types[0] == "hfield" and types[1] in hfield.SHAPES:
      window = hfield.cells(static, np.array([driver.reach(p, values)]), np.array([p.geom1]))[0]
      if 2 * window.prod() > hfield.MAXPRISM:
        shown = " and ".join(name_of(m, mujoco.mjtObj.mjOBJ_GEOM, g) for g in (p.geom1, p.geom2))
        size = f"{window[0]} x {window[1]} cells under the second geom"
        instead = f"use a coarser height field or smaller geoms: at most {hfield.MAXPRISM // 2} cells"
        yield Problem(shown, "collision", size, instead)
    elif types not in COLLIDERS and types not in FIELD_COLLIDERS:
      missing.setdefault(types, []).append((p.geom1, p.geom2))
  for types, found in missing.items():
    shown = ", ".join(" and ".join(name_of(m, mujoco.mjtObj.mjOBJ_GEOM, g) for g in gs) for gs in found[:3])
    more = f" and {len(found) - 3} more pairs" if len(found) > 3 else ""
    able = ", ".join(sorted({"-".join(k) for k in (*COLLIDERS, *FIELD_COLLIDERS, *(("hfield", k) for k in hfield.SHAPES))}))
    yield Problem(
      shown + more, "collision", "-".join(types), f"exclude the pair with contype/conaffinity; the supported pairs are {able}"
    )


_PAIR_FIELDS = (
  "npair", "pair_geom1", "pair_geom2", "pair_dim", "geom_bodyid", "exclude_signature", "body_geomadr", "body_geomnum",
  "nbody", "geom_priority", "geom_condim", "geom_type", "body_weldid", "body_dofnum", "body_parentid", "geom_contype",
  "geom_conaffinity", "geom_dataid", "hfield_size", "hfield_nrow", "hfield_ncol",
)  # fmt: skip


def _actuators(m):
  kind = mujoco.mjtObj.mjOBJ_ACTUATOR
  choices = (
    ("trntype", enums.TrnType, TRANSMISSIONS, m.actuator_trntype),
    ("dyntype", enums.DynType, tuple(DYNAMICS), m.actuator_dyntype),
    ("gaintype", enums.GainType, tuple(GAINS), m.actuator_gaintype),
    ("biastype", enums.BiasType, tuple(BIASES), m.actuator_biastype),
  )
  for what, enum, allowed, values in choices:
    for i in np.flatnonzero(~np.isin(values, allowed)):
      yield Problem(name_of(m, kind, i), what, enum(int(values[i])).name, "use " + ", ".join(t.name for t in allowed))
  motor = [x == e.DCMOTOR for x, e in ((m.actuator_dyntype, enums.DynType), (m.actuator_gaintype, enums.GainType))]
  motor.append(m.actuator_biastype == enums.BiasType.DCMOTOR)
  for i in np.flatnonzero(np.any(motor, axis=0) & ~np.all(motor, axis=0)):
    kinds = "/".join(enum(int(x[i])).name for what, enum, _, x in choices if what != "trntype")
    yield Problem(name_of(m, kind, i), "dyntype/gaintype/biastype", kinds, "use DCMOTOR for all three, as <dcmotor> does")


_INSTEAD = {  # advice for sensors that are not in the table
  enums.SensorType.PLUGIN: "remove the sensor: mjx_lite has no plugins",
}


def _sensors(m):
  kind = mujoco.mjtObj.mjOBJ_SENSOR
  for i in np.flatnonzero(~np.isin(m.sensor_type, list(SENSORS))):
    t = enums.SensorType(int(m.sensor_type[i]))
    yield Problem(name_of(m, kind, i), "type", t.name, _INSTEAD.get(t, "remove the sensor"))
  rays = [t for t, (_, hits) in SHAPES.items() if hits]
  for i, sensor in enumerate(m.sensor_type):
    if sensor == enums.SensorType.TOUCH and m.site_type[m.sensor_objid[i]] not in rays:
      instead = f"use {', '.join(enums.GeomType(t).name for t in rays)}, MuJoCo stops at this one"
      yield Problem(name_of(m, kind, i), "shape of the site", enums.GeomType(int(m.site_type[m.sensor_objid[i]])).name, instead)
    yield from _sensor_geoms(m, i)


def _sensor_geoms(m, i):
  """Find geoms that a tactile sensor senses and whose shape it cannot treat."""
  if m.sensor_type[i] != enums.SensorType.TACTILE:
    return
  weld = m.body_weldid[m.geom_bodyid]
  pad = weld == weld[m.sensor_refid[i]]
  candidates = pairs.candidates(_static(m), m.opt.disableflags)
  sides = [(p.geom1, p.geom2) for p in candidates] + [(p.geom2, p.geom1) for p in candidates]
  able = (*DISTANCES, enums.GeomType.MESH)  # meshes without an octree are not sensed, as in C
  for g in sorted({int(b) for a, b in sides if pad[a] and m.geom_type[b] not in able}):
    shown, sensor = enums.GeomType(int(m.geom_type[g])).name, name_of(m, mujoco.mjtObj.mjOBJ_SENSOR, i)
    instead = "use another shape" + (", MuJoCo stops at this one" if m.geom_type[g] == enums.GeomType.SDF else "")
    yield Problem(sensor, f"type of {name_of(m, mujoco.mjtObj.mjOBJ_GEOM, g)}", shown, instead)


def _static(m):
  return {k: getattr(m, k) for k in _PAIR_FIELDS}
