"""Contacts of all candidate pairs: the plan of pairs and slots, and the run over all groups of pairs.

Without a capacity every possible contact has its own slot. With a capacity the contacts share a smaller number of slots.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import broadphase, mixing, pairs, shapes
from mjx_lite.collision.broadphase import NO_BOUND, Capacity
from mjx_lite.collision.convex import convex, hulls
from mjx_lite.collision.convex.hulls import HullOf
from mjx_lite.collision.hfield import hfield
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.sdf.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.collision.shapes import Shape
from mjx_lite.math.geometry import make_frame
from mjx_lite.model.enums import DisableBit, GeomType
from mjx_lite.model.types import Model
from mjx_lite.ops import linear
from mjx_lite.ops.select import gather, join, rows

_FAR = shapes.NO_CONTACT


class FieldPlan(NamedTuple):
  """The plan of pairs with distance fields, and the collider that uses the plan."""

  collide: Callable[[Any, Shape, Shape, jax.Array | None], shapes.Contacts]
  plan: Any


class Group(NamedTuple):
  """Candidate pairs that share one collider: pairs of one geom-type pair, all convex pairs, or all pairs with height fields."""

  pair: np.ndarray  # indices into the candidate list
  geom1: np.ndarray
  geom2: np.ndarray
  hull1: HullOf | None  # hulls of the meshes among the geoms, in order
  hull2: HullOf | None
  # the closed-form collider of the type pair, or the plan of the convex path, of height fields or of distance fields
  how: Callable[[Shape, Shape, jax.Array], shapes.Contacts] | convex.ConvexPlan | hfield.HFieldPlan | FieldPlan
  name: str  # name of the group in `Capacity.pair_max`
  bounded: bool  # whether candidates can be chosen by their bounds
  budget: int  # number of pairs in the narrow phase; the nearest pairs, where there are more


NO_DOFS = 3  # contact.exclude of a contact that no dof changes


class CollisionPlan(NamedTuple):
  """Candidates grouped by type, and the slots in MuJoCo's order."""

  enabled: bool  # whether contacts are enabled
  groups: tuple[Group, ...]
  geom1: np.ndarray  # (npair,) candidates
  geom2: np.ndarray
  explicit: np.ndarray  # index of the explicit <pair>, -1 otherwise
  condim: np.ndarray  # (npair,)
  slot_row: np.ndarray  # (ncon,) slot -> row in the concatenation of the groups' contacts
  slot_pair: np.ndarray  # (ncon,)
  slot_geom: np.ndarray  # (ncon, 2)
  slot_dim: np.ndarray  # (ncon,) condim
  slot_body: np.ndarray  # (ncon, 2)
  rigid: np.ndarray | None  # (npair, 1) 1 if no dof moves the geoms relative to each other; None without such pairs
  compact: int | None  # maximum number of slots per pair, if slots are filled at run time; `slot_*` are then only examples

  @property
  def is_closed(self) -> bool:
    """Return whether closed forms find all contacts and every possible contact has its own slot."""
    searched = any(isinstance(g.how, convex.ConvexPlan | FieldPlan) or g.name == "-".join(_FIELDS) for g in self.groups)
    return self.compact is None and not searched and all(g.budget == len(g.pair) for g in self.groups)


class Contacts(NamedTuple):
  """Result of `collide`: geometry and parameters of every slot.

  A field is None if it does not exist in the model, or if it is not chosen at run time and its value is in the plan.
  """

  dist: jax.Array
  pos: jax.Array
  frame: jax.Array
  params: mixing.Params
  surfacevel: jax.Array | None = None  # (ncon, 3, W) surface velocity, if some surface has a velocity
  adhesion: jax.Array | None = None  # (ncon, W) attracting force [N], if some contact has adhesion
  exclude: Any = None  # (ncon, W) as in Data
  full: jax.Array | None = None  # (W,) whether slots of height fields are missing, if any can be missing
  geom: Any = None  # (ncon, 2, W)
  dim: Any = None  # (ncon, W)
  rigid: Any = None  # (ncon, 1 or W) as in the plan
  lost_pair: Any = None  # (W,) whether candidates within reach did not fit
  lost_contact: Any = None  # (W,) whether contacts did not fit
  lost_search: Any = None  # (W,) whether the search for a convex contact ended at its limit, if there is a search


def type_name(t: int) -> str:
  """Return the name of a geom type as in the tables, in lower case."""
  return GeomType(int(t)).name.lower()


