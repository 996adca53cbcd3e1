"""The collider of all convex pairs: one program for all pairs of shapes with a support function.

`gjk` and `witness` find the contact between the nearest features; `manifold` adds further contacts of faces and edges. Each
shape is inflated by half of the margin, as in C, which adds a constant to the distance.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import faces, gjk, manifold, support, witness
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.shapes import NO_CONTACT, Contacts, Shape, make_contacts, only_where
from mjx_lite.math import vector
from mjx_lite.model.enums import GeomType
from mjx_lite.ops.lanes import map_where
from mjx_lite.ops.select import gather

NCON = 4
# maximum number of contacts of each pair of types
PAIRS = {
  ("sphere", "ellipsoid"): 1, ("sphere", "mesh"): 1, ("capsule", "ellipsoid"): 1, ("capsule", "cylinder"): 2,
  ("capsule", "mesh"): 2, ("ellipsoid", "ellipsoid"): 1, ("ellipsoid", "cylinder"): 1, ("ellipsoid", "box"): 1,
  ("ellipsoid", "mesh"): 1, ("cylinder", "cylinder"): 4, ("cylinder", "box"): 4, ("cylinder", "mesh"): 4,
  ("box", "mesh"): 4, ("mesh", "mesh"): 4,
}  # fmt: skip


class ConvexPlan(NamedTuple):
  """Geom types, hulls and faces of P pairs."""

  types_a: np.ndarray
  types_b: np.ndarray
  hull_a: GeomHulls | None
  hull_b: GeomHulls | None
  multiple: np.ndarray  # indices of the pairs that may have more than one contact
  faces_a: faces.GeomFaces  # faces of the pairs in `multiple`
  faces_b: faces.GeomFaces


def plan(types: list[tuple[str, str]], hull_a: GeomHulls | None, hull_b: GeomHulls | None) -> ConvexPlan:
  """Plan the pairs.

  Args:
    types: geom types of each pair, the lower type first.
    hull_a, hull_b: hulls of the meshes among the first geoms, and among the second geoms, in order.
  """
  multiple = np.array([k for k, t in enumerate(types) if PAIRS.get(t, 1) > 1], int)
  sides = []
  for side, hull in ((0, hull_a), (1, hull_b)):
    kinds = [t[side] for t in types]
    is_mesh = [k for k, t in enumerate(kinds) if t == "mesh"]
    kept = [i for i, k in enumerate(is_mesh) if k in set(multiple)]
    kept_hulls = None if hull is None else GeomHulls(hull.tables, hull.first[kept], hull.nvert[kept])
    sides.append(faces.plan([kinds[k] for k in multiple], kept_hulls))
  types_a, types_b = (np.array([t[side] for t in types]) for side in (0, 1))
  faces_a, faces_b = sides
  return ConvexPlan(
    types_a=types_a, types_b=types_b, hull_a=hull_a, hull_b=hull_b, multiple=multiple, faces_a=faces_a, faces_b=faces_b
  )


class _Chosen(NamedTuple):
  """Rows, types and faces of the pairs that may have more than one contact: the input of the manifold."""

  rows: np.ndarray | slice
  multiple: jax.Array | bool  # (k, W) whether a pair may have more than one contact
  types_a: np.ndarray | jax.Array
  types_b: np.ndarray | jax.Array
  faces_a: faces.GeomFaces
  faces_b: faces.GeomFaces


def _choose(p: ConvexPlan, chosen: jax.Array | None) -> _Chosen:
  """Return the tables of all pairs of the plan, or of the chosen pairs (k, W), of which any may have more than one contact."""
  if chosen is None:
    return _Chosen(
      rows=p.multiple,
      multiple=True,
      types_a=p.types_a[p.multiple],
      types_b=p.types_b[p.multiple],
      faces_a=p.faces_a,
      faces_b=p.faces_b,
    )
  multiple = np.isin(np.arange(len(p.types_a)), p.multiple)

  def types(names):
    return gather(np.array([int(GeomType[t.upper()]) for t in names], np.int32)[:, None], chosen)

  def chosen_faces(planned):
    first = np.full(len(multiple), -1, np.int32)
    first[p.multiple] = planned.first
    return faces.GeomFaces(planned.tables, gather(first[:, None], chosen))

  return _Chosen(
    rows=slice(None),
    multiple=gather(multiple[:, None], chosen),
    types_a=types(p.types_a),
    types_b=types(p.types_b),
    faces_a=chosen_faces(p.faces_a),
    faces_b=chosen_faces(p.faces_b),
  )


class Found(NamedTuple):
  """Contacts of P pairs, and a mask (W,) of the worlds in which a search ran out of iterations or rounds."""

  contacts: Contacts
  lost: jax.Array


def collide(
  p: ConvexPlan, a: Shape, b: Shape, margin: jax.Array, iterations: int, multiccd: bool = True,
  chosen: jax.Array | None = None,
) -> Found:  # fmt: skip
  """Compute the contacts of convex pairs, 4 slots for each pair.

  Args:
    p: the plan.
    a, b: the shapes.
    margin: margin + gap (P, W or 1) [m].
    iterations: maximum number of iterations for one nearest point.
    multiccd: whether faces and edges have several contacts.
    chosen: (k, W) indices of the plan's pairs to which the shapes belong; None for all pairs, in order.

  Source: `mjc_Convex`, `mjc_ccd`.
  Gradient: of the features found; where the nearest features are not unique, the derivative for one choice of them.
  """
  ca = support.make(list(p.types_a), a.pos, a.mat, a.size, p.hull_a, chosen)
  cb = support.make(list(p.types_b), b.pos, b.mat, b.size, p.hull_b, chosen)
  single = _nearest(ca, cb, margin, iterations)
  slot = np.arange(NCON)[:, None]
  dist = only_where(slot == 0, single.dist[:, None])
  pos = single.point + 0.5 * jnp.where(single.dist < margin, single.dist, 0)[:, None] * single.normal
  pos, normal = jnp.broadcast_to(pos[:, None], (*dist.shape[:2], 3, dist.shape[-1])), single.normal
  if len(p.multiple) and multiccd:
    q = _choose(p, chosen)
    rows = q.rows
    more = _further(q, a, b, jax.tree.map(lambda x: x[rows], single), jnp.broadcast_to(margin, single.dist.shape)[rows])
    use = more.ncon > 0
    new_dist = jnp.where(use[:, None], more.dist, dist[rows])
    new_pos = jnp.where(use[:, None, None], more.pos, pos[rows])
    new_normal = jnp.where(use[:, None], more.normal, normal[rows])
    dist, pos, normal = dist.at[rows].set(new_dist), pos.at[rows].set(new_pos), normal.at[rows].set(new_normal)
  world = a.pos[:, None] + vector.mat_vec(a.mat[:, None], pos)
  return Found(make_contacts(dist, world, vector.mat_vec(a.mat, normal)[:, None]), jnp.any(single.lost, axis=0))


class _Single(NamedTuple):
  """The nearest points of P pairs, in the frame of the first geom.

  Attributes:
    dist: (P, W) distance [m].
    point: (P, 3, W) nearest point on the first surface [m].
    normal: (P, 3, W) from the first geom to the second.
    index_a, index_b: (P, 3, W) support indices of the three vertices of each shape that span the nearest feature.
    lost: (P, W) whether the search ran out of iterations or rounds.
  """

  dist: jax.Array
  point: jax.Array
  normal: jax.Array
  index_a: jax.Array
  index_b: jax.Array
  lost: jax.Array


def _nearest(a: support.ConvexShape, b: support.ConvexShape, margin: jax.Array, iterations: int) -> _Single:
  """Compute the nearest points of two shapes where they are within the margin; elsewhere the distance is `NO_CONTACT`."""

  def make(ca, cb, limit, found, asked):
    w = witness.witness(ca, cb, found, asked)
    dist = only_where(~found.far & (w.dist < limit), w.dist - ca.radius - cb.radius)
    first = jnp.argmax(found.on, axis=1)[:, None] == np.arange(3)[:, None]

    def used(index):  # unused vertices repeat the first used vertex
      return jnp.where(found.on, index, jnp.sum(jnp.where(first, index, 0), axis=1, keepdims=True))

    surface = w.point + ca.radius[:, None] * w.normal
    return _Single(
      dist=dist, point=surface, normal=w.normal, index_a=used(found.index_a), index_b=used(found.index_b), lost=w.lost
    )

  reach = margin + a.radius + b.radius
  wanted = gjk.near(a, b, reach)
  zero = jnp.zeros((len(wanted), 3, wanted.shape[1]), a.pos.dtype)
  away, index = zero + np.array([0, 0, 1])[:, None].astype(zero.dtype), jnp.zeros(zero.shape, jnp.int32)
  nothing = _Single(
    dist=jnp.full_like(zero[:, 0], NO_CONTACT),
    point=zero,
    normal=away,
    index_a=index,
    index_b=index,
    lost=jnp.zeros(wanted.shape, bool),
  )
  return gjk.rows_of(wanted, a, b, reach, iterations, make, nothing)


def _further(q: _Chosen, a: Shape, b: Shape, single: _Single, margin: jax.Array) -> manifold.Manifold:
  """Compute the contacts of faces and edges of the pairs that may have more than one contact."""
  rows, width = q.rows, margin.shape[-1]
  position, rotation = vector.mat_t_vec(a.mat, b.pos - a.pos), vector.mat_mat(vector.transpose(a.mat), b.mat)
  position, rotation = (jnp.broadcast_to(x, (*x.shape[:-1], width))[rows] for x in (position, rotation))
  eye = jnp.broadcast_to(jnp.eye(3, dtype=position.dtype)[None, :, :, None], rotation.shape)
  point_b = single.point + single.dist[:, None] * single.normal
  side_a = manifold.Side(
    size=a.size[rows],
    faces=q.faces_a,
    types=q.types_a,
    mat=eye,
    pos=0 * position,
    vertex=single.index_a,
    point=single.point,
  )
  side_b = manifold.Side(
    size=b.size[rows],
    faces=q.faces_b,
    types=q.types_b,
    mat=rotation,
    pos=position,
    vertex=single.index_b,
    point=point_b,
  )
  wanted = jax.lax.stop_gradient(single.dist < margin) & q.multiple

  def look(lanes):
    normal, limit, close = (x if lanes is None else lanes.take(x) for x in (single.normal, margin, wanted))
    return manifold.manifold(manifold.take_lanes(side_a, lanes), manifold.take_lanes(side_b, lanes), normal, limit, close)

  zero, number = jnp.zeros((len(position), 4, 3, width), position.dtype), jnp.zeros(margin.shape, jnp.int32)
  return map_where(wanted, look, manifold.Manifold(jnp.full_like(zero[:, :, 0], NO_CONTACT), zero, single.normal, number))
