"""Dense symmetric systems, one per world, in plain JAX.

No LAPACK: a call of it inside a loop can deadlock in jaxlib 0.10 when the worlds are divided among host devices
(benchmarks/README.md, "Two traps").

A symmetric matrix is scaled to a unit diagonal and factored as L U with U = D L', a few rows at a time, from the top. What is
left of it shrinks with each of these passes, which are written out: each is of a size of its own. Of a large matrix the first
passes, which are of almost one size, go through a loop instead, with what is left moved up to the corner and the gap filled
with zeros, so that every pass does the same to the same places: no index depends on the pass, and no array is updated where it
stands, which XLA does not vectorise on CPU.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear, select
from mjx_lite.math import safe, vector

_BLOCK = 4  # rows per pass
_WRITTEN = 32  # rows whose passes are written out; those before them go through a loop, which is less to compile
_PARTS = 4  # of a matrix that is a sum over rows, one after the other
_FEW_ROWS = 32  # contracted in one sum
_SOME_ROWS = 160  # in several; more go through a loop
_MANY_ROWS = 512  # whose sums are kept until they are added up
_TILE = 512  # worlds; more of them at a time are on accelerators


class Block(NamedTuple):
  """The rows of U and the columns of L of one pass, each from the pass's own diagonal on."""

  upper: tuple[jax.Array, ...]  # (k, W) each
  lower: tuple[jax.Array, ...] | None  # (k, W) each, 1 on the diagonal; None for a symmetric matrix
  inv: tuple[jax.Array, ...]  # (W,) each: 1 / diagonal of U

  def columns(self) -> tuple[jax.Array, ...]:
    """Of L; of a symmetric matrix made of U where they are used."""
    if self.lower is not None:
      return self.lower
    return tuple(row * inv for row, inv in zip(self.upper, self.inv, strict=True))


class Factor(NamedTuple):
  """Factor of a scaled matrix: `S A S = L U` with S = diag(scale)."""

  looped: Block | None  # the first passes along a leading axis, where there are many
  blocks: tuple[Block, ...]
  scale: jax.Array  # (n, W)
  matrix: jax.Array  # (n, n, W), which derivatives of solutions are made of

  @property
  def symmetric(self) -> bool:
    """Whether it is of symmetric matrices."""
    return all(block.lower is None for block in self.blocks)

  @property
  def nlooped(self) -> int:
    """Rows that go through the loop."""
    return 0 if self.looped is None else _BLOCK * len(self.looped.upper[0])


def cholesky(a: jax.Array) -> Factor:
  """Factor symmetric positive definite matrices (n, n, W), of which the upper triangle is read.

  A pivot below the rounding error of the unit diagonal is raised to it, so a matrix that is singular in this precision
  gives a large solution, not NaN.
  """
  n = a.shape[0]
  scale = 1 / jnp.sqrt(jnp.maximum(a.reshape(n * n, -1)[:: n + 1], safe.MINVAL))
  symmetric = jnp.where(np.tri(n, dtype=bool).T[..., None], a, jnp.swapaxes(a, 0, 1))
  return Factor(*_factor(a * scale[:, None] * scale[None], symmetric=True), scale, symmetric)


def factor_solve(f: Factor, x: jax.Array) -> jax.Array:
  """Solve with a factor for x (n, W).

  Gradient: by the implicit function theorem, with the same factor.
  """
  fixed = jax.lax.stop_gradient(f)
  return jax.lax.custom_linear_solve(
    lambda x: vector.mat_vec(f.matrix, x), x, lambda _, y: _substituted(fixed, y),
    None if f.symmetric else lambda _, y: _substituted(_transposed(fixed), y), symmetric=f.symmetric,
  )  # fmt: skip


def _substituted(f: Factor, x: jax.Array) -> jax.Array:
  """A^-1 x, down through L and up through U."""
  n, left, looped = len(x), x * f.scale, None
  if f.looped is not None:
    left, looped = jax.lax.scan(lambda x, block: _down(block, x, n), left, f.looped)
    left = left[: n - f.nlooped]
  done = []
  for block in f.blocks:
    left, y = _down(block, left)
    done.append(y)
  out = left  # nothing
  for block, y in zip(reversed(f.blocks), reversed(done), strict=True):
    out = _up(block, y, out)
  if looped is not None:
    step = lambda below, at: (_up(at[0], at[1], below[:-_BLOCK]), None)  # noqa: E731
    out, _ = jax.lax.scan(step, _widen(out, n, 1), (f.looped, looped), reverse=True)
  return out * f.scale


