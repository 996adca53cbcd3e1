"""Static selection of rows: an index known at plan time becomes slices where it can, a gather where it must."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

_MAX_RUNS = 6  # a concatenation of this many slices is cheaper than a gather, whose transpose is a scatter


def rows(x: jax.Array, index: np.ndarray) -> jax.Array:
  """`x[index]` along the first axis for a constant NumPy index of any rank."""
  index = np.asarray(index)
  if index.ndim != 1:
    return rows(x, index.ravel()).reshape(*index.shape, *x.shape[1:])
  n = len(index)
  if n == x.shape[0] and np.array_equal(index, np.arange(n)):
    return x
  if n == 0:
    return x[:0]
  cuts = np.flatnonzero(np.diff(index) != 1) + 1
  if len(cuts) < _MAX_RUNS:
    starts, stops = np.r_[0, cuts], np.r_[cuts, n]
    parts = [jax.lax.slice_in_dim(x, int(index[a]), int(index[a]) + int(b - a)) for a, b in zip(starts, stops, strict=True)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
  return x.at[index].get(mode="promise_in_bounds")


def join(parts: Sequence[jax.Array | np.ndarray], order: np.ndarray | None = None) -> jax.Array:
  """Concatenate along the first axis, world axes broadcast to the widest, then reorder the rows.

  Args:
    parts: arrays that agree but for the first axis and a world axis of size 1; empty ones are allowed.
    order: constant index into the concatenation.
  """
  parts = [p for p in parts if p.shape[0]] or parts[:1]
  width = max(p.shape[-1] for p in parts)
  wide = [jnp.broadcast_to(p, (*p.shape[:-1], width)) for p in parts]
  x = wide[0] if len(wide) == 1 else jnp.concatenate(wide)
  return x if order is None else rows(x, order)


def pick(x: jax.Array | np.ndarray, i: jax.Array) -> jax.Array:
  """`x[i]` along the first axis, world by world, for an index of the trace (W,) or (1,); a bad one is clipped.

  Args:
    x: (n, ..., W) or (n, ..., 1), the latter shared by all worlds.
    i: index.
  """
  x = jnp.asarray(x)
  if i.shape[-1] == 1:
    return jnp.take(x, i[0], axis=0, mode="clip")
  if x.shape[-1] == 1:
    return jnp.moveaxis(jnp.take(x[..., 0], i, axis=0, mode="clip"), 0, -1)
  index = i.reshape(*(1,) * (x.ndim - 1), -1)
  return jnp.take_along_axis(x, jnp.clip(index, 0, x.shape[0] - 1), axis=0)[0]
