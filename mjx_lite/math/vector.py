"""Products of small vectors and matrices, written as sums of products.

XLA fuses such sums into the loops around them; a reduction or a batched `dot_general` of this size is several times slower
on CPU.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear


def add(terms: Iterable[jax.Array]) -> jax.Array:
  """Sum of one or more arrays; the built-in `sum` begins with a 0, which is no array and costs an addition."""
  return functools.reduce(operator.add, terms)


def parts(x: jax.Array) -> tuple[jax.Array, ...]:
  """All components, each (..., 1, W). Split, so that the derivative joins them, where slices would be padded and added."""
  return tuple(jax.lax.split(x, (1,) * x.shape[-2], axis=x.ndim - 2))


def split(x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
  """The first n components, and the others; as `parts`."""
  first, rest = jax.lax.split(x, (n, x.shape[-2] - n), axis=x.ndim - 2)
  return first, rest


def alike(*xs: jax.Array) -> list[jax.Array]:
  """Vectors with all axes but that of their components broadcast against each other: once, not in every product."""
  head = jnp.broadcast_shapes(*(x.shape[:-2] for x in xs))
  width = max(x.shape[-1] for x in xs)
  return [jnp.broadcast_to(x, (*head, x.shape[-2], width)) for x in xs]


def join(components: Sequence[jax.Array]) -> jax.Array:
  """Vector of its components (..., 1, W)."""
  return jnp.concatenate(components, axis=-2)


def fold(combine: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, axis: int) -> jax.Array:
  """Combine all entries along an axis, which is dropped, by halves: XLA fuses that, and its reduction on CPU is far slower.

  Args:
    combine: an associative operation that does not depend on the order either.
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
  """Scalar product along the component axis, which is dropped."""
  return linear.contract(a, b, -2)


def combine_rows(a: jax.Array | np.ndarray, x: jax.Array) -> jax.Array:
  """Matrix (n, k) times the rows of x (k, ..., W): (n, ..., W); or as many of both, (m, n, k) and (m, k, ..., W).

  The other axes are not merged for it: a merged world axis cannot stay divided among devices, so each product would
  gather the worlds of all devices first. A constant row gets a second one: XLA on CPU calls a library for a product of
  matrices, and compiles a kernel of its own for that of a vector with a matrix, which costs as much as two dozen others.
  """
  one = isinstance(a, np.ndarray) and a.shape[-2] == 1
  a = np.concatenate([a, np.zeros_like(a)], axis=-2) if one else a
  out = linear.combine(a, x)
  return jax.lax.slice_in_dim(out, 0, 1, axis=a.ndim - 2) if one else out


def total(x: jax.Array) -> jax.Array:
  """Sum along the first axis, as a product with a row of ones: XLA's reduction on CPU is slower."""
  return linear.total(x)


def cross(a: jax.Array, b: jax.Array) -> jax.Array:
  """Vector product of two 3-vectors."""
  return join(cross_parts(*(parts(x) for x in alike(a, b))))


def cross_parts(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Vector product of vectors given by their components, as its components.

  What is made of several products stays in components to its end: XLA fuses what a vector is joined of, not what is made of it.
  """
  (ax, ay, az), (bx, by, bz) = a, b
  return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


def mat_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Matrix (..., n, k, W) times vector (..., k, W)."""
  return linear.contract(a, v[..., None, :, :], -2)


def mat_t_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Transposed matrix (..., k, n, W) times vector (..., k, W)."""
  return linear.contract(a, v[..., :, None, :], -3)


def mat_mat(a: jax.Array, b: jax.Array) -> jax.Array:
  """Matrix (..., n, k, W) times matrix (..., k, m, W)."""
  return add(x * y for x, y in zip(parts(a), jax.lax.split(b, (1,) * b.shape[-3], axis=b.ndim - 3), strict=True))


def transpose(a: jax.Array) -> jax.Array:
  """Matrix transpose of (..., n, m, W)."""
  return jnp.swapaxes(a, -3, -2)


def matrix(*rows: tuple[jax.Array, ...]) -> jax.Array:
  """Matrix of its entries (..., 1, W), row by row: XLA fuses the joining of a few parts with them, not that of many."""
  return jnp.stack([join(r) for r in rows], axis=-3)
