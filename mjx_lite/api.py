"""Public functions of the engine: one-world shapes, batched by `jax.vmap`.

Tests: tests/parity/test_support.py, tests/parity/test_stages_alone.py.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite import pipeline as native
from mjx_lite import support
from mjx_lite.batching import worlds
from mjx_lite.errors import check_index
from mjx_lite.math import quat
from mjx_lite.model import above, fit, pytree
from mjx_lite.model.types import INPUTS, QUATERNIONS, STATE, Data, Model
from mjx_lite.smooth import momentum
from mjx_lite.smooth import rne as rne_
from mjx_lite.smooth import set_const as constants


def one_world(
  function: Callable[..., Any], adds: tuple[str, ...] = (), opened: Callable[..., Any] | None = None
) -> Callable[..., Any]:
  """Return the public form of a native function of a Model and, mostly, its Data.

  Native code always has rotation matrices. The returned Data has the optional fields of the Data argument, and the fields that
  the function `adds`. For `opened` see `worlds.one_world`.
  """

  @functools.wraps(function)
  def keeping(m, *args, **static):
    if not args or not isinstance(args[0], Data):
      return function(m, *args, **static)
    lacking = set(pytree.optional_fields(Data)) - set(pytree.kept(args[0]))
    mats = {name: quat.to_mat(getattr(args[0], q)) for name, q in QUATERNIONS.items() if name in lacking}
    out = function(m, args[0].replace(**mats), *args[1:], **static)
    dropped = dict.fromkeys(name for name in lacking if name not in adds)
    return jax.tree.map(lambda x: x.replace(**dropped) if _is_data(x) else x, out, is_leaf=_is_data)

  return worlds.one_world(keeping, _check, opened)


def _is_data(x: Any) -> bool:
  return isinstance(x, Data)


# state, inputs, and fields whose shapes reveal a Data of another model
_CHECKED = (*STATE, *INPUTS, "xpos", "geom_xpos", "efc_D")


def _check(m: Model, *args: Any) -> None:
  """Refuse a first argument that is not a Model, and a Data that does not belong to the Model."""
  if not isinstance(m, Model):
    raise TypeError(f"the first argument has to be a Model of mjx_lite, not {type(m).__name__}: use put_model.")
  if args and type(args[0]).__name__ == "MjData":
    raise TypeError("the second argument has to be a Data of mjx_lite, not MjData: use put_data.")
  m.check()
  if not args or not isinstance(args[0], Data):
    return
  d, shapes = args[0], fit.shapes(Data, m.layout)
  for field in _CHECKED:
    fit.check_shape(f"Data.{field}", getattr(d, field), shapes[field], "it does not fit, or the Data is of another model")
  if not jnp.issubdtype(d.qpos.dtype, jnp.floating):
    raise ValueError(f"Data.qpos has to be of a floating type, as the Model's {m.layout.dtype}, not {d.qpos.dtype}.")


step = one_world(native.step)
step1 = one_world(native.step1)
step2 = one_world(native.step2)
forward = one_world(native.forward)

fwd_position = one_world(native.fwd_position)
fwd_velocity = one_world(native.fwd_velocity)
fwd_actuation = one_world(native.fwd_actuation)
fwd_acceleration = one_world(native.fwd_acceleration)
kinematics = one_world(native.kinematics)
com_pos = one_world(native.com_pos)
camlight = one_world(native.camlight)
tendon = one_world(native.tendon)
tendon_armature = one_world(native.tendon_armature)
crb = one_world(native.crb)
factor_m = one_world(native.factor_m)
collision = one_world(native.collision)
make_constraint = one_world(native.make_constraint)
transmission = one_world(native.transmission)
com_vel = one_world(native.com_vel)
passive = one_world(native.passive)
_rne = one_world(native.rne)
tendon_bias = one_world(native.tendon_bias)
solve = one_world(native.solve)
energy_pos = one_world(native.energy_pos)
energy_vel = one_world(native.energy_vel)
solver_statistics = one_world(native.solver_statistics)
subtree_vel = one_world(native.subtree_vel, momentum.SubtreeVel._fields)
rne_postconstraint = one_world(native.rne_postconstraint, rne_.Carried._fields)
sensor_pos = one_world(native.sensor_pos)
sensor_vel = one_world(native.sensor_vel)
sensor_acc = one_world(native.sensor_acc)
euler = one_world(native.euler)
implicit = one_world(native.implicit)
rungekutta4 = one_world(native.rungekutta4)

inverse = one_world(native.inverse)
deriv_smooth_vel = one_world(native.deriv_smooth_vel)
full_m = one_world(native.full_m)
mul_m = one_world(native.mul_m)
solve_m = one_world(native.solve_m)
constraint_jacobian = one_world(native.constraint_jacobian)
xfrc_accumulate = one_world(native.xfrc_accumulate)
integrate_pos = one_world(native.integrate_pos)
differentiate_pos = one_world(native.differentiate_pos)
reset_data = one_world(native.reset)


_constants = one_world(constants.constants)


def set_const(m: Model) -> Model:
  """Return the Model with every dependent field computed again, at qpos0.

  Call it after `replace` of masses, inertias, sizes, positions, qpos0, armature or gears; `with_params` does both. It is pure
  and differentiable: gradients with respect to a mass then include the effect of the mass on the constraints' impedance. It
  writes the fields that `mj_setConst` of MuJoCo 4.0 writes; `stat`, `actuator_lengthrange`, `tendon_lengthspring` and damping
  ratios stay as they are. The batched form is `jax.vmap(mjx.set_const)`.
  """
  m = jax.tree.map(pytree.strong, m)
  return m.replace(**_constants(m)._asdict())


@above.provides("with_params")
def with_params(m: Model, **changes: Any) -> Model:
  """Return a copy of a Model with some parameters changed, and every dependent field computed again (`set_const`).

  Arguments as of `Model.with_params`, which is the same as a method.
  """
  given = {}
  for name, value in changes.items():
    if name in _FOLLOWS:
      raise ValueError(f"Model.{name} follows from other fields: change these fields, or set it with Model.replace.")
    if not hasattr(m, name):
      raise ValueError(pytree.unknown(m, name))
    old = getattr(m, name)
    if isinstance(old, jax.Array):
      value = jnp.asarray(value, old.dtype) if value is not old else value
      if value.shape != old.shape:
        raise ValueError(f"Model.{name} has shape {old.shape}, not {value.shape}; batch with jax.vmap.")
    given[name] = value
  return set_const(m.replace(**given))


# fields that `set_const` writes, without fields of which a part is the user's
_FOLLOWS = frozenset(constants.Constants._fields) - {"eq_data", "geom_fluid", "geom_aabb", "geom_rbound"}


def _by_id(function: Callable[..., Any], size: str) -> Callable[..., Any]:
  """Return the public form of a support function whose last argument is an id below the model's `size`."""
  call, signature = one_world(function), inspect.signature(function)

  @functools.wraps(function)
  def public(*args, **kwargs):
    m, d, *rest = signature.bind(*args, **kwargs).args
    _check_id(m, rest[-1], size)
    return call(m, d, *(jnp.asarray(x) for x in rest))

  return public


