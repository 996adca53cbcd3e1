"""Recursive Newton-Euler algorithm, as sums instead of a recursion: the bias force, and the wrenches in the joints.

Tests: tests/io/test_options.py, tests/parity/test_wrenches.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.math import spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model


def rne(m: Model, cinert, cdof, cvel, cdof_dot, qvel) -> jax.Array:
  """Return the bias force (nv, W): Coriolis, centrifugal and gravitational.

  Source: `mj_rne` with flg_acc = 0; Featherstone, Rigid Body Dynamics Algorithms, section 5.3.
  """
  acc = mask_sum(m.plan.com.ancestor_dof, cdof_dot, qvel[:, None])
  if m.opt.use_gravity:
    acc = acc - jnp.concatenate([jnp.zeros_like(m.opt.gravity), m.opt.gravity])
  return vector.dot(cdof, mask_sum(m.plan.com.moved_body, spatial.newton_euler(cinert, cvel, acc)))


class Carried(NamedTuple):
  """Result of `rne_postconstraint`."""

  cacc: jax.Array
  cfrc_int: jax.Array
  cfrc_ext: jax.Array


def rne_postconstraint(m: Model, cinert, cdof, cvel, cdof_dot, qvel, qacc, cfrc_ext) -> Carried:
  """Compute accelerations of the bodies relative to free fall, and the wrenches that the bodies get from their parents.

  Args:
    m: the model.
    cinert: (nbody, 10, W).
    cdof: (nv, 6, W).
    cvel: (nbody, 6, W).
    cdof_dot: (nv, 6, W).
    qvel: (nv, W).
    qacc: (nv, W).
    cfrc_ext: external wrenches (nbody, 6, W) about the trees' centres of mass, zero for the world.

  Source: `mj_rnePostConstraint`.
  """
  cacc = mask_sum(m.plan.com.ancestor_dof, cdof_dot * qvel[:, None] + cdof * qacc[:, None])
  if m.opt.use_gravity:
    cacc = cacc - jnp.concatenate([jnp.zeros_like(m.opt.gravity), m.opt.gravity])
  body = spatial.newton_euler(cinert, cvel, cacc) - cfrc_ext
  carried = jnp.concatenate([vector.total(body)[None], mask_sum(m.plan.com.subtree, body)[1:]])
  return Carried(cacc, carried, cfrc_ext)
