"""Named access to the fields of one or more elements of a Model or of a Data; usable under jit.

`m.joint('hip').range`, `d.bind(m, m.joint('hip')).qpos`, and MJX's forms with elements of an MjSpec: `m.bind(spec.joints)`,
`d.bind(m, spec.actuators[0]).set('ctrl', 1.0)`. An index that is found by name is a constant of the program.

Tests: tests/io/test_readout.py.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.model import pytree
from mjx_lite.model.enums import JointType, ObjType
from mjx_lite.model.names import id2name, name2id


class _Kind(NamedTuple):
  method: str  # name of the method of Model
  prefix: str  # prefix of mjModel's fields
  data_prefix: str  # prefix of mjData's fields
  type: int
  spec: str  # name of the class of the elements in an MjSpec


_KINDS = (
  _Kind("body", "body_", "", ObjType.BODY, "MjsBody"),
  _Kind("joint", "jnt_", "", ObjType.JOINT, "MjsJoint"),
  _Kind("geom", "geom_", "geom_", ObjType.GEOM, "MjsGeom"),
  _Kind("site", "site_", "site_", ObjType.SITE, "MjsSite"),
  _Kind("camera", "cam_", "cam_", ObjType.CAMERA, "MjsCamera"),
  _Kind("light", "light_", "light_", ObjType.LIGHT, "MjsLight"),
  _Kind("mesh", "mesh_", "", ObjType.MESH, "MjsMesh"),
  _Kind("hfield", "hfield_", "", ObjType.HFIELD, "MjsHField"),
  _Kind("material", "mat_", "", ObjType.MATERIAL, "MjsMaterial"),
  _Kind("pair", "pair_", "", ObjType.PAIR, "MjsPair"),
  _Kind("exclude", "exclude_", "", ObjType.EXCLUDE, "MjsExclude"),
  _Kind("equality", "eq_", "eq_", ObjType.EQUALITY, "MjsEquality"),
  _Kind("tendon", "tendon_", "ten_", ObjType.TENDON, "MjsTendon"),
  _Kind("actuator", "actuator_", "actuator_", ObjType.ACTUATOR, "MjsActuator"),
  _Kind("sensor", "sensor_", "", ObjType.SENSOR, "MjsSensor"),
  _Kind("numeric", "numeric_", "", ObjType.NUMERIC, "MjsNumeric"),
  _Kind("text", "text_", "", ObjType.TEXT, "MjsText"),
  _Kind("key", "key_", "", ObjType.KEY, "MjsKey"),
)
_QPOS_WIDTH = {JointType.FREE: 7, JointType.BALL: 4, JointType.SLIDE: 1, JointType.HINGE: 1}
_DOF_WIDTH = {JointType.FREE: 6, JointType.BALL: 3, JointType.SLIDE: 1, JointType.HINGE: 1}


def _spans(m: Any, kind: _Kind, size: str) -> tuple[np.ndarray, np.ndarray] | None:
  """Return the first row and the number of rows of all elements of a kind, in an array whose first axis has this size.

  The result is None where each element has one row.
  """
  joint = kind.type == ObjType.JOINT
  table = {
    (ObjType.JOINT, "nq"): lambda: (m.jnt_qposadr, np.array([_QPOS_WIDTH[JointType(int(t))] for t in m.jnt_type], int)),
    (ObjType.JOINT, "nv"): lambda: (m.jnt_dofadr, np.array([_DOF_WIDTH[JointType(int(t))] for t in m.jnt_type], int)),
    (ObjType.BODY, "nmocap"): lambda: (m.body_mocapid, (m.body_mocapid >= 0).astype(int)),
    (ObjType.ACTUATOR, "nu"): lambda: (m.actuator_ctrladr, m.actuator_ctrlnum),
    (ObjType.ACTUATOR, "na"): lambda: (m.actuator_actadr, m.actuator_actnum),
    (ObjType.ACTUATOR, "nout"): lambda: (m.actuator_outadr, m.actuator_outnum),
    (ObjType.SENSOR, "nsensordata"): lambda: (m.sensor_adr, m.sensor_dim),
  }
  found = table.get((kind.type, size))
  own = dict(njnt=joint, nbody=kind.type == ObjType.BODY)
  return found() if found else None if own.get(size, True) else (np.zeros(0, int), np.zeros(0, int))


class Element:
  """One or more elements of a Model, of one kind; the attributes are mjModel's fields without the prefix."""

  def __init__(self, m: Any, kind: _Kind, ids: int | list[int]):
    self._m, self._kind, self.id = m, kind, ids

  @property
  def name(self) -> Any:
    """Name of the element, or list of names."""
    found = [id2name(self._m, self._kind.type, i) for i in np.atleast_1d(self.id)]
    return found if isinstance(self.id, list) else found[0]

  def __getattr__(self, name: str) -> Any:
    if name.startswith("_"):
      raise AttributeError(name)
    joint = self._kind.type == ObjType.JOINT
    for prefix in (self._kind.prefix, *(("dof_", "") if joint else ())):  # as in mujoco: joint('x').damping, .qpos0
      field = prefix + name
      spec = pytree.specs(type(self._m)).get(field)
      if prefix != self._kind.prefix:
        index = _rows(self._m, self._kind, self.id, "nq" if not prefix else "nv")
      else:
        index = self.id
      if spec is not None or (field in self._m.layout.static and isinstance(getattr(self._m, field), np.ndarray)):
        ndim = len(spec["shape"]) if spec is not None else getattr(self._m, field).ndim
        return _take(getattr(self._m, field), index, ndim)
    raise AttributeError(f"a {self._kind.method} has no field '{name}' in Model.")


