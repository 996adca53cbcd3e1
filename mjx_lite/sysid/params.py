"""Parameters to identify: numbers of a Model, chosen by field and element, or by functions that read and write the numbers.

Tests: tests/sysid/test_fit.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid import inertia

Names = str | int | Sequence[str | int] | None


class Param(NamedTuple):
  """Unknown numbers (n,) of a Model, to be identified.

  `field`, `mass`, `body_inertia`, `kp` and `kv` make the usual parameters. For any other parameter, give `get`, a function that
  reads (n,) numbers from a Model, and `set`, a function that returns the Model with other numbers (`Model.replace`). `fit`
  computes the dependent fields (`set_const`).
  """

  name: str
  get: Callable[[mjx.Model], jax.Array]  # -> (n,)
  set: Callable[[mjx.Model, jax.Array], mjx.Model]
  bounds: tuple[float, float] = (-np.inf, np.inf)
  scale: float | None = None  # typical change; default: the distance of the bounds, or the size of the initial value
  labels: tuple[str, ...] = ()  # one label per number; by default the name with an index
  follows: bool = True  # whether other fields of the Model depend on these numbers


# fields on which no other field of the Model depends: set_const is not needed after a change of these fields
ALONE = frozenset((
  "dof_damping", "dof_dampingpoly", "dof_frictionloss", "dof_solref", "dof_solimp", "jnt_stiffness", "jnt_stiffnesspoly",
  "jnt_range", "jnt_solref", "jnt_solimp", "jnt_margin", "qpos_spring", "geom_friction", "geom_solref", "geom_solimp",
  "geom_margin", "geom_gap", "geom_solmix", "pair_friction", "pair_solref", "pair_solimp", "body_gravcomp",
  "actuator_gainprm", "actuator_biasprm", "actuator_dynprm", "actuator_damping", "actuator_forcerange",
  "tendon_stiffness", "tendon_damping", "tendon_frictionloss", "tendon_lengthspring",
))  # fmt: skip

_KINDS = {
  "body": mjx.ObjType.BODY, "jnt": mjx.ObjType.JOINT, "dof": mjx.ObjType.JOINT, "geom": mjx.ObjType.GEOM,
  "site": mjx.ObjType.SITE, "actuator": mjx.ObjType.ACTUATOR, "tendon": mjx.ObjType.TENDON, "pair": mjx.ObjType.PAIR,
  "eq": mjx.ObjType.EQUALITY,
}  # fmt: skip


def field(
  m: mjx.Model,
  name: str,
  elements: Names = None,
  column: int | None = None,
  *,
  bounds: tuple[float, float] = (-np.inf, np.inf),
  scale: float | None = None,
  shared: bool = False,
) -> Param:
  """Make a parameter of numbers in a float field of the Model, or of its option ('opt.gravity').

  Args:
    m: the model, for the names of elements.
    name: name of the field: 'dof_damping', 'geom_friction', 'actuator_gear', ...
    elements: names or ids of the elements; of joints for 'dof_...'; all elements if None.
    column: column of a field with several numbers per element; all columns if None.
    bounds: smallest and largest value.
    scale: typical change of a value.
    shared: whether one value is shared by all the chosen numbers.

  Raises:
    ValueError: the Model has no such float field, element or column.
  """
  old = _value(m, name)
  if not isinstance(old, jax.Array):
    raise ValueError(f"Model.{name} is not a float field of the Model.")
  rows = _rows(m, name, elements, old)
  where: Any = np.ix_(rows, np.arange(old.shape[1])) if old.ndim == 2 else rows
  if column is not None:
    if old.ndim != 2 or not 0 <= column < old.shape[1]:
      raise ValueError(f"Model.{name} has shape {old.shape}: there is no column {column}.")
    where = (rows, column)
  if old.ndim == 0:
    where = ()
  shape = np.zeros(old.shape)[where].shape
  labels = _labels(m, name, rows, old, column, elements) if len(rows) else [name]

  def get(m):
    x = _value(m, name)[where].reshape(-1)
    return x[:1] if shared else x

  def put(m, x):
    x = _with(_value(m, name), where, jnp.broadcast_to(x, shape) if shared else x)
    return m.tree_replace({name: x}) if "." in name else m.replace(**{name: x})

  label = f"{name}{'' if column is None else f'[{column}]'}"
  follows = name not in ALONE and not name.startswith("opt.")
  return Param(
    name=label, get=get, set=put, bounds=bounds, scale=scale, labels=(label,) if shared else tuple(labels), follows=follows
  )


def mass(m: mjx.Model, bodies: Names, *, bounds: tuple[float, float] = (1e-6, np.inf), scale: float | None = None) -> Param:
  """Make a parameter of the masses of bodies [kg]; their moments of inertia change in proportion.

  Args:
    m: the model.
    bodies: names or ids of the bodies.
    bounds: smallest and largest value [kg].
    scale: typical change of a value [kg].
  """
  rows = _rows(m, "body_mass", bodies, m.body_mass)

  def put(m, x):
    ratio = x / m.body_mass[rows]
    moments = m.body_inertia[rows] * ratio[:, None]
    return m.replace(body_mass=_with(m.body_mass, rows, x), body_inertia=_with(m.body_inertia, rows, moments))

  return Param(
    name="mass",
    get=lambda m: m.body_mass[rows],
    set=put,
    bounds=bounds,
    scale=scale,
    labels=tuple(f"mass[{_name(m, 'body', r)}]" for r in rows),
  )


def body_inertia(m: mjx.Model, body: str | int, *, scale: float = 1.0) -> Param:
  """Make a parameter of mass, center of mass and inertia of a body: ten unconstrained numbers, always physical.

  See `sysid.inertia` for the ten numbers.

  Args:
    m: the model.
    body: name or id of the body.
    scale: typical change of a value.
  """
  rows = _rows(m, "body_mass", body, m.body_mass)
  parts = ("a", "d1", "d2", "d3", "s12", "s23", "s13", "x", "y", "z")
  name = f"inertia[{_name(m, 'body', rows[0])}]"

  def put(m, theta):
    x = inertia.from_theta(theta)
    fields = dict(body_mass=x.mass, body_ipos=x.ipos, body_iquat=x.iquat, body_inertia=x.inertia)
    return m.replace(**{k: _with(getattr(m, k), rows[0], v) for k, v in fields.items()})

  get = lambda m: inertia.get_inertia(m, rows)[0]  # noqa: E731
  return Param(name=name, get=get, set=put, scale=scale, labels=tuple(f"{name}.{x}" for x in parts))


def kp(
  m: mjx.Model, actuators: Names = None, *, bounds: tuple[float, float] = (0, np.inf), scale: float | None = None
) -> Param:
  """Make a parameter of the position gains of servos: kp = gainprm[0] = -biasprm[1].

  Args:
    m: the model.
    actuators: names or ids of the actuators; all actuators if None.
    bounds: smallest and largest value.
    scale: typical change of a value.
  """
  rows = _servos(m, actuators)

  def put(m, x):
    gain, bias = _with(m.actuator_gainprm, (rows, 0), x), _with(m.actuator_biasprm, (rows, 1), -x)
    return m.replace(actuator_gainprm=gain, actuator_biasprm=bias)

  labels = tuple(f"kp[{_name(m, 'actuator', r)}]" for r in rows)
  return Param(
    name="kp", get=lambda m: m.actuator_gainprm[rows, 0], set=put, bounds=bounds, scale=scale, labels=labels, follows=False
  )


def kv(
  m: mjx.Model, actuators: Names = None, *, bounds: tuple[float, float] = (0, np.inf), scale: float | None = None
) -> Param:
  """Make a parameter of the damping of position servos: kv = -biasprm[2].

  Args:
    m: the model.
    actuators: names or ids of the actuators; all actuators if None.
    bounds: smallest and largest value.
    scale: typical change of a value.
  """
  rows = _servos(m, actuators)

  def put(m, x):
    return m.replace(actuator_biasprm=_with(m.actuator_biasprm, (rows, 2), -x))

  labels = tuple(f"kv[{_name(m, 'actuator', r)}]" for r in rows)
  return Param(
    name="kv", get=lambda m: -m.actuator_biasprm[rows, 2], set=put, bounds=bounds, scale=scale, labels=labels, follows=False
  )


def _servos(m, actuators):
  """Return the rows of the actuators; raise ValueError if an actuator has no affine bias (position and velocity)."""
  rows = _rows(m, "actuator_biasprm", actuators, m.actuator_biasprm)
  other = [_name(m, "actuator", r) for r in rows if m.actuator_biastype[r] != mjx.BiasType.AFFINE]
  if other:
    raise ValueError(
      f"actuators {', '.join(other)} are not servos, which have position and velocity gains. "
      "For a motor, use field(m, 'actuator_gear', name, 0)."
    )
  return rows


def labels_of(m: mjx.Model, params: Sequence[Param]) -> list[str]:
  """Return one label for each number of the parameters."""
  out = []
  for p in params:
    n = size(m, p)
    out += p.labels or ([p.name] if n == 1 else [f"{p.name}[{i}]" for i in range(n)])
  return out


def size(m: mjx.Model, p: Param) -> int:
  """Return how many numbers a parameter has."""
  return jax.eval_shape(p.get, m).shape[0]


def apply(m: mjx.Model, params: Sequence[Param], values: jax.Array) -> mjx.Model:
  """Return the Model with the values (P,) of the parameters, and with updated dependent fields."""
  at = 0
  for p in params:
    n = size(m, p)
    m, at = p.set(m, values[at : at + n]), at + n
  return mjx.set_const(m) if any(p.follows for p in params) else m


def _value(m: Any, name: str) -> Any:
  """Return a field of the Model, or of its option; None if there is no such field."""
  for part in name.split("."):
    m = getattr(m, part, None)
  return m


def _with(old, where, x):
  """Return the array with x at constant indices, by a gather and a select: a scatter with tangents compiles to a loop."""
  source = np.full(old.shape, -1)
  source[where] = np.arange(x.size).reshape(source[where].shape)
  return jnp.where(source < 0, old, x.reshape(-1)[np.maximum(source, 0)])


def _rows(m, name, elements, old):
  """Return the rows of a field that belong to the elements."""
  if elements is None:
    return np.arange(old.shape[0]) if old.ndim else np.zeros(0, int)
  kind = _KINDS.get(name.split("_")[0])
  if kind is None:
    raise ValueError(f"the elements of Model.{name} cannot be chosen by name or id: leave the argument `elements` out.")
  ids = []
  for e in [elements] if isinstance(elements, str | int | np.integer) else elements:
    i = mjx.name2id(m, kind, e) if isinstance(e, str) else int(e)
    size = m.njnt if kind == mjx.ObjType.JOINT else old.shape[0]
    if not 0 <= i < size:
      raise ValueError(f"the model has no {kind.name.lower()} {e!r}, which is an element of Model.{name} to identify.")
    ids.append(i)
  if name.startswith("dof_"):
    return np.concatenate([np.flatnonzero(m.dof_jntid == i) for i in ids])
  if name == "actuator_gear":
    return np.concatenate([np.arange(m.actuator_outadr[i], m.actuator_outadr[i] + m.actuator_outnum[i]) for i in ids])
  return np.array(ids)


def _name(m, prefix, row):
  """Return the name of the element to which a row belongs, or the row's index."""
  kind = _KINDS.get(prefix)
  if prefix == "dof":
    row = m.dof_jntid[row]
  return (mjx.id2name(m, kind, int(row)) if kind is not None else None) or str(int(row))


def _labels(m, name, rows, old, column, elements):
  """Make a label for each number, in order."""
  by_dof = name.startswith("dof_") and len(set(m.dof_jntid[rows])) < len(rows)
  names = [str(int(r)) if by_dof else _name(m, name.split("_")[0], r) for r in rows]
  names = names if name != "opt" and "." not in name else [str(int(r)) for r in rows]
  if column is not None:
    return [f"{name}[{x}, {column}]" for x in names]
  if old.ndim == 1:
    return [f"{name}[{x}]" for x in names]
  return [f"{name}[{x}, {c}]" for x in names for c in range(old.shape[1])]
