"""Jacobians of points fixed to bodies, and velocities and accelerations of frames.

Bodies are given by traced ids, (W,) or (1,) integers. Jacobians are (nv, 3, W), one row per dof, as in MJX.

Tests: tests/parity/test_support.py, tests/gradients/test_passive_gradients.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import spatial, vector
from mjx_lite.model import topology
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import pick, rows


class JacobiansPlan(NamedTuple):
  """Tables that are indexed by a body's id."""

  moves: np.ndarray  # (nbody, nv) whether the dof moves the body
  inside: np.ndarray  # (nbody, nv) whether the dof's body is in the body's subtree
  root: np.ndarray  # (nbody, 1) root body of the body's tree
  quaternion: np.ndarray  # (nv,) whether the dof is one of a quaternion's three


class Pair(NamedTuple):
  """Jacobians of a point's position and of its body's rotation, each (nv, 3, W)."""

  jacp: jax.Array
  jacr: jax.Array


def plan(s: dict[str, Any]) -> JacobiansPlan:
  """Build the tables from the static fields of the model."""
  kind = s["jnt_type"][s["dof_jntid"]]
  nth = np.arange(s["nv"]) - s["jnt_dofadr"][s["dof_jntid"]]
  return JacobiansPlan(
    topology.moving_dofs(s), topology.subtrees(s)[:, s["dof_bodyid"]], s["body_rootid"][:, None],
    (kind == JointType.BALL) | ((kind == JointType.FREE) & (nth >= 3)),
  )  # fmt: skip


def _about_com(m: Model, subtree_com, point, body):
  """Return the point relative to the centre of mass of the body's tree."""
  return point - pick(subtree_com, pick(m.plan.jacobians.root, body))


def jac(m: Model, cdof, subtree_com, point, body) -> Pair:
  """Return the Jacobians of a global point (3, W) that is fixed to a body. Source: `mj_jac`."""
  rotation, shift = spatial.split(jnp.where(_moves(m, body), cdof, 0))
  return Pair(shift + vector.cross(rotation, _about_com(m, subtree_com, point, body)[None]), rotation)


def _moves(m, body):
  return pick(m.plan.jacobians.moves[..., None], body)[:, None]


def jac_dot(m: Model, cdof, cdof_dot, cvel, subtree_com, point, body) -> Pair:
  """Return the time derivatives of the Jacobians of a global point (3, W) that is fixed to a body.

  The axes of a quaternion's three dofs rotate with the dofs' own body.

  Source: `mj_jacDot`.
  """
  quaternion = m.plan.jacobians.quaternion[:, None, None]
  rate = jnp.where(quaternion, spatial.cross_motion(rows(cvel, m.dof_bodyid), cdof), cdof_dot)
  moves = _moves(m, body)
  rotation, shift = spatial.split(jnp.where(moves, rate, 0))
  arm = _about_com(m, subtree_com, point, body)
  omega, v = spatial.split(pick(cvel, body))
  carried = vector.cross(jnp.where(moves, cdof[:, :3], 0), (v + vector.cross(omega, arm))[None])
  return Pair(shift + vector.cross(rotation, arm[None]) + carried, rotation)


def apply_ft(m: Model, cdof, subtree_com, force, torque, point, body) -> jax.Array:
  """Return the joint-space force (nv, W) of a force and a torque at a global point of a body. Source: `mj_applyFT`."""
  j = jac(m, cdof, subtree_com, point, body)
  return vector.dot(j.jacp, force[None]) + vector.dot(j.jacr, torque[None])


def velocity(m: Model, cvel, subtree_com, pos, mat, body) -> jax.Array:
  """Return the velocity (6, W), rotation first, of a frame that is fixed to a body.

  Args:
    cvel: velocities of all bodies (nbody, 6, W); accelerations work as well.
    subtree_com: (nbody, 3, W).
    pos: origin of the frame (3, W) [m].
    mat: axes of the result (3, 3, W); the world's axes if None.
    body: id.

  Source: `mj_objectVelocity`.
  """
  omega, v = spatial.split(pick(cvel, body))
  v = v + vector.cross(omega, _about_com(m, subtree_com, pos, body))
  return spatial.join(*(x if mat is None else vector.mat_t_vec(mat, x) for x in (omega, v)))


def acceleration(m: Model, cacc, cvel, subtree_com, pos, mat, body) -> jax.Array:
  """Return the acceleration (6, W), relative to free fall, of a frame that is fixed to a body; arguments as for `velocity`.

  Source: `mj_objectAcceleration`.
  """
  omega, v = spatial.split(velocity(m, cvel, subtree_com, pos, mat, body))
  rotation, shift = spatial.split(velocity(m, cacc, subtree_com, pos, mat, body))
  return spatial.join(rotation, shift + vector.cross(omega, v))
