"""What is written to memory before it is used: its place in XLA's program, and its derivatives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.math import vector
from mjx_lite.ops import linear

where_xla_repeats = pytest.mark.skipif(
  jax.default_backend() != "cpu", reason="elsewhere it is lowered to nothing: XLA on CPU alone repeats work"
)


@where_xla_repeats
def test_operand_of_a_constant_product_is_computed_in_its_own_shape():
  """Not in the product's, where three components and the worlds are one axis."""

  def product(x, y):
    return vector.combine_rows(np.tri(9), x * y[:, None])

  program = mjx.jit(product).lower(jnp.zeros((9, 3, 64)), jnp.zeros((9, 64))).compile().as_text() or ""
  assert re.search(r"f64\[9,3,64\]\S* fusion\(.*kind=kLoop", program)
  assert not re.search(r"f64\[9,192\]\S* fusion\(.*kind=kLoop", program)


@where_xla_repeats
@pytest.mark.parametrize("jit", [jax.jit, mjx.jit])
def test_a_choice_is_made_once(jit):
  """Each of its two comparisons is in the program once, though four results depend on it: rounded anew, they might differ."""

  def use(x, y):
    first, second = linear.materialize((x * x + x <= y, x * y <= 1))
    return jnp.where(first, y, x), jnp.where(second, y, x) * x[0], jnp.sum(jnp.where(first, x, y), axis=0), first, second

  x, y = jax.random.normal(jax.random.key(0), (2, 6, 16))
  program = jit(use).lower(x, y).compile()
  assert len(re.findall(r" compare\([^\n]*direction=LE", program.as_text() or "")) == 2
  first, second = program(x, y)[-2:]
  np.testing.assert_array_equal((first, second), (x * x + x <= y, x * y <= 1))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is lowered to nothing: LLVM runs on CPU alone")
def test_what_is_computed_apart_does_not_overwrite_its_operands():
  """They are wanted by the barrier behind it, in XLA's program as it is run."""

  def gradient(x, keep):
    y = linear.materialize(jnp.sin(x))
    z = y - jnp.cos(x)
    return 2 * (linear.no_alias(z, y) if keep else linear.materialize(z))

  for keep in (True, False):
    program = mjx.jit(gradient, static_argnums=1).lower(jnp.zeros((9, 64)), keep).compile().as_text() or ""
    assert len(re.findall(r"\(f64\[9,64\]\S* f64\[9,64\]\S*\) call", program)) == keep


def test_computed_apart_changes_no_value_and_no_derivative():
  x = jnp.arange(1.0, 4)

  def cubes(x):
    return jnp.sum(linear.no_alias(x**3, x))

  np.testing.assert_allclose(jax.jit(jax.grad(cubes))(x), 3 * x**2)
  np.testing.assert_allclose(jax.jvp(cubes, (x,), (x,))[1], jnp.sum(3 * x**3))
  np.testing.assert_allclose(jax.jit(jax.hessian(cubes))(x), np.diag(6 * x))
  np.testing.assert_allclose(jax.vmap(lambda y: linear.no_alias(y**3, x))(jnp.stack([x, 2 * x])), np.stack([x**3, 8 * x**3]))


def test_it_changes_no_value_and_no_derivative():
  x = jnp.arange(1.0, 4)

  def cubes(x):
    y, index = linear.materialize((x**3, jnp.arange(3)))
    return jnp.sum(y * index)

  np.testing.assert_allclose(jax.grad(cubes)(x), 3 * x**2 * np.arange(3))
  np.testing.assert_allclose(jax.jvp(cubes, (x,), (x,))[1], jnp.sum(3 * x**3 * np.arange(3)))
  np.testing.assert_allclose(jax.jit(jax.hessian(cubes))(x), np.diag(6 * x * np.arange(3)))
  np.testing.assert_allclose(jax.vmap(jax.grad(cubes))(jnp.stack([x, x])), np.stack([3 * x**2 * np.arange(3)] * 2))
