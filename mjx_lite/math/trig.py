"""Trigonometric functions that XLA vectorizes; for the functions of `jnp`, XLA on CPU calls the C library for each number.

Errors are a few units in the last place, in single and double precision. Source of the approximations: Cephes
(S. L. Moshier, Methods and Programs for Mathematical Functions, 1989), `atanf`, `atan`, `sinf` and `sin`; of the right angle in
double precision: fdlibm, `e_rem_pio2.c`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.compiler import scalars
from mjx_lite.ops import linear

# arctan(t) = t + t z P(z) / Q(z), z = t^2, for t up to a limit; a larger t is first rotated by 45 degrees
_SINGLE = float(np.sqrt(2) - 1), (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1), (1.0,)
_DOUBLE = (
  0.66,
  (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
    -6.485021904942025371773e1,
  ),
  (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
    1.945506571482613964425e2,
  ),
)  # fmt: skip

# a right angle as a sum of three parts; the first two, times a number of right angles, are exact up to 6,400 rad in single and
# up to 1.6 million rad in double precision. sin r = r + r z S(z), cos r = 1 - z / 2 + z^2 C(z), z = r^2, up to 45 degrees
_SINGLE_ANGLE = (
  (1.5703125, 4.837512969970703125e-4, 7.54978995489188e-8),
  (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1),
  (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2),
)
_DOUBLE_ANGLE = (
  (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624879595063154e-21),
  (
    1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6, -1.98412698295895385996e-4,
    8.33333333332211858878e-3, -1.66666666666666307295e-1,
  ),
  (
    -1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7, 2.48015872888517045348e-5,
    -1.38888888888730564116e-3, 4.16666666666665929218e-2,
  ),
)  # fmt: skip


@jax.custom_jvp
def cos_sin(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the cosine and the sine of angles [rad].

  The results for an angle above 6,400 rad in single precision, or above 1.6 million rad in double precision, are those of an
  angle that differs from it by at most two units in the last place.
  """
  right_angle, sine, cosine = _DOUBLE_ANGLE if x.dtype == jnp.float64 else _SINGLE_ANGLE
  quarters, r, z = linear.materialize(_remainder(x, right_angle))
  sin = r + r * z * _polynomial(sine, z)
  cos = 1 - 0.5 * z + z * z * _polynomial(cosine, z)
  quarter = quarters - 4 * jnp.floor(0.25 * quarters)
  odd = (quarter == 1) | (quarter == 3)
  c, s = jnp.where(odd, sin, cos), jnp.where(odd, cos, sin)
  return jnp.where((quarter == 1) | (quarter == 2), -c, c), jnp.where(quarter >= 2, -s, s)


def _remainder(x: jax.Array, right_angle: Sequence[float]) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return the number of right angles, the rest of the angle, and the square of the rest.

  The rest is clipped: a huge angle is not known to one right angle, so any rest is correct.
  """
  number = x.dtype.type
  quarters = jnp.round(x * number(2 / np.pi))
  r = functools.reduce(lambda rest, part: rest - quarters * number(part), right_angle, x)
  r = jnp.clip(r, number(-0.8), number(0.8))
  return quarters, r, r * r


@cos_sin.defjvp
def _cos_sin_jvp(primals: Any, tangents: Any) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
  cos, sin = cos_sin(*primals)
  return (cos, sin), (-sin * tangents[0], cos * tangents[0])


@jax.custom_jvp
def arctan2(y: jax.Array, x: jax.Array) -> jax.Array:
  """Return the angle of the point (x, y) in (-pi, pi] [rad]; 0 at the origin, -pi where y is -0 and x is negative.

  The angle is NaN where x and y are both infinite.

  Gradient: NaN at the origin, see `safe.arctan2`.
  """
  limit, p, q = _DOUBLE if y.dtype == jnp.float64 else _SINGLE
  wide, high = jnp.abs(x), jnp.abs(y)
  small, large = jnp.minimum(wide, high), jnp.maximum(wide, high)
  rotated = small > limit * large
  below = jnp.where(rotated, small + large, large)
  t = jnp.where(rotated, small - large, small) / jnp.where(below > 0, below, 1)
  z = t * t
  angle = t + t * z * _polynomial(p, z) / _polynomial(q, z)
  angle = jnp.where(rotated, np.asarray(np.pi / 4, y.dtype) + angle, angle)
  angle = jnp.where(high > wide, np.asarray(np.pi / 2, y.dtype) - angle, angle)
  return jnp.copysign(jnp.where(x < 0, np.asarray(np.pi, y.dtype) - angle, angle), y)


@arctan2.defjvp
def _arctan2_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  (y, x), (y_dot, x_dot) = primals, tangents
  return arctan2(y, x), (x * y_dot - y * x_dot) / (x * x + y * y)


@jax.custom_jvp
def arcsin(x: jax.Array) -> jax.Array:
  """Return the arc sine [rad]; NaN beyond [-1, 1]. Gradient: infinite at the ends."""
  return arctan2(x, _other_leg(x))


@arcsin.defjvp
def _arcsin_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  return arcsin(*primals), tangents[0] / _other_leg(primals[0])


@jax.custom_jvp
def arccos(x: jax.Array) -> jax.Array:
  """Return the arc cosine [rad]; NaN beyond [-1, 1]. Gradient: infinite at the ends."""
  return arctan2(_other_leg(x), x)


@arccos.defjvp
def _arccos_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  return arccos(*primals), -tangents[0] / _other_leg(primals[0])


def _other_leg(x: jax.Array) -> jax.Array:
  """Return sqrt(1 - x^2) without cancellation."""
  return jnp.sqrt((1 - x) * (1 + x))


def _polynomial(coefficients: Sequence[float], z: jax.Array) -> jax.Array:
  """Evaluate a polynomial by Horner's rule; the first coefficient is that of the highest power."""
  value = jnp.full_like(z, coefficients[0])
  for c in coefficients[1:]:
    value = value * z + np.asarray(c, z.dtype)
  return value


# -------------------------------------------------------------------------------- functions of users' callbacks, in kernels


def _tanh(x: jax.Array) -> jax.Array:
  e = jnp.expm1(2 * jnp.minimum(jnp.abs(x), 20))
  return jnp.copysign(e / (e + 2), x)


def _log1p(x: jax.Array) -> jax.Array:
  """Source: Higham, Accuracy and Stability of Numerical Algorithms."""
  u = 1 + x
  return jnp.where(u == 1, x, jnp.where(u == jnp.inf, u, x * (jnp.log(u) / (u - 1))))


def _tan(x: jax.Array) -> jax.Array:
  cos, sin = cos_sin(x)
  return sin / cos


_WRITTEN: dict[str, Callable[..., jax.Array]] = {
  "sin": lambda x: cos_sin(x)[1], "cos": lambda x: cos_sin(x)[0], "tan": _tan, "atan": lambda x: arctan2(x, jnp.ones_like(x)),
  "atan2": arctan2, "asin": arcsin, "acos": arccos, "tanh": _tanh, "logistic": lambda x: 1 / (1 + jnp.exp(-x)), "log1p": _log1p,
}  # fmt: skip


def _scalar_rule(function: Callable[..., jax.Array]) -> Callable[..., Any]:
  """Return the scalar rule of a primitive of JAX that a function computes by operations that have rules."""

  def rule(p: scalars.Program, eqn: Any, *xs: np.ndarray) -> list[np.ndarray]:
    return p.run(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)), xs)

  return rule


for _name, _function in _WRITTEN.items():
  scalars.rule(_name)(_scalar_rule(_function))
