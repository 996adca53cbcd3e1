"""Conjugate gradients with the direction update of Hager and Zhang, preconditioned by M.

Tests: tests/solver/test_iterates.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import safe, vector
from mjx_lite.smooth import mass
from mjx_lite.solver import operator, primal
from mjx_lite.solver.cost import Zones
from mjx_lite.solver.primal import Direction, Problem, Solution

_ETA = 0.01  # bounds the coefficient of the last direction


class _Memory(NamedTuple):
  direction: jax.Array
  grad: jax.Array
  mgrad: jax.Array  # M^-1 gradient


def minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimise by conjugate gradients.

  Source: `mj_solCG`; W. Hager and H. Zhang, A new conjugate gradient method with guaranteed descent and an efficient line
  search, SIAM J. Optim. 16 (2005).
  """
  return primal.minimize(p, warmstart, method(p))


def method(p: Problem) -> primal.Method:
  """Return the rule by which conjugate gradients choose directions."""
  m = p.model
  factor = operator.factor_m(m, p.metric)

  def start(p):
    zero = jnp.zeros_like(p.qacc_smooth)
    return _Memory(zero, zero, zero)

  def direction(p: Problem, zones: Zones, grad: jax.Array, fresh: jax.Array, last: _Memory) -> Direction:
    mgrad = mass.solve(m, factor, grad)
    new = -mgrad + jnp.where(fresh, 0, _share(grad, mgrad, last)) * last.direction
    return Direction(new, 0.5 * vector.total(grad * mgrad), _Memory(new, grad, mgrad))

  return primal.Method(start, direction, conjugate=True)


def _share(grad, mgrad, last):
  """Compute the coefficient (W,) of the last direction; zero where the last direction is no longer conjugate."""
  y, my = grad - last.grad, mgrad - last.mgrad
  dy = vector.total(last.direction * y)
  kept = dy >= safe.MINVAL
  dy = jnp.where(kept, dy, 1)
  beta = (vector.total(y * mgrad) - 2 * vector.total(y * my) / dy * vector.total(last.direction * grad)) / dy
  size, steepness = (jnp.sqrt(vector.total(x * x)) for x in (last.direction, grad))
  least = -1 / jnp.maximum(safe.MINVAL, size * jnp.minimum(_ETA, steepness))
  return jnp.where(kept, jnp.maximum(least, beta), 0)
