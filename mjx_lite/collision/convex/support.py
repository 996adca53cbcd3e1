"""Convex shapes and their support functions. A shape is the set of all points within a radius of its core.

The core of a sphere is a point, and of a capsule a segment. The core of a box, a mesh or a prism is the convex hull of its
corners. Ellipsoids and cylinders are their own cores. Corners are rows of a constant table, times a scale that carries the
gradient.

Tests: tests/collision/test_convex.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import cubemap
from mjx_lite.collision.convex.hulls import GeomHulls, cells_of
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops import linear, tiles
from mjx_lite.ops.lanes import Lanes
from mjx_lite.ops.select import fetched, gather, over, rows

CORNERS, ELLIPSOID, CYLINDER = range(3)
_COMPARED = 32  # up to this number of tables, a table is selected by comparisons in a tile of worlds


class Tables(NamedTuple):
  """Corners of K polytopes, concatenated, before scaling."""

  corner: np.ndarray  # (n, 3)
  first: np.ndarray  # (K,) row of the first corner
  ncorner: np.ndarray  # (K,) number of corners
  cells: cubemap.CubeMap | None  # present if a hull has more than `cubemap.MANY` corners

  def padded(self) -> np.ndarray:
    """Return the corners (K, n, 3); n is the largest number of corners, and the first corner pads the smaller polytopes."""
    k = np.arange(self.ncorner.max())
    return self.corner[self.first[:, None] + np.where(k < self.ncorner[:, None], k, 0)]


class Picked(NamedTuple):
  """A table for each of P shapes: `which` is the index of the table, (P, W) for geoms chosen at run time, else (P, 1)."""

  tables: Tables
  which: Any


class ConvexShape(NamedTuple):
  """Convex shape of one geom of each of P pairs.

  Attributes:
    pos, mat: pose (P, 3, W) [m], (P, 3, 3, W).
    kind: (P,) CORNERS, ELLIPSOID or CYLINDER; (P, W) where the geoms are chosen at run time.
    size: (P, 3, W or 1) `geom_size` [m].
    table: corners before scaling: a `Picked` table, or an array (P, n, 3, W or 1) for prisms and inside of loops over corners.
    scale: (P, 3, W or 1) factor of the corners.
    radius: (P, W or 1) radius around the core [m].
  """

  pos: jax.Array
  mat: jax.Array
  kind: np.ndarray | jax.Array
  size: jax.Array
  table: Picked | jax.Array
  scale: jax.Array
  radius: jax.Array

  @property
  def curved(self) -> bool:
    """Return whether some shape may be an ellipsoid or a cylinder."""
    return not isinstance(self.kind, np.ndarray) or bool((self.kind != CORNERS).any())


_BOX = np.array([[1 if i >> k & 1 else -1 for k in range(3)] for i in range(8)], float)
_SEGMENT = np.array([[0, 0, -1], [0, 0, 1]], float)
_CORNERS = {"box": _BOX, "capsule": _SEGMENT, "sphere": np.zeros((1, 3))}


def make(
  types: list[str], pos: jax.Array, mat: jax.Array, size: jax.Array, hull: GeomHulls | None, chosen: jax.Array | None = None
) -> ConvexShape:
  """Make the convex shapes of geoms.

  Args:
    types: geom types of the P geoms.
    pos, mat, size: poses and sizes as in `shapes.Shape`.
    hull: hulls of the meshes among the geoms, in order.
    chosen: (k, W) indices of the geoms to which `pos`, `mat` and `size` belong; None for all P geoms, in order.
  """
  mesh = iter(zip(hull.first, hull.nvert, strict=True) if hull is not None else [])
  keys = [next(mesh) if t == "mesh" else t if t in _CORNERS else "sphere" for t in types]
  distinct = list(dict.fromkeys(keys))
  which: Any = np.array([distinct.index(k) for k in keys], np.int32)[:, None]
  kinds = ("sphere", "capsule", "ellipsoid", "cylinder", "box")
  is_type = {k: np.array([t == k for t in types])[:, None] for k in kinds}
  kind = np.where(is_type["ellipsoid"], ELLIPSOID, np.where(is_type["cylinder"], CYLINDER, CORNERS))[:, 0]
  if chosen is not None:
    which = gather(which, chosen) if len(distinct) > 1 else np.zeros((len(chosen), 1), np.int32)
    # values that all geoms share stay constant
    is_type = {k: x[:1] if (x == x[0]).all() else gather(x, chosen) for k, x in is_type.items()}
    kind = np.repeat(kind[:1], len(chosen)) if (kind == kind[0]).all() else gather(kind[:, None], chosen)
  fixed = ~(is_type["box"] | is_type["capsule"])
  scale = jnp.where(fixed[:, None], 1, size)
  scale = jnp.where(is_type["capsule"][:, None], jnp.stack([0 * size[:, 0], 0 * size[:, 0], size[:, 1]], axis=1), scale)
  radius = jnp.where(is_type["sphere"] | is_type["capsule"], size[:, 0], 0)
  return ConvexShape(
    pos=pos, mat=mat, kind=kind, size=size, table=Picked(_tables(distinct, hull), which), scale=scale, radius=radius
  )


def _tables(keys: list[Any], hull: GeomHulls | None) -> Tables:
  """Make tables for keys: a type in `_CORNERS`, or the first vertex and the number of vertices of a hull."""
  vert = hull.tables.vert if hull is not None else np.zeros((0, 3))
  corners = [_CORNERS[k] if isinstance(k, str) else vert[k[0] : k[0] + k[1]] for k in keys]
  ncorner, cells = np.array([len(x) for x in corners]), None
  if hull is not None and ncorner.max() > cubemap.MANY:
    maps = [cubemap.make(x) if isinstance(k, str) else cells_of(hull.tables, k[0]) for k, x in zip(keys, corners, strict=True)]
    cells = cubemap.join(maps)
  return Tables(np.concatenate(corners), np.cumsum(ncorner) - ncorner, ncorner, cells)


def of_rows(c: ConvexShape, index: np.ndarray) -> ConvexShape:
  """Return the shapes at a constant index; the shapes are not chosen at run time."""
  assert isinstance(c.table, Picked)
  return _gathered(c, lambda x: rows(x, index), c.kind[index], Picked(c.table.tables, c.table.which[index]))


def _gathered(c: ConvexShape, take: Callable[[jax.Array], jax.Array], kind: Any, table: Any) -> ConvexShape:
  """Apply `take` to every array of the shapes except kind and table, and replace these two."""
  return ConvexShape(
    pos=take(c.pos), mat=take(c.mat), kind=kind, size=take(c.size), table=table, scale=take(c.scale), radius=take(c.radius)
  )


def take_lanes(c: ConvexShape, lanes: Lanes | None) -> ConvexShape:
  """Gather the shapes of the lanes' pairs and worlds; `lanes` None keeps all shapes."""
  if lanes is None:
    return c
  if isinstance(c.table, Picked):
    tables, which = c.table
    table = Picked(tables, lanes.take(which) if len(tables.ncorner) > 1 else which[:1])
  else:
    table = lanes.take(c.table)
  common = isinstance(c.kind, np.ndarray) and (c.kind == c.kind[0]).all()
  kind = c.kind[:1] if common else lanes.take(c.kind.reshape(len(c.kind), -1))
  return _gathered(c, lanes.take, kind, table)


