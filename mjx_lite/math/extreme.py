"""Largest entries along an axis, world by world: XLA's reductions on CPU are not vectorised."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear
from mjx_lite.math import vector

_TOGETHER = 8  # entries that are compared in one expression


def largest(x: jax.Array) -> jax.Array:
  """Largest of the entries of x (..., n, W): (..., W)."""
  while x.shape[-2] > 1:
    x = functools.reduce(jnp.maximum, _parts(linear.materialized(x)))
  return x[..., 0, :]


def first_largest(score: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Largest of floating-point scores (..., n, W) and the index of the first that is, (..., W) both.

  Where no score is a number the index is the last one.
  """
  score, last = linear.materialized(score), score.shape[-2] - 1
  place = np.arange(last + 1, dtype=np.int32)[:, None]
  best, at = _first_best(list(zip(_parts(score), map(jnp.asarray, _parts(place)), strict=True)))
  while best.shape[-2] > 1:
    best, at = linear.materialized((best, at))
    best, at = _least_best(list(zip(_parts(best), _parts(at), strict=True)), last)
  return best[..., 0, :], linear.materialized(at[..., 0, :])


def true_rows(mask: jax.Array, size: int, number: jax.Array) -> jax.Array:
  """The first rows (size, W) in which a mask (n, W) is true, n where there are no more; no more than `number` () are sought."""
  index = np.arange(len(mask), dtype=np.int32)[:, None]

  def add(state):
    k, last, found = state
    following = linear.materialized(vector.fold(jnp.minimum, jnp.where(mask & (index > last), index, len(mask)), 0))
    return k + 1, following, jax.lax.dynamic_update_slice_in_dim(found, following[None], k, 0)

  width = mask.shape[-1]
  none = jnp.int32(0), jnp.full((width,), -1, jnp.int32), jnp.full((size, width), len(mask), jnp.int32)
  return jax.lax.while_loop(lambda s: s[0] < number, add, none)[2]


def _parts(x: Any) -> list[Any]:
  """Groups of entries to compare, all of a size: the last may repeat entries of the one before."""
  n = x.shape[-2]
  size = -(-n // _TOGETHER)
  return [x[..., min(k, n - size) : min(k, n - size) + size, :] for k in range(0, n, size)]


def _first_best(parts: list[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
  """The largest score of parts with ascending places, and the first place that has it.

  XLA repeats a result for every use. Here a largest score goes into the next one once, and a place into the next one once; with
  three uses each, eight parts were thousands of operations.
  """
  best, at = parts[0]
  at = jnp.broadcast_to(at, best.shape)
  for score, place in parts[1:]:
    at = jnp.where(score > best, place, at)
    best = jnp.maximum(best, score)
  return best, at


def _least_best(parts: list[tuple[jax.Array, jax.Array]], last: int) -> tuple[jax.Array, jax.Array]:
  """The largest of scores that are stored, so the same wherever they are read, and the least place that has it."""
  best = functools.reduce(jnp.maximum, (score for score, _ in parts))
  return best, functools.reduce(jnp.minimum, (jnp.where(score == best, place, last) for score, place in parts))
