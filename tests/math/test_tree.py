"""Products with sparse constant matrices, against the dense product."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from mjx_lite.math import tree

SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(SIZES, st.integers(0, 2**32 - 1), st.floats(0, 0.2))
def test_equals_the_dense_product(shape, seed, density):
  random = np.random.default_rng(seed)
  mask = np.where(random.random(shape) < density, random.integers(-2, 3, shape), 0).astype(float)
  x = jnp.asarray(random.normal(size=(shape[1], 3, 2)), jnp.float32)
  plan = tree.plan_sum(mask)
  np.testing.assert_allclose(tree.mask_sum(plan, x), np.einsum("nk,k...->n...", mask, x), rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(tree.dense(plan), mask)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(hnp.arrays(int, st.integers(40, 90), elements=st.integers(-1, 39)))
def test_choices_are_exact(column):
  mask = (column[:, None] == np.arange(40)).astype(float)
  plan = tree.plan_sum(mask)
  assert plan.chosen is not None
  x = jnp.asarray(np.random.default_rng(0).normal(size=(40, 2)), jnp.float32)
  np.testing.assert_array_equal(tree.mask_sum(plan, x), np.where(column[:, None] < 0, 0, x[column]))


def test_a_long_matrix_of_ones_and_twos_is_no_product():
  """Slots of contacts from their sides: as a product a block for every few rows, each of them a program of its own."""
  random = np.random.default_rng(0)
  sides = random.integers(1, 3, 2000)
  mask = np.repeat(np.eye(2000), sides, axis=1)[random.permutation(2000)]
  mask[7] = 0
  plan = tree.plan_sum(mask)
  assert plan.chosen is not None and len(plan.chosen) == 2
  x = jnp.asarray(random.normal(size=(mask.shape[1], 3)))
  np.testing.assert_allclose(tree.mask_sum(plan, x), mask @ x, rtol=1e-14)
  np.testing.assert_allclose(jax.vjp(lambda x: tree.mask_sum(plan, x), x)[1](jnp.asarray(mask[:, :3]))[0], mask.T @ mask[:, :3])


@pytest.mark.parametrize("trees", [1, 10, 60])
def test_few_products(trees):
  """A matrix of many small blocks is neither one large product nor one for each block."""
  plan = tree.plan_sum(np.kron(np.eye(trees), np.ones((4, 20))))
  cost = sum(tree.PRODUCT + block.size for *_, block in plan.blocks)
  assert cost <= min(tree.PRODUCT + 80 * trees**2, (tree.PRODUCT + 80) * trees)
  assert len(plan.blocks) <= 16
