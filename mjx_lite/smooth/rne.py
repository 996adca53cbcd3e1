"""Recursive Newton-Euler: the bias force, without recursion."""

import jax
import jax.numpy as jnp

from mjx_lite.core.types import Model
from mjx_lite.math import spatial, vector
from mjx_lite.math.tree import mask_sum


def rne(m: Model, cinert, cdof, cvel, cdof_dot, qvel) -> jax.Array:
  """Bias force: Coriolis, centrifugal and gravitational (nv, W).

  Source: `mj_rne` with flg_acc = 0; Featherstone, Rigid Body Dynamics Algorithms, section 5.3.
  """
  acc = mask_sum(m.plan.com.ancestor_dof, cdof_dot * qvel[:, None])
  if m.opt.use_gravity:
    acc = acc - jnp.concatenate([jnp.zeros_like(m.opt.gravity), m.opt.gravity])
  momentum = spatial.inertia_mul(cinert, cvel)
  force = spatial.inertia_mul(cinert, acc) + spatial.cross_force(cvel, momentum)
  return vector.dot(cdof, mask_sum(m.plan.com.moved_body, force))