def entries(f: Factor, row: np.ndarray, col: np.ndarray) -> jax.Array:
  """Entries (k, W) of D L', the upper factor of a symmetric matrix, at constant indices."""
  rows = [x[k] for k in range(f.nlooped // _BLOCK) for x in f.looped.upper] if f.looped is not None else []
  rows += [x for block in f.blocks for x in block.upper]
  first = np.cumsum([0, *(len(x) for x in rows)])  # of each row, which begins with its block
  flat = jnp.concatenate(rows)
  return select.rows(flat, first[row] + col - row // _BLOCK * _BLOCK) / (select.rows(f.scale, row) * select.rows(f.scale, col))


def _factor(left: jax.Array, symmetric: bool) -> tuple[Block | None, tuple[Block, ...]]:
  n = len(left)
  left, passes, looped = linear.written(left), -(-max(n - _WRITTEN, 0) // _BLOCK), None
  if passes:
    left, looped = jax.lax.scan(lambda x, _: _eliminate(x, symmetric, n), left, None, length=passes)
    left = left[: n - _BLOCK * passes, : n - _BLOCK * passes]
  blocks = []
  while len(left):
    left, block = _eliminate(left, symmetric)
    blocks.append(block)
  return looped, tuple(blocks)


def _eliminate(left: jax.Array, symmetric: bool, size: int = 0) -> tuple[jax.Array, Block]:
  """What is left of a matrix (k, k, W) without its first rows, filled up with zeros to a size, and these rows."""
  number = min(_BLOCK, len(left))
  upper, lower, inv = [], [], []
  for i in range(number):
    row, col = left[i], left[:, i]
    for u, v in zip(upper, lower, strict=True):
      row, col = row - v[i] * u, col - u[i] * v
    upper.append(linear.written(row))
    pivot = upper[-1][i]
    inv.append(linear.written(1 / (jnp.maximum(pivot, jnp.finfo(row.dtype).eps) if symmetric else pivot)))
    lower.append(upper[-1] * inv[-1] if symmetric else linear.written(col * inv[-1]))
  rest = left[number:, number:]
  for u, v in zip(upper, lower, strict=True):
    rest = rest - v[number:, None] * u[None, number:]
  rest = _widen(linear.written(rest), max(size, len(rest)), 2)
  return rest, Block(tuple(upper), None if symmetric else tuple(lower), tuple(inv))


def _down(block: Block, x: jax.Array, size: int = 0) -> tuple[jax.Array, list[jax.Array]]:
  """What is left of a right-hand side (k, W), filled up with zeros to a size, and the entries of L^-1 of it in the block."""
  y, columns = [], block.columns()
  for i in range(len(columns)):
    y.append(x[i])
    for above, col in zip(y[:-1], columns, strict=False):
      y[-1] = y[-1] - col[i] * above
  y = linear.written(y)
  rest = x[len(y) :]
  for above, col in zip(y, columns, strict=True):
    rest = rest - col[len(y) :] * above
  return _widen(linear.written(rest), max(size, len(rest)), 1), y


def _up(block: Block, y: list[jax.Array], below: jax.Array) -> jax.Array:
  """Entries of U^-1 y from a block on, given those after it."""
  number = len(y)
  if len(below):
    y = linear.written([a - vector.fold(jnp.add, row[number:] * below, 0) for a, row in zip(y, block.upper, strict=True)])
  out: list[jax.Array] = []
  for i in reversed(range(number)):
    x = y[i]
    for k, known in enumerate(out):
      x = x - block.upper[i][i + 1 + k] * known
    out.insert(0, x * block.inv[i])
  return linear.written(jnp.concatenate([jnp.stack(out), below]))


def gram(left: jax.Array, right: jax.Array, upper: bool = False) -> jax.Array:
  """Contraction of (n, nv, W) with (n, nv, W) over the rows, batched over the worlds: (nv, nv, W).

  Written out, of many rows some at a time: a batched product would want the worlds in front, and on CPU its transpositions take
  longer than the product. Added up at the end, for XLA on CPU does not vectorise what is added to a loop's carry. Where worlds
  are in no tiles the sums would take too much memory, and the product is batched.

  Args:
    left, right: the rows.
    upper: whether only the upper triangle is wanted; what is below it is then partly zero.
  """
  width = max(left.shape[-1], right.shape[-1])
  left, right = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (left, right))
  if len(left) > _FEW_ROWS and width > _TILE:
    product = jax.lax.dot_general(left, right, (((0,), (0,)), ((2,), (2,))), precision=jax.lax.Precision.HIGHEST)
    return jnp.moveaxis(product, 0, -1)
  if len(left) > _MANY_ROWS:
    zero = jnp.zeros((left.shape[1], right.shape[1], width), left.dtype)
    return jax.lax.scan(lambda h, x: (h + gram(x[0], x[1], upper), None), zero, _cut(left, right, _MANY_ROWS))[0]
  if len(left) > _SOME_ROWS:
    sums = jax.lax.map(lambda x: _sum_of_products(x[0], x[1], upper), _cut(left, right, _FEW_ROWS))
    return vector.add(list(sums))
  left, right = linear.materialized((left, right))
  parts = [slice(k, k + _FEW_ROWS) for k in range(0, len(left), _FEW_ROWS)]
  return vector.add(_sum_of_products(left[k], right[k], upper) for k in parts)


def _sum_of_products(left: jax.Array, right: jax.Array, upper: bool) -> jax.Array:
  """Sum over few rows, a quarter of the matrix after the other; of the upper triangle, each from its diagonal on."""
  n = left.shape[1]
  size, out = -(-n // _PARTS), []
  for k in range(0, n, size):
    first = k if upper else 0
    part = vector.add(x[k : k + size, None] * y[first:] for x, y in zip(left, right, strict=True))
    out.append(jnp.pad(linear.materialized(part), [(0, 0), (first, 0), (0, 0)]))
  return jnp.concatenate(out)


def _cut(left: jax.Array, right: jax.Array, size: int) -> tuple[jax.Array, ...]:
  """Rows in parts (count, size, ...), the last one filled up with zeros."""
  count = -(-len(left) // size)
  return tuple(_widen(x, count * size, 1).reshape(count, size, *x.shape[1:]) for x in (left, right))


def _widen(x, size, naxes, axis=0):
  """Zeros after the entries of some axes, up to a size."""
  pad = [(0, size - x.shape[k]) if axis <= k < axis + naxes else (0, 0) for k in range(x.ndim)]
  return jnp.pad(x, pad)


def solve(a: jax.Array, b: jax.Array) -> jax.Array:
  """Solution x (n, W) of A x = b, for A (n, n, W) that needs no pivoting: dominated by a symmetric positive definite part.

  Gradient: that of `factor_solve`.
  """
  return factor_solve(Factor(*_factor(jax.lax.stop_gradient(a), symmetric=False), jnp.ones((), a.dtype), a), b)


def _transposed(f: Factor) -> Factor:
  """What `_substituted` takes for the transposed matrix: its L is U' with a unit diagonal."""

  def turned(block):
    if block is None:
      return None
    at = (Ellipsis, None, slice(None))
    lower = tuple(u * v[at] for u, v in zip(block.upper, block.inv, strict=True))
    upper = tuple(c / v[at] for c, v in zip(block.lower, block.inv, strict=True))
    return Block(upper, lower, block.inv)

  return f._replace(looped=turned(f.looped), blocks=tuple(turned(b) for b in f.blocks))


def inverse3(a: jax.Array) -> jax.Array:
  """Inverse of matrices (..., 3, 3, W) by cofactors."""
  x, y, z = (a[..., i, :, :] for i in range(3))
  cofactor = jnp.stack([vector.cross(y, z), vector.cross(z, x), vector.cross(x, y)], axis=-2)
  return cofactor / vector.dot(x, cofactor[..., 0, :])[..., None, None, :]
