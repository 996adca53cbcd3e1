"""Contacts of all candidate pairs, in static slots."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import convex, hfield, hulls, mixing, pairs, shapes
from mjx_lite.collision.hulls import HullOf
from mjx_lite.collision.primitive import COLLIDERS
from mjx_lite.collision.shapes import Shape
from mjx_lite.core.enums import DisableBit, GeomType
from mjx_lite.core.select import join, rows
from mjx_lite.core.types import Model


class Group(NamedTuple):
  """Candidate pairs of one geom-type pair, all convex pairs, or all with height fields: one collider body for all of them."""

  pair: np.ndarray  # indices into the candidate list
  geom1: np.ndarray
  geom2: np.ndarray
  hull1: HullOf | None  # of the meshes among the geoms, in order
  hull2: HullOf | None
  # their own collider, or the convex way
  how: Callable[[Shape, Shape, jax.Array], shapes.Contacts] | convex.ConvexPlan | hfield.HFieldPlan


class CollisionPlan(NamedTuple):
  """Candidates by type, and the slots in MuJoCo's order."""

  enabled: bool  # whether there may be contacts at all
  groups: tuple[Group, ...]
  geom1: np.ndarray  # (npair,) candidates
  geom2: np.ndarray
  explicit: np.ndarray  # index of the explicit <pair>, -1 otherwise
  slot_row: np.ndarray  # (ncon,) slot -> row in the concatenation of the groups' contacts
  slot_pair: np.ndarray  # (ncon,)
  slot_geom: np.ndarray  # (ncon, 2)
  slot_dim: np.ndarray  # (ncon,) condim
  slot_body: np.ndarray  # (ncon, 2)


class Contacts(NamedTuple):
  """Result of `collide`: geometry and parameters of every slot, and the worlds (W,) where slots are missing, if any can be."""

  dist: jax.Array
  pos: jax.Array
  frame: jax.Array
  params: mixing.Params
  surfacevel: jax.Array | None = None  # (ncon, 3, W) where some surface has a velocity
  full: jax.Array | None = None


def type_name(t: int) -> str:
  """Name of a geom type as the tables write it."""
  return GeomType(int(t)).name.lower()


def reach(pair: pairs.Pair, values: dict[str, np.ndarray]) -> float:
  """Radius of a ball about the second geom of a pair that holds all that it can touch [m]."""
  k, geoms = pair.explicit, [pair.geom1, pair.geom2]
  between = [values[f"pair_{x}"][k] if k >= 0 else values[f"geom_{x}"][geoms].sum() for x in ("margin", "gap")]
  return float(values["geom_rbound"][pair.geom2] + sum(between))


_FIELDS = ("hfield", "*")  # key of all pairs with height fields, which share one body


def plan(s: dict[str, Any], values: dict[str, np.ndarray], disableflags: int) -> CollisionPlan:
  """Candidates and slots from the static fields of the model, and its float fields as they are now."""
  found = pairs.candidates(s, disableflags)
  geom1, geom2 = (np.array([getattr(p, k) for p in found], int) for k in ("geom1", "geom2"))
  condim, explicit = (np.array([getattr(p, k) for p in found], int) for k in ("condim", "explicit"))
  kind = [(type_name(s["geom_type"][a]), type_name(s["geom_type"][b])) for a, b in zip(geom1, geom2, strict=True)]
  meshes = [s["geom_dataid"][g] for g in {*geom1, *geom2} if type_name(s["geom_type"][g]) == "mesh"]
  tables = hulls.plan(s, np.array(meshes, int))

  def hull(geoms):
    data = np.array([s["geom_dataid"][g] for g in geoms if type_name(s["geom_type"][g]) == "mesh"], int)
    return HullOf(tables, tables.start[data], tables.count[data]) if len(data) else None

  groups, first_row, offset = [], np.zeros(len(found), int), 0
  number = np.array([0 if k[0] == "hfield" else COLLIDERS[k].ncon for k in kind], int)
  body = [_FIELDS if k[0] == "hfield" else k if COLLIDERS[k].fn else None for k in kind]
  for types in sorted(set(body), key=lambda k: k or ("~", "")):
    members = np.array([i for i, k in enumerate(body) if k == types], int)
    pair = geom1[members], geom2[members]
    both = hull(pair[0]), hull(pair[1])
    if types == _FIELDS:
      near = [reach(found[i], values) for i in members]
      how = hfield.plan(s, np.array(near), pair[0], [kind[i][1] for i in members])
      number[members] = how.ncon
    else:
      how = (types and COLLIDERS[types].fn) or convex.plan([kind[i] for i in members], *both)
    groups.append(Group(members, *pair, *both, how))
    ncon = number[members] if types else np.full(len(members), convex.NCON)
    first_row[members] = offset + np.cumsum(ncon) - ncon
    offset += ncon.sum()
  slot_pair = np.repeat(np.arange(len(found)), number)
  within = np.concatenate([np.arange(n) for n in number]).astype(int) if len(number) else np.zeros(0, int)
  slot_geom = np.stack([geom1[slot_pair], geom2[slot_pair]], axis=-1)
  enabled = not disableflags & (DisableBit.CONTACT | DisableBit.CONSTRAINT)
  return CollisionPlan(
    enabled, tuple(groups), geom1, geom2, explicit, first_row[slot_pair] + within, slot_pair, slot_geom,
    condim[slot_pair], s["geom_bodyid"][slot_geom].astype(int),
  )  # fmt: skip


def collide(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Contacts:
  """Contacts of all candidates. A slot is a contact where `dist < margin + gap`.

  Source: `mj_collision`.
  """
  p: CollisionPlan = m.plan.collision
  by_pair = mixing.mix(m, p.geom1, p.geom2, p.explicit)
  params = mixing.Params(*(rows(x, p.slot_pair) for x in by_pair))
  reach = by_pair.margin + by_pair.gap
  if not p.groups or not m.opt.use_contact:
    shape, dtype = (len(p.slot_pair), geom_xpos.shape[-1]), geom_xpos.dtype
    empty, nowhere = jnp.full(shape, shapes.NO_CONTACT, dtype), jnp.zeros((shape[0], 3, shape[1]), dtype)
    return Contacts(empty, nowhere, jnp.broadcast_to(jnp.eye(3, dtype=dtype)[..., None], (shape[0], 3, 3, shape[1])), params)
  dist, pos, frame, full = [], [], [], None
  for group in p.groups:
    shape1, shape2 = (
      Shape(rows(geom_xpos, g), rows(geom_xmat, g), rows(m.geom_size, g), hull)
      for g, hull in ((group.geom1, group.hull1), (group.geom2, group.hull2))
    )
    margin = rows(reach, group.pair)
    if isinstance(group.how, hfield.HFieldPlan):
      found, full = hfield.collide(group.how, shape1, shape2, margin, m.opt.ccd_iterations)
    elif isinstance(group.how, convex.ConvexPlan):
      multiccd = not m.opt.disableflags & DisableBit.MULTICCD
      found = convex.collide(group.how, shape1, shape2, margin, m.opt.ccd_iterations, multiccd)
    else:
      found = group.how(shape1, shape2, margin)
    flat = [x.reshape(-1, *x.shape[2:]) for x in found]
    for part, x in zip((dist, pos, frame), flat, strict=True):
      part.append(x)
  return Contacts(join(dist, p.slot_row), join(pos, p.slot_row), join(frame, p.slot_row), params, full=full)
