"""Compaction: work on the (pair, world) items that need it, packed side by side, at a cost that follows their number.

Of n pairs in each of W worlds only some are worth a search, and each world has different ones. The selected items are packed
into lanes, enough of them that arithmetic is done in vectors, and processed in as many rounds as are needed.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.compiler import regions
from mjx_lite.ops import linear, loops
from mjx_lite.ops.select import fetched, next_true, over

_FEW = 2  # pairs; for so few, compaction costs more than it saves
_LEAST = 16  # least number of lanes; other numbers are multiples of it
_ROUNDS = 32  # rounds if all items are wanted
_WIDE, _WIDE_ROUNDS = 256, 8  # rounds above 256 worlds: such a device has lanes to spare, and each round costs its launches


class Lanes(NamedTuple):
  """Indices of the pair (k,) and of the world (k,) that each lane processes."""

  pair: jax.Array
  world: jax.Array

  def take(self, x: jax.Array | np.ndarray) -> jax.Array:
    """Gather the lanes' entries (1, ..., k) from x (n, ..., W), or from x (n, ..., 1), which all worlds share."""
    x = jnp.asarray(x)
    if x.shape[-1] == 1:
      return fetched(x[..., 0], self.pair)[None]
    return fetched(x, self.pair, self.world, axes=(0, x.ndim - 1))[None]


class Search(NamedTuple):
  """A loop for one row of one world. Its arrays are large enough to fill vectors.

  Attributes:
    start: function of a row () and a world (). It returns the first state, a pytree.
    goes_on: function of a state. It returns whether the loop goes on, ().
    turn: function of a state. It returns the next state.
    end: function of the last state. It returns the result, a pytree (...).
  """

  start: Callable[[jax.Array, jax.Array], Any]
  goes_on: Callable[[Any], jax.Array]
  turn: Callable[[Any], Any]
  end: Callable[[Any], Any]


