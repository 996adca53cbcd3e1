"""Intersections of rays with geoms.

Rays are (n, 3, W); the axis of the geoms comes first. Every function takes points (G, n, 3, W) and vectors (G, n, 3, W) in the
frames of G geoms, and returns lengths (G, n, W) in units of the vector, infinite where the ray misses.

Tests: tests/collision/test_queries.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.driver import type_name
from mjx_lite.collision.sdf import field
from mjx_lite.collision.shapes import first_min
from mjx_lite.math import safe, vector
from mjx_lite.model.types import Model
from mjx_lite.ops.select import fetched, join

_CHUNK = 64  # triangles per iteration
_STEPS, _NEAR = 40, 1e-7  # sphere tracing of a distance field: most steps, and distance [m] that counts as a hit


def _first(*ok_and_length: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Return the smallest nonnegative length whose condition holds; infinity if there is none."""
  best = None
  for ok, x in ok_and_length:
    x = jnp.where(ok & (x >= 0), x, jnp.inf)
    best = x if best is None else jnp.minimum(best, x)
  assert best is not None
  return best


def _roots(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Return whether a x^2 + 2 b x + c = 0 has real roots, and the roots in ascending order."""
  det = b * b - a * c
  root = safe.sqrt(det)
  return (det >= 0) & (a >= safe.MINVAL), safe.divide(-b - root, a), safe.divide(-b + root, a)


def _plane(p, v, size):
  x = safe.divide(-p[..., 2, :], v[..., 2, :])
  ok = v[..., 2, :] <= -safe.MINVAL
  for k in range(2):
    ok &= (size[..., k, :] <= 0) | (jnp.abs(p[..., k, :] + x * v[..., k, :]) <= size[..., k, :])
  return _first((ok, x))


def _sphere(p, v, size):
  ok, x, y = _roots(vector.dot(v, v), vector.dot(v, p), vector.dot(p, p) - size[..., 0, :] ** 2)
  return _first((ok, x), (ok, y))


def _ellipsoid(p, v, size):
  p, v = p / size, v / size
  ok, x, y = _roots(vector.dot(v, v), vector.dot(v, p), vector.dot(p, p) - 1)
  return _first((ok, x), (ok, y))


def _side(p, v, size):
  """Return the candidate on the side of a cylinder; as in C, only the first root ahead of the ray's start."""
  p2, v2 = p[..., :2, :], v[..., :2, :]
  ok, x, y = _roots(vector.dot(v2, v2), vector.dot(v2, p2), vector.dot(p2, p2) - size[..., 0, :] ** 2)
  x = jnp.where(x >= 0, x, y)
  return ok & (jnp.abs(p[..., 2, :] + x * v[..., 2, :]) <= size[..., 1, :]), x


def _capsule(p, v, size):
  found = [_side(p, v, size)]
  for sign in (1, -1):
    half = sign * size[..., 1, :]
    q = jnp.stack(jnp.broadcast_arrays(p[..., 0, :], p[..., 1, :], p[..., 2, :] - half), axis=-2)
    ok, *roots = _roots(vector.dot(v, v), vector.dot(v, q), vector.dot(q, q) - size[..., 0, :] ** 2)
    found += [(ok & (sign * (q[..., 2, :] + x * v[..., 2, :]) >= 0), x) for x in roots]
  return _first(*found)


def _cylinder(p, v, size):
  found = [_side(p, v, size)]
  for sign in (1, -1):
    x = safe.divide(sign * size[..., 1, :] - p[..., 2, :], v[..., 2, :])
    q = p[..., :2, :] + x[..., None, :] * v[..., :2, :]
    found.append(((jnp.abs(v[..., 2, :]) > safe.MINVAL) & (vector.dot(q, q) <= size[..., 0, :] ** 2), x))
  return _first(*found)


def _box(p, v, size):
  found = []
  for k in range(3):
    for sign in (1, -1):
      x = safe.divide(sign * size[..., k, :] - p[..., k, :], v[..., k, :])
      ok = jnp.abs(v[..., k, :]) > safe.MINVAL
      for i in ((k + 1) % 3, (k + 2) % 3):
        ok &= jnp.abs(p[..., i, :] + x * v[..., i, :]) <= size[..., i, :]
      found.append((ok, x))
  return _first(*found)


RAYS: dict[str, Callable[[jax.Array, jax.Array, jax.Array], jax.Array]] = {
  "plane": _plane,
  "sphere": _sphere,
  "capsule": _capsule,
  "ellipsoid": _ellipsoid,
  "cylinder": _cylinder,
  "box": _box,
}


def _normal_capsule(q, size):
  z = q[..., 2, :]
  return safe.normalize(jnp.stack([q[..., 0, :], q[..., 1, :], z - jnp.clip(z, -size[..., 1, :], size[..., 1, :])], axis=-2))


def _normal_cylinder(q, size):
  x, y, z = (q[..., k, :] for k in range(3))
  side = safe.normalize(jnp.stack([x, y, 0 * z], axis=-2))
  cap = jnp.stack([0 * x, 0 * y, jnp.sign(z)], axis=-2)
  radius = safe.sqrt(x * x + y * y)
  on_cap = jnp.abs(jnp.abs(z) - size[..., 1, :]) < jnp.abs(radius - size[..., 0, :])
  return jnp.where(on_cap[..., None, :], cap, side)


def _normal_box(q, size):
  depth = jax.lax.stop_gradient(jnp.abs(jnp.abs(q) - size))
  return jnp.where(first_min(depth), jnp.sign(q), 0)


# outward normal at a point of the surface, both in the geom's frame
NORMALS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
  "plane": lambda q, size: q * 0 + np.array([0, 0, 1])[:, None],
  "sphere": lambda q, size: safe.normalize(q),
  "capsule": _normal_capsule,
  "ellipsoid": lambda q, size: safe.normalize(q / (size * size)),
  "cylinder": _normal_cylinder,
  "box": _normal_box,
}


