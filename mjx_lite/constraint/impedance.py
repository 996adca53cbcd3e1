"""Stiffness, damping and impedance of a row, from solref and solimp.

Tests: tests/solver/test_soft.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.model.enums import MAXIMP, MINIMP, MINVAL
from mjx_lite.model.types import Model
from mjx_lite.ops import linear

# lower and upper bounds of (d0, d_width, width, midpoint, power)
_RANGE = np.array([[MINIMP, MINIMP, 0, MINIMP, 1], [MAXIMP, MAXIMP, np.inf, MAXIMP, np.inf]])[..., None]


class Impedance(NamedTuple):
  """Stiffness K [1/s^2], damping B [1/s], impedance I and its derivative P; each (n, W)."""

  K: jax.Array
  B: jax.Array
  I: jax.Array
  P: jax.Array


def impedance(m: Model, solref: jax.Array, solimp: jax.Array, pos: jax.Array) -> Impedance:
  """Compute row parameters from solref (n, 2, W), solimp (n, 5, W) and violation pos - margin (n, W).

  Source: `getsolparam`, `getimpedance`, `mj_makeImpedance`; MuJoCo documentation, Modeling, Solver parameters.
  Gradient: the derivative of the impedance is zero at zero violation (the law is even) and at saturation.
  """
  ref0, ref1 = solref[:, 0], solref[:, 1]
  mixed = (ref0 > 0) != (ref1 > 0)
  ref0, ref1 = jnp.where(mixed, 0.02, ref0), jnp.where(mixed, 1.0, ref1)
  if m.opt.use_refsafe and not m.opt.is_discrete:
    ref0 = jnp.where(ref0 > 0, jnp.maximum(ref0, 2 * m.opt.timestep), ref0)
  solimp = jnp.clip(solimp, *(x.astype(solimp.dtype) for x in _RANGE))
  d0, dw, width, mid, power = (solimp[:, k] for k in range(5))

  standard = ref0 > 0
  tc, dr = jnp.where(standard, ref0, 1), jnp.where(standard, ref1, 1)
  k = jnp.where(standard, 1 / jnp.maximum(MINVAL, dw * dw * tc * tc * dr * dr), -ref0 / (dw * dw))
  b = jnp.where(standard, 2 / jnp.maximum(MINVAL, dw * tc), -ref1 / dw)

  flat = (d0 == dw) | (width <= MINVAL)
  x = jnp.abs(pos) / jnp.where(flat, 1, width)
  inside = (x > 0) & (x < 1)
  x_in = jnp.where(inside, x, 0.5)
  low = x_in <= mid
  t, end = jnp.where(low, x_in, 1 - x_in), jnp.where(low, mid, 1 - mid)
  ratio = linear.materialize(jnp.exp((power - 1) * jnp.log(t / end)))  # XLA on CPU vectorises exp and log, not pow
  y = jnp.where(low, t * ratio, 1 - t * ratio)
  dy = power * ratio
  imp = jnp.where(inside, d0 + y * (dw - d0), jnp.where(x >= 1, dw, d0))
  slope = jnp.where(inside, dy * jnp.sign(pos) * (dw - d0) / jnp.where(flat, 1, width), 0)
  return Impedance(k, b, linear.no_alias(jnp.where(flat, 0.5 * (d0 + dw), imp), pos, ratio), jnp.where(flat, 0, slope))
