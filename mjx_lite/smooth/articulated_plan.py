"""Index tables of the articulated-body pass: the dofs by depth, and the paths from the bodies to their roots.

Tests: tests/smooth/test_articulated.py.
"""

from typing import Any, NamedTuple

import numpy as np

from mjx_lite.math.tree import SumPlan, plan_sum
from mjx_lite.model.enums import JointType

_DENSE_DOFS = 16  # number of dofs up to which a dense factor costs less than these passes


class ArticulatedPlan(NamedTuple):
  """Index tables, root first."""

  is_small: bool  # so few dofs that a dense factor costs less
  carried: SumPlan  # dof <- bodies whose last dof it is, for dofs with such bodies; the last row is zero
  carried_row: np.ndarray  # (ndepth, width) row of each dof in `carried`, the last row if the dof is no body's last dof
  body_row: np.ndarray  # (nbody,) row of `carried` that contains the body, -1 if no dof moves the body
  dof: np.ndarray  # (ndepth, width) dof, without dofs of free joints; nv for an empty dof
  to_parent: np.ndarray  # (ndepth, trees, rows, rows) 1 at (row of the parent one depth above, row); trees = 1 if shapes differ
  parent: np.ndarray  # (ndepth, width) row of the parent one depth above; in the first depth the row itself
  keeps_row: np.ndarray  # (ndepth,) whether every dof of the depth has its parent's row
  position: np.ndarray  # (nv,) dof -> depth * width + row; dofs of `free` are numbered after all of these
  free: np.ndarray  # (nfree, 6) dofs of the free joints
  free_carried_row: np.ndarray  # (nfree,) row of the free joint in `carried`
  on_free: np.ndarray  # (width,) free joint that is the parent of each row of the first depth, -1 if the parent is the world
  free_row: SumPlan  # free joint <- rows of the first depth
  path: np.ndarray  # (ndepth, nbody) depth * width + row of the dof of this depth that moves a body, -1 if there is none
  base: np.ndarray  # (nbody,) free joint that moves a body, -1 if there is none


def plan(s: dict[str, Any]) -> ArticulatedPlan:
  """Build the index tables from the static fields of the model."""
  nv, last = s["nv"], _last_dofs(s)
  carried, carried_row = _carried_by_dofs(last, nv)
  free = s["jnt_dofadr"][s["jnt_type"] == JointType.FREE][:, None] + np.arange(6)
  joint = np.full(nv, -1)  # free joint of a dof
  joint[free] = np.arange(len(free))[:, None]
  levels = _levels(s, joint)
  ndepth, width = levels.dof.shape
  position = levels.depth * width + levels.row
  position[free] = levels.dof.size + np.arange(free.size).reshape(free.shape)
  path, base = _paths(s["dof_parentid"], last, joint, np.full((ndepth, s["nbody"]), -1), levels.depth, position)
  return ArticulatedPlan(
    is_small=0 < nv <= _DENSE_DOFS,
    carried=plan_sum(carried),
    carried_row=carried_row[levels.dof],
    body_row=np.where(carried.any(axis=0), carried.argmax(axis=0), -1),
    dof=levels.dof,
    to_parent=_masks_by_tree(levels),
    parent=levels.parent,
    keeps_row=np.all((levels.parent == np.arange(width)) | (levels.dof == nv), axis=1),
    position=position,
    free=free,
    free_carried_row=carried_row[free[:, -1]],
    on_free=levels.on_free,
    free_row=plan_sum(levels.on_free == np.arange(len(free))[:, None]),
    path=path,
    base=base,
  )


def _last_dofs(s: dict[str, Any]) -> np.ndarray:
  """Return the last of the dofs that move each body, -1 for none."""
  last = np.full(s["nbody"], -1)
  for b in range(1, s["nbody"]):
    n = s["body_dofnum"][b]
    last[b] = s["body_dofadr"][b] + n - 1 if n else last[s["body_parentid"][b]]
  return last


def _carried_by_dofs(last: np.ndarray, nv: int) -> tuple[np.ndarray, np.ndarray]:
  """Return the matrix `carried`, and its row for each dof and for an empty dof, from the last dof of each body."""
  carried = np.zeros((nv, len(last)))
  carried[last[last >= 0], np.flatnonzero(last >= 0)] = 1
  has_body = carried.any(axis=1)
  row = np.append(np.where(has_body, np.cumsum(has_body) - 1, has_body.sum()), has_body.sum())
  return np.concatenate([carried[has_body], np.zeros((1, len(last)))]), row


