"""Sums of rows that an index of the trace sends somewhere, world by world, against NumPy's."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import assert_gradients

from mjx_lite.math import groups


def added(sums, x, index):
  out = np.array(sums)
  for k, w in zip(*np.nonzero(index >= 0), strict=True):
    out[index[k, w], ..., w] += x[k, ..., w]
  return out


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  st.sampled_from([1, 2, 16, 40]), st.integers(1, 20), st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**32 - 1)
)
def test_sums_are_those_of_numpy(worlds, n, size, share, seed):
  """Of one world, of a tile, of many; to more rows than there are of x, and to fewer; several to one row, some to none."""
  rng = np.random.default_rng(seed)
  x, sums = rng.normal(size=(n, 3, worlds)) * (rng.random((n, 1, worlds)) < share), rng.normal(size=(size, 3, worlds))
  index = rng.integers(-1, size, (n, worlds), dtype=np.int32)
  index[:, ::2] = index[:1, ::2]
  found = jax.jit(groups.scatter_add)(*map(jnp.asarray, (sums, x, index)))
  np.testing.assert_allclose(found, added(sums, x, index), atol=1e-12)


@pytest.mark.parametrize("size", [7, 40])
@pytest.mark.parametrize("worlds", [1, 16, 40])
def test_gradients(size, worlds):
  rng = np.random.default_rng(worlds)
  x, sums, weight = rng.normal(size=(9, 2, worlds)), rng.normal(size=(size, 2, worlds)), rng.normal(size=(size, 2, worlds))
  x[::2] = 0  # entries that are zero have a derivative too
  index = jnp.asarray(rng.integers(-1, size, (9, worlds), dtype=np.int32))

  def loss(sums, x):
    out = groups.scatter_add(sums, x, index)
    return jnp.sum(weight * (out * out + out))

  assert_gradients(loss, (sums, x), [rng.normal(size=y.shape) for y in (sums, x)], names=["sums", "x"])
  np.testing.assert_allclose(jax.grad(loss, 1)(sums, x), jax.jacfwd(loss, 1)(sums, x), atol=1e-12)
