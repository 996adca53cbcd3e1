"""Checks that arrays have the shapes of a model. The checks compare shapes only, which costs no computation.

Tests: tests/model/test_shapes.py.
"""

import functools
import numbers
from typing import Any

from mjx_lite.model.layout import Layout
from mjx_lite.model.pytree import specs


@functools.lru_cache(maxsize=16)
def shapes(cls: type, layout: Layout) -> dict[str, tuple[int, ...]]:
  """Return the shapes in one world of the arrays that a class declares, by field name."""
  sizes = {**layout.static, **layout.plan.sizes}
  return {k: tuple(sizes[n] if isinstance(n, str) else n for n in s["shape"]) for k, s in specs(cls).items()}


def check_change(name: str, value: Any, shape: tuple[int, ...], old: Any = None) -> None:
  """Refuse a new array for a field if it has the wrong shape. Leading batch axes are allowed.

  Args:
    name: name of the field in the message.
    value: the new array.
    shape: the field's shape in one world.
    old: the array to be replaced. In the engine's layout it has a world axis after the field's axes, and then the new array
      may have one too.

  Raises:
    ValueError: the array has another shape; the message names the field.
  """
  if not hasattr(value, "shape") or not shape:
    return
  n = len(shape)
  is_native = getattr(old, "shape", ())[:-1] == shape and len(value.shape) == n + 1 and value.shape[:n] == shape
  if value.shape[-n:] != shape and not is_native:
    raise ValueError(f"{name} has shape {value.shape}; this model needs {shape}, which batch axes may precede.")


def check_shape(name: str, value: Any, shape: tuple[int, ...], otherwise: str = "the array does not fit") -> None:
  """Refuse a value that is not an array of this shape.

  Args:
    name: name of the field in the message.
    value: the array, or a number where the shape is ().
    shape: the shape in one world.
    otherwise: the reason in the message if the array is not a batch of the right shape.

  Raises:
    TypeError: the value is not an array.
    ValueError: the array has another shape.
  """
  if not hasattr(value, "shape"):
    if not shape and isinstance(value, numbers.Number):
      return
    raise TypeError(f"{name} has to be an array, not {type(value).__name__}.")
  if value.shape == shape:
    return
  before = len(value.shape) - len(shape)
  if before > 0 and value.shape[before:] == shape:
    otherwise = "call the function under jax.vmap, with 0 for this field in in_axes"
  raise ValueError(f"{name} has shape {value.shape}; one world of this model needs {shape}: {otherwise}.")
