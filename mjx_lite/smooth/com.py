"""Quantities about each tree's centre of mass: composite frames of inertia, dof axes, velocities.

All spatial quantities are written about one point per tree (the centre of mass of the root's subtree), so that sums along
the tree need no change of frame.

Tests: tests/smooth/test_mechanics.py, tests/parity/test_stages.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import quat, safe, spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model import topology
from mjx_lite.model.enums import CamLightType, JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class ComPlan(NamedTuple):
  """Index tables and masks."""

  subtree: SumPlan  # body <- bodies of its subtree (world row excluded)
  axis_row: np.ndarray  # dof -> row in the concatenation (xaxis, columns of xmat of ball and free bodies, unit vectors)
  rotating_body: np.ndarray  # bodies of the ball and free joints
  rotates: np.ndarray  # (nv,) dof is a rotation
  ancestor_dof: SumPlan  # body <- dofs that move it
  earlier_dof: SumPlan  # dof <- dofs whose velocity rotates its axis
  moved_body: SumPlan  # dof <- bodies that it moves


class Com(NamedTuple):
  """Result of `com_pos`."""

  subtree_com: jax.Array
  cinert: jax.Array
  cdof: jax.Array


def plan(s: dict[str, Any]) -> ComPlan:
  """Build the index tables from the static fields of the model."""
  nv, njnt, dof_jnt = s["nv"], s["njnt"], s["dof_jntid"]
  subtree = topology.subtrees(s).astype(float)
  subtree[0] = 0

  types = s["jnt_type"]
  rotating = np.flatnonzero((types == JointType.BALL) | (types == JointType.FREE))
  rotating_row = {int(j): njnt + 3 * i for i, j in enumerate(rotating)}
  unit_row = njnt + 3 * len(rotating)
  axis_row, rotates = np.zeros(nv, int), np.zeros(nv, bool)
  for v in range(nv):
    j, t = int(dof_jnt[v]), types[dof_jnt[v]]
    k = v - s["jnt_dofadr"][j]
    if t == JointType.FREE and k < 3:
      axis_row[v] = unit_row + k
    elif t in (JointType.FREE, JointType.BALL):
      axis_row[v], rotates[v] = rotating_row[j] + k % 3, True
    else:
      axis_row[v], rotates[v] = j, t == JointType.HINGE

  moves = topology.moving_dofs(s).astype(float)
  # dofs that rotate a dof's axis: dofs of the bodies above, and earlier dofs of its own body; the three dofs of one rotation
  # have the same ones, and a free translation has none
  earlier = np.zeros((nv, nv))
  for v in range(nv):
    t = types[dof_jnt[v]]
    k = v - s["jnt_dofadr"][dof_jnt[v]]
    if t == JointType.FREE and k < 3:
      continue
    first = v - k % 3 if t in (JointType.FREE, JointType.BALL) else v
    u = s["dof_parentid"][first]
    while u >= 0:
      earlier[v, u] = 1
      u = s["dof_parentid"][u]
  return ComPlan(
    subtree=plan_sum(subtree),
    axis_row=axis_row,
    rotating_body=s["jnt_bodyid"][rotating],
    rotates=rotates,
    ancestor_dof=plan_sum(moves),
    earlier_dof=plan_sum(earlier),
    moved_body=plan_sum(moves.T),
  )


def com_pos(m: Model, xipos, ximat, xmat, xanchor, xaxis) -> Com:
  """Compute the centres of mass of the subtrees, and body inertias and dof axes about the tree's centre of mass.

  Source: `mj_comPos`.
  """
  p = m.plan.com
  moment = m.body_mass[:, None] * xipos
  total = vector.total(moment)[None]
  moment = jnp.concatenate([total, mask_sum(p.subtree, moment)[1:]])
  mass = m.body_subtreemass[:, None]
  light = mass < safe.MINVAL
  subtree_com = jnp.where(light, xipos, moment / jnp.where(light, 1, mass))

  offset = xipos - rows(subtree_com, m.body_rootid)
  cinert = spatial.inertia_about(m.body_inertia, ximat, offset, m.body_mass)
  cinert = cinert * (np.arange(m.nbody) > 0)[:, None, None].astype(cinert.dtype)  # the world has no inertia

  columns = jnp.swapaxes(rows(xmat, p.rotating_body), -3, -2).reshape(3 * len(p.rotating_body), 3, xmat.shape[-1])
  axis = join([xaxis, columns, np.eye(3, dtype=xaxis.dtype)[:, :, None]], p.axis_row)
  arm = rows(subtree_com, m.body_rootid[m.dof_bodyid]) - rows(xanchor, m.dof_jntid)
  axis, arm = jnp.broadcast_arrays(axis, arm)  # without any dof, axis and arm differ in width
  rotates = p.rotates[:, None, None]
  cdof = spatial.join(jnp.where(rotates, axis, 0), jnp.where(rotates, vector.cross(axis, arm), axis))
  return Com(subtree_com, cinert, cdof)


class ComVel(NamedTuple):
  """Result of `com_vel`."""

  cvel: jax.Array
  cdof_dot: jax.Array


def com_vel(m: Model, cdof: jax.Array, qvel: jax.Array) -> ComVel:
  """Compute body velocities (nbody, 6, W) and the rates of change of the dof axes (nv, 6, W). Source: `mj_comVel`."""
  p = m.plan.com
  motion = cdof * qvel[:, None]
  cvel = mask_sum(p.ancestor_dof, motion)
  return ComVel(cvel, spatial.cross_motion(mask_sum(p.earlier_dof, motion), cdof))


class CamLight(NamedTuple):
  """Result of `camlight`."""

  cam_xpos: jax.Array
  cam_xmat: jax.Array
  light_xpos: jax.Array
  light_xdir: jax.Array


def camlight(m: Model, xpos, xquat, subtree_com) -> CamLight:
  """Compute the poses of cameras and lights in all tracking modes.

  Source: `mj_camlight`.
  Gradient: zero where a camera looks vertically up or down, or its target is at the camera's position.
  """

  def both(glue, *fields):
    return [glue([getattr(m, f"{kind}_{field}") for kind in ("cam", "light")]) for field in fields]

  constants, given = both(np.concatenate, "bodyid", "targetbodyid", "mode"), both(join, "pos", "pos0", "poscom0")
  x, n = _positions(*constants, *given, xpos=xpos, xquat=xquat, subtree_com=subtree_com), m.ncam
  cam = _Placed(x.pos[:n], x.target[:n], x.tracks[:n], x.targets[:n])
  light = _Placed(x.pos[n:], x.target[n:], x.tracks[n:], x.targets[n:])

  mat = quat.to_mat(quat.mul(rows(xquat, m.cam_bodyid), m.cam_quat))
  if cam.targets.any():
    z = safe.normalize(cam.pos - cam.target)
    up = np.eye(3, dtype=z.dtype)[2][:, None]
    x = safe.normalize(vector.cross(jnp.broadcast_to(up, z.shape), z))
    y = safe.normalize(vector.cross(z, x))
    mat = jnp.where(cam.targets[..., None], jnp.stack([x, y, z], axis=-2), mat)  # axes as columns
  mat = _where(cam.tracks[..., None], m.cam_mat0, mat)

  xdir = quat.rotate(rows(xquat, m.light_bodyid), m.light_dir)
  xdir = _where(light.tracks, m.light_dir0, _where(light.targets, light.target - light.pos, xdir))
  return CamLight(cam.pos, mat, light.pos, safe.normalize(xdir))


class _Placed(NamedTuple):
  pos: jax.Array
  target: jax.Array
  tracks: np.ndarray  # orientation fixed in the world
  targets: np.ndarray  # orientation follows a target


def _positions(body, target, mode, pos, pos0, poscom0, xpos, xquat, subtree_com) -> _Placed:
  """Return the positions of cameras and lights, and the points that they look at."""
  track, trackcom, to_body, to_com = (
    (mode == t)[:, None, None]
    for t in (CamLightType.TRACK, CamLightType.TRACKCOM, CamLightType.TARGETBODY, CamLightType.TARGETBODYCOM)
  )
  to_body, to_com = (x & (target >= 0)[:, None, None] for x in (to_body, to_com))
  fixed = rows(xpos, body) + quat.rotate(rows(xquat, body), pos)
  where = _where(track, rows(xpos, body) + pos0, fixed)
  where = _where(trackcom, rows(subtree_com, body) + poscom0, where)
  seen = np.maximum(target, 0)
  point = _where(to_com, rows(subtree_com, seen), rows(xpos, seen))
  return _Placed(where, point, track | trackcom, to_body | to_com)


def _where(mask: np.ndarray, a: jax.Array, b: jax.Array) -> jax.Array:
  """Apply `jnp.where` with a constant mask; an empty mask needs no selection."""
  return jnp.where(mask, a, b) if mask.any() else b
