"""Contacts of the triangles of meshes with signed distance fields.

In every nearby triangle, searches from many starts look for the deepest point. The first step of a search leads to a corner of
the triangle, so there are at most three different searches for any number of starts. But each start counts
towards the limit of 50 contacts.

Tests: tests/collision/test_sdf.py.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex.hulls import take
from mjx_lite.collision.sdf import field, sdf
from mjx_lite.collision.sdf.field import Octrees
from mjx_lite.collision.shapes import Contacts, Shape
from mjx_lite.math import safe, vector
from mjx_lite.model.enums import MAXCONPAIR
from mjx_lite.ops.select import gather

_SLENDER = 0.1  # height [m] of a tetrahedron on a triangle, below which the circumcircle replaces the circumsphere
_FLATTER = 10.0  # distance of the triangle, divided by the height of that tetrahedron


class MeshSdfPlan(NamedTuple):
  """Pairs of a mesh and a distance field. Nodes and triangles are in the order in which C visits them."""

  trees: Octrees
  mesh: np.ndarray  # (P,) row of the mesh in the tables
  tree: np.ndarray  # (P,) octree of the second geom
  node: np.ndarray  # (k, nodes, 4) centre and radius [m] of a node of the tree of bounds; a negative radius is padding
  end: np.ndarray  # (k, nodes) first node after the descendants of each node
  leaf: np.ndarray  # (k, triangles) node of each triangle, -1 is padding
  triangle: np.ndarray  # (k, triangles, 9) corners [m]
  start: np.ndarray  # (n, 3) barycentric weights of the starts
  iterations: int


def plan(s: dict[str, Any], geom1: np.ndarray, geom2: np.ndarray) -> MeshSdfPlan:
  """Plan pairs of meshes and distance fields."""
  data = np.asarray(s["geom_dataid"])
  trees = field.octrees(s, data[geom2])
  ids, row = np.unique(data[geom1], return_inverse=True)
  tables = [_tables(s, int(i)) for i in ids]
  node, end, leaf, triangle = (
    np.stack([np.concatenate([t[k], np.full((n - len(t[k]), *t[k].shape[1:]), pad)]) for t in tables])
    for k, n, pad in zip(range(4), [max(len(t[k]) for t in tables) for k in range(4)], (-1.0, 0, -1, 0.0), strict=True)
  )
  n = max(1, int(s["sdf_initpoints"]))
  u, v = sdf.halton(1, n, 2), sdf.halton(1, n, 3)
  u, v = np.where(u + v > 1, [1 - u, 1 - v], [u, v])
  start = np.stack([1 - u - v, u, v], axis=1)
  return MeshSdfPlan(
    trees=trees,
    mesh=row,
    tree=trees.row[data[geom2]],
    node=node,
    end=end,
    leaf=leaf,
    triangle=triangle,
    start=start,
    iterations=max(1, int(s["sdf_iterations"])),
  )


def _tables(s, mesh):
  """Return nodes, ends, leaves and triangles of a mesh; the right branch of its tree of bounds comes first."""
  adr, n = int(s["mesh_bvhadr"][mesh]), int(s["mesh_bvhnum"][mesh])
  box = np.asarray(s["bvh_aabb"], float).reshape(-1, 6)[adr : adr + n]
  child, face_of = np.asarray(s["bvh_child"]).reshape(-1, 2)[adr : adr + n], np.asarray(s["bvh_nodeid"]).ravel()[adr : adr + n]
  node, end, leaf, faces, stack = [], [], [], [], [(0, False)]
  open_nodes: list[int] = []
  while stack:
    i, done = stack.pop()
    if done:
      end[open_nodes.pop()] = len(node)
      continue
    open_nodes.append(len(node))
    stack.append((i, True))
    node.append([*box[i, :3], np.linalg.norm(box[i, 3:])])
    end.append(0)
    if face_of[i] >= 0:
      leaf.append(len(node) - 1)
      faces.append(face_of[i])
    else:
      stack += [(int(c), False) for c in child[i] if c >= 0]
  vert = np.asarray(s["mesh_vert"], float).reshape(-1, 3)[int(s["mesh_vertadr"][mesh]) :]
  corner = np.asarray(s["mesh_face"]).reshape(-1, 3)[int(s["mesh_faceadr"][mesh]) + np.array(faces, int)]
  return np.array(node), np.array(end), np.array(leaf, int), vert[corner].reshape(-1, 9)


class _Near(NamedTuple):
  """Mesh, octree and relative pose of each pair."""

  mesh: jax.Array  # (P, W) mesh
  tree: jax.Array  # (P, W) octree
  rotation: jax.Array  # (P, 1, 3, 3, W) rotation from the mesh's frame to the field's
  shift: jax.Array  # (P, 1, 3, W) translation [m]


def _corners(p: MeshSdfPlan, near: _Near, index: jax.Array) -> jax.Array:
  """Return the corners (P, n, 3 corners, 3, W) of triangles (P, n, W), in the fields' frames [m]."""
  count = p.triangle.shape[1]
  rows = take(p.triangle.reshape(-1, 9), near.mesh[:, None] * count + jnp.clip(index, 0, count - 1), near.rotation.dtype)
  rows = rows.reshape(*rows.shape[:2], 3, 3, rows.shape[-1])
  return vector.mat_vec(near.rotation[:, :, None], rows) + near.shift[:, :, None]


