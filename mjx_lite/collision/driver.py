"""Contacts of all candidate pairs: the plan of pairs and slots, and the run over all groups of pairs.

Without a capacity every possible contact has its own slot. With a capacity the contacts share a smaller number of slots.

Tests: tests/collision/test_contact_rules.py, tests/collision/test_capacity.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import broadphase, mixing, narrow, pairs, shapes
from mjx_lite.collision.convex import hulls
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.shapes import Shape
from mjx_lite.math.geometry import make_frame
from mjx_lite.model.capacity import Capacity
from mjx_lite.model.enums import DisableBit, GeomType
from mjx_lite.model.types import Model, Option
from mjx_lite.ops import lanes, linear, tiles
from mjx_lite.ops import rows as slots
from mjx_lite.ops.select import gather, join, rows

_FAR = shapes.NO_CONTACT


class Group(NamedTuple):
  """Candidate pairs of one kind: pairs of one geom-type pair, all convex pairs, or all pairs with height fields."""

  name: str  # name of the kind in `narrow.KINDS` and in `pair_max`
  pair: np.ndarray  # (n,) indices into the candidate list
  geom1: np.ndarray
  geom2: np.ndarray
  hull1: GeomHulls | None  # hulls of the meshes among the geoms, in order
  hull2: GeomHulls | None
  tables: narrow.Tables
  budget: int  # number of pairs in the narrow phase; the nearest pairs, where there are more

  @property
  def kind(self) -> narrow.Kind:
    """Return how the group's contacts are computed."""
    return narrow.KINDS[self.name]

  @property
  def bounded(self) -> bool:
    """Return whether candidates can be chosen by their bounds."""
    return self.kind.bounded

  def search(self, opt: Option, chosen: jax.Array | None = None) -> tuple[narrow.Search, ...]:
    """Return the arguments of the kind's function after shapes and margin: none for a closed form."""
    return () if self.kind.is_closed_form else (narrow.Search(self.tables.own, opt, chosen),)

  @property
  def has_budget(self) -> bool:
    """Return whether the narrow phase may get fewer pairs than there are candidates."""
    return self.budget < len(self.pair)

  @property
  def width(self) -> int:
    """Return the maximum number of rows of a pair."""
    return int(self.tables.nrow.max())


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
    return self.compact is None and all(g.kind.is_exact and not g.has_budget for g in self.groups)

  @property
  def capacity(self) -> Capacity:
    """Capacities as arguments of put_model; `ncon_max` is "all" where every possible contact has its own slot."""
    bounds = {g.name: g.budget for g in self.groups if g.has_budget}
    return Capacity(bounds or None, "all" if self.compact is None else len(self.slot_pair))

  @property
  def limits(self) -> tuple[int, ...]:
    """Limits of the numbers in `Status.most`: of slots, and of pairs in each group with a budget; none without capacities."""
    return () if self.compact is None else (len(self.slot_pair), *(g.budget for g in self.groups if g.has_budget))


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
  full: jax.Array | None = None  # (W,) whether contacts did not fit, if that can be
  geom: Any = None  # (ncon, 2, W)
  dim: Any = None  # (ncon, W)
  rigid: Any = None  # (ncon, 1 or W) as in the plan
  found: Any = None  # (nlimit, W) numbers of contacts, and of pairs within reach in each group with a budget
  lost_search: Any = None  # (W,) whether the search for a convex contact ended at its limit, if there is a search


def type_name(t: int) -> str:
  """Return the name of a geom type as in the tables, in lower case."""
  return GeomType(int(t)).name.lower()


def reach(pair: pairs.Pair, values: dict[str, np.ndarray]) -> float:
  """Return the radius [m] of a ball around the second geom of a pair: outside of the ball the geom touches nothing."""
  k, geoms = pair.explicit, [pair.geom1, pair.geom2]
  between = [values[f"pair_{x}"][k] if k >= 0 else values[f"geom_{x}"][geoms].sum() for x in ("margin", "gap")]
  return float(values["geom_rbound"][pair.geom2] + sum(between))