def one(c: ConvexShape, row: jax.Array, world: jax.Array) -> ConvexShape:
  """Return the shape (1, ..., 1) of one pair in one world."""
  if isinstance(c.table, Picked):
    table: Any = Picked(c.table.tables, entry(c.table.which, row, world))
  else:
    table = entry(c.table, row, world)
  kind = c.kind if c.kind.shape == (1,) else entry(c.kind.reshape(len(c.kind), -1), row, world)
  return _gathered(c, lambda x: entry(x, row, world), kind, table)


def entry(x: jax.Array | np.ndarray, row: jax.Array, world: jax.Array) -> jax.Array:
  """Slice x (P or 1, ..., W or 1) at one pair and one world: (1, ..., 1)."""
  x = jnp.asarray(x)
  for axis, k in ((0, row), (x.ndim - 1, world)):
    if x.shape[axis] > 1:
      x = jax.lax.dynamic_slice_in_dim(x, k, 1, axis)
  return x


def laid_out(c: ConvexShape) -> ConvexShape:
  """Materialize the corners of each shape as an array (P, n, 3, W or 1) for loops over all corners.

  Tables with a cube map stay as they are. In a tile of worlds a table is selected by comparison with each index, which uses
  vector instructions; a gather would be one load for each number.
  """
  if not isinstance(c.table, Picked) or c.table.tables.cells is not None:
    return c
  corner, which = c.table.tables.padded().astype(c.pos.dtype)[..., None], c.table.which
  if isinstance(which, np.ndarray):
    return c._replace(table=jnp.asarray(corner[which[:, 0]]))
  by_comparison = _compared if len(corner) <= _COMPARED else gather
  table = tiles.choose(which, single=gather, tile=by_comparison, batch=gather)(corner, which)
  return c._replace(table=linear.materialize(table))


