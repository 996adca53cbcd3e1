"""The constraint Jacobian as an operator: J x, J' f, and the curvature J' diag(w) J, without a dense J.

Rows are in MuJoCo's order: equalities, friction of dofs and tendons, limits of joints and tendons, contacts.

Tests: tests/constraint/test_curvature.py, tests/transforms/test_step.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint import contact, coupled
from mjx_lite.constraint.contact import ContactPlan
from mjx_lite.constraint.equality import EqualityPlan
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.math import linalg, spatial, symmetric, vector
from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.types import Model
from mjx_lite.ops import lanes, linear, tiles
from mjx_lite.ops import rows as slots
from mjx_lite.ops.select import gather, join, next_true, rows
from mjx_lite.tendon import tendon


class EntryPlan(NamedTuple):
  """Tables of the equality rows, which are the first rows and have packed entries."""

  row: np.ndarray  # (nentry,)
  dof: np.ndarray
  row_entry: SumPlan  # row <- entries
  dof_entry: SumPlan  # dof <- entries
  dense: np.ndarray  # (nrow * nv,) index of the entry, nentry where J is zero


class JacobianPlan(NamedTuple):
  """Row indices of each kind, and the constant part of J."""

  nequality: int
  nfriction: int
  entry: EntryPlan
  unit_row: np.ndarray  # rows with a single entry
  unit_dof: np.ndarray
  unit_sign: np.ndarray
  ball_row: np.ndarray
  ball_dof: np.ndarray  # (nball, 3)
  tendon_row: np.ndarray  # rows of tendons
  tendon_id: np.ndarray
  tendon_sign: np.ndarray
  by_tendon: GroupPlan  # tendon <- rows of tendons
  order: np.ndarray  # index of each row before the contact rows in the concatenation (equality, unit, ball, tendon)
  dof_unit: SumPlan  # dof <- signed unit rows
  dof_weight: SumPlan  # dof <- unit rows, for weights
  dof_ball: SumPlan  # dof <- ball rows' components


def plan(s: dict[str, Any], r: Any) -> JacobianPlan:
  """Build the tables of friction, limit and equality rows; r is the plan of all rows."""
  eq, limit, nv = r.equality, r.limit, s["nv"]
  sizes = (eq.row_eq, r.friction_dof, r.friction_tendon, limit.joint, r.limit_tendon.tendon)
  equality, dof, friction, joint, length, total = np.cumsum([0, *(len(x) for x in sizes)])  # first row of each kind
  unit_row = np.concatenate([np.arange(dof, friction), joint + limit.scalar]).astype(int)
  unit_dof = np.concatenate([r.friction_dof, s["jnt_dofadr"][limit.joint[limit.scalar]]]).astype(int)
  unit_sign = np.concatenate([np.ones(friction - dof), limit.sign])
  ball_row = joint + limit.ball
  ball_dof = s["jnt_dofadr"][limit.joint[limit.ball]][:, None] + np.arange(3)
  tendon_row = np.concatenate([np.arange(friction, joint), np.arange(length, total)]).astype(int)
  tendon_id = np.concatenate([r.friction_tendon, r.limit_tendon.tendon]).astype(int)
  tendon_sign = np.concatenate([np.ones(joint - friction), r.limit_tendon.sign])
  order = np.zeros(total, int)
  order[np.concatenate([np.arange(equality, dof), unit_row, ball_row, tendon_row]).astype(int)] = np.arange(total)
  signed, weight = np.zeros((nv, len(unit_row))), np.zeros((nv, len(unit_row)))
  signed[unit_dof, np.arange(len(unit_row))] = unit_sign
  weight[unit_dof, np.arange(len(unit_row))] = 1
  by_ball = np.zeros((nv, ball_dof.size))
  by_ball[ball_dof.ravel(), np.arange(ball_dof.size)] = 1
  return JacobianPlan(
    nequality=int(dof),
    nfriction=int(joint - dof),
    entry=_plan_entries(eq, nv),
    unit_row=unit_row,
    unit_dof=unit_dof,
    unit_sign=unit_sign,
    ball_row=ball_row,
    ball_dof=ball_dof,
    tendon_row=tendon_row,
    tendon_id=tendon_id,
    tendon_sign=tendon_sign,
    by_tendon=plan_groups(tendon_id, s["ntendon"]),
    order=order,
    dof_unit=plan_sum(signed),
    dof_weight=plan_sum(weight),
    dof_ball=plan_sum(by_ball),
  )


def _plan_entries(eq: EqualityPlan, nv: int) -> EntryPlan:
  row, dof, n = eq.row_dof_row, eq.row_dof_dof, len(eq.row_dof_row)
  by_row, by_dof = np.zeros((len(eq.row_eq), n)), np.zeros((nv, n))
  by_row[row, np.arange(n)] = 1
  by_dof[dof, np.arange(n)] = 1
  dense = np.full((len(eq.row_eq), nv), n)
  dense[row, dof] = np.arange(n)
  return EntryPlan(row, dof, plan_sum(by_row), plan_sum(by_dof), dense.ravel())


def mul(m: Model, j: Jacobian, cdof: jax.Array, x: jax.Array) -> jax.Array:
  """Compute J x: (nv, W) to (nefc, W)."""
  p, c = m.plan.jacobian, m.plan.contact
  unit = p.unit_sign.astype(x.dtype)[:, None] * rows(x, p.unit_dof)
  ball = -vector.dot(j.ball_axis, rows(x, p.ball_dof))
  blocks = [mask_sum(p.entry.row_entry, j.entries * rows(x, p.entry.dof)), unit, ball]
  if len(p.tendon_row):
    blocks.append(p.tendon_sign.astype(x.dtype)[:, None] * rows(tendon.velocity(m, j.ten_J, x), p.tendon_id))
  parts = [join(blocks, p.order)]
  if c.ncon and j.number is not None and lanes.packs():
    parts.append(_mul_by_slot(c, j, c.sides.motion(cdof, x[:, None])))
  elif c.ncon:
    motion = c.sides.from_dofs(cdof, x[:, None], j.body)
    y = vector.dot(j.basis, motion[:, None])
    parts.append(contact.to_rows(c, linear.materialize(c.sides.relative(y)), j.mu))
  return linear.materialize(join(parts))


def on_tendons(m: Model, f: jax.Array) -> jax.Array:
  """Compute the tension (ntendon, W) of the friction and limit rows of tendons, from the forces of all rows (nefc, W)."""
  p = m.plan.jacobian
  return group_sum(p.by_tendon, p.tendon_sign.astype(f.dtype)[:, None] * rows(f, p.tendon_row))


def mul_t(m: Model, j: Jacobian, cdof: jax.Array, f: jax.Array) -> jax.Array:
  """Compute J' f: (nefc, W) to (nv, W)."""
  p, c = m.plan.jacobian, m.plan.contact
  out = mask_sum(p.dof_unit, rows(f, p.unit_row))
  if p.nequality:
    out = out + mask_sum(p.entry.dof_entry, j.entries * rows(f, p.entry.row))
  if len(p.ball_row):
    torque = -j.ball_axis * rows(f, p.ball_row)[:, None]
    out = out + mask_sum(p.dof_ball, torque.reshape(p.ball_dof.size, -1))
  if len(p.tendon_row):
    pull = group_sum(p.by_tendon, p.tendon_sign.astype(f.dtype)[:, None] * rows(f, p.tendon_row))
    out = out + tendon.to_joints(m, j.ten_J, pull)
  if c.ncon and j.number is not None and lanes.packs():
    wrench = _mul_t_by_slot(c, j, f[len(p.order) :], c.sides.root)
    out = out + vector.dot(cdof, mask_sum(c.sides.dof_body, wrench))
  elif c.ncon:
    local = contact.from_rows(c, f[len(p.order) :], j.mu)
    wrench = vector.mat_t_vec(j.basis, c.sides.from_slots(local))
    out = linear.no_alias(out + vector.dot(cdof, linear.materialize(c.sides.to_dofs(wrench, j.body))), out)
  return out


