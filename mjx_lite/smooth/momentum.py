"""Momentum of subtrees, and its dependence on the velocities of the dofs.

Tests: tests/parity/test_support.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import safe, spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops.select import pick, rows


class SubtreeVel(NamedTuple):
  """Result of `subtree_vel`."""

  subtree_linvel: jax.Array
  subtree_angmom: jax.Array


def subtree_vel(m: Model, cinert, cvel, subtree_com) -> SubtreeVel:
  """Compute the velocity of every subtree's centre of mass, and the subtree's angular momentum about this centre.

  Source: `mj_subtreeVel`, with the momenta summed about the tree's centre of mass.
  """
  momentum = spatial.inertia_mul(cinert, cvel)
  below = mask_sum(m.plan.com.subtree, momentum)[1:]
  spin, push = spatial.split(below)
  root = rows(subtree_com, m.body_rootid)
  spin = spin - vector.cross(subtree_com[1:] - root[1:], push)
  # the world's subtree contains all trees, and their momenta are about different points
  angular, shift = spatial.split(momentum)
  all_spin = vector.total(angular + vector.cross(root - subtree_com[:1], shift))[None]
  speed = safe.quotient(jnp.concatenate([vector.total(shift)[None], push]), m.body_subtreemass[:, None])
  return SubtreeVel(speed, jnp.concatenate([all_spin, spin]))


def dof_momentum(m: Model, crb, cdof, body: jax.Array) -> jax.Array:
  """Return the momentum (nv, 6, W) of a body's subtree, about the tree's centre of mass, for a unit velocity of each dof.

  Args:
    body: id (W,) or (1,).
  """
  inside = pick(m.plan.jacobians.inside[..., None], body)  # the dof is in the subtree
  moves = pick(m.plan.jacobians.moves[..., None], body)  # the dof moves the whole subtree
  whole = spatial.inertia_mul(pick(crb, body)[None], cdof)
  own = spatial.inertia_mul(rows(crb, m.dof_bodyid), cdof)
  return jnp.where(moves[:, None], whole, jnp.where(inside[:, None], own, 0))


def angmom_mat(m: Model, crb, cdof, subtree_com, body: jax.Array) -> jax.Array:
  """Return the matrix (nv, 3, W) that maps qvel to the angular momentum of a body's subtree about the subtree's centre of mass.

  Source: `mj_angmomMat`.
  """
  angular, shift = spatial.split(dof_momentum(m, crb, cdof, body))
  arm = pick(subtree_com, body) - rows(subtree_com, m.body_rootid[m.dof_bodyid])
  return angular - vector.cross(arm, shift)


def jac_subtree_com(m: Model, crb, cdof, body: jax.Array) -> jax.Array:
  """Return the Jacobian (nv, 3, W) of the centre of mass of a body's subtree. Source: `mj_jacSubtreeCom`."""
  return safe.quotient(spatial.split(dof_momentum(m, crb, cdof, body))[1], pick(m.body_subtreemass, body))
