"""Sums over groups of rows of unequal size, known to the plan (per tendon over its segments) or chosen in the trace."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear, regions
from mjx_lite.core.select import gather, next_true, rows
from mjx_lite.math import vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum

_SUMMED = 16  # rows that `scatter_add` adds in one go
_DENSE = 4096  # up to this many entries sums by a 0/1 matrix are cheaper than a padded gather


class GroupPlan(NamedTuple):
  """Rows of each group."""

  index: np.ndarray  # (ngroup, longest) row, nrow where there is none
  nrow: int
  sums: SumPlan | None  # group <- rows, of few


def plan_groups(group: np.ndarray, ngroup: int) -> GroupPlan:
  """Table of the rows of each group.

  Args:
    group: (nrow,) group of each row.
    ngroup: number of groups.
  """
  group = np.asarray(group, int)
  members = [np.flatnonzero(group == g) for g in range(ngroup)]
  index = np.full((ngroup, max((len(x) for x in members), default=0)), len(group))
  for g, x in enumerate(members):
    index[g, : len(x)] = x
  is_dense = ngroup * len(group) <= _DENSE
  return GroupPlan(index, len(group), plan_sum(group == np.arange(ngroup)[:, None]) if is_dense else None)


def group_sum(plan: GroupPlan, x: jax.Array) -> jax.Array:
  """Sum (ngroup, ..., W) of the rows of x (nrow, ..., W) in each group."""
  if plan.index.shape[1] == 1 and (plan.index < plan.nrow).all():
    return rows(x, plan.index[:, 0])
  if plan.sums is not None:
    return mask_sum(plan.sums, x)
  return jnp.sum(rows(jnp.concatenate([x, jnp.zeros_like(x[:1])]), plan.index), axis=1)


def scatter_add(sums: jax.Array, x: jax.Array, index: jax.Array) -> jax.Array:
  """The rows x (n, ..., W) added to those of sums (size, ..., W) that an index (n, W) names, by world; to none where it is -1.

  The transpose of `select.gather` where the sums are zero.
  """
  if regions.are_several(x.shape[-1]):
    return _row_by_row(sums, x, index)
  return sums + _at_once(x, index, len(sums))


def _at_once(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """What comes to `size` rows.

  Each row of the result is a sum over all n with zeros for what goes elsewhere, some of them at a time. As a product with the
  0/1 matrices of the worlds it would be dearer by their transpositions, and XLA's own scatter goes number by number.
  """
  if size > 2 * len(x):
    return _to_few(x, index, size)
  count = -(-len(x) // _SUMMED)
  each = -(-len(x) // count)
  pad = count * each - len(x)
  x = jnp.concatenate([x, jnp.zeros((pad, *x.shape[1:]), x.dtype)]) if pad else x
  index = jnp.concatenate([index, jnp.full((pad, index.shape[1]), -1, index.dtype)]) if pad else index
  row = np.arange(size, dtype=np.int32).reshape(-1, *(1,) * (x.ndim - 1))

  def some(part):
    values, where = part
    return vector.add(jnp.where(where[k] == row, values[k], 0) for k in range(each))

  sums = jax.lax.map(some, (x.reshape(count, each, *x.shape[1:]), index.reshape(count, each, -1)))
  return linear.materialized(vector.add(sums[i] for i in range(count)))


def _to_few(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """The same for rows of which most get nothing: sums over what goes to the same row, and the first of these fetched."""
  n = len(x)

  def same(k):
    return (index == index[k]).reshape(n, *(1,) * (x.ndim - 2), -1)

  parts = [range(k, min(k + _SUMMED, n)) for k in range(0, n, _SUMMED)]
  sums = vector.add(linear.materialized(vector.add(jnp.where(same(k), x[k], 0) for k in part)) for part in parts)
  row = np.arange(size, dtype=np.int32)[:, None]
  first = functools.reduce(jnp.minimum, (jnp.where(index[k] == row, k, n) for k in range(n)))
  return gather(jnp.concatenate([sums, jnp.zeros_like(x[:1])]), linear.materialized(first))


@jax.custom_jvp
def _row_by_row(sums: jax.Array, x: jax.Array, index: jax.Array) -> jax.Array:
  """In a tile of worlds: a loop over the rows of x, and over the rows that each goes to in worlds where it is not zero.

  It is added in all worlds where it goes to the same at once: one row is read and written, where to fetch rows world by world
  is a load for each number.
  """
  given = vector.fold(jnp.logical_or, (x != 0).reshape(len(x), -1, x.shape[-1]), 1) & (index >= 0)
  x, index, given = linear.materialized((x, index, given))
  some = linear.materialized(jnp.any(given, axis=1))

  def add(state):
    k, sums = state
    values, where, its_given = (jax.lax.dynamic_index_in_dim(y, k, keepdims=False) for y in (x, index, given))

    def add_to_row(state):
      world, left, sums = state
      row = where[world]
      here = where == row
      total = jax.lax.dynamic_index_in_dim(sums, row, keepdims=False) + jnp.where(here, values, 0)
      left = left & ~here
      return next_true(left, world), left, jax.lax.dynamic_update_slice_in_dim(sums, total[None], row, 0)

    start = next_true(its_given, -1), its_given, sums
    return next_true(some, k), jax.lax.while_loop(lambda s: s[0] < len(where), add_to_row, start)[2]

  return jax.lax.while_loop(lambda s: s[0] < len(x), add, (next_true(some, -1), sums))[1]


@_row_by_row.defjvp
def _row_by_row_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (sums, x, index), (dsums, dx, _) = primals, tangents
  return _row_by_row(sums, x, index), dsums + _at_once(dx, index, len(sums))