class _Levels(NamedTuple):
  """Dofs by depth, without dofs of free joints."""

  depth: np.ndarray  # (nv,) -1 for dofs of free joints
  row: np.ndarray  # (nv,) row of the dof in its depth
  ntree: int  # number of trees if all trees have the same shape, else 1
  dof: np.ndarray  # (ndepth, width) nv for an empty dof
  parent: np.ndarray  # (ndepth, width) row of the parent one depth above; in the first depth the row itself
  to_parent: np.ndarray  # (ndepth, width, width) 1 at (row of the parent, row)
  on_free: np.ndarray  # (width,) free joint that is the parent of each row of the first depth, -1 for the world


def _levels(s: dict[str, Any], joint: np.ndarray) -> _Levels:
  """Arrange the dofs by depth, given the free joint of each dof, -1 for none."""
  nv, parent = s["nv"], s["dof_parentid"]
  depth = np.full(nv, -1)
  for v in np.flatnonzero(joint < 0):
    depth[v] = depth[parent[v]] + 1 if parent[v] >= 0 else 0
  ndepth = depth.max(initial=-1) + 1
  width = np.bincount(depth + 1, minlength=2)[1:].max()
  tree = _trees(s["dof_treeid"], depth, width)
  ntree = tree.max(initial=0) + 1
  dof, row = np.full((ndepth, width), nv), np.zeros(nv, int)
  to_parent, on_free = np.zeros((ndepth, width, width)), np.full(width, -1)
  above = np.zeros((ndepth, width), np.int32)
  for k in range(ndepth):
    members = np.flatnonzero(depth == k)
    for t in range(ntree):
      own, first = members[tree[members] == t], t * (width // ntree)
      row[own] = _rows_of(row[parent[own]] if k else np.zeros(0, int), first + np.arange(width // ntree), len(own))
    dof[k, row[members]] = members
    if k:
      above[k, row[members]] = row[parent[members]]
      to_parent[k, row[parent[members]], row[members]] = 1
    else:
      above[0] = np.arange(width)
      on_free[row[members]] = np.where(parent[members] >= 0, joint[parent[members]], -1)
  return _Levels(depth=depth, row=row, ntree=ntree, dof=dof, parent=above, to_parent=to_parent, on_free=on_free)


def _masks_by_tree(levels: _Levels) -> np.ndarray:
  """Return `to_parent` (ndepth, trees, rows, rows)."""
  ndepth, width = levels.dof.shape
  rows_of_tree = width // levels.ntree
  masks = levels.to_parent.reshape(ndepth, levels.ntree, rows_of_tree, levels.ntree, rows_of_tree)
  return np.moveaxis(masks.diagonal(axis1=1, axis2=3), -1, 1)


def _paths(parent, last, joint, path, depth, position) -> tuple[np.ndarray, np.ndarray]:
  """Fill `path` (ndepth, nbody) with the dofs from each body to its root; return `path` and `base`."""
  base = np.full(len(last), -1)
  for b in np.flatnonzero(last >= 0):
    v = last[b]
    while v >= 0:
      if joint[v] >= 0:
        base[b] = joint[v]
      else:
        path[depth[v], b] = position[v]
      v = parent[v]
  return path, base


def _trees(treeid: np.ndarray, depth: np.ndarray, width: int) -> np.ndarray:
  """Return the tree of each dof, if all trees have the same width and need no padding beyond `width`; zeros if not."""
  trees = np.unique(treeid[depth >= 0])
  rows_of = [np.bincount(depth[(treeid == t) & (depth >= 0)]).max() for t in trees]
  alike = len(set(rows_of)) == 1 and sum(rows_of) == width
  return np.where(depth >= 0, np.searchsorted(trees, treeid), 0) if alike else np.zeros_like(depth)


def _rows_of(parent: np.ndarray, rows: np.ndarray, number: int) -> np.ndarray:
  """Choose rows of a tree for its dofs: the first child of each parent gets the parent's row, other dofs get unused rows."""
  if not len(parent):
    return rows[:number]
  first = np.unique(parent, return_index=True)[1]
  out = np.full(number, -1)
  out[first] = parent[first]
  out[out < 0] = np.setdiff1d(rows, out)[: number - len(first)]
  return out
