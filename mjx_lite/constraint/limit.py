"""Limits of joints and tendons: two rows each, lower then upper; one row for a ball joint.

Tests: tests/constraint/test_at_limit.py, tests/parity/test_stages.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import RowParams
from mjx_lite.math import quat, safe
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class LimitPlan(NamedTuple):
  """Tables of the rows, in joint order."""

  joint: np.ndarray  # (n,) joint of each row
  scalar: np.ndarray  # rows of slide and hinge joints
  sign: np.ndarray  # of the scalar rows: 1 lower, -1 upper
  ball: np.ndarray  # rows of ball joints
  ball_adr: np.ndarray  # (nball, 4) qpos addresses
  order: np.ndarray  # row -> row in the concatenation (scalar, ball)


def plan_joint(s: dict[str, Any]) -> LimitPlan:
  """Build the tables from the static fields of the model."""
  joint, sign = [], []
  for j in np.flatnonzero(s["jnt_limited"]):
    for side in (1, -1) if s["jnt_type"][j] in (JointType.SLIDE, JointType.HINGE) else (0,):
      joint.append(j)
      sign.append(side)
  joint, sign = np.array(joint, int), np.array(sign, int)
  scalar, ball = np.flatnonzero(sign), np.flatnonzero(sign == 0)
  order = np.zeros(len(joint), int)
  order[np.concatenate([scalar, ball])] = np.arange(len(joint))
  adr = s["jnt_qposadr"][joint[ball]][:, None] + np.arange(4)
  return LimitPlan(joint=joint, scalar=scalar, sign=sign[scalar], ball=ball, ball_adr=adr, order=order)


def rows_joint(m: Model, p: LimitPlan, qpos: jax.Array) -> tuple[RowParams, jax.Array]:
  """Build the limit rows of joints, and the axes (nball, 3, W) of the ball joints' rows.

  Source: `mj_instantiateLimit`.
  Gradient: zero for a ball joint at its reference.
  """
  joint = p.joint[p.scalar]
  bound = jnp.where((p.sign > 0)[:, None], rows(m.jnt_range, joint)[:, 0], rows(m.jnt_range, joint)[:, 1])
  scalar = p.sign[:, None] * (rows(qpos, m.jnt_qposadr[joint]) - bound)
  rotation = quat.to_rotvec(safe.normalize(rows(qpos, p.ball_adr)))
  axis, angle = safe.normalize_with_norm(rotation)
  pos = join([scalar, safe.largest(rows(m.jnt_range, p.joint[p.ball]), axis=1) - angle], p.order)
  margin = rows(m.jnt_margin, p.joint)
  zero = jnp.zeros((len(p.joint), 1), pos.dtype)
  params = RowParams(
    active=pos < margin, pos=pos, violation=pos, margin=margin,
    diag=rows(m.dof_invweight0, m.jnt_dofadr[p.joint]), scale=zero + 1,
    solref=rows(m.jnt_solref, p.joint), solimp=rows(m.jnt_solimp, p.joint),
    frictionloss=zero, bias=zero, stiff=True,
  )  # fmt: skip
  return params, axis


class TendonLimitPlan(NamedTuple):
  """Tables of the rows, in tendon order."""

  tendon: np.ndarray  # (n,) tendon of each row
  sign: np.ndarray  # 1 lower, -1 upper


def plan_tendon(s: dict[str, Any], movable: np.ndarray) -> TendonLimitPlan:
  """Build the tables of limited tendons whose length can change.

  Differs: with a sparse Jacobian C has rows of zeros for limited tendons whose sites are all on one body; here such tendons
  have no rows.
  """
  tendon = movable[s["tendon_limited"][movable].astype(bool)]
  return TendonLimitPlan(np.repeat(tendon, 2), np.tile([1, -1], len(tendon)))


def rows_tendon(m: Model, p: TendonLimitPlan, length: jax.Array) -> RowParams:
  """Build the limit rows of tendons. Source: `mj_instantiateLimit`."""
  bounds = rows(m.tendon_range, p.tendon)
  bound = jnp.where((p.sign > 0)[:, None], bounds[:, 0], bounds[:, 1])
  pos = jnp.asarray(p.sign)[:, None] * (rows(length, p.tendon) - bound)
  margin = rows(m.tendon_margin, p.tendon)
  zero = jnp.zeros((len(p.tendon), 1), pos.dtype)
  return RowParams(
    active=pos < margin, pos=pos, violation=pos, margin=margin, diag=rows(m.tendon_invweight0, p.tendon), scale=zero + 1,
    solref=rows(m.tendon_solref_lim, p.tendon), solimp=rows(m.tendon_solimp_lim, p.tendon), frictionloss=zero,
    bias=zero, stiff=True,
  )  # fmt: skip
