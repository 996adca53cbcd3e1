"""Contact rows: pyramidal and elliptic friction cones, and frictionless contacts.

A slot owns the rows of the largest condim among the candidates. Elliptic: the normal and each of the condim - 1 friction
directions (two tangents, spin, two rolls). Pyramidal: an edge pair n + mu_k t_k, n - mu_k t_k for each friction direction,
or the normal alone for condim 1. Surplus rows are inactive.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.driver import Contacts
from mjx_lite.constraint.rows import RowParams
from mjx_lite.core.enums import MINVAL
from mjx_lite.core.select import rows
from mjx_lite.core.types import Model
from mjx_lite.math import vector
from mjx_lite.math.tree import SumPlan, plan_sum, transpose


class ContactPlan(NamedTuple):
  """Slots, their rows and their sides.

  A side is a body (or two of one tree, whose spatial velocities are about the same point) that a slot acts on: one side
  per slot, or two where the bodies belong to different trees.
  """

  elliptic: bool
  ncon: int
  ndir: int  # directions of the widest slot: 1, 3, 4 or 6
  nrow: int  # rows of every slot
  row_active: np.ndarray  # (ncon, nrow) rows that the slot's own condim has
  friction_mask: np.ndarray  # (ncon, 5) friction directions that the slot's own condim has
  frictional: np.ndarray  # (ncon,) condim > 1
  body: np.ndarray  # (ncon, 2)
  side_slot: np.ndarray  # (nside,)
  side_root: np.ndarray  # (nside,) root body of the side's tree
  one_sided: bool  # every slot has exactly one side
  slot_side: SumPlan  # slot <- sides
  side_dof: SumPlan  # side <- signed dofs
  dof_side: SumPlan  # its transpose
  body_side: SumPlan  # body <- signed sides (bodies without dofs left out)
  tree_sparse: bool  # no slot couples two moving bodies


def plan(s: dict[str, Any], slot_body: np.ndarray, slot_dim: np.ndarray, elliptic: bool) -> ContactPlan:
  """Rows and sides from the slots' bodies and condims."""
  ncon, nbody, nv = len(slot_dim), s["nbody"], s["nv"]
  ndir = int(slot_dim.max(initial=1))
  nrow = ndir if elliptic or ndir == 1 else 2 * (ndir - 1)
  own = slot_dim if elliptic else np.where(slot_dim == 1, 1, 2 * (slot_dim - 1))
  row_active = np.arange(nrow) < own[:, None]
  friction_mask = np.arange(5) < (slot_dim - 1)[:, None]

  moves = np.zeros((nbody, nv))  # moves[b, v]: dof v moves body b
  for b in range(1, nbody):
    n, adr = s["body_dofnum"][b], s["body_dofadr"][b]
    moves[b] = moves[s["body_parentid"][b]]
    moves[b, adr : adr + n] = 1
  sides: list[tuple[int, int, np.ndarray, list[tuple[int, int]]]] = []
  tree_sparse = True
  for c, (b1, b2) in enumerate(slot_body):
    moving = [(b, sign) for b, sign in ((int(b1), -1), (int(b2), 1)) if moves[b].any()]
    roots = {int(s["body_rootid"][b]) for b, _ in moving}
    tree_sparse &= len(moving) == 1
    for root in sorted(roots):
      members = [(b, sign) for b, sign in moving if s["body_rootid"][b] == root]
      sides.append((c, root, np.sum([sign * moves[b] for b, sign in members], axis=0), members))
  side_slot, side_root = (np.array([x[k] for x in sides], int) for k in (0, 1))
  slot_side, body_side = np.zeros((ncon, len(sides))), np.zeros((nbody, len(sides)))
  slot_side[side_slot, np.arange(len(sides))] = 1
  for i, (_, _, _, members) in enumerate(sides):
    for b, sign in members:
      body_side[b, i] += sign
  side_dof = plan_sum(np.array([x[2] for x in sides]).reshape(len(sides), nv))
  one_sided = len(sides) == ncon and np.array_equal(side_slot, np.arange(ncon))
  return ContactPlan(
    elliptic, ncon, ndir, nrow, row_active, friction_mask, slot_dim > 1, slot_body, side_slot, side_root, one_sided,
    plan_sum(slot_side), side_dof, transpose(side_dof), plan_sum(body_side), tree_sparse,
  )  # fmt: skip


class ContactRows(NamedTuple):
  """Result of `rows_contact`."""

  params: RowParams
  basis: jax.Array
  mu: jax.Array
  contact_mu: jax.Array


