"""Cores: what the convex path knows of a geom. A geom is all points within a radius of its core.

Sphere: a point. Capsule: a segment. Box, mesh and prism: their corners. Ellipsoid and cylinder: themselves. Corners are rows of
a constant table, times a scale that carries the gradient.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.hulls import HullOf
from mjx_lite.core import linear, regions
from mjx_lite.core.lanes import Lanes
from mjx_lite.core.select import fetched, gather
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest

CORNERS, ELLIPSOID, CYLINDER = range(3)
_FEW = 32  # tables
_BLOCK = 128  # corners that are looked at together


class Picked(NamedTuple):
  """Rows of a constant table (K, n, 3) that are chosen at run time, one of each of P cores in each world (P, W)."""

  rows: np.ndarray
  which: jax.Array


class Core(NamedTuple):
  """Cores of one geom of each of P pairs.

  Attributes:
    pos, mat: pose (P, 3, W), (P, 3, 3, W).
    kind: (P,) CORNERS, ELLIPSOID or CYLINDER; (P, W) where the geoms are chosen at run time.
    size: (P, 3, W or 1) `geom_size`.
    table: (P, n, 3) or, for prisms, (P, n, 3, W) corners before scaling; `Picked` where the geoms are chosen at run time.
    scale: (P, 3, W or 1).
    radius: (P, W or 1).
    ncorner: () so many rows of the table are looked at for the farthest, the others repeat one of them; all if None.
  """

  pos: jax.Array
  mat: jax.Array
  kind: np.ndarray | jax.Array
  size: jax.Array
  table: Any
  scale: jax.Array
  radius: jax.Array
  ncorner: jax.Array | None = None

  @property
  def curved(self) -> bool:
    """Whether some core may be no polytope."""
    return not isinstance(self.kind, np.ndarray) or bool((self.kind != CORNERS).any())


_BOX = np.array([[1 if i >> k & 1 else -1 for k in range(3)] for i in range(8)], float)
_SEGMENT = np.array([[0, 0, -1], [0, 0, 1]], float)
_POINT = np.zeros((1, 3))


def make(
  types: list[str], pos: jax.Array, mat: jax.Array, size: jax.Array, hull: HullOf | None, chosen: jax.Array | None = None
) -> Core:
  """Cores of geoms.

  Args:
    types: geom types of the P geoms.
    pos, mat, size: as `shapes.Shape` has them.
    hull: hulls of the meshes among them, in order.
    chosen: (k, W) which of the P geoms `pos`, `mat` and `size` are of; all of them, in order, if None.
  """
  tables, mesh = [], iter(hull.padded() if hull is not None else [])
  for t in types:
    if t == "mesh":
      assert hull is not None
      tables.append(hull.tables.vert[next(mesh)])
    else:
      tables.append({"box": _BOX, "capsule": _SEGMENT}.get(t, _POINT))
  n = max(len(x) for x in tables)
  table = np.stack([x[np.where(np.arange(n) < len(x), np.arange(n), 0)] for x in tables])
  kinds = ("sphere", "capsule", "ellipsoid", "cylinder", "box")
  is_type = {k: np.array([t == k for t in types])[:, None] for k in kinds}
  kind = np.where(is_type["ellipsoid"], ELLIPSOID, np.where(is_type["cylinder"], CYLINDER, CORNERS))[:, 0]
  if chosen is not None:
    table = _picked(table, chosen)
    # what all have in common stays constant
    is_type = {k: x[:1] if (x == x[0]).all() else gather(x, chosen) for k, x in is_type.items()}
    kind = np.repeat(kind[:1], len(chosen)) if (kind == kind[0]).all() else gather(kind[:, None], chosen)
  fixed = ~(is_type["box"] | is_type["capsule"])
  scale = jnp.where(fixed[:, None], 1, size)
  scale = jnp.where(is_type["capsule"][:, None], jnp.stack([0 * size[:, 0], 0 * size[:, 0], size[:, 1]], axis=1), scale)
  radius = jnp.where(is_type["sphere"] | is_type["capsule"], size[:, 0], 0)
  return Core(pos, mat, kind, size, table, scale, radius)


def taken(c: Core, lanes: Lanes | None) -> Core:
  """The cores that lanes have."""
  if lanes is None:
    return c
  if isinstance(c.table, Picked):
    table: Any = Picked(c.table.rows, lanes.take(c.table.which))
  else:
    table = lanes.take(c.table) if c.table.ndim == 4 else _picked(np.asarray(c.table), lanes.pair[None])
  common = isinstance(c.kind, np.ndarray) and (c.kind == c.kind[0]).all()
  kind = c.kind[:1] if common else lanes.take(c.kind.reshape(len(c.kind), -1))
  pos, mat, size, scale, radius = (lanes.take(x) for x in (c.pos, c.mat, c.size, c.scale, c.radius))
  return Core(pos, mat, kind, size, table, scale, radius)


def _picked(table: np.ndarray, which: jax.Array) -> Picked | np.ndarray:
  """Some (k, W) of the tables (P, n, 3); a constant one, for all, where they are equal."""
  different, number = np.unique(table, axis=0, return_inverse=True)
  return Picked(different, gather(number.reshape(-1, 1).astype(np.int32), which)) if len(different) > 1 else different


def laid_out(c: Core) -> Core:
  """The same with the picked rows of its table side by side, for loops that go through them.

  In a tile of worlds one of few tables is chosen by comparing with each, in vectors; to fetch is a load for each number. And no
  more of them is looked at than the largest of the tile's hulls has.
  """
  if not isinstance(c.table, Picked):
    return c
  rows, which = c.table
  if not regions.are_several(which.shape[-1]):
    return c._replace(table=_by_world(c))
  ncorner = None
  if rows.shape[1] > _BLOCK:
    others = (rows != rows[:, :1]).any(axis=2)  # padding repeats the first
    ncorner = jnp.max(gather(rows.shape[1] - others[:, ::-1].argmax(axis=1)[:, None].astype(np.int32), which))
    rows = np.concatenate([rows, np.repeat(rows[:, :1], -rows.shape[1] % _BLOCK, axis=1)], axis=1)
  if len(rows) > _FEW:
    table = _by_world(c._replace(table=Picked(rows, which)))
  else:
    rows, which = rows.astype(c.pos.dtype)[..., None], which[:, None, None]
    table = functools.reduce(lambda x, k: jnp.where(which == k, rows[k], x), range(1, len(rows)), jnp.asarray(rows[:1]))
  return c._replace(table=linear.materialized(table), ncorner=ncorner)


def _by_world(c: Core) -> jax.Array:
  """The table as (P, n, 3, W or 1)."""
  if isinstance(c.table, Picked):
    return gather(jnp.asarray(c.table.rows, c.pos.dtype)[..., None], c.table.which)
  table = jnp.asarray(c.table, c.pos.dtype)
  return table if table.ndim == 4 else table[..., None]


def box(c: Core) -> tuple[jax.Array, jax.Array]:
  """Centre and half sizes (P, 3, W or 1) of a box along the axes of the frame that holds the core."""
  if isinstance(c.table, jax.Array):
    ends = [end(c.table, axis=1) for end in (jnp.min, jnp.max)]
  elif isinstance(c.table, Picked):
    ends = [gather(end(axis=1).astype(c.pos.dtype)[..., None], c.table.which) for end in (c.table.rows.min, c.table.rows.max)]
  else:
    ends = [end(axis=1).astype(c.pos.dtype)[..., None] for end in (c.table.min, c.table.max)]
  round_ = jnp.where(is_kind(c, CYLINDER, 3), jnp.stack([c.size[:, 0], c.size[:, 0], c.size[:, 1]], axis=1), c.size)
  corners = is_kind(c, CORNERS, 3)
  low, high = (jnp.where(corners, x * c.scale, sign * round_) for x, sign in zip(ends, (-1, 1), strict=True))
  return 0.5 * (low + high), 0.5 * (high - low)


def corner(c: Core, index: jax.Array) -> jax.Array:
  """Corners (P, ..., 3, W) at indices (P, ..., W)."""
  if isinstance(c.table, jax.Array):
    found = _in_world(c.table, index)
  else:
    rows = c.table.rows if isinstance(c.table, Picked) else c.table
    which = c.table.which if isinstance(c.table, Picked) else np.arange(len(rows), dtype=np.int32)[:, None]
    first = rows.shape[1] * which.reshape(len(which), *[1] * (index.ndim - 2), -1)
    flat = jnp.asarray(rows.reshape(-1, 3), c.pos.dtype)
    found = fetched(flat, first + index)
  scale = c.scale.reshape(c.scale.shape[0], *[1] * (index.ndim - 2), *c.scale.shape[1:])
  return found * scale


def _in_world(table: jax.Array, index: jax.Array) -> jax.Array:
  """Rows (P, ..., 3, W) of tables (P, n, 3, W) at indices (P, ..., W)."""
  if table.shape[1] <= 8:
    hit = index[..., None, :] == np.arange(table.shape[1])[:, None]
    table = table.reshape(table.shape[0], *[1] * (index.ndim - 2), *table.shape[1:])
    return jnp.sum(jnp.where(hit[..., None, :], table, 0), axis=-3)
  flat = index.reshape(len(index), -1, 1, index.shape[-1])
  found = jnp.take_along_axis(table, flat, axis=1, mode="promise_in_bounds")
  return found.reshape(*index.shape[:-1], 3, index.shape[-1])


def is_kind(c: Core, kind: int, ndim: int) -> Any:
  """Which cores are of a kind, for an array of `ndim` axes, the first of them the pairs'."""
  return over(c.kind == kind, ndim)