def _check_id(m: Model, i: Any, size: str) -> None:
  """Refuse a number that is not a valid id. Traced ids are clipped to the range."""
  n = m.plan.sizes[size] if size in m.plan.sizes else getattr(m, size)
  check_index(i, n, f"id {{i}} is out of range: the model has {size} = {n}.")


jac = _by_id(support.jac, "nbody")
jac_body = _by_id(support.jac_body, "nbody")
jac_body_com = _by_id(support.jac_body_com, "nbody")
jac_geom = _by_id(support.jac_geom, "ngeom")
jac_site = _by_id(support.jac_site, "nsite")
jac_subtree_com = _by_id(support.jac_subtree_com, "nbody")
jac_dot = _by_id(support.jac_dot, "nbody")
jac_point_axis = _by_id(support.jac_point_axis, "nbody")
angmom_mat = _by_id(support.angmom_mat, "nbody")
apply_ft = _by_id(support.apply_ft, "nbody")
contacts = one_world(support.contacts)
net_contact_force = one_world(support.net_contact_force)
local_to_global = support.local_to_global
_contact_force = one_world(support.contact_force)
_object_velocity = one_world(support.object_velocity)
_object_acceleration = one_world(support.object_acceleration)
_geom_distance = one_world(support.geom_distance)
_multi_ray = one_world(support.multi_ray)
_read_sensor = one_world(support.read_sensor)
_read_ctrl = one_world(support.read_ctrl)


def contact_force(m: Model, d: Data, contact_id: Any, to_world_frame: bool = False) -> jax.Array:
  """Return force and torque (6,) of a contact on its second geom, at the contact's position; zero without a contact.

  Args:
    m: the model.
    d: Data after `solve`.
    contact_id: slot in `d.contact`.
    to_world_frame: express the result in the axes of the world, not of the contact (normal first); static.
  """
  _check_id(m, contact_id, "ncon")
  return _contact_force(m, d, contact_id, to_world_frame=bool(to_world_frame))


def rne(m: Model, d: Data, flg_acc: bool = False) -> Data:
  """Compute the bias force `qfrc_bias`.

  Args:
    m: the model.
    d: Data after `com_vel`.
    flg_acc: whether to include the inertial forces of qacc, without armature; static.

  Source: `mj_rne`.
  """
  return _rne(m, d, flg_acc=bool(flg_acc))


def object_velocity(m: Model, d: Data, objtype: int, objid: Any, local: bool = False) -> jax.Array:
  """Return the velocity (6,), rotation first, of an object's frame at its origin.

  Args:
    m: the model.
    d: Data after `com_vel`.
    objtype: ObjType.BODY (the inertial frame), XBODY, GEOM, SITE or CAMERA; static.
    objid: id of the object.
    local: express the result in the axes of the object, not of the world; static.
  """
  _check_id(m, objid, _size_of(objtype))
  return _object_velocity(m, d, objid, objtype=int(objtype), local=bool(local))