def _compared(table: np.ndarray, index: jax.Array) -> jax.Array:
  """Return `gather(table, index)` by a comparison of the index with each row."""
  index = index[:, None, None]
  return functools.reduce(lambda x, k: jnp.where(index == k, table[k], x), range(1, len(table)), jnp.asarray(table[:1]))


def box(c: ConvexShape) -> tuple[jax.Array, jax.Array]:
  """Compute centre and half sizes (P, 3, W or 1) of the bounding box of each core, in the shape's own frame [m]."""
  if isinstance(c.table, Picked):
    tables, which = c.table
    ends = [end.reduceat(tables.corner, tables.first).astype(c.pos.dtype)[..., None] for end in (np.minimum, np.maximum)]
    ends = [x[which[:, 0]] if isinstance(which, np.ndarray) else gather(x, which) for x in ends]
  else:
    ends = [end(c.table, axis=1) for end in (jnp.min, jnp.max)]
  round_ = jnp.where(is_kind(c, CYLINDER, 3), jnp.stack([c.size[:, 0], c.size[:, 0], c.size[:, 1]], axis=1), c.size)
  corners = is_kind(c, CORNERS, 3)
  low, high = (jnp.where(corners, x * c.scale, sign * round_) for x, sign in zip(ends, (-1, 1), strict=True))
  return 0.5 * (low + high), 0.5 * (high - low)


def corner(c: ConvexShape, index: jax.Array) -> jax.Array:
  """Return the scaled corners (P, ..., 3, W) at indices (P, ..., W)."""
  if isinstance(c.table, Picked):
    tables, which = c.table
    first = tables.first.astype(np.int32)
    first = first[which] if isinstance(which, np.ndarray) else gather(first[:, None], which)
    found = fetched(jnp.asarray(tables.corner, c.pos.dtype), index + first.reshape(len(first), *[1] * (index.ndim - 2), -1))
  else:
    found = _in_world(c.table, index)
  scale = c.scale.reshape(c.scale.shape[0], *[1] * (index.ndim - 2), *c.scale.shape[1:])
  return found * scale


def own_index(c: ConvexShape, index: jax.Array) -> jax.Array:
  """Return support indices (P, k, W), with 0 for the corners that pad a table: they repeat the first corner."""
  if not isinstance(c.table, Picked) or (c.table.tables.ncorner == c.table.tables.ncorner[0]).all():
    return index
  ncorner, which = c.table.tables.ncorner.astype(np.int32)[:, None], c.table.which
  number = ncorner[which[:, 0]] if isinstance(which, np.ndarray) else gather(ncorner, which)
  return jnp.where(is_kind(c, CORNERS, 3) & (index >= number[:, None]), 0, index)


def _in_world(table: jax.Array, index: jax.Array) -> jax.Array:
  """Gather rows (P, ..., 3, W) of tables (P, n, 3, W) at indices (P, ..., W)."""
  if table.shape[1] <= 8:
    hit = index[..., None, :] == np.arange(table.shape[1])[:, None]
    table = table.reshape(table.shape[0], *[1] * (index.ndim - 2), *table.shape[1:])
    return jnp.sum(jnp.where(hit[..., None, :], table, 0), axis=-3)
  flat = index.reshape(len(index), -1, 1, index.shape[-1])
  found = jnp.take_along_axis(table, flat, axis=1, mode="promise_in_bounds")
  return found.reshape(*index.shape[:-1], 3, index.shape[-1])


