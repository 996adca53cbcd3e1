"""Scalar rules of indexing by numbers of the program, and of sorting.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_ptx.py.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mjx_lite.compiler.operations import FLOATS, WIDE
from mjx_lite.compiler.scalars import MAX_COMPARED, Program, Unsupported, array, kind_of, rule

_MAX_SORTED = 512  # numbers


def _values(p, x):
  """Return the values of constants; None if a number is not a constant."""
  found = [p.value(k) for k in x.ravel().tolist()]
  return None if None in found else np.array(found, np.int64).reshape(x.shape)


def _integer(p: Program, index: int) -> str:
  """Return the kind in which an index is compared with positions."""
  return "l" if p.kind[index] in WIDE else "i"


def _clipped(p: Program, index: int, most: int) -> int:
  """Return an index as int32, clipped to the positions from 0 to `most`."""
  kind = _integer(p, index)
  inside = p.make("min", kind, p.make("max", kind, index, p.const(0, kind)), p.const(most, kind))
  return inside if kind == "i" else p.make("convert", "i", inside)


def _fetch(p: Program, table: np.ndarray, index: int, kind: str) -> int:
  """Return table[index], for a table of numbers (n,) and an index that is a number of the program."""
  if (table == table[0]).all():
    return int(table[0])
  if len(table) == 2:
    return p.make("select", kind, p.make("le", "p", index, p.const(0, _integer(p, index))), *table.tolist())
  index = _clipped(p, index, len(table) - 1)
  known = p.value(index)
  if known is not None:
    return int(table[known])
  return p.make("fetch", kind, p.table(table, kind), index)


def fetch_row(p: Program, x: np.ndarray, index: int, kind: str) -> np.ndarray:
  """Return x[index] along the first axis, for an index that is a number of the program, within the range."""
  return array([_fetch(p, line, index, kind) for line in x.reshape(len(x), -1).T], x.shape[1:])


def put_row(p: Program, x: np.ndarray, index: int, new: np.ndarray, kind: str) -> np.ndarray:
  """Return x with x[index] replaced."""
  return _put(p, kind, x, index, new[None], 0)


@rule("gather")
def _gather(p, eqn, x, index):
  d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
  kind, mode = kind_of(eqn.outvars[0].aval.dtype), str(eqn.params["mode"])
  kept = [k for k in range(x.ndim) if k not in d.collapsed_slice_dims and k not in d.operand_batching_dims]
  batch = [k for k in range(len(eqn.outvars[0].aval.shape)) if k not in d.offset_dims]
  known, out = _values(p, index), np.empty(eqn.outvars[0].aval.shape, np.int64)
  is_filled, value = "FILL" in mode.upper(), eqn.params["fill_value"]
  filling = p.const((np.nan if kind in FLOATS else 0) if value is None else value, kind)
  for at in np.ndindex(*index.shape[:-1]):
    start, unknown = [0] * x.ndim, []  # unknown: (dimension, number) of each index that is not constant
    for k, dim in enumerate(d.start_index_map):
      i = int(known[(*at, k)]) if known is not None else p.value(int(index[(*at, k)]))
      if i is None:
        unknown.append((dim, int(index[(*at, k)])))
      else:
        start[dim] = i
    for dim, batch_dim in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
      start[dim] = at[batch_dim]
    position: list[Any] = [slice(None)] * out.ndim
    for k, i in zip(batch, at, strict=True):
      position[k] = i
    limit = [n - s for n, s in zip(x.shape, sizes, strict=True)]
    is_out = any(not 0 <= s <= most for s, most in zip(start, limit, strict=True))
    if is_out and is_filled:
      out[tuple(position)] = filling
      continue
    start = [min(max(s, 0), most) for s, most in zip(start, limit, strict=True)]
    if any(sizes[dim] != 1 for dim, _ in unknown) or len(unknown) > 1:
      raise Unsupported("operation gather has a rule only for one computed index, which reads single rows")
    part = x[tuple(slice(None) if unknown and k == unknown[0][0] else slice(s, s + n)
                   for k, (s, n) in enumerate(zip(start, sizes, strict=True)))]  # fmt: skip
    if unknown:
      dim, i = unknown[0]
      lines = np.moveaxis(part, dim, -1)
      part = array([_fetch(p, line, i, kind) for line in lines.reshape(-1, lines.shape[-1])], (*lines.shape[:-1], 1))
      part = np.moveaxis(part, -1, dim)
      if is_filled:
        own = _integer(p, i)
        inside = [p.make("ge", "p", i, p.const(0, own)), p.make("le", "p", i, p.const(limit[dim], own))]
        part = p.map("select", kind, array([p.make("and", "p", *inside)], ()), part, array([filling], ()))
    out[tuple(position)] = part.reshape([part.shape[k] for k in kept])
  return out


def _starts(p, starts, shape, sizes):
  """Return where a slice begins: the known starts (0 for others), and (axis, number) of each start that is not known."""
  found, unknown = [], []
  for k, (s, n, m) in enumerate(zip(starts, shape, sizes, strict=True)):
    i = 0 if n == m else p.value(int(s.item()))
    if i is None:
      unknown.append((k, int(s.item())))
    found.append(0 if i is None else min(max(i, 0), n - m))
  return found, unknown


def _merged(p: Program, x: np.ndarray, unknown: Sequence[tuple[int, int]], sizes: Sequence[int]) -> tuple[np.ndarray, Any]:
  """Merge the axes along which a slice has a computed start into one axis, which is the first.

  Returns:
    the merged array, and pairs of the index of each row of the slice there and its position along these axes.
  """
  axes = [k for k, _ in unknown]
  front = np.moveaxis(x, axes, range(len(axes)))
  first = [_clipped(p, i, x.shape[k] - sizes[k]) for k, i in unknown]

  def index(at):
    merged = p.const(0, "i")
    for k, i, offset in zip(axes, first, at, strict=True):
      along = p.make("add", "i", i, p.const(offset, "i"))
      merged = p.make("add", "i", p.make("mul", "i", merged, p.const(x.shape[k], "i")), along)
    return merged

  rows = [(index(at), at) for at in np.ndindex(*(sizes[k] for k in axes))]
  return front.reshape(math.prod(front.shape[: len(axes)]), *front.shape[len(axes) :]), rows


@rule("dynamic_slice")
def _dynamic_slice(p, eqn, x, *starts):
  sizes, kind = eqn.params["slice_sizes"], kind_of(eqn.outvars[0].aval.dtype)
  found, unknown = _starts(p, starts, x.shape, sizes)
  axes = [k for k, _ in unknown]
  part = x[tuple(slice(None) if k in axes else slice(a, a + n) for k, (a, n) in enumerate(zip(found, sizes, strict=True)))]
  if not unknown:
    return part
  lines, rows = _merged(p, part, unknown, sizes)
  out = np.array([fetch_row(p, lines, i, kind) for i, _ in rows], np.int64)
  return np.moveaxis(out.reshape(*(sizes[k] for k in axes), *lines.shape[1:]), range(len(axes)), axes)


@rule("dynamic_update_slice")
def _dynamic_update_slice(p, eqn, x, new, *starts):
  found, unknown = _starts(p, starts, x.shape, new.shape)
  out, kind, axes = x.copy(), kind_of(eqn.outvars[0].aval.dtype), [k for k, _ in unknown]
  position = tuple(slice(None) if k in axes else slice(a, a + n) for k, (a, n) in enumerate(zip(found, new.shape, strict=True)))
  if not unknown:
    out[position] = new
    return out
  part = x[position]
  lines, rows = _merged(p, part, unknown, new.shape)
  news = np.moveaxis(new, axes, range(len(axes)))
  for i, at in rows:
    lines = _put(p, kind, lines, i, news[at][None], 0)
  out[position] = np.moveaxis(lines.reshape(np.moveaxis(part, axes, range(len(axes))).shape), range(len(axes)), axes)
  return out


def _put(p: Program, kind: str, x: np.ndarray, index: int, new: np.ndarray, axis: int) -> np.ndarray:
  """Return x with its row at an index along an axis replaced by `new`, which has one row; an index without a row is none."""
  rows, (row,) = np.moveaxis(x, axis, 0), np.moveaxis(new, axis, 0)
  out = [[p.put(kind, a, index, b, k) for a, b in zip(old.ravel().tolist(), row.ravel().tolist(), strict=True)]
         for k, old in enumerate(rows)]  # fmt: skip
  return np.moveaxis(np.array(out, np.int64).reshape(rows.shape), 0, axis)


def _put_sum(p: Program, kind: str, x: np.ndarray, index: int, new: np.ndarray, axis: int) -> np.ndarray:
  """Return x with `new` added to its row at an index along an axis, as `_put` replaces the row."""
  lines = np.moveaxis(x, axis, -1)
  now = array([_fetch(p, line, index, kind) for line in lines.reshape(-1, lines.shape[-1])], (*lines.shape[:-1], 1))
  return _put(p, kind, x, index, p.map("add", kind, np.moveaxis(now, -1, axis), new), axis)


@rule("scatter", "scatter_add", "scatter-add")
def _scatter(p, eqn, x, index, new):
  d, known, name = eqn.params["dimension_numbers"], _values(p, index), eqn.primitive.name
  is_clipped = "CLIP" in str(eqn.params["mode"]).upper()
  kind, out = kind_of(eqn.outvars[0].aval.dtype), x.copy()
  window = [k for k in range(x.ndim) if k not in d.inserted_window_dims and k not in d.operand_batching_dims]
  batch = [k for k in range(new.ndim) if k not in d.update_window_dims]
  sizes = [1] * x.ndim
  for k, u in zip(window, d.update_window_dims, strict=True):
    sizes[k] = new.shape[u]
  for at in np.ndindex(*index.shape[:-1]):
    start, unknown = [0] * x.ndim, []  # unknown: (dimension, number) of each index that is not constant
    for k, dim in enumerate(d.scatter_dims_to_operand_dims):
      i = int(known[(*at, k)]) if known is not None else p.value(int(index[(*at, k)]))
      if i is None:
        unknown.append((dim, int(index[(*at, k)])))
      else:
        start[dim] = i
    for dim, batch_dim in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True):
      start[dim] = at[batch_dim]
    if any(not 0 <= s <= n - m for s, n, m in zip(start, x.shape, sizes, strict=True)):
      if is_clipped:
        raise Unsupported(f"operation {name} has no rule for constant indices that are clipped")
      continue
    part: list[Any] = [slice(None)] * new.ndim
    for k, i in zip(batch, at, strict=True):
      part[k] = i
    position = [slice(s, s + n) for s, n in zip(start, sizes, strict=True)]
    update = new[tuple(part)].reshape(sizes)
    if not unknown:
      out[tuple(position)] = update if name == "scatter" else p.map("add", kind, out[tuple(position)], update)
      continue
    (axis, i), *more = unknown
    if more:
      raise Unsupported(f"operation {name} has a rule only for one computed index")
    position[axis], last = slice(None), x.shape[axis] - sizes[axis]
    rows = out[tuple(position)]
    if p.kind[i] != "i":  # of 64 bits
      inside = p.make("max", p.kind[i], p.make("min", p.kind[i], i, p.const(last + 1, p.kind[i])), p.const(-1, p.kind[i]))
      i = p.make("convert", "i", inside)
    i = _clipped(p, i, last) if is_clipped else i
    if sizes[axis] > 1 and not is_clipped:  # no row of a window that is not inside is written
      is_inside = p.make("and", "p", p.make("ge", "p", i, p.const(0, "i")), p.make("le", "p", i, p.const(last, "i")))
      i = p.make("select", "i", is_inside, i, p.const(x.shape[axis], "i"))
    for k in range(sizes[axis]):
      row = p.make("add", "i", i, p.const(k, "i"))
      rows = (_put if name == "scatter" else _put_sum)(p, kind, rows, row, update.take([k], axis), axis)
    out[tuple(position)] = rows
  return out


@rule("add", "add_any")
def _add(p, eqn, x, y):
  """Add arrays; of an array that is zero but for rows at computed indices, as derivatives of indexing are, only these rows."""
  kind = kind_of(eqn.outvars[0].aval.dtype)
  if x.shape == y.shape and x.size > MAX_COMPARED:
    parts = [_rows_of_zeros(p, z) for z in (x, y)]
    for dense, rows, before in ((x, parts[1], parts[0]), (y, parts[0], parts[1])):
      if rows is not None and not all(p.value(k) == 0 for k in dense.ravel().tolist()):
        out = dense
        for axis, index, new in rows:
          out = _put_sum(p, kind, out, index, new, axis)
        if before is not None:
          p.rows_of_zeros[out.tobytes(), out.shape] = [*before, *rows]
        return out
  return p.map("add", kind, x, y)


def _rows_of_zeros(p: Program, x: np.ndarray) -> list[tuple[int, int, np.ndarray]] | None:
  """Return axis, index and numbers of each row that was added to zeros to make an array; None if it was made otherwise."""
  known = p.rows_of_zeros.get((x.tobytes(), x.shape))
  numbers = x.ravel().tolist()
  puts = [k for k in numbers if p.op[k] == "put"]
  if known is not None or not puts:
    return known
  old, index, _ = p.args[puts[0]]
  if p.value(old) != 0 or not all(p.args[k][:2] == (old, index) if p.op[k] == "put" else k == old for k in numbers):
    return None
  position = array([p.payload[k] if p.op[k] == "put" else -1 for k in numbers], x.shape)
  new = array([p.args[k][2] if p.op[k] == "put" else old for k in numbers], x.shape)
  for axis in range(x.ndim):
    row, along = new.take([0], axis), np.moveaxis(position, axis, -1)
    is_put = np.moveaxis(new != old, axis, -1)
    if (new == row).all() and (along == np.where(is_put, np.arange(x.shape[axis]), -1)).all():
      return [(axis, index, row)]
  return None


@rule("sort")
def _sort(p, eqn, *xs):
  axis, nkeys = eqn.params["dimension"], eqn.params["num_keys"]
  kinds = [kind_of(v.aval.dtype) for v in eqn.outvars]
  rows = [np.moveaxis(x, axis, 0) for x in xs]
  if eqn.params["is_stable"]:
    rows, kinds, nkeys = (
      [*rows[:nkeys], _positions(p, rows[0]), *rows[nkeys:]],
      [*kinds[:nkeys], "i", *kinds[nkeys:]],
      nkeys + 1,
    )
  out = _exchanged(p, rows, kinds, nkeys)
  if eqn.params["is_stable"]:
    del out[nkeys - 1]
  return [np.moveaxis(x, 0, axis) for x in out]


@rule("top_k")
def _top_k(p, eqn, x):
  k, axis, kind = eqn.params["k"], eqn.params.get("axis", -1), kind_of(eqn.outvars[0].aval.dtype)
  rows = np.moveaxis(x, axis, 0)
  lowest, at = _exchanged(p, [p.map("neg", kind, rows), _positions(p, rows)], [kind, "i"], 2)
  return [np.moveaxis(y[:k], 0, axis) for y in (p.map("neg", kind, lowest), at)]


def _positions(p: Program, x: np.ndarray) -> np.ndarray:
  """Return the position of each number along the first axis."""
  return np.stack([np.full(x.shape[1:], p.const(k, "i"), np.int64) for k in range(len(x))]) if len(x) else x


def _exchanged(p: Program, arrays: Sequence[np.ndarray], kinds: Sequence[str], nkeys: int) -> list[np.ndarray]:
  """Sort rows along the first axis by a network of exchanges. It is stable only if the position is the last key."""
  n = len(arrays[0])
  if n > _MAX_SORTED:
    raise Unsupported(f"operations that sort have a rule only for at most {_MAX_SORTED} numbers, not {n}")
  rows = [list(x) for x in arrays]
  for k, j in _exchanges(n):
    pairs = [(r[k], r[j]) for r in rows]
    swap = p.map("lt", "p", *pairs[nkeys - 1][::-1])
    for low, high in pairs[: nkeys - 1][::-1]:
      same = p.map("eq", "p", low, high)
      swap = p.map("or", "p", p.map("lt", "p", high, low), p.map("and", "p", same, swap))
    for r, kind, (low, high) in zip(rows, kinds, pairs, strict=True):
      r[k], r[j] = p.map("select", kind, swap, high, low), p.map("select", kind, swap, low, high)
  return [np.stack(r) if n else x for r, x in zip(rows, arrays, strict=True)]


def _exchanges(n: int) -> Iterator[tuple[int, int]]:
  """Yield the pairs of positions that Batcher's network compares and exchanges to sort n numbers.

  Source: Knuth, The Art of Computer Programming, volume 3, section 5.2.2, algorithm M.
  """
  most = 1 << max(n - 1, 0).bit_length() >> 1
  p = most
  while p:
    q, r, d = most, 0, p
    while True:
      yield from ((i, i + d) for i in range(n - d) if i & p == r)
      if q == p:
        break
      d, q, r = q - p, q // 2, p
    p //= 2
