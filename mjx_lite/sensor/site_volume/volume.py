"""Volumes of sites: whether a point is inside a site, and whether a ray hits a site.

Points and directions are in the site's frame, (..., 3, W). Sizes are as in `site_size`; for meshes they are the normals and
offsets of the faces of the hull, (..., n, 4, 1).

Gradient: none, the results are boolean.

Tests: tests/sensor/test_sensors.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector
from mjx_lite.model.enums import GeomType
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import rows
from mjx_lite.sensor.site_volume import signed_distance


def _components(x: jax.Array) -> tuple[jax.Array, ...]:
  return tuple(x[..., k, :] for k in range(3))


def _in_sphere(p, s):
  return vector.dot(p, p) < s[..., 0, :] ** 2


def _in_capsule(p, s):
  x, y, z = _components(p)
  beyond = z - jnp.clip(z, -s[..., 1, :], s[..., 1, :])
  return x * x + y * y + beyond * beyond < s[..., 0, :] ** 2


def _in_ellipsoid(p, s):
  return vector.dot(p / s, p / s) < 1


def _in_cylinder(p, s):
  x, y, z = _components(p)
  return (jnp.abs(z) < s[..., 1, :]) & (x * x + y * y < s[..., 0, :] ** 2)


def _in_box(p, s):
  x, y, z = _components(jnp.abs(p) < s)
  return x & y & z


def _in_mesh(p, faces):
  along = jnp.concatenate([p, -jnp.ones_like(p[..., :1, :])], axis=-2)
  return jnp.all(vector.mat_vec(faces, along) < 0, axis=-2)


def _quadratic(a, b, c):
  """Return whether `a t^2 + 2 b t + c` is at most zero for some t >= 0, for a > 0."""
  return (b * b >= a * c) & ((b <= 0) | (c <= 0))


def _hits_sphere(p, v, s):
  return _quadratic(vector.dot(v, v), vector.dot(v, p), vector.dot(p, p) - s[..., 0, :] ** 2)


def _hits_ellipsoid(p, v, s):
  p, v = p / s, v / s
  return _quadratic(vector.dot(v, v), vector.dot(v, p), vector.dot(p, p) - 1)


def _slab(p, v, half):
  """Return the interval of t in which `|p + t v| <= half`; (inf, -inf) if empty."""
  moves = jnp.abs(v) > safe.MINVAL
  end0, end1 = (safe.divide(sign * half - p, jnp.where(moves, v, 0)) for sign in (-1, 1))
  within = jnp.abs(p) <= half
  low = jnp.where(moves, jnp.minimum(end0, end1), jnp.where(within, -jnp.inf, jnp.inf))
  return low, jnp.where(moves, jnp.maximum(end0, end1), jnp.where(within, jnp.inf, -jnp.inf))


def _disc(p, v, radius):
  """Return the interval of t in which `|p_xy + t v_xy| <= radius`; (inf, -inf) if empty."""
  (x, y, _), (u, w, _) = _components(p), _components(v)
  a, b, c = u * u + w * w, u * x + w * y, x * x + y * y - radius * radius
  moves, root = a >= safe.MINVAL, safe.sqrt(b * b - a * c)
  meets = jnp.where(moves, b * b >= a * c, c <= 0)
  end0, end1 = (safe.divide(-b + sign * root, jnp.where(moves, a, 0)) for sign in (-1, 1))
  low = jnp.where(moves, end0, -jnp.inf)
  return jnp.where(meets, low, jnp.inf), jnp.where(meets, jnp.where(moves, end1, jnp.inf), -jnp.inf)


def _overlap(*intervals):
  """Return whether all intervals have a common t >= 0."""
  low, high = intervals[0]
  for a, b in intervals[1:]:
    low, high = jnp.maximum(low, a), jnp.minimum(high, b)
  return (low <= high) & (high >= 0)


def _hits_cylinder(p, v, s):
  return _overlap(_disc(p, v, s[..., 0, :]), _slab(p[..., 2, :], v[..., 2, :], s[..., 1, :]))


def _hits_capsule(p, v, s):
  shift = jnp.concatenate([jnp.zeros_like(s[..., :2, :]), s[..., 1:2, :]], axis=-2)
  return _hits_cylinder(p, v, s) | _hits_sphere(p - shift, v, s) | _hits_sphere(p + shift, v, s)


def _hits_box(p, v, s):
  return _overlap(*(_slab(p[..., k, :], v[..., k, :], s[..., k, :]) for k in range(3)))


# shape of a site -> inside test of a point, hit test of a ray (None: MuJoCo has no ray test of this shape)
SHAPES: dict[int, tuple[Any, Any]] = {
  GeomType.SPHERE: (_in_sphere, _hits_sphere),
  GeomType.CAPSULE: (_in_capsule, _hits_capsule),
  GeomType.ELLIPSOID: (_in_ellipsoid, _hits_ellipsoid),
  GeomType.CYLINDER: (_in_cylinder, _hits_cylinder),
  GeomType.BOX: (_in_box, _hits_box),
  GeomType.MESH: (_in_mesh, None),
}


class Volume(NamedTuple):
  """Poses and sizes of sites of one shape."""

  pos: jax.Array  # (..., 3, W)
  mat: jax.Array  # (..., 3, 3, W)
  size: jax.Array  # (..., 3, W) [m], or faces of meshes (..., n, 4, 1)


def gather(m: Model, d: Data, site: np.ndarray) -> Volume:
  """Gather the volumes of sites of one shape."""
  mesh = m.site_type[site.flat[0]] == GeomType.MESH
  size = jnp.asarray(_faces(m, site), d.qpos.dtype)[..., None] if mesh else rows(m.site_size, site)
  return Volume(rows(d.site_xpos, site), rows(d.site_xmat, site), size)


def _faces(m: Model, site: np.ndarray) -> np.ndarray:
  """Return the faces (..., n, 4) of the hulls of meshes, in the frame of the mesh file, which is the frame of the site."""
  tables = []
  for mesh in m.site_dataid[site.flat]:
    first, vertex = int(m.mesh_polyadr[mesh]), int(m.mesh_vertadr[mesh])
    normal = np.asarray(m.mesh_polynormal, float).reshape(-1, 3)[first : first + int(m.mesh_polynum[mesh])]
    corner = np.asarray(m.mesh_vert, float).reshape(-1, 3)[vertex : vertex + int(m.mesh_vertnum[mesh])]
    outward = signed_distance.to_file(m.layout.static, mesh, normal)
    offset = (normal @ corner.T).max(axis=1) + outward @ m.mesh_pos[mesh]
    tables.append(np.concatenate([outward, offset[:, None]], axis=1))
  out = np.zeros((len(tables), max(map(len, tables)), 4))
  out[..., 3] = 1  # padding: a face that has every point inside
  for row, table in zip(out, tables, strict=True):
    row[: len(table)] = table
  return out.reshape(*site.shape, -1, 4)


def contains(kind: int, v: Volume, point: jax.Array) -> jax.Array:
  """Return whether world points (..., 3, W) are inside sites of one shape. Source: `mju_insideGeom`."""
  return SHAPES[kind][0](vector.mat_t_vec(v.mat, point - v.pos), v.size)


def hit(kind: int, v: Volume, point: jax.Array, direction: jax.Array) -> jax.Array:
  """Return whether rays from world points (..., 3, W) hit sites of one shape. Source: `mju_rayGeom`."""
  return SHAPES[kind][1](vector.mat_t_vec(v.mat, point - v.pos), vector.mat_t_vec(v.mat, direction), v.size)
