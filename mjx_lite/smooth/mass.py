"""Inertia matrix as an operator: factor, solve, product, by one of two methods chosen at plan time.

*articulated*: M consists of the bodies' inertia and a diagonal, and an articulated-body pass factors M.
*dense*: for few dofs, where the passes over the depths of the tree take longer than all of M, and for tendons with armature,
which add J'mJ to packed M. The Cholesky factorization of M with the dofs in reverse order gives M = L'DL with the sparsity of
the tree, like the articulated pass.

Tests: tests/smooth/test_articulated.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mjx_lite.math import linalg, vector
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.smooth import articulated, inertia, joint_params
from mjx_lite.smooth.articulated import Packed


def is_articulated(m: Model) -> bool:
  """Return whether the articulated method is used; a model without dofs uses it too."""
  return not (m.nv and (m.plan.articulated.is_small or m.plan.tendon_inertia.present))


def factor(m: Model, cinert: jax.Array, cdof: jax.Array, packed_m: jax.Array, extra: jax.Array | None = None) -> Any:
  """Factor M + diag(extra), with extra (nv, W)."""
  if is_articulated(m):
    diagonal = joint_params.dof_armature(m)
    diagonal = jnp.broadcast_to(diagonal if extra is None else diagonal + extra, (m.nv, cdof.shape[-1]))
    return articulated.factor(m, cinert, cdof, diagonal)
  if extra is not None:
    packed_m = packed_m + jnp.where(m.plan.inertia.diagonal[:, None], rows(extra, m.plan.inertia.row), 0)
  return dense_factor(m, packed_m)


def dense_factor(m: Model, packed: jax.Array) -> linalg.Factor:
  """Factor any matrix (nC, W) that is packed like M."""
  return linalg.cholesky(inertia.full(m, packed)[::-1, ::-1])


def solve(m: Model, f: Any, x: jax.Array) -> jax.Array:
  """Solve with a factor for x (nv, W)."""
  return linalg.factor_solve(f, x[::-1])[::-1] if isinstance(f, linalg.Factor) else articulated.solve(m, f, x)


def mul(m: Model, cinert: jax.Array, cdof: jax.Array, packed_m: jax.Array, x: jax.Array) -> jax.Array:
  """Return M x (nv, W)."""
  return inertia.mul_m(m, cinert, cdof, x) if is_articulated(m) else inertia.mul_packed(m, packed_m, x)


def trace(m: Model, cinert: jax.Array, cdof: jax.Array, packed_m: jax.Array) -> jax.Array:
  """Return the sum (W,) of the diagonal of M."""
  if is_articulated(m):
    return vector.total(inertia.diagonal(m, cinert, cdof))
  return vector.total(rows(packed_m, m.plan.inertia.diagonal_entry))


def packed(m: Model, f: Any, cdof: jax.Array) -> Packed:
  """Return the factor in MuJoCo's form: L below the diagonal, D on the diagonal. Source: `mj_factorM`."""
  if is_articulated(m):
    return articulated.packed(m, f, cdof)
  i, last = m.plan.inertia, m.nv - 1
  entry = linalg.entries(f, last - i.row, last - i.col)
  pivot = rows(rows(entry, i.diagonal_entry), i.row)
  return Packed(jnp.where(i.diagonal[:, None], entry, entry / pivot), 1 / rows(entry, i.diagonal_entry))