def _sides_by_slot(c: ContactPlan, j: Jacobian) -> tuple[Any, ...]:
  """Return basis and body of the first and of the second sides, and friction, as rows (ncon, ...)."""
  assert j.body is not None
  return j.basis[: c.ncon], j.basis[c.ncon :], j.body[: c.ncon], j.body[c.ncon :], j.mu


def _mul_by_slot(c: ContactPlan, j: Jacobian, motion: jax.Array) -> jax.Array:
  """Return the contact rows of J x from the motion (nbody, 6, W) of bodies, slot by slot."""

  def one(r):
    basis_a, basis_b, body_a, body_b, mu = r
    a, b = (vector.dot(basis, gather(motion, body)[:, None]) for basis, body in ((basis_a, body_a), (basis_b, body_b)))
    return contact.to_rows(c._replace(ncon=len(mu)), b - a, mu).reshape(len(mu), c.nrow, -1)

  assert j.number is not None
  found = slots.each(one, _sides_by_slot(c, j), j.number)
  return found.reshape(c.ncon * c.nrow, -1)


def _mul_t_by_slot(c: ContactPlan, j: Jacobian, f: jax.Array, root: np.ndarray) -> jax.Array:
  """Return the wrenches (nbody, 6, W) of contact rows' forces (ncon nrow, W) on bodies, slot by slot."""

  def add(r, sums):
    basis_a, basis_b, body_a, body_b, mu, f = r
    local = contact.from_rows(c._replace(ncon=1), f[0], mu)
    for basis, body, sign in ((basis_a, body_a, -1), (basis_b, body_b, 1)):
      sums = sums.at[body[0, 0]].add(sign * vector.mat_t_vec(basis, local)[0], mode="drop")
    return sums

  assert j.number is not None
  rows_ = (*_sides_by_slot(c, j), f.reshape(c.ncon, c.nrow, -1))
  return slots.add(add, rows_, j.number, jnp.zeros((len(root), 6, f.shape[-1]), f.dtype))


