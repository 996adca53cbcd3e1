"""The solver of symmetric systems that are split in two: solutions, and how often it calls its functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.math import krylov

N, WIDTH = 12, 3


def _system(rank):
  """P, R of a rank, and b (N, WIDTH); the sum of both is positive definite."""
  rng = np.random.default_rng(rank)
  factor = rng.standard_normal((N, N))
  p = factor @ factor.T + np.eye(N)
  low_rank = rng.standard_normal((N, rank))
  r = low_rank @ low_rank.T - 0.3 * p * (rank == N)
  return p, r, rng.standard_normal((N, WIDTH))


def _solve(p, r, b, digits, iterations=2 * N):
  calls = [0, 0]

  def counted(k, a):
    def product(x):
      calls[k] += 1
      return jnp.asarray(a) @ x

    return product

  with jax.disable_jit():
    x = krylov.split_solve(counted(0, np.linalg.inv(p)), counted(1, r), jnp.asarray(b), digits, iterations)
  return np.asarray(x), calls


@pytest.mark.parametrize("rank", [0, 1, 4, N])
def test_solves_with_a_call_of_each_for_every_eigenvalue(rank):
  p, r, b = _system(rank)
  x, calls = _solve(p, r, b, 0.8)
  want = np.linalg.solve(p + r, b)
  np.testing.assert_allclose(x, want, rtol=0, atol=1e-9 * np.abs(want).max())
  assert calls[0] == calls[1] <= rank + 2  # one more for round-off


def test_one_iteration_where_nothing_is_left():
  p, r, b = _system(0)
  assert _solve(p, r, b, 0.9)[1] == [1, 1]
  b[:, 1] = 0  # a world that has its solution
  x, calls = _solve(p, r, b, 0.9)
  assert calls == [1, 1] and not x[:, 1].any()
  assert _solve(p, r, 0 * b, 0.9)[1] == [0, 0]


def test_digits_are_those_of_the_residual():
  p, r, b = _system(N)
  previous = 0
  for digits in (0.1, 0.3, 0.6):
    x, calls = _solve(p, r, b, digits)
    residual = np.linalg.norm(b - (p + r) @ x, axis=0) / np.linalg.norm(b, axis=0)
    assert residual.max() <= np.finfo(float).eps ** digits
    assert calls[0] > previous
    previous = calls[0]
  assert _solve(p, r, b, 0.9, iterations=2)[1] == [2, 2]
