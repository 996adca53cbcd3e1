"""Compaction: work on the (pair, world) items that need it, packed side by side, at a cost that follows their number.

Of n pairs in each of W worlds only some are worth a search, and each world has different ones. The selected items are packed
into lanes, enough of them that arithmetic is done in vectors, and processed in as many rounds as are needed.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.compiler import queue, regions
from mjx_lite.ops import linear, loops
from mjx_lite.ops.select import fetched, next_true, over

_MAX_PLAIN = 2  # pairs, up to which compaction costs more than it saves
_LEAST = 16  # least number of lanes; other numbers are multiples of it
_ROUNDS = 32  # rounds if all items are wanted
_WIDE, _WIDE_ROUNDS = 256, 8  # rounds above 256 worlds: such a device has lanes to spare, and each round costs its launches


# whether a trace is for a kernel that packs the items of its worlds itself: "", "values" or "derivatives"
_packs: contextvars.ContextVar[str] = contextvars.ContextVar("packs", default="")


@contextlib.contextmanager
def packed(for_derivatives: bool = False) -> Iterator[None]:
  """Trace programs of one world for a kernel that packs items: of all worlds of a block, as many as lanes at a time.

  With `for_derivatives` the trace can be differentiated.
  """
  token = _packs.set("derivatives" if for_derivatives else "values")
  try:
    yield
  finally:
    _packs.reset(token)


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
    continues: function of a state. It returns whether the loop continues, ().
    advance: function of a state. It returns the next state.
    end: function of the last state. It returns the result, a pytree (...).
  """

  start: Callable[[jax.Array, jax.Array], Any]
  continues: Callable[[Any], jax.Array]
  advance: Callable[[Any], Any]
  end: Callable[[Any], Any]


def packs() -> bool:
  """Return whether a program of one world is traced for a kernel that packs items, and whose loops are worth their code."""
  return bool(_packs.get())


def is_differentiated() -> bool:
  """Return whether `packs` holds, and the program will be differentiated."""
  return _packs.get() == "derivatives"


def columns(most: int) -> int:
  """Return the number of columns of a search's arrays: `most` fill vectors, but where lanes hold worlds a search needs one."""
  return 1 if _packs.get() else most


