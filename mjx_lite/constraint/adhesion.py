"""Adhesive contacts: adhesion moves the friction cone of a contact down along the normal.

A passive force pulls the two bodies together. The reference acceleration of the contact's rows is raised in return. The net
force between the bodies (force of the rows minus adhesion) then depends on the penetration as it does without adhesion. In the
gap, adhesion pulls but no row is active, so there is no friction.

Source: MuJoCo documentation, Computation, Constraint model, Adhesion.

Tests: tests/collision/test_adhesion.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact, contact_bodies
from mjx_lite.math import vector
from mjx_lite.model.types import Contact, Model
from mjx_lite.ops.select import rows


def force(m: Model, c: Contact, cdof: jax.Array, subtree_com: jax.Array) -> jax.Array:
  """Compute the passive force (nv, W) of the adhesive contacts. Source: `mj_adhesion`."""
  p = m.plan.contact
  body: Any = contact_bodies.from_geoms(m, c.geom) if p.chosen else None
  pull = p.sides.from_slots(jnp.where(c.exclude >= 0, c.adhesion, 0))[:, None]
  normal, point = rows(c.frame, p.sides.slot)[:, 0], rows(c.pos, p.sides.slot)
  torque = vector.cross(point - p.sides.at_root(subtree_com, body), normal)
  return vector.dot(cdof, p.sides.to_dofs(-pull * jnp.concatenate([torque, normal], axis=1), body))


def share(m: Model, adhesion: jax.Array, dim: jax.Array) -> jax.Array:
  """Distribute the adhesion (ncon, W) [N] over the rows (nefc, W).

  The row of the normal gets the whole adhesion; the edges of a pyramid get equal parts. Rows before the contact rows get zero.

  Args:
    m: the model.
    adhesion: (ncon, W) adhesion of each contact [N].
    dim: (ncon, W) condims.

  Source: `mj_adhesionRef`.
  """
  p = m.plan.contact
  index = np.arange(p.nrow)[:, None]
  if p.elliptic:
    part = jnp.where(index == 0, adhesion[:, None], 0)
  else:
    number = contact.row_count(p, dim)
    part = jnp.where(index < number[:, None], (adhesion / number)[:, None], 0)
  part = part.reshape(p.ncon * p.nrow, part.shape[-1])
  return jnp.concatenate([jnp.zeros((m.plan.contact_force.first_row, part.shape[-1]), part.dtype), part])
