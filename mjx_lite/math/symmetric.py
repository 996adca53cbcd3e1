"""Symmetric matrices with a constant sparsity, packed as MuJoCo packs M: the lower triangle, row by row.

Tests: tests/integrate/test_integrators.py, tests/tendon/test_tendon.py.
"""

from typing import NamedTuple

import jax
import numpy as np

from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.ops.select import rows, rows_or_zero


class SymmetricPlan(NamedTuple):
  """Index tables of a packed matrix (nv, nv) with nC entries, such as M."""

  row: np.ndarray  # (nC,) dof of the row
  col: np.ndarray  # (nC,) dof of the column, for M an ancestor of the row's dof or this dof
  dense: np.ndarray  # (nv * nv,) entry of the packed matrix, nC where the matrix is zero
  diagonal: np.ndarray  # (nC,) 1 on the diagonal
  diagonal_entry: np.ndarray  # (nv,) entries of the diagonal


def plan_packed(row: np.ndarray, col: np.ndarray, nv: int) -> SymmetricPlan:
  """Build the index tables of a symmetric (nv, nv) matrix with entries (row, col) in its lower triangle."""
  dense = np.full((nv, nv), len(row))
  dense[row, col] = np.arange(len(row))
  dense[col, row] = np.arange(len(row))
  diagonal = row == col
  return SymmetricPlan(row, col, dense.ravel(), diagonal, np.flatnonzero(diagonal))


def unpack(p: SymmetricPlan, packed: jax.Array) -> jax.Array:
  """Return the dense matrix (nv, nv, W) of a packed matrix."""
  nv = len(p.diagonal_entry)
  return rows_or_zero(packed, np.where(p.dense < len(p.row), p.dense, -1)).reshape(nv, nv, packed.shape[-1])


class GramPlan(NamedTuple):
  """Products of two entries in one row of a sparse J (n, nv) that have an entry in a packed matrix."""

  first: np.ndarray  # (npair,) first entry of each pair
  second: np.ndarray  # (npair,) second entry
  owner: np.ndarray  # (npair,) row of J
  by_packed: GroupPlan  # entry of the packed matrix <- pairs

  @property
  def is_diagonal(self) -> bool:
    """Whether the products are all on the diagonal."""
    return bool((self.first == self.second).all())


def plan_gram(p: SymmetricPlan, owner: np.ndarray, dof: np.ndarray) -> GramPlan:
  """List the pairs of the entries of J, given by their rows and dofs.

  Pairs that couple different branches of a tree, or different trees, have no entry in p and are left out, as in C.
  """
  a, b = np.nonzero((owner[:, None] == owner) & (dof[:, None] >= dof))
  nv = len(p.diagonal_entry)
  entry = p.dense[dof[a] * nv + dof[b]]
  kept = entry < len(p.row)
  return GramPlan(a[kept], b[kept], owner[a[kept]], plan_groups(entry[kept], len(p.row)))


def gram(p: GramPlan, entries: jax.Array, weight: jax.Array) -> jax.Array:
  """Return packed J' diag(weight) J, for entries (nentry, W) and weight (n, W)."""
  return group_sum(p.by_packed, rows(entries, p.first) * rows(entries, p.second) * rows(weight, p.owner))