def _fields(m: Model, geoms: np.ndarray, dtype: Any):
  """Return the ray function and the normal function of distance fields, as in `RAYS` and `NORMALS`."""
  trees = field.ready(field.octrees(m.layout.static, m.geom_dataid[geoms]), dtype)
  row = trees.row[m.geom_dataid[geoms]]

  def at(x):
    return field.interpolate(trees, row, x)

  def cast(p, v, size):
    """Step along the rays by the distance to the surface. Source: `mj_raySdf`. Gradient: that of the surface hit."""
    along, scale = safe.normalize_with_norm(v)
    fixed, ahead = jax.lax.stop_gradient((p, along))
    meets = jnp.isfinite(jax.lax.stop_gradient(_box(p, v, size)))

    def step(carry):
      n, length, dist, going = carry
      dist = jnp.where(going, jnp.abs(at(fixed + length[..., None, :] * ahead)[0]), dist)
      return n + 1, length + jnp.where(going, dist, 0), dist, going & (dist >= _NEAR)

    zero = jnp.zeros_like(scale)
    _, length, dist, _ = jax.lax.while_loop(lambda c: (c[0] < _STEPS) & jnp.any(c[3]), step, (0, zero, zero + 1, meets))
    dist_there, slope = at(p + length[..., None, :] * along)
    toward = jax.lax.stop_gradient(vector.dot(slope, along))
    length -= safe.divide(dist_there - jax.lax.stop_gradient(dist_there), toward)
    return jnp.where(meets & (dist < _NEAR), safe.divide(length, scale), jnp.inf)

  return cast, lambda q, size: safe.normalize(at(q)[1])


class Hit(NamedTuple):
  """Lengths (n, W) in units of the rays' vectors and geom ids (n, W); both are -1 where a ray hits nothing.

  The outward normals (n, 3, W) of the surfaces hit are present if requested; zero where a ray hits nothing.
  """

  dist: jax.Array
  geom: jax.Array
  normal: jax.Array | None = None


def visible(m: Model, geomgroup: tuple[int, ...], flg_static: bool, bodyexclude: tuple[int, ...]) -> np.ndarray:
  """Return the ids of the geoms that rays can hit. Source: `ray_eliminate`."""
  alpha = m.geom_rgba[:, 3] != 0
  if m.nmat:
    alpha = np.where(m.geom_matid < 0, alpha, m.mat_rgba[m.geom_matid, 3] != 0)
  keep = alpha & ~np.isin(m.geom_bodyid, bodyexclude)
  if not flg_static:
    keep &= m.body_weldid[m.geom_bodyid] != 0
  if geomgroup:
    keep &= np.asarray(geomgroup, bool)[np.clip(m.geom_group, 0, len(geomgroup) - 1)]
  return np.flatnonzero(keep)


