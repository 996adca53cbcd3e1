"""Scalar rules of indexing by numbers of the program, and of sorting.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_ptx.py.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mjx_lite.compiler.scalars import FLOATS, WIDE, Program, Unsupported, array, kind_of, rule

_MAX_CHOICES = 64  # positions for a write at a computed index, which is compared with each position
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
  numbers = tuple(table.tolist())
  if len(set(numbers)) == 1:
    return numbers[0]
  if len(numbers) == 2:
    return p.make("select", kind, p.make("le", "p", index, p.const(0, _integer(p, index))), *numbers)
  index = _clipped(p, index, len(numbers) - 1)
  known = p.value(index)
  if known is not None:
    return numbers[known]
  return p.make("fetch", kind, p.table(numbers, kind), index)


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


@rule("dynamic_slice")
def _dynamic_slice(p, eqn, x, *starts):
  sizes = eqn.params["slice_sizes"]
  found, unknown = _starts(p, starts, x.shape, sizes)
  if len(unknown) > 1:
    raise Unsupported("operation dynamic_slice has a rule only for one computed start")
  if not unknown:
    return x[tuple(slice(a, a + n) for a, n in zip(found, sizes, strict=True))]
  axis, first = unknown[0]
  kind, n = kind_of(eqn.outvars[0].aval.dtype), sizes[axis]
  part = x[tuple(slice(None) if k == axis else slice(a, a + m) for k, (a, m) in enumerate(zip(found, sizes, strict=True)))]
  lines = np.moveaxis(part, axis, -1)
  first = _clipped(p, first, x.shape[axis] - n)
  rows = [[_fetch(p, line[k : k + x.shape[axis] - n + 1], first, kind) for k in range(n)]
          for line in lines.reshape(-1, lines.shape[-1])]  # fmt: skip
  return np.moveaxis(np.array(rows, np.int64).reshape(*lines.shape[:-1], n), -1, axis)


@rule("dynamic_update_slice")
def _dynamic_update_slice(p, eqn, x, new, *starts):
  found, unknown = _starts(p, starts, x.shape, new.shape)
  out = x.copy()
  if not unknown:
    out[tuple(slice(a, a + n) for a, n in zip(found, new.shape, strict=True))] = new
    return out
  if len(unknown) > 1 or new.shape[unknown[0][0]] != 1 or x.shape[unknown[0][0]] > _MAX_CHOICES:
    raise Unsupported(
      f"operation dynamic_update_slice has a rule only for one row at a computed index, among at most {_MAX_CHOICES}"
    )
  axis, index = unknown[0]
  position = tuple(slice(None) if k == axis else slice(a, a + n) for k, (a, n) in enumerate(zip(found, new.shape, strict=True)))
  index = _clipped(p, index, x.shape[axis] - 1)
  out[position] = _put(p, kind_of(eqn.outvars[0].aval.dtype), x[position], index, new, axis)
  return out


def _put(p: Program, kind: str, x: np.ndarray, index: int, new: np.ndarray, axis: int) -> np.ndarray:
  """Return x with the row at an index along an axis replaced by that of `new`, which has one row or as many; none if beyond."""
  rows = [p.make("eq", "p", index, p.const(k, p.kind[index])) for k in range(x.shape[axis])]
  return p.map("select", kind, array(rows, [len(rows) if k == axis else 1 for k in range(x.ndim)]), new, x)


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
    if len(unknown) > 1 or any(sizes[dim] != 1 for dim, _ in unknown):
      raise Unsupported(f"operation {name} has a rule only for one computed index, which writes single rows")
    position = [slice(s, s + n) for s, n in zip(start, sizes, strict=True)]
    for dim, _ in unknown:
      position[dim] = slice(None)
    before, after = out[tuple(position)], new[tuple(part)].reshape(sizes)
    after = after if name == "scatter" else p.map("add", kind, before, after)
    for dim, i in unknown:
      after = _put(p, kind, before, _clipped(p, i, x.shape[dim] - 1) if is_clipped else i, after, dim)
    out[tuple(position)] = after
  return out


@rule("sort")
def _sort(p, eqn, *xs):
  """Sort by a network of exchanges. The position before is the last key, as the network alone is not stable."""
  axis, nkeys = eqn.params["dimension"], eqn.params["num_keys"]
  kinds = [kind_of(v.aval.dtype) for v in eqn.outvars]
  n = xs[0].shape[axis]
  if n > _MAX_SORTED:
    raise Unsupported(f"operation sort has a rule only for at most {_MAX_SORTED} numbers, not {n}")
  rows = [list(np.moveaxis(x, axis, 0)) for x in xs]
  if eqn.params["is_stable"]:
    number = [np.full(np.moveaxis(xs[0], axis, 0).shape[1:], p.const(k, "i"), np.int64) for k in range(n)]
    rows, kinds, nkeys = [*rows[:nkeys], number, *rows[nkeys:]], [*kinds[:nkeys], "i", *kinds[nkeys:]], nkeys + 1
  for k, j in _exchanges(n):
    pairs = [(r[k], r[j]) for r in rows]
    swap = p.map("lt", "p", *pairs[nkeys - 1][::-1])
    for low, high in pairs[: nkeys - 1][::-1]:
      same = p.map("eq", "p", low, high)
      swap = p.map("or", "p", p.map("lt", "p", high, low), p.map("and", "p", same, swap))
    for r, kind, (low, high) in zip(rows, kinds, pairs, strict=True):
      r[k], r[j] = p.map("select", kind, swap, high, low), p.map("select", kind, swap, low, high)
  if eqn.params["is_stable"]:
    del rows[nkeys - 1]
  return [np.moveaxis(np.stack(r), 0, axis) if n else x for r, x in zip(rows, xs, strict=True)]


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
