"""Contact rows as derivatives see them, in the modes that look beyond the switch between touching and not touching.

A contact beyond its margin by the excess e [m] has no rows (D = 0), so nothing depends on e. In a soft mode its rows count by a
weight w(e), as if it just touched: D = w/R, and the reference acceleration of e = 0. Rows of contacts that touch keep their
reference.

The idea: Paulus et al., "Differentiable simulation of hard contacts with soft gradients" (arXiv 2506.14186).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import Rows
from mjx_lite.core.types import Model


def _smooth(e):
  """Half at touching."""
  return jax.nn.sigmoid(-e)


def _from_distance(e):
  """Whole while touching."""
  return jnp.exp(-jnp.maximum(e, 0))


WEIGHTS = {"smooth": _smooth, "from_distance": _from_distance}


def soften(m: Model, rows: Rows) -> Rows:
  """Rows with the weights of the model's `opt.contact_gradient`; one of WEIGHTS.

  Rows of the discrete integrator are those in its metric; what their reference lacks at touching is divided as it was.
  """
  p = m.plan.contact
  if p.adhesive:
    # a contact beyond its margin is not pulled, but its reference has been raised as if it were
    raise ValueError("soft contact gradients are not defined for contacts with adhesion: use contact_gradient='exact'.")
  if not p.ncon:
    return rows
  start = m.plan.contact_force.first_row
  excess = (rows.pos - rows.margin)[start :: p.nrow]  # of the first row of each slot; friction rows have none
  near = excess < m.opt.felt
  e = jnp.where(near, excess, m.opt.felt) / m.opt.contact_reach
  weight = jnp.where(near, WEIGHTS[m.opt.contact_gradient](e), 0)
  per_row = lambda x: jnp.repeat(x, p.nrow, axis=0)  # noqa: E731
  d = jnp.where(_own_rows(p, rows.jacobian.mu), per_row(weight) / rows.R[start:], 0)
  # aref = ... - K I e; without K I max(e, 0) that of a contact that just touches
  k, b, impedance = (rows.KBIP[start:, i] for i in range(3))
  ahead = k * impedance * jnp.maximum(rows.pos - rows.margin, 0)[start:]
  if m.opt.is_discrete:
    h = m.opt.timestep
    ahead = ahead / (1 + h * b + h * h * k * impedance)
  aref = rows.aref[start:] + jnp.where(per_row(near), ahead, 0)
  return rows._replace(D=jnp.concatenate([rows.D[:start], d]), aref=jnp.concatenate([rows.aref[:start], aref]))


def _own_rows(p: Any, mu: jax.Array) -> Any:
  """Rows (ncon * nrow, W or 1) that a slot's own condim has; where that is chosen at run time, those with friction."""
  if not p.mixed:
    return p.row_active.reshape(-1, 1)
  k = np.arange(1, p.nrow)
  there = mu[:, k - 1 if p.elliptic else k // 2] > 0  # friction is at least MINMU in the directions that a condim has
  first = jnp.ones_like(there[:, :1] if p.nrow > 1 else mu[:, :1], bool)
  return jnp.concatenate([first, there], axis=1).reshape(p.ncon * p.nrow, -1)


@jax.custom_jvp
def felt(x: jax.Array, absent: jax.Array) -> jax.Array:
  """The value of x, the derivative of `x + absent`: of what is zero but where derivatives look beyond the switch."""
  return x


@felt.defjvp
def _felt_jvp(primals, tangents):
  return primals[0], tangents[0] + tangents[1]
