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


class Run(NamedTuple):
  """`count` equal parts of a matrix, one below the other, each `step` columns to the right of the last; mostly one."""

  count: int
  rows: int  # of a part
  col: int  # where the columns of the first part begin
  step: int
  blocks: tuple[tuple[int, int, int, int, np.ndarray], ...]  # of a part: row range, column range, dense block


class SumPlan(NamedTuple):
  """A sparse constant matrix as runs of rows in their order, or as choices of rows."""

  shape: tuple[int, int]
  runs: tuple[Run, ...]
  chosen: np.ndarray | None = None  # (k, nrow) of a large matrix of few ones in each row: their columns, -1 for none


def plan_sum(mask: np.ndarray) -> SumPlan:
  """Cut a matrix into blocks of consecutive rows, so that few zeros are multiplied and few products are needed.

  Equal parts, such as trees that are alike, are one product.
  """
  mask = np.asarray(mask, np.float64)
  filled = mask != 0
  number = filled.sum(axis=1)
  runs, plain = [], 0  # rows from `plain` on are not in a run yet
  for first, count, rows, step, col in _alike(mask):
    last = first + count * rows
    part = Run(count, rows, col, step, _blocks(mask[first : first + rows, col : col + step]))
    in_blocks = min(-(-count // k) * PRODUCT + count * k * rows * step for k in range(1, count + 1))  # k of them in a block
    if _cost([part]) + PRODUCT < in_blocks:
      if plain < first:
        runs.append(_single(mask[plain:first]))
      runs.append(part)
      plain = last
  if 0 < plain < len(mask):
    runs.append(_single(mask[plain:]))
  whole = [_single(mask)] if len(mask) else []
  runs = runs if runs and _cost(runs) < _cost(whole) else whole
  most = 1 if sum(len(r.blocks) for r in runs) < _BLOCKS else 2
  if mask.size <= PRODUCT or number.max(initial=0) > most or (mask[filled] != 1).any():
    return SumPlan(mask.shape, tuple(runs))
  low, high = _extent(mask)
  chosen = [np.where(number > 0, low, -1), np.where(number > 1, high - 1, -1)]
  return SumPlan(mask.shape, tuple(runs), np.stack(chosen[: max(number.max(initial=0), 1)]))


def _extent(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The columns of each row from the first that is filled to behind the last; all to none for an empty row."""
  ncol, filled = mask.shape[1], mask != 0
  some = filled.any(axis=1)
  if not ncol:
    return np.zeros(len(mask), int), np.zeros(len(mask), int)
  return np.where(some, filled.argmax(axis=1), ncol), np.where(some, ncol - filled[:, ::-1].argmax(axis=1), 0)


def _single(mask: np.ndarray) -> Run:
  return Run(1, len(mask), 0, mask.shape[1], _blocks(mask))


def _cost(runs: list[Run]) -> int:
  return sum(PRODUCT + run.count * block.size for run in runs for *_, block in run.blocks)


def _alike(mask: np.ndarray) -> list[tuple[int, int, int, int, int]]:
  """Parts on the diagonal that follow each other and are equal: first row, number, rows and columns of each, first column."""
  low, high = _extent(mask)
  before = np.maximum.accumulate(np.concatenate([[0], high]))[:-1]
  after = np.minimum.accumulate(low[::-1])[::-1]
  first = np.flatnonzero((before <= after) & (high > 0))  # no row above shares a column with one from here on; none is empty
  bounds = np.append(first, len(mask))
  found = []
  k = 0
  while k < len(first):
    a, b, col = first[k], bounds[k + 1], low[first[k] : bounds[k + 1]].min()
    n, step = 1, 0
    while k + n < len(first):
      c, d = first[k + n], bounds[k + n + 1]
      to = low[c:d].min()
      step = step or int(to - col)
      width = min(step, mask.shape[1] - to)
      if d - c != b - a or to - col != n * step or high[c:d].max() > to + step:
        break
      if (mask[c:d, to : to + width] != mask[a:b, col : col + width]).any():
        break
      n += 1
    if n > 1 and col + n * step <= mask.shape[1]:
      found.append((int(a), n, int(b - a), step, int(col)))
    k += n
  return found


def _blocks(mask: np.ndarray) -> tuple[tuple[int, int, int, int, np.ndarray], ...]:
  nrow, ncol = mask.shape
  low, high = _extent(mask)
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
  if len(blocks) == 1 and 0 < mask.size - blocks[0][4].size <= PRODUCT and mask.any():
    blocks = [(0, nrow, 0, ncol, mask)]  # a slice of the operand would be a kernel of its own
  return tuple(blocks[::-1])


def dense(plan: SumPlan) -> np.ndarray:
  """The matrix itself."""
  full = np.zeros(plan.shape)
  row = 0
  for run in plan.runs:
    for k in range(run.count):
      col = run.col + k * run.step
      for a, b, lo, hi, block in run.blocks:
        full[row + a : row + b, col + lo : col + hi] = block
      row += run.rows
  return full


def transpose(plan: SumPlan) -> SumPlan:
  """The plan of the transposed matrix."""
  return plan_sum(dense(plan).T)


def absolute(plan: SumPlan) -> SumPlan:
  """The plan of the matrix without its signs; not for choices, which have none."""
  blocks = (tuple((*at, np.abs(block)) for *at, block in run.blocks) for run in plan.runs)
  return SumPlan(plan.shape, tuple(run._replace(blocks=x) for run, x in zip(plan.runs, blocks, strict=True)))


def mask_sum(plan: SumPlan, x: jax.Array) -> jax.Array:
  """Constant matrix (n, k) times x (k, ..., W): for each row the sum of the entries that it selects."""
  if plan.chosen is not None:
    return vector.add(rows_or_zero(x, index) for index in plan.chosen)
  x = linear.materialized(x)
  parts = [_product(run, x) for run in plan.runs]
  return jnp.concatenate(parts) if len(parts) > 1 else parts[0] if parts else x[:0]


def _product(run: Run, x: jax.Array) -> jax.Array:
  many = run.count > 1
  if many:
    x = x[run.col : run.col + run.count * run.step].reshape(run.count, run.step, *x.shape[1:])
  axis = int(many)
  parts = []
  for a, b, lo, hi, block in run.blocks:
    if lo == hi:
      parts.append(jnp.zeros((*x.shape[:axis], b - a, *x.shape[axis + 1 :]), x.dtype))
    else:
      part = jax.lax.slice_in_dim(x, lo, hi, axis=axis)
      parts.append(vector.combine_rows(np.broadcast_to(block, (*x.shape[:axis], *block.shape)).astype(x.dtype), part))
  out = jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]
  return out.reshape(-1, *out.shape[2:]) if many else out
