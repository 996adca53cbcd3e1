"""Signed distance fields: of simple shapes in closed form, of meshes by interpolation in octrees.

A field takes points (P, n, 3, W) in the frames of P geoms and returns distances (P, n, W) [m], negative inside, and gradients
(P, n, 3, W). Both are MuJoCo's values, which are only estimates of distance and gradient inside a box and off the surface of an
ellipsoid.

Tests: tests/collision/test_sdf.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex.hulls import take
from mjx_lite.math import safe, vector
from mjx_lite.model.enums import GeomType

_DENSE = 6  # maximum number of octree levels that a dense grid replaces
_INSET = 1e-6  # a point outside is projected so far [m] into the octree's box


class Octrees(NamedTuple):
  """Octrees of all meshes that are used as distance fields.

  A dense grid maps a point to its node. So the tree is only descended where the tree is deeper than the grid.
  """

  row: np.ndarray  # (nmesh,) row of each mesh in `root` and `grid`, -1 for a mesh without octree
  root: np.ndarray  # (k, 6) centre and half sizes of each octree's box [m]
  grid: np.ndarray | jax.Array  # (k, g^3) node of each cell
  side: int  # g, cells along a side of the grid
  deeper: int  # number of tree levels below the grid
  child: np.ndarray | jax.Array  # (n, 8) children of each node, -1 for none; no rows if no tree is deeper than the grid
  node: np.ndarray | jax.Array  # (n, 14) lower corner [m], size [m], distance at the 8 corners [m]


def octrees(s: dict[str, Any], meshes: np.ndarray) -> Octrees:
  """Make the tables of some meshes from the static fields of the model."""
  ids = sorted({int(x) for x in meshes})
  row = np.full(s["nmesh"], -1)
  row[ids] = np.arange(len(ids))
  start, count = (np.asarray(s[k])[ids] for k in ("mesh_octadr", "mesh_octnum"))
  rows = np.concatenate([np.arange(a, a + n) for a, n in zip(start, count, strict=True)] or [np.zeros(0)]).astype(int)
  begin = np.concatenate([[0], np.cumsum(count)]).astype(int)
  child = np.asarray(s["oct_child"]).reshape(-1, 8)[rows]
  child = np.where(child >= 0, child + np.repeat(begin[:-1], count)[:, None], -1)
  box = np.asarray(s["oct_aabb"], float).reshape(-1, 6)[rows]
  coeff = np.asarray(s["oct_coeff"], float).reshape(-1, 8)[rows]
  depth = int(np.asarray(s["oct_depth"]).ravel()[rows].max(initial=0))
  levels = min(depth, _DENSE)
  grid = np.array([_grid(child, b, levels).ravel() for b in begin[:-1]], int).reshape(len(ids), 8**levels)
  node = np.concatenate([box[:, :3] - box[:, 3:], 2 * box[:, 3:], coeff], axis=1)
  root = box[begin[:-1]] if ids else box
  if depth == levels:  # only nodes in the grid are needed
    used, inverse = np.unique(grid, return_inverse=True)
    grid, child, node = inverse.reshape(grid.shape), child[:0], node[used]
  return Octrees(
    row=row,
    root=root,
    grid=grid.astype(np.int32),
    side=2**levels,
    deeper=depth - levels,
    child=child.astype(np.int32),
    node=node,
  )


def ready(t: Octrees, dtype: Any) -> Octrees:
  """Convert the tables to JAX arrays once, so that the trace contains each constant once, however often it is used."""
  return t._replace(grid=jnp.asarray(t.grid), child=jnp.asarray(t.child), node=jnp.asarray(t.node, dtype))


def _grid(child: np.ndarray, root: int, levels: int) -> np.ndarray:
  """Return the nodes (g, g, g) of a tree for the cells of a dense grid with g = 2**levels."""
  nodes = np.full((1, 1, 1), root)
  for _ in range(levels):
    nodes = nodes.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    x, y, z = np.indices(nodes.shape) % 2
    below = child[nodes, x + 2 * y + 4 * z]
    nodes = np.where(below >= 0, below, nodes)
  return nodes


def interpolate(t: Octrees, which: np.ndarray | jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Interpolate distances (P, n, W) and gradients (P, n, 3, W) in octrees; outside of its box, add the distance to the box.

  Args:
    t: tables.
    which: row of `root` for each geom, (P,), or (P, W) where the geoms are chosen at run time.
    p: points (P, n, 3, W) [m].

  Source: `oct_distance`, `oct_gradient`; outside the box C computes the gradient by finite differences with step 1e-8.
  Gradient: of the interpolation in the cell, with the cell constant, for the distance and for its gradient.
  """
  which = which[:, None] if which.ndim == 1 else which
  root = take(t.root, which, p.dtype)[:, None]
  centre, half = root[..., :3, :], root[..., 3:, :]
  r = p - centre
  q = jnp.abs(r) - half
  sign = jnp.where(r > 0, 1, -1).astype(p.dtype)
  outside = jnp.any(q > 0, axis=-2)[..., None, :]
  clamped = outside & (q >= 0)
  near = jnp.where(clamped, centre + sign * (half - _INSET), p)
  beyond = jnp.where(clamped, q, 0)
  far = safe.norm(beyond)

  cell = jnp.clip((jax.lax.stop_gradient(near) - (centre - half)) / (2 * half) * t.side, 0, t.side)
  corner = jnp.minimum(cell.astype(jnp.int32), t.side - 1)
  x, y, z = (corner[..., k, :] for k in range(3))
  row = jnp.asarray(which.astype(np.int32))[:, None] * t.side**3 + (x * t.side + y) * t.side + z
  index = jnp.asarray(t.grid).ravel().at[row].get(mode="promise_in_bounds")
  fraction = cell - corner
  for _ in range(t.deeper):
    fraction = 2 * fraction
    upper = fraction >= 1
    fraction -= upper
    below = upper[..., 0, :] + 2 * upper[..., 1, :] + 4 * upper[..., 2, :]
    below = jnp.asarray(t.child).ravel().at[8 * index + below].get(mode="promise_in_bounds")
    index = jnp.where(below >= 0, below, index)

  node = take(t.node, index, p.dtype)
  size = node[..., 3:6, :]
  x, y, z = vector.parts((near - node[..., :3, :]) / size)
  c = vector.parts(node)[6:14]
  slope_x = [c[k + 1] - c[k] for k in (0, 2, 4, 6)]
  c = [c[2 * k] + x * slope_x[k] for k in range(4)]
  slope_y = [c[k + 1] - c[k] for k in (0, 2)]
  c = [c[2 * k] + y * slope_y[k] for k in range(2)]
  slope_x = [slope_x[k] + y * (slope_x[k + 1] - slope_x[k]) for k in (0, 2)]
  slope_z = c[1] - c[0]
  slopes = [slope_x[0] + z * (slope_x[1] - slope_x[0]), slope_y[0] + z * (slope_y[1] - slope_y[0]), slope_z]
  inner = vector.join(slopes) / size
  outer = sign * safe.divide(beyond, far[..., None, :])
  return (c[0] + z * slope_z)[..., 0, :] + far, jnp.where(clamped, outer, inner)


