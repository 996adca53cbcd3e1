"""Contact rows: pyramidal and elliptic friction cones, and frictionless contacts.

Every slot owns as many rows as the largest condim among the candidates needs; surplus rows are inactive. An elliptic cone has a
row for the normal and one for each of the condim - 1 friction directions (two tangents, spin, two rolls). A pyramidal cone has
an edge pair n + mu_k t_k, n - mu_k t_k for each friction direction, or the normal alone for condim 1.

Tests: tests/solver/test_combinations.py.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.driver import CollisionPlan, Contacts
from mjx_lite.constraint import contact_bodies
from mjx_lite.constraint.contact_bodies import ChosenSides, FixedSides
from mjx_lite.constraint.rows import RowParams
from mjx_lite.errors import MjxError
from mjx_lite.math import vector
from mjx_lite.math.symmetric import SymmetricPlan, plan_packed
from mjx_lite.math.tree import SumPlan, plan_sum
from mjx_lite.model import topology
from mjx_lite.model.enums import MINVAL
from mjx_lite.model.types import Model
from mjx_lite.ops import lanes
from mjx_lite.ops.rows import each, upto
from mjx_lite.ops.select import gather, rows

_MAX_SLOTS = 1 << 14  # largest number of slots without ncon_max: the tables grow with its square
_FIRST_SLOTS = 32  # least number of slots of the plan `first_slots`, for models with at least twice as many


class SingleBody(NamedTuple):
  """Slots that act on one moving body; the curvature of these slots has the sparsity of the kinematic tree."""

  slot: np.ndarray  # (n,)
  side: np.ndarray  # (n,)
  dof_slot: SumPlan  # dof <- slots whose body the dof moves
  load_slot: SumPlan  # load <- slots: the same sums without repetition, as dofs that move the same bodies share a load
  load: np.ndarray  # (nv,) index of each dof's load
  entry: SymmetricPlan  # pairs of a dof with itself and with each ancestor dof


class Coupling(NamedTuple):
  """Slots that may couple two moving bodies."""

  slot: np.ndarray  # (n,)
  side: np.ndarray
  sides: FixedSides | ChosenSides  # sides of these slots alone
  slot_side: np.ndarray  # (n, 1 or 2) indices of each slot's sides in `sides`, -1 for none


class ContactPlan(NamedTuple):
  """Static tables of the slots, of their rows and of their sides."""

  elliptic: bool
  ncon: int
  ndir: int  # directions (normal and friction) of the largest condim: 1, 3, 4 or 6
  nrow: int  # number of rows of every slot
  row_active: np.ndarray  # (ncon, nrow) whether the slot's own condim has the row
  friction_mask: np.ndarray  # (ncon, 5) whether the slot's own condim has the friction direction
  frictional: np.ndarray  # (ncon,) condim > 1
  chosen: bool  # the slots' geoms are chosen at run time
  mixed: bool  # condims are known at run time only; the three masks are then those of the largest condim
  adhesive: bool  # some contacts may have adhesion
  body: np.ndarray  # (ncon, 2) of the slots, valid if the geoms are not chosen at run time
  sides: FixedSides | ChosenSides
  couples: int  # number of pairs of bodies that slots may couple
  single_body: SingleBody  # slots known to act on one moving body
  coupling: Coupling  # all other slots
  first_slots: "ContactPlan | None" = None  # plan of the first quarter of the slots: they mostly hold all contacts


def plan(s: dict[str, Any], c: CollisionPlan, elliptic: bool, adhesive: bool) -> ContactPlan:
  """Build the tables from the slots' bodies and condims; `adhesive` says whether some contacts may have adhesion."""
  chosen, ncon = c.compact is not None, len(c.slot_dim)
  if not chosen and ncon > _MAX_SLOTS:
    raise MjxError(
      f"put_model: the geoms of this model can have {ncon} contacts at once; without capacities the limit is {_MAX_SLOTS}. "
      "Leave ncon_max and pair_max out, or pass suggest_capacity(model, qpos_samples)."
    )
  ndir = int(c.condim.max(initial=1))
  adhesive = adhesive and ncon > 0
  mixed = (chosen and len(set(c.condim)) > 1) or (adhesive and ndir > 1)
  slot_dim = np.full(ncon, ndir) if chosen else c.slot_dim
  nrow = ndir if elliptic or ndir == 1 else 2 * (ndir - 1)
  own = slot_dim if elliptic else np.where(slot_dim == 1, 1, 2 * (slot_dim - 1))
  row_active = np.arange(nrow) < own[:, None]
  friction_mask = np.arange(5) < (slot_dim - 1)[:, None]
  bodies = s["geom_bodyid"][np.stack([c.geom1, c.geom2], axis=-1)].astype(int).reshape(-1, 2)
  sides = contact_bodies.plan_chosen(s, ncon) if chosen else contact_bodies.plan_fixed(s, c.slot_body)
  single_body, coupling = _divide(s, None if chosen else c.slot_body, sides)
  first_slots = None
  if chosen and ncon >= 2 * _FIRST_SLOTS:
    first = slice(max(_FIRST_SLOTS, ncon // 4))
    first_slots = plan(s, c._replace(slot_dim=c.slot_dim[first], slot_body=c.slot_body[first]), elliptic, adhesive)
  return ContactPlan(
    elliptic=elliptic,
    ncon=ncon,
    ndir=ndir,
    nrow=nrow,
    row_active=row_active,
    friction_mask=friction_mask,
    frictional=slot_dim > 1,
    chosen=chosen,
    mixed=mixed,
    adhesive=adhesive,
    body=c.slot_body,
    sides=sides,
    couples=contact_bodies.count_pairs(s, bodies),
    single_body=single_body,
    coupling=coupling,
    first_slots=first_slots,
  )


def _divide(s: dict[str, Any], body: np.ndarray | None, sides: FixedSides | ChosenSides) -> tuple[SingleBody, Coupling]:
  """Split the slots into slots that act on one moving body and slots that may couple two.

  `body` is None where bodies are chosen at run time; then every slot counts as one that may couple two.
  """
  moves = topology.moving_dofs(s).astype(float)
  moving = np.ones((len(sides.slot) // 2, 2), bool) if body is None else np.any(moves, axis=1)[body]
  single, double = (moving.sum(axis=1) == k for k in (1, 2))
  moved_body = np.zeros(0, int) if body is None else body[single, moving[single].argmax(axis=1)]
  side, entry = single[sides.slot], plan_packed(*np.tril(moves[s["dof_bodyid"]]).nonzero(), nv=s["nv"])
  loads, load = np.unique(moves[moved_body].T, axis=0, return_inverse=True)
  single_body = SingleBody(
    slot=np.flatnonzero(single),
    side=np.flatnonzero(side),
    dof_slot=plan_sum(moves[moved_body].T),
    load_slot=plan_sum(loads),
    load=load.ravel(),
    entry=entry,
  )
  coupling_sides = sides if body is None else contact_bodies.plan_fixed(s, body[double])
  slot = np.flatnonzero(double)
  lists = [np.flatnonzero(coupling_sides.slot == k) for k in range(len(slot))]
  slot_side = np.array([np.pad(x, (0, max(map(len, lists)) - len(x)), constant_values=-1) for x in lists], int)
  return single_body, Coupling(slot, np.flatnonzero(~side), coupling_sides, slot_side)


class Masks(NamedTuple):
  """Masks by condim: rows (ncon, nrow, W or 1), friction directions (ncon, 5, W or 1), frictional contacts (ncon, W or 1)."""

  row: jax.Array | np.ndarray
  friction: jax.Array | np.ndarray
  frictional: jax.Array | np.ndarray


def masks(p: ContactPlan, dim: jax.Array | None) -> Masks:
  """Return the masks for the slots' condims (ncon, W); `dim` is read only where condims are not constants."""
  if not p.mixed or dim is None:
    return Masks(p.row_active[..., None], p.friction_mask[..., None], p.frictional[:, None])
  row = np.arange(p.nrow)[:, None] < row_count(p, dim)[:, None]
  return Masks(row, np.arange(5)[:, None] < (dim - 1)[:, None], dim > 1)


def row_count(p: ContactPlan, dim: jax.Array) -> jax.Array:
  """Return the number of rows of contacts with these condims."""
  return dim if p.elliptic else jnp.where(dim == 1, 1, 2 * (dim - 1))


class ContactRows(NamedTuple):
  """Result of `rows_contact`."""

  params: RowParams
  basis: jax.Array
  mu: jax.Array
  body: jax.Array | None
  contact_mu: jax.Array


def rows_contact(m: Model, p: ContactPlan, contacts: Contacts, subtree_com: jax.Array) -> ContactRows:
  """Build the contact rows (ncon * nrow), slot by slot.

  Source: `mj_instantiateContact`, `mj_diagApprox`, `mj_makeImpedance`.
  """
  if p.chosen and p.ncon > 1 and lanes.packs():
    return _by_slot(m, p, contacts, subtree_com)
  body: Any = contact_bodies.from_geoms(m, contacts.geom) if p.chosen else None
  frame, point = rows(contacts.frame, p.sides.slot), rows(contacts.pos, p.sides.slot)
  arm = (point - p.sides.at_root(subtree_com, body))[:, None]
  # without contacts both arrays are empty, but their world axes may differ
  frame = jnp.broadcast_to(frame, (*frame.shape[:-1], max(frame.shape[-1], arm.shape[-1])))
  axes = frame[:, : min(p.ndir, 3)]
  sliding = jnp.concatenate([vector.cross(arm, axes), axes], axis=-2)
  rotation = frame[:, : p.ndir - 3] if p.ndir > 3 else frame[:, :0]
  basis = jnp.concatenate([sliding, jnp.concatenate([rotation, jnp.zeros_like(rotation)], axis=-2)], axis=1)

  own = masks(p, contacts.dim)
  mu = jnp.where(own.friction, contacts.params.friction, 0)
  if p.chosen:
    tran = p.sides.to_slots(gather(m.body_invweight0[:, 0], body))
  else:
    tran = rows(m.body_invweight0, p.body[:, 0])[:, 0] + rows(m.body_invweight0, p.body[:, 1])[:, 0]
  mu1 = contacts.params.friction[:, 0]
  contact_mu = mu1 / jnp.sqrt(jnp.maximum(m.opt.impratio, MINVAL))
  friction = own.frictional

  def per_row(x):
    """Repeat a slot's value for its rows."""
    x = jnp.broadcast_to(x[:, None], (p.ncon, p.nrow, *x.shape[1:]))
    return x.reshape(p.ncon * p.nrow, *x.shape[2:])

  if p.elliptic:
    # regularisation of friction direction j: that of the normal times mu_1^2 / (mu_j^2 impratio)
    diag, scale = tran, _elliptic_scale(p, contacts.params.friction, contact_mu)
  else:
    # all edges of a pyramid have 2 mu_c^2 R0, where R0 is that of the first edge and mu_c^2 = mu_1^2 / impratio
    diag = jnp.where(friction, tran + mu1 * mu1 * tran, tran)
    scale = per_row(jnp.where(friction, 2 * contact_mu * contact_mu, 1))

  margin = contacts.params.margin
  active = (contacts.exclude == 0)[:, None] & own.row
  dist, edge, zero = per_row(contacts.dist), per_row(margin), jnp.zeros((p.ncon * p.nrow, 1), margin.dtype)
  solref, violation, normal = contacts.params.solref, dist, _has_stiffness(p)
  if p.elliptic:
    # friction directions have position 0, margin 0 and the normal's impedance; they may have their own solref
    violation = dist - jnp.where(normal[:, None], 0, edge)
    dist, edge = jnp.where(normal[:, None], dist, 0), jnp.where(normal[:, None], edge, 0)
    ref = contacts.params.solreffriction
    is_set = ((ref[:, :1] > 0) == (ref[:, 1:] > 0)) & ((ref[:, :1] != 0) | (ref[:, 1:] != 0))
    solref = jnp.where(normal[:, None, None], per_row(solref), per_row(jnp.where(is_set, ref, solref)))
  else:
    solref = per_row(solref)
  params = RowParams(
    active=active.reshape(p.ncon * p.nrow, active.shape[-1]), pos=dist, violation=violation,
    margin=edge, diag=per_row(diag), scale=scale, solref=solref, solimp=per_row(contacts.params.solimp),
    frictionloss=zero, bias=zero, stiff=normal,
  )  # fmt: skip
  return ContactRows(params, basis, mu, body, jnp.where(friction, contact_mu, 0))


def _has_stiffness(p: ContactPlan) -> np.ndarray:
  """Return the mask (ncon * nrow,) of the rows with stiffness: all edges of a pyramid, of an elliptic cone the normal alone."""
  return np.tile((np.arange(p.nrow) == 0) | (not p.elliptic), p.ncon)


def _by_slot(m: Model, p: ContactPlan, contacts: Contacts, subtree_com: jax.Array) -> ContactRows:
  """Do what `rows_contact` does in a kernel: one slot after the other, up to the last contact."""
  sides = cast(ChosenSides, p.sides)._replace(slot=np.zeros(2, int), sign=np.array([-1, 1]))
  masks = {k: getattr(p, k)[:1] for k in ("row_active", "friction_mask", "frictional")}  # all slots are alike
  one = p._replace(ncon=1, sides=sides, **masks)

  def of_slot(c):
    made = rows_contact(m, one, c, subtree_com)
    return jax.tree.map(lambda x: x[None], made._replace(params=made.params._replace(stiff=None)))

  own = contacts._replace(full=None, found=None, lost_search=None)
  made = each(of_slot, own, upto(contacts.exclude == 0))
  params = jax.tree.map(lambda x: x.reshape(p.ncon * p.nrow, *x.shape[2:]), made.params)
  basis, body = (jnp.concatenate([x[:, 0], x[:, 1]]) for x in (made.basis, made.body))
  return ContactRows(params._replace(stiff=_has_stiffness(p)), basis, made.mu[:, 0], body, made.contact_mu[:, 0])


def _elliptic_scale(p: ContactPlan, friction: jax.Array, contact_mu: jax.Array) -> jax.Array:
  """Compute the regularisation (ncon * nrow, W) of the rows relative to that of the normal."""
  ratio = contact_mu[:, None] / friction[:, : p.ndir - 1]
  one = jnp.ones_like(ratio, shape=(p.ncon, 1, ratio.shape[-1]))
  return jnp.concatenate([one, ratio * ratio], axis=1).reshape(p.ncon * p.nrow, ratio.shape[-1])


def last_slot(p: ContactPlan, active: jax.Array) -> jax.Array | None:
  """Return the number (W,) of slots up to the last contact, from the mask (ncon nrow, W) of active rows; None if fixed."""
  return upto(active[:: p.nrow]) if p.chosen else None


def to_rows(p: ContactPlan, y: jax.Array, mu: jax.Array) -> jax.Array:
  """Convert contact-frame components (ncon, ndir, W) to rows (ncon * nrow, W)."""
  if p.elliptic or p.nrow == 1:
    return y.reshape(p.ncon * p.nrow, y.shape[-1])
  normal, along = jax.lax.split(y, (1, p.ndir - 1), axis=1)
  edge = mu[:, : p.ndir - 1] * along
  pairs = jnp.stack([normal + edge, normal - edge], axis=2)
  return pairs.reshape(p.ncon * p.nrow, pairs.shape[-1])


def surface_rows(p: ContactPlan, surfacevel: jax.Array, mu: jax.Array) -> jax.Array:
  """Compute the velocity (ncon * nrow, W) that moving surfaces add to the contact rows. Source: `mj_addSurfaceVel`."""
  n = min(p.ndir - 1, 3)
  zeros = lambda k: jnp.zeros((p.ncon, k, surfacevel.shape[-1]), surfacevel.dtype)  # noqa: E731
  return to_rows(p, jnp.concatenate([zeros(1), surfacevel[:, :n], zeros(p.ndir - 1 - n)], axis=1), mu)


def from_rows(p: ContactPlan, f: jax.Array, mu: jax.Array) -> jax.Array:
  """Convert row forces (ncon * nrow, W) to contact-frame components (ncon, ndir, W): the transpose of `to_rows`."""
  if p.elliptic or p.nrow == 1:
    return f.reshape(p.ncon, p.ndir, f.shape[-1])
  f = f.reshape(p.ncon, p.ndir - 1, 2, f.shape[-1])
  normal = vector.add(f[:, k, 0] + f[:, k, 1] for k in range(p.ndir - 1))[:, None]
  return jnp.concatenate([normal, mu[:, : p.ndir - 1] * (f[:, :, 0] - f[:, :, 1])], axis=1)


def stiffness(p: ContactPlan, w: jax.Array, mu: jax.Array, number: jax.Array | None) -> jax.Array:
  """Convert row weights (ncon * nrow, W) to the matrix (ncon, ndir, ndir, W) of `sum w (row)(row)'` in frame components.

  The slots from `number` (W,) on are empty; with None all slots may have weights.
  """
  if p.elliptic or p.nrow == 1:
    return w.reshape(p.ncon, p.ndir, 1, w.shape[-1]) * np.eye(p.ndir)[..., None].astype(w.dtype)
  w = w.reshape(p.ncon, p.ndir - 1, 2, w.shape[-1])
  return each(lambda r: _pyramid(p.ndir, *r), (w, mu[:, : p.ndir - 1]), number)


def _pyramid(ndir: int, w: jax.Array, mu: jax.Array) -> jax.Array:
  """Return the matrices (n, ndir, ndir, W) of `stiffness` from the weights (n, ndir - 1, 2, W) of the edges of pyramids."""
  plus, minus = w[:, :, 0] + w[:, :, 1], mu * (w[:, :, 0] - w[:, :, 1])
  top = jnp.concatenate([vector.add(plus[:, k] for k in range(ndir - 1))[:, None], minus], axis=1)[:, None]
  eye = np.eye(ndir - 1)[..., None].astype(w.dtype)
  rest = jnp.concatenate([minus[:, :, None], (mu * mu * plus)[:, :, None] * eye], axis=2)
  return jnp.concatenate([top, rest], axis=1)
