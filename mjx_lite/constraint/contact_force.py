"""Contact forces and torques: in the contact frame, and on the bodies.

Tests: tests/collision/test_contact_rules.py, tests/parity/test_support.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact, contact_bodies
from mjx_lite.math import spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.types import Contact, Model
from mjx_lite.ops.select import rows


class ContactForcePlan(NamedTuple):
  """Tables of both sides of every slot, including sides on bodies without dofs."""

  first_row: int  # first contact row; the other fields are valid only where the slots' geoms are constant
  root: np.ndarray  # (2 ncon,) root body of the side's tree: first sides, then second sides
  body_side: SumPlan  # body <- signed sides; the world has none


def plan(s: dict[str, Any], slot_body: np.ndarray, address: np.ndarray) -> ContactForcePlan:
  """Build the tables from the slots' bodies (ncon, 2) and first rows (ncon,)."""
  side = slot_body.T.ravel()
  ncon = len(slot_body)
  signed = np.zeros((s["nbody"], 2 * ncon))
  signed[side, np.arange(2 * ncon)] = np.repeat([-1, 1], ncon)
  signed[0] = 0
  return ContactForcePlan(int(address[0]) if ncon else 0, s["body_rootid"][side], plan_sum(signed))


def local(m: Model, efc_force: jax.Array, c: Contact) -> jax.Array:
  """Compute the force and torque (ncon, 6, W) of every slot on its second geom, in the contact frame.

  The result is zero where there is no contact. The force is the net force: that of the rows minus the adhesion.

  Source: `mj_contactForce`.
  """
  p = m.plan.contact
  first = m.plan.contact_force.first_row
  mu = jnp.where(contact.masks(p, c.dim).friction, c.friction, 0)
  force = contact.from_rows(p, efc_force[first : first + p.ncon * p.nrow], mu)
  if p.adhesive:
    force = jnp.concatenate([force[:, :1] - c.adhesion[:, None], force[:, 1:]], axis=1)
  rest = jnp.zeros((p.ncon, 6 - p.ndir, force.shape[-1]), force.dtype)
  return jnp.where((c.exclude == 0)[:, None], jnp.concatenate([force, rest], axis=1), 0)


def on_bodies(m: Model, force: jax.Array, c: Contact, subtree_com: jax.Array) -> jax.Array:
  """Compute the wrench (nbody, 6, W) of the contacts on every body, about the centre of mass of the body's tree.

  The wrench on the world body is set to zero.

  Args:
    m: the model.
    force: (ncon, 6, W) from `local`.
    c: the contacts.
    subtree_com: (nbody, 3, W) [m].
  """
  p = m.plan.contact_force
  push, torque = (vector.mat_t_vec(c.frame, force[:, k]) for k in (slice(0, 3), slice(3, 6)))
  both = lambda x: jnp.concatenate([x, x])  # noqa: E731
  chosen = m.plan.contact.chosen
  body, side = (contact_bodies.from_geoms(m, c.geom), m.plan.contact.sides) if chosen else (None, None)
  arm = both(c.pos) - (side.at_root(subtree_com, body) if side else rows(subtree_com, p.root))
  wrench = spatial.join(both(torque) + vector.cross(arm, both(push)), both(push))
  if side is None:
    return mask_sum(p.body_side, wrench)
  out = side.to_bodies(wrench * side.sign[:, None, None].astype(wrench.dtype), body)
  return jnp.where((np.arange(m.nbody) == 0)[:, None, None], 0, out)
