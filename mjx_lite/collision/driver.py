"""Contacts of all candidate pairs: in a slot for each that could be, or in the few slots that a capacity leaves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import broadphase, convex, hulls, mixing, pairs, shapes
from mjx_lite.collision.broadphase import NO_BOUND, Capacity
from mjx_lite.collision.hulls import HullOf
from mjx_lite.collision.primitive import COLLIDERS
from mjx_lite.collision.shapes import Shape
from mjx_lite.core.enums import DisableBit, GeomType
from mjx_lite.core.select import gather, join, rows
from mjx_lite.core.types import Model


class Group(NamedTuple):
  """Candidate pairs of one geom-type pair, or all convex pairs: one collider body for all of them."""

  pair: np.ndarray  # indices into the candidate list
  geom1: np.ndarray
  geom2: np.ndarray
  hull1: HullOf | None  # of the meshes among the geoms, in order
  hull2: HullOf | None
  how: Callable[[Shape, Shape, jax.Array], shapes.Contacts] | convex.ConvexPlan  # their own collider, or the convex way
  name: str  # by which its capacity is given
  bounded: bool  # whether the candidates can be chosen by their bounds
  budget: int  # pairs that are looked at closely; the nearest, where there are more


class CollisionPlan(NamedTuple):
  """Candidates by type, and the slots in MuJoCo's order."""

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
  compact: int | None  # slots of one pair at most, if slots are filled at run time; the tables of slots are then examples


class Contacts(NamedTuple):
  """Result of `collide`: geometry and parameters of every slot.

  The last four are None where the slots' geoms are constant.
  """

  dist: jax.Array
  pos: jax.Array
  frame: jax.Array
  params: mixing.Params
  geom: jax.Array | None = None  # (ncon, 2, W)
  dim: jax.Array | None = None  # (ncon, W)
  lost_pair: jax.Array | None = None  # (W,) candidates within reach did not fit
  lost_contact: jax.Array | None = None  # (W,) contacts did not fit


def type_name(t: int) -> str:
  """Name of a geom type as the tables write it."""
  return GeomType(int(t)).name.lower()


def plan(s: dict[str, Any], filter_parent: bool, capacity: Capacity = NO_BOUND) -> CollisionPlan:
  """Candidates and slots from the static fields of the model, and what may touch at a time."""
  found = pairs.candidates(s, filter_parent)
  geom1, geom2 = (np.array([getattr(p, k) for p in found], int) for k in ("geom1", "geom2"))
  condim, explicit = (np.array([getattr(p, k) for p in found], int) for k in ("condim", "explicit"))
  kind = [(type_name(s["geom_type"][a]), type_name(s["geom_type"][b])) for a, b in zip(geom1, geom2, strict=True)]
  meshes = [s["geom_dataid"][g] for g in {*geom1, *geom2} if type_name(s["geom_type"][g]) == "mesh"]
  tables = hulls.plan(s, np.array(meshes, int))

  def hull(geoms):
    data = np.array([s["geom_dataid"][g] for g in geoms if type_name(s["geom_type"][g]) == "mesh"], int)
    return HullOf(tables, tables.start[data], tables.count[data]) if len(data) else None

  groups, first_row, offset = [], np.zeros(len(found), int), 0
  body = [k if COLLIDERS[k].fn else None for k in kind]
  for types in sorted(set(body), key=lambda k: k or ("~", "")):
    members = np.array([i for i, k in enumerate(body) if k == types], int)
    pair = geom1[members], geom2[members]
    both = hull(pair[0]), hull(pair[1])
    how = (types and COLLIDERS[types].fn) or convex.plan([kind[i] for i in members], *both)
    name, bounded = "-".join(types) if types else "convex", _has_bounds(types)
    budget = capacity.budget(name, len(members)) if bounded else len(members)
    groups.append(Group(members, *pair, *both, how, name, bounded, budget))
    ncon = COLLIDERS[types].ncon if types else convex.NCON
    first_row[members] = offset + ncon * np.arange(len(members))
    offset += ncon * len(members)
  ncon = np.array([COLLIDERS[k].ncon for k in kind], int)
  slot_pair = np.repeat(np.arange(len(found)), ncon)
  within = np.concatenate([np.arange(n) for n in ncon]).astype(int) if len(ncon) else np.zeros(0, int)
  kept, compact = _compacted(groups, kind, ncon, capacity)
  slot_pair, within = slot_pair[:kept], within[:kept]
  slot_geom = np.stack([geom1[slot_pair], geom2[slot_pair]], axis=-1)
  return CollisionPlan(
    tuple(groups), geom1, geom2, explicit, condim, first_row[slot_pair] + within, slot_pair, slot_geom,
    condim[slot_pair], s["geom_bodyid"][slot_geom].astype(int), compact,
  )  # fmt: skip


def _has_bounds(types: tuple[str, str] | None) -> bool:
  """Whether candidates can be chosen by their bounds; planes have none, and are few as height fields are."""
  return types is None or not {"plane", "hfield"} & {*types}


def _compacted(groups, kind, ncon, capacity) -> tuple[int, int | None]:
  """How many slots there are, and if not all those that could be used, how many a pair has at most."""
  total = int(ncon.sum())
  widths = [convex.NCON if isinstance(g.how, convex.ConvexPlan) else int(ncon[g.pair].max()) for g in groups]
  found = sum(g.budget * n for g, n in zip(groups, widths, strict=True))
  kept = min(total, found, total if capacity.ncon_max is None else int(capacity.ncon_max))
  whole = kept == total and all(g.budget == len(g.pair) for g in groups)
  return kept, None if whole else max(widths)