def unit_curvature(m: Model, w: jax.Array) -> jax.Array:
  """Compute the diagonal (nv, W) of J' diag(w) J for the rows with a single entry."""
  p = m.plan.jacobian
  return mask_sum(p.dof_weight, rows(w, p.unit_row))


def contact_curvature(m: Model, j: Jacobian, w: jax.Array, cone: jax.Array | None) -> jax.Array:
  """Compute the curvature (ncon, ndir, ndir, W) of the contacts in frame components, including the cones' middle zones."""
  a = contact.stiffness(m.plan.contact, w[len(m.plan.jacobian.order) :], j.mu, j.number)
  return a if cone is None else a + cone


def add_curvature(m: Model, j: Jacobian, a: jax.Array, sums: jax.Array, body_row: np.ndarray) -> jax.Array:
  """Add the contacts' stiffness of single bodies to packed rows (n, 21, W).

  The stiffness of a body is its block of J' H J, with all other bodies at rest.

  Args:
    m: the model.
    j: Jacobian.
    a: from `contact_curvature`.
    sums: (n, 21, W) upper triangles of symmetric 6 x 6 matrices.
    body_row: (nbody,) row of each body in `sums`, -1 for bodies that have no row.
  """
  c = m.plan.contact
  if c.chosen and lanes.packs():
    return _add_curvature_by_slot(c, j, a, sums, body_row)
  return c.sides.add_to(sums, _stiffness(rows(a, c.sides.slot) if c.chosen else a, j.basis), body_row, j.body)


def _add_curvature_by_slot(c: ContactPlan, j: Jacobian, a: jax.Array, sums: jax.Array, body_row: np.ndarray) -> jax.Array:
  """Do what `add_curvature` does: for a moving side of each slot, and then for the other side of slots that couple bodies."""
  row_of = jnp.asarray(np.where(body_row < 0, len(sums), body_row).astype(np.int32))
  basis_a, basis_b, body_a, body_b, _ = _sides_by_slot(c, j)
  has_row = jnp.asarray(body_row >= 0)
  moves_a, moves_b, pushes = has_row[body_a], has_row[body_b], _pushing(a)

  def add(r, sums):
    a, basis, body = r
    return sums.at[row_of[body[0, 0]]].add(_stiffness(a, basis)[0], mode="drop")

  side = jnp.where(moves_b[:, None, None], basis_b, basis_a), jnp.where(moves_b, body_b, body_a)
  sums = slots.fold(add, (a, *side), slots.upto(pushes), sums)
  return slots.fold_where(add, (a, basis_a, body_a), pushes & moves_a & moves_b, sums)


def _pushing(a: jax.Array) -> jax.Array:
  """Return the mask (n, W) of the contacts whose curvature a (n, ndir, ndir, W) is not zero: it is positive in the normal."""
  return a[:, 0, 0] > 0


class PairCoupling(NamedTuple):
  """Coupling of the two bodies of contacts: an entry for each pair of bodies that touch in some world of a tile."""

  body: jax.Array  # (2, n) bodies of each pair; the last column is a dummy
  stiffness: jax.Array  # (n, 6, 6, W) from the motion of the second body to the wrench on the first
  number: jax.Array  # () number of pairs in use
  unpaired: jax.Array  # (ncon, W) mask of contacts for which there was no room among the pairs