def object_acceleration(m: Model, d: Data, objtype: int, objid: Any, local: bool = False) -> jax.Array:
  """Return the acceleration relative to free fall (6,), rotation first, of an object's frame at its origin.

  Args:
    m: the model.
    d: Data after `solve`. Its `cacc` is used if present, and computed otherwise.
    objtype: as for `object_velocity`.
    objid: id of the object.
    local: express the result in the axes of the object, not of the world; static.
  """
  _check_id(m, objid, _size_of(objtype))
  return _object_acceleration(m, d, objid, objtype=int(objtype), local=bool(local))


def geom_distance(m: Model, d: Data, geom1: int, geom2: int, distmax: Any) -> tuple[jax.Array, jax.Array]:
  """Return the signed distance of two geoms [m], negative where they overlap, and the segment (6,) from geom1 to geom2.

  Args:
    m: the model.
    d: Data after `kinematics`.
    geom1: id of the first geom; static.
    geom2: id of the second geom; static.
    distmax: largest distance of the search [m]. For a larger distance the result is distmax, and the segment is zero.
  """
  for g in (geom1, geom2):
    _check_id(m, int(g), "ngeom")
  return _geom_distance(m, d, jnp.asarray(distmax, d.qpos.dtype), geom1=int(geom1), geom2=int(geom2))


def read_sensor(m: Model, d: Data, sensor: int, time: Any, interp: int = -1) -> jax.Array:
  """Return a sensor's value at a time minus its delay, from its history; `sensordata` if it has no history.

  Args:
    m: the model.
    d: the Data.
    sensor: id; static.
    time: [s].
    interp: value between samples: 0 of the older sample, 1 linear, 2 cubic, -1 as in the model; static.

  Source: `mj_readSensor`.
  Gradient: with respect to the time, the slope of the interpolation piece that contains the time.
  """
  _check_id(m, int(sensor), "nsensor")
  return _read_sensor(m, d, jnp.asarray(time, d.qpos.dtype), sensor=int(sensor), interp=int(interp))


def read_ctrl(m: Model, d: Data, actuator: int, time: Any, interp: int = -1) -> jax.Array:
  """Return an actuator's controls (n,) at a time minus its delay, from its history; `ctrl` if it has no history.

  Args:
    m: the model.
    d: the Data.
    actuator: id; static.
    time: [s].
    interp: as for `read_sensor`.

  Source: `mj_readCtrl`.
  """
  _check_id(m, int(actuator), "nactuator")
  return _read_ctrl(m, d, jnp.asarray(time, d.qpos.dtype), actuator=int(actuator), interp=int(interp))


def ray(
  m: Model, d: Data, pnt: jax.Array, vec: jax.Array, geomgroup: Sequence[int] = (), flg_static: bool = True,
  bodyexclude: Sequence[int] | int = -1,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
  """Return the first geom that a ray meets: distance in units of vec, and geom id; -1 and -1 if the ray meets no geom.

  Args:
    m: the model.
    d: Data after `kinematics`.
    pnt: start of the ray (3,) [m].
    vec: direction of the ray (3,).
    geomgroup: six flags, which say which groups of geoms are visible; all groups if empty; static.
    flg_static: whether geoms fixed to the world are visible; static.
    bodyexclude: bodies whose geoms are not visible; static.
  """
  dist, geom = multi_ray(m, d, pnt, jnp.asarray(vec)[None], geomgroup, flg_static, bodyexclude)
  return dist[0], geom[0]


def multi_ray(
  m: Model, d: Data, pnt: jax.Array, vec: jax.Array, geomgroup: Sequence[int] = (), flg_static: bool = True,
  bodyexclude: Sequence[int] | int = -1,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
  """Return the first geoms that rays (n, 3) from one point (3,) meet: distances (n,) and geom ids (n,), or -1 and -1.

  Args:
    m: the model.
    d: Data after `kinematics`.
    pnt: start of all rays (3,) [m].
    vec: directions of the rays (n, 3).
    geomgroup: as for `ray`.
    flg_static: as for `ray`.
    bodyexclude: as for `ray`.
  """
  exclude = (bodyexclude,) if isinstance(bodyexclude, int | np.integer) else tuple(bodyexclude)
  group = tuple(int(x) for x in geomgroup)
  pnt, vec = (jnp.asarray(x, d.qpos.dtype) for x in (pnt, vec))
  return _multi_ray(m, d, pnt, vec, geomgroup=group, flg_static=bool(flg_static), bodyexclude=tuple(int(x) for x in exclude))


def _size_of(objtype: int) -> str:
  if objtype not in support.FRAMES:
    names = ", ".join(t.name for t in support.FRAMES)
    raise ValueError(f"objtype {objtype} has no frame; use one of {names}.")
  return support.FRAMES[objtype][-1]