def collide(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Contacts of all candidates. A slot is a contact where `dist < margin + gap`.

  Source: `mj_collision`.
  """
  p: CollisionPlan = m.plan.collision
  by_pair = mixing.mix(m, p.geom1, p.geom2, p.explicit)
  params = mixing.Params(*(rows(x, p.slot_pair) for x in by_pair))
  reach = by_pair.margin + by_pair.gap
  if p.compact is not None:
    return _collide_near(m, by_pair, geom_xpos, geom_xmat)
  dist, pos, frame = [], [], []
  for group in p.groups:
    found = _narrow(m, group, *_shapes(m, group, geom_xpos, geom_xmat), rows(reach, group.pair))
    flat = [x.reshape(-1, *x.shape[2:]) for x in found]
    for part, x in zip((dist, pos, frame), flat, strict=True):
      part.append(x)
  if not p.groups:
    width = geom_xpos.shape[-1]
    none, no_pos, no_frame = (jnp.zeros((0, *shape, width), geom_xpos.dtype) for shape in ((), (3,), (3, 3)))
    return Contacts(none, no_pos, no_frame, params)
  return Contacts(join(dist, p.slot_row), join(pos, p.slot_row), join(frame, p.slot_row), params)


def _shapes(m: Model, group: Group, geom_xpos: jax.Array, geom_xmat: jax.Array) -> tuple[Shape, Shape]:
  """The two shapes of all pairs of a group."""
  first, second = (
    Shape(rows(geom_xpos, g), rows(geom_xmat, g), rows(m.geom_size, g), hull)
    for g, hull in ((group.geom1, group.hull1), (group.geom2, group.hull2))
  )
  return first, second


def _narrow(
  m: Model, group: Group, shape1: Shape, shape2: Shape, margin: jax.Array, place: jax.Array | None = None
) -> shapes.Contacts:
  """Contacts of the pairs of a group, or of those at some places in it (k, W)."""
  if isinstance(group.how, convex.ConvexPlan):
    multiccd = not m.opt.disableflags & DisableBit.MULTICCD
    return convex.collide(group.how, shape1, shape2, margin, m.opt.ccd_iterations, multiccd, place)
  return group.how(shape1, shape2, margin)


def _collide_near(m: Model, by_pair: mixing.Params, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Contacts of the candidates that are near, in as many slots as the plan has.

  Gradient: of the contacts found; which ones these are has none.
  """
  p: CollisionPlan = m.plan.collision
  reach = by_pair.margin + by_pair.gap
  bounds = broadphase.bounds(geom_xpos, geom_xmat, m.geom_rbound, m.geom_aabb)
  lost = jnp.zeros(geom_xpos.shape[-1], bool)
  parts = []
  for group in p.groups:
    place, (pair, margin) = None, (jnp.asarray(group.pair.astype(np.int32))[:, None], rows(reach, group.pair))
    if group.budget < len(group.pair):
      chosen = broadphase.nearest(broadphase.separation(bounds, group.geom1, group.geom2) - margin, group.budget)
      place, lost = chosen.place, lost | chosen.lost
      pair, margin = gather(pair, place), gather(margin, place)
      shape1, shape2 = (
        Shape(*(gather(x, jnp.asarray(g.astype(np.int32))[place]) for x in (geom_xpos, geom_xmat, m.geom_size)))
        for g in (group.geom1, group.geom2)
      )
    else:
      shape1, shape2 = _shapes(m, group, geom_xpos, geom_xmat)
    found = _narrow(m, group, shape1, shape2, margin, place)
    rank = p.compact * pair[:, None] + np.arange(found.dist.shape[1], dtype=np.int32)[:, None]
    parts.append([x.reshape(-1, *x.shape[2:]) for x in (rank, found.dist < margin[:, None], *found)])
  rank, touches, dist, pos, frame = (join(x) for x in zip(*parts, strict=True))
  chosen = broadphase.first_contacts(touches, rank, len(p.slot_pair), p.compact * len(p.geom1))
  pair = gather(rank, chosen.place) // p.compact
  dist, pos, frame = (gather(x, chosen.place) for x in (dist, pos, frame))
  geom, dim = np.stack([p.geom1, p.geom2], axis=-1)[..., None].astype(np.int32), p.condim[:, None].astype(np.int32)
  params = mixing.Params(*(gather(x, pair) for x in by_pair))
  return Contacts(dist, pos, frame, params, gather(geom, pair), gather(dim, pair), lost, chosen.lost)


def count_near(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> jax.Array:
  """Number (ngroup, W) of the candidates of each group whose bounds are within reach; zero of those without bounds."""
  p: CollisionPlan = m.plan.collision
  by_pair = mixing.mix(m, p.geom1, p.geom2, p.explicit)
  reach, bounds = by_pair.margin + by_pair.gap, broadphase.bounds(geom_xpos, geom_xmat, m.geom_rbound, m.geom_aabb)
  none = jnp.zeros(geom_xpos.shape[-1], jnp.int32)
  return jnp.stack([
    jnp.sum(broadphase.separation(bounds, g.geom1, g.geom2) < rows(reach, g.pair), axis=0) if g.bounded else none
    for g in p.groups
  ] or [none])  # fmt: skip