def couple_pairs(m: Model, j: Jacobian, a: jax.Array, pushes: jax.Array) -> PairCoupling:
  """Compute the part of J' H J of some contacts that `add_curvature` omits: the coupling of the contact's two bodies.

  The worlds of a tile mostly have contacts between the same bodies, but in different order. Contacts of the same pair are
  summed, so that products need no gather per world. There is room for as many pairs as a world may have contacts.

  Args:
    m: model whose contacts are chosen at run time.
    j: Jacobian.
    a: from `contact_curvature`.
    pushes: (ncon, W) mask of the contacts between moving bodies to include.
  """
  c, width, body = m.plan.contact, a.shape[-1], cast(jax.Array, j.body)
  if lanes.packs():
    return _couple_by_slot(c, j, a, pushes)
  room = tiles.choose(a, single=0, tile=min(c.couples, c.ncon), batch=0)
  pair, sums = jnp.full((2, room + 1), -1, jnp.int32), jnp.zeros((room + 1, 6, 6, width), a.dtype)
  if not room:
    return PairCoupling(pair, sums, jnp.int32(0), pushes)
  in_some_world, index = linear.materialize(jnp.any(pushes, axis=1)), np.arange(room + 1, dtype=np.int32)

  def add_slot(state):
    k, unpaired, number, pair, sums = state
    slot, slot_pushes = (jax.lax.dynamic_index_in_dim(x, k, keepdims=False) for x in (a, pushes))
    (basis1, body1), (basis2, body2) = (
      [jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in (j.basis, body)] for i in (k, k + c.ncon)
    )
    half = vector.add(slot[:, i, None] * basis2[i] for i in range(c.ndir))
    block = linear.materialize(vector.add(basis1[i, :, None] * half[i, None] for i in range(c.ndir)))

    def add_to_pair(state):
      world, pending, unpaired, number, pair, sums = state
      bodies = body1[world], body2[world]
      is_pair = pending & (body1 == bodies[0]) & (body2 == bodies[1])
      known = (pair[0] == bodies[0]) & (pair[1] == bodies[1])
      at_pair = jnp.min(jnp.where(known, index, number))
      total = jax.lax.dynamic_index_in_dim(sums, at_pair, keepdims=False) + jnp.where(is_pair, block, 0)
      pair = jax.lax.dynamic_update_slice_in_dim(pair, jnp.where(at_pair < room, jnp.stack(bodies), -1)[:, None], at_pair, 1)
      sums = jax.lax.dynamic_update_slice_in_dim(sums, total[None], at_pair, 0)
      unpaired, pending = unpaired | (is_pair & (at_pair == room)), pending & ~is_pair
      return next_true(pending, world), pending, unpaired, jnp.minimum(jnp.maximum(number, at_pair + 1), room), pair, sums

    start = next_true(slot_pushes, -1), slot_pushes, jnp.zeros_like(slot_pushes), number, pair, sums
    _, _, slot_unpaired, *found = jax.lax.while_loop(lambda s: s[0] < width, add_to_pair, start)
    return next_true(in_some_world, k), jax.lax.dynamic_update_slice_in_dim(unpaired, slot_unpaired[None], k, 0), *found

  start = next_true(in_some_world, -1), jnp.zeros_like(pushes), jnp.int32(0), pair, sums
  _, unpaired, number, pair, sums = jax.lax.while_loop(lambda s: s[0] < c.ncon, add_slot, start)
  return PairCoupling(pair, sums, number, unpaired)


def _couple_by_slot(c: ContactPlan, j: Jacobian, a: jax.Array, pushes: jax.Array) -> PairCoupling:
  """Do what `couple_pairs` does in a kernel, with room for all: the contacts of a pair follow each other, in each world."""
  number, none = jnp.full(1, -1, jnp.int32), jnp.zeros((6, 6, 1), a.dtype)
  pair = lanes.empty((c.ncon, 2, 1), jnp.int32), lanes.empty((c.ncon, 6, 6, 1), a.dtype)

  def add(r, state):
    a, basis_a, basis_b, body_a, body_b, _ = r
    number, last, block, (bodies, blocks) = state
    own = jnp.concatenate([body_a[0], body_b[0]])
    is_same = jnp.all(own == last)
    half = vector.add(a[0, :, i, None] * basis_b[0, i] for i in range(c.ndir))
    new = vector.add(basis_a[0, i, :, None] * half[i, None] for i in range(c.ndir))
    number, block = jnp.where(is_same, number, number + 1), new + jnp.where(is_same, block, 0)
    found = bodies.at[number[0]].set(own[:, None]), blocks.at[number[0]].set(block)
    return number, own, block, found

  start = number, jnp.full(2, -1, jnp.int32), none, pair
  number, _, _, (bodies, blocks) = slots.fold_where(add, (a, *_sides_by_slot(c, j)), pushes, start)
  return PairCoupling(bodies[..., 0].T, blocks, number[0] + 1, jnp.zeros(pushes.shape, bool))


