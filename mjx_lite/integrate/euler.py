"""Semi-implicit Euler, implicit in the joint damping."""

import jax

from mjx_lite.core.types import Model
from mjx_lite.smooth import derivative, mass


def acceleration(m: Model, cinert, cdof, packed_m, qvel, qacc, force) -> jax.Array:
  """Acceleration that the velocity is advanced with: (M + h D)^-1 force, D the slope of the joint damping.

  Args:
    force: qfrc_smooth + qfrc_constraint (nv, W).

  Source: `mj_Euler`.
  """
  if not (m.opt.use_eulerdamp and m.plan.passive.has_damper):
    return qacc
  slope = derivative.damping(m, qvel)
  return mass.solve(m, mass.factor(m, cinert, cdof, packed_m, m.opt.timestep * slope), force)
