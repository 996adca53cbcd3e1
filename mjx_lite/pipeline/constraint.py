"""Constraint rows, and what a stage that is called alone rebuilds of them from Data.

Tests: tests/io/test_put_data.py, tests/constraint/test_equality.py.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from mjx_lite.collision import driver, mixing
from mjx_lite.constraint import assemble, contact, equality, jacobian, limit
from mjx_lite.constraint.rows import Jacobian, Rows
from mjx_lite.model.enums import ConstraintType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import join
from mjx_lite.pipeline.position import mass_factor
from mjx_lite.smooth import (
  mass,
)


def make_constraint(m: Model, d: Data) -> Data:
  """Compute constraint rows."""
  return build_rows(m, d)[0]


def has_rows(m: Model) -> bool:
  """Return whether constraint rows can be active. Without dofs, C has contacts but no rows."""
  return bool(m.plan.sizes["nefc"] and m.nv)


def build_rows(m: Model, d: Data, factor: Any = None) -> tuple[Data, Rows]:
  """Compute constraint rows. `factor` is the factor of M, if it is known."""
  solve = None
  if m.opt.use_diagexact and has_rows(m):
    factor = mass_factor(m, d) if factor is None else factor
    solve = functools.partial(mass.solve, m, factor)
  rows = assemble.make_constraint(m, equality_state(d), _contacts(m, d), solve)
  is_active = (d.contact.exclude == 0) & (m.nv > 0)
  d = d.replace(
    efc_pos=rows.pos, efc_margin=rows.margin,
    efc_frictionloss=rows.frictionloss, efc_diagA=rows.diagA, efc_KBIP=rows.KBIP, efc_D=rows.D, efc_R=rows.R,
    efc_vel=rows.vel, efc_aref=rows.aref, contact=d.contact.replace(mu=jnp.where(is_active, rows.contact_mu, 0)),
  )  # fmt: skip
  return d.replace(efc_type=_row_types(m, d)) if m.plan.contact.mixed else d, rows


def _row_types(m: Model, d: Data) -> jax.Array:
  """Return the types of the rows (nefc, W), where the types of contact rows depend on the geoms in contact."""
  first = m.plan.contact_force.first_row
  frictional = jnp.repeat(d.contact.dim > 1, m.plan.contact.nrow, axis=0)
  cone = m.plan.rows.type[first:, None]
  kind = jnp.where(frictional, cone, int(ConstraintType.CONTACT_FRICTIONLESS)).astype(d.efc_type.dtype)
  return join([d.efc_type[:first], kind])


def rebuild_rows(m: Model, d: Data) -> tuple[Data, Rows]:
  """Return rows rebuilt from Data; with the discrete integrator, the rows before the conversion to its metric."""
  return build_rows(m, d) if m.opt.is_discrete else (d, rows_of_data(m, d))


def _contacts(m: Model, d: Data) -> driver.Contacts:
  """Return the contacts of Data as the record that collision returned."""
  c = d.contact
  params = mixing.Params(
    margin=c.includemargin,
    gap=c.includemargin * 0,
    friction=c.friction,
    solref=c.solref,
    solreffriction=c.solreffriction,
    solimp=c.solimp,
  )
  pull = c.adhesion if m.plan.contact.adhesive else None
  return driver.Contacts(
    c.dist, c.pos, c.frame, params, surfacevel=c.surfacevel, adhesion=pull, exclude=c.exclude, geom=c.geom, dim=c.dim
  )


def _jacobian(m: Model, d: Data) -> Jacobian:
  """Return the constraint Jacobian."""
  _, axis = limit.rows_joint(m, m.plan.rows.limit, d.qpos)
  c = contact.rows_contact(m, m.plan.contact, _contacts(m, d), d.subtree_com)
  e = equality.rows_equality(m, m.plan.rows.equality, equality_state(d))
  number = contact.last_slot(m.plan.contact, c.params.active)
  return Jacobian(ball_axis=axis, basis=c.basis, mu=c.mu, entries=e.entries, ten_J=d.ten_J, body=c.body, number=number)


def equality_state(d: Data) -> equality.State:
  """Return the fields on which equality constraints depend."""
  return equality.State(
    d.qpos, d.qvel, d.xpos, d.xquat, d.xmat, d.subtree_com, d.cdof, d.cvel, d.cdof_dot, d.ten_length, d.ten_J, d.eq_active
  )


def rows_of_data(m: Model, d: Data) -> Rows:
  """Return the constraint rows."""
  law = d.efc_KBIP if hasattr(d, "efc_KBIP") else build_rows(m, d)[1].KBIP
  return Rows(
    jacobian=_jacobian(m, d),
    D=d.efc_D,
    R=d.efc_R,
    aref=d.efc_aref,
    vel=d.efc_vel,
    pos=d.efc_pos,
    margin=d.efc_margin,
    frictionloss=d.efc_frictionloss,
    diagA=d.efc_diagA,
    KBIP=law,
    contact_mu=d.contact.mu,
  )


def constraint_jacobian(m: Model, d: Data) -> jax.Array:
  """Return the dense constraint Jacobian J (nefc, nv). Inactive rows keep their values; they are not zero."""
  return jacobian.dense(m, _jacobian(m, d), d.cdof)