def collide(p: MeshSdfPlan, a: Shape, b: Shape, chosen: jax.Array | None = None) -> Contacts:
  """Compute the contacts of meshes with distance fields; arguments as in `sdf.collide`.

  Of the starts whose search ends inside the field, the first 50 count, even where several searches end at one point.

  Source: `mjc_MeshSDF`.
  Gradient: that of the points found, with constant barycentric weights.
  """
  p = p._replace(trees=field.ready(p.trees, a.pos.dtype))
  choose = (lambda x: jnp.asarray(x)[..., None]) if chosen is None else (lambda x: gather(jnp.asarray(x)[..., None], chosen))
  mesh, tree = (choose(x.astype(np.int32)) for x in (p.mesh, p.tree))
  rotation, shift = vector.mat_mat(vector.transpose(b.mat), a.mat), vector.mat_t_vec(b.mat, a.pos - b.pos)
  near = _Near(mesh, tree, rotation[:, None], shift[:, None])
  fixed = jax.lax.stop_gradient(near)
  index, weight = _search(p, fixed, _passing(p, fixed))
  corner = _corners(p, near, index)
  x = vector.add(weight[:, :, k, None] * corner[:, :, k] for k in range(3))
  dist, slope = field.interpolate(p.trees, tree, x)
  return sdf.contacts(b, x, dist, slope, index >= 0)


def _passing(p: MeshSdfPlan, near: _Near) -> jax.Array:
  """Return a mask (P, n, W) of the triangles whose bounds are near the fields. Source: `traverseBVH`, `boxIntersect`."""
  dtype = near.rotation.dtype
  node = take(p.node, near.mesh, dtype)
  dist, _ = field.interpolate(p.trees, near.tree, vector.mat_vec(near.rotation, node[:, :, :3]) + near.shift)
  end = take(p.end.astype(np.int32), near.mesh)
  # skip all descendants of a far node
  skipped = jax.lax.cummax(jnp.where(dist < node[:, :, 3], 0, end), axis=1)
  passes = skipped <= np.arange(end.shape[1], dtype=np.int32)[:, None]
  leaf = take(p.leaf.astype(np.int32), near.mesh)
  found = jnp.take_along_axis(passes, jnp.maximum(leaf, 0), axis=1, mode="clip") & (leaf >= 0)
  every = jnp.broadcast_to(np.arange(p.leaf.shape[1], dtype=np.int32)[:, None], found.shape)
  return found & _meets(p, near, _corners(p, near, every))


def _meets(p, near, corner):
  """Return whether triangles may touch the fields. Source: `triangleIntersect`."""
  a, b, c = (corner[:, :, k] for k in range(3))
  normal = safe.normalize(vector.cross(b - a, c - a))
  centre = (a + b + c) / 3
  dist, _ = field.interpolate(p.trees, near.tree, centre)
  ab, bc, ca = (safe.norm(x) for x in (b - a, c - b, a - c))
  half = (ab + bc + ca) / 2
  area = safe.sqrt(half * (half - ab) * (half - bc) * (half - ca))
  circle = dist < ab * bc * ca / (4 * jnp.maximum(area, safe.MINVAL))

  height = -dist / _FLATTER
  tip = centre - height[:, :, None] * normal
  v = [x - tip for x in (a, b, c)]
  across = [vector.cross(v[1], v[2]), vector.cross(v[2], v[0]), vector.cross(v[0], v[1])]
  middle = vector.add(x * vector.dot(y, y)[:, :, None] for x, y in zip(across, v, strict=True))
  volume = 2 * vector.dot(v[0], across[0])
  flat = jnp.abs(volume) < safe.MINVAL
  middle = safe.divide(middle, jnp.where(flat, 1, volume)[:, :, None])
  sphere, _ = field.interpolate(p.trees, near.tree, middle + tip)
  sphere = jnp.where(flat, dist < safe.norm(b - a), sphere < safe.norm(middle))
  return jnp.where(jnp.abs(height) < _SLENDER, circle, sphere)


