"""Armature of tendons: kinetic energy 1/2 m (dL/dt)^2, in M and in the bias force.

Tests: tests/tendon/test_tendon.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, spatial, symmetric, vector
from mjx_lite.math.groups import GroupPlan, group_sum, plan_groups
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.tendon import force, tendon


class TendonInertiaPlan(NamedTuple):
  """Whether any tendon has armature, and index tables."""

  present: bool
  root: np.ndarray  # (nsite,) root body of the site's tree
  by_tendon: GroupPlan  # tendon <- straight segments between different bodies


def plan(s: dict[str, Any], pruned: frozenset[str], t: tendon.TendonPlan) -> TendonInertiaPlan:
  """Build the index tables from the static fields of the model."""
  n = s["ntendon"]
  reflected = "actuator_armature" not in pruned and len(t.entry_dof) > 0
  reflected = reflected and bool((s["tendon_actuatorid"] != -1).any())
  present = n > 0 and ("tendon_armature" not in pruned or reflected)
  by_tendon = plan_groups(t.path.straight_tendon[t.moving], n)
  return TendonInertiaPlan(present, s["body_rootid"][s["site_bodyid"]], by_tendon)


def armature(m: Model) -> jax.Array:
  """Return the armature (ntendon, W), including that of actuators on the tendons."""
  if "actuator_armature" in m.layout.pruned:
    return m.tendon_armature
  return m.tendon_armature + force.reflected(m, m.actuator_armature)


def inertia(m: Model, ten_J: jax.Array) -> jax.Array:
  """Return packed J' diag(armature) J (nC, W).

  Products that couple different branches of a tree, or different trees, have no entry in packed M and are left out, as in C.

  Source: `mj_tendonArmature`.
  """
  d = m.plan.derivative
  return rows(symmetric.gram(d.tendon, ten_J, armature(m)), d.to_m)


def bias(m: Model, site_xpos, subtree_com, cvel, cdof_dot, qvel, ten_J) -> jax.Array:
  """Return the bias force J' diag(armature) dJ/dt qvel (nv, W).

  dJ/dt qvel is the second derivative of the length at zero joint acceleration; it is zero for a fixed tendon.

  Source: `mj_tendonBias`, `mj_tendonDot`.
  Gradient: zero for a segment of length zero.
  """
  if not len(m.plan.tendon.moving):
    return jnp.zeros_like(qvel)
  return tendon.to_joints(m, ten_J, armature(m) * second_derivative(m, site_xpos, subtree_com, cvel, cdof_dot, qvel))


def tension(m: Model, site_xpos, subtree_com, cvel, cdof_dot, qvel, qacc, ten_J) -> jax.Array:
  """Return the reaction (ntendon, W) of the armature to the acceleration of the tendons. Source: `mj_rnePostConstraint`."""
  acc = tendon.velocity(m, ten_J, qacc)
  if len(m.plan.tendon.moving):
    acc = acc + second_derivative(m, site_xpos, subtree_com, cvel, cdof_dot, qvel)
  return -armature(m) * acc


def second_derivative(m: Model, site_xpos, subtree_com, cvel, cdof_dot, qvel) -> jax.Array:
  """Return the second derivatives (ntendon, W) of the lengths at zero joint acceleration; segments around geoms add nothing.

  Source: `mj_tendonDot`.
  Gradient: zero for a segment of length zero.
  """
  p = m.plan.tendon_inertia
  t = m.plan.tendon
  ends = t.path.straight[t.moving]
  acc = mask_sum(m.plan.com.ancestor_dof, cdof_dot, qvel[:, None])

  def motion(site):
    """Return position, velocity, and acceleration at zero joint acceleration of sites."""
    x, body = rows(site_xpos, site), m.site_bodyid[site]
    r = x - rows(subtree_com, p.root[site])
    (w, v), (alpha, a) = (spatial.split(rows(y, body)) for y in (cvel, acc))
    v = v + vector.cross(w, r)
    return x, v, a + vector.cross(alpha, r) + vector.cross(w, v)

  x, v, a = (end1 - end0 for end0, end1 in zip(motion(ends[:, 0]), motion(ends[:, 1]), strict=True))
  u, length = safe.normalize_with_norm(x)
  along = vector.dot(u, v)
  second = vector.dot(u, a) + safe.divide(vector.dot(v, v) - along * along, length)
  second = tendon.shared(m, second, t.path.straight_pulley[t.moving])
  return group_sum(p.by_tendon, second)
