"""Computing a value once.

XLA on CPU repeats cheap operations in every consumer of their result, along whole chains of them: collision code of a few
hundred operations becomes several tens of thousands. A division counts as expensive and is not repeated, so a division by a 1
that XLA cannot know to be 1 is where the repetition stops.

It is not only a matter of speed: with products and sums contracted in one place and not in the other, two repetitions of a
comparison may differ. What several results depend on, such as a choice, has to be computed once.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import vector


def unit(x: jax.Array) -> jax.Array:
  """The number 1 in a form that XLA takes for data, from any array."""
  return units(x[(0,) * x.ndim])


def units(x: jax.Array) -> jax.Array:
  """Ones like x in such a form, each from its own entry: no world's depends on another's."""
  x = jax.lax.stop_gradient(x)
  return jnp.where(x == jnp.inf, jnp.asarray(2, x.dtype), 1)


def once(x: jax.Array, one: jax.Array | None = None) -> jax.Array:
  """x (..., W), computed once; no choice among constants (`once_chosen`).

  Args:
    x: values.
    one: `unit` of anything; without it the `units` of x. Not a vector that x is divided by along an axis: XLA would multiply
      by its reciprocal, which is cheap, and repeat x.
  """
  return x / (units(x) if one is None else one)


def once_chosen(x: jax.Array, one: jax.Array) -> jax.Array:
  """Small whole numbers x (..., W), chosen among constants, computed once: XLA would divide the constants instead."""
  return once(x + one, one) - 1


def decided(one: jax.Array, *masks: jax.Array) -> list[jax.Array]:
  """Masks of one shape, computed once: all that depends on them is of the same choice."""
  number = vector.add(jnp.where(x, jnp.asarray(2**k, one.dtype), 0) for k, x in enumerate(masks))
  bits = once_chosen(number, one).astype(jnp.int32)
  return [(bits & 1 << k) != 0 for k in range(len(masks))]
