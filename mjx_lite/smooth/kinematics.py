"""Forward kinematics: where everything is, from qpos and the mocap poses."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import JointType
from mjx_lite.core.select import join, rows
from mjx_lite.core.types import Model
from mjx_lite.math import quat, safe


class Rank(NamedTuple):
  """The k-th joints of all bodies that have so many."""

  source: np.ndarray  # rows of the previous rank's bodies (of all bodies for rank 0)
  joint: np.ndarray  # joint ids


class Level(NamedTuple):
  """Bodies at one depth of the tree."""

  body: np.ndarray
  parent: np.ndarray  # rows of the previous level


class KinematicsPlan(NamedTuple):
  """Index tables of `kinematics`."""

  hinge: np.ndarray  # joint ids by type; free joints set the body's own pose
  slide: np.ndarray
  ball: np.ndarray
  free: np.ndarray
  local_order: np.ndarray  # joint id -> row in the concatenation (hinge, slide, ball, free)
  quat_adr: np.ndarray  # (n, 4) qpos addresses of the ball joints' quaternions
  free_adr: np.ndarray  # (n, 7) qpos addresses of the free joints
  base_order: np.ndarray  # body -> row in the concatenation (body_pos, mocap, free)
  ranks: tuple[Rank, ...]
  joint_order: np.ndarray  # joint id -> row in the concatenation of the ranks
  body_last: np.ndarray  # body -> row in the concatenation (bases, ranks)
  levels: tuple[Level, ...]
  body_order: np.ndarray  # body -> row in the concatenation of the levels, world first
  joint_parent: np.ndarray  # parent body of each joint's body
  free_axis: np.ndarray  # joints whose axis is already in the world frame


class Poses(NamedTuple):
  """What kinematics computes."""

  xpos: jax.Array
  xquat: jax.Array
  xmat: jax.Array
  xipos: jax.Array
  ximat: jax.Array
  xiquat: jax.Array
  xanchor: jax.Array
  xaxis: jax.Array
  geom_xpos: jax.Array
  geom_xmat: jax.Array
  geom_xquat: jax.Array
  site_xpos: jax.Array
  site_xmat: jax.Array
  site_xquat: jax.Array


def plan(s: dict[str, Any]) -> KinematicsPlan:
  """Index tables from the static fields of the model."""
  jnt_type, body_jntadr, body_jntnum = s["jnt_type"], s["body_jntadr"], s["body_jntnum"]
  of = {t: np.flatnonzero(jnt_type == t) for t in JointType}
  hinge, slide, ball, free = (of[t] for t in (JointType.HINGE, JointType.SLIDE, JointType.BALL, JointType.FREE))
  nbody, njnt = s["nbody"], s["njnt"]
  local_order = _inverse(np.concatenate([hinge, slide, ball, free]), njnt)

  base_order = np.arange(nbody)
  mocap = np.flatnonzero(s["body_mocapid"] >= 0)
  base_order[mocap] = nbody + s["body_mocapid"][mocap]
  base_order[s["jnt_bodyid"][free]] = nbody + s["nmocap"] + np.arange(len(free))

  # joints by their position within the body; a free joint has been spent in the base pose
  is_free = np.zeros(nbody, bool)
  is_free[s["jnt_bodyid"][free]] = True
  ranks, previous, joint_rows, body_last = [], np.arange(nbody), {}, np.arange(nbody)
  offset = nbody
  for k in range(max((body_jntnum * ~is_free).max(initial=0), 0)):
    bodies = np.flatnonzero((body_jntnum > k) & ~is_free)
    position = {int(b): i for i, b in enumerate(previous)}
    joints = body_jntadr[bodies] + k
    ranks.append(Rank(np.array([position[int(b)] for b in bodies], int), joints))
    body_last[bodies] = offset + np.arange(len(bodies))
    joint_rows.update({int(j): offset - nbody + i for i, j in enumerate(joints)})
    offset += len(bodies)
    previous = bodies
  for i, j in enumerate(free):
    joint_rows[int(j)] = offset - nbody + i
  joint_order = np.array([joint_rows[j] for j in range(njnt)], int)

  depth = np.zeros(nbody, int)
  for b in range(1, nbody):
    depth[b] = depth[s["body_parentid"][b]] + 1
  levels, above = [], np.array([0])
  for k in range(1, depth.max(initial=0) + 1):
    bodies = np.flatnonzero(depth == k)
    position = {int(b): i for i, b in enumerate(above)}
    levels.append(Level(bodies, np.array([position[int(p)] for p in s["body_parentid"][bodies]], int)))
    above = bodies
  body_order = _inverse(np.concatenate([[0], *(x.body for x in levels)]).astype(int), nbody)
  return KinematicsPlan(
    hinge, slide, ball, free, local_order,
    s["jnt_qposadr"][ball][:, None] + np.arange(4), s["jnt_qposadr"][free][:, None] + np.arange(7),
    base_order, tuple(ranks), joint_order, body_last, tuple(levels), body_order,
    s["body_parentid"][s["jnt_bodyid"]], np.isin(np.arange(njnt), free),
  )  # fmt: skip


def _inverse(order: np.ndarray, n: int) -> np.ndarray:
  """Row of each id in a list that names every id once."""
  out = np.zeros(n, int)
  out[order] = np.arange(len(order))
  return out


def kinematics(m: Model, qpos: jax.Array, mocap_pos: jax.Array, mocap_quat: jax.Array) -> Poses:
  """Poses of bodies, inertial frames, joints, geoms and sites.

  Quaternions in qpos and mocap_quat are normalised here and left as they are in Data.

  Source: `mj_kinematics`; the bodies of one depth are placed together.
  Gradient: a zero quaternion counts as the identity, with zero derivative.
  """
  p: KinematicsPlan = m.plan.kinematics
  base_pos, base_quat = _base_poses(m, p, qpos, mocap_pos, mocap_quat)
  joint_pos, joint_quat = _joint_transforms(m, p, qpos)

  # local pose of each body in its parent: base, then its joints in order; anchors and axes as each joint finds them
  pos, rot = base_pos, base_quat
  pos_parts, rot_parts, anchors, axes = [base_pos], [base_quat], [], []
  for rank in p.ranks:
    pos, rot = rows(pos, rank.source), rows(rot, rank.source)
    anchors.append(pos + quat.rotate(rot, rows(m.jnt_pos, rank.joint)))
    axes.append(quat.rotate(rot, rows(m.jnt_axis, rank.joint)))
    pos = pos + quat.rotate(rot, rows(joint_pos, rank.joint))
    rot = quat.mul(rot, rows(joint_quat, rank.joint))
    pos_parts.append(pos)
    rot_parts.append(rot)
  local_pos, local_quat = join(pos_parts, p.body_last), join(rot_parts, p.body_last)

  # world pose, one depth after the other
  pos, rot = local_pos[:1], local_quat[:1]
  world_pos, world_quat = [pos], [rot]
  for level in p.levels:
    parent_pos, parent_rot = rows(pos, level.parent), rows(rot, level.parent)
    pos = parent_pos + quat.rotate(parent_rot, rows(local_pos, level.body))
    rot = quat.mul(parent_rot, rows(local_quat, level.body))
    world_pos.append(pos)
    world_quat.append(rot)
  xpos, xquat = join(world_pos, p.body_order), join(world_quat, p.body_order)

  # anchors and axes to the world; a free joint's anchor is the body's origin and its axis is not turned
  free_pos = rows(base_pos, m.jnt_bodyid[p.free])
  anchor = join([*anchors, free_pos], p.joint_order) if m.njnt else xpos[:0]
  axis = join([*axes, rows(m.jnt_axis, p.free)], p.joint_order) if m.njnt else xpos[:0]
  parent_rot = rows(xquat, p.joint_parent)
  xanchor = rows(xpos, p.joint_parent) + quat.rotate(parent_rot, anchor)
  xaxis = jnp.where(p.free_axis[:, None, None], axis, quat.rotate(parent_rot, axis))

  # frames that ride on bodies
  xipos, xiquat = _attach(xpos, xquat, np.arange(m.nbody), m.body_ipos, m.body_iquat)
  geom_xpos, geom_xquat = _attach(xpos, xquat, m.geom_bodyid, m.geom_pos, m.geom_quat)
  site_xpos, site_xquat = _attach(xpos, xquat, m.site_bodyid, m.site_pos, m.site_quat)
  return Poses(
    xpos, xquat, quat.to_mat(xquat), xipos, quat.to_mat(xiquat), xiquat, xanchor, xaxis,
    geom_xpos, quat.to_mat(geom_xquat), geom_xquat, site_xpos, quat.to_mat(site_xquat), site_xquat,
  )  # fmt: skip


def _base_poses(m, p, qpos, mocap_pos, mocap_quat):
  """Pose of each body in its parent before its joints act: the model's, the mocap's, or the free joint's own."""
  free = rows(qpos, p.free_adr)
  pos = join([m.body_pos, mocap_pos, free[:, :3]], p.base_order)
  rot = join([m.body_quat, safe.normalize(mocap_quat), safe.normalize(free[:, 3:])], p.base_order)
  return pos, rot


