"""Constant tables of the faces of boxes, cylinders and hulls, for the contacts of faces and edges (`manifold`).

Tests: tests/collision/test_convex.py.
"""

from typing import Any, NamedTuple

import numpy as np

from mjx_lite.collision.convex.hulls import GeomHulls


class Faces(NamedTuple):
  """Polygons of all shapes, concatenated; -1 pads. At run time, corners are scaled by the size of the geom."""

  corner: np.ndarray  # (ncorner, 3)
  at: np.ndarray  # (nindex, degree) faces at each support index
  side: np.ndarray  # (nindex, edges) corners at the other ends of the edges at each support index
  here: np.ndarray  # (nindex,) corner at each support index
  normal: np.ndarray  # (nface, 3)
  polygon: np.ndarray  # (nface, corners) corners, clockwise seen from outside
  ncorner: np.ndarray  # (nface,) number of corners


class GeomFaces(NamedTuple):
  """Faces of P geoms: the tables, and the first support index (P,) or (P, W) of each geom, -1 for a geom without faces."""

  tables: Faces
  first: Any


class _Shape(NamedTuple):
  corner: np.ndarray
  at: list[list[int]]
  side: list[list[int]]
  normal: np.ndarray
  polygon: list[list[int]]


def _box() -> _Shape:
  corner = np.array([[1 if i >> k & 1 else -1 for k in range(3)] for i in range(8)], float)
  index = {tuple(x): i for i, x in enumerate(corner.astype(int).tolist())}
  polygons = [
    [(1, 1, 1), (1, 1, -1), (1, -1, -1), (1, -1, 1)], [(-1, 1, -1), (-1, 1, 1), (-1, -1, 1), (-1, -1, -1)],
    [(-1, 1, -1), (1, 1, -1), (1, 1, 1), (-1, 1, 1)], [(-1, -1, 1), (1, -1, 1), (1, -1, -1), (-1, -1, -1)],
    [(-1, 1, 1), (1, 1, 1), (1, -1, 1), (-1, -1, 1)], [(1, 1, -1), (-1, 1, -1), (-1, -1, -1), (1, -1, -1)],
  ]  # fmt: skip
  at = [[2 * k + (0 if i >> k & 1 else 1) for k in range(3)] for i in range(8)]
  normal = np.array([np.eye(3)[k] * sign for k in range(3) for sign in (1, -1)])
  side = [[i ^ 1 << k for k in range(3)] for i in range(8)]
  return _Shape(corner, at, side, normal, [[index[v] for v in p] for p in polygons])


def _cylinder() -> _Shape:
  angle = np.arange(16) * np.pi / 8
  caps = [np.stack([np.cos(angle), -sign * np.sin(angle), np.full(16, sign)], axis=1) for sign in (1, -1)]
  return _Shape(
    np.concatenate(caps), [[0], [1]], [[], []], np.array([[0, 0, 1.0], [0, 0, -1.0]]), [list(range(16)), list(range(16, 32))]
  )


def plan(types: list[str], hull: GeomHulls | None) -> GeomFaces:
  """Plan the faces of geoms of given types; `hull` has the hulls of the meshes among the geoms, in order."""
  shapes: list[_Shape] = []
  begin: dict[object, int] = {}
  total = 0
  first, mesh = [], 0
  for t in types:
    key: object = t
    if t == "mesh":
      assert hull is not None
      key, mesh = int(hull.first[mesh]), mesh + 1
    elif t not in ("box", "cylinder"):
      first.append(-1)
      continue
    if key not in begin:
      shape = _box() if t == "box" else _cylinder() if t == "cylinder" else _of_hull(hull, int(key))  # type: ignore[arg-type]
      shapes.append(shape)
      begin[key], total = total, total + len(shape.at)
    first.append(begin[key])
  return GeomFaces(_join(shapes), np.array(first, int))


def _of_hull(hull: GeomHulls, start: int) -> _Shape:
  h = hull.tables
  n = int(hull.nvert[list(hull.first).index(start)])
  at_all = h.vert_poly[start : start + n]
  polys = sorted({int(x) for x in at_all.ravel() if x >= 0})
  number = {p: i for i, p in enumerate(polys)}
  at = [[number[int(x)] for x in row if x >= 0] for row in at_all]
  side = [[int(x) - start for x in row if x >= 0] for row in h.vert_prev[start : start + n]]
  polygon = [[int(v) - start for v in h.poly_vert[p][::-1] if v >= 0] for p in polys]
  return _Shape(h.vert[start : start + n], at, side, h.poly_normal[polys].reshape(-1, 3), polygon)


def _join(shapes: list[_Shape]) -> Faces:
  corner = np.concatenate([s.corner for s in shapes]) if shapes else np.zeros((1, 3))
  at, side, here, polygon = [], [], [], []
  ncorner = nface = 0
  for s in shapes:
    at += [[x + nface for x in row] for row in s.at]
    side += [[x + ncorner for x in row] for row in s.side]
    here += [ncorner + k if len(s.corner) == len(s.at) else ncorner for k in range(len(s.at))]
    polygon += [[x + ncorner for x in row] for row in s.polygon]
    ncorner, nface = ncorner + len(s.corner), nface + len(s.polygon)
  normal = np.concatenate([s.normal for s in shapes]) if shapes else np.zeros((1, 3))
  return Faces(
    corner=corner,
    at=_pad(at),
    side=_pad(side),
    here=np.array(here or [0]),
    normal=normal,
    polygon=_pad(polygon),
    ncorner=np.array([len(x) for x in polygon] or [0]),
  )


def _pad(lists: list[list[int]]) -> np.ndarray:
  out = np.full((max(len(lists), 1), max([len(x) for x in lists] + [1])), -1)
  for row, x in zip(out, lists, strict=False):
    row[: len(x)] = x
  return out
