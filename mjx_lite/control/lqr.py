"""The linear-quadratic regulator about an equilibrium.

Tests: tests/control/test_control.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.control.dynamics import difference


class Lqr(NamedTuple):
  """Feedback u = u0 - K x, which minimizes the sum of x'Q x + u'R u over an infinite horizon. The minimum is x'P x."""

  K: jax.Array  # (nu, nx)
  P: jax.Array  # (nx, nx)


def lqr(A: jax.Array, B: jax.Array, Q: jax.Array, R: jax.Array, *, doublings: int = 30) -> Lqr:
  """Solve the discrete Riccati equation by doubling: after n iterations the cost is that of 2^n steps.

  Args:
    A: (nx, nx), from `linearize`.
    B: (nx, nu), from `linearize`.
    Q: (nx, nx), positive semidefinite.
    R: (nu, nu), positive definite.
    doublings: number of iterations.

  If no feedback stabilizes the system, K and P are not finite.

  Reference: Chu, Fan, Lin and Wang, Structure-preserving algorithms for periodic discrete-time algebraic Riccati equations,
  International Journal of Control 77(8), 2004.
  """
  A, B, Q, R = (jnp.asarray(x) for x in (A, B, Q, R))
  nx, nu = B.shape
  if (A.shape, Q.shape, R.shape) != ((nx, nx), (nx, nx), (nu, nu)):
    raise ValueError(
      f"A {A.shape}, B {B.shape}, Q {Q.shape} and R {R.shape} must have the shapes (nx, nx), (nx, nu), (nx, nx) and (nu, nu)."
    )
  eye = jnp.eye(nx, dtype=A.dtype)

  def double(carry, _):
    F, G, H = carry
    solution = jnp.linalg.solve(eye + G @ H, jnp.concatenate([F, G], axis=1))
    W, V = solution[:, : len(F)], solution[:, len(F) :]  # (I + G H)^-1 times F and G
    G, H = G + F @ V @ F.T, H + F.T @ H @ W
    return (F @ W, 0.5 * (G + G.T), 0.5 * (H + H.T)), None

  (_, _, P), _ = jax.lax.scan(double, (A, B @ jnp.linalg.solve(R, B.T), Q), length=doublings)
  return Lqr(jnp.linalg.solve(R + B.T @ P @ B, B.T @ P @ A), P)


def feedback(m: mjx.Model, d: mjx.Data, K: jax.Array) -> Callable[[mjx.Model, mjx.Data], jax.Array]:
  """Return the policy u = d.ctrl - K x about the state and control of d, for `mjx.rollout(m, d, policy, steps=...)`.

  Args:
    m: the model.
    d: the equilibrium state, with its control.
    K: (nu, nx), from `lqr`.
  """
  return lambda _, now: d.ctrl - K @ difference(m, d, now)
