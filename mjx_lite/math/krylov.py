"""Symmetric linear systems, solved by matrix-vector products."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import vector
from mjx_lite.ops import linear


class _State(NamedTuple):
  x: jax.Array
  residual: jax.Array
  direction: jax.Array
  product: jax.Array  # matrix times direction
  size: jax.Array  # (W,) r' P^-1 r of the previous residual r
  done: jax.Array
  iteration: jax.Array


def split_solve(
  solve: Callable[[jax.Array], jax.Array], rest: Callable[[jax.Array], jax.Array], b: jax.Array, digits: float, iterations: int
) -> jax.Array:
  """Solve (P + R) x = b for x (n, W) by conjugate gradients, preconditioned with P.

  The number of iterations is the number of distinct eigenvalues of P^-1 R: one if R is zero. Each iteration calls both
  functions once. With z = P^-1 r, the product (P + R) z is r + R z, so no product with P is needed.

  Args:
    solve: returns P^-1 r for r (n, W); P is positive definite.
    rest: returns R z for z (n, W); R is symmetric and P + R is positive definite.
    b: (n, W).
    digits: fraction of the precision's digits to converge: the loop ends when |residual| <= |b| eps^digits.
    iterations: largest number of iterations.

  Source: Saad, Iterative Methods for Sparse Linear Systems, algorithm 9.1; Eisenstat, Efficient implementation of a class of
  preconditioned conjugate gradient methods, SIAM J. Sci. Stat. Comput. 2 (1981).
  """
  size = vector.total(b * b)
  least = size * jnp.finfo(b.dtype).eps ** (2 * digits)
  zero = jnp.zeros_like(b)
  state = _State(
    x=zero, residual=b, direction=zero, product=zero, size=jnp.full_like(size, jnp.inf), done=~(size > 0),
    iteration=jnp.int32(0),
  )  # fmt: skip

  def step(s: _State) -> _State:
    z = solve(s.residual)
    size = vector.total(s.residual * z)
    beta = linear.materialize(size / jnp.where(s.size > 0, s.size, 1))
    direction = z + beta * s.direction
    product = s.residual + rest(z) + beta * s.product
    curvature = vector.total(direction * product)
    falls = ~s.done & (curvature > 0)
    alpha = linear.materialize(jnp.where(falls, size, 0) / jnp.where(falls, curvature, 1))
    residual = s.residual - alpha * product
    done = ~falls | ~(vector.total(residual * residual) > least)
    return _State(
      x=s.x + alpha * direction, residual=residual, direction=direction, product=product, size=size, done=done,
      iteration=s.iteration + 1,
    )  # fmt: skip

  return jax.lax.while_loop(lambda s: (s.iteration < iterations) & ~jnp.all(s.done), step, state).x
