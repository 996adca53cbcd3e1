"""The narrow phase of each kind of pairs: the tables of a group of pairs, and the function that computes its contacts.

A kind is a pair of geom types with a closed form, all convex pairs, the pairs of a height field, or the pairs of a type pair
with distance fields. `KINDS` has all kinds: a new kind of pairs is added there, and nowhere else.

Tests: tests/collision/test_convex_trajectory.py, tests/collision/test_hfield.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.collision.convex import convex
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.hfield import hfield
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.sdf.sdf import FieldCollider
from mjx_lite.collision.sdf.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.collision.shapes import Contacts
from mjx_lite.model.enums import DisableBit
from mjx_lite.model.types import Option
from mjx_lite.ops import linear

CONVEX = "convex"  # name of the kind of all convex pairs
_HFIELD = "hfield-*"  # name of the kind of all pairs with height fields that have no closed form


class Members(NamedTuple):
  """The pairs of one group, for planning."""

  static: dict[str, Any]  # static fields of the model
  types: list[tuple[str, str]]  # geom types of each pair
  geom1: np.ndarray  # (n,) ids
  geom2: np.ndarray
  hull1: GeomHulls | None  # hulls of the meshes among the geoms, in order
  hull2: GeomHulls | None
  reach: Callable[[], np.ndarray]  # computes the radii (n,) of balls around the second geoms, outside of which nothing touches


class Tables(NamedTuple):
  """Tables of one group of n pairs."""

  own: Any  # tables of the kind's own form, without functions: they are part of the model's digest
  ncon: np.ndarray  # (n,) maximum number of contacts of each pair
  nrow: np.ndarray  # (n,) number of rows of each pair in the contacts that the kind computes


class Search(NamedTuple):
  """What kinds without a closed form need besides the shapes.

  Attributes:
    own: the group's tables.
    opt: the model's options.
    chosen: (n, W) indices of the group's pairs to which the shapes belong; None for all pairs, in order.
  """

  own: Any
  opt: Option
  chosen: jax.Array | None = None


class Found(NamedTuple):
  """Contacts of a group, and masks of worlds: None where nothing of the sort can happen.

  Attributes:
    contacts: contacts (n, nrow), or (1, sum of nrow) of a kind whose numbers of rows differ.
    full: (W,) whether contacts of a pair did not fit into its rows.
    lost: (W,) whether a search ran out of iterations or rounds.
  """

  contacts: Contacts
  full: jax.Array | None = None
  lost: jax.Array | None = None


class Kind(NamedTuple):
  """The narrow phase of one kind of pairs.

  Attributes:
    plan: function of the members of a group. It returns the group's tables.
    collide: a closed form is a function (shapes a, shapes b, margin + gap (n, W or 1) [m]) that returns Contacts. Any other
      kind has a fourth argument, Search, and returns Found.
    is_closed_form: whether `collide` is a closed form.
    is_exact: whether closed forms find the contacts, rather than a search.
    bounded: whether candidates can be chosen by their bounds: planes have no bounds, and height fields have their own rows.
    same_rows: whether all pairs of a group have the same number of rows.
  """

  plan: Callable[[Members], Tables]
  collide: Callable[..., Any]
  is_exact: bool
  is_closed_form: bool = False
  bounded: bool = True
  same_rows: bool = True


def kind_of(types: tuple[str, str]) -> str:
  """Return the name of the kind of pairs of two geom types, the lower type first."""
  name = "-".join(types)
  return name if name in KINDS else _HFIELD if types[0] == "hfield" else CONVEX


def _closed_form(types: tuple[str, str], function: Callable[..., Contacts], ncon: int) -> Kind:
  def plan(members: Members) -> Tables:
    numbers = np.full(len(members.types), ncon)
    return Tables(None, numbers, numbers)

  return Kind(plan, function, is_exact=True, is_closed_form=True, bounded="plane" not in types)


def found(result: Contacts | Found) -> Found:
  """Return the result of a closed form, whose contacts are computed once, in the form of all other kinds."""
  return result if isinstance(result, Found) else Found(linear.materialize(result))


def _plan_convex(members: Members) -> Tables:
  own = convex.plan(members.types, members.hull1, members.hull2)
  return Tables(own, np.array([convex.PAIRS[x] for x in members.types]), np.full(len(members.types), convex.NCON))


def _collide_convex(a, b, margin, search: Search) -> Found:
  opt = search.opt
  multiccd = not opt.disableflags & DisableBit.MULTICCD
  contacts, lost = convex.collide(search.own, a, b, margin, opt.ccd_iterations, multiccd, search.chosen)
  return Found(contacts, lost=lost)


def _plan_hfield(members: Members) -> Tables:
  own = hfield.plan(members.static, members.reach(), members.geom1, [x[1] for x in members.types])
  return Tables(own, own.ncon, own.ncon)


def _collide_hfield(a, b, margin, search: Search) -> Found:  # the pairs of height fields are never chosen at run time
  return Found(*hfield.collide(search.own, a, b, margin, search.opt.ccd_iterations))


def _distance_field(collider: FieldCollider) -> Kind:
  def plan(members: Members) -> Tables:
    ncon = np.full(len(members.types), collider.ncon(members.static))
    return Tables(collider.plan(members.static, members.geom1, members.geom2), ncon, ncon)

  return Kind(plan, functools.partial(_collide_field, collider.collide), is_exact=False)


def _collide_field(function, a, b, margin, search: Search) -> Found:
  del margin
  return Found(function(search.own, a, b, search.chosen))


# name -> kind; the names are those of put_model's `pair_max`
KINDS: dict[str, Kind] = {
  **{"-".join(types): _closed_form(types, x.fn, x.ncon) for types, x in COLLIDERS.items() if x.fn is not None},
  CONVEX: Kind(_plan_convex, _collide_convex, is_exact=False),
  **{f"hfield-{x}": Kind(_plan_hfield, _collide_hfield, is_exact=True, bounded=False, same_rows=False) for x in hfield.CLOSED},
  _HFIELD: Kind(_plan_hfield, _collide_hfield, is_exact=False, bounded=False, same_rows=False),
  **{"-".join(types): _distance_field(x) for types, x in FIELD_COLLIDERS.items()},
}
