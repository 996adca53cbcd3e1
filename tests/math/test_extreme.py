"""Largest entries, the first place that has one and the first rows that are true, beside NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.math import extreme


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 63, 65, 90])
def test_largest_and_its_first_place(n):
  """Few different numbers, so that most are there several times."""
  x = np.random.default_rng(n).integers(-5, 5, (3, n, 200)).astype(float)
  score, at = extreme.first_largest(jnp.asarray(x))
  np.testing.assert_array_equal(score, x.max(axis=-2))
  np.testing.assert_array_equal(at, x.argmax(axis=-2))
  np.testing.assert_array_equal(extreme.largest(jnp.asarray(x)), x.max(axis=-2))


@pytest.mark.parametrize("n", [5, 8, 20, 90])
def test_index_is_zero_without_a_number(n):
  assert extreme.first_largest(jnp.full((1, n, 2), jnp.nan))[1].tolist() == [[0, 0]]


@pytest.mark.parametrize("number", [0, 2, 6])
def test_first_true_rows(number):
  mask = np.random.default_rng(0).random((9, 40)) < 0.4
  found = extreme.true_rows(jnp.asarray(mask), 6, jnp.int32(number))
  for world, rows in zip(mask.T, np.asarray(found).T, strict=True):
    right = np.flatnonzero(world)[:number]
    np.testing.assert_array_equal(rows, np.pad(right, (0, 6 - len(right)), constant_values=9))


def test_derivative_is_that_of_the_largest():
  x = jax.random.normal(jax.random.key(0), (2, 30, 3), jnp.float64)
  slope = jax.grad(lambda x: jnp.sum(extreme.first_largest(x)[0]))(x)
  np.testing.assert_allclose(slope, x == x.max(axis=-2, keepdims=True))
