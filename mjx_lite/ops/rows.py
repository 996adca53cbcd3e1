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

from mjx_lite.ops import lanes, linear


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
  return _loop(lambda k, s: jax.tree.map(lambda y, x: y + x[0], s, function(_row(rows, k))), sums, number)


def each(function: Callable[[Any], Any], rows: Any, number: jax.Array | None = None) -> Any:
  """Return a function's results (n, ..., W) for all rows; in kernels the results of empty rows are zero.

  The arguments are those of `total`; with None as `number` no row is empty.
  """
  size = len(jax.tree.leaves(rows)[0])
  if not (lanes.packs() and size):
    return function(rows)
  shapes = jax.eval_shape(function, _row(rows, jnp.int32(0)))
  out = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), shapes)

  def put(k, out):
    new = function(_row(rows, k))
    return jax.tree.map(lambda y, x: jax.lax.dynamic_update_slice_in_dim(y, x, k, 0), out, new)

  return _loop(put, out, jnp.full(1, size, jnp.int32) if number is None else number)


def fold(function: Callable[[Any, Any], Any], rows: Any, number: jax.Array, state: Any) -> Any:
  """Return the state after `state = function(row, state)` for each row below a number (W,); in kernels only."""
  return _loop(lambda k, s: function(_row(rows, k), s), state, number)


def fold_where(function: Callable[[Any, Any], Any], rows: Any, mask: jax.Array, state: Any) -> Any:
  """Return the state after `state = function(row, state)` for each row at which a mask (n, W) is true; in kernels only.

  Each lane goes from one of its own rows to the next one.
  """
  number = len(mask)
  following = [jnp.full_like(mask[0], number, jnp.int32)]
  for k in range(number - 1, -1, -1):  # the first true row from each row on
    following.append(jnp.where(mask[k], k, following[-1]))
  table = jnp.stack(following[::-1])

  def advance(s):
    k, state = s
    return table[k + 1, 0], function(_row(rows, k), state)

  return jax.lax.while_loop(lambda s: s[0] < number, advance, (table[0, 0], state))[1]


def _row(rows: Any, k: jax.Array) -> Any:
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(jnp.asarray(x), k, 1, 0), rows)


def _loop(body: Callable[[jax.Array, Any], Any], state: Any, number: jax.Array) -> Any:
  def advance(s):
    return s[0] + 1, body(*s)

  return jax.lax.while_loop(lambda s: s[0] < number[0], advance, (jnp.int32(0), state))[1]