def over(mask: Any, ndim: int) -> Any:
  """A mask (P,) or (P, W) with `ndim` axes."""
  return mask.reshape(len(mask), *(1,) * (ndim - mask.ndim), *mask.shape[1:])


def _kinds(c: Core, ndim: int) -> tuple[Any, Any]:
  return is_kind(c, ELLIPSOID, ndim), is_kind(c, CYLINDER, ndim)


def support(c: Core, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The farthest point (P, 3, W) of each core in a direction (P, 3, W), in its own frame, and its index (P, W).

  The index is that of the corner; of a cylinder 0 for the cap at +z and 1 for that at -z; of an ellipsoid 0.
  """
  index = _farthest(c, direction)[1]
  point = corner(c, index)
  if not c.curved:
    return point, index
  index = jnp.where(_kinds(c, 2)[1] & (direction[:, 2] < 0), 1, index)
  return curved_point(c, direction, index, point), index


def _farthest(c: Core, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Of the corners how far they reach (..., W) in directions (P, ..., 3, W), and the index of the first that does."""
  scale = c.scale.reshape(c.scale.shape[0], *[1] * (direction.ndim - 3), *c.scale.shape[1:])
  along = (direction * scale)[..., None, :, :]
  table = _by_world(c)
  table = table.reshape(table.shape[0], *[1] * (direction.ndim - 3), *table.shape[1:])

  def look(table):
    return first_largest(vector.add(table[..., i, :] * along[..., i, :] for i in range(3)))

  if c.ncorner is None:
    return look(table)

  def look_on(k, found):
    (best, at), (more, its_place) = found, look(jax.lax.dynamic_slice_in_dim(table, k * _BLOCK, _BLOCK, table.ndim - 3))
    return jnp.maximum(best, more), jnp.where(more > best, its_place + k * _BLOCK, at)

  blocks = jax.lax.div(c.ncorner + _BLOCK - 1, jnp.int32(_BLOCK))
  shape = jnp.broadcast_shapes(table.shape[:-3], along.shape[:-3]) + along.shape[-1:]
  none = jnp.full(shape, -jnp.inf, table.dtype), jnp.zeros(shape, jnp.int32)
  return jax.lax.fori_loop(0, blocks, look_on, none)


def extent(c: Core, direction: jax.Array) -> jax.Array:
  """How far (P, K, W) each core reaches in K directions (P, K, 3, W) of its own frame."""
  return _or_curved(c, direction, _farthest(c, direction)[0])


def bound(c: Core, direction: jax.Array) -> jax.Array:
  """How far (P, K, W) it may reach: a curved core so far, of a polytope the box along its axes."""
  middle, half = (x[:, None] for x in box(c))
  return _or_curved(c, direction, vector.dot(middle, direction) + vector.dot(half, jnp.abs(direction)))


def _or_curved(c: Core, direction: jax.Array, far: jax.Array) -> jax.Array:
  """How far curved cores reach; polytopes `far`."""
  if not c.curved:
    return far
  ellipsoid, cylinder = _kinds(c, 3)
  x, y, z = (direction[..., k, :] for k in range(3))
  on_cylinder = c.size[:, None, 0] * safe.sqrt(x * x + y * y) + c.size[:, None, 1] * jnp.abs(z)
  return jnp.where(ellipsoid, safe.norm(direction * c.size[:, None]), jnp.where(cylinder, on_cylinder, far))


def curved_point(c: Core, direction: jax.Array, index: jax.Array, otherwise: jax.Array) -> jax.Array:
  """Point with an outward normal, on the rim that the index says where the core is a cylinder.

  Args:
    direction: (..., 3, W).
    index: (..., W).
    otherwise: (..., 3, W) what polytopes have.

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
