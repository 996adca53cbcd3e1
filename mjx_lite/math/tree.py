"""Sums over ancestors and descendants as products with a constant 0/1 matrix.

With spatial quantities written about one point per tree, velocities, composite inertias and bias forces are plain sums
along the tree. With the world axis last, such a sum is one matrix product. For a few worlds, additions replace the product:
the sum over a body's ancestors is the sum over its parent's ancestors, plus one row.
"""

import functools
import itertools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.compiler import operations, scalars
from mjx_lite.math import vector
from mjx_lite.ops import linear, tiles
from mjx_lite.ops.select import rows_or_zero

PRODUCT = 1024  # fixed cost of one product, as a number of entries of a block
_BLOCKS = 16  # number of blocks from which two gathers cost less
_WRITTEN = 64  # additions, or pieces of the rows, that are unrolled for one world; LLVM compiles more of them slowly
_KERNELS = 16  # additions that are unrolled for a tile of worlds: XLA makes a kernel of each
_EMPTY = 16  # entries per nonzero entry from which a few worlds add the nonzero entries one by one


class Block(NamedTuple):
  """Dense block of a matrix; `last_row` and `last_column` are exclusive."""

  first_row: int
  last_row: int
  first_column: int
  last_column: int
  matrix: np.ndarray


class Run(NamedTuple):
  """`number` equal parts of a matrix (mostly one), one below the other, each `step` columns to the right of the one above."""

  number: int
  rows: int  # number of rows of a part
  col: int  # first column of the first part
  step: int
  blocks: tuple[Block, ...]  # blocks of a part


class Additions(NamedTuple):
  """`number` equal parts of a 0/1 matrix, arranged as in `Run`, as a list of additions and the index of each row's sum."""

  number: int
  col: int
  step: int
  pairs: np.ndarray  # (k, 2) operands of each addition: a column below `step`, or `step` + number of an earlier addition
  out: np.ndarray  # (rows,) sum of each row, numbered as the operands, -1 for zeros
  mask: np.ndarray  # (rows, step) entries of a part


class SumPlan(linear.ByValue):
  """Sparse constant matrix (n, k), compared by value, with the methods to multiply rows by it."""

  def __init__(self, matrix: np.ndarray):
    self.matrix = np.asarray(matrix, np.float64)
    super().__init__(self.matrix)

  def __repr__(self):
    return f"SumPlan({len(self.matrix)} of {self.matrix.shape[1]})"

  @functools.cached_property
  def transpose(self) -> "SumPlan":
    """Plan of the transposed matrix."""
    found = SumPlan(self.matrix.T)
    found.transpose = self
    return found

  @functools.cached_property
  def runs(self) -> tuple[Run, ...]:
    """Runs of rows, in order, for dense products."""
    return _runs(self.matrix)

  @functools.cached_property
  def fetched(self) -> np.ndarray | None:
    """Columns (1 or 2, n) of the nonzero entries of each row, -1 for none; None if the matrix is small or a row has more."""
    return _fetched(self.matrix != 0)

  @functools.cached_property
  def chosen(self) -> np.ndarray | None:
    """`fetched`, if the entries are 0 or 1 and gathers cost less than products."""
    most = 1 if sum(len(r.blocks) for r in self.runs) < _BLOCKS else 2
    are_ones = np.isin(self.matrix, (0, 1)).all()
    return self.fetched if self.fetched is not None and are_ones and len(self.fetched) <= most else None

  @functools.cached_property
  def weights(self) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights of the rows (n,) and of the columns (k,) whose product is each nonzero entry, or None; one of the two is ones."""
    filled = self.matrix != 0
    column, row = (np.where(filled.any(x), self.matrix.max(x, initial=0) + self.matrix.min(x, initial=0), 1) for x in (0, 1))
    if (self.matrix == filled * column).all():
      return np.ones(len(filled)), column
    return (row, np.ones(filled.shape[1])) if (self.matrix == filled * row[:, None]).all() else None

  @functools.cached_property
  def additions(self) -> tuple[Additions, ...]:
    """Additions for a few worlds, if there are `weights`."""
    return _additions(self.matrix != 0)


def _additions(mask: np.ndarray) -> tuple[Additions, ...]:
  parts, plain = [], 0
  for first, number, nrow, step, col in [*_alike(mask), (len(mask), 1, 0, 0, 0)]:
    if plain < first:
      parts.append(_part(1, 0, mask[plain:first]))
    if nrow:
      parts.append(_part(number, col, mask[first : first + nrow, col : col + step]))
    plain = first + number * nrow
  return tuple(parts)


def _part(number: int, col: int, mask: np.ndarray) -> Additions:
  pairs, out = _sums(mask)
  return Additions(number=number, col=col, step=mask.shape[1], pairs=pairs, out=out, mask=mask)


def _sums(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Choose the pairs to add, and the sum of each row: small rows first, each made of the largest earlier sums within it."""
  wanted = [frozenset(np.flatnonzero(row).tolist()) for row in mask]
  operand = {frozenset([k]): k for k in range(mask.shape[1])}
  sums_with = [[x] for x in operand]  # sums that contain each column
  pairs = []
  for whole in sorted(set(wanted) - {frozenset(), *operand}, key=lambda x: (len(x), sorted(x))):
    have: frozenset[int] = frozenset()
    while rest := whole - have:
      more = max((x for x in sums_with[min(rest)] if x <= rest), key=len)
      both = have | more
      if both not in operand:
        pairs.append((operand[have], operand[more]))
        operand[both] = mask.shape[1] + len(pairs) - 1
        for column in both:
          sums_with[column].append(both)
      have = both
  return np.array(pairs, int).reshape(-1, 2), np.array([operand.get(x, -1) for x in wanted], int)


