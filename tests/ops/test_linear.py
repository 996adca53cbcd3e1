"""Linear functions with a transpose of their own: values, derivatives of both modes, batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from mjx_lite.ops import linear

RNG = np.random.default_rng(0)
FUNCTIONS = {
  **{
    f"choose {n} of {size}": (lambda x, i: linear.choose(x, i), lambda x, i: x[i], (size, 2, 3), RNG.integers(0, size, n))
    for n, size in ((5, 7), (20, 3), (300, 300), (4, 1))
  },
  "choose none": (linear.choose, lambda x, i: x[i], (3, 2), np.zeros(0, int)),
  **{
    f"choose {index} of {size}": (linear.choose, lambda x, i: x[i], (size, 2, 3), np.array(index))
    for index, size in (([2, 3, 0], 5), ([4, 5, 6, 1], 7), ([1, 1, 2], 3))
  },
  "choose many twice": (linear.choose, lambda x, i: x[i], (400, 1, 1), np.arange(800) // 2),
  "combine": (lambda x, a: linear.combine(a, x), lambda x, a: jnp.tensordot(a, x, 1), (4, 3, 2), RNG.integers(0, 2, (5, 4))),
  "combine a row": (lambda x, a: linear.combine(a, x), lambda x, a: jnp.tensordot(a, x, 1), (4, 3, 2), np.ones((1, 4))),
  "combine many": (
    lambda x, a: linear.combine(a, x),
    lambda x, a: jnp.einsum("mnk,mkab->mnab", a, x),
    (3, 4, 2, 2),
    RNG.integers(0, 2, (3, 5, 4)),
  ),
  "total": (lambda x, _: linear.total(x), lambda x, _: x.sum(0), (4, 3, 2), None),
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


def test_combine_varies_with_the_matrix():
  a, x = jnp.asarray(RNG.normal(size=(4, 3))), jnp.asarray(RNG.normal(size=(3, 2, 5)))
  np.testing.assert_allclose(jax.vmap(linear.combine, (0, None))(a[None], x)[0], linear.combine(a, x), rtol=1e-14)
  check_grads(linear.combine, (a, x), 2, rtol=1e-5)
  many = jnp.stack([a, 2 * a]), jnp.stack([x, x - 1])
  np.testing.assert_allclose(linear.combine(*many), [linear.combine(*each) for each in zip(*many, strict=True)], rtol=1e-14)
  check_grads(linear.combine, many, 2, rtol=1e-5)


def test_bound_is_the_identity_but_for_where_jax_computes():
  """What depends on constants alone stays in the loop, and the derivative with respect to them is there."""

  def last(k, x, bind):
    def body(carry, _):
      (c,) = linear.depend_on((k,), carry) if bind else (k,)
      return carry * jnp.sin(c), None

    return jax.lax.scan(body, x, None, length=3)[0]

  k, x = jnp.asarray(RNG.normal(size=4)), jnp.asarray(RNG.normal(size=4))
  for argument in (0, 1):
    found, expected = (jax.jacrev(lambda *a, b=b: last(*a, b), argument)(k, x) for b in (True, False))
    np.testing.assert_allclose(found, expected, rtol=1e-14)
  text = str(jax.make_jaxpr(jax.grad(lambda x: last(k, x, True).sum()))(x))
  assert text.index("sin ") > text.index("scan[")
  many = jax.vmap(lambda k: jax.jacfwd(lambda k: last(k, x, True))(k))(jnp.stack([k, 2 * k]))
  np.testing.assert_allclose(many[1], jax.jacfwd(lambda k: last(k, x, False))(2 * k), rtol=1e-14)


def test_reverse_mode_has_no_scatter():
  """XLA makes a loop of each."""
  index = RNG.permutation(40)[:20]
  text = jax.jit(jax.grad(lambda x: (linear.choose(x, index) ** 2).sum())).lower(jnp.ones((40, 3))).as_text()
  assert "gather" in text and "scatter" not in text


@pytest.mark.parametrize("axis", [-2, -3])
def test_contract_is_the_sum_of_products(axis):
  """Of arrays that are broadcast: values, derivatives of both, batches of one or both."""
  a, b = jnp.asarray(RNG.normal(size=(4, 3, 5, 2))), jnp.asarray(RNG.normal(size=(3, 5, 1)))
  f, g = (lambda a, b: linear.contract(a, b, axis)), (lambda a, b: (a * b).sum(axis))
  np.testing.assert_allclose(f(a, b), g(a, b), rtol=1e-14, atol=1e-15)
  for jacobian in (jax.jacfwd, jax.jacrev):
    for ours, plain in zip(jacobian(f, (0, 1))(a, b), jacobian(g, (0, 1))(a, b), strict=True):
      np.testing.assert_allclose(ours, plain, rtol=1e-14, atol=1e-15)
  check_grads(lambda a, b: f(a, b) ** 2, (a, b), 2, rtol=1e-5)
  many = jnp.stack([a, 2 * a], axis=1), jnp.stack([b, b - 1], axis=-1)
  for axes in ((1, -1), (1, None), (None, -1)):
    given = [x if k is not None else y for x, y, k in zip(many, (a, b), axes, strict=True)]
    np.testing.assert_allclose(jax.vmap(f, axes)(*given), jax.vmap(g, axes)(*given), rtol=1e-14, atol=1e-15)