def empty(shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Return an array whose numbers nothing reads before they are written; outside of kernels zeros."""
  return queue.empty(shape, dtype) if _packs.get() else jnp.zeros(shape, dtype)


def put(old: jax.Array, row: jax.Array, new: jax.Array, where: jax.Array | bool = True) -> jax.Array:
  """Return an array (..., n, columns) with row `row` (columns,) of each column replaced by `new` (..., columns) on a mask."""
  if _packs.get():
    row = jnp.where(where, row, old.shape[-2])
    return old.at[..., row, np.arange(old.shape[-1])].set(new, mode="drop")
  here = (np.arange(old.shape[-2], dtype=np.int32)[:, None] == row) & where
  return jnp.where(here, new[..., None, :], old)


def search(wanted: jax.Array, method: Search, default: Any) -> Any:
  """Search for each wanted row of each world, and return the results (n, ..., W). There is no gradient.

  With few worlds the searches run one after the other. With more, 16 searches run side by side (on a GPU an eighth of all
  rows). As soon as a quarter of the running searches have ended, new searches start in their lanes, so that few lanes wait for
  the longest search.

  Args:
    wanted: (n, W) mask of the rows to search.
    method: the search.
    default: results (n, ..., W) for the rows that are not wanted.
  """
  if _packs.get():
    return _in_refilled_lanes(wanted, method, default)
  is_short = regions.fits_region(wanted.shape[1])
  return (_one_by_one if is_short else _side_by_side)(wanted, method, default)


def _one_by_one(wanted: jax.Array, method: Search, default: Any) -> Any:
  """Search as `search` does, one item after the other. An item is a row of a world, numbered row by row."""
  width, total = wanted.shape[1], wanted.size

  def search_one(state):
    item, out = state
    last = jax.lax.while_loop(method.continues, method.advance, method.start(*_row_and_world(item, width)))
    new = method.end(last)
    is_item = np.arange(total, dtype=np.int32) == item
    out = jax.tree.map(lambda x, old: _where(is_item.reshape(wanted.shape), x[None, ..., None], old), new, out)
    return next_true(wanted.ravel(), item), out

  return jax.lax.while_loop(lambda s: s[0] < total, search_one, (next_true(wanted.ravel(), -1), default))[1]


def _row_and_world(item: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
  return jax.lax.div(item, jnp.int32(width)), jax.lax.rem(item, jnp.int32(width))


def _side_by_side(wanted: jax.Array, method: Search, default: Any) -> Any:
  """Search as `search` does, with several searches in lanes."""
  (number, width), total = wanted.shape, wanted.size
  size = min(total, _LEAST if jax.default_backend() == "cpu" else max(_LEAST, -(-total // _WIDE_ROUNDS)))
  upto = jnp.cumsum(wanted.ravel().astype(jnp.int32))
  queue = _Queue(method, width, total, upto, upto[-1])

  def search_some(state):
    item, begun, states, rows = state
    item, begun, states = queue.fill(item, begun, states)
    least = jnp.where(begun < queue.nwanted, size - size // 4, 0)  # running searches, below which new searches start

    def advance(states):
      is_active = queue.is_active(item, states)
      return jax.tree.map(lambda x, old: _where(is_active, x, old), jax.vmap(method.advance)(states), states)

    states = jax.lax.while_loop(lambda x: jnp.sum(queue.is_active(item, x), dtype=jnp.int32) > least, advance, states)
    ended = jnp.where(queue.is_active(item, states), total, item)
    rows = jax.tree.map(lambda old, x: old.at[ended].set(x, mode="drop"), rows, jax.vmap(method.end)(states))
    return jnp.where(ended < total, total, item), begun, states, rows

  item = jnp.full(size, total, jnp.int32)
  nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(queue.start, item))
  rows = jax.tree.map(lambda x: jnp.zeros((total, *x.shape[1:-1]), x.dtype), default)
  start = item, jnp.int32(0), nothing, rows
  rows = jax.lax.while_loop(lambda s: (s[1] < queue.nwanted) | jnp.any(s[0] < total), search_some, start)[3]
  rows = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(number, width, *x.shape[1:]), 1, -1), rows)
  return jax.tree.map(lambda x, old: _where(wanted, x, old), rows, default)


class _Queue(NamedTuple):
  """The items to search: rows of worlds, numbered row by row. A lane without a search has the item `total`.

  Attributes:
    method: the search.
    width: number of worlds.
    total: number of items, wanted or not.
    upto: (total,) number of wanted items up to each item.
    nwanted: () number of wanted items.
  """

  method: Search
  width: int
  total: int
  upto: jax.Array
  nwanted: jax.Array

  def start(self, item: jax.Array) -> Any:
    """Return the first states of the items (k,)."""
    return jax.vmap(lambda k: self.method.start(*_row_and_world(jnp.minimum(k, self.total - 1), self.width)))(item)

  def is_active(self, item: jax.Array, states: Any) -> jax.Array:
    """Return whether the search in each lane continues."""
    return (item < self.total) & jax.vmap(self.method.continues)(states)

  def fill(self, item: jax.Array, begun: jax.Array, states: Any) -> tuple[jax.Array, jax.Array, Any]:
    """Start the next searches in the lanes that have none; return the items, the number of searches begun, and the states."""
    is_free = item == self.total
    rank = begun + jnp.cumsum(is_free.astype(jnp.int32)) - 1
    new = jnp.where(rank < self.nwanted, jnp.searchsorted(self.upto, rank + 1).astype(jnp.int32), self.total)
    item = jnp.where(is_free, new, item)
    begun = jnp.minimum(begun + jnp.sum(is_free, dtype=jnp.int32), self.nwanted)
    return item, begun, jax.tree.map(lambda x, old: _where(is_free, x, old), self.start(item), states)


def _where(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
  """Return `new` where a mask (n,) or (n, W) is true and `old` elsewhere; both are (n, ...) or (n, ..., W)."""
  return jnp.where(over(mask, old.ndim), new, old)


def map_where(wanted: jax.Array, make: Callable[..., Any], default: Any, sift: bool = False) -> Any:
  """Return rows (n, ..., W): computed for the wanted pairs of each world, and equal to `default` elsewhere.

  Args:
    wanted: (n, W) mask of the pairs to compute.
    make: function of `Lanes` that returns a pytree of rows (1, ..., k). With None instead of lanes it returns all rows
      (n, ..., W); this happens with at most `_MAX_PLAIN` pairs.
    default: pytree of rows (n, ..., W) for the pairs that are not wanted.
    sift: whether many wanted rows may equal `default`. Then `make(lanes, asked)` has a second argument, (), and returns
      `(rows, differs)`; the mask `differs` (1, k) marks lanes whose rows may not equal `default`. If `asked` is False, only
      this mask is used. In a tile of worlds, all wanted pairs are sifted first, and the remaining pairs are packed again.
  """
  number, width = wanted.shape
  make_rows = (lambda lanes: make(lanes, True)[0]) if sift else make
  if number <= _MAX_PLAIN:
    return make_rows(None)
  if _packs.get():
    return in_queue(wanted, lambda k: make_rows(row(k)), default)
  size = max(-(-width // 2), -(-number * width // (_ROUNDS if width <= _WIDE else _WIDE_ROUNDS)))
  size = _LEAST if regions.is_tile(width) else _LEAST * -(-size // _LEAST)
  most, lane_numbers = -(-number * width // size), np.arange(size, dtype=np.int32)
  packing = _Packing(jnp.cumsum(wanted.ravel().astype(jnp.int32)), number * width, width, size, lane_numbers)
  rows = jax.tree.map(lambda x: jnp.zeros((*x.shape[1:-1], most * size), x.dtype), default)
  rounds = packing.rounds(packing.upto[-1])
  if sift and regions.is_tile(width):
    rows, lane = _sifted(packing, make, rows, rounds, most)
    lane = lane.reshape(wanted.shape)
    wanted = lane >= 0
  else:
    rows = loops.repeat(lambda k, rows: packing.put(rows, make_rows(packing.lanes(packing.items(k))), k), rounds, most, rows)
    lane = (packing.upto - 1).reshape(wanted.shape)
  lane = jnp.maximum(lane, 0)

  return jax.tree.map(lambda x, old: _where(wanted, fetched(x, lane, axes=(x.ndim - 1,)), old), rows, default)


def row(item: jax.Array) -> Lanes:
  """Return the lane of one item () of one world."""
  return Lanes(item[None], jnp.zeros(1, jnp.int32))


def in_queue(wanted: jax.Array, make: Callable[[jax.Array], Any], default: Any) -> Any:
  """Return rows (n, ..., 1) in a kernel: computed by `make` for the wanted items (n, 1), and equal to `default` elsewhere.

  `make` is a function of an item (), which returns rows (1, ..., 1).
  """

  def make_typed(item):
    return jax.tree.map(lambda x, old: x[0].astype(old.dtype), make(item), default)

  like = jax.eval_shape(make_typed, jnp.int32(0))
  rows = jax.tree.map(lambda x, old: jnp.broadcast_to(old, (len(wanted), *x.shape)), like, default)
  return loops.stacked(_run_queue, make_typed, wanted[:, 0], rows)


def _run_queue(make: Callable[[jax.Array], Any], wanted: jax.Array, rows: Any) -> Any:
  if len(wanted) == 1:

    def put(s):
      return ~s[0], jax.tree.map(lambda x: x[None], make(jnp.int32(0)))

    return jax.lax.while_loop(lambda s: s[0], put, (wanted[0], rows))[1]
  closed, shapes = jax.make_jaxpr(lambda k: jax.tree.map(lambda x: x[None], make(k)), return_shape=True)(jnp.int32(0))
  return _queued(queue.Parts(closed), shapes, wanted[:, None], rows)


def _in_refilled_lanes(wanted: jax.Array, method: Search, default: Any) -> Any:
  """Search as `search` does: in a kernel, a lane whose search has ended takes the next row of any world."""
  item = jnp.int32(0)
  start, state = jax.make_jaxpr(lambda k: method.start(k, jnp.int32(0)), return_shape=True)(item)
  continues, advance = jax.make_jaxpr(method.continues)(state), jax.make_jaxpr(method.advance)(state)

  def end(s):
    return jax.tree.map(lambda x, old: x[None, ..., None].astype(old.dtype), method.end(s), default)

  row, shapes = jax.make_jaxpr(end, return_shape=True)(state)
  return _queued(queue.Parts(row, start, continues, advance), shapes, wanted, default)


def _queued(parts: queue.Parts, shapes: Any, wanted: jax.Array, default: Any) -> Any:
  """Return rows (n, ..., 1) of a queue of programs whose rows have the `shapes`."""
  rows = jax.tree.map(lambda x, old: jnp.broadcast_to(old, (len(wanted), *x.shape[1:])), shapes, default)
  leaves, tree = jax.tree.flatten(rows)
  return jax.tree.unflatten(tree, queue.rows(parts, wanted, leaves))


_write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=-1)


class _Packing(NamedTuple):
  """Wanted items in lanes, round by round. An item is a pair of a world, numbered pair by pair.

  Attributes:
    upto: (total,) number of wanted items up to each item.
    total: number of items, wanted or not.
    width: number of worlds.
    size: number of lanes.
    lane: (size,) numbers of the lanes.
  """

  upto: jax.Array
  total: int
  width: int
  size: int
  lane: np.ndarray

  def items(self, k: jax.Array) -> jax.Array:
    """Return the items (size,) of round k."""
    item = jnp.searchsorted(self.upto, self.size * k + 1 + self.lane)
    return jnp.minimum(item, self.total - 1).astype(jnp.int32)

  def lanes(self, item: jax.Array) -> Lanes:
    """Return the pairs and worlds of items."""
    return Lanes(*linear.materialize((jax.lax.div(item, jnp.int32(self.width)), jax.lax.rem(item, jnp.int32(self.width)))))

  def put(self, rows: Any, new: Any, k: jax.Array) -> Any:
    """Return the packed rows (..., rounds * size) with the rows (1, ..., size) of round k replaced."""
    return jax.tree.map(lambda old, x: _write(old, x[0].astype(old.dtype), self.size * k), rows, new)

  def rounds(self, number: jax.Array) -> jax.Array:
    """Return the number of rounds for a number of items."""
    return jax.lax.div(number + self.size - 1, jnp.int32(self.size))


def _sifted(packing: _Packing, make: Callable[..., Any], rows: Any, before: jax.Array, most: int) -> tuple[Any, jax.Array]:
  """Return the packed rows that differ from the default rows, and the lane of each item (total,), -1 without a lane.

  The first `before` rounds sift the wanted items, and pack the items that remain. Further rounds, up to `most`, compute the
  rows of these items.
  """
  size, total = packing.size, packing.total

  def one_round(k, state):  # rounds below 0 sift, rounds from 0 on compute rows
    rows, remaining, count = state
    item = jnp.where(k < 0, packing.items(k + before), jax.lax.dynamic_slice_in_dim(remaining, size * k, size))
    new, differs = make(packing.lanes(item), k >= 0)
    remains = differs[0] & (k < 0) & (size * (k + before) + packing.lane < packing.upto[-1])
    rank = jnp.sum(remains[:, None] & (packing.lane[:, None] < packing.lane), axis=0, dtype=jnp.int32)
    item = jnp.sum(jnp.where(remains & (rank == packing.lane[:, None]), item, 0), axis=1, dtype=jnp.int32)
    rows = packing.put(rows, new, jnp.maximum(k, 0))
    return rows, _write(remaining, item, count), count + jnp.sum(remains, dtype=jnp.int32)

  state = rows, jnp.zeros((most + 1) * size, jnp.int32), jnp.int32(0)
  rows, remaining, count = loops.repeat(one_round, lambda s: packing.rounds(s[2]), most, state, before=before)
  lane = jnp.full(total, -1, jnp.int32)
  return rows, jax.lax.fori_loop(0, count, lambda k, x: _write(x, k.astype(jnp.int32)[None], remaining[k]), lane)
