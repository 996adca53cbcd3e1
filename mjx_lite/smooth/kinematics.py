"""Forward kinematics: poses of bodies, joints, geoms and sites, from qpos and the mocap poses.

Tests: tests/smooth/test_mechanics.py.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import quat, safe, trig, vector
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops import linear
from mjx_lite.ops.select import join, rows


class KinematicsPlan(NamedTuple):
  """Index tables of `kinematics`.

  The tree consists of *nodes*. A body's pose in its parent together with the body's first joint is a node, and so is each
  further joint. A body without joints, or with a free joint, is one node. The poses of one depth's nodes are computed together.
  """

  hinge: np.ndarray  # joint ids by type; a free joint is part of its body's pose
  slide: np.ndarray
  ball: np.ndarray
  free: np.ndarray
  joint_order: np.ndarray  # joint, then njnt for 'none' -> row in the concatenation (hinge, ball, slide, free, none)
  quat_adr: np.ndarray  # (n, 4) qpos addresses of the ball joints' quaternions
  free_adr: np.ndarray  # (n, 7) qpos addresses of the free joints
  base_order: np.ndarray  # body -> row in the concatenation (body_pos, mocap, free)
  first_joint: np.ndarray  # body -> its first joint, njnt for none
  later_joint: np.ndarray  # joints that are not the first of their body
  node: np.ndarray  # (ndepth, width) row in the concatenation (bodies, later joints); the world for empty nodes
  parent: np.ndarray  # (ndepth, width, width) 1 at (row, row of the parent one depth above)
  body_node: np.ndarray  # body -> row of its last node in the concatenation (world, nodes by depth)
  joint_node: np.ndarray  # joint -> row of its own node in the same concatenation


class Poses(NamedTuple):
  """Result of `kinematics`."""

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
  """Build the index tables from the static fields of the model."""
  jnt_type, jnt_body, nbody, njnt = s["jnt_type"], s["jnt_bodyid"], s["nbody"], s["njnt"]
  by_type = {t: np.flatnonzero(jnt_type == t) for t in JointType}
  hinge, slide, ball, free = (by_type[t] for t in (JointType.HINGE, JointType.SLIDE, JointType.BALL, JointType.FREE))
  still = np.append(free, njnt)
  joint_order = np.zeros(njnt + 1, int)
  joint_order[np.concatenate([hinge, ball, slide, still])] = np.arange(njnt + 1)

  base_order = np.arange(nbody)
  mocap = np.flatnonzero(s["body_mocapid"] >= 0)
  base_order[mocap] = nbody + s["body_mocapid"][mocap]
  base_order[jnt_body[free]] = nbody + s["nmocap"] + np.arange(len(free))

  # nodes: bodies first, then later joints; the parent of a later joint is the node of the joint before it
  first_joint = np.where(s["body_jntnum"] > 0, s["body_jntadr"], njnt)
  later_joint = np.setdiff1d(np.arange(njnt), first_joint)
  joint_node = np.zeros(njnt, int)
  joint_node[later_joint] = nbody + np.arange(len(later_joint))
  first = np.flatnonzero(s["body_jntnum"] > 0)
  joint_node[first_joint[first]] = first
  last = np.array([joint_node[s["body_jntadr"][b] + n - 1] if n else b for b, n in enumerate(s["body_jntnum"])])
  above = np.concatenate([last[s["body_parentid"]], joint_node[later_joint - 1]]).astype(int)
  depth = np.zeros(nbody + len(later_joint), int)
  for b in range(1, nbody):
    depth[b] = depth[above[b]] + 1
    for j in range(s["body_jntadr"][b] + 1, s["body_jntadr"][b] + s["body_jntnum"][b]):
      depth[joint_node[j]] = depth[above[joint_node[j]]] + 1

  ndepth = depth.max(initial=0)
  width = np.bincount(depth)[1:].max(initial=0)
  node, parent = np.zeros((ndepth, width), int), np.zeros((ndepth, width, width))
  row, position = np.zeros(len(depth), int), np.zeros(len(depth), int)
  for k in range(1, ndepth + 1):
    members = np.flatnonzero(depth == k)
    node[k - 1, : len(members)] = members
    row[members] = np.arange(len(members))
    position[members] = 1 + (k - 1) * width + np.arange(len(members))
    if k > 1:
      parent[k - 1, np.arange(len(members)), row[above[members]]] = 1
  return KinematicsPlan(
    hinge=hinge,
    slide=slide,
    ball=ball,
    free=free,
    joint_order=joint_order,
    quat_adr=s["jnt_qposadr"][ball][:, None] + np.arange(4),
    free_adr=s["jnt_qposadr"][free][:, None] + np.arange(7),
    base_order=base_order,
    first_joint=first_joint,
    later_joint=later_joint,
    node=node,
    parent=parent,
    body_node=position[last],
    joint_node=position[joint_node],
  )


def kinematics(m: Model, qpos: jax.Array, mocap_pos: jax.Array, mocap_quat: jax.Array) -> Poses:
  """Compute the poses of bodies, inertial frames, joints, geoms and sites.

  Quaternions in qpos and mocap_quat are normalised here; Data keeps them unchanged.

  Source: `mj_kinematics`; the poses of one depth's nodes are computed together.
  Gradient: a zero quaternion counts as the identity, with zero derivative.
  """
  p = m.plan.kinematics
  base_pos, base_quat = _base_poses(m, p, qpos, mocap_pos, mocap_quat)
  joint_pos, joint_quat, shift = _joint_transforms(m, p, qpos)
  # materialize gathered rows: XLA does not vectorize a gather in one kernel with products
  first_pos, first_quat = (rows(x, p.first_joint) for x in (joint_pos, joint_quat))
  base_pos, base_quat, first_pos, first_quat = linear.materialize((base_pos, base_quat, first_pos, first_quat))
  pos, rot = linear.materialize((base_pos + quat.rotate(base_quat, first_pos), quat.mul(base_quat, first_quat)))
  pos, rot = join([pos, rows(joint_pos, p.later_joint)]), join([rot, rows(joint_quat, p.later_joint)])
  width = max(pos.shape[-1], rot.shape[-1])  # if all joints are slides, the rotations are shared by all worlds
  local = jnp.concatenate([jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (pos, rot)], axis=-2)
  world = _compose(p, local)

  # anchors and axes, from the frames after the joints: a rotation does not move its own anchor and axis
  pose = rows(world, p.body_node)
  xpos, xquat = vector.split(pose, 3)
  behind_pos, behind = vector.split(rows(world, p.joint_node), 3)
  before = quat.mul(behind, quat.conjugate(joint_quat[: m.njnt])) if len(p.ball) else behind
  is_free = (m.jnt_type == JointType.FREE)[:, None, None]
  xaxis = jnp.where(is_free, m.jnt_axis, quat.rotate(before, m.jnt_axis))
  xanchor = behind_pos + quat.rotate(behind, jnp.where(is_free, 0, m.jnt_pos))
  if len(p.slide):
    xanchor = xanchor - shift[:, None] * xaxis

  # frames fixed to bodies, in one batch
  bodies = [np.arange(m.nbody), m.geom_bodyid, m.site_bodyid]
  offset, rotation = join([m.body_ipos, m.geom_pos, m.site_pos]), join([m.body_iquat, m.geom_quat, m.site_quat])
  carrier_pos, carrier = vector.split(rows(pose, np.concatenate(bodies)), 3)
  frame_pos = carrier_pos + quat.rotate(carrier, offset)
  frame_quat = linear.materialize(quat.mul(carrier, rotation))
  frame_mat = quat.to_mat(join([xquat, frame_quat]))
  sizes = m.nbody, m.ngeom, m.nsite
  xmat, *frames = jax.lax.split(frame_mat, (m.nbody, *sizes))
  inertial, geom, site = zip(jax.lax.split(frame_pos, sizes), frames, jax.lax.split(frame_quat, sizes), strict=True)
  return Poses(
    xpos=xpos, xquat=xquat, xmat=xmat, xipos=inertial[0], ximat=inertial[1], xiquat=inertial[2], xanchor=xanchor, xaxis=xaxis,
    geom_xpos=geom[0], geom_xmat=geom[1], geom_xquat=geom[2], site_xpos=site[0], site_xmat=site[1], site_xquat=site[2],
  )  # fmt: skip


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _compose(p: KinematicsPlan, local: jax.Array) -> jax.Array:
  """Compute world poses (1 + ndepth * width, 7, W) of the world and the nodes, from poses in the parent's frame.

  The depths are updated in one array. Reverse mode would save this array for every depth, so `_stacked` gives the derivatives.
  """
  ndepth, width = p.node.shape
  poses = jax.lax.dynamic_update_slice_in_dim(rows(local, np.append(0, p.node)), _world(local), 0, 0)
  if ndepth < 2:  # the parent of the first depth is the world
    return poses

  def down(poses, x):
    first, row = x
    above = poses.at[row].get(mode="promise_in_bounds")
    placed = linear.materialize(_placed(above, jax.lax.dynamic_slice_in_dim(poses, first, width)))
    return jax.lax.dynamic_update_slice_in_dim(poses, placed, first, 0), None

  first = 1 + width * np.arange(1, ndepth)
  parent = p.parent.argmax(axis=-1)[1:] + first[:, None] - width  # arbitrary for empty nodes
  return jax.lax.scan(down, poses, (first.astype(np.int32), parent.astype(np.int32)))[0]


@_compose.defjvp
def _compose_jvp(p: KinematicsPlan, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  return jax.jvp(functools.partial(_stacked, p), primals, tangents)


def _world(like: jax.Array) -> jax.Array:
  """Return the identity pose (1, 7, W) of the world, whatever the model's world body has."""
  return jnp.broadcast_to(np.eye(7, 1, -3, like.dtype), (1, *like.shape[1:]))