def mul_pairs(m: Model, j: Jacobian, a: jax.Array, b: PairCoupling, cdof: jax.Array, x: jax.Array) -> jax.Array:
  """Multiply the coupling b with x: (nv, W) to (nv, W); b is `couple_pairs` of the same j and a."""
  sides, ncon = m.plan.contact.sides, m.plan.contact.ncon
  motion = linear.materialize(mask_sum(sides.body_dof, cdof, x[:, None]))

  def add_pair(state):
    k, sums = state
    body1, body2 = b.body[0, k], b.body[1, k]
    stiffness = jax.lax.dynamic_index_in_dim(b.stiffness, k, keepdims=False)
    motion1, motion2 = (jax.lax.dynamic_index_in_dim(motion, i, keepdims=False) for i in (body1, body2))
    for i, pull in (body1, vector.mat_vec(stiffness, motion2)), (body2, vector.mat_t_vec(stiffness, motion1)):
      total = jax.lax.dynamic_index_in_dim(sums, i, keepdims=False) + pull
      sums = jax.lax.dynamic_update_slice_in_dim(sums, total[None], i, 0)
    return k + 1, sums

  def add_unpaired(sums):
    moved = vector.dot(j.basis, gather(motion, cast(jax.Array, j.body))[:, None])
    opposite = jnp.where(b.unpaired[:, None], jnp.stack([moved[ncon:], moved[:ncon]]), 0)
    force = vector.mat_vec(a, opposite).reshape(moved.shape)
    return sums + sides.to_bodies(vector.mat_t_vec(j.basis, force), j.body)

  _, sums = jax.lax.while_loop(lambda s: s[0] < b.number, add_pair, (jnp.int32(0), jnp.zeros_like(motion)))
  sums = jax.lax.cond(jnp.any(vector.fold(jnp.logical_or, b.unpaired, 0)), add_unpaired, lambda x: x, sums)
  return -vector.dot(cdof, mask_sum(sides.dof_body, sums))


def _stiffness(a: jax.Array, basis: jax.Array) -> jax.Array:
  """Compute the upper triangles (n, 21, W) of basis' a basis, for a (n, ndir, ndir, W) and basis (n, ndir, 6, W)."""

  ndir = range(basis.shape[1])
  half = vector.add(a[:, :, k, None] * basis[:, None, k] for k in ndir)
  packed = [vector.add(basis[:, k, i, None] * half[:, k, i:] for k in ndir) for i in range(6)]
  return linear.materialize(jnp.concatenate(packed, axis=1))


def _single_body_curvature(p: contact.SingleBody, a: jax.Array, j: Jacobian, cdof: jax.Array) -> jax.Array:
  """Compute the dense curvature (nv, nv, W) of the contacts with one moving body.

  The bodies' stiffnesses are summed along the tree to composite stiffnesses, like the inertias in M.
  """
  stiff = _stiffness(rows(a, p.slot), rows(j.basis, p.side))

  def by_dof():
    return mask_sum(p.dof_slot, stiff)

  def by_load():
    return rows(mask_sum(p.load_slot, stiff), p.load)

  load = tiles.choose(stiff, single=by_dof, tile=by_load, batch=by_load)()  # in one world a gather costs more than the sum
  force = vector.mat_vec(spatial.unpack(load), cdof)
  left, right = rows(force, p.entry.row), rows(cdof, p.entry.col)
  return symmetric.unpack(p.entry, linear.materialize(vector.dot(left, right)))


