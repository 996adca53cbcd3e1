"""Pairs of all worlds side by side: what is wanted is made, in as many rounds as it takes, and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mjx_lite.compiler import regions
from mjx_lite.ops.lanes import map_where


def squares(x, weight, wanted):
  """Squares of x (n, 2, W), times weights (n, 1) of all worlds, where wanted (n, W); -1 elsewhere. And how many were made."""

  def make(lanes):
    a, b = (v if lanes is None else lanes.take(v) for v in (x, weight))
    return a * a * b[:, None], jnp.full((a.shape[0], a.shape[-1]), a.shape[-1])

  return map_where(wanted, make, (jnp.full_like(x, -1), jnp.zeros(wanted.shape, int)))


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 7), st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_what_is_wanted_is_made(number, width, part, seed):
  rng = np.random.default_rng(seed)
  x, weight, wanted = rng.normal(size=(number, 2, width)), rng.normal(size=(number, 1)), rng.random((number, width)) < part
  found, lanes = jax.jit(squares)(x, weight, wanted)
  np.testing.assert_array_equal(found, np.where(wanted[:, None], x * x * weight[:, None], -1))
  np.testing.assert_array_equal(np.asarray(lanes) > 0, wanted)


def sifted(x, worth, wanted):
  """Squares of x (n, 2, W) where wanted and worth it (n, W); -1 elsewhere. And the lanes that they were made in."""

  def make(lanes, asked):
    a, good = (v if lanes is None else lanes.take(v) for v in (x, worth))
    return (jnp.where(asked, a * a, jnp.nan), jnp.arange(good.shape[-1]) + 0 * good), good

  return map_where(wanted, make, (jnp.full_like(x, -1), jnp.zeros(wanted.shape, int)), sift=True)


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 7), st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_what_is_wanted_is_sifted(number, width, part, kept, seed):
  rng = np.random.default_rng(seed)
  x, wanted, worth = rng.normal(size=(number, 2, width)), rng.random((number, width)) < part, rng.random((number, width)) < kept
  found, lane = jax.tree.map(np.asarray, jax.jit(sifted)(x, worth, wanted))
  both = wanted & worth
  np.testing.assert_array_equal(found.swapaxes(0, 1)[:, both], (x * x).swapaxes(0, 1)[:, both])
  assert np.isfinite(found).all()
  if regions.is_tile(width):
    np.testing.assert_array_equal(found.swapaxes(0, 1)[:, ~both], -1)
    np.testing.assert_array_equal(lane[both], np.arange(both.sum()) % 16)  # next to each other again


@pytest.mark.parametrize("width", [3, 33])
def test_derivatives_of_what_is_sifted(width):
  rng = np.random.default_rng(0)
  x, wanted, worth = rng.normal(size=(5, 2, width)), rng.random((5, width)) < 0.7, rng.random((5, width)) < 0.5

  def total(x):
    return jnp.sum(jnp.where((wanted & worth)[:, None], sifted(x, jnp.asarray(worth), jnp.asarray(wanted))[0], 0))

  slope, value = jax.jit(jax.grad(total))(jnp.asarray(x)), jax.jvp(total, (jnp.asarray(x),), (jnp.ones_like(x),))
  expected = np.where((wanted & worth)[:, None], 2 * x, 0)
  np.testing.assert_allclose(slope, expected, rtol=1e-12)
  np.testing.assert_allclose(value[1], expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_derivatives(number):
  rng = np.random.default_rng(0)
  x, weight, wanted = rng.normal(size=(number, 2, 33)), rng.normal(size=(number, 1)), rng.random((number, 33)) < 0.7
  wanted |= number < 3  # so few are all made
  slope = jax.jit(jax.grad(lambda x, w: jnp.sum(squares(x, w, wanted)[0]), argnums=(0, 1)))(jnp.asarray(x), jnp.asarray(weight))
  by_x = np.where(wanted[:, None], 2 * x * weight[:, None], 0)
  by_weight = np.where(wanted[:, None], x * x, 0).sum(axis=(1, 2))[:, None]
  for ours, theirs in zip(slope, (by_x, by_weight), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)  # sums in another order


def test_lanes_are_fewer_than_pairs():
  x, wanted = jnp.ones((12, 2, 64)), jnp.zeros((12, 64), bool).at[3, ::2].set(True)
  lanes = squares(x, jnp.ones((12, 1)), wanted)[1]
  assert set(np.unique(lanes)) == {0, 32}
