"""Soft contact rows: in the soft modes, derivatives also depend on contacts that do not touch.

A contact beyond its margin by the excess e [m] has inactive rows (D = 0), so its exact derivatives are zero. In a soft mode,
derivatives use D = w(e) / R with a weight w(e), and the reference acceleration of a contact that just touches (e = 0). Rows of
contacts that touch keep their reference acceleration.

The idea: Paulus et al., "Differentiable simulation of hard contacts with soft gradients" (arXiv 2506.14186).

Tests: tests/gradients/test_contact_gradient.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import Rows
from mjx_lite.model.types import Model


def _smooth(e):
  """Return the weight that is 1/2 at touching; e is in units of `contact_reach`."""
  return jax.nn.sigmoid(-e)


def _from_distance(e):
  """Return the weight that is 1 while touching; e is in units of `contact_reach`."""
  return jnp.exp(-jnp.maximum(e, 0))


WEIGHTS = {"smooth": _smooth, "from_distance": _from_distance}


def soften(m: Model, rows: Rows) -> Rows:
  """Replace the contact rows by soft ones, with the weight WEIGHTS[m.opt.contact_gradient].

  Under the discrete integrator, the rows are those in its effective metric; the correction of the reference acceleration is
  divided by 1 + h B + h^2 K I, as the reference acceleration was.

  Raises:
    ValueError: for a model with adhesive contacts.
  """
  p = m.plan.contact
  if p.adhesive:
    # a contact beyond its margin has no adhesion force, but its reference acceleration is raised as if there were one
    raise ValueError("soft contact gradients are not defined for contacts with adhesion: use contact_gradient='exact'.")
  if not p.ncon:
    return rows
  start = m.plan.contact_force.first_row
  excess = (rows.pos - rows.margin)[start :: p.nrow]  # from the first row of each slot; friction rows have no position
  near = excess < m.opt.gradient_reach
  e = jnp.where(near, excess, m.opt.gradient_reach) / m.opt.contact_reach
  weight = jnp.where(near, WEIGHTS[m.opt.contact_gradient](e), 0)
  per_row = lambda x: jnp.repeat(x, p.nrow, axis=0)  # noqa: E731
  d = jnp.where(_own_rows(p, rows.jacobian.mu), per_row(weight) / rows.R[start:], 0)
  # aref = ... - K I e; adding K I max(e, 0) gives the aref of a contact that just touches
  k, b, impedance = (rows.KBIP[start:, i] for i in range(3))
  beyond = k * impedance * jnp.maximum(rows.pos - rows.margin, 0)[start:]
  if m.opt.is_discrete:
    h = m.opt.timestep
    beyond = beyond / (1 + h * b + h * h * k * impedance)
  aref = rows.aref[start:] + jnp.where(per_row(near), beyond, 0)
  return rows._replace(D=jnp.concatenate([rows.D[:start], d]), aref=jnp.concatenate([rows.aref[:start], aref]))


def _own_rows(p: Any, mu: jax.Array) -> Any:
  """Return the mask (ncon * nrow, W or 1) of the rows that each slot's own condim has.

  Where condims are chosen at run time, a row beyond the first is marked if its friction is above zero.
  """
  if not p.mixed:
    return p.row_active.reshape(-1, 1)
  k = np.arange(1, p.nrow)
  exists = mu[:, k - 1 if p.elliptic else k // 2] > 0  # friction is at least MINMU in the directions that a condim has
  first = jnp.ones_like(exists[:, :1] if p.nrow > 1 else mu[:, :1], bool)
  return jnp.concatenate([first, exists], axis=1).reshape(p.ncon * p.nrow, -1)


@jax.custom_jvp
def straight_through(x: jax.Array, absent: jax.Array) -> jax.Array:
  """Return x with the derivative of `x + absent` (a straight-through term).

  The value of `absent` is zero where x is used, but its derivative is not zero in the soft modes.
  """
  return x


@straight_through.defjvp
def _straight_through_jvp(primals, tangents):
  return primals[0], tangents[0] + tangents[1]