def plan(s: dict[str, Any], values: dict[str, np.ndarray], disableflags: int) -> CollisionPlan:
  """Plan candidates, and a slot for every possible contact; `limit` makes them fewer.

  Args:
    s: static fields of the model.
    values: the model's float fields at the time of planning.
    disableflags: the option's flags.
  """
  found = pairs.candidates(s, disableflags)
  geom1, geom2 = (np.array([getattr(p, k) for p in found], int) for k in ("geom1", "geom2"))
  condim, explicit = (np.array([getattr(p, k) for p in found], int) for k in ("condim", "explicit"))
  groups = _groups(s, values, found)
  ncon, first_row, offset = np.zeros(len(found), int), np.zeros(len(found), int), 0
  for group in groups:
    ncon[group.pair], nrow = group.tables.ncon, group.tables.nrow
    first_row[group.pair] = offset + np.cumsum(nrow) - nrow
    offset += nrow.sum()
  slot_pair = np.repeat(np.arange(len(found)), ncon)
  number = np.concatenate([np.arange(n) for n in ncon]).astype(int) if len(ncon) else np.zeros(0, int)
  slot_geom = np.stack([geom1[slot_pair], geom2[slot_pair]], axis=-1)
  enabled = not disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT)
  rigid = pairs.are_rigid(s, *s["geom_bodyid"][np.stack([geom1, geom2])]) & (s["nv"] > 0)  # as C tests for the rows
  return CollisionPlan(
    enabled=enabled,
    groups=groups,
    geom1=geom1,
    geom2=geom2,
    explicit=explicit,
    condim=condim,
    slot_row=first_row[slot_pair] + number,
    slot_pair=slot_pair,
    slot_geom=slot_geom,
    slot_dim=condim[slot_pair],
    slot_body=s["geom_bodyid"][slot_geom].astype(int),
    rigid=rigid[:, None].astype(np.int32) if rigid.any() else None,
    compact=None,
  )


def limit(p: CollisionPlan, capacity: Capacity) -> CollisionPlan:
  """Limit the slots, and the candidates of each group in the narrow phase.

  Args:
    p: a plan with a slot for every possible contact.
    capacity: the limits.
  """
  groups = tuple(g._replace(budget=capacity.budget(g.name, len(g.pair))) if g.bounded else g for g in p.groups)
  total, widths = len(p.slot_pair), [g.width for g in groups]
  found = sum(g.budget * n for g, n in zip(groups, widths, strict=True))
  kept = min(total, found, capacity.slots(total))
  if kept == total and not any(g.has_budget for g in groups):
    return p
  first = {k: getattr(p, k)[:kept] for k in ("slot_row", "slot_pair", "slot_geom", "slot_dim", "slot_body")}
  return p._replace(groups=groups, compact=max(widths), **first)


def _groups(s: dict[str, Any], values: dict[str, np.ndarray], candidates: list[pairs.Pair]) -> tuple[Group, ...]:
  """Group the candidates by kind, in alphabetical order, convex pairs last."""
  geom1, geom2 = (np.array([getattr(p, k) for p in candidates], int) for k in ("geom1", "geom2"))
  geom_type = [type_name(x) for x in s["geom_type"]]
  types = [(geom_type[a], geom_type[b]) for a, b in zip(geom1, geom2, strict=True)]
  hulls_of = _hulls(s, geom_type, types, geom1, geom2)
  names = [narrow.kind_of(x) for x in types]
  tree = s["body_rootid"][s["geom_bodyid"]]
  groups = []
  for name in sorted(set(names), key=lambda x: (x == narrow.CONVEX, x)):
    pair = np.array([i for i, x in enumerate(names) if x == name], int)
    pair = pair[np.lexsort(tree[np.stack([geom1, geom2])][:, pair])]
    geoms = geom1[pair], geom2[pair]
    both = [hulls_of(x) for x in geoms]
    members = narrow.Members(
      static=s,
      types=[types[i] for i in pair],
      geom1=geoms[0],
      geom2=geoms[1],
      hull1=both[0],
      hull2=both[1],
      reach=functools.partial(_reaches, [candidates[i] for i in pair], values),
    )
    groups.append(
      Group(
        name=name,
        pair=pair,
        geom1=geoms[0],
        geom2=geoms[1],
        hull1=both[0],
        hull2=both[1],
        tables=narrow.KINDS[name].plan(members),
        budget=len(pair),
      )
    )
  return tuple(groups)


