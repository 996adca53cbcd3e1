"""Contact rows as derivatives see them, in the modes that look beyond the switch between touching and not touching.

A contact beyond its margin by the excess e [m] has no rows (D = 0), so nothing depends on e. In a soft mode its rows count by a
weight w(e), as if it just touched: D = w/R, and the reference acceleration of e = 0. Rows of contacts that touch keep their
reference.

The idea: Paulus et al., "Differentiable simulation of hard contacts with soft gradients" (arXiv 2506.14186).
"""

import jax
import jax.numpy as jnp

from mjx_lite.constraint.rows import Rows
from mjx_lite.core.types import Model

_FAR = 30.0  # in units of the reach: beyond it the weight is round-off


def _smooth(e):
  """Half at touching."""
  return jax.nn.sigmoid(-e)


def _from_distance(e):
  """Whole while touching."""
  return jnp.exp(-jnp.maximum(e, 0))


WEIGHTS = {"smooth": _smooth, "from_distance": _from_distance}


def soften(m: Model, rows: Rows) -> Rows:
  """Rows with the weights of the model's `opt.contact_gradient`; one of WEIGHTS."""
  if m.opt.is_discrete:
    raise ValueError("soft contact gradients are not defined for the discrete integrator: use contact_gradient='exact'.")
  p = m.plan.contact
  if p.adhesive:
    raise ValueError("soft contact gradients are not defined for contacts with adhesion: use contact_gradient='exact'.")
  if p.mixed:
    raise ValueError("soft contact gradients do not go with capacities of contacts of several condims: use 'exact'.")
  if not p.ncon:
    return rows
  start = m.plan.contact_force.first_row
  excess = (rows.pos - rows.margin)[start :: p.nrow]  # of the first row of each slot; friction rows have none
  near = excess < _FAR * m.opt.contact_reach
  e = jnp.where(near, excess / m.opt.contact_reach, _FAR)
  weight = jnp.where(near, WEIGHTS[m.opt.contact_gradient](e), 0)
  per_row = lambda x: jnp.repeat(x, p.nrow, axis=0)  # noqa: E731
  d = jnp.where(p.row_active.reshape(-1, 1), per_row(weight) / rows.R[start:], 0)
  # aref = ... - K I e; without K I max(e, 0) that of a contact that just touches
  ahead = rows.KBIP[start:, 0] * rows.KBIP[start:, 2] * jnp.maximum(rows.pos - rows.margin, 0)[start:]
  aref = rows.aref[start:] + jnp.where(per_row(near), ahead, 0)
  return rows._replace(D=jnp.concatenate([rows.D[:start], d]), aref=jnp.concatenate([rows.aref[:start], aref]))
