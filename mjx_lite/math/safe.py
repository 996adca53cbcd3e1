"""Functions that are singular somewhere, each with a stated value and derivative at the singular point.

Nothing else in the engine calls the raw function on a quantity that can be singular: both branches of a `where` are
differentiated, so the argument is replaced before the function sees it ("double where").
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear
from mjx_lite.math import trig, vector

MINVAL = 1e-15  # mjMINVAL


def smallest(dtype: Any) -> float:
  """MINVAL, or the least number whose inverse cube is finite: second derivatives of a quotient have that."""
  return max(MINVAL, float(jnp.finfo(dtype).tiny) ** (1 / 3))


def sqrt(x: jax.Array) -> jax.Array:
  """Square root of a non-negative number.

  Gradient: zero at `x <= 0`, where the value is 0.
  """
  positive = x > 0
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def largest(x: jax.Array, axis: int) -> jax.Array:
  """Largest entry along an axis, which is dropped.

  Gradient: of the first entry that has it. That of `jnp.max` compares entries with the result, and is NaN where XLA has
  computed them a second time with other rounding.
  """
  return jnp.squeeze(jnp.take_along_axis(x, jnp.argmax(x, axis=axis, keepdims=True), axis=axis), axis)


def divide(num: jax.Array, den: jax.Array, otherwise: float = 0) -> jax.Array:
  """`num / den`, or `otherwise` where `|den|` is below MINVAL (`smallest` in single precision).

  Gradient: zero where `otherwise` is taken.
  """
  ok = jnp.abs(den) >= smallest(den.dtype)
  return jnp.where(ok, num / jnp.where(ok, den, 1), otherwise)


def quotient(num: jax.Array | float, den: jax.Array, least: float = MINVAL) -> jax.Array:
  """`num / max(den, least)`, where the denominator is not negative; in single precision `least` is at least `smallest`.

  Gradient: below `least` that of the numerator alone. The derivative of the plain expression has the inverse square of the
  denominator there, which together with a factor of the same size is more than single precision can hold.
  """
  least = max(least, smallest(den.dtype))
  ok = den > least
  return jnp.where(ok, num / jnp.where(ok, den, 1), num * (1 / least))


def norm(x: jax.Array) -> jax.Array:
  """Euclidean norm along the component axis, which is dropped.

  Gradient: zero at the origin.
  """
  return sqrt(vector.dot(x, x))


@jax.custom_jvp
def normalize_with_norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Unit vector and norm along the component axis.

  A vector shorter than MINVAL becomes the first unit vector, as in `mju_normalize` (so a zero quaternion becomes the
  identity), and its norm 0.

  Gradient: zero below MINVAL.
  """
  square = vector.dot(x, x)
  ok = square >= smallest(x.dtype) ** 2
  n = linear.materialized(jnp.sqrt(jnp.where(ok, square, 1)))
  first = np.eye(x.shape[-2], 1, dtype=x.dtype)
  return jnp.where(ok[..., None, :], x / n[..., None, :], first), jnp.where(ok, n, 0)


@normalize_with_norm.defjvp
def _normalize_jvp(primals, tangents):
  """With one division, where that of the parts has five."""
  unit, n = normalize_with_norm(*primals)
  (x_dot,) = tangents
  ok = n > 0
  along = vector.dot(unit, x_dot)
  scale = jnp.where(ok, 1 / jnp.where(ok, n, 1), 0)[..., None, :]
  return (unit, n), ((x_dot - unit * along[..., None, :]) * scale, jnp.where(ok, along, 0))


def normalize(x: jax.Array) -> jax.Array:
  """Unit vector along the component axis; the first unit vector below MINVAL, with zero gradient there."""
  return normalize_with_norm(x)[0]


def arctan2(y: jax.Array, x: jax.Array) -> jax.Array:
  """Angle of the point (x, y) in radian.

  Gradient: zero at the origin, where the value is 0.
  """
  ok = (x != 0) | (y != 0)
  return jnp.where(ok, trig.arctan2(jnp.where(ok, y, 0), jnp.where(ok, x, 1)), 0)


def arccos(x: jax.Array) -> jax.Array:
  """Arc cosine in radian of a number clipped to [-1, 1].

  Gradient: zero at and beyond the ends.
  """
  inside = jnp.abs(x) < 1
  return jnp.where(inside, trig.arccos(jnp.where(inside, x, 0)), jnp.where(x > 0, 0, jnp.pi).astype(x.dtype))


def cos_sinc_half(x2: jax.Array) -> tuple[jax.Array, jax.Array]:
  """`cos(x/2)` and `sin(x/2) / x` from the square of x; 1 and 1/2 at zero, smooth through it (series below x = 0.02)."""
  small = x2 < 4e-4
  x = jnp.sqrt(jnp.where(small, 1, x2))
  cos, sin = trig.cos_sin(0.5 * x)
  cos = jnp.where(small, 1 - x2 / 8 + x2 * x2 / 384 - x2 * x2 * x2 / 46080, cos)
  return cos, jnp.where(small, 0.5 - x2 / 48 + x2 * x2 / 3840, sin / x)
