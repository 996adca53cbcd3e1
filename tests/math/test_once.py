"""What is computed once is in one place of the program that XLA makes, also where it is a choice among constants."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.math.once import decided, once_chosen, unit


def _masks(p, q, one):
  return decided(one, p, q)


def _mask(p, q, one):
  (mask,) = decided(one, p | q)
  return mask, ~mask


def _index(p, q, one):
  at = once_chosen(jnp.where(p, 3.0, jnp.where(q, 2.0, 5.0)), one)
  return at == 3, at > 2.5


@pytest.mark.parametrize("choose", [_masks, _mask, _index])
def test_a_choice_is_made_once(choose):
  """Each of the two comparisons of the choice is in the program once, though four results depend on it."""

  def use(x, y):
    first, second = choose(x * x + x <= y, x * y <= 1, unit(x))
    return jnp.where(first, y, x), jnp.where(second, y, x) * x[0], jnp.sum(jnp.where(first, x, y), axis=0), first, second

  x, y = jax.random.normal(jax.random.key(0), (2, 6, 16))
  program = jax.jit(use).lower(x, y).compile()
  assert len(re.findall(r" compare\([^\n]*direction=LE", program.as_text() or "")) == 2
  first, second = program(x, y)[-2:]
  p, q = x * x + x <= y, x * y <= 1
  expected = {_masks: (p, q), _mask: (p | q, ~(p | q)), _index: (p, p | ~q)}[choose]
  np.testing.assert_array_equal((first, second), expected)
