"""Products of small vectors and matrices, written as sums of products.

XLA fuses such sums into the loops around them; a reduction or a batched `dot_general` of this size is several times slower
on CPU.
"""

import functools
import operator
from collections.abc import Iterable

import jax
import jax.numpy as jnp


def add(terms: Iterable[jax.Array]) -> jax.Array:
  """Sum of one or more arrays; the built-in `sum` begins with a 0, which is no array and costs an addition."""
  return functools.reduce(operator.add, terms)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
  """Scalar product along the component axis, which is dropped."""
  return add(a[..., k, :] * b[..., k, :] for k in range(max(a.shape[-2], b.shape[-2])))


def combine_rows(a: jax.Array, x: jax.Array) -> jax.Array:
  """Matrix (n, k) times the rows of x (k, ..., W): (n, ..., W).

  The other axes are not merged for it: a merged world axis cannot stay divided among devices, so each product would
  gather the worlds of all devices first.
  """
  return jax.lax.dot_general(a, x, (((1,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST)


def total(x: jax.Array) -> jax.Array:
  """Sum along the first axis, as a product with a row of ones: XLA's reduction on CPU is slower."""
  return combine_rows(jnp.ones((1, x.shape[0]), x.dtype), x)[0]


def cross(a: jax.Array, b: jax.Array) -> jax.Array:
  """Vector product of two 3-vectors."""
  ax, ay, az = a[..., 0, :], a[..., 1, :], a[..., 2, :]
  bx, by, bz = b[..., 0, :], b[..., 1, :], b[..., 2, :]
  return jnp.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=-2)


def mat_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Matrix (..., n, k, W) times vector (..., k, W)."""
  return add(a[..., :, k, :] * v[..., None, k, :] for k in range(a.shape[-2]))


def mat_t_vec(a: jax.Array, v: jax.Array) -> jax.Array:
  """Transposed matrix (..., k, n, W) times vector (..., k, W)."""
  return add(a[..., k, :, :] * v[..., None, k, :] for k in range(a.shape[-3]))


def mat_mat(a: jax.Array, b: jax.Array) -> jax.Array:
  """Matrix (..., n, k, W) times matrix (..., k, m, W)."""
  return add(a[..., :, k, None, :] * b[..., None, k, :, :] for k in range(a.shape[-2]))


def transpose(a: jax.Array) -> jax.Array:
  """Matrix transpose of (..., n, m, W)."""
  return jnp.swapaxes(a, -3, -2)


def skew(v: jax.Array) -> jax.Array:
  """Matrix of the vector product: `skew(v) u = v x u`."""
  x, y, z = v[..., 0, :], v[..., 1, :], v[..., 2, :]
  o = jnp.zeros_like(x)
  return matrix((o, -z, y), (z, o, -x), (-y, x, o))


def matrix(*rows: tuple[jax.Array, ...]) -> jax.Array:
  """Matrix of its entries (..., W), row by row: XLA fuses the joining of a few parts with them, not that of many."""
  return jnp.stack([jnp.stack(r, axis=-2) for r in rows], axis=-3)
