"""Composite inertia, the joint-space inertia matrix M, and its products.

M is stored as MuJoCo packs it: the lower triangle of the tree's sparsity, row by row, the diagonal last in each row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.select import rows
from mjx_lite.core.types import Model
from mjx_lite.math import spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.smooth import transmission


class InertiaPlan(NamedTuple):
  """Index tables of packed M."""

  row: np.ndarray  # (nC,) dof of the row
  col: np.ndarray  # (nC,) dof of the column, an ancestor of the row or itself
  dense: np.ndarray  # (nv * nv,) entry of packed M, nC where M is zero
  diagonal: np.ndarray  # (nC,) 1 on the diagonal
  diagonal_entry: np.ndarray  # (nv,)


def plan(s: dict[str, Any]) -> InertiaPlan:
  """Index tables from the static fields of the model."""
  nv, nc = s["nv"], s["nC"]
  row = np.repeat(np.arange(nv), s["M_rownnz"])
  col = s["M_colind"][:nc].astype(int)
  dense = np.full((nv, nv), nc)
  dense[row, col] = np.arange(nc)
  dense[col, row] = np.arange(nc)
  diagonal = row == col
  return InertiaPlan(row, col, dense.ravel(), diagonal, np.flatnonzero(diagonal))


class Crb(NamedTuple):
  """Result of `crb`."""

  crb: jax.Array
  M: jax.Array


def crb(m: Model, cinert: jax.Array, cdof: jax.Array) -> Crb:
  """Composite inertias and packed M, armature included.

  Source: `mj_crb`; Featherstone, Rigid Body Dynamics Algorithms, section 6.2.
  """
  p: InertiaPlan = m.plan.inertia
  composite = mask_sum(m.plan.com.subtree, cinert)
  force = spatial.inertia_mul(rows(composite, m.dof_bodyid), cdof)
  packed = vector.dot(rows(force, p.row), rows(cdof, p.col))
  return Crb(composite, packed + p.diagonal[:, None] * rows(transmission.dof_armature(m), p.row))


def full(m: Model, packed: jax.Array) -> jax.Array:
  """Dense (nv, nv, W) matrix of a packed one."""
  zero = jnp.zeros((1, packed.shape[-1]), packed.dtype)
  return rows(jnp.concatenate([packed, zero]), m.plan.inertia.dense).reshape(m.nv, m.nv, packed.shape[-1])


def mul_packed(m: Model, packed: jax.Array, x: jax.Array) -> jax.Array:
  """M x of a packed M (nC, W) and x (nv, W). Source: `mj_mulM`."""
  return vector.mat_vec(full(m, packed), x)


def mul_m(m: Model, cinert: jax.Array, cdof: jax.Array, x: jax.Array) -> jax.Array:
  """M x of the bodies and the dofs' armature, without M: accelerations down the tree, forces up it."""
  acc = mask_sum(m.plan.com.ancestor_dof, cdof * x[:, None])
  force = mask_sum(m.plan.com.moved_body, spatial.inertia_mul(cinert, acc))
  return vector.dot(cdof, force) + transmission.dof_armature(m) * x
