"""Models and Datas as plain dictionaries of arrays, which flax, orbax and other libraries can write to files."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from mjx_lite.model.status import Status
from mjx_lite.model.types import Contact, Data, Model, Option, Statistic

_CLASSES = (Data, Contact, Status, Model, Option, Statistic)
_done: list[Any] = []


def to_state_dict(x: Any) -> dict[str, Any]:
  """Return the arrays of a Data or a Model by name; arrays of its parts are in nested dictionaries.

  Empty arrays are left out, as orbax refuses to write them. Static fields are left out too: `from_state_dict` takes them from
  an object of the same model. Example: `checkpointer.save(path, mjx.to_state_dict(d))`, and `d =
  mjx.from_state_dict(mjx.make_data(m), checkpointer.restore(path))`. `flax.serialization` calls both functions automatically,
  if flax was imported before the Model or the Data was made.

  Args:
    x: the Data or the Model, or a part of one.
  """
  out = {}
  for f in _traced(x):
    value = getattr(x, f.name)
    if isinstance(value, _CLASSES):
      out[f.name] = to_state_dict(value)
    elif value is not None and getattr(value, "size", 1):
      out[f.name.removeprefix("_")] = value
  return out


def from_state_dict(x: Any, state: Mapping[str, Any]) -> Any:
  """Return a Data or a Model with the arrays of a dictionary; the inverse of `to_state_dict`.

  Args:
    x: an object of the same model, for example from `make_data`: static fields and empty arrays come from x.
    state: the dictionary.

  Raises:
    ValueError: for names, shapes or types that are not those of x.
  """
  cls, new, unknown = type(x).__name__, {}, set(state)
  for f in _traced(x):
    value, name = getattr(x, f.name), f.name.removeprefix("_")
    if isinstance(value, _CLASSES) and name in state:
      new[f.name] = from_state_dict(value, state[name])
    elif value is not None and name in state:
      given = jnp.asarray(state[name])
      if given.shape != value.shape or given.dtype != value.dtype:
        raise ValueError(
          f"{cls}.{name} was written as {given.dtype}{list(given.shape)}, and is {value.dtype}{list(value.shape)} in this one."
        )
      new[f.name] = given
    elif value is not None and getattr(value, "size", 1):
      raise ValueError(f"{cls}.{name} was not written: the dictionary has {', '.join(sorted(state)[:5])}, ...")
    else:
      continue
    unknown.discard(name)
  if unknown:
    raise ValueError(
      f"{cls} has no {', '.join(sorted(unknown))} here: make the Data with the keep= of the Data that was written."
    )
  return dataclasses.replace(x, **new)


def _traced(x: Any) -> list[Any]:
  """Return the fields that hold arrays, or parts with arrays."""
  return [f for f in dataclasses.fields(x) if not f.metadata.get("static")]


def register_with_flax() -> None:
  """Register Models and Datas with `flax.serialization`, once, if it has been imported."""
  flax = sys.modules.get("flax.serialization")
  if flax is None or _done or not hasattr(flax, "register_serialization_state"):  # the last: flax is being imported now
    return
  _done.append(flax)
  for cls in _CLASSES:
    flax.register_serialization_state(cls, to_state_dict, from_state_dict, override=True)
