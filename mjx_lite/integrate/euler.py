"""Semi-implicit Euler, implicit in the joint damping.

Tests: tests/integrate/test_stability.py, tests/parity/test_stages.py.
"""

import jax

from mjx_lite.model.types import Model
from mjx_lite.smooth import derivative, mass


def acceleration(m: Model, cinert, cdof, packed_m, qvel, qacc, force) -> jax.Array:
  """Return the acceleration (nv, W) that advances the velocity: (M + h D)^-1 force, with D the slope of the joint damping.

  Args:
    force: qfrc_smooth + qfrc_constraint (nv, W).

  Source: `mj_Euler`.
  """
  if not is_damped(m):
    return qacc
  slope = derivative.damping(m, qvel)
  return mass.solve(m, mass.factor(m, cinert, cdof, packed_m, m.opt.timestep * slope), force)


def is_damped(m: Model) -> bool:
  """Return whether damping is integrated implicitly."""
  return m.opt.use_eulerdamp and m.plan.passive.has_damper


def mul(m: Model, cinert, cdof, packed_m, qvel, x) -> jax.Array:
  """Return (M + h D) x (nv, W), the product that `acceleration` inverts."""
  return mass.mul(m, cinert, cdof, packed_m, x) + m.opt.timestep * derivative.damping(m, qvel) * x
