"""Dense linear systems, one per world, in plain JAX: symmetric, or dominated by a symmetric positive definite part.

No LAPACK: a LAPACK call inside a loop can deadlock in jaxlib 0.10 when the worlds are sharded over host devices
(benchmarks/README.md, "A trap").

A symmetric matrix is scaled to a unit diagonal and factored as L U with U = D L', a few rows per pass, from the top. The
remaining matrix shrinks with each pass. The passes are unrolled, because each pass has its own shape. In a large matrix the
first passes have almost the same shape and run in a loop instead. Each iteration moves the remaining matrix to the upper left
corner and pads it with zeros, so that all iterations use the same indices. No index depends on the iteration, and no array is
updated in place: XLA does not vectorize such updates on CPU.

Tests: tests/solver/test_linalg.py, tests/math/test_gram.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector
from mjx_lite.ops import linear, select

_BLOCK = 4  # rows per pass
_WRITTEN = 32  # rows whose passes are unrolled; the rows before them go through a loop, which compiles faster
_PARTS = 4  # parts of a result of `gram`, computed one after the other
_SUM_ROWS = 32  # rows contracted in one sum
_UNROLLED_ROWS = 160  # rows contracted in several sums; more rows go through a loop
_MANY_ROWS = 512  # rows whose partial sums are kept until they are added up
_TILE = 512  # worlds; only accelerators take more worlds at a time


class Block(NamedTuple):
  """Rows of U and columns of L of one pass, each from the first diagonal entry of the pass on."""

  upper: tuple[jax.Array, ...]  # (k, W) each
  lower: tuple[jax.Array, ...] | None  # (k, W) each, 1 on the diagonal; None for a symmetric matrix
  inv: tuple[jax.Array, ...]  # (W,) each: 1 / diagonal of U

  def columns(self) -> tuple[jax.Array, ...]:
    """Return the columns of L; for a symmetric matrix they are computed from U at each use."""
    if self.lower is not None:
      return self.lower
    return tuple(row * inv for row, inv in zip(self.upper, self.inv, strict=True))


class Factor(NamedTuple):
  """Factor of a scaled matrix: `S A S = L U` with S = diag(scale)."""

  looped: Block | None  # first passes of a large matrix, stacked along a leading axis
  blocks: tuple[Block, ...]
  scale: jax.Array  # (n, W)
  matrix: jax.Array  # (n, n, W) A itself, for derivatives of solutions

  @property
  def symmetric(self) -> bool:
    """Whether the factored matrices are symmetric."""
    return all(block.lower is None for block in self.blocks)

  @property
  def nlooped(self) -> int:
    """Number of rows that the loop factors."""
    return 0 if self.looped is None else _BLOCK * len(self.looped.upper[0])


def cholesky(a: jax.Array) -> Factor:
  """Factor symmetric positive definite matrices (n, n, W); only the upper triangle is read.

  A pivot below the rounding error of the unit diagonal is raised to this error. So a matrix that is singular in this precision
  gives a large solution, not NaN.
  """
  n = a.shape[0]
  scale = 1 / jnp.sqrt(jnp.maximum(a.reshape(n * n, -1)[:: n + 1], safe.MINVAL))
  symmetric = jnp.where(np.tri(n, dtype=bool).T[..., None], a, jnp.swapaxes(a, 0, 1))
  return Factor(*_factor(a * scale[:, None] * scale[None], symmetric=True), scale, symmetric)


def factor_solve(f: Factor, x: jax.Array) -> jax.Array:
  """Return A^-1 x for x (n, W), given a factor of A.

  Gradient: by the implicit function theorem, with the same factor.
  """
  fixed = jax.lax.stop_gradient(f)
  return jax.lax.custom_linear_solve(
    lambda x: vector.mat_vec(f.matrix, x), x, lambda _, y: _substituted(fixed, y),
    None if f.symmetric else lambda _, y: _substituted(_transposed(fixed), y), symmetric=f.symmetric,
  )  # fmt: skip


def _substituted(f: Factor, x: jax.Array) -> jax.Array:
  """Return A^-1 x by forward substitution with L and back substitution with U."""
  n, remaining, looped = len(x), x * f.scale, None
  if f.looped is not None:
    remaining, looped = jax.lax.scan(lambda x, block: _down(block, x, n), remaining, f.looped)
    remaining = remaining[: n - f.nlooped]
  done = []
  for block in f.blocks:
    remaining, y = _down(block, remaining)
    done.append(y)
  out = remaining  # empty
  for block, y in zip(reversed(f.blocks), reversed(done), strict=True):
    out = _up(block, y, out)
  if looped is not None:
    step = lambda below, at: (_up(at[0], at[1], below[:-_BLOCK]), None)  # noqa: E731
    out, _ = jax.lax.scan(step, _widen(out, n, 1), (f.looped, looped), reverse=True)
  return out * f.scale


def entries(f: Factor, row: np.ndarray, col: np.ndarray) -> jax.Array:
  """Return entries (k, W) of D L', the upper factor of an unscaled symmetric matrix, at constant indices (row, col)."""
  rows = [x[k] for k in range(f.nlooped // _BLOCK) for x in f.looped.upper] if f.looped is not None else []
  rows += [x for block in f.blocks for x in block.upper]
  first = np.cumsum([0, *(len(x) for x in rows)])  # offset of each row in `flat`; a row begins at the first column of its block
  flat = jnp.concatenate(rows)
  return select.rows(flat, first[row] + col - row // _BLOCK * _BLOCK) / (select.rows(f.scale, row) * select.rows(f.scale, col))


def _factor(remaining: jax.Array, symmetric: bool) -> tuple[Block | None, tuple[Block, ...]]:
  n = len(remaining)
  remaining, passes, looped = linear.materialize_everywhere(remaining), -(-max(n - _WRITTEN, 0) // _BLOCK), None
  if passes:
    remaining, looped = jax.lax.scan(lambda x, _: _eliminate(x, symmetric, n), remaining, None, length=passes)
    remaining = remaining[: n - _BLOCK * passes, : n - _BLOCK * passes]
  blocks = []
  while len(remaining):
    remaining, block = _eliminate(remaining, symmetric)
    blocks.append(block)
  return looped, tuple(blocks)


def _eliminate(remaining: jax.Array, symmetric: bool, size: int = 0) -> tuple[jax.Array, Block]:
  """Eliminate the first rows of a matrix (k, k, W); return the remaining matrix, zero-padded to `size`, and these rows."""
  number = min(_BLOCK, len(remaining))
  upper, lower, inv = [], [], []
  for i in range(number):
    row, col = remaining[i], remaining[:, i]
    for u, v in zip(upper, lower, strict=True):
      row, col = row - v[i] * u, col - u[i] * v
    upper.append(linear.materialize_everywhere(row))
    pivot = upper[-1][i]
    inv.append(linear.materialize_everywhere(1 / (jnp.maximum(pivot, jnp.finfo(row.dtype).eps) if symmetric else pivot)))
    lower.append(upper[-1] * inv[-1] if symmetric else linear.materialize_everywhere(col * inv[-1]))
  rest = remaining[number:, number:]
  for u, v in zip(upper, lower, strict=True):
    rest = rest - v[number:, None] * u[None, number:]
  rest = _widen(linear.materialize_everywhere(rest), max(size, len(rest)), 2)
  return rest, Block(tuple(upper), None if symmetric else tuple(lower), tuple(inv))


def _down(block: Block, x: jax.Array, size: int = 0) -> tuple[jax.Array, list[jax.Array]]:
  """Substitute forward through a block of L; return the rest of x (k, W), zero-padded to `size`, and the block's results."""
  y, columns = [], block.columns()
  for i in range(len(columns)):
    y.append(x[i])
    for above, col in zip(y[:-1], columns, strict=False):
      y[-1] = y[-1] - col[i] * above
  y = linear.materialize_everywhere(y)
  rest = x[len(y) :]
  for above, col in zip(y, columns, strict=True):
    rest = rest - col[len(y) :] * above
  return _widen(linear.materialize_everywhere(rest), max(size, len(rest)), 1), y


def _up(block: Block, y: list[jax.Array], below: jax.Array) -> jax.Array:
  """Substitute backward through a block of U; return the entries of U^-1 y from this block on, given the entries `below` it."""
  number = len(y)
  if len(below):
    y = linear.materialize_everywhere(
      [a - vector.fold(jnp.add, row[number:] * below, 0) for a, row in zip(y, block.upper, strict=True)]
    )
  out: list[jax.Array] = []
  for i in reversed(range(number)):
    x = y[i]
    for k, known in enumerate(out):
      x = x - block.upper[i][i + 1 + k] * known
    out.insert(0, x * block.inv[i])
  return linear.materialize_everywhere(jnp.concatenate([jnp.stack(out), below]))


def gram(left: jax.Array, right: jax.Array, upper: bool = False) -> jax.Array:
  """Contract (n, nv, W) with (n, nv, W) over the rows, per world: (nv, nv, W).

  The sums are unrolled, for many rows in parts. A batched product needs the worlds on the first axis, and on CPU its
  transpositions take longer than the product. The partial sums are added at the end, because XLA on CPU does not vectorize an
  addition to a loop's carry. If the worlds are not tiled, partial sums would take too much memory, and the product is batched.

  Args:
    left, right: the rows.
    upper: whether only the upper triangle is needed; the lower triangle is then partly zero.
  """
  width = max(left.shape[-1], right.shape[-1])
  left, right = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (left, right))
  if len(left) > _SUM_ROWS and width > _TILE:
    product = jax.lax.dot_general(left, right, (((0,), (0,)), ((2,), (2,))), precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(product, 0, -1)
  if len(left) > _MANY_ROWS:
    zero = jnp.zeros((left.shape[1], right.shape[1], width), left.dtype)
    return jax.lax.scan(lambda h, x: (h + gram(x[0], x[1], upper), None), zero, _cut(left, right, _MANY_ROWS))[0]
  if len(left) > _UNROLLED_ROWS:
    sums = jax.lax.map(lambda x: _sum_of_products(x[0], x[1], upper), _cut(left, right, _SUM_ROWS))
    return vector.add(list(sums))
  left, right = linear.materialize((left, right))
  parts = [slice(k, k + _SUM_ROWS) for k in range(0, len(left), _SUM_ROWS)]
  return vector.add(_sum_of_products(left[k], right[k], upper) for k in parts)


def _sum_of_products(left: jax.Array, right: jax.Array, upper: bool) -> jax.Array:
  """Sum products over rows, one quarter of the result after the other; if `upper`, each quarter from its diagonal on."""
  n = left.shape[1]
  size, out = -(-n // _PARTS), []
  for k in range(0, n, size):
    first = k if upper else 0
    part = vector.add(x[k : k + size, None] * y[first:] for x, y in zip(left, right, strict=True))
    out.append(jnp.pad(linear.materialize(part), [(0, 0), (first, 0), (0, 0)]))
  return jnp.concatenate(out)


def _cut(left: jax.Array, right: jax.Array, size: int) -> tuple[jax.Array, ...]:
  """Split rows into parts (count, size, ...); the last part is padded with zeros."""
  count = -(-len(left) // size)
  return tuple(_widen(x, count * size, 1).reshape(count, size, *x.shape[1:]) for x in (left, right))


def _widen(x, size, naxes, axis=0):
  """Pad `naxes` axes from `axis` on with zeros at their end, up to a size."""
  pad = [(0, size - x.shape[k]) if axis <= k < axis + naxes else (0, 0) for k in range(x.ndim)]
  return jnp.pad(x, pad)


def solve(a: jax.Array, b: jax.Array) -> jax.Array:
  """Solve A x = b for x (n, W) without pivoting: a symmetric positive definite part must dominate A (n, n, W).

  Gradient: as in `factor_solve`.
  """
  return factor_solve(Factor(*_factor(jax.lax.stop_gradient(a), symmetric=False), jnp.ones((), a.dtype), a), b)


def _transposed(f: Factor) -> Factor:
  """Return the factor of the transposed matrix for `_substituted`; its L is U' scaled to a unit diagonal."""

  def transposed(block):
    if block is None:
      return None
    at = (Ellipsis, None, slice(None))
    lower = tuple(u * v[at] for u, v in zip(block.upper, block.inv, strict=True))
    upper = tuple(c / v[at] for c, v in zip(block.lower, block.inv, strict=True))
    return Block(upper, lower, block.inv)

  return f._replace(looped=transposed(f.looped), blocks=tuple(transposed(b) for b in f.blocks))


def inverse3(a: jax.Array) -> jax.Array:
  """Invert matrices (..., 3, 3, W) by cofactors."""
  x, y, z = (a[..., i, :, :] for i in range(3))
  cofactor = jnp.stack([vector.cross(y, z), vector.cross(z, x), vector.cross(x, y)], axis=-2)
  return cofactor / vector.dot(x, cofactor[..., 0, :])[..., None, None, :]
