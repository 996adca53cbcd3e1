"""Cartesian forces in joint space.

Tests: tests/smooth/test_mechanics.py.
"""

import jax

from mjx_lite.math import spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


def xfrc_accumulate(m: Model, cdof, xipos, subtree_com, xfrc_applied) -> jax.Array:
  """Return the joint-space force (nv, W) of the wrenches applied at the bodies' centres of mass (force first).

  Source: `mj_xfrcAccumulate`.
  """
  wrench = about_tree(m, xipos, subtree_com, xfrc_applied)
  return vector.dot(cdof, mask_sum(m.plan.com.moved_body, wrench))


def about_tree(m: Model, xipos, subtree_com, xfrc_applied) -> jax.Array:
  """Return the applied wrenches (nbody, 6, W) about the trees' centres of mass, torque first."""
  force, torque = xfrc_applied[:, :3], xfrc_applied[:, 3:]
  arm = xipos - rows(subtree_com, m.body_rootid)
  return spatial.join(torque + vector.cross(arm, force), force)
