"""All constraint rows of a state, in MuJoCo's order.

Tests: tests/solver/test_combinations.py, tests/parity/test_stages.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.driver import Contacts
from mjx_lite.constraint import adhesion, contact, discrete, equality, friction, jacobian, limit
from mjx_lite.constraint.impedance import impedance
from mjx_lite.constraint.limit import TendonLimitPlan
from mjx_lite.constraint.rows import Jacobian, RowParams, Rows
from mjx_lite.constraint.soft import WEIGHTS
from mjx_lite.model.enums import MAXIMP, MINVAL, ConstraintType
from mjx_lite.model.types import Model
from mjx_lite.ops import linear
from mjx_lite.ops.rows import each
from mjx_lite.ops.select import join

Solve = Callable[[jax.Array], jax.Array]
_Kind = tuple[RowParams, Any]  # rows of one kind, and whether the kind is enabled


class RowPlan(NamedTuple):
  """Static tables of all rows."""

  equality: equality.EqualityPlan
  friction_dof: np.ndarray
  friction_tendon: np.ndarray
  limit: limit.LimitPlan
  limit_tendon: TendonLimitPlan
  type: np.ndarray  # (nefc,) ConstraintType
  id: np.ndarray  # (nefc,) index of the equality, dof, tendon, joint or contact slot
  address: np.ndarray  # (ncon,) first row of each slot


def plan(s: dict[str, Any], pruned: frozenset[str], c: contact.ContactPlan, movable: np.ndarray) -> RowPlan:
  """Compute the type, id and address of each row; `movable` lists the tendons whose length can change."""
  equalities, limits, tendon_limits = equality.plan(s), limit.plan_joint(s), limit.plan_tendon(s, movable)
  dofs = friction.plan_dof(s, "dof_frictionloss" not in pruned)
  tendons = friction.plan_tendon(movable, "tendon_frictionloss" not in pruned)
  cone = ConstraintType.CONTACT_ELLIPTIC if c.elliptic else ConstraintType.CONTACT_PYRAMIDAL
  kind = np.where(c.frictional, cone, ConstraintType.CONTACT_FRICTIONLESS)
  parts = [  # type and ids of each kind of row before the contact rows
    (ConstraintType.EQUALITY, equalities.row_eq),
    (ConstraintType.FRICTION_DOF, dofs), (ConstraintType.FRICTION_TENDON, tendons),
    (ConstraintType.LIMIT_JOINT, limits.joint), (ConstraintType.LIMIT_TENDON, tendon_limits.tendon),
  ]  # fmt: skip
  types = np.concatenate([*(np.full(len(x), t) for t, x in parts), np.repeat(kind, c.nrow)]).astype(int)
  ids = np.concatenate([*(x for _, x in parts), np.repeat(np.arange(c.ncon), c.nrow)]).astype(int)
  address = sum(len(x) for _, x in parts) + c.nrow * np.arange(c.ncon)
  return RowPlan(
    equality=equalities,
    friction_dof=dofs,
    friction_tendon=tendons,
    limit=limits,
    limit_tendon=tendon_limits,
    type=types,
    id=ids,
    address=address,
  )


def make_constraint(m: Model, x: equality.State, contacts: Contacts, solve: Solve | None = None) -> Rows:
  """Build all rows with their regularisation and reference acceleration.

  Args:
    m: the model.
    x: fields of the state on which the rows depend.
    contacts: result of the collision stage.
    solve: function that multiplies M^-1 with (nv, W). If given, the exact diagonal of J M^-1 J' replaces the approximate one.

  Source: `mj_makeConstraint`, `mj_makeImpedance`, `mj_referenceConstraint`.
  """
  kinds, j, contact_mu = _rows_of_all_kinds(m, x, contacts)
  params, enabled, stiff = _join_kinds(kinds)
  if solve is not None:
    exact = jacobian.inverse_diagonal(m, j, x.cdof, solve)
    params = params._replace(diag=jacobian.first_of_contact(m, exact))
  vel = _velocity(m, j, x, contacts)

  def of_rows(r):
    params, enabled, stiff, vel = r
    law = impedance(m, params.solref, params.solimp, params.violation - params.margin)
    k, b = jnp.where(stiff, law.K, 0), law.B
    first = jnp.maximum(MINVAL, (1 - law.I) / law.I * params.diag)
    depth = params.pos - params.margin
    if m.opt.is_discrete:
      k, b, factor = discrete.resolve(m, law, k, params.solref)
      aref = -(k * law.I * depth + (b + m.opt.timestep * k * law.I) * vel + params.bias) / factor
      least = (1 - MAXIMP) / MAXIMP * params.diag
      first = jnp.maximum(first / jacobian.first_of_contact(m, factor), least)
    else:
      aref = -b * vel - k * law.I * depth - params.bias
    r = params.scale * first
    active, kbip = params.active & enabled, jnp.stack(jnp.broadcast_arrays(k, b, law.I, law.P), axis=1)
    return jnp.where(active, 1 / r, 0), r, linear.no_alias(aref, vel, law.I, depth), r * law.I / (1 - law.I), kbip

  # of the discrete integrator, rows depend on the first row of their contact
  number = None if j.number is None else len(m.plan.jacobian.order) + j.number * m.plan.contact.nrow
  arguments = params._replace(stiff=None), enabled, stiff, vel
  D, r, aref, diag_a, kbip = of_rows(arguments) if m.opt.is_discrete else each(of_rows, arguments, number)
  if contacts.adhesion is not None:
    aref = aref + r * adhesion.share(m, contacts.adhesion, contacts.dim)
  return Rows(
    jacobian=j, D=D, R=r, aref=aref, vel=vel, pos=params.pos, margin=params.margin, frictionloss=params.frictionloss,
    diagA=diag_a, KBIP=kbip, contact_mu=contact_mu,
  )  # fmt: skip


def _rows_of_all_kinds(m: Model, x: equality.State, contacts: Contacts) -> tuple[list[_Kind], Jacobian, jax.Array]:
  """Build the rows of each kind, in MuJoCo's order; also return their Jacobian and `Rows.contact_mu`."""
  p = m.plan.rows
  on = m.opt.use_constraint
  equalities = equality.rows_equality(m, p.equality, x)
  dof_friction = friction.rows_dof(m, p.friction_dof)
  joint_limit, ball_axis = limit.rows_joint(m, p.limit, x.qpos)
  contact_rows = contact.rows_contact(m, m.plan.contact, contacts, x.subtree_com)
  j = Jacobian(
    ball_axis=ball_axis,
    basis=contact_rows.basis,
    mu=contact_rows.mu,
    entries=equalities.entries,
    ten_J=x.ten_J,
    body=contact_rows.body,
    # softened contacts have a derivative before they touch
    number=None if m.opt.contact_gradient in WEIGHTS else contact.last_slot(m.plan.contact, contact_rows.params.active),
  )
  kinds = [
    (equalities.params, on and m.opt.use_equality),
    (dof_friction, on and m.opt.use_frictionloss),
    (friction.rows_tendon(m, p.friction_tendon), on and m.opt.use_frictionloss),
    (joint_limit, on and m.opt.use_limit),
    (limit.rows_tendon(m, p.limit_tendon, x.ten_length), on and m.opt.use_limit),
    (contact_rows.params, m.opt.use_contact and m.nv > 0),
  ]
  return kinds, j, contact_rows.contact_mu