def _rows(m: Any, kind: _Kind, ids: int | list[int], size: str) -> Any:
  """Return the rows of elements in an array with this first axis: a number where an element has just one row."""
  spans = _spans(m, kind, size)
  if spans is None:
    return ids
  first, count = spans
  if not len(first):
    raise AttributeError(f"a {kind.method} has no rows in an array of {size}")
  index = np.concatenate([first[i] + np.arange(int(count[i])) for i in np.atleast_1d(ids)])
  return int(index[0]) if not isinstance(ids, list) and len(index) == 1 else index


def _take(x: Any, index: Any, ndim: int) -> Any:
  """Return rows of the first of the last ndim axes, so that batch axes may come before."""
  return x[(..., np.asarray(index) if isinstance(index, list) else index, *(slice(None),) * (ndim - 1))]


class DataView:
  """The fields of a Data that belong to one or more elements; `set` returns a new Data."""

  def __init__(self, d: Any, element: Element):
    self._d, self._element = d, element

  def _where(self, name: str) -> tuple[str, Any, int]:
    element, specs = self._element, pytree.specs(type(self._d))
    m, kind = element._m, element._kind
    wanted = "sensordata" if kind.type == ObjType.SENSOR and name == "data" else name
    for field in dict.fromkeys((kind.data_prefix + wanted, wanted)):
      if field in specs and specs[field]["shape"]:
        size = specs[field]["shape"][0]
        own = {ObjType.BODY: "nbody", ObjType.JOINT: "njnt", ObjType.GEOM: "ngeom", ObjType.SITE: "nsite",
               ObjType.CAMERA: "ncam", ObjType.LIGHT: "nlight", ObjType.TENDON: "ntendon",
               ObjType.EQUALITY: "neq"}.get(kind.type)  # fmt: skip
        if size == own or (size != own and (spans := _spans(m, kind, size)) is not None and len(spans[0])):
          return field, _rows(m, kind, element.id, size) if size != own else element.id, len(specs[field]["shape"])
    raise AttributeError(f"a {kind.method} has no field '{name}' in Data.")

  def __getattr__(self, name: str) -> jax.Array:
    if name.startswith("_"):
      raise AttributeError(name)
    field, index, ndim = self._where(name)
    return _take(getattr(self._d, field), index, ndim)

  def set(self, name: str, value: Any) -> Any:
    """Return a copy of the Data with the rows of these elements changed."""
    if name in ("sensordata", "data"):
      raise AttributeError("sensordata is read-only: a step computes it.")
    field, index, ndim = self._where(name)
    old = getattr(self._d, field)
    index = (..., np.asarray(index) if isinstance(index, list) else index, *(slice(None),) * (ndim - 1))
    shape = jax.eval_shape(lambda x: x[index], old).shape
    new = jnp.asarray(value, old.dtype)
    new = new.reshape(shape) if new.size == np.prod(shape, dtype=int) else jnp.broadcast_to(new, shape)
    return self._d.replace(**{field: old.at[index].set(new)})


def _element(m: Any, kind: _Kind, which: int | str) -> Element:
  """Return an element by name or index."""
  number = name2id(m, kind.type, which) if isinstance(which, str) else int(which)
  count = len(getattr(m, _ADDRESSES[kind.type]))
  if not 0 <= number < count:
    raise KeyError(f"the model has no {kind.method} {which!r}; it has {count}.")
  return Element(m, kind, number)


_ADDRESSES = {
  k.type: f"name_{ {'joint': 'jnt', 'camera': 'cam', 'material': 'mat', 'equality': 'eq'}.get(k.method, k.method) }adr"
  for k in _KINDS
}


def bind(m: Any, obj: Any) -> Element:
  """Return elements of a Model, as `NamedElements.bind` does."""
  if isinstance(obj, Element):
    return obj
  is_sequence = isinstance(obj, Iterable)
  items: list[Any] = list(obj) if is_sequence else [obj]
  if items and all(isinstance(x, Element) and x._kind == items[0]._kind for x in items):
    return Element(m, items[0]._kind, [int(i) for x in items for i in np.atleast_1d(x.id)])
  kinds = {k for item in items for k in _KINDS if type(item).__name__ == k.spec}
  if len(kinds) != 1:
    raise ValueError("bind takes elements of one kind: of an MjSpec, or results of m.joint(...) and similar methods.")
  for item in items:
    if item.signature != m.signature:
      raise ValueError(f"the MjSpec is of another model: its signature is {item.signature}, the model's {m.signature}.")
    if item.id < 0:
      raise KeyError(f"an element has invalid id: {item.id}; compile the MjSpec first.")
  ids = [int(item.id) for item in items]
  return Element(m, kinds.pop(), ids[0] if len(ids) == 1 else ids)


class NamedElements:
  """Mixin of Model: elements by name."""

  def bind(self, obj: Any) -> Element:
    """Return elements of the Model: from elements of the MjSpec that was compiled, or from elements of the Model.

    Args:
      obj: an element of an MjSpec, or a result of `m.joint(...)` and similar methods; or a sequence of these, of one kind.

    Raises:
      ValueError: the elements are of several kinds, or of an MjSpec that is not the model's.
      KeyError: an element of the MjSpec has no index, as it was not compiled.
    """
    return bind(self, obj)


def _accessor(kind: _Kind):
  def method(self, which: int | str) -> Element:
    return _element(self, kind, which)

  method.__name__, method.__qualname__ = kind.method, f"NamedElements.{kind.method}"
  method.__doc__ = f"Return a {kind.method} by name or number."
  return method


for _kind in _KINDS:
  setattr(NamedElements, _kind.method, _accessor(_kind))


class BoundFields:
  """Mixin of Data: the fields of elements."""

  def bind(self, m: Any, obj: Any) -> DataView:
    """Return the fields of elements in this Data; `obj` as for `Model.bind`."""
    return DataView(self, bind(m, obj))
