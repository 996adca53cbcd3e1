"""Passive forces of joints (springs and dampers), and gravity compensation.

Tests: tests/smooth/test_mechanics.py, tests/parity/test_passive.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import quat, safe, spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows
from mjx_lite.smooth import joint_params
from mjx_lite.smooth.plastic import reference


class PassivePlan(NamedTuple):
  """Index tables of the joint springs, and which terms exist."""

  scalar: np.ndarray  # slide and hinge joints
  free: np.ndarray
  rotational: np.ndarray  # ball and free joints
  quat_adr: np.ndarray  # (n, 4) qpos addresses of the quaternions of `rotational`
  dof_order: np.ndarray  # dof -> row in the concatenation (scalar, free translations, rotations)
  has_spring: bool
  has_damper: bool
  has_gravcomp: bool


class Passive(NamedTuple):
  """Result of `passive`."""

  spring: jax.Array
  damper: jax.Array
  gravcomp: jax.Array
  passive: jax.Array


def plan(s: dict[str, Any], pruned: frozenset[str]) -> PassivePlan:
  """Build the index tables from the static fields of the model."""
  t, dofadr = s["jnt_type"], s["jnt_dofadr"]
  scalar = np.flatnonzero((t == JointType.SLIDE) | (t == JointType.HINGE))
  free = np.flatnonzero(t == JointType.FREE)
  rotational = np.flatnonzero((t == JointType.BALL) | (t == JointType.FREE))
  skip = np.where(t[rotational] == JointType.FREE, 3, 0)
  dofs = np.concatenate(
    [
      dofadr[scalar],
      (dofadr[free][:, None] + np.arange(3)).ravel(),
      (dofadr[rotational][:, None] + skip[:, None] + np.arange(3)).ravel(),
    ]
  ).astype(int)
  order = np.zeros(s["nv"], int)
  order[dofs] = np.arange(len(dofs))
  return PassivePlan(
    scalar=scalar,
    free=free,
    rotational=rotational,
    quat_adr=s["jnt_qposadr"][rotational][:, None] + skip[:, None] + np.arange(4),
    dof_order=order,
    has_spring="jnt_stiffness" not in pruned,
    has_damper=not {"dof_damping", "actuator_damping"} <= pruned,
    has_gravcomp="body_gravcomp" not in pruned,
  )


def polynomial(x: jax.Array, first: jax.Array, higher: jax.Array, size: jax.Array) -> jax.Array:
  """Return `x (a + b r + c r^2)`, a = first, (b, c) = higher (n, 2, W), r = size.

  Source: MuJoCo documentation, gePolynomial.
  """
  return x * (first + size * (higher[:, 0] + higher[:, 1] * size))


def passive(m: Model, qpos, qvel, cdof, xipos, subtree_com, plastic) -> Passive:
  """Compute the passive generalised forces (nv, W).

  The actuators of a joint with `actgravcomp` apply the joint's gravity compensation, so it is not in the sum.

  Source: `mj_passive`.
  Gradient: exact for a ball or free spring at its reference.
  """
  p = m.plan.passive
  zero = jnp.zeros_like(qvel)
  spring = _spring(m, p, joint_extensions(m, qpos, plastic)) if p.has_spring and m.opt.use_spring else zero
  damper = zero
  if p.has_damper and m.opt.use_damper:
    damper = -polynomial(qvel, *joint_params.dof_damping(m), jnp.abs(qvel))
  gravcomp = zero
  if p.has_gravcomp and m.opt.use_gravity and m.opt.use_passive:
    gravcomp = _gravcomp(m, cdof, xipos, subtree_com)
  by_joint = m.jnt_actgravcomp[m.dof_jntid].astype(bool)[:, None]
  return Passive(spring, damper, gravcomp, spring + damper + jnp.where(by_joint, 0, gravcomp))


class Extensions(NamedTuple):
  """Displacements of the joints from the rest positions of their springs."""

  scalar: jax.Array  # (n, W) slide and hinge joints
  shift: jax.Array  # (n, 3, W) translation of free joints
  rotation: jax.Array  # (n, 3, W) rotation vector of ball and free joints


def joint_extensions(m: Model, qpos, plastic) -> Extensions:
  """Return the extensions of the joint springs; joints without a spring are included."""
  p = m.plan.passive
  rest = reference(m, plastic)
  adr = m.jnt_qposadr[p.scalar]
  free_adr = m.jnt_qposadr[p.free][:, None] + np.arange(3)
  current, resting = (rows(q, p.quat_adr) for q in (qpos, rest))
  return Extensions(
    rows(qpos, adr) - rows(rest, adr), rows(qpos, free_adr) - rows(rest, free_adr),
    quat.sub(safe.normalize(current), resting),
  )  # fmt: skip


def _spring(m, p, x):
  """Return the spring force of every dof (nv, W)."""
  scalar = polynomial(x.scalar, rows(m.jnt_stiffness, p.scalar), rows(m.jnt_stiffnesspoly, p.scalar), x.scalar)

  def radial(dif, joints):
    k, poly = rows(m.jnt_stiffness, joints), rows(m.jnt_stiffnesspoly, joints)
    size = safe.norm(dif)
    return dif * (k + size * (poly[:, 0] + poly[:, 1] * size))[:, None]

  flat = lambda f: f.reshape(3 * f.shape[0], f.shape[-1])  # noqa: E731
  return -join([scalar, flat(radial(x.shift, p.free)), flat(radial(x.rotation, p.rotational))], p.dof_order)


def stiffness(m: Model, x: Extensions) -> jax.Array:
  """Return the slope (nv, W) of the springs over the extensions, equal for all dofs of a translation or a rotation.

  Gradient: zero at the reference of a ball or free spring.
  """
  p = m.plan.passive

  def slope(size, joints):
    first, higher = rows(m.jnt_stiffness, joints), rows(m.jnt_stiffnesspoly, joints)
    return first + size * (2 * higher[:, 0] + 3 * higher[:, 1] * size)

  def radial(dif, joints):
    k = slope(safe.norm(dif), joints)
    return jnp.broadcast_to(k[:, None], (len(joints), 3, k.shape[-1])).reshape(3 * len(joints), k.shape[-1])

  return join([slope(x.scalar, p.scalar), radial(x.shift, p.free), radial(x.rotation, p.rotational)], p.dof_order)


def _gravcomp(m, cdof, xipos, subtree_com):
  """Return the joint-space force (nv, W) of forces against gravity at the bodies' centres of mass."""
  force = -m.opt.gravity * (m.body_mass * m.body_gravcomp)[:, None]
  arm = xipos - rows(subtree_com, m.body_rootid)
  wrench = spatial.join(vector.cross(arm, jnp.broadcast_to(force, arm.shape)), jnp.broadcast_to(force, arm.shape))
  return vector.dot(cdof, mask_sum(m.plan.com.moved_body, wrench))
