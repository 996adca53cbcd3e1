"""Largest entries along an axis, per world; XLA does not vectorize its own reductions on CPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.ops import linear

_TOGETHER = 8  # entries compared in one expression


def largest(x: jax.Array) -> jax.Array:
  """Return the largest of the entries of x (..., n, W): (..., W)."""
  while x.shape[-2] > 1:
    x = functools.reduce(jnp.maximum, _parts(linear.materialize(x)))
  return x[..., 0, :]


def first_largest(score: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the largest of floating-point scores (..., n, W) and the index of its first occurrence, both (..., W).

  Where every score is NaN, the index is 0.
  """
  score, last = linear.materialize(score), score.shape[-2] - 1
  index = np.arange(last + 1, dtype=np.int32)[:, None]
  best, at = _first_best(list(zip(_parts(score), map(jnp.asarray, _parts(index)), strict=True)))
  while best.shape[-2] > 1:
    best, at = linear.materialize((best, at))
    best, at = _least_best(list(zip(_parts(best), _parts(at), strict=True)), last)
  return best[..., 0, :], linear.materialize(at[..., 0, :])


def true_rows(mask: jax.Array, size: int, number: jax.Array) -> jax.Array:
  """Return the first rows (size, W) in which a mask (n, W) is true, then n; at most `number` () rows are searched for."""
  index = np.arange(len(mask), dtype=np.int32)[:, None]

  def add(state):
    k, last, found = state
    following = linear.materialize(vector.fold(jnp.minimum, jnp.where(mask & (index > last), index, len(mask)), 0))
    return k + 1, following, jax.lax.dynamic_update_slice_in_dim(found, following[None], k, 0)

  width = mask.shape[-1]
  none = jnp.int32(0), jnp.full((width,), -1, jnp.int32), jnp.full((size, width), len(mask), jnp.int32)
  return jax.lax.while_loop(lambda s: s[0] < number, add, none)[2]


def _parts(x: Any) -> list[Any]:
  """Split axis -2 into at most `_TOGETHER` slices of equal size; the last slice may overlap the slice before it."""
  n = x.shape[-2]
  size = -(-n // _TOGETHER)
  return [x[..., min(k, n - size) : min(k, n - size) + size, :] for k in range(0, n, size)]


def _first_best(parts: list[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
  """Return the largest score of slices with ascending indices, and the first index that has this score.

  XLA repeats a fused result for every use. Here the best score enters the next best score once, and the index enters the next
  index once. With three uses of each, eight slices became thousands of operations.
  """
  best, at = parts[0]
  at = jnp.broadcast_to(at, best.shape)
  for score, index in parts[1:]:
    at = jnp.where(score > best, index, at)
    best = jnp.maximum(best, score)
  return best, at


def _least_best(parts: list[tuple[jax.Array, jax.Array]], last: int) -> tuple[jax.Array, jax.Array]:
  """Return the largest score and the smallest index that has it, or the smallest of all indices if this score is NaN.

  The scores are materialized, so the comparison is reliable.
  """
  best = functools.reduce(jnp.maximum, (score for score, _ in parts))
  return best, functools.reduce(jnp.minimum, (jnp.where(score < best, last, index) for score, index in parts))