def _xyz(x):
  return tuple(x[..., k, :] for k in range(3))


def _plane(p, size):
  return p[..., 2, :], jnp.broadcast_to(jnp.asarray([[0], [0], [1]], p.dtype), p.shape)


def _radial(p, radius):
  unit, length = safe.normalize_with_norm(p)
  return length - radius, jnp.where(length[..., None, :] > 0, unit, 0)


def _sphere(p, size):
  return _radial(p, size[..., 0, :])


def _capsule(p, size):
  x, y, z = _xyz(p)
  return _radial(jnp.stack([x, y, z - jnp.clip(z, -size[..., 1, :], size[..., 1, :])], axis=-2), size[..., 0, :])


def _ellipsoid(p, size):
  a = p / size
  b = a / size
  k0, k1 = safe.norm(a), safe.norm(b)
  slope0, slope1 = safe.divide(b, k0[..., None, :]), safe.divide(b / (size * size), k1[..., None, :])
  first, second = safe.divide(2 * k0 - 1, k1), safe.divide(k0 * (k0 - 1), k1 * k1)
  slope = slope0 * first[..., None, :] - slope1 * second[..., None, :]
  return k0 * safe.divide(k0 - 1, k1), safe.normalize(slope)


def _cylinder(p, size):
  x, y, z = _xyz(p)
  around = jnp.stack([x, y], axis=-2)
  c = safe.norm(around)
  a, b = c - size[..., 0, :], jnp.abs(z) - size[..., 1, :]
  side, cap = safe.divide(around, c[..., None, :]), jnp.sign(z)
  out_a, out_b = jnp.maximum(a, 0), jnp.maximum(b, 0)
  out = safe.sqrt(out_a * out_a + out_b * out_b)
  inside = jnp.maximum(a, b) < 0
  weight_a = jnp.where(inside, a > b, safe.divide(out_a, out))
  weight_b = jnp.where(inside, a <= b, safe.divide(out_b, out))
  slope = jnp.concatenate([side * weight_a[..., None, :], (cap * weight_b)[..., None, :]], axis=-2)
  return jnp.minimum(jnp.maximum(a, b), 0) + out, slope


def _box(p, size):
  """Compute distance and gradient of a box.

  Inside, the distance is measured to the surface along a unit vector field. The field is a diagonal at the centre and
  approaches the face normals at the surface.

  Gradient: the derivative of the field by the depth below a face would be unbounded at the face. So it is zero within a
  thousandth of the size.
  """
  a = jnp.abs(p) - size
  sign = jnp.where(p < 0, -1, 1).astype(p.dtype)
  inside = jnp.all(a < 0, axis=-2)
  deep = jnp.where(-a < 1e-3 * size, jax.lax.stop_gradient(-a), -a)
  field = safe.normalize(safe.divide(size, jnp.where(inside[..., None, :], deep, 1)))
  out = jnp.maximum(a, 0)
  far = safe.norm(out)
  slope = jnp.where(inside[..., None, :], field, safe.divide(out, far[..., None, :]))
  return jnp.where(inside, safe.largest(a / field, axis=a.ndim - 2), far), sign * slope


# geom type -> field: a function of points (P, n, 3, W) and `geom_size` (P or 1, 1, 3, W)
FIELDS: dict[int, Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]] = {
  GeomType.PLANE: _plane,
  GeomType.SPHERE: _sphere,
  GeomType.CAPSULE: _capsule,
  GeomType.ELLIPSOID: _ellipsoid,
  GeomType.CYLINDER: _cylinder,
  GeomType.BOX: _box,
}
