"""What is written to memory before it is used: its place in XLA's program, and its derivatives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.core import linear
from mjx_lite.math import vector


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is lowered to nothing: XLA on CPU alone repeats work")
def test_operand_of_a_constant_product_is_computed_in_its_own_shape():
  """Not in the product's, where three components and the worlds are one axis."""

  def product(x, y):
    return vector.combine_rows(np.tri(9), x * y[:, None])

  program = mjx.jit(product).lower(jnp.zeros((9, 3, 64)), jnp.zeros((9, 64))).compile().as_text() or ""
  assert re.search(r"f64\[9,3,64\]\S* fusion\(.*kind=kLoop", program)
  assert not re.search(r"f64\[9,192\]\S* fusion\(.*kind=kLoop", program)


def test_it_changes_no_value_and_no_derivative():
  x = jnp.arange(1.0, 4)

  def cubes(x):
    y, index = linear.materialized((x**3, jnp.arange(3)))
    return jnp.sum(y * index)

  np.testing.assert_allclose(jax.grad(cubes)(x), 3 * x**2 * np.arange(3))
  np.testing.assert_allclose(jax.jvp(cubes, (x,), (x,))[1], jnp.sum(3 * x**3 * np.arange(3)))
  np.testing.assert_allclose(jax.jit(jax.hessian(cubes))(x), np.diag(6 * x * np.arange(3)))
  np.testing.assert_allclose(jax.vmap(jax.grad(cubes))(jnp.stack([x, x])), np.stack([3 * x**2 * np.arange(3)] * 2))