def is_kind(c: ConvexShape, kind: int, ndim: int) -> Any:
  """Return a mask of the shapes of a kind, for an array of `ndim` axes whose first axis is the pairs."""
  return over(c.kind == kind, ndim)


def _kinds(c: ConvexShape, ndim: int) -> tuple[Any, Any]:
  return is_kind(c, ELLIPSOID, ndim), is_kind(c, CYLINDER, ndim)


def farthest(c: ConvexShape, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the farthest point (P, 3, W) of each core in a direction (P, 3, W), in the shape's frame, and its index (P, W).

  The index of a polytope is the corner. The index of a cylinder is 0 for the cap at +z and 1 for the cap at -z. The index of an
  ellipsoid is 0.
  """
  index = _farthest_corner(c, direction)
  point = corner(c, index)
  if not c.curved:
    return point, index
  ellipsoid, cylinder = _kinds(c, 2)
  index = jnp.where(ellipsoid | cylinder, (cylinder & (direction[:, 2] < 0)).astype(index.dtype), index)
  return curved_point(c, direction, index, point), index


def _farthest_corner(c: ConvexShape, direction: jax.Array) -> jax.Array:
  """Return the index (P, ..., W) of the farthest corner in directions (P, ..., 3, W); ties go to the first corner."""
  if isinstance(c.table, Picked) and c.table.tables.cells is not None:
    return cubemap.farthest(c.table.tables.cells, c.table.which, _along(c, direction))
  return _first_farthest(c, direction)[1]


def _along(c: ConvexShape, direction: jax.Array) -> jax.Array:
  """Scale directions (P, ..., 3, W), for dot products with corners before scaling."""
  return direction * c.scale.reshape(c.scale.shape[0], *[1] * (direction.ndim - 3), *c.scale.shape[1:])


def _first_farthest(c: ConvexShape, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the largest dot product of directions and corners, and the first corner that has it, by a loop over all corners."""
  along, table = _along(c, direction)[..., None, :, :], laid_out(c).table
  assert not isinstance(table, Picked)
  table = table.reshape(table.shape[0], *[1] * (direction.ndim - 3), *table.shape[1:])
  return first_largest(vector.add(table[..., i, :] * along[..., i, :] for i in range(3)))


def extent(c: ConvexShape, direction: jax.Array) -> jax.Array:
  """Compute the support function (P, K, W) of each core for K directions (P, K, 3, W) in the core's own frame."""
  if isinstance(c.table, Picked) and c.table.tables.cells is not None:
    far = vector.dot(corner(c, _farthest_corner(c, direction)), direction)
  else:
    far = _first_farthest(c, direction)[0]
  if not c.curved:
    return far
  ellipsoid, cylinder = _kinds(c, 3)
  x, y, z = (direction[..., k, :] for k in range(3))
  on_cylinder = c.size[:, None, 0] * safe.sqrt(x * x + y * y) + c.size[:, None, 1] * jnp.abs(z)
  return jnp.where(ellipsoid, safe.norm(direction * c.size[:, None]), jnp.where(cylinder, on_cylinder, far))


def curved_point(c: ConvexShape, direction: jax.Array, index: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Return the surface point with a given outward normal; on a cylinder, the point of the rim of the cap `index`.

  Args:
    direction: (..., 3, W) outward normal.
    index: (..., W) support index.
    otherwise: (..., 3, W) points of cores that are polytopes.

  Gradient: zero with respect to the direction where it is the axis of a cylinder.
  """
  ellipsoid, cylinder = _kinds(c, direction.ndim)
  size = c.size.reshape(c.size.shape[0], *[1] * (direction.ndim - 3), *c.size.shape[1:])
  on_ellipsoid = safe.normalize(direction * size) * size
  x, y = direction[..., 0, :], direction[..., 1, :]
  length = safe.sqrt(x * x + y * y)
  radius = size[..., 0, :]
  up = jnp.where(index == 0, size[..., 1, :], -size[..., 1, :])
  rim = jnp.stack(jnp.broadcast_arrays(safe.divide(x * radius, length), safe.divide(y * radius, length), up), axis=-2)
  return jnp.where(ellipsoid, on_ellipsoid, jnp.where(cylinder, rim, otherwise))
