"""Sums over groups of rows of unequal size; the groups are constant (the segments of each tendon) or traced indices."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.ops import linear, tiles
from mjx_lite.ops.select import gather, next_true, rows

_SUMMED = 16  # rows that `scatter_add` adds in one expression
_DENSE = 4096  # up to this many entries, a product with a 0/1 matrix is cheaper than a padded gather


class GroupPlan(NamedTuple):
  """Rows of each group."""

  members: np.ndarray  # (ngroup, longest) rows of each group, padded with nrow
  nrow: int
  sums: SumPlan | None  # 0/1 matrix (ngroup, nrow), if it is small


def plan_groups(group: np.ndarray, ngroup: int) -> GroupPlan:
  """Build the table of the rows of each group.

  Args:
    group: (nrow,) group of each row.
    ngroup: number of groups.
  """
  group = np.asarray(group, int)
  rows_of_group = [np.flatnonzero(group == g) for g in range(ngroup)]
  members = np.full((ngroup, max((len(x) for x in rows_of_group), default=0)), len(group))
  for g, x in enumerate(rows_of_group):
    members[g, : len(x)] = x
  is_dense = ngroup * len(group) <= _DENSE
  return GroupPlan(members, len(group), plan_sum(group == np.arange(ngroup)[:, None]) if is_dense else None)


def group_sum(plan: GroupPlan, x: jax.Array) -> jax.Array:
  """Return the sum (ngroup, ..., W) of the rows of x (nrow, ..., W) in each group."""
  if plan.members.shape[1] == 1 and (plan.members < plan.nrow).all():
    return rows(x, plan.members[:, 0])
  if plan.sums is not None:
    return mask_sum(plan.sums, x)
  return jnp.sum(rows(jnp.concatenate([x, jnp.zeros_like(x[:1])]), plan.members), axis=1)


def scatter_add(sums: jax.Array, x: jax.Array, index: jax.Array) -> jax.Array:
  """Add the rows x (n, ..., W) to the rows `index` (n, W) of sums (size, ..., W), per world; a row with index -1 is dropped.

  With zero `sums` this function is the transpose of `select.gather`.
  """
  add = tiles.choose(x, single=_all_rows_at_once, tile=_row_by_row, batch=_all_rows_at_once)
  return add(sums, x, index)


def _all_rows_at_once(sums: jax.Array, x: jax.Array, index: jax.Array) -> jax.Array:
  return sums + _at_once(x, index, len(sums))


def _at_once(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """Return the `size` sums of the rows x (n, ..., W) with equal index (n, W).

  Each row of the result is a masked sum over all n rows, at most `_SUMMED` rows at a time. A product with one 0/1 matrix per
  world would add the cost of transpositions, and XLA's own scatter is not vectorized.
  """
  if size > 2 * len(x):
    return _first_of_equal(x, index, size)
  count = -(-len(x) // _SUMMED)
  each = -(-len(x) // count)
  pad = count * each - len(x)
  x = jnp.concatenate([x, jnp.zeros((pad, *x.shape[1:]), x.dtype)]) if pad else x
  index = jnp.concatenate([index, jnp.full((pad, index.shape[1]), -1, index.dtype)]) if pad else index
  row = np.arange(size, dtype=np.int32).reshape(-1, *(1,) * (x.ndim - 1))

  def sum_part(part):
    values, target = part
    return vector.add(jnp.where(target[k] == row, values[k], 0) for k in range(each))

  sums = jax.lax.map(sum_part, (x.reshape(count, each, *x.shape[1:]), index.reshape(count, each, -1)))
  return linear.materialize(vector.add(sums[i] for i in range(count)))


def _first_of_equal(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """Do the same as `_at_once` if most results are zero: sum the rows with equal index, then gather the first sum of each."""
  n = len(x)

  def same(k):
    return (index == index[k]).reshape(n, *(1,) * (x.ndim - 2), -1)

  parts = [range(k, min(k + _SUMMED, n)) for k in range(0, n, _SUMMED)]
  sums = vector.add(linear.materialize(vector.add(jnp.where(same(k), x[k], 0) for k in part)) for part in parts)
  row = np.arange(size, dtype=np.int32)[:, None]
  first = functools.reduce(jnp.minimum, (jnp.where(index[k] == row, k, n) for k in range(n)))
  return gather(jnp.concatenate([sums, jnp.zeros_like(x[:1])]), linear.materialize(first))


@jax.custom_jvp
def _row_by_row(sums: jax.Array, x: jax.Array, index: jax.Array) -> jax.Array:
  """Add in a tile of worlds: loop over the rows of x, and over the distinct indices of each row where its values are not zero.

  All worlds with the same index are updated at once, by one read and one write of a row. A gather per world would load each
  number by itself.
  """
  adds = vector.fold(jnp.logical_or, (x != 0).reshape(len(x), -1, x.shape[-1]), 1) & (index >= 0)
  x, index, adds = linear.materialize((x, index, adds))
  any_adds = linear.materialize(jnp.any(adds, axis=1))

  def add(state):
    k, sums = state
    values, target, adds_k = (jax.lax.dynamic_index_in_dim(y, k, keepdims=False) for y in (x, index, adds))

    def add_to_row(state):
      world, remaining, sums = state
      row = target[world]
      here = target == row
      total = jax.lax.dynamic_index_in_dim(sums, row, keepdims=False) + jnp.where(here, values, 0)
      remaining = remaining & ~here
      return next_true(remaining, world), remaining, jax.lax.dynamic_update_slice_in_dim(sums, total[None], row, 0)

    start = next_true(adds_k, -1), adds_k, sums
    return next_true(any_adds, k), jax.lax.while_loop(lambda s: s[0] < len(target), add_to_row, start)[2]

  return jax.lax.while_loop(lambda s: s[0] < len(x), add, (next_true(any_adds, -1), sums))[1]


@_row_by_row.defjvp
def _row_by_row_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (sums, x, index), (dsums, dx, _) = primals, tangents
  return _row_by_row(sums, x, index), dsums + _at_once(dx, index, len(sums))