def search(wanted: jax.Array, how: Search, others: Any) -> Any:
  """Search for each wanted row of each world, and return the results (n, ..., W). There is no gradient.

  With few worlds the searches run one after the other. With more, 16 searches run side by side (on a GPU an eighth of all
  rows). As soon as a quarter of the running searches have ended, new searches start in their lanes, so that few lanes wait for
  the longest search.

  Args:
    wanted: (n, W) mask of the rows to search.
    how: the search.
    others: results (n, ..., W) for the rows that are not wanted.
  """
  (number, width), all_ = wanted.shape, wanted.size

  def place_of(k):
    return jax.lax.div(k, jnp.int32(width)), jax.lax.rem(k, jnp.int32(width))

  def next_one(state):
    k, out = state
    new = how.end(jax.lax.while_loop(how.goes_on, how.turn, how.start(*place_of(k))))
    mine = np.arange(all_, dtype=np.int32) == k
    out = jax.tree.map(lambda x, old: _where(mine.reshape(wanted.shape), x[None, ..., None], old), new, out)
    return next_true(wanted.ravel(), k), out

  if regions.are_few(width):
    return jax.lax.while_loop(lambda s: s[0] < all_, next_one, (next_true(wanted.ravel(), -1), others))[1]

  size = min(all_, _LEAST if jax.default_backend() == "cpu" else max(_LEAST, -(-all_ // _WIDE_ROUNDS)))
  upto = jnp.cumsum(wanted.ravel().astype(jnp.int32))
  count = upto[-1]

  def started(item):
    return jax.vmap(lambda k: how.start(*place_of(jnp.minimum(k, all_ - 1))))(item)

  def active(item, states):
    return (item < all_) & jax.vmap(how.goes_on)(states)

  def some(state):
    item, begun, states, rows = state
    free = item == all_
    rank = begun + jnp.cumsum(free.astype(jnp.int32)) - 1
    new = jnp.where(rank < count, jnp.searchsorted(upto, rank + 1).astype(jnp.int32), all_)
    item = jnp.where(free, new, item)
    begun = jnp.minimum(begun + jnp.sum(free, dtype=jnp.int32), count)
    states = jax.tree.map(lambda x, old: _where(free, x, old), started(item), states)
    wait = jnp.where(begun < count, size - size // 4, 0)

    def turn(states):
      on = active(item, states)
      return jax.tree.map(lambda x, old: _where(on, x, old), jax.vmap(how.turn)(states), states)

    states = jax.lax.while_loop(lambda x: jnp.sum(active(item, x), dtype=jnp.int32) > wait, turn, states)
    ready = jnp.where(active(item, states), all_, item)
    rows = jax.tree.map(lambda old, x: old.at[ready].set(x, mode="drop"), rows, jax.vmap(how.end)(states))
    return jnp.where(ready < all_, all_, item), begun, states, rows

  item = jnp.full(size, all_, jnp.int32)
  nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(started, item))
  rows = jax.tree.map(lambda x: jnp.zeros((all_, *x.shape[1:-1]), x.dtype), others)
  start = item, jnp.int32(0), nothing, rows
  rows = jax.lax.while_loop(lambda s: (s[1] < count) | jnp.any(s[0] < all_), some, start)[3]
  rows = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(number, width, *x.shape[1:]), 1, -1), rows)
  return jax.tree.map(lambda x, old: _where(wanted, x, old), rows, others)


def _where(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
  """Return `new` where a mask (n,) or (n, W) is true and `old` elsewhere; both are (n, ...) or (n, ..., W)."""
  return jnp.where(over(mask, old.ndim), new, old)


def in_lanes(wanted: jax.Array, make: Callable[..., Any], others: Any, sift: bool = False) -> Any:
  """Return rows (n, ..., W): computed for the wanted pairs of each world, and taken from `others` elsewhere.

  Args:
    wanted: (n, W) mask of the pairs to compute.
    make: function of `Lanes` that returns a pytree of rows (1, ..., k). With None instead of lanes it returns all rows
      (n, ..., W); this happens with at most `_FEW` pairs.
    others: pytree of rows (n, ..., W) for the pairs that are not wanted.
    sift: whether a row that equals `others` is recognized at a much lower cost than a row is computed. Then `make(lanes, full)`
      has a second argument, () bool, and returns `(rows, differs)`; the mask `differs` (1, k) marks lanes whose rows differ
      from `others`. If `full` is False, the rows are not used. In a tile of worlds all wanted pairs are sifted first, and the
      remaining pairs are packed again.
  """
  number, width = wanted.shape
  rows_of = (lambda lanes: make(lanes, True)[0]) if sift else make
  if number <= _FEW:
    return rows_of(None)
  size = max(-(-width // 2), -(-number * width // (_ROUNDS if width <= _WIDE else _WIDE_ROUNDS)))
  size = _LEAST if regions.are_several(width) else _LEAST * -(-size // _LEAST)
  most, each = -(-number * width // size), np.arange(size, dtype=np.int32)
  upto = jnp.cumsum(wanted.ravel().astype(jnp.int32))
  rows = jax.tree.map(lambda x: jnp.zeros((*x.shape[1:-1], most * size), x.dtype), others)
  write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=-1)

  def places(k):
    """Return the flat indices of the wanted pairs of round k."""
    place = jnp.searchsorted(upto, size * k + 1 + each)
    return jnp.minimum(place, number * width - 1).astype(jnp.int32)

  def lanes_at(place):
    return Lanes(*linear.materialized((jax.lax.div(place, jnp.int32(width)), jax.lax.rem(place, jnp.int32(width)))))

  def put(rows, new, k):
    return jax.tree.map(lambda old, x: write(old, x[0].astype(old.dtype), size * k), rows, new)

  def rounds(number):
    return jax.lax.div(number + size - 1, jnp.int32(size))

  all_rounds = rounds(upto[-1])

  def some(k, rows):
    return put(rows, rows_of(lanes_at(places(k))), k)

  def sifted(k, state):  # rounds below 0 sift, rounds from 0 on compute rows
    rows, left, count = state
    place = jnp.where(k < 0, places(k + all_rounds), jax.lax.dynamic_slice_in_dim(left, size * k, size))
    new, worth = make(lanes_at(place), k >= 0)
    worth = worth[0] & (k < 0) & (size * (k + all_rounds) + each < upto[-1])
    rank = jnp.sum(worth[:, None] & (each[:, None] < each), axis=0, dtype=jnp.int32)
    place = jnp.sum(jnp.where(worth & (rank == each[:, None]), place, 0), axis=1, dtype=jnp.int32)
    rows = put(rows, new, jnp.maximum(k, 0))
    return rows, write(left, place, count), count + jnp.sum(worth, dtype=jnp.int32)

  if sift and regions.are_several(width):
    state = rows, jnp.zeros((most + 1) * size, jnp.int32), jnp.int32(0)
    rows, left, count = loops.repeat(sifted, lambda s: rounds(s[2]), most, state, before=all_rounds)
    lane = jnp.full(number * width, -1, jnp.int32)
    lane = jax.lax.fori_loop(0, count, lambda k, x: write(x, k.astype(jnp.int32)[None], left[k]), lane)
    lane = lane.reshape(wanted.shape)
    wanted = lane >= 0
  else:
    rows = loops.repeat(some, all_rounds, most, rows)
    lane = (upto - 1).reshape(wanted.shape)
  lane = jnp.maximum(lane, 0)

  return jax.tree.map(lambda x, other: _where(wanted, fetched(x, lane, axes=(x.ndim - 1,)), other), rows, others)
