"""Linear functions with a transpose of their own: values, derivatives of both modes, batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from mjx_lite.core import linear

RNG = np.random.default_rng(0)
FUNCTIONS = {
  **{
    f"choose {n} of {size}": (lambda x, i: linear.choose(x, i), lambda x, i: x[i], (size, 2, 3), RNG.integers(0, size, n))
    for n, size in ((5, 7), (20, 3), (300, 300), (4, 1))
  },
  "choose none": (linear.choose, lambda x, i: x[i], (3, 2), np.zeros(0, int)),
  **{f"add_up {axis}": (linear.add_up, lambda x, a: x.sum(a), (4, 3, 5, 2), axis) for axis in (-2, -3)},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_derivatives_and_batches(name):
  run, plain, shape, given = FUNCTIONS[name]
  x = jnp.asarray(RNG.normal(size=shape))
  f, g = (lambda x: run(x, given)), (lambda x: plain(x, given))
  np.testing.assert_allclose(f(x), g(x), rtol=1e-14)
  expected = jax.jacfwd(g)(x)
  np.testing.assert_array_equal(jax.jacfwd(f)(x), expected)
  np.testing.assert_array_equal(jax.jacrev(f)(x), expected)
  check_grads(lambda x: f(x) ** 2, (x,), 2, rtol=1e-5)
  for axis in range(3):
    many = jnp.stack([x, 2 * x], axis=min(axis, x.ndim))
    found = jax.jit(jax.vmap(f, in_axes=min(axis, x.ndim)))(many)
    np.testing.assert_allclose(found, [f(x), f(2 * x)], rtol=1e-14)


def test_reverse_mode_has_no_scatter():
  """XLA makes a loop of each."""
  index = RNG.permutation(40)[:20]
  text = jax.jit(jax.grad(lambda x: (linear.choose(x, index) ** 2).sum())).lower(jnp.ones((40, 3))).as_text()
  assert "gather" in text and "scatter" not in text