def _reaches(candidates: list[pairs.Pair], values: dict[str, np.ndarray]) -> np.ndarray:
  return np.array([reach(p, values) for p in candidates])


def _hulls(
  s: dict[str, Any], geom_type: list[str], types: list[tuple[str, str]], geom1: np.ndarray, geom2: np.ndarray
) -> Callable[[np.ndarray], GeomHulls | None]:
  """Return a function that returns the hulls of the meshes among given geoms, in order; None if there are no meshes."""
  hulled = {"mesh", "sdf"} if ("plane", "sdf") in types else {"mesh"}
  meshes = [s["geom_dataid"][g] for g in {*geom1, *geom2} if geom_type[g] in hulled]
  on_plane = [s["geom_dataid"][g2] for g2, x in zip(geom2, types, strict=True) if x[0] == "plane" and x[1] in hulled]
  tables = hulls.plan(s, np.array(meshes, int), np.array(on_plane, int))

  def hulls_of(geoms):
    data = np.array([s["geom_dataid"][g] for g in geoms if geom_type[g] in hulled], int)
    return GeomHulls(tables, tables.start[data], tables.nvert[data]) if len(data) else None

  return hulls_of


def collide(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Compute the contacts of all candidates. A slot is a contact where `dist < margin + gap`.

  Source: `mj_collision`.
  """
  p = m.plan.collision
  if p.compact is not None and m.opt.use_contact:
    return _with_exclude(m, _in_shared_slots(m, geom_xpos, geom_xmat))
  by_pair = mixing.mix(m, _pairs(p))
  params = mixing.Params(*(rows(x, p.slot_pair) for x in by_pair))
  reach = by_pair.margin + by_pair.gap
  if not p.groups or not m.opt.use_contact:
    return _with_exclude(m, _empty(params, geom_xpos))
  adhesion = _adhesion(m, _pairs(p))
  parts, missing = [], _Missing()
  for group in p.groups:
    a, b = _shapes(m, group, geom_xpos, geom_xmat)
    found = narrow.found(group.kind.collide(a, b, rows(reach, group.pair), *group.search(m.opt)))
    missing = missing.after(found)
    parts.append([x.reshape(-1, *x.shape[2:]) for x in found.contacts])
  adhesion = None if adhesion is None else rows(adhesion, p.slot_pair)
  rigid = None if p.rigid is None else p.rigid[p.slot_pair]
  dist, pos, normal, tangent = (join(x, p.slot_row) for x in zip(*parts, strict=True))
  contacts = Contacts(
    dist=dist, pos=pos, frame=make_frame(normal, tangent), params=params, adhesion=adhesion, full=missing.full, rigid=rigid,
    lost_search=missing.search,
  )  # fmt: skip
  return _with_exclude(m, contacts)


def _with_exclude(m: Model, c: Contacts) -> Contacts:
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


class _Missing(NamedTuple):
  """What tells of missing contacts; None where nothing of the kind can happen.

  Attributes:
    near: (W,) numbers of candidates within reach, for each group with a budget.
    full: (W,) whether a pair had more contacts than rows.
    search: (W,) whether a search ran out of iterations or rounds.
  """

  near: tuple[jax.Array, ...] = ()
  full: jax.Array | None = None
  search: jax.Array | None = None

  def after(self, found: narrow.Found) -> "_Missing":
    """Return the masks with those of a group of pairs added."""
    return self._replace(full=_either(self.full, found.full), search=_either(self.search, found.lost))


def _either(a: jax.Array | None, b: jax.Array | None) -> jax.Array | None:
  """Combine two masks (W,) of worlds by or; None is the empty mask."""
  return b if a is None else a if b is None else a | b


def _empty(params: mixing.Params, geom_xpos: jax.Array) -> Contacts:
  """Return empty slots with given parameters."""
  shape, dtype = (len(params.margin), geom_xpos.shape[-1]), geom_xpos.dtype
  empty, nowhere = jnp.full(shape, shapes.NO_CONTACT, dtype), jnp.zeros((shape[0], 3, shape[1]), dtype)
  return Contacts(empty, nowhere, jnp.broadcast_to(jnp.eye(3, dtype=dtype)[..., None], (shape[0], 3, 3, shape[1])), params)


def _pairs(p: CollisionPlan, index: np.ndarray | slice = slice(None)) -> mixing.Pairs:
  """Return all candidates of the plan, or the candidates at an index."""
  return mixing.Pairs(p.geom1[index], p.geom2[index], p.explicit[index])


def _chosen(pairs: mixing.Pairs, index: jax.Array) -> mixing.Pairs:
  """Gather pairs at indices (k, W)."""

  def at(x):
    return jnp.asarray(x.astype(np.int32))[index]

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


def _in_shared_slots(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Compute the contacts of the candidates that are near, in the plan's number of slots.

  Gradient: of the contacts found; the selection of the contacts has no gradient.
  """
  p = m.plan.collision
  bounds = broadphase.bounds(m, geom_xpos, geom_xmat, m.opt.gradient_reach)
  reaches = [_own_reach(m, g, jax.lax.stop_gradient(m.opt.gradient_reach)) if g.has_budget else None for g in p.groups]
  near = _near_trees(m, bounds, reaches)
  missing, parts = _Missing(), []
  for group, reach in zip(p.groups, reaches, strict=True):
    if group.kind.same_rows:
      select = functools.partial(_nearest, m, group, bounds, reach, near)
      part, missing = _rows_of_near(m, group, geom_xpos, geom_xmat, select, missing)
    else:
      part, missing = _rows_of_all(m, group, geom_xpos, geom_xmat, missing)
    parts.append(part)
  rank, touches, dist, *vectors = (join(x) for x in zip(*parts, strict=True))
  fills = m.opt.contact_gradient != "exact"  # keep pairs that do not touch yet, where there is room
  width = int(p.compact or 0)
  chosen = broadphase.first_contacts(touches, rank, len(p.slot_pair), width * len(p.geom1), fills)

  def of_slots(r):
    row, valid = r
    pair = linear.materialize(jax.lax.div(gather(rank, row), jnp.int32(width)))
    own, pos, normal, tangent = (gather(x, row) for x in (dist, *vectors))
    pairs = _chosen(_pairs(p), pair)
    return Contacts(
      dist=own if fills else jnp.where(valid, own, _FAR), pos=pos, frame=make_frame(normal, tangent),
      params=mixing.mix(m, pairs), adhesion=_adhesion(m, pairs), geom=jnp.stack([pairs.geom1, pairs.geom2], axis=1),
      dim=gather(p.condim[:, None].astype(np.int32), pair), rigid=None if p.rigid is None else gather(p.rigid, pair),
    )  # fmt: skip

  number = jnp.minimum(chosen.number, len(p.slot_pair))
  contacts = slots.each(of_slots, chosen[:2], None if fills else number)
  if not fills:  # a row that was left out is zero
    contacts = contacts._replace(dist=jnp.where(chosen.valid, contacts.dist, _FAR))
  return contacts._replace(
    full=_either(chosen.number > len(p.slot_pair), missing.full), found=jnp.stack([chosen.number, *missing.near]),
    lost_search=missing.search,
  )  # fmt: skip


def _rows_of_all(
  m: Model, group: Group, geom_xpos: jax.Array, geom_xmat: jax.Array, missing: _Missing
) -> tuple[list[jax.Array], _Missing]:
  """Compute the contacts of all pairs of a group whose numbers of rows differ.

  Returns:
    the rank (n, 1) of each row in MuJoCo's order of all possible contacts, a mask (n, W) of the rows that are contacts, the
    fields (n, ..., W) of the contacts; and what is missing.
  """
  p, nrow = m.plan.collision, group.tables.nrow
  owner = np.repeat(np.arange(len(group.pair)), nrow)
  rank = int(p.compact or 0) * group.pair[owner] + np.concatenate([np.arange(n) for n in nrow])
  margin = mixing.reach(m, _pairs(p, group.pair))
  a, b = _shapes(m, group, geom_xpos, geom_xmat)
  found = narrow.found(group.kind.collide(a, b, margin, *group.search(m.opt)))
  rank, fields = jnp.asarray(rank.astype(np.int32))[:, None], [x[0] for x in found.contacts]
  missing = missing.after(found)
  return [rank, fields[0] < rows(margin, owner), *fields], missing


def _rows_of_near(
  m: Model, group: Group, geom_xpos: jax.Array, geom_xmat: jax.Array, select: Callable[[], broadphase.Chosen], missing: _Missing
) -> tuple[list[jax.Array], _Missing]:
  """Compute the contacts of the pairs of a group; if the group has a budget, of the pairs that `select` chooses.

  Returns:
    as `_rows_of_all`; the rank is (n, W or 1).
  """
  p = m.plan.collision
  index, pair, pairs = None, jnp.asarray(group.pair.astype(np.int32))[:, None], _pairs(p, group.pair)
  if group.has_budget:
    chosen = select()
    index, missing = chosen.row, missing._replace(near=(*missing.near, chosen.number))
    pair, pairs = gather(pair, index), _chosen(pairs, index)
    # an invalid entry gets a margin below every distance, so that no search begins
    margin = jnp.where(chosen.valid, mixing.reach(m, pairs), -_FAR)

    def collide(geom1, geom2, margin):
      a, b = (Shape(gather(geom_xpos, g), gather(geom_xmat, g), gather(m.geom_size, g)) for g in (geom1, geom2))
      return group.kind.collide(a, b, margin, *group.search(m.opt, index))

    packs = lanes.packs() and group.kind.is_closed_form
    result = (_packed if packs else _plain)(collide, chosen.valid, pairs.geom1, pairs.geom2, margin)
  else:
    margin = mixing.reach(m, pairs)
    result = group.kind.collide(*_shapes(m, group, geom_xpos, geom_xmat), margin, *group.search(m.opt))
  found = narrow.found(result)
  missing = missing.after(found)
  contacts = found.contacts._replace(dist=jnp.where(margin[:, None] > -_FAR, found.contacts.dist, _FAR))
  number = np.arange(contacts.dist.shape[1], dtype=np.int32)[:, None]
  rank = int(p.compact or 0) * pair[:, None] + number
  return [x.reshape(-1, *x.shape[2:]) for x in (rank, contacts.dist < margin[:, None], *contacts)], missing


def _plain(collide: Callable[..., Any], valid: jax.Array, *pairs: jax.Array) -> Any:
  """Return what `collide` returns for pairs of geoms and their margins (n, W)."""
  return collide(*pairs)


def _packed(collide: Callable[..., shapes.Contacts], valid: jax.Array, *pairs: jax.Array) -> shapes.Contacts:
  """Return the contacts of pairs, in a kernel that packs the valid pairs (n, W) of its worlds."""
  nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(collide, *pairs))
  nothing = nothing._replace(dist=nothing.dist + _FAR)
  return lanes.in_queue(valid, lambda k: collide(*map(lanes.row(k).take, pairs)), nothing)


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
  groups = [g for g in m.plan.collision.groups if g.has_budget]
  in_tiles = tiles.whole_or_tiled(m.tile, whole=False, tiled=True)
  if not in_tiles or not any(broadphase.worth_trees(_candidates(m, g)) for g in groups):
    return None
  own = [jnp.max(x) for x in reaches if x is not None]
  return broadphase.near_trees(bounds.balls, _trees(m), functools.reduce(jnp.maximum, own, 2 * jnp.max(bounds.balls.reach)))


def _nearest(
  m: Model, group: Group, bounds: broadphase.Bounds, reach: jax.Array | None, near: jax.Array | None
) -> broadphase.Chosen:
  """Choose the candidates of a group for the narrow phase; pairs that only derivatives need are taken if there is room."""
  candidates, slack = _candidates(m, group), jax.lax.stop_gradient(m.opt.gradient_reach)
  return tiles.whole_or_tiled(
    m.tile,
    whole=lambda: broadphase.nearest(broadphase.overlap(bounds, candidates, reach), group.budget, slack),
    tiled=lambda: broadphase.nearest_in_tile(bounds, candidates, reach, group.budget, slack, near),
  )()