def cast(
  m: Model,
  xpos: jax.Array,
  xmat: jax.Array,
  point: jax.Array,
  vec: jax.Array,
  geomgroup: tuple[int, ...],
  flg_static: bool,
  bodyexclude: tuple[int, ...],
) -> Hit:
  """Find the first visible geom that each ray hits; a mesh is its triangles, not its hull.

  Args:
    xpos, xmat: poses of all geoms.
    point: (n or 1, 3, W) [m]; vec: (n, 3, W).
    geomgroup: which of the six groups are visible; all if empty.
    flg_static: whether static geoms are visible: those of bodies welded to the world.
    bodyexclude: bodies whose geoms are invisible.

  Source: `mj_ray`, `mj_multiRay`.
  Gradient: that of the length to the surface hit.
  """
  return first_hit(m, xpos, xmat, point, vec, visible(m, geomgroup, flg_static, bodyexclude))


def first_hit(
  m: Model,
  xpos: jax.Array,
  xmat: jax.Array,
  point: jax.Array,
  vec: jax.Array,
  geoms: np.ndarray,
  blind: np.ndarray | None = None,
  normals: bool = False,
) -> Hit:
  """Find the first of the given geoms that each ray hits.

  Args:
    xpos, xmat: poses of all geoms.
    point: (n or 1, 3, W) [m]; vec: (n, 3, W).
    geoms: ids (g,).
    blind: (ngeom, n) mask of the geoms that a ray ignores; None: no ray ignores any geom.
    normals: whether to return the normals of the surfaces.

  Gradient: that of the surface hit.
  """
  kinds = np.array([type_name(m.geom_type[g]) for g in geoms])
  rays = _Rays(xpos=xpos, xmat=xmat, point=point, vec=vec, blind=blind, normals=normals)
  hits = [_hits_of_shapes(m, rays, kind, geoms[kinds == kind]) for kind in (*RAYS, "sdf") if np.any(kinds == kind)]
  if np.any(kinds == "hfield"):
    hits.append(_hits_of_boxes(m, rays, geoms[kinds == "hfield"]))
  surfaces = geoms[np.isin(kinds, ["mesh", "hfield"])]
  if len(surfaces):
    hits.append(_hits_of_triangles(m, rays, surfaces))
  if not hits:
    none = jnp.full((vec.shape[0], xpos.shape[-1]), -1, xpos.dtype)
    return Hit(none, none.astype(jnp.int32), jnp.zeros((vec.shape[0], 3, 1), xpos.dtype) if normals else None)
  return _nearest(hits)


