"""Convex hulls of meshes as constant tables, shared by all geoms and worlds.

Tests: tests/collision/test_convex.py, tests/collision/test_shortest_way.py.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import cubemap
from mjx_lite.collision.convex.cubemap import CubeMap
from mjx_lite.math import vector
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops.select import fetched


class Hulls(NamedTuple):
  """Vertices and polygons of the hulls of all colliding meshes, one after another.

  The corners of a polygon are in mjModel's cyclic order, counterclockwise seen from outside. An index of -1 is padding.
  """

  start: np.ndarray  # (nmesh,) first vertex of each mesh, -1 for a mesh that does not collide
  nvert: np.ndarray  # (nmesh,) number of vertices of each mesh, 0 for a mesh that does not collide
  vert: np.ndarray  # (nvert, 3) [m]
  vert_poly: np.ndarray  # (nvert, degree) polygons that share a vertex
  vert_quad: np.ndarray  # (nvert, degree, 4) at most four corners of each of these polygons, the vertex first
  vert_prev: np.ndarray  # (nvert, degree) vertex before this vertex in each of these polygons
  poly_normal: np.ndarray  # (npoly, 3) outward
  poly_vert: np.ndarray  # (npoly, corners) vertices
  cells: tuple[CubeMap, ...]  # of each colliding mesh, in order; empty if no mesh has many vertices


def plan(s: dict[str, Any], meshes: np.ndarray, flat: np.ndarray | None = None) -> Hulls:
  """Build the tables of the colliding meshes.

  Args:
    s: static fields of the model.
    meshes: ids of the meshes that collide.
    flat: ids of the meshes that collide with planes; only these get `vert_quad`. None: all colliding meshes.
  """
  start, nvert = np.full(s["nmesh"], -1), np.zeros(s["nmesh"], int)
  verts: list[np.ndarray] = []
  polys: list[list[int]] = []
  normals: list[np.ndarray] = []
  total = 0
  for mesh in sorted(set(int(x) for x in meshes)):
    used = _hull_vertices(s, mesh)
    adr = int(s["mesh_vertadr"][mesh])
    start[mesh], nvert[mesh] = total, len(used)
    row = {int(v): total + k for k, v in enumerate(used)}
    verts.append(np.asarray(s["mesh_vert"], float).reshape(-1, 3)[adr + used])
    for k in range(int(s["mesh_polynum"][mesh])):
      poly = int(s["mesh_polyadr"][mesh]) + k
      first = int(s["mesh_polyvertadr"][poly])
      polys.append([row[int(v)] for v in s["mesh_polyvert"][first : first + int(s["mesh_polyvertnum"][poly])]])
      normals.append(np.asarray(s["mesh_polynormal"], float).reshape(-1, 3)[poly])
    total += len(used)
  vert = np.concatenate(verts) if verts else np.zeros((0, 3))
  wide = np.repeat(start >= 0 if flat is None else np.isin(np.arange(len(start)), flat), nvert)
  vert_poly, vert_quad, vert_prev = _vertex_tables(vert, polys, wide)
  cells = tuple(cubemap.make(x) for x in verts) if nvert.max(initial=0) > cubemap.MANY else ()
  return Hulls(
    start=start,
    nvert=nvert,
    vert=vert,
    vert_poly=vert_poly,
    vert_quad=vert_quad,
    vert_prev=vert_prev,
    poly_normal=np.array(normals or [np.zeros(3)]),
    poly_vert=_pad(polys or [[-1]]),
    cells=cells,
  )


def _hull_vertices(s: dict[str, Any], mesh: int) -> np.ndarray:
  """Return the vertices of the hull, in the mesh's numbering; all vertices of the mesh if the compiler made no hull."""
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


def _vertex_tables(vert: np.ndarray, polys: list[list[int]], wide: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Return for each vertex its polygons, their `vert_quad` (only where `wide`), and the previous vertex in each polygon."""
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
  """Choose at most four corners of a convex polygon: corner a, and three corners that widen the quadrilateral.

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
    """Move a corner on while the area grows; after every step the corners before it may move too."""
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


class GeomHulls(NamedTuple):
  """Hulls of P geoms."""

  tables: Hulls
  first: np.ndarray  # (P,) first vertex of each hull in the tables
  nvert: np.ndarray  # (P,) number of vertices of each hull

  def farthest(self, direction: jax.Array) -> jax.Array:
    """Return the vertex (row of the tables, (P, W)) farthest in each direction (P, 3, W); on a tie the first such vertex."""
    if self.nvert.max(initial=1) > cubemap.MANY:
      start, which = np.unique(self.first, return_inverse=True)
      found = cubemap.farthest(cubemap.join([cells_of(self.tables, k) for k in start]), which.reshape(-1, 1), direction)
      return jnp.asarray(self.first)[:, None] + found
    k = np.arange(self.nvert.max(initial=1))
    rows = self.first[:, None] + np.where(k < self.nvert[:, None], k, 0)
    _, index = first_largest(vector.dot(jnp.asarray(self.tables.vert, direction.dtype)[rows][..., None], direction[:, None]))
    return jnp.asarray(self.first)[:, None] + jnp.where(index < self.nvert[:, None], index, 0)


def cells_of(tables: Hulls, first: int) -> CubeMap:
  """Return the cube map of the hull that starts at row `first` of the tables."""
  return tables.cells[int(np.searchsorted(np.sort(tables.start[tables.start >= 0]), first))]


def take(table: np.ndarray | jax.Array, index: np.ndarray | jax.Array, dtype: Any = None) -> jax.Array:
  """Gather rows of a constant table (n, rest) at an index (P, ..., W): (P, ..., rest, W)."""
  return fetched(jnp.asarray(table, dtype), jnp.asarray(index), mode="clip")