def dense(m: Model, j: Jacobian, cdof: jax.Array) -> jax.Array:
  """Compute the dense J (nefc, nv, W)."""
  p, c = m.plan.jacobian, m.plan.contact
  width = cdof.shape[-1]
  unit = np.zeros((len(p.unit_row), m.nv))
  unit[np.arange(len(p.unit_row)), p.unit_dof] = p.unit_sign
  parts = [_entry_rows(m, j), jnp.asarray(unit, cdof.dtype)[..., None]]
  if len(p.ball_row):
    parts.append(-_ball_rows(p, j.ball_axis, m.nv))
  if len(p.tendon_row):
    parts.append(p.tendon_sign.astype(cdof.dtype)[:, None, None] * rows(tendon.dense(m, j.ten_J), p.tendon_id))
  out = [join(parts, p.order)]
  if c.ncon:
    frame = _frame_jacobian(c, j, cdof)
    flat = frame.reshape(c.ncon, c.ndir, -1)
    wide = jnp.broadcast_to(j.mu[:, :, None], (c.ncon, 5, m.nv, frame.shape[-1])).reshape(c.ncon, 5, -1)
    out.append(contact.to_rows(c, flat, wide).reshape(c.ncon * c.nrow, m.nv, width))
  return join(out)


def first_of_contact(m: Model, x: jax.Array) -> jax.Array:
  """Replace each contact's rows in x (nefc, ..., W) by the first row of the contact."""
  index, c = np.arange(len(x)), m.plan.contact
  start = len(m.plan.jacobian.order)
  index[start:] = start + (index[start:] - start) // c.nrow * c.nrow
  return rows(x, index)


def inverse_diagonal(m: Model, j: Jacobian, cdof: jax.Array, solve: Callable[[jax.Array], jax.Array]) -> jax.Array:
  """Compute the diagonal (nefc, W) of J M^-1 J'; `solve` multiplies M^-1 with (nv, W)."""
  dense_rows = dense(m, j, cdof)
  dense_rows = jnp.broadcast_to(dense_rows, (*dense_rows.shape[:-1], cdof.shape[-1]))
  return vector.total(jnp.swapaxes(dense_rows * jax.vmap(solve)(dense_rows), 0, 1))


def dense_curvature(m: Model, j: Jacobian, cdof: jax.Array, w: jax.Array, cone: jax.Array | None = None) -> jax.Array:
  """Compute the upper triangle of J' H J in a dense (nv, nv, W) matrix; H is diag(w) plus the cones' blocks."""
  p, c = m.plan.jacobian, m.plan.contact
  eye = np.eye(m.nv)[..., None].astype(w.dtype)
  h = unit_curvature(m, w)[:, None] * eye
  if len(p.ball_row):
    axis = _ball_rows(p, j.ball_axis, m.nv)
    weight = rows(w, p.ball_row)
    h = h + vector.add(axis[i][:, None] * (weight[i] * axis[i])[None] for i in range(len(p.ball_row)))
  if p.nequality:
    equality = _entry_rows(m, j)
    h = h + linalg.gram(equality, equality * w[: p.nequality, None])
  if len(p.tendon_row):
    lengths = tendon.dense(m, j.ten_J)
    h = h + linalg.gram(lengths, lengths * group_sum(p.by_tendon, rows(w, p.tendon_row))[:, None])
  if c.ncon:
    a = contact_curvature(m, j, w, cone)
    if len(c.single_body.slot):
      h = h + _single_body_curvature(c.single_body, a, j, cdof)
    if len(c.coupling.slot):
      h = h + coupled.curvature(c.coupling, a, j, cdof)
  return h


def _entry_rows(m: Model, j: Jacobian) -> jax.Array:
  """Return the equality rows as a dense array (nequality, nv, W)."""
  p = m.plan.jacobian
  padded = jnp.concatenate([j.entries, jnp.zeros_like(j.entries, shape=(1, j.entries.shape[-1]))])
  return rows(padded, p.entry.dense).reshape(p.nequality, m.nv, padded.shape[-1])


def _ball_rows(p: JacobianPlan, axis: jax.Array, nv: int) -> jax.Array:
  """Expand the axes (nball, 3, W) of ball limits to dense rows (nball, nv, W)."""
  spread = np.zeros((len(p.ball_row), 3, nv))
  spread[np.arange(len(p.ball_row))[:, None], np.arange(3), p.ball_dof] = 1
  return jnp.sum(axis[:, :, None] * jnp.asarray(spread, axis.dtype)[..., None], axis=1)


def _frame_jacobian(c: contact.ContactPlan, j: Jacobian, cdof: jax.Array) -> jax.Array:
  """Compute the contact-frame components (ncon, ndir, nv, W) of the contacts' velocities per dof."""
  moves = c.sides.moves(j.body, cdof.dtype)[:, None]
  per_side = vector.add(j.basis[:, :, None, k] * cdof[None, None, :, k] for k in range(6)) * moves
  return c.sides.to_slots(per_side)
