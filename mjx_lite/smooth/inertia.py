"""Composite inertia, the joint-space inertia matrix M, and products with M.

M is packed as in MuJoCo: the lower triangle of the tree's sparsity, row by row, with the diagonal last in each row.

Tests: tests/smooth/test_articulated.py, tests/tendon/test_tendon.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.math import spatial, vector
from mjx_lite.math.symmetric import SymmetricPlan, plan_packed, unpack
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.smooth import joint_params


def plan(s: dict[str, Any]) -> SymmetricPlan:
  """Build the index tables from the static fields of the model."""
  nv, nc = s["nv"], s["nC"]
  return plan_packed(np.repeat(np.arange(nv), s["M_rownnz"]), s["M_colind"][:nc].astype(int), nv)


class Crb(NamedTuple):
  """Result of `crb`."""

  crb: jax.Array
  M: jax.Array


def crb(m: Model, cinert: jax.Array, cdof: jax.Array) -> Crb:
  """Compute composite inertias (nbody, 10, W) and packed M (nC, W), armature included.

  Source: `mj_crb`; Featherstone, Rigid Body Dynamics Algorithms, section 6.2.
  """
  p = m.plan.inertia
  composite, force = _composite(m, cinert, cdof)
  packed = vector.dot(rows(force, p.row), rows(cdof, p.col))
  return Crb(composite, packed + p.diagonal[:, None] * rows(joint_params.dof_armature(m), p.row))


def diagonal(m: Model, cinert: jax.Array, cdof: jax.Array) -> jax.Array:
  """Return the diagonal of M (nv, W) without computing its other entries."""
  return vector.dot(_composite(m, cinert, cdof)[1], cdof) + joint_params.dof_armature(m)


def _composite(m: Model, cinert: jax.Array, cdof: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return inertias of the subtrees (nbody, 10, W), and their forces (nv, 6, W) for unit accelerations of the dofs."""
  composite = mask_sum(m.plan.com.subtree, cinert)
  return composite, spatial.inertia_mul(rows(composite, m.dof_bodyid), cdof)


def full(m: Model, packed: jax.Array) -> jax.Array:
  """Return the dense matrix (nv, nv, W) of a matrix that is packed like M."""
  return unpack(m.plan.inertia, packed)


def mul_packed(m: Model, packed: jax.Array, x: jax.Array) -> jax.Array:
  """Return M x (nv, W) for a packed M (nC, W) and x (nv, W). Source: `mj_mulM`."""
  return vector.mat_vec(full(m, packed), x)


def mul_m(m: Model, cinert: jax.Array, cdof: jax.Array, x: jax.Array) -> jax.Array:
  """Return M x (nv, W) of bodies and armature without forming M: accelerations down the tree, forces up the tree."""
  acc = mask_sum(m.plan.com.ancestor_dof, cdof, x[:, None])
  force = mask_sum(m.plan.com.moved_body, spatial.inertia_mul(cinert, acc))
  return vector.dot(cdof, force) + joint_params.dof_armature(m) * x
