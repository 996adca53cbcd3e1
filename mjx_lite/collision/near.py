"""Number of candidate pairs whose bounds are within reach, in NumPy, for plans: the same bounds as in `broadphase.py`.

Tests: tests/io/test_capacity_choice.py.
"""

from typing import Any

import numpy as np

from mjx_lite.collision.broadphase import ROUND
from mjx_lite.collision.convex.boxes import PARALLEL
from mjx_lite.collision.driver import CollisionPlan, Group
from mjx_lite.model.enums import GeomType


def count(p: CollisionPlan, s: dict[str, Any], xpos: np.ndarray, xmat: np.ndarray) -> np.ndarray:
  """Count the candidates (n, ngroup) of each group that are within reach in n poses; 0 for groups that cannot be bounded.

  Args:
    p: the plan.
    s: fields of the model, by mjModel's names.
    xpos: (n, ngeom, 3) positions of the geoms [m].
    xmat: (n, ngeom, 3, 3) their rotations.
  """
  groups = [(g, _reach(p, s, g)) for g in p.groups]
  return np.array([
    [_within(s, g, reach, *pose) if g.bounded else 0 for g, reach in groups] for pose in zip(xpos, xmat, strict=True)
  ], int).reshape(len(xpos), len(groups))  # fmt: skip


def _reach(p: CollisionPlan, s: dict[str, Any], group: Group) -> np.ndarray:
  """Return margin plus gap (n,) of the pairs of a group [m]."""
  own, explicit = s["geom_margin"] + s["geom_gap"], p.explicit[group.pair]
  both = own[group.geom1] + own[group.geom2]
  return np.where(explicit >= 0, (s["pair_margin"] + s["pair_gap"])[explicit], both) if s["npair"] else both


def _within(s: dict[str, Any], group: Group, reach: np.ndarray, pos: np.ndarray, mat: np.ndarray) -> int:
  """Count the pairs of a group within reach in one pose: first by bounding spheres, then by boxes or segments."""
  balls = reach + s["geom_rbound"][group.geom1] + s["geom_rbound"][group.geom2]
  near = np.flatnonzero(np.sum((pos[group.geom1] - pos[group.geom2]) ** 2, axis=1) < np.maximum(balls, 0) ** 2)
  distance = _distance_of_segments if group.name in ROUND else _distance_of_boxes
  return int(np.sum(distance(s, pos, mat, group.geom1[near], group.geom2[near]) < reach[near]))


def _distance_of_boxes(s: dict[str, Any], pos: np.ndarray, mat: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Return the largest gap (n,) of two boxes along face normals and along cross products of edges [m]."""
  low, half_a, half_b = s["geom_aabb"][:, :3], s["geom_aabb"][a, 3:], s["geom_aabb"][b, 3:]
  center = pos + np.einsum("gij,gj->gi", mat, low)
  rotation = np.einsum("gji,gjk->gik", mat[a], mat[b])
  offset = np.einsum("gji,gj->gi", mat[a], center[b] - center[a])
  # rows of axes: the normals of the first box, of the second box, and their cross products
  first, second = np.broadcast_to(np.eye(3), rotation.shape), np.swapaxes(rotation, 1, 2)
  axes = np.concatenate([first, second, np.cross(first[:, :, None], second[:, None]).reshape(-1, 9, 3)], axis=1)
  size = np.abs(axes) @ half_a[..., None] + np.abs(axes @ rotation) @ half_b[..., None]
  length = np.linalg.norm(axes, axis=2)
  gap = (np.abs(axes @ offset[..., None]) - size)[..., 0] / np.maximum(length, PARALLEL)
  return np.max(np.where(length > PARALLEL, gap, -np.inf), axis=1, initial=-np.inf)


def _distance_of_segments(s: dict[str, Any], pos: np.ndarray, mat: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Return the distance (n,) of spheres and capsules [m]; see `broadphase`."""
  length = s["geom_size"][:, 1] * (s["geom_type"] == GeomType.CAPSULE)
  u, v, offset = mat[a, :, 2], mat[b, :, 2], pos[b] - pos[a]
  uv, along_u, along_v = (np.sum(x * y, axis=1) for x, y in ((u, v), (u, offset), (v, offset)))
  lines = (along_u - uv * along_v) / np.maximum(1 - uv * uv, np.finfo(float).eps)
  t = np.clip(uv * np.clip(lines, -length[a], length[a]) - along_v, -length[b], length[b])
  along = np.clip(uv * t + along_u, -length[a], length[a])
  ends = offset + t[:, None] * v - along[:, None] * u
  return np.linalg.norm(ends, axis=1) - s["geom_size"][a, 0] - s["geom_size"][b, 0]
