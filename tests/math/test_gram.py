"""J' H J from its rows, of every number of them: in one sum, in several, in a loop of these; batched where worlds are many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.math import linalg


def _rows(n, nv=5, width=3):
  rng = np.random.default_rng(n)
  return jnp.asarray(rng.normal(size=(n, nv, width))), jnp.asarray(rng.normal(size=(n, nv, 1)))


@pytest.mark.parametrize("n, width", [(1, 3), (32, 3), (33, 3), (48, 3), (512, 3), (513, 3), (1100, 3), (40, 600)])
def test_sum_of_products_and_its_derivative(n, width):
  left, right = _rows(n, width=width)

  def plain(left):
    return jnp.einsum("niw,njw->ijw", left, jnp.broadcast_to(right, left.shape))

  np.testing.assert_allclose(linalg.gram(left, right), plain(left), rtol=1e-12, atol=1e-12)
  slope, expected = (jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(left) for f in (lambda x: linalg.gram(x, right), plain))
  np.testing.assert_allclose(slope, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("n", [20, 100, 300, 600])
def test_upper_triangle_alone(n):
  left, right = _rows(n, nv=7)
  upper = linalg.gram(left, right, upper=True)
  np.testing.assert_allclose(np.tril(upper.T), np.tril(linalg.gram(left, right).T), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [40, 500])
def test_worlds_are_not_moved_in_front(n):
  """A batched product would transpose its operands, which took longer than the product."""
  program = mjx.jit(linalg.gram).lower(*(jnp.zeros((n, 25, 64)),) * 2).compile().as_text() or ""
  assert "ENTRY" in program and " dot(" not in program and " transpose(" not in program