def reach(pair: pairs.Pair, values: dict[str, np.ndarray]) -> float:
  """Return the radius [m] of a ball around the second geom of a pair: outside of the ball the geom touches nothing."""
  k, geoms = pair.explicit, [pair.geom1, pair.geom2]
  between = [values[f"pair_{x}"][k] if k >= 0 else values[f"geom_{x}"][geoms].sum() for x in ("margin", "gap")]
  return float(values["geom_rbound"][pair.geom2] + sum(between))


_FIELDS = ("hfield", "*")  # key of all pairs with height fields that share one collider


def _body_of_field(types: tuple[str, str]) -> tuple[str, str]:
  """Return the key of the collider of a pair with a height field."""
  return types if types[1] in hfield.CLOSED else _FIELDS


def plan(s: dict[str, Any], values: dict[str, np.ndarray], disableflags: int, capacity: Capacity = NO_BOUND) -> CollisionPlan:
  """Plan candidates and slots.

  Args:
    s: static fields of the model.
    values: the model's float fields at the time of planning.
    disableflags: the option's flags.
    capacity: limits of contacts and of candidates in the narrow phase.
  """
  found = pairs.candidates(s, disableflags)
  geom1, geom2 = (np.array([getattr(p, k) for p in found], int) for k in ("geom1", "geom2"))
  condim, explicit = (np.array([getattr(p, k) for p in found], int) for k in ("condim", "explicit"))
  kind = [(type_name(s["geom_type"][a]), type_name(s["geom_type"][b])) for a, b in zip(geom1, geom2, strict=True)]
  hulled = {"mesh", "sdf"} if ("plane", "sdf") in kind else {"mesh"}
  meshes = [s["geom_dataid"][g] for g in {*geom1, *geom2} if type_name(s["geom_type"][g]) in hulled]
  on_plane = [s["geom_dataid"][g2] for g2, k in zip(geom2, kind, strict=True) if k[0] == "plane" and k[1] in hulled]
  tables = hulls.plan(s, np.array(meshes, int), np.array(on_plane, int))

  def hull(geoms):
    data = np.array([s["geom_dataid"][g] for g in geoms if type_name(s["geom_type"][g]) in hulled], int)
    return HullOf(tables, tables.start[data], tables.count[data]) if len(data) else None

  groups, first_row, offset = [], np.zeros(len(found), int), 0
  number = np.array([COLLIDERS[k].ncon if k in COLLIDERS else 0 for k in kind], int)
  tree = s["body_rootid"][s["geom_bodyid"]]
  body = [_body_of_field(k) if k[0] == "hfield" else k if k in FIELD_COLLIDERS or COLLIDERS[k].fn else None for k in kind]
  for types in sorted(set(body), key=lambda k: k or ("~", "")):
    members = np.array([i for i, k in enumerate(body) if k == types], int)
    if capacity != NO_BOUND:
      members = members[np.lexsort(tree[np.stack([geom1, geom2])][:, members])]
    pair = geom1[members], geom2[members]
    both = hull(pair[0]), hull(pair[1])
    if types and types[0] == "hfield":
      near = [reach(found[i], values) for i in members]
      how = hfield.plan(s, np.array(near), pair[0], [kind[i][1] for i in members])
      number[members] = how.ncon
    elif types in FIELD_COLLIDERS:
      collider = FIELD_COLLIDERS[types]
      how, number[members] = FieldPlan(collider.collide, collider.plan(s, *pair)), collider.ncon(s)
    else:
      how = (types and COLLIDERS[types].fn) or convex.plan([kind[i] for i in members], *both)
    name, bounded = "-".join(types) if types else "convex", _has_bounds(types)
    budget = capacity.budget(name, len(members)) if bounded else len(members)
    groups.append(Group(members, *pair, *both, how, name, bounded, budget))
    ncon = number[members] if types else np.full(len(members), convex.NCON)
    first_row[members] = offset + np.cumsum(ncon) - ncon
    offset += ncon.sum()
  slot_pair = np.repeat(np.arange(len(found)), number)
  within = np.concatenate([np.arange(n) for n in number]).astype(int) if len(number) else np.zeros(0, int)
  kept, compact = _compacted(groups, number, capacity)
  slot_pair, within = slot_pair[:kept], within[:kept]
  slot_geom = np.stack([geom1[slot_pair], geom2[slot_pair]], axis=-1)
  enabled = not disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT)
  rigid = pairs.are_rigid(s, *s["geom_bodyid"][np.stack([geom1, geom2])]) & (s["nv"] > 0)  # as C tests for the rows
  return CollisionPlan(
    enabled=enabled,
    groups=tuple(groups),
    geom1=geom1,
    geom2=geom2,
    explicit=explicit,
    condim=condim,
    slot_row=first_row[slot_pair] + within,
    slot_pair=slot_pair,
    slot_geom=slot_geom,
    slot_dim=condim[slot_pair],
    slot_body=s["geom_bodyid"][slot_geom].astype(int),
    rigid=rigid[:, None].astype(np.int32) if rigid.any() else None,
    compact=compact,
  )


