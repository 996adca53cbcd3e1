"""Runge-Kutta of order 4, with the Munthe-Kaas correction for rotations.

Each stage's rotation is reached from the first rotation q0 along a rotation vector r. So the stages combine the rates of r, not
the angular velocities w: for q = q0 * exp(r),

  dr/dt = w + 1/2 r x w + c(|r|) r x (r x w),   c(x) = (1 - x/2 cot(x/2)) / x^2.

Source: H. Munthe-Kaas, High order Runge-Kutta methods on manifolds, Appl. Num. Math. 29 (1999); MuJoCo documentation,
Computation, Integrators; `mj_RungeKutta`.

Tests: tests/integrate/test_integrators.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import trig, vector
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows

# stages after the first: step along the rate of the previous stage, as a fraction of the timestep; weight in the result
STAGES = np.array([[0.5, 1 / 3], [0.5, 1 / 3], [1.0, 1 / 6]])
FIRST_WEIGHT = 1 / 6


class Rates(NamedTuple):
  """Rates of change of a state: of its position coordinates, its velocity and its activations."""

  qvel: jax.Array  # (nv, W)
  qacc: jax.Array  # (nv, W)
  act_dot: jax.Array  # (na, W)


def position_rate(m: Model, offset: jax.Array, qvel: jax.Array) -> jax.Array:
  """Return the rate (nv, W) of the coordinates `offset` of a position relative to an initial position.

  Args:
    m: the model.
    offset: (nv, W) coordinates: `integrate_pos(qpos0, offset, 1)` is the position.
    qvel: (nv, W) velocity at the position.

  Gradient: exact, also at offset = 0.
  """
  p = m.plan.advance
  n = len(p.quat_v)
  if not n:
    return qvel
  r, w = _shortest(rows(offset, p.quat_v)), rows(qvel, p.quat_v)
  cross = vector.cross(r, w)
  rate = w + 0.5 * cross + _series(vector.dot(r, r))[:, None] * vector.cross(r, cross)
  return join([rows(qvel, p.scalar_v), rate.reshape(3 * n, rate.shape[-1])], p.order_v)


def _shortest(r):
  """Return the rotation vector of the same rotation, with an angle of at most pi."""
  x2 = vector.dot(r, r)
  long = x2 > np.pi**2
  x = jnp.sqrt(jnp.where(long, x2, 1))
  return r * jnp.where(long, 1 - 2 * np.pi / x * jnp.floor(x / (2 * np.pi) + 0.5), 1)[:, None]


def _series(x2):
  """Return c(x), given x^2."""
  small = x2 < 1e-2
  x = jnp.sqrt(jnp.where(small, 1, x2))
  half = 0.5 * x
  cos, sin = trig.cos_sin(half)
  exact = (1 - half * cos / sin) / jnp.where(small, 1, x2)
  return jnp.where(small, 1 / 12 + x2 * (1 / 720 + x2 * (1 / 30240 + x2 / 1209600)), exact)
