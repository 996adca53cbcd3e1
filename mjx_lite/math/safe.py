"""Functions with a singular point, each with a defined value and derivative at this point.

The rest of the engine never calls the raw function on an argument that can be singular. JAX differentiates both branches of a
`where`, so the argument is replaced before the function is evaluated ("double where").

Tests: tests/math/test_quotient.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import trig, vector
from mjx_lite.ops import linear

MINVAL = 1e-15  # mjMINVAL


def smallest(dtype: Any) -> float:
  """Return MINVAL, or the smallest number with a finite inverse cube: second derivatives of a quotient contain this cube."""
  return max(MINVAL, float(jnp.finfo(dtype).tiny) ** (1 / 3))


def sqrt(x: jax.Array) -> jax.Array:
  """Return the square root of a non-negative number.

  Gradient: zero at `x <= 0`, where the value is 0.
  """
  positive = x > 0
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def largest(x: jax.Array, axis: int) -> jax.Array:
  """Return the largest entry along an axis, which is dropped.

  Gradient: that of the first entry with the largest value. The gradient of `jnp.max` compares entries with the result, and is
  NaN where XLA has computed the entries a second time with different rounding.
  """
  return jnp.squeeze(jnp.take_along_axis(x, jnp.argmax(x, axis=axis, keepdims=True), axis=axis), axis)


def divide(num: jax.Array, den: jax.Array, otherwise: float = 0) -> jax.Array:
  """Return `num / den`, or `otherwise` where `|den|` is below MINVAL (`smallest` in single precision).

  Gradient: zero where `otherwise` is returned.
  """
  ok = jnp.abs(den) >= smallest(den.dtype)
  return jnp.where(ok, num / jnp.where(ok, den, 1), otherwise)


def quotient(num: jax.Array | float, den: jax.Array, least: float = MINVAL) -> jax.Array:
  """Return `num / max(den, least)` for a non-negative denominator; in single precision `least` is at least `smallest`.

  Gradient: below `least`, that of the numerator alone. The derivative of the plain expression contains the inverse square of
  the denominator; multiplied by a factor of the same size, this square overflows in single precision.
  """
  least = max(least, smallest(den.dtype))
  ok = den > least
  return jnp.where(ok, num / jnp.where(ok, den, 1), num * (1 / least))


def norm(x: jax.Array) -> jax.Array:
  """Return the Euclidean norm along the component axis, which is dropped.

  Gradient: zero at the origin.
  """
  return sqrt(vector.dot(x, x))


@jax.custom_jvp
def normalize_with_norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the unit vector and the norm along the component axis.

  A vector shorter than MINVAL (`smallest` in single precision) becomes the first unit vector, as in `mju_normalize`, and its
  norm becomes 0. So a zero quaternion becomes the identity.

  Gradient: zero below MINVAL.
  """
  square = vector.dot(x, x)
  ok = square >= smallest(x.dtype) ** 2
  n = linear.materialize(jnp.sqrt(jnp.where(ok, square, 1)))
  first = np.eye(x.shape[-2], 1, dtype=x.dtype)
  return jnp.where(ok[..., None, :], x / n[..., None, :], first), jnp.where(ok, n, 0)


@normalize_with_norm.defjvp
def _normalize_jvp(primals, tangents):
  """Differentiate with one division; the derivative that JAX makes has five divisions."""
  unit, n = normalize_with_norm(*primals)
  (x_dot,) = tangents
  ok = n > 0
  along = vector.dot(unit, x_dot)
  scale = jnp.where(ok, 1 / jnp.where(ok, n, 1), 0)[..., None, :]
  return (unit, n), ((x_dot - unit * along[..., None, :]) * scale, jnp.where(ok, along, 0))


def normalize(x: jax.Array) -> jax.Array:
  """Return the unit vector along the component axis; below MINVAL the first unit vector, with zero gradient."""
  return normalize_with_norm(x)[0]


def arctan2(y: jax.Array, x: jax.Array) -> jax.Array:
  """Return the angle of the point (x, y) [rad].

  Gradient: zero at the origin, where the value is 0.
  """
  ok = (x != 0) | (y != 0)
  return jnp.where(ok, trig.arctan2(jnp.where(ok, y, 0), jnp.where(ok, x, 1)), 0)


def arccos(x: jax.Array) -> jax.Array:
  """Return the arc cosine [rad] of a number clipped to [-1, 1].

  Gradient: zero at and beyond the ends.
  """
  inside = jnp.abs(x) < 1
  return jnp.where(inside, trig.arccos(jnp.where(inside, x, 0)), jnp.where(x > 0, 0, jnp.pi).astype(x.dtype))


def cos_sinc_half(x2: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return `cos(x/2)` and `sin(x/2) / x` from the square of x: 1 and 1/2 at zero, smooth there (a series below x = 0.02)."""
  small = x2 < 4e-4
  x = jnp.sqrt(jnp.where(small, 1, x2))
  cos, sin = trig.cos_sin(0.5 * x)
  cos = jnp.where(small, 1 - x2 / 8 + x2 * x2 / 384 - x2 * x2 * x2 / 46080, cos)
  return cos, jnp.where(small, 0.5 - x2 / 48 + x2 * x2 / 3840, sin / x)