def _search(p: MeshSdfPlan, near: _Near, passing: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return triangles (P, 50, W), -1 for none, and barycentric weights (P, 50, 3, W) of the points found inside the fields.

  Source: `processSdfCorners`.
  """
  npair, ntri, width = passing.shape
  every = np.arange(ntri, dtype=np.int32)[:, None]
  upcoming = jax.lax.cummin(jnp.where(passing, every, ntri), axis=1, reverse=True)
  slot, dtype = np.arange(MAXCONPAIR, dtype=np.int32)[:, None], near.rotation.dtype
  start = jnp.asarray(p.start[..., None], dtype)  # (n, 3, 1)

  def look(carry):
    at, count, filled, index, weight = carry
    going = at < ntri
    corner = _corners(p, near, at[:, None])[:, 0]  # (P, 3, 3, W)
    first = _lowest(p, near, corner, vector.add(start[:, k, None] * corner[:, None, k] for k in range(3)))
    bary, depth = _frank_wolfe(p, near, corner)
    is_end = first[:, :, None] == np.arange(3, dtype=np.int32)[:, None]  # (P, n, 3, W)
    inside = jnp.any(is_end & (depth < 0)[:, None], axis=2) & going[:, None]
    upto = count[:, None] + jnp.cumsum(inside.astype(jnp.int32), axis=1)
    counted = inside & (upto <= MAXCONPAIR)
    # the result of a corner's search is listed at its first start
    is_end &= counted[:, :, None]
    rank = jnp.min(jnp.where(is_end, np.arange(len(start), dtype=np.int32)[:, None, None], len(start)), axis=1)
    found = rank < len(start)
    before = jnp.sum((rank[:, None] < rank[:, :, None]) & found[:, None], axis=2, dtype=jnp.int32)
    for k in range(3):
      here = found[:, None, k] & (slot == (filled + before[:, k])[:, None])
      index = jnp.where(here, at[:, None], index)
      weight = jnp.where(here[:, :, None], bary[:, None, k], weight)
    count = jnp.minimum(upto[:, -1], MAXCONPAIR)
    filled = filled + jnp.sum(found, axis=1, dtype=jnp.int32)
    later = jnp.take_along_axis(upcoming, jnp.minimum(at + 1, ntri - 1)[:, None], axis=1, mode="clip")[:, 0]
    done = (count >= MAXCONPAIR) | (at + 1 >= ntri)
    return jnp.where(done, ntri, later), count, filled, index, weight

  zero = jnp.zeros((npair, width), jnp.int32)
  none, nowhere = jnp.full((npair, MAXCONPAIR, width), -1, jnp.int32), jnp.zeros((npair, MAXCONPAIR, 3, width), dtype)
  carry = upcoming[:, 0], zero, zero, none, nowhere
  return jax.lax.while_loop(lambda c: jnp.any(c[0] < ntri), look, carry)[3:]


def _lowest(p, near, corner, x):
  """Return the corner (P, n, W) that is lowest along the field's gradient at points (P, n, 3, W)."""
  slope = field.interpolate(p.trees, near.tree, x)[1]
  return jnp.argmin(vector.dot(corner[:, None], slope[:, :, None]), axis=2).astype(jnp.int32)


def _frank_wolfe(p, near, corner):
  """Search from the three corners: final weights (P, 3, 3, W) and distances (P, 3, W). Source: `stepFrankWolfe`."""

  def step(bary, k):
    lowest = _lowest(p, near, corner, _at(corner, bary))
    toward = (lowest[:, :, None] == np.arange(3, dtype=np.int32)[:, None]).astype(bary.dtype)
    return bary + (toward - bary) * (2 / (k + 2)).astype(bary.dtype), None

  bary = jnp.broadcast_to(jnp.eye(3, dtype=corner.dtype)[..., None], corner.shape)
  bary, _ = jax.lax.scan(step, bary, np.arange(1, p.iterations, dtype=np.float64).astype(corner.dtype))
  return bary, field.interpolate(p.trees, near.tree, _at(corner, bary))[0]


def _at(corner, bary):
  return vector.add(bary[:, :, k, None] * corner[:, None, k] for k in range(3))


# type pair -> collider; planes collide with the hull of a distance field's mesh (`primitive.COLLIDERS`)
FIELD_COLLIDERS: dict[tuple[str, str], sdf.FieldCollider] = {
  **{
    (kind, "sdf"): sdf.FieldCollider(functools.partial(sdf.plan, kind), sdf.collide, lambda s: int(s["sdf_initpoints"]))
    for kind in sdf.SHAPES
  },
  ("mesh", "sdf"): sdf.FieldCollider(plan, collide, lambda s: MAXCONPAIR),
}
