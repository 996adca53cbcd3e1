"""The inverse trigonometric functions beside numpy's in higher precision, their derivatives, and what XLA makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.math import trig

DTYPES = np.float32, np.float64


def _errors(found, right):
  """In units of the last place of the right result (long double)."""
  return np.abs(np.asarray(found) - right) / np.spacing(np.abs(right).astype(found.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arctan2(dtype):
  rng = np.random.default_rng(0)
  phi, size = rng.uniform(-np.pi, np.pi, 200_000), 10 ** rng.uniform(-10, 10, 200_000)
  y, x = (size * np.sin(phi)).astype(dtype), (size * np.cos(phi)).astype(dtype)
  assert _errors(trig.arctan2(y, x), np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))).max() < 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_arctan2_on_the_axes(dtype):
  y, x = np.meshgrid(np.array([0.0, -0.0, 1, -1], dtype), np.array([0.0, 1, -1], dtype))
  found, right = np.asarray(trig.arctan2(y, x)), np.arctan2(y, x)
  np.testing.assert_allclose(found, right, rtol=4 * np.finfo(dtype).eps)
  np.testing.assert_array_equal(np.signbit(found), np.signbit(right))
  assert np.isnan(trig.arctan2(dtype(np.nan), dtype(1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["arcsin", "arccos"])
def test_arcsin_and_arccos(name, dtype):
  rng = np.random.default_rng(1)
  near = 1 - 10 ** rng.uniform(-15, -1, 1000)
  x = np.concatenate([rng.uniform(-1, 1, 100_000), near, -near, 1e-6 * near, [0, 1, -1]]).astype(dtype)
  right = getattr(np, name)(x.astype(np.longdouble))
  assert _errors(getattr(trig, name)(x), right).max() < 5
  assert np.isnan(getattr(trig, name)(dtype(1.1)))


def test_derivatives():
  y, x = jnp.array([0.3, -2.0, 0.5, 1.0]), jnp.array([1.0, 0.1, -3.0, 0.0])
  for k in (0, 1):
    found, right = (jax.vmap(jax.grad(f, k))(y, x) for f in (trig.arctan2, jnp.arctan2))
    np.testing.assert_allclose(found, right, rtol=1e-6)
  u = jnp.array([-0.99, -0.3, 0.0, 0.7])
  for name in ("arcsin", "arccos"):
    for order in (jax.grad, lambda f: jax.grad(jax.grad(f))):
      found, right = (jax.vmap(order(getattr(module, name)))(u) for module in (trig, jnp))
      np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-6)


def test_no_function_is_called_for_each_number():
  text = jax.jit(trig.arctan2).lower(jnp.ones(64), jnp.ones(64)).compile().as_text()
  assert "atan2(" not in text