class _Rays(NamedTuple):
  """The arguments of `first_hit`."""

  xpos: jax.Array
  xmat: jax.Array
  point: jax.Array
  vec: jax.Array
  blind: np.ndarray | None
  normals: bool

  def local(self, ids: np.ndarray, shift: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the rays' points and vectors (g, n, 3, W) in the frames of geoms, which may be shifted (g, 3) [m]."""
    mat = self.xmat[ids][:, None]
    p = vector.mat_t_vec(mat, (self.point[None] - self.xpos[ids][:, None]))
    v = vector.mat_t_vec(mat, jnp.broadcast_to(self.vec[None], (len(ids), *self.vec.shape)))
    return (p if shift is None else p - shift[:, None, :, None]), v


class _Hits(NamedTuple):
  """Where the rays hit g geoms, or the nearest of all triangles (g = 1).

  Attributes:
    length: (g, n, W) in units of the vectors, infinite where a ray misses.
    normal: (g, n, 3, W) outward, if requested.
    ids: (g,) geoms; for triangles, the geoms of all surfaces.
    surface: (n, W) index into `ids` of the surface of the nearest triangle; None for geoms.
  """

  length: jax.Array
  normal: jax.Array | None
  ids: np.ndarray
  surface: jax.Array | None = None


def _hits_of_shapes(m: Model, rays: _Rays, kind: str, ids: np.ndarray) -> _Hits:
  """Intersect the rays with geoms of one type."""
  cast, normal = _fields(m, ids, rays.vec.dtype) if kind == "sdf" else (RAYS[kind], NORMALS[kind])
  return _hits(rays, ids, cast, normal, *rays.local(ids), m.geom_size[ids][:, None])


def _hits_of_boxes(m: Model, rays: _Rays, ids: np.ndarray) -> _Hits:
  """Intersect the rays with the boxes below the surfaces of height fields."""
  size = m.hfield_size[m.geom_dataid[ids]]
  base = np.stack([size[:, 0], size[:, 1], 0.5 * size[:, 3]], axis=1)
  down = np.stack([0 * size[:, 3], 0 * size[:, 3], -0.5 * size[:, 3]], axis=1)
  down, base = (jnp.asarray(x, rays.xpos.dtype) for x in (down, base))
  return _hits(rays, ids, _box, _normal_box, *rays.local(ids, down), base[:, None, :, None])


def _hits(rays: _Rays, ids: np.ndarray, cast: Callable, normal: Callable, p: jax.Array, v: jax.Array, size: jax.Array) -> _Hits:
  """Intersect rays (g, n, 3, W) in the frames of geoms with the geoms, by their functions in `RAYS` and `NORMALS`."""
  length = cast(p, v, size)
  if rays.blind is not None and rays.blind[ids].any():
    length = jnp.where(rays.blind[ids][..., None], jnp.inf, length)
  if not rays.normals:
    return _Hits(length, None, ids)
  met = p + jnp.where(jnp.isfinite(length), length, 0)[..., None, :] * v
  return _Hits(length, vector.mat_vec(rays.xmat[ids][:, None], normal(met, size)), ids)


def _hits_of_triangles(m: Model, rays: _Rays, surfaces: np.ndarray) -> _Hits:
  """Find the nearest triangle of meshes and of the surfaces of height fields."""
  triangles = [_triangles(m, g) for g in surfaces]
  owner = np.repeat(np.arange(len(surfaces)), [len(t) for t in triangles])
  unseen = None if rays.blind is None else rays.blind[surfaces]
  length, surface, normal = _nearest_triangle(np.concatenate(triangles), owner, *rays.local(surfaces), unseen)
  length = length[None]
  if not rays.normals:
    return _Hits(length, None, surfaces, surface)
  is_met = np.arange(len(surfaces))[:, None, None] == surface
  rotation = jnp.sum(jnp.where(is_met[:, :, None, None], rays.xmat[surfaces][:, None], 0), axis=0)
  return _Hits(length, vector.mat_vec(rotation, normal)[None], surfaces, surface)


def _nearest(hits: list[_Hits]) -> Hit:
  """Choose the nearest hit of each ray. The hits of triangles come last."""
  every = join([x.length for x in hits])
  best = jnp.argmin(every, axis=0)
  dist = jnp.take_along_axis(every, best[None], axis=0)[0]  # not jnp.min: its derivative tests for equality
  ids = np.concatenate([x.ids if x.surface is None else np.zeros(1, int) for x in hits]).astype(np.int32)
  geom = jnp.asarray(ids)[best]
  last = hits[-1]
  if last.surface is not None:
    geom = jnp.where(best == len(ids) - 1, jnp.asarray(last.ids.astype(np.int32))[last.surface], geom)
  hit = jnp.isfinite(dist)
  normal, outward = None, [x.normal for x in hits if x.normal is not None]
  if outward:
    chosen = jnp.take_along_axis(join(outward), best[None, :, None], axis=0)[0]
    normal = jnp.where(hit[:, None], chosen, 0)
  return Hit(jnp.where(hit, dist, -1), jnp.where(hit, geom, -1), normal)


def _triangles(m: Model, geom: int) -> np.ndarray:
  """Return the triangles (n, 3, 3) of a mesh, or of the surface and the walls of a height field."""
  data = int(m.geom_dataid[geom])
  if type_name(m.geom_type[geom]) == "mesh":
    first, n = int(m.mesh_faceadr[data]), int(m.mesh_facenum[data])
    vert = np.asarray(m.mesh_vert, float).reshape(-1, 3)[int(m.mesh_vertadr[data]) :]
    return vert[np.asarray(m.mesh_face).reshape(-1, 3)[first : first + n]]
  nrow, ncol, adr = (int(getattr(m, k)[data]) for k in ("hfield_nrow", "hfield_ncol", "hfield_adr"))
  x, y, z, _ = m.hfield_size[data]
  height = np.asarray(m.hfield_data, float)[adr : adr + nrow * ncol].reshape(nrow, ncol) * z
  grid = np.stack([*np.meshgrid(np.linspace(-x, x, ncol), np.linspace(-y, y, nrow)), height], axis=-1)
  a, b, c, d = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]
  out = [np.stack([a, b, c], axis=2).reshape(-1, 3, 3), np.stack([a, c, d], axis=2).reshape(-1, 3, 3)]
  for edge in (grid[0, ::-1], grid[-1], grid[:, 0], grid[::-1, -1]):  # this order makes normals point outwards
    low = edge * [1, 1, 0]
    out += [np.stack([edge[:-1], edge[1:], low[:-1]], axis=1), np.stack([edge[1:], low[1:], low[:-1]], axis=1)]
  return np.concatenate(out)


