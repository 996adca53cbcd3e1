"""Cores: what the convex path knows of a geom. A geom is all points within a radius of its core.

Sphere: a point. Capsule: a segment. Box, mesh and prism: their corners. Ellipsoid and cylinder: themselves. Corners are rows of
a constant table, times a scale that carries the gradient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.hulls import HullOf
from mjx_lite.core.select import gather
from mjx_lite.math import safe, vector

CORNERS, ELLIPSOID, CYLINDER = range(3)


class Core(NamedTuple):
  """Cores of one geom of each of P pairs.

  Attributes:
    pos, mat: pose (P, 3, W), (P, 3, 3, W).
    kind: (P,) CORNERS, ELLIPSOID or CYLINDER; (P, W) where the geoms are chosen at run time.
    size: (P, 3, W or 1) `geom_size`.
    table: (P, n, 3) or, for prisms and chosen geoms, (P, n, 3, W) corners before scaling.
    scale: (P, 3, W or 1).
    radius: (P, W or 1).
  """

  pos: jax.Array
  mat: jax.Array
  kind: np.ndarray | jax.Array
  size: jax.Array
  table: np.ndarray | jax.Array
  scale: jax.Array
  radius: jax.Array

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
    table = gather(jnp.asarray(table, pos.dtype)[..., None], chosen)
    # what all have in common stays constant
    is_type = {k: x[:1] if (x == x[0]).all() else gather(x, chosen) for k, x in is_type.items()}
    kind = np.repeat(kind[:1], len(chosen)) if (kind == kind[0]).all() else gather(kind[:, None], chosen)
  fixed = ~(is_type["box"] | is_type["capsule"])
  scale = jnp.where(fixed[:, None], 1, size)
  scale = jnp.where(is_type["capsule"][:, None], jnp.stack([0 * size[:, 0], 0 * size[:, 0], size[:, 1]], axis=1), scale)
  radius = jnp.where(is_type["sphere"] | is_type["capsule"], size[:, 0], 0)
  return Core(pos, mat, kind, size, table, scale, radius)


def corner(c: Core, index: jax.Array) -> jax.Array:
  """Corners (P, ..., 3, W) at indices (P, ..., W)."""
  if c.table.ndim == 4:
    hit = index[..., None, :] == np.arange(c.table.shape[1])[:, None]
    table = c.table.reshape(c.table.shape[0], *[1] * (index.ndim - 2), *c.table.shape[1:])
    found = jnp.sum(jnp.where(hit[..., None, :], table, 0), axis=-3)
  else:
    n = c.table.shape[1]
    first = (n * np.arange(c.table.shape[0], dtype=np.int32)).reshape(-1, *[1] * (index.ndim - 1))
    flat = jnp.asarray(c.table.reshape(-1, 3), c.pos.dtype)
    found = jnp.moveaxis(flat.at[first + index].get(mode="promise_in_bounds"), -1, -2)
  scale = c.scale.reshape(c.scale.shape[0], *[1] * (index.ndim - 2), *c.scale.shape[1:])
  return found * scale


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
  along = direction * c.scale
  table = jnp.asarray(c.table, direction.dtype)[(...,) if c.table.ndim == 4 else (..., None)]
  score = vector.dot(table, along[:, None])
  place = np.arange(score.shape[1], dtype=np.int32)[:, None]
  best = jnp.max(score, axis=1, keepdims=True)
  index = jnp.min(jnp.where(score >= best, place, score.shape[1] - 1), axis=1)
  point = corner(c, index)
  if not c.curved:
    return point, index
  index = jnp.where(_kinds(c, 2)[1] & (direction[:, 2] < 0), 1, index)
  return curved_point(c, direction, index, point), index


def extent(c: Core, direction: jax.Array) -> jax.Array:
  """How far (P, K, W) each core reaches in K directions (P, K, 3, W) of its own frame."""
  along = direction * c.scale[:, None]
  table = jnp.asarray(c.table, direction.dtype)[(...,) if c.table.ndim == 4 else (..., None)]
  far = jnp.max(vector.dot(table[:, None], along[:, :, None]), axis=2)
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
