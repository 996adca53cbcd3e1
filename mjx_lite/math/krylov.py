"""Symmetric systems that are solved by products with their matrix."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import vector


class _State(NamedTuple):
  x: jax.Array
  residual: jax.Array
  direction: jax.Array
  size: jax.Array  # (W,) square of the residual's length in the metric of the preconditioner
  done: jax.Array
  count: jax.Array


def conjugate_gradients(
  mul: Callable[[jax.Array], jax.Array], precondition: Callable[[jax.Array], jax.Array], b: jax.Array, iterations: int
) -> jax.Array:
  """Solution x (n, W) of A x = b, to the last quarter of the digits.

  As many iterations as the preconditioned matrix has different eigenvalues: one where the preconditioner is the inverse.

  Args:
    mul: product with the positive definite matrix, of (n, W).
    precondition: an approximation of the solution, symmetric and positive definite too.
    b: (n, W).
    iterations: at most so many.

  Source: Saad, Iterative Methods for Sparse Linear Systems, algorithm 9.1.
  """
  x = precondition(b)
  size = vector.total(b * x)
  least = size * jnp.finfo(b.dtype).eps ** 1.5
  # the first step goes from zero along x
  state = _State(jnp.zeros_like(b), b, x, size, ~(size > 0), jnp.int32(0))

  def step(s: _State) -> _State:
    product = mul(s.direction)
    curvature = vector.total(s.direction * product)
    alpha = jnp.where(s.done | ~(curvature > 0), 0, s.size / jnp.where(curvature > 0, curvature, 1))
    residual = s.residual - alpha * product
    preconditioned = precondition(residual)
    size = vector.total(residual * preconditioned)
    direction = preconditioned + size / jnp.where(s.size > 0, s.size, 1) * s.direction
    done = s.done | ~(size > least) | ~(curvature > 0)
    return _State(s.x + alpha * s.direction, residual, direction, size, done, s.count + 1)

  return jax.lax.while_loop(lambda s: (s.count < iterations) & ~jnp.all(s.done), step, state).x
