"""Sums over ancestors and descendants as products with a constant 0/1 matrix.

With spatial quantities written about one point per tree, velocities, composite inertias and bias forces are plain sums
along the tree; with the world axis last such a sum is one matrix product.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear
from mjx_lite.core.select import rows_or_zero
from mjx_lite.math import vector

PRODUCT = 1024  # entries of a block that cost about as much as a product of its own
_BLOCKS = 16  # from which on two gathers cost less


class SumPlan(NamedTuple):
  """A sparse constant matrix as blocks of consecutive rows: (row range, column range, dense block)."""

  shape: tuple[int, int]
  blocks: tuple[tuple[int, int, int, int, np.ndarray], ...]
  chosen: np.ndarray | None = None  # (k, nrow) of a large matrix of few ones in each row: their columns, -1 for none


def plan_sum(mask: np.ndarray) -> SumPlan:
  """Cut a matrix into blocks of consecutive rows, so that few zeros are multiplied and few products are needed."""
  mask = np.asarray(mask, np.float64)
  nrow, ncol = mask.shape
  filled = mask != 0
  some = filled.any(axis=1)
  low = np.where(some, filled.argmax(axis=1), ncol) if ncol else np.zeros(nrow, int)
  high = np.where(some, ncol - filled[:, ::-1].argmax(axis=1), 0) if ncol else np.zeros(nrow, int)
  # least[k]: least cost of the rows before k; the block that ends there begins at begin[k]
  least, begin = np.zeros(nrow + 1), np.zeros(nrow + 1, int)
  for k in range(1, nrow + 1):
    lo, hi = (f.accumulate(x[:k][::-1])[::-1] for f, x in ((np.minimum, low), (np.maximum, high)))
    cost = least[:k] + PRODUCT + np.arange(k, 0, -1) * np.maximum(hi - lo, 0)
    begin[k] = cost.argmin()
    least[k] = cost[begin[k]]
  blocks = []
  b = nrow
  while b:
    a = int(begin[b])
    lo, hi = int(low[a:b].min()), int(high[a:b].max())
    lo, hi = (lo, hi) if hi > lo else (0, 0)
    blocks.append((a, b, lo, hi, mask[a:b, lo:hi]))
    b = a
  if len(blocks) == 1:
    blocks = [(0, nrow, 0, ncol, mask)]  # a slice of the operand would be a kernel of its own
  number = filled.sum(axis=1)
  most = 1 if len(blocks) < _BLOCKS else 2
  if mask.size <= PRODUCT or number.max(initial=0) > most or (mask[filled] != 1).any():
    return SumPlan((nrow, ncol), tuple(blocks[::-1]))
  chosen = [np.where(some, low, -1), np.where(number > 1, high - 1, -1)]
  return SumPlan((nrow, ncol), tuple(blocks[::-1]), np.stack(chosen[: max(number.max(initial=0), 1)]))


def dense(plan: SumPlan) -> np.ndarray:
  """The matrix itself."""
  full = np.zeros(plan.shape)
  for a, b, lo, hi, block in plan.blocks:
    full[a:b, lo:hi] = block
  return full


def transpose(plan: SumPlan) -> SumPlan:
  """The plan of the transposed matrix."""
  return plan_sum(dense(plan).T)


def mask_sum(plan: SumPlan, x: jax.Array) -> jax.Array:
  """Constant matrix (n, k) times x (k, ..., W): for each row the sum of the entries that it selects."""
  if plan.chosen is not None:
    return vector.add(rows_or_zero(x, index) for index in plan.chosen)
  x = linear.materialized(x)
  parts = []
  for a, b, lo, hi, block in plan.blocks:
    if lo == hi:
      parts.append(jnp.zeros((b - a, *x.shape[1:]), x.dtype))
    else:
      parts.append(vector.combine_rows(block.astype(x.dtype), x[lo:hi]))
  return jnp.concatenate(parts) if len(parts) > 1 else parts[0] if parts else x[:0]