def rows_contact(m: Model, p: ContactPlan, contacts: Contacts, subtree_com: jax.Array) -> ContactRows:
  """Contact rows (ncon * nrow), slot by slot.

  Source: `mj_instantiateContact`, `mj_diagApprox`, `mj_makeImpedance`.
  """
  frame, point = rows(contacts.frame, p.side_slot), rows(contacts.pos, p.side_slot)
  arm = (point - rows(subtree_com, p.side_root))[:, None]
  axes = frame[:, : min(p.ndir, 3)]
  linear = jnp.concatenate([vector.cross(arm, axes), axes], axis=-2)
  turning = frame[:, : p.ndir - 3] if p.ndir > 3 else frame[:, :0]
  basis = jnp.concatenate([linear, jnp.concatenate([turning, jnp.zeros_like(turning)], axis=-2)], axis=1)

  mu = jnp.where(p.friction_mask[..., None], contacts.params.friction, 0)
  tran = rows(m.body_invweight0, p.body[:, 0])[:, 0] + rows(m.body_invweight0, p.body[:, 1])[:, 0]
  mu1 = contacts.params.friction[:, 0]
  contact_mu = mu1 / jnp.sqrt(jnp.maximum(m.opt.impratio, MINVAL))
  friction = p.frictional[:, None]

  def per_row(x):
    """Repeat a slot's value for its rows."""
    x = jnp.broadcast_to(x[:, None], (p.ncon, p.nrow, *x.shape[1:]))
    return x.reshape(p.ncon * p.nrow, *x.shape[2:])

  if p.elliptic:
    # regularisation of the normal, and mu_1^2 / (mu_j^2 impratio) of it in friction direction j
    diag, scale = tran, _elliptic_scale(p, contacts.params.friction, contact_mu)
  else:
    # all edges of a pyramid share 2 mu_c^2 R0, R0 that of its first edge and mu_c^2 = mu_1^2 / impratio
    diag = jnp.where(friction, tran + mu1 * mu1 * tran, tran)
    scale = per_row(jnp.where(friction, 2 * contact_mu * contact_mu, 1))

  margin = contacts.params.margin
  active = (contacts.dist < margin)[:, None] & p.row_active[..., None]
  dist, edge, zero = per_row(contacts.dist), per_row(margin), jnp.zeros((p.ncon * p.nrow, 1), margin.dtype)
  solref, violation, normal = contacts.params.solref, dist, np.ones(p.ncon * p.nrow, bool)
  if p.elliptic:
    # friction directions have position and margin 0, the impedance of the normal, and may have their own solref
    normal = np.tile(np.arange(p.nrow) == 0, p.ncon)
    violation = dist - jnp.where(normal[:, None], 0, edge)
    dist, edge = jnp.where(normal[:, None], dist, 0), jnp.where(normal[:, None], edge, 0)
    own = contacts.params.solreffriction
    given = ((own[:, :1] > 0) == (own[:, 1:] > 0)) & ((own[:, :1] != 0) | (own[:, 1:] != 0))
    solref = jnp.where(normal[:, None, None], per_row(solref), per_row(jnp.where(given, own, solref)))
  else:
    solref = per_row(solref)
  params = RowParams(
    active=active.reshape(p.ncon * p.nrow, active.shape[-1]), pos=dist, violation=violation,
    margin=edge, diag=per_row(diag), scale=scale, solref=solref, solimp=per_row(contacts.params.solimp),
    frictionloss=zero, bias=zero, stiff=normal,
  )  # fmt: skip
  return ContactRows(params, basis, mu, jnp.where(friction, contact_mu, 0))


def _elliptic_scale(p: ContactPlan, friction: jax.Array, contact_mu: jax.Array) -> jax.Array:
  """Regularisation of the rows relative to the normal's (ncon * nrow, W)."""
  ratio = contact_mu[:, None] / friction[:, : p.ndir - 1]
  one = jnp.ones_like(ratio, shape=(p.ncon, 1, ratio.shape[-1]))
  return jnp.concatenate([one, ratio * ratio], axis=1).reshape(p.ncon * p.nrow, ratio.shape[-1])


def to_rows(p: ContactPlan, y: jax.Array, mu: jax.Array) -> jax.Array:
  """Frame components (ncon, ndir, W) to rows (ncon * nrow, W)."""
  if p.elliptic or p.nrow == 1:
    return y.reshape(p.ncon * p.nrow, -1)
  edge = mu[:, : p.ndir - 1] * y[:, 1:]
  both = jnp.stack([y[:, :1] + edge, y[:, :1] - edge], axis=2)
  return both.reshape(p.ncon * p.nrow, -1)


def surface_rows(p: ContactPlan, surfacevel: jax.Array, mu: jax.Array) -> jax.Array:
  """Velocity (ncon * nrow, W) that moving surfaces add to the contact rows. Source: `mj_addSurfaceVel`."""
  n = min(p.ndir - 1, 3)
  none = lambda k: jnp.zeros((p.ncon, k, surfacevel.shape[-1]), surfacevel.dtype)  # noqa: E731
  return to_rows(p, jnp.concatenate([none(1), surfacevel[:, :n], none(p.ndir - 1 - n)], axis=1), mu)


def from_rows(p: ContactPlan, f: jax.Array, mu: jax.Array) -> jax.Array:
  """Row forces (ncon * nrow, W) to frame components (ncon, ndir, W): the transpose of `to_rows`."""
  if p.elliptic or p.nrow == 1:
    return f.reshape(p.ncon, p.ndir, -1)
  f = f.reshape(p.ncon, p.ndir - 1, 2, -1)
  normal = vector.add(f[:, k, 0] + f[:, k, 1] for k in range(p.ndir - 1))[:, None]
  return jnp.concatenate([normal, mu[:, : p.ndir - 1] * (f[:, :, 0] - f[:, :, 1])], axis=1)


def stiffness(p: ContactPlan, w: jax.Array, mu: jax.Array) -> jax.Array:
  """Row weights (ncon * nrow, W) to the matrix (ncon, ndir, ndir, W) of `sum w (row)(row)'` in frame components."""
  if p.elliptic or p.nrow == 1:
    return w.reshape(p.ncon, p.ndir, 1, -1) * np.eye(p.ndir)[..., None].astype(w.dtype)
  w = w.reshape(p.ncon, p.ndir - 1, 2, -1)
  mu = mu[:, : p.ndir - 1]
  plus, minus = w[:, :, 0] + w[:, :, 1], mu * (w[:, :, 0] - w[:, :, 1])
  top = jnp.concatenate([vector.add(plus[:, k] for k in range(p.ndir - 1))[:, None], minus], axis=1)[:, None]
  eye = np.eye(p.ndir - 1)[..., None].astype(w.dtype)
  rest = jnp.concatenate([minus[:, :, None], (mu * mu * plus)[:, :, None] * eye], axis=2)
  return jnp.concatenate([top, rest], axis=1)
