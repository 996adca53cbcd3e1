"""The depth of two convex shapes by their support functions alone, with a proof, and poses in which shapes overlap.

The depth of A and B is the least of f(n) = max over A of n.x - min over B of n.x over all unit vectors n. The hull of
any points of Y = A - B is inside of Y: the least height of its facets above the origin is a lower bound of the depth,
and f of their normals are upper bounds. Points are added where the lower bound is below the best upper bound, until
both agree.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy.spatial import ConvexHull, QhullError


class Body(NamedTuple):
  """A posed convex shape: type, size (3,), rotation (3, 3), place (3,), corners (n, 3) of a mesh."""

  kind: str
  size: np.ndarray
  mat: np.ndarray
  pos: np.ndarray
  corners: np.ndarray | None = None


def vertices(b: Body) -> np.ndarray | None:
  """Corners in the world (n, 3) of a polytope, without its radius; None of another shape."""
  local = {
    "sphere": np.zeros((1, 3)), "capsule": b.size[1] * np.array([[0, 0, -1], [0, 0, 1.0]]), "mesh": b.corners,
    "box": b.size * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]),
  }.get(b.kind)  # fmt: skip
  return None if local is None else local @ b.mat.T + b.pos


def support(b: Body, n: np.ndarray) -> np.ndarray:
  """The farthest points (k, 3) of a body in directions (k, 3)."""
  corners = vertices(b)
  if corners is not None:
    parts = [corners[(x @ corners.T).argmax(axis=1)] for x in np.array_split(n, 1 + len(n) * len(corners) // 10**7)]
    radius = b.size[0] if b.kind in ("sphere", "capsule") else 0
    return np.concatenate(parts) + radius * n
  d = n @ b.mat
  if b.kind == "ellipsoid":
    scaled = d * b.size
    local = scaled / np.linalg.norm(scaled, axis=1, keepdims=True) * b.size
  else:
    radial = np.linalg.norm(d[:, :2], axis=1, keepdims=True)
    round_ = b.size[0] * d[:, :2] / np.where(radial > 0, radial, 1)
    local = np.concatenate([round_, b.size[1] * np.where(d[:, 2:] < 0, -1, 1)], axis=1)
  return local @ b.mat.T + b.pos


def difference(a: Body, b: Body, n: np.ndarray) -> np.ndarray:
  """The farthest points (k, 3) of A - B."""
  return support(a, n) - support(b, -n)


def depth_along(a: Body, b: Body, n: np.ndarray) -> np.ndarray:
  """Depth (k,) along directions (k, 3)."""
  n = n / np.linalg.norm(n, axis=1, keepdims=True)
  return np.sum(n * difference(a, b, n), axis=1)


def extent(a: Body, b: Body) -> float:
  """Size of A - B: the largest depth along a direction."""
  return float(depth_along(a, b, _sphere()).max())


@functools.cache
def _sphere(count: int = 400) -> np.ndarray:
  """Directions all over the sphere, the axes and the diagonals among them."""
  k = np.arange(count) + 0.5
  z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
  r = np.sqrt(1 - z * z)
  axes = np.array([x for x in np.ndindex(3, 3, 3) if x != (1, 1, 1)], float) - 1
  return np.concatenate([np.stack([r * np.cos(angle), r * np.sin(angle), z], axis=1), _unit(axes)])


class Depth(NamedTuple):
  """The depth is between `low` and `high`, which is that along the normal (3,)."""

  low: float
  high: float
  normal: np.ndarray


def exact(a: Body, b: Body) -> Depth:
  """Depth of two polytopes without a radius: how far the origin is from the nearest facet of the hull of all differences."""
  x, y = vertices(a), vertices(b)
  equations = ConvexHull((x[:, None] - y).reshape(-1, 3)).equations
  k = equations[:, 3].argmax()
  return Depth(-equations[k, 3], -equations[k, 3], equations[k, :3])


def bracket(a: Body, b: Body, tolerance: float, most: int = 800) -> Depth:
  """Depth to a tolerance relative to the size, or as near as so many points let it be known."""
  size = extent(a, b)
  n = np.concatenate([_sphere(), a.mat.T, -a.mat.T, b.mat.T, -b.mat.T])
  points, best, normal, low = np.zeros((0, 3)), np.inf, n[0], -np.inf
  for _ in range(200):
    w = difference(a, b, n)
    reach = np.sum(n * w, axis=1)
    if reach.min() < best:
      best, normal = reach.min(), n[reach.argmin()]
    points = np.unique(np.concatenate([points, w]), axis=0)
    try:
      equations = ConvexHull(points).equations
    except QhullError:
      break
    low = -equations[:, 3].max()
    open_ = equations[-equations[:, 3] < best - tolerance * size]
    if not len(open_):
      break
    # too many to go on with all: only those that are nearest
    open_ = open_[np.argsort(-open_[:, 3])]
    n = np.unique(open_[: (len(open_) if len(points) < most else 4), :3], axis=0)
    if len(points) > 2 * most:
      break
  return Depth(low, best, normal)


def hull(count: int) -> np.ndarray:
  """Corners (count, 3) of a hull near an ellipsoid; 8 corners are those of an irregular cuboid."""
  rng = np.random.default_rng(count)
  if count == 8:
    return np.array(list(np.ndindex(2, 2, 2))) - 0.5 + rng.uniform(-0.2, 0.2, size=(8, 3))
  x = rng.normal(size=(count, 3))
  return x / np.linalg.norm(x, axis=1, keepdims=True) * [0.7, 0.5, 0.4]


def poses(
  rng: np.random.Generator, kinds: tuple[str, str], number: int, corners: list[np.ndarray | None]
) -> list[tuple[Body, Body]]:
  """Pairs of bodies that overlap: every third deeply, every third a little, every third with axes that are aligned.

  Args:
    kinds: the two types.
    corners: of the meshes among them, None for the others.
  """
  found = []
  while len(found) < number:
    k = len(found)
    aligned = k % 3 == 2
    rotations, sizes = [], []
    for _ in range(2):
      if aligned:
        sign = np.diag(rng.choice([-1.0, 1.0], size=3))
        rotation = np.eye(3)[rng.permutation(3)] @ sign
        rotations.append(rotation * np.linalg.det(rotation))
        sizes.append(rng.choice([0.25, 0.5, 0.75], size=3))
      else:
        q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        rotations.append(q * np.linalg.det(q))
        sizes.append(rng.uniform(0.1, 1, size=3))
    a, b = (Body(t, s, r, np.zeros(3), c) for t, s, r, c in zip(kinds, sizes, rotations, corners, strict=True))
    if aligned:  # on a grid, also where both centres are one
      pos = rng.choice([0, 0, 0.125, 0.25, -0.25], size=3) * (0 if k % 4 == 3 else 1)
    else:  # a little or deep below a corner, an edge or a face of A - B
      n = _unit(rng.normal(size=(1, 3)) + 0.3 * rng.normal(size=(3, 3)))
      weight = rng.dirichlet((1, 1, 1)) if k % 2 else np.array([1, 0, 0])
      pos = weight @ difference(a, b, n) * (1 - (rng.uniform(0.02, 0.5) if k % 3 else 10 ** rng.uniform(-4, -1)))
    b = b._replace(pos=pos)
    if depth_along(a, b, _sphere()).min() > 0:
      found.append((a, b))
  return found


def _unit(x: np.ndarray) -> np.ndarray:
  return x / np.linalg.norm(x, axis=-1, keepdims=True)
