"""Frozen dataclasses as JAX pytrees, and the metadata of declared fields.

Tests: tests/io/test_keep.py, tests/model/test_shapes.py.
"""

import dataclasses
import difflib
import functools
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp


def array(*shape: str | int, unit: str = "", stage: str = "", dtype: str = "float", kind: str = "") -> Any:
  """Declare an array field. A field whose name begins with an underscore is optional: see `OptionalField`.

  Args:
    shape: sizes of one world, as names of model sizes ('nq'), products ('nv*6') or integers.
    unit: SI unit.
    stage: pipeline stage that writes the field; '' for state, input or parameter.
    dtype: 'float' (the Model's), 'int' or 'bool'.
    kind: 'state' for what a step reads of the step before, 'input' for what the user gives, '' for all others.
  """
  return dataclasses.field(metadata=dict(shape=shape, unit=unit, stage=stage, dtype=dtype, kind=kind))


def static(**kwargs: Any) -> Any:
  """Declare a static field. It is part of the program, not of the data: it is hashable, and changing it retraces."""
  return dataclasses.field(metadata=dict(static=True), **kwargs)


def pytree(cls: type) -> type:
  """Make a frozen dataclass of a class and register it: `static` fields are metadata, the other fields are children."""
  cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
  fields = dataclasses.fields(cls)
  meta = [f.name for f in fields if f.metadata.get("static")]
  data = [f.name for f in fields if not f.metadata.get("static")]
  return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


def specs(cls: type) -> dict[str, Mapping[str, Any]]:
  """Return the declarations of a class's array fields by public name, without a leading underscore."""
  return {f.name.removeprefix("_"): f.metadata for f in dataclasses.fields(cls) if "shape" in f.metadata}


def of_kind(cls: type, kind: str) -> tuple[str, ...]:
  """Return the names of a class's fields of this kind, in the order of their declaration."""
  return tuple(name for name, spec in specs(cls).items() if spec["kind"] == kind)


class OptionalField:
  """Optional field: one stage passes it to the next, and it is kept after a call only if the user asked for it.

  The dataclass field of the same name with a leading underscore holds the array or None. If it is None, reading the optional
  field returns `otherwise(object)`. Without `otherwise`, an AttributeError says how to get the field.
  """

  def __init__(self, advice: str = "", otherwise: Callable[[Any], jax.Array] | None = None):
    self._advice, self._otherwise = advice, otherwise

  def __set_name__(self, owner: type, name: str) -> None:
    self._name = name

  def __get__(self, instance: Any, owner: type | None = None) -> Any:
    if instance is None:
      return self
    value = getattr(instance, "_" + self._name)
    if value is not None:
      return value
    if self._otherwise is None:
      raise AttributeError(f"{type(instance).__name__}.{self._name} is not kept: {self._advice}.")
    return self._otherwise(instance)


@functools.cache
def optional_fields(cls: type) -> tuple[str, ...]:
  """Return the names of the `OptionalField` fields of a class."""
  return tuple(name for name, x in vars(cls).items() if isinstance(x, OptionalField))


def present(x: Any) -> list[str]:
  """Return the names of an object's array fields, without `OptionalField` fields that are not kept."""
  lacking = set(optional_fields(type(x))) - set(kept(x))
  return [name for name in specs(type(x)) if name not in lacking]


def kept(x: Any) -> list[str]:
  """Return the names of an object's `OptionalField` fields that hold an array."""
  return [name for name in optional_fields(type(x)) if getattr(x, f"_{name}") is not None]


def strong(x: Any) -> Any:
  """Return an array without weak type, other values unchanged. JAX compiles separate programs for weak and strong types."""
  return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x


def unknown(owner: Any, name: str) -> str:
  """Return the message about a name that is not a field, with the part that has the field, or the nearest name."""
  cls = type(owner).__name__
  for f in dataclasses.fields(owner):
    part = getattr(owner, f.name) if not f.name.startswith("_") else None
    if dataclasses.is_dataclass(part) and name in {x.name for x in dataclasses.fields(part)}:
      return f"{cls} has no field '{name}', but {cls}.{f.name} has: tree_replace({{'{f.name}.{name}': ...}}) changes it."
  near = difflib.get_close_matches(name, _names(type(owner)), 1)
  return f"{cls} has no field '{name}'" + (f"; did you mean '{near[0]}'?" if near else ".")


def _names(cls: type) -> set[str]:
  """Return the public names of a class's fields."""
  return {f.name.removeprefix("_") for f in dataclasses.fields(cls)}


class Replaceable:
  """Mixin with `replace` and MJX's `tree_replace` for a frozen dataclass."""

  __dataclass_fields__: ClassVar[dict[str, Any]]  # fields of the subclass

  def replace(self, **changes: Any) -> Any:
    """Return a copy with some fields changed. Numbers become arrays, and arrays lose weak types.

    Raises:
      TypeError: a name is not a field; the message has the nearest name.
    """
    optional = optional_fields(type(self))
    changes = self.as_arrays(changes)
    return dataclasses.replace(self, **{f"_{k}" if k in optional else k: x for k, x in changes.items()})

  def as_arrays(self, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values of fields by name, as `replace` stores them: numbers as arrays of the field's dtype, no weak types."""
    own, declared, out = self.__dataclass_fields__, specs(type(self)), {}
    for name, x in changes.items():
      if name not in own and name not in optional_fields(type(self)):
        raise TypeError(unknown(self, name))
      is_number = isinstance(x, numbers.Number) and name in declared and not declared[name]["shape"]
      old = getattr(self, name) if is_number else None
      out[name] = strong(x) if old is None or not hasattr(old, "dtype") else jnp.asarray(x, old.dtype)
    return out

  def tree_replace(self, changes: Mapping[str, Any]) -> Any:
    """Return a copy with some fields changed. A dotted path names a nested field: `{'opt.iterations': 5}`."""
    nested: dict[str, dict[str, Any]] = {}
    flat = {}
    for path, value in changes.items():
      head, _, rest = path.partition(".")
      if rest:
        nested.setdefault(head, {})[rest] = value
      else:
        flat[head] = value
    for head, inner in nested.items():
      flat[head] = getattr(self, head).tree_replace(inner)
    return self.replace(**flat)
