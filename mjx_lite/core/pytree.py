"""Frozen dataclasses as JAX pytrees, and what a declared field says of itself."""

import dataclasses
import difflib
import functools
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp


def array(*shape: str | int, unit: str = "", stage: str = "", dtype: str = "float") -> Any:
  """Declare an array field; one whose name begins with an underscore is there only where it was asked for (`Handed`).

  Args:
    shape: sizes of one world, as names of model sizes ('nq'), products ('nv*6') or integers.
    unit: SI unit.
    stage: pipeline stage that writes the field; '' for state, input or parameter.
    dtype: 'float' (the Model's), 'int' or 'bool'.
  """
  return dataclasses.field(metadata=dict(shape=shape, unit=unit, stage=stage, dtype=dtype))


def static(**kwargs: Any) -> Any:
  """Declare a field that is part of the program, not of the data: hashable, and a change of it retraces."""
  return dataclasses.field(metadata=dict(static=True), **kwargs)


def pytree(cls: type) -> type:
  """Make a frozen dataclass of a class and register it: `static` fields are metadata, the others are children."""
  cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
  fields = dataclasses.fields(cls)
  meta = [f.name for f in fields if f.metadata.get("static")]
  data = [f.name for f in fields if not f.metadata.get("static")]
  return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


def specs(cls: type) -> dict[str, Mapping[str, Any]]:
  """The declarations of a class's array fields, by the names that users know."""
  return {f.name.removeprefix("_"): f.metadata for f in dataclasses.fields(cls) if "shape" in f.metadata}


class Handed:
  """A field that one stage hands to the next, and that lasts beyond a call only where it was asked for.

  The array, or None, stands in the dataclass's field of the same name with an underscore before. Where there is none, the
  field is what `otherwise` makes of the object; without that, an AttributeError says how to get it.
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
def handed_names(cls: type) -> tuple[str, ...]:
  """The fields of a class that are `Handed`."""
  return tuple(name for name, x in vars(cls).items() if isinstance(x, Handed))


def present(x: Any) -> list[str]:
  """Names of the array fields that an object has, without those that are `Handed` and not kept."""
  lacking = set(handed_names(type(x))) - set(kept(x))
  return [name for name in specs(type(x)) if name not in lacking]


def kept(x: Any) -> list[str]:
  """Names of the `Handed` fields that an object has."""
  return [name for name in handed_names(type(x)) if getattr(x, f"_{name}") is not None]


def strong(x: Any) -> Any:
  """An array without weak type, all else as it is: JAX compiles one program for an array with it, and one without."""
  return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x


def unknown(owner: Any, name: str) -> str:
  """Message about a name that is none of a dataclass's fields: with the part that has it, or the nearest name."""
  cls = type(owner).__name__
  for f in dataclasses.fields(owner):
    part = getattr(owner, f.name) if not f.name.startswith("_") else None
    if dataclasses.is_dataclass(part) and name in {x.name for x in dataclasses.fields(part)}:
      return f"{cls} has no field '{name}', but {cls}.{f.name} has: tree_replace({{'{f.name}.{name}': ...}}) changes it."
  near = difflib.get_close_matches(name, _names(type(owner)), 1)
  return f"{cls} has no field '{name}'" + (f"; did you mean '{near[0]}'?" if near else ".")


def _names(cls: type) -> set[str]:
  """Names of fields as users know them."""
  return {f.name.removeprefix("_") for f in dataclasses.fields(cls)}


class Replaceable:
  """`replace` and MJX's `tree_replace` for a frozen dataclass."""

  __dataclass_fields__: ClassVar[dict[str, Any]]  # of the class that inherits this

  def replace(self, **changes: Any) -> Any:
    """Copy with some fields changed; numbers become arrays, and weakly typed arrays those of their type.

    Raises:
      TypeError: for a name that is no field; the message has the nearest one.
    """
    handed = handed_names(type(self))
    changes = self.as_arrays(changes)
    return dataclasses.replace(self, **{f"_{k}" if k in handed else k: x for k, x in changes.items()})

  def as_arrays(self, changes: Mapping[str, Any]) -> dict[str, Any]:
    """New values of fields by name, as `replace` takes them: numbers as arrays of the field's type, nothing weakly typed."""
    own, declared, out = self.__dataclass_fields__, specs(type(self)), {}
    for name, x in changes.items():
      if name not in own and name not in handed_names(type(self)):
        raise TypeError(unknown(self, name))
      is_number = isinstance(x, numbers.Number) and name in declared and not declared[name]["shape"]
      old = getattr(self, name) if is_number else None
      out[name] = strong(x) if old is None or not hasattr(old, "dtype") else jnp.asarray(x, old.dtype)
    return out

  def tree_replace(self, changes: Mapping[str, Any]) -> Any:
    """Copy with some fields changed, nested ones named by a dotted path: `{'opt.iterations': 5}`."""
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