def plan_sum(mask: np.ndarray) -> SumPlan:
  """Return the plan of a matrix (n, k)."""
  return SumPlan(mask)


def _runs(mask: np.ndarray) -> tuple[Run, ...]:
  """Cut a matrix into blocks of consecutive rows, so that few zeros are multiplied and few products are needed.

  Equal parts, such as equal trees, share one product.
  """
  runs, plain = [], 0  # rows from `plain` on are not in a run yet
  for first, number, rows, step, col in _alike(mask):
    last = first + number * rows
    part = Run(number, rows, col, step, _blocks(mask[first : first + rows, col : col + step]))
    in_blocks = min(-(-number // k) * PRODUCT + number * k * rows * step for k in range(1, number + 1))  # k parts in a block
    if _cost([part]) + PRODUCT < in_blocks:
      if plain < first:
        runs.append(_single(mask[plain:first]))
      runs.append(part)
      plain = last
  if 0 < plain < len(mask):
    runs.append(_single(mask[plain:]))
  whole = [_single(mask)] if len(mask) else []
  return tuple(runs if runs and _cost(runs) < _cost(whole) else whole)


def _fetched(filled: np.ndarray) -> np.ndarray | None:
  number = filled.sum(axis=1)
  if filled.size <= PRODUCT or number.max(initial=0) > 2:
    return None
  low, high = _extent(filled)
  both = [np.where(number > 0, low, -1), np.where(number > 1, high - 1, -1)]
  return np.stack(both[: max(number.max(initial=0), 1)])


def _extent(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Return the first nonzero column of each row, and the column behind the last; (number of columns, 0) for an empty row."""
  ncol, filled = mask.shape[1], mask != 0
  has_entry = filled.any(axis=1)
  if not ncol:
    return np.zeros(len(mask), int), np.zeros(len(mask), int)
  return np.where(has_entry, filled.argmax(axis=1), ncol), np.where(has_entry, ncol - filled[:, ::-1].argmax(axis=1), 0)


def _single(mask: np.ndarray) -> Run:
  return Run(1, len(mask), 0, mask.shape[1], _blocks(mask))


def _cost(runs: list[Run]) -> int:
  return sum(PRODUCT + run.number * block.matrix.size for run in runs for block in run.blocks)


def _alike(mask: np.ndarray) -> list[tuple[int, int, int, int, int]]:
  """Find equal consecutive parts on the diagonal: first row, number of parts, rows and columns of a part, first column."""
  low, high = _extent(mask)
  before = np.maximum.accumulate(np.concatenate([[0], high]))[:-1]
  after = np.minimum.accumulate(low[::-1])[::-1]
  first = np.flatnonzero((before <= after) & (high > 0))  # not empty, and no row above shares a column with a row from here on
  *above, below = (_empty_above(high, int(k)) for k in (*first, len(mask)))
  if len(above) > 1:  # empty rows between parts belong to the part above them; to the part below if the last part has none
    first -= max(0, min(*above, min(above[1:]) - below))
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


def _empty_above(high: np.ndarray, row: int) -> int:
  return int(np.argmax(np.append(high[:row][::-1] > 0, True)))


def _blocks(mask: np.ndarray) -> tuple[Block, ...]:
  nrow, ncol = mask.shape
  low, high = _extent(mask)
  # least[k]: least cost of the rows before k; the last block of these rows begins at begin[k]
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
    blocks.append(Block(a, b, lo, hi, mask[a:b, lo:hi]))
    b = a
  if len(blocks) == 1 and 0 < mask.size - blocks[0].matrix.size <= PRODUCT and mask.any():
    blocks = [Block(0, nrow, 0, ncol, mask)]  # a slice of the operand would cost one more kernel
  return tuple(blocks[::-1])


def mask_sum(plan: SumPlan, x: jax.Array, y: jax.Array | None = None) -> jax.Array:
  """Multiply the constant matrix (n, k) by x (k, ..., W), or by x * y; for a 0/1 matrix each result is a sum of rows."""
  return _sum(x, plan=plan) if y is None else _sum_of_product(x, y, plan=plan)


def _mask_sum_of_product(x: jax.Array, y: jax.Array, plan: SumPlan) -> jax.Array:
  return tiles.choose(x, single=_sum_after_product, tile=_sum_with_product, batch=_sum_after_product)(x, y, plan)


def _sum_after_product(x: jax.Array, y: jax.Array, plan: SumPlan) -> jax.Array:
  return _mask_sum(x * y, plan)


def _sum_with_product(x: jax.Array, y: jax.Array, plan: SumPlan) -> jax.Array:
  """Multiply the rows where they are added, so that no array has the products."""
  if plan.weights is None or plan.fetched is not None:
    return _sum_after_product(x, y, plan)
  row, column = plan.weights
  return _weighted(row, _joined([_add(part, _weighted(column, x), y) for part in plan.additions], x))


def _mask_sum(x: jax.Array, plan: SumPlan) -> jax.Array:
  if _is_product(plan, x):
    if plan.chosen is not None:
      return _fetch(plan.matrix, plan.chosen, x)
    x = linear.materialize(x)
    return _joined([_product(run, x) for run in plan.runs], x)
  if plan.fetched is not None:
    return _fetch(plan.matrix, plan.fetched, linear.materialize(x))
  if plan.weights is None:
    return _add_each(plan.matrix, (linear.materialize(x),), 0)
  row, column = plan.weights
  x = _weighted(column, x)
  return _weighted(row, _joined([_add(part, x) for part in plan.additions], x))


def _fetch(matrix: np.ndarray, columns: np.ndarray, x: jax.Array) -> jax.Array:
  """Add the gathered and weighted rows of x; `columns` (1 or 2, n) has the columns of each row of the matrix, -1 for none."""
  row = np.arange(len(matrix))
  return vector.add(_weighted(np.where(c < 0, 1, matrix[row, c]), rows_or_zero(x, c)) for c in columns)


def _is_product(plan: SumPlan, x: Any) -> bool:
  """Return whether to use dense products for x, an array or its shape and dtype; a large batch of worlds always uses them."""
  return tiles.choose(x, single=_is_dense, tile=_is_dense, batch=lambda _: True)(plan)


def _is_dense(plan: SumPlan) -> bool:
  """Return whether neither additions nor gathers are possible, and more than a few entries are not zero."""
  dense = plan.matrix.size < _EMPTY * int(np.count_nonzero(plan.matrix))
  return plan.weights is None and plan.fetched is None and dense


def _weighted(weight: np.ndarray, x: jax.Array) -> jax.Array:
  return x if (weight == 1).all() else jnp.asarray(weight.reshape(-1, *(1,) * (x.ndim - 1)), x.dtype) * x


def _joined(parts: list[jax.Array], x: jax.Array) -> jax.Array:
  return jnp.concatenate(parts) if len(parts) > 1 else parts[0] if parts else x[:0]


def _add(a: Additions, *factors: jax.Array) -> jax.Array:
  """Add rows of one array, which is materialized first, or rows of the product of two arrays, which is not."""
  many = int(a.number > 1)
  if many:
    factors = tuple(x[a.col : a.col + a.number * a.step].reshape(a.number, a.step, *x.shape[1:]) for x in factors)
  if len(factors) == 1:
    factors = linear.materialize(factors)
  most = tiles.choose(factors[0], single=_WRITTEN, tile=_KERNELS, batch=_WRITTEN)
  out = _add_each(a.mask, factors, many) if len(a.pairs) > most else _add_pairs(a, factors, many)
  return out.reshape(-1, *out.shape[2:]) if many else out


def _add_each(matrix: np.ndarray, factors: tuple[jax.Array, ...], axis: int) -> jax.Array:
  """Add entries one by one in a loop, if there are too many to unroll; each row's sum is initialized with its first entry."""
  begin, to, operand, weight = _entries(matrix)
  x = functools.reduce(operator.mul, factors)
  sums = jnp.moveaxis(rows_or_zero(jnp.moveaxis(x, axis, 0), begin), 0, axis)
  row = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=1, axis=axis)

  def add(k, both):
    one = row(both, jnp.asarray(operand)[k])
    one = one if (weight == 1).all() else jnp.asarray(weight, x.dtype)[k] * one
    target = jnp.asarray(to)[k]
    return jax.lax.dynamic_update_slice_in_dim(both, row(both, target) + one, target, axis)

  both = jnp.concatenate([sums, x], axis) if (operand >= len(matrix)).any() else sums
  both = jax.lax.fori_loop(np.int32(0), np.int32(len(to)), add, both)
  return jax.lax.slice_in_dim(both, 0, len(matrix), axis=axis)


def _entries(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """List the additions of `_add_each`.

  Returns:
    the initial column of each row, -1 for none; then, for each of n additions: the row to add to; the operand, which is an
    earlier row or the number of rows plus a column; and the weight.
  """
  begin = np.full(len(matrix), -1)
  if not np.isin(matrix, (0, 1)).all():
    row, column = np.nonzero(matrix)
    return begin, row.astype(np.int32), (len(matrix) + column).astype(np.int32), matrix[row, column]
  found, with_column = [], [[] for _ in range(matrix.shape[1])]
  for row in np.argsort(matrix.sum(axis=1), kind="stable").tolist():
    rest = set(np.flatnonzero(matrix[row]).tolist())
    whole = frozenset(rest)
    while rest:
      column = min(rest)
      parts = (x for x in with_column[column] if x[1] <= rest and x[1] != whole)
      before, more = max(parts, key=lambda x: len(x[1]), default=(None, {column}))
      if before is not None:
        found.append((row, before))
      elif begin[row] < 0:
        begin[row] = column
      else:
        found.append((row, len(matrix) + column))
      rest -= more
    for column in whole:
      with_column[column].append((row, whole))
  to, operand = np.array(found, np.int32).reshape(-1, 2).T
  return begin, to, operand, np.ones(len(to))


def _add_pairs(a: Additions, factors: tuple[jax.Array, ...], axis: int) -> jax.Array:
  """Add the pairs, so that each sum is computed once, and join the sums of all rows."""
  x, width, sums = factors[0], a.step, []
  wanted, row = a.out, None
  if len(_pieces(wanted, width)) > _WRITTEN:  # many equal rows: gather them
    wanted, row = np.unique(wanted, return_inverse=True)
  kept, reads = set(wanted.tolist()), np.bincount(a.pairs.ravel(), minlength=width + len(a.pairs))

  def at(first, last):
    if last > width:
      return sums[first - width]
    return functools.reduce(operator.mul, (jax.lax.slice_in_dim(y, first, last, axis=axis) for y in factors))

  for k, pair in enumerate(a.pairs.tolist()):
    one = vector.add(at(i, i + 1) for i in pair)
    sums.append(one if reads[width + k] == 1 and width + k not in kept else linear.materialize(one))
  parts = []
  for first, last in _pieces(wanted, width):
    index = int(wanted[first])
    zeros = (*x.shape[:axis], last - first, *x.shape[axis + 1 :])
    parts.append(jnp.zeros(zeros, x.dtype) if index < 0 else at(index, index + last - first))
  out = jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]
  return out if row is None else jnp.take(out, row, axis, mode="clip")


def _pieces(index: np.ndarray, width: int) -> list[tuple[int, int]]:
  """Return the bounds of runs of consecutive indices, or of -1; a sum (index >= width) is a run by itself."""
  cuts = np.union1d(linear.cuts_of(index), [k for i in np.flatnonzero(index >= width) for k in (i, i + 1)])
  bounds = np.unique(np.concatenate([[0], cuts, [len(index)]])).astype(int).tolist()
  return list(itertools.pairwise(bounds))


def _product(run: Run, x: jax.Array) -> jax.Array:
  many = run.number > 1
  if many:
    x = x[run.col : run.col + run.number * run.step].reshape(run.number, run.step, *x.shape[1:])
  axis = int(many)
  parts = []
  for block in run.blocks:
    lo, hi = block.first_column, block.last_column
    if lo == hi:
      parts.append(jnp.zeros((*x.shape[:axis], len(block.matrix), *x.shape[axis + 1 :]), x.dtype))
      continue
    part = jax.lax.slice_in_dim(x, lo, hi, axis=axis)
    matrix = np.broadcast_to(block.matrix, (*x.shape[:axis], *block.matrix.shape))
    parts.append(vector.combine_rows(matrix.astype(x.dtype), part))
  out = jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]
  return out.reshape(-1, *out.shape[2:]) if many else out


def _may_sum(shape: tuple[int, ...], plan: SumPlan) -> bool:
  """Return whether the sum calls no matrix library, so that a region may contain it."""
  if not _is_product(plan, jax.ShapeDtypeStruct(shape, jnp.float32)) or plan.chosen is not None:
    return True
  blocks = [block for run in plan.runs for block in run.blocks if block.first_column < block.last_column]
  return all(linear.is_summed(block.matrix.shape, (block.matrix.shape[1], *shape[1:])) for block in blocks)


def _scalar_sum(p, eqn, x):
  return _scalar_mask_sum(p, eqn.params["plan"], x, scalars.kind_of(eqn.outvars[0].aval.dtype))


def _scalar_sum_of_product(p, eqn, a, b):
  kind = scalars.kind_of(eqn.outvars[0].aval.dtype)
  return _scalar_mask_sum(p, eqn.params["plan"], p.map("mul", kind, a, b), kind)


def _scalar_mask_sum(p, plan, x, kind):
  number = operations.TYPES[kind]
  zeros = p.constant(np.zeros(x.shape[1:], number))
  if plan.weights is None:
    rows = [[p.map("mul", kind, p.constant(number(row[k])), x[k]) for k in np.flatnonzero(row)] for row in plan.matrix]
    return np.stack([p.sum(r, kind) if r else zeros for r in rows]) if rows else x[:0]
  row, column = (w.reshape(-1, *(1,) * (x.ndim - 1)).astype(number) for w in plan.weights)
  x = p.map("mul", kind, p.constant(column), x)
  if plan.fetched is not None:
    out = p.sum([scalars.take_rows(p, x, index, kind) for index in plan.fetched], kind)
  else:
    out = np.concatenate([_scalar_added(p, part, x, kind) for part in plan.additions]) if plan.additions else x[:0]
  return p.map("mul", kind, p.constant(row), out)


def _scalar_added(p, a, x, kind):
  parts = []
  for k in range(a.number):
    rows = list(x[a.col + k * a.step : a.col + (k + 1) * a.step] if a.step else x)
    for i, j in a.pairs.tolist():
      rows.append(p.map("add", kind, rows[i], rows[j]))
    parts += [rows[i] if i >= 0 else p.constant(np.zeros(x.shape[1:], operations.TYPES[kind])) for i in a.out.tolist()]
  return np.stack(parts) if parts else x[:0]


_RULES: dict[str, Any] = dict(
  shape=lambda shape, plan: (len(plan.matrix), *shape[1:]),
  transpose=lambda t, plan: mask_sum(plan.transpose, t),
  region=_may_sum,
)
_sum = linear.function("mjx_sum", _mask_sum, scalar=_scalar_sum, **_RULES)
_sum_of_product = linear.function(
  "mjx_sum_of_product", _mask_sum_of_product, scalar=_scalar_sum_of_product, of_product=True, **_RULES
)