def _meet(v0, v1, v2, p, v):
  """Return the length (..., W) at which a ray hits a triangle; infinite if it misses."""
  e1, e2, s = v1 - v0, v2 - v0, p - v0
  normal = vector.cross(e1, e2)
  det = -vector.dot(v, normal)
  across = vector.cross(v, s)
  a, b = safe.divide(-vector.dot(e2, across), det), safe.divide(vector.dot(e1, across), det)
  x = safe.divide(vector.dot(s, normal), det)
  ok = (jnp.abs(det) >= safe.MINVAL) & (a >= 0) & (b >= 0) & (a + b <= 1)
  return _first((ok, x))


def _nearest_triangle(triangles, owner, p, v, blind=None):
  """Return the length (n, W) to the nearest triangle, the index (n, W) of its surface, and its normal (n, 3, W)."""
  dtype = v.dtype
  n = len(triangles)
  pad = -n % _CHUNK
  index = np.concatenate([np.arange(n), np.zeros(pad, int)]).reshape(-1, _CHUNK)
  corner, surface_of = jnp.asarray(triangles, dtype), jnp.asarray(owner.astype(np.int32))
  fixed_p, fixed_v = jax.lax.stop_gradient(jnp.broadcast_arrays(p, v))

  def look(carry, k):
    best, triangle = carry
    t = corner[k][:, None, :, :, None]
    length = _meet(t[:, :, 0], t[:, :, 1], t[:, :, 2], fixed_p[surface_of[k]], fixed_v[surface_of[k]])
    if blind is not None and blind.any():
      length = jnp.where(jnp.asarray(blind)[surface_of[k]][..., None], jnp.inf, length)
    shortest = jnp.min(length, axis=0)
    triangle = jnp.where(shortest < best, jnp.asarray(k)[jnp.argmin(length, axis=0)], triangle)
    return (jnp.minimum(best, shortest), triangle), None

  start = jnp.full(fixed_v[0, :, 0].shape, jnp.inf, dtype), jnp.zeros(fixed_v[0, :, 0].shape, jnp.int32)
  (best, triangle), _ = jax.lax.scan(look, start, jnp.asarray(index.astype(np.int32)))
  # again with gradient: intersect the plane of the triangle found
  surface = surface_of[triangle]
  pick = (jnp.arange(p.shape[0])[:, None, None] == surface)[:, :, None]
  p, v = jnp.sum(jnp.where(pick, p, 0), axis=0), jnp.sum(jnp.where(pick, v, 0), axis=0)
  t = fetched(corner, triangle)
  v0, v1, v2 = (t[:, k] for k in range(3))
  normal = vector.cross(v1 - v0, v2 - v0)
  x = safe.divide(vector.dot(v0 - p, normal), vector.dot(v, normal))
  return jnp.where(jnp.isfinite(best), x, jnp.inf), surface, safe.normalize(normal)