def _joint_transforms(m, p, qpos):
  """Pose that each joint applies, in the frame that it finds; free joints have none."""
  angle = rows(qpos, m.jnt_qposadr[p.hinge]) - rows(m.qpos0, m.jnt_qposadr[p.hinge])
  half = 0.5 * angle[:, None]
  hinge_axis = rows(m.jnt_axis, p.hinge)
  hinge_quat = jnp.concatenate([jnp.cos(half), jnp.sin(half) * hinge_axis], axis=-2)
  ball_quat = safe.normalize(rows(qpos, p.quat_adr))
  turn_quat = join([hinge_quat, ball_quat])
  arm = rows(m.jnt_pos, np.concatenate([p.hinge, p.ball]))
  turn_pos = arm - quat.rotate(turn_quat, arm)  # the anchor stays where it is

  shift = rows(qpos, m.jnt_qposadr[p.slide]) - rows(m.qpos0, m.jnt_qposadr[p.slide])
  slide_pos = shift[:, None] * rows(m.jnt_axis, p.slide)
  identity = jnp.zeros((1, 4, 1), qpos.dtype).at[:, 0].set(1)
  nslide, nfree = len(p.slide), len(p.free)
  nh = len(p.hinge)
  pos = join([turn_pos[:nh], slide_pos, turn_pos[nh:], jnp.zeros((nfree, 3, 1), qpos.dtype)], p.local_order)
  still = [jnp.broadcast_to(identity, (n, 4, 1)) for n in (nslide, nfree)]
  return pos, join([turn_quat[:nh], still[0], turn_quat[nh:], still[1]], p.local_order)


def _attach(xpos, xquat, body, pos, rot):
  """World pose of frames fixed to bodies."""
  body_rot = rows(xquat, body)
  return rows(xpos, body) + quat.rotate(body_rot, pos), quat.mul(body_rot, rot)
