"""Dense symmetric systems, one per world."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import safe


class Cholesky(NamedTuple):
  """Factor of a scaled matrix: `S A S = L L'` with S = diag(scale)."""

  lower: jax.Array  # (W, n, n)
  scale: jax.Array  # (W, n)


def cholesky(a: jax.Array) -> Cholesky:
  """Factor symmetric positive definite matrices (n, n, W), scaled to a unit diagonal first (robust in float32)."""
  a = jnp.moveaxis(a, -1, 0)
  scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(a, axis1=1, axis2=2), safe.MINVAL))
  scaled = a * scale[:, :, None] * scale[:, None, :]
  return Cholesky(jax.lax.linalg.cholesky(scaled, symmetrize_input=False), scale)


def cholesky_solve(f: Cholesky, x: jax.Array) -> jax.Array:
  """Solve for x (n, W)."""
  b = (x.T * f.scale)[..., None]
  b = jax.lax.linalg.triangular_solve(f.lower, b, left_side=True, lower=True)
  b = jax.lax.linalg.triangular_solve(f.lower, b, left_side=True, lower=True, transpose_a=True)
  return (b[..., 0] * f.scale).T