def _has_bounds(types: tuple[str, str] | None) -> bool:
  """Return whether candidates can be chosen by their bounds: planes have no bounds, and height fields have their own slots."""
  return types is None or not {"plane", "hfield"} & {*types}


def _compacted(groups, ncon, capacity) -> tuple[int, int | None]:
  """Compute the number of slots, and the maximum number of slots per pair; the latter is None if every contact has a slot."""
  total = int(ncon.sum())
  widths = [convex.NCON if isinstance(g.how, convex.ConvexPlan) else int(ncon[g.pair].max()) for g in groups]
  found = sum(g.budget * n for g, n in zip(groups, widths, strict=True))
  kept = min(total, found, total if capacity.ncon_max is None else int(capacity.ncon_max))
  whole = kept == total and all(g.budget == len(g.pair) for g in groups)
  return kept, None if whole else max(widths)


def collide(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Compute the contacts of all candidates. A slot is a contact where `dist < margin + gap`.

  Source: `mj_collision`.
  """
  return _decided(m, _collide(m, geom_xpos, geom_xmat))


def _decided(m: Model, c: Contacts) -> Contacts:
  """Set `exclude`: which contacts have constraint rows. A contact with adhesion has its normal row in the gap too.

  Source: `mj_setContact`; `mj_instantiateContact` for contacts that no dof changes.
  """
  touches, near = c.dist < c.params.margin, c.dist <= c.params.margin + c.params.gap
  active = touches
  if c.adhesion is not None:
    pulls = c.adhesion != 0
    active = touches | (near & pulls)
    dim = m.plan.collision.slot_dim[:, None].astype(np.int32) if c.dim is None else c.dim
    c = c._replace(dim=jnp.where(pulls & ~touches, 1, dim))
  code = 0 if c.rigid is None else NO_DOFS * c.rigid
  return c._replace(exclude=jnp.where(active, code, jnp.where(near, 1, -1)).astype(jnp.int32))


def _collide(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  p: CollisionPlan = m.plan.collision
  if p.compact is not None and m.opt.use_contact:
    return _collide_near(m, geom_xpos, geom_xmat)
  by_pair = mixing.mix(m, _pairs(p))
  params = mixing.Params(*(rows(x, p.slot_pair) for x in by_pair))
  reach = by_pair.margin + by_pair.gap
  if not p.groups or not m.opt.use_contact:
    shape, dtype = (len(p.slot_pair), geom_xpos.shape[-1]), geom_xpos.dtype
    empty, nowhere = jnp.full(shape, shapes.NO_CONTACT, dtype), jnp.zeros((shape[0], 3, shape[1]), dtype)
    return Contacts(empty, nowhere, jnp.broadcast_to(jnp.eye(3, dtype=dtype)[..., None], (shape[0], 3, 3, shape[1])), params)
  adhesion = _adhesion(m, _pairs(p))
  dist, pos, normal, tangent, full, lost = [], [], [], [], None, None
  for group in p.groups:
    both, margin = _shapes(m, group, geom_xpos, geom_xmat), rows(reach, group.pair)
    if isinstance(group.how, hfield.HFieldPlan):
      found, over, missed = hfield.collide(group.how, *both, margin, m.opt.ccd_iterations)
      full = _either(full, over)
    else:
      found, missed = _narrow(m, group, *both, margin)
    lost = _either(lost, missed)
    flat = [x.reshape(-1, *x.shape[2:]) for x in found]
    for part, x in zip((dist, pos, normal, tangent), flat, strict=True):
      part.append(x)
  adhesion = None if adhesion is None else rows(adhesion, p.slot_pair)
  rigid = None if p.rigid is None else p.rigid[p.slot_pair]
  dist, pos, normal, tangent = (join(x, p.slot_row) for x in (dist, pos, normal, tangent))
  return Contacts(dist, pos, make_frame(normal, tangent), params, full=full, adhesion=adhesion, rigid=rigid, lost_search=lost)


def _either(a: jax.Array | None, b: jax.Array | None) -> jax.Array | None:
  """Combine two masks (W,) of worlds by or; None is the empty mask."""
  return b if a is None else a if b is None else a | b


def _pairs(p: CollisionPlan, which: np.ndarray | slice = slice(None)) -> mixing.Pairs:
  """Return all candidates of the plan, or the candidates at an index."""
  return mixing.Pairs(p.geom1[which], p.geom2[which], p.explicit[which])


def _chosen(pairs: mixing.Pairs, place: jax.Array) -> mixing.Pairs:
  """Gather pairs at indices (k, W)."""

  def at(x):
    return jnp.asarray(x.astype(np.int32))[place]

  return mixing.Pairs(at(pairs.geom1), at(pairs.geom2), at(pairs.explicit) if pairs.may_be_explicit else pairs.explicit)


def _adhesion(m: Model, pairs: mixing.Pairs) -> jax.Array | None:
  """Return the adhesion (n, W) of pairs [N]; None if no contact of the model has adhesion."""
  return mixing.adhesion(m, pairs) if m.plan.contact.adhesive else None


def _shapes(m: Model, group: Group, geom_xpos: jax.Array, geom_xmat: jax.Array) -> tuple[Shape, Shape]:
  """Return the two shapes of all pairs of a group."""
  first, second = (
    Shape(rows(geom_xpos, g), rows(geom_xmat, g), rows(m.geom_size, g), hull)
    for g, hull in ((group.geom1, group.hull1), (group.geom2, group.hull2))
  )
  return first, second


def _narrow(
  m: Model, group: Group, shape1: Shape, shape2: Shape, margin: jax.Array, place: jax.Array | None = None
) -> tuple[shapes.Contacts, jax.Array | None]:
  """Compute the contacts of the pairs of a group, or of the pairs at indices (k, W) of the group.

  Returns:
    the contacts, and a mask (W,) of the worlds in which a search ran out, or None if there is no search.
  """
  if isinstance(group.how, convex.ConvexPlan):
    multiccd = not m.opt.disableflags & DisableBit.MULTICCD
    return convex.collide(group.how, shape1, shape2, margin, m.opt.ccd_iterations, multiccd, place)
  if isinstance(group.how, FieldPlan):
    return group.how.collide(group.how.plan, shape1, shape2, place), None
  assert not isinstance(group.how, hfield.HFieldPlan)
  return linear.materialized(group.how(shape1, shape2, margin)), None


def _collide_near(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Compute the contacts of the candidates that are near, in the plan's number of slots.

  Gradient: of the contacts found; the selection of the contacts has no gradient.
  """
  p: CollisionPlan = m.plan.collision
  bounds = broadphase.bounds(m, geom_xpos, geom_xmat, m.opt.felt)
  reaches = [_own_reach(m, g, jax.lax.stop_gradient(m.opt.felt)) if g.budget < len(g.pair) else None for g in p.groups]
  near = _near_trees(m, bounds, reaches)
  lost, width = jnp.zeros(geom_xpos.shape[-1], bool), int(p.compact or 0)
  parts, full, lost_search = [], jnp.zeros_like(lost), None
  for group, own in zip(p.groups, reaches, strict=True):
    if isinstance(group.how, hfield.HFieldPlan):
      owner = np.repeat(np.arange(len(group.pair)), group.how.ncon)
      rank = width * group.pair[owner] + np.concatenate([np.arange(n) for n in group.how.ncon])
      margin = mixing.reach(m, _pairs(p, group.pair))
      found, over, missed = hfield.collide(group.how, *_shapes(m, group, geom_xpos, geom_xmat), margin, m.opt.ccd_iterations)
      rank, flat, full = jnp.asarray(rank.astype(np.int32))[:, None], [x[0] for x in found], full | over
      lost_search = _either(lost_search, missed)
      parts.append([rank, flat[0] < rows(margin, owner), *flat])
      continue
    place, pair, pairs = None, jnp.asarray(group.pair.astype(np.int32))[:, None], _pairs(p, group.pair)
    if group.budget < len(group.pair):
      chosen = _nearest(m, group, bounds, own, near)
      place, lost = chosen.place, lost | chosen.lost
      pair, pairs = gather(pair, place), _chosen(pairs, place)
      # an invalid entry gets a margin below every distance, so that no search begins
      margin = jnp.where(chosen.there, mixing.reach(m, pairs), -_FAR)
      which = pairs.geom1, pairs.geom2
      shape1, shape2 = (Shape(gather(geom_xpos, g), gather(geom_xmat, g), gather(m.geom_size, g)) for g in which)
    else:
      margin, (shape1, shape2) = mixing.reach(m, pairs), _shapes(m, group, geom_xpos, geom_xmat)
    found, missed = _narrow(m, group, shape1, shape2, margin, place)
    lost_search = _either(lost_search, missed)
    found = found._replace(dist=jnp.where(margin[:, None] > -_FAR, found.dist, _FAR))
    rank = width * pair[:, None] + np.arange(found.dist.shape[1], dtype=np.int32)[:, None]
    parts.append([x.reshape(-1, *x.shape[2:]) for x in (rank, found.dist < margin[:, None], *found)])
  rank, touches, dist, *vectors = (join(x) for x in zip(*parts, strict=True))
  felt = m.opt.contact_gradient != "exact"  # keep pairs that do not touch yet, where there is room
  chosen = broadphase.first_contacts(touches, rank, len(p.slot_pair), width * len(p.geom1), felt)
  pair = linear.materialized(jax.lax.div(gather(rank, chosen.place), jnp.int32(width)))
  dist, pos, normal, tangent = (gather(x, chosen.place) for x in (dist, *vectors))
  dist = dist if felt else jnp.where(chosen.there, dist, _FAR)
  pairs = _chosen(_pairs(p), pair)
  return Contacts(
    dist, pos, make_frame(normal, tangent), mixing.mix(m, pairs), adhesion=_adhesion(m, pairs),
    geom=jnp.stack([pairs.geom1, pairs.geom2], axis=1), dim=gather(p.condim[:, None].astype(np.int32), pair), lost_pair=lost,
    lost_contact=chosen.lost | full, lost_search=lost_search, rigid=None if p.rigid is None else gather(p.rigid, pair),
  )  # fmt: skip


def _candidates(m: Model, group: Group) -> broadphase.Candidates:
  return broadphase.Candidates(group.geom1, group.geom2, group.name, _trees(m))


def _trees(m: Model) -> np.ndarray:
  """Return the id (ngeom,) of each geom's kinematic tree: its root body."""
  return m.body_rootid[m.geom_bodyid]


def _own_reach(m: Model, group: Group, slack: jax.Array | float) -> jax.Array | None:
  """Return the reaches (n, W or 1) of the pairs of a group plus a slack [m]; None if no pair is explicit."""
  pairs = _pairs(m.plan.collision, group.pair)
  return mixing.reach(m, pairs) + slack if pairs.may_be_explicit else None


def _near_trees(m: Model, bounds: broadphase.Bounds, reaches: list[jax.Array | None]) -> jax.Array | None:
  """Compute `broadphase.near_trees` if some group with a budget needs it, else None; `reaches` is for explicit pairs."""
  groups = [g for g in m.plan.collision.groups if g.budget < len(g.pair)]
  if m.tile == 0 or not any(broadphase.worth_trees(_candidates(m, g)) for g in groups):
    return None
  own = [jnp.max(x) for x in reaches if x is not None]
  return broadphase.near_trees(bounds.balls, _trees(m), functools.reduce(jnp.maximum, own, 2 * jnp.max(bounds.balls.reach)))


def _nearest(
  m: Model, group: Group, bounds: broadphase.Bounds, reach: jax.Array | None, near: jax.Array | None
) -> broadphase.Chosen:
  """Choose the candidates of a group for the narrow phase; pairs that only derivatives need are taken if there is room."""
  candidates, slack = _candidates(m, group), jax.lax.stop_gradient(m.opt.felt)
  if m.tile > 0:
    return broadphase.nearest_of_few(bounds, candidates, reach, group.budget, slack, near)
  return broadphase.nearest(broadphase.overlap(bounds, candidates, reach), group.budget, slack)


def count_near(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> jax.Array:
  """Count the candidates (ngroup, W) of each group whose bounds are within reach; the count of groups without bounds is 0."""
  p: CollisionPlan = m.plan.collision
  bounds = broadphase.bounds(m, geom_xpos, geom_xmat)
  none = jnp.zeros(geom_xpos.shape[-1], jnp.int32)
  return jnp.stack([
    jnp.sum(broadphase.overlap(bounds, _candidates(m, g), _own_reach(m, g, 0.0)) > 0, axis=0) if g.bounded else none
    for g in p.groups
  ] or [none])  # fmt: skip
