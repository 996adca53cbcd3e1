"""The trigonometric functions beside numpy's in higher precision, their derivatives, and what XLA makes of them."""

import jax
import jax.numpy as jnp
import lane_tests
import numpy as np
import pytest

import mjx_lite as mjx
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 10, 1e3, 6e3, 1e5, 1e9])
def test_cos_and_sin(dtype, size):
  """To the last place, or to what two units in the last place of a large angle are worth; a unit circle whatever the angle."""
  x = np.random.default_rng(2).uniform(-size, size, 100_000).astype(dtype)
  if size == 10:
    x[:9] = np.arange(-4, 5) * np.pi / 2
  error = np.finfo(dtype).eps + (2 * np.spacing(np.abs(x)) if size > 6e3 else 0)
  cos, sin = map(np.asarray, mjx.jit(trig.cos_sin)(x))
  for found, right in (cos, np.cos), (sin, np.sin):
    assert (np.abs(found - right(x.astype(np.longdouble))) < error).all()
  np.testing.assert_allclose(cos * cos + sin * sin, 1, rtol=4 * np.finfo(dtype).eps)


def test_cos_and_sin_of_what_is_no_angle():
  cos, sin = trig.cos_sin(jnp.array([np.inf, np.nan, 0], jnp.float32))
  np.testing.assert_array_equal(cos, [np.nan, np.nan, 1])
  np.testing.assert_array_equal(sin, [np.nan, np.nan, 0])


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
  for k, name in enumerate(("cos", "sin")):
    for order in (jax.grad, lambda f: jax.grad(jax.grad(f))):
      found = jax.vmap(order(lambda x, k=k: trig.cos_sin(x)[k]))(jnp.float32(y))
      np.testing.assert_allclose(found, jax.vmap(order(getattr(jnp, name)))(jnp.float32(y)), rtol=1e-6, atol=1e-7)


def test_no_function_is_called_for_each_number():
  text = jax.jit(trig.arctan2).lower(jnp.ones(64), jnp.ones(64)).compile().as_text()
  assert "atan2(" not in text
  text = jax.jit(trig.cos_sin).lower(jnp.ones(64, jnp.float32)).compile().as_text()
  assert "cosine(" not in text and "sine(" not in text


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_user_s_functions_in_machine_code(dtype):
  """As in callbacks: what NumPy computes, at zero, at infinity and of what is not a number too."""
  rng = np.random.default_rng(0)
  x = np.concatenate([rng.normal(0, 2, 60), rng.uniform(-1, 1, 60), 1e-6 * rng.normal(size=9)]).astype(dtype)
  x = np.concatenate([x, np.array([0, -0.0, 1, -1, 30, -30, np.inf, -np.inf, np.nan], dtype)])[None]
  for name in ("sin", "cos", "tan", "arctan", "arcsin", "arccos", "tanh", "log1p"):
    (got,) = lane_tests.run(getattr(jnp, name), x)
    with np.errstate(all="ignore"):
      want = getattr(np, name)(x)
      error = np.abs(np.asarray(got) - want)
    scale = 1 + np.abs(want) ** (2 if name == "tan" else 1)  # near a right angle, round-off of the angle is amplified
    finite = np.isfinite(want)
    assert np.all(error[finite] <= 8 * np.finfo(dtype).eps * scale[finite]), name
    np.testing.assert_array_equal(np.asarray(got)[~finite], want[~finite], err_msg=name)
  y = rng.permuted(x, axis=1)
  y[:, -9:] = np.where(np.isinf(x[:, -9:]), 1, y[:, -9:])
  for function, args in ((jax.nn.sigmoid, (x,)), (jnp.arctan2, (x[:, :129], y[:, :129]))):
    (got,), want = lane_tests.run(function, *args), function(*args)
    np.testing.assert_allclose(got, want, rtol=8 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)
