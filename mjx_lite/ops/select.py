"""Selection of rows. A static index, known at plan time, becomes slices where possible, and a gather otherwise.

Tests: tests/ops/test_lanes.py, tests/smooth/test_mechanics.py.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.ops import linear


def over(mask: Any, ndim: int) -> Any:
  """Give a mask (n,) or (n, W) `ndim` axes. The new axes stand between the first axis and the world axis."""
  return mask.reshape(len(mask), *(1,) * (ndim - mask.ndim), *mask.shape[1:])


def rows(x: jax.Array, index: np.ndarray) -> jax.Array:
  """Return `x[index]` along the first axis, for a constant NumPy index of any rank."""
  index = np.asarray(index)
  if index.ndim != 1:
    return rows(x, index.ravel()).reshape(*index.shape, *x.shape[1:])
  n = len(index)
  if n == x.shape[0] and np.array_equal(index, np.arange(n)):
    return x
  if n == 0:
    return x[:0]
  is_gather = len(linear.cuts_of(index)) >= linear.MAX_RUNS
  return linear.choose(x, index) if is_gather and jnp.issubdtype(x.dtype, jnp.floating) else linear.take_rows(x, index)


def join(parts: Sequence[jax.Array | np.ndarray], order: np.ndarray | None = None) -> jax.Array:
  """Concatenate along the first axis, with world axes broadcast to the widest, then reorder the rows.

  Args:
    parts: arrays that agree except for the first axis and a world axis of size 1; empty arrays are allowed.
    order: constant index into the concatenation.
  """
  parts = [p for p in parts if p.shape[0]] or parts[:1]
  width = max(p.shape[-1] for p in parts)
  wide = [jnp.broadcast_to(p, (*p.shape[:-1], width)) for p in parts]
  x = wide[0] if len(wide) == 1 else jnp.concatenate(wide)
  return x if order is None else rows(x, order)


def pick(x: jax.Array | np.ndarray, i: jax.Array) -> jax.Array:
  """Return `x[i]` along the first axis, per world, for a traced index (W,) or (1,). The index is clipped to the range.

  Args:
    x: (n, ..., W) or (n, ..., 1); the latter is shared by all worlds.
    i: index.
  """
  x = jnp.asarray(x)
  if i.shape[-1] == 1:
    return jnp.take(x, i[0], axis=0, mode="clip")
  if x.shape[-1] == 1:
    return fetched(x[..., 0], i, mode="clip")
  index = i.reshape(*(1,) * (x.ndim - 1), -1)
  return jnp.take_along_axis(x, jnp.clip(index, 0, x.shape[0] - 1), axis=0)[0]


def gather(x: jax.Array | np.ndarray, index: jax.Array) -> jax.Array:
  """Return `x[index]` (n, ..., W) along the first axis, per world, for a valid traced index (n, W) or (n, 1).

  Args:
    x: (k, ..., W) or (k, ..., 1); the latter is shared by all worlds.
    index: rows to read.
  """
  x = jnp.asarray(x)
  if index.shape[-1] == 1:
    return x.at[index[:, 0]].get(mode="promise_in_bounds")
  if x.shape[-1] == 1:
    return fetched(x[..., 0], index)
  index = index.reshape(len(index), *(1,) * (x.ndim - 2), -1)
  return jnp.take_along_axis(linear.materialize(x), index, axis=0, mode="promise_in_bounds")


def fetched(x: jax.Array, *index: jax.Array, axes: tuple[int, ...] = (0,), mode: Any = "promise_in_bounds") -> jax.Array:
  """Gather from x at indices (..., W) along some axes. The result is (..., the other axes, W).

  The gather itself writes the world axis last. If a transposition moved the axis afterwards, XLA would leave the memory layout
  as it was, and operations that read the result would not be vectorized.
  """
  positions = jnp.stack(index, axis=-1)
  first = positions.ndim - 2
  numbers = jax.lax.GatherDimensionNumbers(tuple(range(first, first + x.ndim - len(axes))), axes, axes)
  return jax.lax.gather(x, positions, numbers, tuple(1 if k in axes else n for k, n in enumerate(x.shape)), mode=mode)


def next_true(mask: jax.Array, k: jax.Array | int) -> jax.Array:
  """Return the first index above k at which a mask (n,) is true, or n if there is none: the next iteration of a loop."""
  index = np.arange(len(mask), dtype=np.int32)
  return jnp.min(jnp.where(mask & (index > k), index, len(mask)))


def rows_or_zero(x: jax.Array, index: np.ndarray) -> jax.Array:
  """Return `rows(x, index)`, with a row of zeros where the index is -1."""
  index = np.asarray(index)
  if (index >= 0).all():
    return rows(x, index)
  if (index < 0).all():
    return jnp.zeros((len(index), *x.shape[1:]), x.dtype)
  padded = jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])
  return rows(padded, np.where(index < 0, x.shape[0], index))


def put(x: jax.Array, index: np.ndarray, values: jax.Array) -> jax.Array:
  """Return x with the rows at a constant index replaced."""
  n, k = x.shape[0], len(index)
  if not k:
    return x
  order = np.arange(n)
  order[index] = n + np.arange(k)
  return join([x, values], order)


def assemble_rows(parts: list[tuple[np.ndarray, jax.Array]], size: int, like: jax.Array) -> jax.Array:
  """Assemble `size` rows from pairs (index, rows). Rows of no pair are zero; `like` gives trailing axes and dtype."""
  zero = jnp.zeros((1, *like.shape[1:-1], 1), like.dtype)
  index = np.concatenate([np.zeros(0, int), *(i for i, _ in parts)])
  order = np.full(size, len(index))
  order[index] = np.arange(len(index))
  return join([*(v for _, v in parts), *([zero] if (order == len(index)).any() else [])] or [zero[:0]], order)
