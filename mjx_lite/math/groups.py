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


def scatter_add(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """The transpose of `select.gather`: x (n, ..., W) added to the rows (size, ..., W) that an index (n, W) names, by world.

  Each row of the result is a sum over all n with zeros for what goes elsewhere, some of them at a time. As a product with the
  0/1 matrices of the worlds it would be dearer by their transpositions, and XLA's own scatter goes number by number.
  """
  if size > 2 * len(x):
    few = _to_few_rows if regions.are_several(x.shape[-1]) else _to_few
    return few(x, index, size)
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
  """`scatter_add` to rows of which most get nothing: sums over what goes to the same row, and the first of these fetched."""
  n = len(x)

  def same(k):
    return (index == index[k]).reshape(n, *(1,) * (x.ndim - 2), -1)

  parts = [range(k, min(k + _SUMMED, n)) for k in range(0, n, _SUMMED)]
  sums = vector.add(linear.materialized(vector.add(jnp.where(same(k), x[k], 0) for k in part)) for part in parts)
  row = np.arange(size, dtype=np.int32)[:, None]
  first = functools.reduce(jnp.minimum, (jnp.where(index[k] == row, k, n) for k in range(n)))
  return gather(jnp.concatenate([sums, jnp.zeros_like(x[:1])]), linear.materialized(first))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _to_few_rows(x: jax.Array, index: jax.Array, size: int) -> jax.Array:
  """The same in a tile of worlds, as a loop over the entries of x that are not zero in a world.

  Each is added to its row in all worlds where it goes to the same: one row is read and written, where to fetch rows world by
  world is a load for each number.
  """
  given = vector.fold(jnp.logical_or, (x != 0).reshape(len(x), -1, x.shape[-1]), 1)
  x, index, given = linear.materialized((x, index, given))

  def add(state):
    k, left, sums = state
    side, world = k // left.shape[1], k % left.shape[1]
    where, row = index[side], index[side, world]
    here = where == row
    total = sums[row] + jnp.where(here, x[side], 0)
    sums = jax.lax.dynamic_update_slice_in_dim(sums, total[None], row, 0)
    left = jax.lax.dynamic_update_slice_in_dim(left, (left[side] & ~here)[None], side, 0)
    return next_true(left.ravel(), k), left, sums

  start = next_true(given.ravel(), -1), given, jnp.zeros((size, *x.shape[1:]), x.dtype)
  return jax.lax.while_loop(lambda s: s[0] < given.size, add, start)[2]


@_to_few_rows.defjvp
def _to_few_rows_jvp(size: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (x, index), (dx, _) = primals, tangents
  return _to_few_rows(x, index, size), _to_few(dx, index, size)