def _join_kinds(kinds: list[_Kind]) -> tuple[RowParams, np.ndarray, np.ndarray]:
  """Join the rows of all kinds; also return the masks (nefc, 1) of rows whose kind is enabled, and of rows with stiffness."""
  joined = {k: join([getattr(x, k) for x, _ in kinds]) for k in RowParams._fields if k != "stiff"}
  enabled = np.repeat([flag for _, flag in kinds], [len(x.pos) for x, _ in kinds])[:, None]
  stiff = np.concatenate([np.broadcast_to(x.stiff, len(x.pos)) for x, _ in kinds])
  return RowParams(**joined, stiff=stiff), enabled, stiff[:, None]


def _velocity(m: Model, j: Jacobian, x: equality.State, contacts: Contacts) -> jax.Array:
  """Compute the velocity (nefc, W) of the rows, including the velocity of moving surfaces."""
  vel = jacobian.mul(m, j, x.cdof, x.qvel)
  if contacts.surfacevel is not None and "geom_surfacevel" not in m.layout.pruned:
    moving = contact.surface_rows(m.plan.contact, contacts.surfacevel, j.mu)
    vel = vel + jnp.concatenate([jnp.zeros((vel.shape[0] - moving.shape[0], moving.shape[-1]), moving.dtype), moving])
  return vel
