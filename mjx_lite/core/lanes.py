"""Work on those of the pairs of all worlds that need it, side by side: its cost follows how many these are.

Of n pairs in each of W worlds a few are worth a search, another few in each world. They are put next to each other, so many
that arithmetic is done in vectors, and gone through in as many rounds as are needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear, loops, regions
from mjx_lite.core.select import fetched, next_true

_FEW = 2  # pairs that are not worth the sorting
_LEAST = 16  # lanes, and what their number is a multiple of
_ROUNDS = 32  # if all are wanted
_WIDE, _WIDE_ROUNDS = 256, 8  # so many worlds are on a device with lanes to spare, where each round costs its launches


class Lanes(NamedTuple):
  """Which pair (k,) of which world (k,) each lane has."""

  pair: jax.Array
  world: jax.Array

  def take(self, x: jax.Array | np.ndarray) -> jax.Array:
    """Of x (n, ..., W), or (n, ..., 1) for all worlds, what the lanes have (1, ..., k)."""
    x = jnp.asarray(x)
    if x.shape[-1] == 1:
      return fetched(x[..., 0], self.pair)[None]
    return fetched(x, self.pair, self.world, axes=(0, x.ndim - 1))[None]


def one_by_one(wanted: jax.Array, make: Callable[[jax.Array, jax.Array], Any], others: Any) -> Any:
  """Rows (n, ..., W) of those wanted, where what is made of one has numbers enough for vectors. No gradient.

  Of few worlds they are made one after the other, else all at once if there are any.

  Args:
    wanted: (n, W) which.
    make: function of a row () and a world () that returns a pytree (...).
    others: the same for all (n, ..., W): what those have that are not wanted.
  """
  width, each = wanted.shape[1], np.arange(wanted.size, dtype=np.int32)

  def made(k):
    return make(jax.lax.div(k, jnp.int32(width)), jax.lax.rem(k, jnp.int32(width)))

  def where(mine, new, old):
    return jnp.where(mine.reshape(-1, *(1,) * (old.ndim - 2), width), new, old)

  def all_at_once():
    new = jax.vmap(made)(each)
    rows = (jnp.moveaxis(x.reshape(*wanted.shape, *x.shape[1:]), 1, -1) for x in jax.tree.leaves(new))
    return jax.tree.map(lambda x, old: where(wanted, x, old), jax.tree.unflatten(jax.tree.structure(new), rows), others)

  def next_one(state):
    k, out = state
    new = jax.tree.map(lambda x, old: where(each == k, x[None, ..., None], old), made(k), out)
    return next_true(wanted.ravel(), k), new

  if not regions.are_few(width):
    return jax.lax.cond(jnp.any(wanted), all_at_once, lambda: others)
  return jax.lax.while_loop(lambda s: s[0] < wanted.size, next_one, (next_true(wanted.ravel(), -1), others))[1]


def in_lanes(wanted: jax.Array, make: Callable[[Lanes | None], Any], others: Any) -> Any:
  """Rows (n, ..., W) of those wanted.

  Args:
    wanted: (n, W) which.
    make: function of lanes that returns a pytree of rows (1, ..., k); of None, that returns all rows. Few are made so.
    others: the same for all (n, ..., W): what those have that are not wanted.
  """
  number, width = wanted.shape
  if number <= _FEW:
    return make(None)
  size = max(-(-width // 2), -(-number * width // (_ROUNDS if width <= _WIDE else _WIDE_ROUNDS)))
  size = _LEAST if regions.are_several(width) else _LEAST * -(-size // _LEAST)
  upto = jnp.cumsum(wanted.ravel().astype(jnp.int32))
  rank = (upto - 1).reshape(wanted.shape)

  def some(k, out):
    start = k * size
    place = jnp.searchsorted(upto, start + 1 + np.arange(size, dtype=np.int32))
    place = jnp.minimum(place, number * width - 1).astype(jnp.int32)
    lane_of = linear.materialized((jax.lax.div(place, jnp.int32(width)), jax.lax.rem(place, jnp.int32(width))))
    new = make(Lanes(*lane_of))
    lane = rank - start
    mine = wanted & (lane >= 0) & (lane < size)
    lane = jnp.clip(lane, 0, size - 1)

    def put(old, x):
      found = fetched(x[0], lane, axes=(x.ndim - 2,))
      return jnp.where(mine.reshape(number, *(1,) * (old.ndim - 2), width), found.astype(old.dtype), old)

    return jax.tree.map(put, out, new)

  rounds = jax.lax.div(upto[-1] + size - 1, jnp.int32(size))
  return loops.repeat(some, rounds, -(-number * width // size), others)
