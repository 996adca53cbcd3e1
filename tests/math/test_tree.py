"""Products with sparse constant matrices, against the dense product."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from mjx_lite.math import tree

SIZES = st.tuples(st.integers(1, 90), st.integers(1, 90))
pytestmark = pytest.mark.usefixtures("tiles_in_regions")
settings = functools.partial(
  hypothesis.settings, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)  # the fixture is the same for all examples


@settings(max_examples=60)
@hypothesis.given(SIZES, st.integers(0, 2**32 - 1), st.floats(0, 0.2))
def test_equals_the_dense_product(shape, seed, density):
  random = np.random.default_rng(seed)
  mask = np.where(random.random(shape) < density, random.integers(-2, 3, shape), 0).astype(float)
  x = jnp.asarray(random.normal(size=(shape[1], 3, 2)), jnp.float32)
  plan = tree.plan_sum(mask)
  np.testing.assert_allclose(tree.mask_sum(plan, x), np.einsum("nk,k...->n...", mask, x), rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(plan.matrix, mask)


@settings(max_examples=20)
@hypothesis.given(SIZES, st.integers(0, 2**32 - 1), st.floats(0, 0.2), st.sampled_from([1, 16, 40]))
def test_products_summed_equal_their_sums(shape, seed, density, worlds):
  random = np.random.default_rng(seed)
  plan = tree.plan_sum((random.random(shape) < density) * random.integers(1, 3, shape[1]).astype(float))
  x, y = (jnp.asarray(random.normal(size=(shape[1], n, worlds))) for n in (3, 1))
  f, g = (lambda x, y: tree.mask_sum(plan, x, y)), (lambda x, y: tree.mask_sum(plan, x * y))
  np.testing.assert_allclose(f(x, y), np.einsum("nk,k...->n...", plan.matrix, x * y), rtol=1e-12, atol=1e-12)
  out, back = jax.vjp(f, x, y)
  for ours, plain in zip(back(out), jax.vjp(g, x, y)[1](out), strict=True):
    np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
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
  blocks = [block.matrix for run in plan.runs for block in run.blocks for _ in range(run.number)]
  products = sum(len(run.blocks) for run in plan.runs)
  assert products * tree.PRODUCT + sum(b.size for b in blocks) <= min(tree.PRODUCT + 80 * trees**2, (tree.PRODUCT + 80) * trees)
  assert products <= 16


KINDS = st.tuples(st.integers(1, 7), *[st.integers(1, 12)] * 2, st.integers(0, 5), st.integers(0, 3))


@settings(max_examples=60)
@hypothesis.given(st.lists(KINDS, max_size=4), st.data())
def test_equal_parts_are_one_product(kinds, data):
  """Trees that are alike, others between them, empty rows and columns around and within."""
  random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
  parts = []
  for count, rows, cols, above, beside in kinds:
    part = np.zeros((rows + above, cols + beside))
    part[above:, beside:] = random.integers(-1, 2, (rows, cols))
    parts += [part] * count
  size = np.sum([p.shape for p in parts], axis=0) if parts else np.zeros(2, int)
  mask = np.zeros(size + data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
  row = col = 0
  for part in parts:
    mask[row : row + len(part), col : col + part.shape[1]] = part
    row, col = row + len(part), col + part.shape[1]
  plan = tree.plan_sum(mask)
  np.testing.assert_array_equal(plan.matrix, mask)
  np.testing.assert_array_equal(plan.transpose.matrix, mask.T)
  x = jnp.asarray(random.normal(size=(mask.shape[1], 3, 2)), jnp.float32)
  np.testing.assert_allclose(tree.mask_sum(plan, x), np.einsum("nk,k...->n...", mask, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gap", [0, 2])
def test_trees_that_are_alike_are_one_product(gap):
  """Also behind a first row for the world, with dofs between them that nothing selects, and where a part is cut in two."""
  part = np.zeros((40 + gap, 60 + gap))
  part[:20, :30] = part[20:40, 30:60] = 1
  part[0, 59] = 1
  mask = np.concatenate([np.zeros((1, 600 + 10 * gap)), np.kron(np.eye(10), part)])
  plan = tree.plan_sum(mask)
  assert [run.number for run in plan.runs if run.blocks[0][2] < run.blocks[0][3]] == [10]
  x = jnp.asarray(np.random.default_rng(0).normal(size=(mask.shape[1], 32)))  # of fewer worlds products are sums
  text = jax.jit(lambda x: tree.mask_sum(plan, x)).lower(x).as_text()
  assert text.count("dot_general") == len(plan.runs[-1].blocks)
  np.testing.assert_allclose(tree.mask_sum(plan, x), mask @ x, rtol=1e-12)
  back = jax.vjp(lambda x: tree.mask_sum(plan, x), x)[1](jnp.asarray(mask[:, :32]))[0]
  np.testing.assert_allclose(back, mask.T @ mask[:, :32], rtol=1e-12)


@settings(max_examples=30)
@hypothesis.given(
  st.tuples(st.integers(1, 30), st.integers(1, 30)),
  st.sampled_from(["none", "rows", "columns"]),
  st.sampled_from([1, 2, 16]),
  st.data(),
)
def test_few_worlds_add(shape, weighted, worlds, data):
  """Any matrix of ones, or with a weight for each row or column; forwards and back."""
  random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
  mask = np.kron(np.eye(data.draw(st.integers(1, 3))), random.random(shape) < random.random())
  weight = random.integers(-2, 3, len(mask) if weighted == "rows" else mask.shape[1])
  mask = mask * {"none": 1, "rows": weight[:, None], "columns": weight}[weighted]
  plan = tree.plan_sum(mask)
  assert plan.weights is not None
  x = jnp.asarray(random.normal(size=(mask.shape[1], 2, worlds)))
  text = jax.jit(lambda x: tree.mask_sum(plan, x)).lower(x).as_text()
  assert "dot_general" not in text and (weighted != "none" or "multiply" not in text)
  found, back = jax.vjp(lambda x: tree.mask_sum(plan, x), x)
  np.testing.assert_allclose(found, np.einsum("nk,k...->n...", mask, x), rtol=1e-12, atol=1e-12)
  np.testing.assert_allclose(back(found)[0], np.einsum("nk,n...->k...", mask, found), rtol=1e-12, atol=1e-11)


@settings(max_examples=8)
@hypothesis.given(st.sampled_from(["chains", "weights", "signs"]), st.integers(1, 3), st.sampled_from([1, 16]), st.data())
def test_few_worlds_add_many_rows_in_a_loop(kind, count, worlds, data):
  """And fetch rows that are the same; a matrix that is nearly empty, or whose rows have two entries, needs no weights."""
  random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
  mask = np.tri(90) if kind == "chains" else (random.random((90, 300)) < 0.02).astype(float)
  mask = np.kron(np.eye(count), mask[random.integers(0, 90, 120)])
  weight = {"chains": np.ones(1), "weights": random.integers(1, 3, mask.shape[1]), "signs": random.integers(-2, 3, mask.shape)}
  mask = mask * weight[kind]
  plan = tree.plan_sum(mask)
  x, y = (jnp.asarray(random.normal(size=(mask.shape[1], 2, worlds))) for _ in range(2))
  text = jax.jit(lambda x: tree.mask_sum(plan, x)).lower(x).as_text()
  assert "dot_general" not in text and text.count("stablehlo.add") < 100
  found, back = jax.vjp(lambda x: tree.mask_sum(plan, x), x)
  np.testing.assert_allclose(found, np.einsum("nk,k...->n...", mask, x), rtol=1e-11, atol=1e-11)
  np.testing.assert_allclose(back(found)[0], np.einsum("nk,n...->k...", mask, found), rtol=1e-11, atol=1e-10)
  np.testing.assert_allclose(tree.mask_sum(plan, x, y), np.einsum("nk,k...->n...", mask, x * y), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("matrix", [lambda below: below, lambda below: below.T])
def test_additions_of_a_tree(matrix):
  """One for each row that has a parent, or for each child; a tile of worlds adds in a loop of as many iterations."""
  random = np.random.default_rng(0)
  below = np.eye(60)
  for k in range(59, 0, -1):
    below[random.integers(k)] += below[k]
  plan = tree.plan_sum(matrix(below))
  assert sum(len(part.pairs) * part.number for part in plan.additions) == 59
  x = jnp.asarray(random.normal(size=(60, 16)))
  one, tile = (jax.jit(lambda x: tree.mask_sum(plan, x)).lower(y).as_text() for y in (x[:, :1], x))
  assert "while" not in one and one.count("stablehlo.add") == 59
  assert "dense<59> : tensor<i64>" in tile and tile.count("stablehlo.add") < 10
  np.testing.assert_allclose(tree.mask_sum(plan, x), plan.matrix @ x, rtol=1e-12, atol=1e-12)


def test_trees_that_begin_with_empty_rows_are_added_up_together():
  """The dofs before each dof of its tree: the first has none."""
  plan = tree.plan_sum(np.kron(np.eye(10), np.tri(7, k=-1)))
  (part,) = plan.additions
  assert part.number == 10 and len(part.pairs) == 5
  x = jnp.asarray(np.random.default_rng(0).normal(size=(70, 2, 16)))
  np.testing.assert_allclose(tree.mask_sum(plan, x), np.einsum("nk,k...->n...", plan.matrix, x), rtol=1e-12, atol=1e-12)