def _placed(parent: jax.Array, local: jax.Array) -> jax.Array:
  """Return the world poses (n, 7, W) of nodes, from world poses of parents and poses in the parents' frames."""
  (pos, rot), (local_pos, local_rot) = vector.split(parent, 3), vector.split(local, 3)
  return jnp.concatenate([pos + quat.rotate(rot, local_pos), quat.mul(rot, local_rot)], axis=-2)


def _stacked(p: KinematicsPlan, local: jax.Array) -> jax.Array:
  """Compute the same poses as `_compose`, for the derivatives of `_compose`."""
  top = _world(local)
  if not p.node.size:
    return top

  # checkpointed: reverse mode recomputes from the loop's carry instead of saving the operands of each product
  @functools.partial(jax.checkpoint, prevent_cse=False)
  def down(above, x):
    local_poses, row, mask = x
    placed = _placed(_at_parents(above, row, mask), local_poses)
    return placed, placed

  # the parent of the first depth is the world: the identity in row 0, which is the parent's row of every node of this depth
  masks = np.array(p.parent)
  masks[0, :, 0] = 1
  start = jnp.broadcast_to(top, (p.node.shape[1], *top.shape[1:]))
  index = masks.argmax(axis=-1).astype(np.int32)  # arbitrary for empty nodes
  _, placed = jax.lax.scan(down, start, (rows(local, p.node), index, jnp.asarray(masks, local.dtype)))
  return jnp.concatenate([top, placed.reshape(p.node.size, *placed.shape[2:])])


