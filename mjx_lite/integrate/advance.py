"""Integration of positions along velocities, on the manifold of quaternions.

Tests: tests/transforms/test_promises.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.math import quat, safe
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class AdvancePlan(NamedTuple):
  """Addresses that split qpos into scalars and quaternions."""

  scalar_q: np.ndarray  # qpos addresses of scalars
  scalar_v: np.ndarray  # dofs of these scalars
  quat_q: np.ndarray  # (n, 4) qpos addresses of quaternions
  quat_v: np.ndarray  # (n, 3) dofs of these quaternions
  order: np.ndarray  # qpos -> row in the concatenation (scalars, quaternions)
  order_v: np.ndarray  # dof -> row in the concatenation (scalars, rotations)


def plan(s: dict[str, Any]) -> AdvancePlan:
  """Compute the addresses from the static fields of the model."""
  sq, sv, qq, qv = [], [], [], []
  for t, q, v in zip(s["jnt_type"], s["jnt_qposadr"], s["jnt_dofadr"], strict=True):
    plain = {JointType.FREE: 3, JointType.BALL: 0}.get(JointType(int(t)), 1)
    sq += range(q, q + plain)
    sv += range(v, v + plain)
    if t in (JointType.FREE, JointType.BALL):
      qq.append(np.arange(q + plain, q + plain + 4))
      qv.append(np.arange(v + plain, v + plain + 3))
  sq, sv = np.array(sq, int), np.array(sv, int)
  qq, qv = np.array(qq, int).reshape(-1, 4), np.array(qv, int).reshape(-1, 3)
  return AdvancePlan(
    scalar_q=sq,
    scalar_v=sv,
    quat_q=qq,
    quat_v=qv,
    order=np.argsort(np.r_[sq, qq.ravel()]),
    order_v=np.argsort(np.r_[sv, qv.ravel()]),
  )


def integrate_pos(m: Model, qpos: jax.Array, qvel: jax.Array, dt: jax.Array | float) -> jax.Array:
  """Return qpos after a motion with velocity qvel for dt [s]. Source: `mj_integratePos`."""
  p = m.plan.advance
  plain = rows(qpos, p.scalar_q) + dt * rows(qvel, p.scalar_v)
  n = len(p.quat_q)
  rot = rows(qpos, p.quat_q)
  omega = rows(qvel, p.quat_v)
  quats = quat.integrate(rot, omega, dt)
  return join([plain, quats.reshape(4 * n, quats.shape[-1])], p.order)


def differentiate_pos(m: Model, qpos1: jax.Array, qpos2: jax.Array, dt: jax.Array) -> jax.Array:
  """Return the velocity (nv, W) that takes qpos1 to qpos2 in dt [s]. Source: `mj_differentiatePos`."""
  p = m.plan.advance
  plain = (rows(qpos2, p.scalar_q) - rows(qpos1, p.scalar_q)) / dt
  n = len(p.quat_q)
  rot1, rot2 = (rows(q, p.quat_q) for q in (qpos1, qpos2))
  rotation = quat.sub(safe.normalize(rot2), safe.normalize(rot1)) / dt
  return join([plain, rotation.reshape(3 * n, rotation.shape[-1])], p.order_v)
