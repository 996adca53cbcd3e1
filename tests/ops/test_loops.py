"""Loops whose number of iterations is known only at run time: values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.ops import loops


def _polynomial(number, most, x, table, row):
  """((1 x + t_0) x + t_1) x ..., with t a row, chosen at run time, of a table that the body closes over."""

  def body(k, state):
    value, count = state
    return value * x + table[row, k], count + 1

  return loops.repeat(body, number, most, (jnp.ones_like(x), jnp.int32(0)))


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, mjx.jit], ids=["eager", "jax.jit", "mjx.jit"])
def test_value_and_derivatives(most, jit):
  x, table = jnp.array([0.5, -2.0]), jnp.arange(8.0).reshape(2, 4)

  def total(x, table, number):
    return jnp.sum(_polynomial(number, most, x, table, jnp.int32(1))[0])

  def expected(x, table, number):
    value = jnp.ones_like(x)
    for k in range(number):
      value = value * x + table[1, k]
    return jnp.sum(value)

  for number in range(most + 1):
    want = jax.value_and_grad(expected, argnums=(0, 1))(x, table, number)
    forward = jax.jvp(lambda x, t, n=number: expected(x, t, n), (x, table), (x, table))[1]
    got = jit(jax.value_and_grad(total, argnums=(0, 1)))(x, table, jnp.int32(number))
    jax.tree.map(np.testing.assert_allclose, got, want)
    got = jit(lambda x, t, n: jax.jvp(lambda x, t: total(x, t, n), (x, t), (x, t))[1])(x, table, jnp.int32(number))
    np.testing.assert_allclose(got, forward)


def test_derivatives_of_a_compiled_function():
  """The table that the body closes over varies only when the compiled function is differentiated: no derivative may be lost."""
  x, table = jnp.array([0.5, -2.0]), jnp.arange(8.0).reshape(2, 4)
  compiled = jax.jit(lambda x, t, row: jnp.sum(_polynomial(jnp.int32(3), 4, x, t, row)[0]))
  plain = jax.grad(lambda x, t: jnp.sum(((x + t[1, 0]) * x + t[1, 1]) * x + t[1, 2]), argnums=(0, 1))
  for got, want in zip(jax.grad(compiled, argnums=(0, 1))(x, table, jnp.int32(1)), plain(x, table), strict=True):
    np.testing.assert_allclose(got, want)


def test_no_iteration_runs_beyond_the_number():
  value, count = jax.jit(lambda n: _polynomial(n, 4, jnp.ones(2), jnp.full((2, 4), jnp.nan).at[0, :2].set(1), 0))(2)
  assert count == 2
  np.testing.assert_array_equal(value, [3, 3])