@jax.custom_jvp
def _at_parents(above: jax.Array, index: jax.Array, mask: jax.Array) -> jax.Array:
  """Gather the parents' rows by index; the derivative is a product with a mask, whose transpose is a product, not a scatter."""
  return above.at[index].get(mode="promise_in_bounds")


@_at_parents.defjvp
def _at_parents_jvp(primals, tangents):
  above, index, mask = primals
  return _at_parents(above, index, mask), vector.combine_rows(mask, tangents[0])


def _base_poses(m, p, qpos, mocap_pos, mocap_quat):
  """Return the pose of each body in its parent before its joints: from the model, the mocap body, or the free joint."""
  free_pos, free_quat = rows(qpos, p.free_adr[:, :3]), safe.normalize(rows(qpos, p.free_adr[:, 3:]))
  pos = join([m.body_pos, mocap_pos, free_pos], p.base_order)
  rot = join([m.body_quat, safe.normalize(mocap_quat), free_quat], p.base_order)
  return pos, rot


def _joint_transforms(m, p, qpos):
  """Return the transforms of the joints in the frames before them (njnt + 1; identity for free and none), and slides."""
  angle = rows(qpos, m.jnt_qposadr[p.hinge]) - rows(m.qpos0, m.jnt_qposadr[p.hinge])
  half = 0.5 * angle[:, None]
  hinge_axis = rows(m.jnt_axis, p.hinge)
  cos, sin = linear.materialize(trig.cos_sin(half))
  hinge_quat = jnp.concatenate([cos, sin * hinge_axis], axis=-2)
  rotation = join([hinge_quat, safe.normalize(rows(qpos, p.quat_adr))])
  arm = rows(m.jnt_pos, np.concatenate([p.hinge, p.ball]))
  rotation_pos = arm - quat.rotate(rotation, arm)  # the anchor does not move

  shift = rows(qpos, m.jnt_qposadr[p.slide]) - rows(m.qpos0, m.jnt_qposadr[p.slide])
  none = len(p.free) + 1
  pos = join([rotation_pos, shift[:, None] * rows(m.jnt_axis, p.slide), jnp.zeros((none, 3, 1), qpos.dtype)], p.joint_order)
  identity = np.eye(4, 1, dtype=qpos.dtype)[None]
  rot = join([rotation, jnp.broadcast_to(identity, (len(p.slide) + none, 4, 1))], p.joint_order)
  still = jnp.zeros((len(p.hinge) + len(p.ball), 1), qpos.dtype)
  return pos, rot, join([still, shift, jnp.zeros((none, 1), qpos.dtype)], p.joint_order)[: m.njnt]
