"""Work on rows of arrays (n, ..., W), of which the last ones may be empty: a kernel's loop over rows ends at each world's last.

A row is an index along the first axis; everything else works on all rows at once. The functions here take a function of rows,
which treats each row by itself: for one row it gives what it gives for that row among others.

Tests: tests/ops/test_rows.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.ops import lanes, linear, loops


def upto(mask: jax.Array) -> jax.Array:
  """Return the number (W,) of rows up to the last one at which a mask (n, W) is true."""
  return jnp.max(jnp.where(mask, np.arange(1, len(mask) + 1, dtype=np.int32)[:, None], 0), axis=0, initial=0)


def total(function: Callable[[Any], Any], rows: Any, number: jax.Array) -> Any:
  """Return the sums over rows of a function's results (n, ..., W).

  Args:
    function: function of rows, which is zero for empty rows.
    rows: pytree of arrays (n, ..., W or 1).
    number: (W,) number of rows; all others are empty.
  """
  if not (lanes.packs() and len(jax.tree.leaves(rows)[0])):
    return jax.tree.map(linear.total, function(rows))
  shapes = jax.eval_shape(function, _row(rows, jnp.int32(0)))
  sums = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes)
  return add(lambda row, s: jax.tree.map(lambda y, x: y + x[0], s, function(row)), rows, number, sums)


def each(function: Callable[[Any], Any], rows: Any, number: jax.Array | None = None, before: Any = None) -> Any:
  """Return a function's results (n, ..., W) for all rows; in kernels the results of empty rows are those of `before`.

  The first arguments are those of `total`; with None as `number` no row is empty. `before` are results of the same rows that
  an earlier call returned, zeros if None: a loop around the call then has them in its state, and copies nothing.
  """
  size = len(jax.tree.leaves(rows)[0])
  if not (lanes.packs() and size):
    return function(rows)
  shapes = jax.eval_shape(function, _row(rows, jnp.int32(0)))
  out = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), shapes) if before is None else before
  one = lambda k: jax.tree.map(lambda x: x[0], function(_row(rows, k)))  # noqa: E731
  return loops.stacked(_put_each, one, jnp.int32(size) if number is None else number[0], out)


def each_below(function: Callable[[Any], Any], rows: Any, number: jax.Array) -> Any:
  """Return a function's results (n, ..., W) for the rows below a number (W,); nothing may read results of other rows."""
  shapes = jax.eval_shape(function, rows)
  return each(function, rows, number, jax.tree.map(lambda x: lanes.empty(x.shape, x.dtype), shapes) if lanes.packs() else None)


def _put_each(make: Callable[[jax.Array], Any], number: jax.Array, out: Any) -> Any:
  def put(k, out):
    return jax.tree.map(lambda y, x: jax.lax.dynamic_update_slice_in_dim(y, x[None], k, 0), out, make(k))

  return loops.over(put, number, out)


def update(function: Callable[[Any, Any], Any], rows: Any, number: jax.Array, state: Any) -> Any:
  """Return a state (n, ..., W) after `state = function(rows, state)`; in kernels its empty rows stay as they are.

  In kernels reverse mode has no derivative of it.
  """
  if not (lanes.packs() and len(jax.tree.leaves(rows)[0])):
    return function(rows, state)

  def put(k, s):
    new = function(_row(rows, k), _row(s, k))
    return jax.tree.map(lambda y, x: jax.lax.dynamic_update_slice_in_dim(y, x, k, 0), s, new)

  return loops.over(put, number[0], state)


def fold(function: Callable[[Any, Any], Any], rows: Any, number: jax.Array, state: Any) -> Any:
  """Return the state after `state = function(row, state)` for each row below a number (W,); in kernels only.

  Reverse mode has no derivative of it; see `add`.
  """
  return loops.over(lambda k, s: function(_row(rows, k), s), number[0], state)


def fold_where(function: Callable[[Any, Any], Any], rows: Any, mask: jax.Array, state: Any) -> Any:
  """Return the state after `state = function(row, state)` for each row at which a mask (n, W) is true; in kernels only.

  Each lane goes from one of its own rows to the next one. Reverse mode has no derivative of it.
  """
  return loops.over(lambda k, s: function(_row(rows, k), s), mask[:, 0], state)


def add(function: Callable[[Any, Any], Any], rows: Any, number: jax.Array, sums: Any) -> Any:
  """Do what `fold` does, for a function that only adds to the state; with a derivative."""
  return loops.added(lambda k, s: function(_row(rows, k), s), number[0], sums)


def _row(rows: Any, k: jax.Array) -> Any:
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), k, 1, 0), rows)
