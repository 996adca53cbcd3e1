"""Semi-implicit Euler, implicit in the joint damping."""

import jax
import jax.numpy as jnp

from mjx_lite.core.types import Model
from mjx_lite.math import spatial
from mjx_lite.smooth import articulated, transmission


def acceleration(m: Model, cinert, cdof, qvel, qacc, force) -> jax.Array:
  """Acceleration that the velocity is advanced with: (M + h D)^-1 force, D the slope of the joint damping.

  Args:
    force: qfrc_smooth + qfrc_constraint (nv, W).

  Source: `mj_Euler`.
  """
  if not (m.opt.use_eulerdamp and m.plan.passive.has_damper):
    return qacc
  speed = jnp.abs(qvel)
  damping, poly = transmission.dof_damping(m)
  slope = damping + speed * (2 * poly[:, 0] + 3 * poly[:, 1] * speed)
  diagonal = transmission.dof_armature(m) + m.opt.timestep * slope
  return articulated.solve(m, articulated.factor(m, spatial.inertia_matrix(cinert), cdof, diagonal), force)
