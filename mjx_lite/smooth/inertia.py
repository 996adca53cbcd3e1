"""Composite inertia, the joint-space inertia matrix M, and products with M.

M is packed as in MuJoCo: the lower triangle of the tree's sparsity, row by row, with the diagonal last in each row.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.math import spatial, vector
from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows, rows_or_zero
from mjx_lite.smooth import transmission


class InertiaPlan(NamedTuple):
  """Index tables of packed M, or of a symmetric matrix with another sparsity: the lower triangle, row by row."""

  row: np.ndarray  # (nC,) dof of the row
  col: np.ndarray  # (nC,) dof of the column, an ancestor of the row's dof or this dof
  dense: np.ndarray  # (nv * nv,) entry of packed M, nC where M is zero
  diagonal: np.ndarray  # (nC,) 1 on the diagonal
  diagonal_entry: np.ndarray  # (nv,) entries of the diagonal


def plan(s: dict[str, Any]) -> InertiaPlan:
  """Build the index tables from the static fields of the model."""
  nv, nc = s["nv"], s["nC"]
  return plan_packed(np.repeat(np.arange(nv), s["M_rownnz"]), s["M_colind"][:nc].astype(int), nv)


def plan_packed(row: np.ndarray, col: np.ndarray, nv: int) -> InertiaPlan:
  """Build the index tables of a symmetric (nv, nv) matrix with entries (row, col) in its lower triangle."""
  dense = np.full((nv, nv), len(row))
  dense[row, col] = np.arange(len(row))
  dense[col, row] = np.arange(len(row))
  diagonal = row == col
  return InertiaPlan(row, col, dense.ravel(), diagonal, np.flatnonzero(diagonal))


class Crb(NamedTuple):
  """Result of `crb`."""

  crb: jax.Array
  M: jax.Array


def crb(m: Model, cinert: jax.Array, cdof: jax.Array) -> Crb:
  """Compute composite inertias (nbody, 10, W) and packed M (nC, W), armature included.

  Source: `mj_crb`; Featherstone, Rigid Body Dynamics Algorithms, section 6.2.
  """
  p: InertiaPlan = m.plan.inertia
  composite, force = _composite(m, cinert, cdof)
  packed = vector.dot(rows(force, p.row), rows(cdof, p.col))
  return Crb(composite, packed + p.diagonal[:, None] * rows(transmission.dof_armature(m), p.row))


def diagonal(m: Model, cinert: jax.Array, cdof: jax.Array) -> jax.Array:
  """Return the diagonal of M (nv, W) without computing its other entries."""
  return vector.dot(_composite(m, cinert, cdof)[1], cdof) + transmission.dof_armature(m)


def _composite(m: Model, cinert: jax.Array, cdof: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return inertias of the subtrees (nbody, 10, W), and their forces (nv, 6, W) for unit accelerations of the dofs."""
  composite = mask_sum(m.plan.com.subtree, cinert)
  return composite, spatial.inertia_mul(rows(composite, m.dof_bodyid), cdof)


def full(m: Model, packed: jax.Array) -> jax.Array:
  """Return the dense matrix (nv, nv, W) of a matrix that is packed like M."""
  return unpack(m.plan.inertia, packed)


def unpack(p: InertiaPlan, packed: jax.Array) -> jax.Array:
  """Return the dense matrix (nv, nv, W) of a packed matrix."""
  nv = len(p.diagonal_entry)
  return rows_or_zero(packed, np.where(p.dense < len(p.row), p.dense, -1)).reshape(nv, nv, packed.shape[-1])


def mul_packed(m: Model, packed: jax.Array, x: jax.Array) -> jax.Array:
  """Return M x (nv, W) for a packed M (nC, W) and x (nv, W). Source: `mj_mulM`."""
  return vector.mat_vec(full(m, packed), x)


def mul_m(m: Model, cinert: jax.Array, cdof: jax.Array, x: jax.Array) -> jax.Array:
  """Return M x (nv, W) of bodies and armature without forming M: accelerations down the tree, forces up the tree."""
  acc = mask_sum(m.plan.com.ancestor_dof, cdof, x[:, None])
  force = mask_sum(m.plan.com.moved_body, spatial.inertia_mul(cinert, acc))
  return vector.dot(cdof, force) + transmission.dof_armature(m) * x


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


def plan_gram(p: InertiaPlan, owner: np.ndarray, dof: np.ndarray) -> GramPlan:
  """List the pairs of the entries of J, given by their rows and dofs.

  Pairs that couple different branches of a tree, or different trees, have no entry in p and are left out, as in C.
  """
  a, b = np.nonzero((owner[:, None] == owner) & (dof[:, None] >= dof))
  nv = len(p.diagonal_entry)
  place = p.dense[dof[a] * nv + dof[b]]
  kept = place < len(p.row)
  return GramPlan(a[kept], b[kept], owner[a[kept]], plan_groups(place[kept], len(p.row)))


def gram(p: GramPlan, entries: jax.Array, weight: jax.Array) -> jax.Array:
  """Return packed J' diag(weight) J, for entries (nentry, W) and weight (n, W)."""
  return group_sum(p.by_packed, rows(entries, p.first) * rows(entries, p.second) * rows(weight, p.owner))
