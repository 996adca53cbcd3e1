"""Convex hulls of meshes as constant tables, shared by all geoms and worlds."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import cubemap
from mjx_lite.collision.cubemap import CubeMap
from mjx_lite.core.select import fetched
from mjx_lite.math import vector
from mjx_lite.math.extreme import first_largest


class Hulls(NamedTuple):
  """Vertices and polygons of the hulls of all colliding meshes, one after another.

  Polygons are as mjModel has them: in cyclic order, counterclockwise seen from outside. An index of -1 pads.
  """

  start: np.ndarray  # (nmesh,) first vertex of each mesh, -1 for one that does not collide
  count: np.ndarray  # (nmesh,) its number of vertices
  vert: np.ndarray  # (nvert, 3) [m]
  vert_poly: np.ndarray  # (nvert, degree) polygons at a vertex
  vert_quad: np.ndarray  # (nvert, degree, 4) at most four vertices of that polygon, this one first
  vert_prev: np.ndarray  # (nvert, degree) vertex before this one in that polygon
  poly_normal: np.ndarray  # (npoly, 3)
  poly_vert: np.ndarray  # (npoly, corners)
  cells: tuple[CubeMap, ...]  # of each mesh that collides, in order, if one of them has many vertices


def plan(s: dict[str, Any], meshes: np.ndarray, flat: np.ndarray | None = None) -> Hulls:
  """Tables of some meshes.

  Args:
    s: static fields of the model.
    meshes: ids of the meshes that collide.
    flat: ids of those that collide with planes, for which alone `vert_quad` is; all if None.
  """
  start, count = np.full(s["nmesh"], -1), np.zeros(s["nmesh"], int)
  verts: list[np.ndarray] = []
  polys: list[list[int]] = []
  normals: list[np.ndarray] = []
  total = 0
  for mesh in sorted(set(int(x) for x in meshes)):
    used = _hull_vertices(s, mesh)
    adr = int(s["mesh_vertadr"][mesh])
    start[mesh], count[mesh] = total, len(used)
    place = {int(v): total + k for k, v in enumerate(used)}
    verts.append(np.asarray(s["mesh_vert"], float).reshape(-1, 3)[adr + used])
    for k in range(int(s["mesh_polynum"][mesh])):
      poly = int(s["mesh_polyadr"][mesh]) + k
      first = int(s["mesh_polyvertadr"][poly])
      polys.append([place[int(v)] for v in s["mesh_polyvert"][first : first + int(s["mesh_polyvertnum"][poly])]])
      normals.append(np.asarray(s["mesh_polynormal"], float).reshape(-1, 3)[poly])
    total += len(used)
  vert = np.concatenate(verts) if verts else np.zeros((0, 3))
  wide = np.repeat(start >= 0 if flat is None else np.isin(np.arange(len(start)), flat), count)
  tables = _vertex_tables(vert, polys, wide)
  cells = tuple(cubemap.of(x) for x in verts) if count.max(initial=0) > cubemap.MANY else ()
  return Hulls(start, count, vert, *tables, np.array(normals or [np.zeros(3)]), _pad(polys or [[-1]]), cells)


def _hull_vertices(s: dict[str, Any], mesh: int) -> np.ndarray:
  """Vertices of the hull, in the mesh's numbering; all vertices where the compiler made no hull."""
  adr = int(s["mesh_graphadr"][mesh])
  if adr < 0:
    return np.arange(int(s["mesh_vertnum"][mesh]))
  n = int(s["mesh_graph"][adr])
  return np.sort(np.asarray(s["mesh_graph"])[adr + 2 + n : adr + 2 + 2 * n].astype(int))


def _pad(lists: list[list[int]]) -> np.ndarray:
  out = np.full((len(lists), max((len(x) for x in lists), default=0)), -1)
  for row, x in zip(out, lists, strict=True):
    row[: len(x)] = x
  return out


def _vertex_tables(
  vert: np.ndarray, polys: list[list[int]], wide: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Polygons at every vertex, what plane-mesh takes of them at some, and the vertices before it."""
  at: list[list[tuple[int, int]]] = [[] for _ in vert]
  for k, poly in enumerate(polys):
    for i, v in enumerate(poly):
      at[v].append((k, i))
  degree = max([len(x) for x in at] + [1])
  of_poly, prev = np.full((len(vert), degree), -1), np.full((len(vert), degree), -1)
  quad = np.full((len(vert), degree if wide.any() else 0, 4), -1)
  for v, found in enumerate(at):
    for j, (k, i) in enumerate(found):
      poly = polys[k]
      of_poly[v, j], prev[v, j] = k, poly[i - 1]
      if wide[v]:
        four = _widest(vert[poly], i)
        quad[v, j, : len(four)] = [poly[q] for q in four]
  return of_poly, quad, prev


def _widest(points: np.ndarray, a: int) -> list[int]:
  """At most four corners of a convex polygon: corner a, and three more while the area of the quadrilateral grows.

  Source: 4.0's plane-mesh collider after MuJoCo Warp's `_hull4`.
  """
  n = len(points)
  chosen = [(a + k) % n for k in range(min(n, 4))]
  if n <= 4:
    return chosen

  at = points.tolist()

  def area(q):
    (a, b, c), (x, y, z) = ([s - t for s, t in zip(at[q[k]], at[q[k + 2]], strict=True)] for k in (0, 1))
    return math.hypot(b * z - c * y, c * x - a * z, a * y - b * x)

  def advance(corner):
    """Move a corner on while the area grows; after every step those before it may move."""
    while True:
      tried = list(chosen)
      tried[corner] = (chosen[corner] + 1) % n
      if area(tried) <= area(chosen):
        return
      chosen[corner] = tried[corner]
      if corner > 1:
        advance(corner - 1)

  advance(3)
  return chosen


class HullOf(NamedTuple):
  """The hulls of P geoms."""

  tables: Hulls
  first: np.ndarray  # (P,) first vertex
  count: np.ndarray  # (P,)

  def farthest(self, direction: jax.Array) -> jax.Array:
    """The vertices (P, W), as rows of the tables, that are the first of the farthest in directions (P, 3, W)."""
    if self.count.max(initial=1) > cubemap.MANY:
      start, which = np.unique(self.first, return_inverse=True)
      found = cubemap.farthest(cubemap.join([cells_of(self.tables, k) for k in start]), which.reshape(-1, 1), direction)
      return jnp.asarray(self.first)[:, None] + found
    k = np.arange(self.count.max(initial=1))
    rows = self.first[:, None] + np.where(k < self.count[:, None], k, 0)
    _, index = first_largest(vector.dot(jnp.asarray(self.tables.vert, direction.dtype)[rows][..., None], direction[:, None]))
    return jnp.asarray(self.first)[:, None] + jnp.where(index < self.count[:, None], index, 0)


def cells_of(tables: Hulls, first: int) -> CubeMap:
  """Those of the hull with a first vertex."""
  return tables.cells[int(np.searchsorted(np.sort(tables.start[tables.start >= 0]), first))]


def take(table: np.ndarray | jax.Array, index: np.ndarray | jax.Array, dtype: Any = None) -> jax.Array:
  """Rows of a constant table (n, ...) at an index (P, ..., W): (P, ..., rest, W)."""
  return fetched(jnp.asarray(table, dtype), jnp.asarray(index), mode="clip")
