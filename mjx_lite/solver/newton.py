"""Newton's method: the direction that minimises the quadratic model of the cost.

Tests: tests/solver/test_iterates.py.
"""

import jax

from mjx_lite.math import vector
from mjx_lite.solver import operator, primal
from mjx_lite.solver.cost import Zones
from mjx_lite.solver.primal import Direction, Problem, Solution


def minimize(p: Problem, warmstart: jax.Array) -> Solution:
  """Minimise by Newton's method. Source: `mj_solNewton`."""
  return primal.minimize(p, warmstart, method(p))


def method(p: Problem) -> primal.Method:
  """Return the rule by which Newton's method chooses directions."""
  return primal.Method(lambda p: (), _direction, conjugate=False)


def _direction(p: Problem, zones: Zones, grad: jax.Array, fresh: jax.Array, memory: tuple) -> Direction:
  factor = operator.factor(p.model, p.metric, p.rows.jacobian, zones)
  direction = -operator.direction(p.model, factor, grad)
  return Direction(direction, -0.5 * vector.total(grad * direction), memory)
