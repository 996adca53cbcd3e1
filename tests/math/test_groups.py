"""Sums of rows that an index of the trace sends somewhere, world by world, against NumPy's."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import assert_gradients

from mjx_lite.math import groups


def summed(x, index, size):
  out = np.zeros((size, *x.shape[1:]))
  for k, w in np.ndindex(index.shape):
    out[index[k, w], ..., w] += x[k, ..., w]
  return out


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  st.sampled_from([1, 2, 16, 40]), st.integers(1, 20), st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**32 - 1)
)
def test_sums_are_those_of_numpy(worlds, n, size, share, seed):
  """Of one world, of a tile of them, of many; to more rows than there are of x, and to fewer; several to the same row."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(n, 3, worlds)) * (rng.random((n, 1, worlds)) < share)
  index = rng.integers(0, size, (n, worlds), dtype=np.int32)
  index[:, ::2] = index[:1, ::2]
  np.testing.assert_allclose(groups.scatter_add(jnp.asarray(x), jnp.asarray(index), size), summed(x, index, size), atol=1e-12)


@pytest.mark.parametrize("size", [7, 40])
@pytest.mark.parametrize("worlds", [1, 16, 40])
def test_gradients(size, worlds):
  rng = np.random.default_rng(worlds)
  x, weight = rng.normal(size=(9, 2, worlds)), rng.normal(size=(size, 2, worlds))
  x[::2] = 0  # entries that are zero have a derivative too
  index = jnp.asarray(rng.integers(0, size, (9, worlds), dtype=np.int32))
  loss = lambda x: jnp.sum(weight * groups.scatter_add(x, index, size) ** 2 + weight * groups.scatter_add(x, index, size))  # noqa: E731
  assert_gradients(loss, (x,), [rng.normal(size=x.shape)], names=["x"])
  np.testing.assert_allclose(jax.grad(loss)(x), jax.jacfwd(loss)(x), atol=1e-12)
