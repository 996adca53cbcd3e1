"""Dense symmetric systems, one per world, in plain JAX.

No LAPACK: a call of it inside a loop can deadlock in jaxlib 0.10 when the worlds are divided among host devices
(benchmarks/README.md, "Two traps").

The matrix is scaled to a unit diagonal and factored as U' U from the top, `_BLOCK` rows at a time. After each block what is
left is moved up to the corner and the gap filled with zeros, so that every pass of the loop does the same to the same
places: no index depends on the pass, and no array is updated where it stands, which XLA does not vectorise on CPU.
Rows of U and of the solution are kept as the pass saw them, counted from its own diagonal.
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear, select
from mjx_lite.math import safe, vector

_BLOCK = 4  # rows per pass: more are faster to run and slower to compile
_PARTS = 4  # of a matrix that is a sum over rows, one after the other
_FEW_ROWS = 32  # contracted in one sum
_SOME_ROWS = 160  # in several; more go through a loop
_MANY_ROWS = 512  # whose sums are kept until they are added up
_TILE = 512  # worlds; more of them at a time are on accelerators
_TWO_LOOPS = 6  # from this many passes on, the later ones get a loop of their own, on the smaller matrix left then


class Cholesky(NamedTuple):
  """Factor of a scaled matrix: `S A S = U' U` with S = diag(scale)."""

  upper: jax.Array  # (npass, _BLOCK, n, W) rows of U, from the diagonal block on
  inv: jax.Array  # (npass, _BLOCK, W) 1 / diagonal of U
  scale: jax.Array  # (n, W)


def cholesky(a: jax.Array) -> Cholesky:
  """Factor symmetric positive definite matrices (n, n, W), of which the upper triangle is read.

  A pivot below the rounding error of the unit diagonal is raised to it, so a matrix that is singular in this precision
  gives a large solution, not NaN.
  """
  n = a.shape[0]
  npass = -(-n // _BLOCK)
  size = npass * _BLOCK
  scale = 1 / jnp.sqrt(jnp.maximum(a.reshape(n * n, -1)[:: n + 1], safe.MINVAL))
  left = _widen(a * scale[:, None] * scale[None], size, 2)
  left = left + np.diag(np.arange(size) >= n).astype(a.dtype)[..., None]
  first = 2 * npass // 5 if npass >= _TWO_LOOPS else npass
  upper, inv = [], []
  for length in (first, npass - first):
    if length:
      left, (u, d) = jax.lax.scan(_factor_block, left, None, length=length)
      upper.append(_widen(u, size, 1, axis=2))
      inv.append(d)
      left = left[: size - first * _BLOCK, : size - first * _BLOCK]
  return Cholesky(jnp.concatenate(upper), jnp.concatenate(inv), scale)


def cholesky_solve(f: Cholesky, x: jax.Array) -> jax.Array:
  """Solve for x (n, W)."""
  rhs = _widen(x * f.scale, f.upper.shape[2], 1)
  _, y = jax.lax.scan(_solve_down, rhs, (f.upper, f.inv))
  out, _ = jax.lax.scan(_solve_up, jnp.zeros_like(rhs), (f.upper, f.inv, y), reverse=True)
  return out[: x.shape[0]] * f.scale


def entries(f: Cholesky, row: np.ndarray, col: np.ndarray) -> jax.Array:
  """Entries (k, W) of the upper triangle V of the factor A = V' V at constant indices."""
  size = f.upper.shape[2]
  flat = f.upper.reshape(-1, f.upper.shape[-1])
  return select.rows(flat, row * size + col - row // _BLOCK * _BLOCK) / select.rows(f.scale, col)


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


def _factor_block(left, _):
  """The next rows of U, and what is left of the matrix (n, n, W) without them."""
  rows, inv = [], []
  for i in range(_BLOCK):
    row = left[i]
    for above in rows:
      row = row - above[i] * above
    inv.append(1 / jnp.sqrt(jnp.maximum(row[i], jnp.finfo(row.dtype).eps)))
    # computed once, not again in everything that it is fused into
    rows.append(jax.lax.optimization_barrier(row * inv[i]))
  rest = left[_BLOCK:, _BLOCK:] - vector.add(r[_BLOCK:, None] * r[None, _BLOCK:] for r in rows)
  return _widen(rest, left.shape[0], 2), (jnp.stack(rows), jnp.stack(inv))


def _solve_down(rhs, block):
  """Entries of U'^-1 rhs in a block, and what is left of the right-hand side (n, W)."""
  u, inv = block
  y = []
  for i in range(_BLOCK):
    y.append((rhs[i] - vector.add(u[k, i] * y[k] for k in range(i)) if i else rhs[i]) * inv[i])
  y = jax.lax.optimization_barrier(jnp.stack(y))
  rest = rhs[_BLOCK:] - vector.add(u[k, _BLOCK:] * y[k] for k in range(_BLOCK))
  return _widen(rest, rhs.shape[0], 1), y


def _solve_up(below, block):
  """Entries of U^-1 y from a block on, given those after it."""
  u, inv, y = block
  below = below[:-_BLOCK]
  if len(below):
    y = y - vector.fold(operator.add, u[:, _BLOCK:] * below, 1)
  out = []
  for i in reversed(range(_BLOCK)):
    known = range(i + 1, _BLOCK)
    out.insert(0, (y[i] - vector.add(u[i, k] * out[k - i - 1] for k in known) if known else y[i]) * inv[i])
  return jnp.concatenate([jnp.stack(out), below]), None


# ------------------------------------------------------------------------------------------------------- unsymmetric


class LU(NamedTuple):
  """Factor A = L U without pivoting; columns of L and rows of U as the pass saw them, counted from its own diagonal."""

  lower: jax.Array  # (npass, _BLOCK, n, W) columns of L, 1 on the diagonal
  upper: jax.Array  # (npass, _BLOCK, n, W) rows of U
  inv: jax.Array  # (npass, _BLOCK, W) 1 / diagonal of U


def solve(a: jax.Array, b: jax.Array) -> jax.Array:
  """Solution x (n, W) of A x = b, for A (n, n, W) that needs no pivoting: dominated by a symmetric positive definite part.

  Gradient: by the implicit function theorem, with the same factor.
  """
  f = lu(jax.lax.stop_gradient(a))
  return jax.lax.custom_linear_solve(
    lambda x: vector.mat_vec(a, x), b, lambda _, y: lu_solve(f, y), lambda _, y: lu_solve(f, y, transpose=True)
  )


def lu(a: jax.Array) -> LU:
  """Factor matrices (n, n, W)."""
  n = a.shape[0]
  npass = -(-n // _BLOCK)
  size = npass * _BLOCK
  left = _widen(a, size, 2) + np.diag(np.arange(size) >= n).astype(a.dtype)[..., None]
  _, (lower, upper, inv) = jax.lax.scan(_eliminate_block, left, None, length=npass)
  return LU(lower, upper, inv)


def lu_solve(f: LU, x: jax.Array, transpose: bool = False) -> jax.Array:
  """Solve with the factor for x (n, W), or with its transpose."""
  rhs = _widen(x, f.upper.shape[2], 1)
  one = jnp.ones_like(f.inv)
  down, down_inv, up, up_inv = (f.upper, f.inv, f.lower, one) if transpose else (f.lower, one, f.upper, f.inv)
  _, y = jax.lax.scan(_solve_down, rhs, (down, down_inv))
  out, _ = jax.lax.scan(_solve_up, jnp.zeros_like(rhs), (up, up_inv, y), reverse=True)
  return out[: x.shape[0]]


def _eliminate_block(left, _):
  """The next columns of L and rows of U, and what is left of the matrix (n, n, W) without them."""
  lower, upper, inv = [], [], []
  for i in range(_BLOCK):
    row, col = left[i], left[:, i]
    for k in range(i):
      row, col = row - lower[k][i] * upper[k], col - upper[k][i] * lower[k]
    inv.append(1 / row[i])
    lower.append(jax.lax.optimization_barrier(col * inv[i]))
    upper.append(jax.lax.optimization_barrier(row))
  rest = vector.add(a[_BLOCK:, None] * b[None, _BLOCK:] for a, b in zip(lower, upper, strict=True))
  stacked = jnp.stack(lower), jnp.stack(upper), jnp.stack(inv)
  return _widen(left[_BLOCK:, _BLOCK:] - rest, left.shape[0], 2), stacked


def inverse3(a: jax.Array) -> jax.Array:
  """Inverse of matrices (..., 3, 3, W) by cofactors."""
  x, y, z = (a[..., i, :, :] for i in range(3))
  cofactor = jnp.stack([vector.cross(y, z), vector.cross(z, x), vector.cross(x, y)], axis=-2)
  return cofactor / vector.dot(x, cofactor[..., 0, :])[..., None, None, :]
