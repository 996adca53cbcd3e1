"""Products of small vectors and matrices, written as sums of products.

XLA fuses such sums into the loops around them; a reduction or a batched `dot_general` of this size is several times slower
on CPU.

Tests: tests/math/test_materialized.py, tests/smooth/test_mechanics.py.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.ops import linear


def add(terms: Iterable[jax.Array]) -> jax.Array:
  """Add one or more arrays; the built-in `sum` begins with 0, which costs one more addition."""
  return functools.reduce(operator.add, terms)


def parts(x: jax.Array) -> tuple[jax.Array, ...]:
  """Split a vector into its components, each (..., 1, W); the transpose of a split is a join, that of slices pads and adds."""
  return tuple(jax.lax.split(x, (1,) * x.shape[-2], axis=x.ndim - 2))


def split(x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
  """Split a vector into its first n components and the rest, for the reason given in `parts`."""
  first, rest = jax.lax.split(x, (n, x.shape[-2] - n), axis=x.ndim - 2)
  return first, rest


def alike(*xs: jax.Array) -> list[jax.Array]:
  """Broadcast vectors against each other along all axes but the component axis: once, not in every product."""
  head = jnp.broadcast_shapes(*(x.shape[:-2] for x in xs))
  width = max(x.shape[-1] for x in xs)
  return [jnp.broadcast_to(x, (*head, x.shape[-2], width)) for x in xs]


def join(components: Sequence[jax.Array]) -> jax.Array:
  """Join components (..., 1, W) into a vector."""
  return jnp.concatenate(components, axis=-2)


def fold(combine: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, axis: int) -> jax.Array:
  """Combine all entries along an axis, which is dropped, by halves: XLA fuses halves; its reduction on CPU is far slower.

  Args:
    combine: an associative and commutative operation.
    x: array with at least one entry along the axis.
    axis: the axis.
  """
  while (n := x.shape[axis]) > 1:
    low, high, last = (jax.lax.slice_in_dim(x, a, b, axis=axis) for a, b in ((0, n // 2), (n // 2, n - n % 2), (n - n % 2, n)))
    x = combine(low, high)
    if n % 2:
      x = jnp.concatenate([x, last], axis=axis)
  return jnp.squeeze(x, axis)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """Return the scalar product along the component axis, which is dropped."""
  return linear.contract(a, b, -2)


def combine_rows(a: jax.Array | np.ndarray, x: jax.Array) -> jax.Array:
  """Multiply a matrix (n, k) by the rows of x (k, ..., W): (n, ..., W); or m matrices (m, n, k) by (m, k, ..., W).

  The other axes of x are not merged for the product. A merged world axis cannot stay sharded over devices, so each product
  would first gather the worlds of all devices. A constant matrix with one row gets a second row of zeros: XLA on CPU calls a
  library for a product of matrices, but compiles a kernel for a vector times a matrix, at the cost of two dozen other kernels.
  """
  one = isinstance(a, np.ndarray) and a.shape[-2] == 1
  a = np.concatenate([a, np.zeros_like(a)], axis=-2) if one else a
  out = linear.combine(a, x)
  return jax.lax.slice_in_dim(out, 0, 1, axis=a.ndim - 2) if one else out


def total(x: jax.Array) -> jax.Array:
  """Sum along the first axis, as a product with a row of ones: XLA's reduction on CPU is slower."""
  return linear.total(x)


def cross(a: jax.Array, b: jax.Array) -> jax.Array:
  """Return the vector product of two 3-vectors."""
  return join(cross_parts(*(parts(x) for x in alike(a, b))))


def cross_parts(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return the components of a vector product, given the components of both vectors.

  An expression of several products stays in components until its end: XLA fuses the operands of a join into the join, but not
  the join into its uses.
  """
  (ax, ay, az), (bx, by, bz) = a, b
  return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


def mat_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Multiply a matrix (..., n, k, W) by a vector (..., k, W)."""
  return linear.contract(a, v[..., None, :, :], -2)


def mat_t_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Multiply the transpose of a matrix (..., k, n, W) by a vector (..., k, W)."""
  return linear.contract(a, v[..., :, None, :], -3)


def mat_mat(a: jax.Array, b: jax.Array) -> jax.Array:
  """Multiply a matrix (..., n, k, W) by a matrix (..., k, m, W)."""
  return add(x * y for x, y in zip(parts(a), jax.lax.split(b, (1,) * b.shape[-3], axis=b.ndim - 3), strict=True))


def transpose(a: jax.Array) -> jax.Array:
  """Return the transpose of a matrix (..., n, m, W)."""
  return jnp.swapaxes(a, -3, -2)


def matrix(*rows: tuple[jax.Array, ...]) -> jax.Array:
  """Join entries (..., 1, W) into a matrix, row by row: XLA fuses a join of a few parts with the parts, but not of many."""
  return jnp.stack([join(r) for r in rows], axis=-3)
