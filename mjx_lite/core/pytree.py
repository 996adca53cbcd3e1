"""Frozen dataclasses as JAX pytrees, and what a declared field says of itself."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax


def array(*shape: str | int, unit: str = "", stage: str = "", dtype: str = "float") -> Any:
  """Declare an array field.

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
  cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
  fields = dataclasses.fields(cls)
  meta = [f.name for f in fields if f.metadata.get("static")]
  data = [f.name for f in fields if not f.metadata.get("static")]
  return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


def specs(cls: type) -> dict[str, Mapping[str, Any]]:
  """The declarations of a class's array fields, by name."""
  return {f.name: f.metadata for f in dataclasses.fields(cls) if "shape" in f.metadata}


class Replaceable:
  """`replace` and MJX's `tree_replace` for a frozen dataclass."""

  __dataclass_fields__: ClassVar[dict[str, Any]]  # of the class that inherits this

  def replace(self, **changes: Any) -> Any:
    """Copy with some fields changed."""
    return dataclasses.replace(self, **changes)

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
