"""Transmissions: lengths, moment arms and velocities of the actuators' outputs.

Each kind of transmission has a function that plans its tables and a function that computes its lengths and moments; `KINDS`
lists these functions. The moments of all outputs are packed, row by row, with one entry for each dof that can move the output.

Transmissions that pull at points of bodies (sites, slider-cranks, adhesion) are written as wrenches about the trees' centres of
mass. The moment of a dof is the dof's axis times the sum of the wrenches on the bodies that the dof moves.

Tests: tests/smooth/test_mechanics.py, tests/actuator/test_actuator_gradients.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import quat, safe, spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model import topology
from mjx_lite.model.enums import JointType, TrnType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import join, rows


class Pose(NamedTuple):
  """Fields that transmissions depend on."""

  qpos: jax.Array
  xquat: jax.Array
  site_xpos: jax.Array
  site_xmat: jax.Array
  subtree_com: jax.Array
  cdof: jax.Array
  ten_length: jax.Array
  ten_J: jax.Array
  contact_pos: jax.Array
  contact_frame: jax.Array
  contact_exclude: jax.Array
  contact_geom: jax.Array


class Transmission(NamedTuple):
  """Result of `transmission`."""

  length: jax.Array
  moment: jax.Array


class Kind(NamedTuple):
  """Functions that plan and compute one kind of transmission."""

  plan: Callable[..., Any]  # (static fields, actuators) -> table, list of (output, dof) entries
  run: Callable[..., Any]  # (m, table, outputs, pose) -> Transmission of these outputs and their entries


class TransmissionPlan(NamedTuple):
  """Index tables of all outputs."""

  kinds: tuple[tuple[str, np.ndarray, Any], ...]  # kind, its outputs, its table
  order: np.ndarray  # output -> row in the concatenation of the kinds' outputs
  entry_order: np.ndarray  # entry -> row in the concatenation of the kinds' entries
  entry_out: np.ndarray  # (nentry,) output of each entry, sorted by output, then by dof
  entry_dof: np.ndarray  # (nentry,) dof of each entry
  out_entry: SumPlan  # output <- entries
  dof_entry: SumPlan  # dof <- entries


def plan(s: dict[str, Any]) -> TransmissionPlan:
  """Build the index tables from the static fields of the model."""
  members: dict[str, list[int]] = {}
  for i in range(s["nactuator"]):
    members.setdefault(_kind_of(s, i), []).append(i)
  kinds, outs, entries = [], [], []
  for kind in sorted(members):
    each = [s["actuator_outadr"][i] + np.arange(s["actuator_outnum"][i]) for i in members[kind]]
    outs_of_kind = np.concatenate(each).astype(int)
    table, entries_of_kind = KINDS[kind].plan(s, members[kind])
    kinds.append((kind, outs_of_kind, table))
    outs += list(outs_of_kind)
    entries += entries_of_kind
  order = np.argsort(np.array(outs, int))
  out, dof = np.array(entries, int).reshape(-1, 2).T
  entry_order = np.lexsort((dof, out))
  out, dof = out[entry_order], dof[entry_order]
  by_out, by_dof = np.zeros((s["nout"], len(out))), np.zeros((s["nv"], len(out)))
  by_out[out, np.arange(len(out))] = 1
  by_dof[dof, np.arange(len(out))] = 1
  return TransmissionPlan(
    kinds=tuple(kinds),
    order=order,
    entry_order=entry_order,
    entry_out=out,
    entry_dof=dof,
    out_entry=plan_sum(by_out),
    dof_entry=plan_sum(by_dof),
  )


def transmission(m: Model, x: Pose) -> Transmission:
  """Compute the lengths (nout, W) and packed moments (nJmom, W) of all outputs.

  Source: `mj_transmission`.
  Gradient: for the length, that of its formula. For rotations about a reference site, and for joints with more than one dof,
  this gradient is not the moment. Zero where a slider-crank cannot reach.
  """
  p = m.plan.transmission
  found = [KINDS[kind].run(m, table, outs, x) for kind, outs, table in p.kinds]
  if not found:
    width = x.qpos.shape[-1]
    return Transmission(*(jnp.zeros((0, width), x.qpos.dtype),) * 2)
  return Transmission(join([t.length for t in found], p.order), join([t.moment for t in found], p.entry_order))


def velocity(m: Model, moment: jax.Array, qvel: jax.Array) -> jax.Array:
  """Return the velocity of the outputs: moment times qvel (nout, W)."""
  p = m.plan.transmission
  return mask_sum(p.out_entry, moment * rows(qvel, p.entry_dof))


def to_joints(m: Model, moment: jax.Array, force: jax.Array) -> jax.Array:
  """Return the joint-space force (nv, W) of output forces (nout, W)."""
  p = m.plan.transmission
  return mask_sum(p.dof_entry, moment * rows(force, p.entry_out))


# -------------------------------------------------------------------------------------------------------------- joints


def _addresses(s, acts, width):
  """Return the qpos addresses of the actuators' joints, and an entry (output, dof) for each of `width` dofs of a joint."""
  joint = s["actuator_trnid"][acts, 0]
  qadr, vadr = s["jnt_qposadr"][joint].astype(int), s["jnt_dofadr"][joint].astype(int)
  entries = [(int(o), int(v) + k) for o, v in zip(s["actuator_outadr"][acts], vadr, strict=True) for k in range(width)]
  return qadr, entries


def _plan_scalar(s, acts):
  return _addresses(s, acts, 1)


def _scalar(m, qadr, outs, x):
  gear = rows(m.actuator_gear, outs)[:, 0]
  return Transmission(rows(x.qpos, qadr) * gear, gear)


def _plan_ball(s, acts):
  qadr, entries = _addresses(s, acts, 3)
  in_parent = s["actuator_trntype"][acts] == TrnType.JOINTINPARENT
  return (qadr[:, None] + np.arange(4), in_parent), entries


def _ball(m, table, outs, x):
  adr, in_parent = table
  rotation = safe.normalize(rows(x.qpos, adr))
  gear = _to_child(rows(m.actuator_gear, outs)[:, :3], rotation, in_parent)
  return Transmission(vector.dot(quat.to_rotvec(rotation), gear), _flat(gear))


def _plan_free(s, acts):
  qadr, entries = _addresses(s, acts, 6)
  in_parent = s["actuator_trntype"][acts] == TrnType.JOINTINPARENT
  return (qadr[:, None] + 3 + np.arange(4), in_parent), entries


def _free(m, table, outs, x):
  adr, in_parent = table
  force, torque = spatial.split(rows(m.actuator_gear, outs))
  torque = _to_child(torque, safe.normalize(rows(x.qpos, adr)), in_parent)
  return Transmission(jnp.zeros((len(outs), 1), x.qpos.dtype), _flat(join_components(force, torque)))


def join_components(a: jax.Array, b: jax.Array) -> jax.Array:
  """Concatenate along the component axis; world axes are broadcast to the wider axis."""
  width = max(a.shape[-1], b.shape[-1])
  return jnp.concatenate([jnp.broadcast_to(p, (*p.shape[:-1], width)) for p in (a, b)], axis=-2)


def _to_child(gear, rotation, in_parent):
  """Return gear axes in the joint's child frame; the axes of `in_parent` are given in the joint's parent frame."""
  if not in_parent.any():
    return gear
  return jnp.where(in_parent[:, None, None], quat.rotate(quat.conjugate(rotation), gear), gear)


def _flat(x):
  return x.reshape(x.shape[0] * x.shape[1], x.shape[-1])


def _plan_so3_ball(s, acts):
  joint = s["actuator_trnid"][acts, 0]
  entries = [
    (int(o) + k, int(v) + k) for o, v in zip(s["actuator_outadr"][acts], s["jnt_dofadr"][joint], strict=True) for k in range(3)
  ]
  return s["jnt_qposadr"][joint][:, None] + np.arange(4), entries


def _so3_ball(m, adr, outs, x):
  rotvec = _flat(quat.to_rotvec(safe.normalize(rows(x.qpos, adr))))
  return Transmission(rotvec, jnp.ones((len(outs), 1), rotvec.dtype))


# ------------------------------------------------------------------------------------------------------------- tendons


def _plan_tendon(s, acts):
  entries, ten_entry, output = [], [], []
  for k, i in enumerate(acts):
    t = s["actuator_trnid"][i, 0]
    for j in range(s["ten_J_rownnz"][t]):
      ten_entry.append(s["ten_J_rowadr"][t] + j)
      output.append(k)
      entries.append((int(s["actuator_outadr"][i]), int(s["ten_J_colind"][ten_entry[-1]])))
  return (s["actuator_trnid"][acts, 0].astype(int), np.array(ten_entry, int), np.array(output, int)), entries


def _tendon(m, table, outs, x):
  tendon, ten_entry, output = table
  gear = rows(m.actuator_gear, outs)[:, 0]
  return Transmission(rows(x.ten_length, tendon) * gear, rows(x.ten_J, ten_entry) * rows(gear, output))


# --------------------------------------------------------------------------------------------------- wrenches on bodies


class Ends(NamedTuple):
  """Wrenches on bodies, one per body, and the entries that sum these wrenches."""

  root: np.ndarray  # (nend,) root body of the tree; the wrench is about the tree's centre of mass
  entry_end: SumPlan  # entry <- ends
  entry_dof: np.ndarray  # (nentry,) dof of each entry


def _plan_ends(s, ends, skip_common):
  """Plan the entries and their sums of wrenches.

  Args:
    ends: (output, body) of each wrench.
    skip_common: leave out the dofs that move all bodies of an output: these dofs move the output's ends together.
  """
  every = topology.moving_dofs(s)
  moves = [set(np.flatnonzero(every[body]).tolist()) for _, body in ends]
  entries: dict[tuple[int, int], list[int]] = {}
  for output in sorted({o for o, _ in ends}):
    own = [k for k, (o, _) in enumerate(ends) if o == output]
    shared = set.intersection(*(moves[k] for k in own)) if skip_common and len(own) > 1 else set()
    for k in own:
      for v in sorted(moves[k] - shared):
        entries.setdefault((output, v), []).append(k)
  found = sorted(entries)
  mask = np.zeros((len(found), len(ends)))
  for i, key in enumerate(found):
    mask[i, entries[key]] = 1
  root = np.array([s["body_rootid"][b] for _, b in ends], int)
  return Ends(root, plan_sum(mask), np.array([v for _, v in found], int)), found


def _moment(ends: Ends, x: Pose, point, torque, force) -> jax.Array:
  """Return the entries of the moments of forces at points with extra torques; the arguments are (nend, 3, W)."""
  arm = point - rows(x.subtree_com, ends.root)
  wrench = join_components(torque + vector.cross(arm, force), jnp.broadcast_to(force, arm.shape))
  return vector.dot(rows(x.cdof, ends.entry_dof), mask_sum(ends.entry_end, wrench))


def _plan_site(s, acts):
  site = s["actuator_trnid"][acts, 0].astype(int)
  ends = [(int(o), int(s["site_bodyid"][i])) for o, i in zip(s["actuator_outadr"][acts], site, strict=True)]
  ends_plan, entries = _plan_ends(s, ends, False)
  return (site, ends_plan), entries


def _site(m, table, outs, x):
  site, ends = table
  force, torque = spatial.split(rows(m.actuator_gear, outs))
  mat = rows(x.site_xmat, site)
  moment = _moment(ends, x, rows(x.site_xpos, site), vector.mat_vec(mat, torque), vector.mat_vec(mat, force))
  return Transmission(jnp.zeros((len(outs), 1), x.qpos.dtype), moment)


def _plan_pair(s, acts, outs_each=1):
  """Plan two sites per actuator: the wrenches at all first sites, then the wrenches at all second sites."""
  sites = s["actuator_trnid"][acts].astype(int).T
  out = [int(o) + k for o in s["actuator_outadr"][acts] for k in range(outs_each)]
  ends = [(o, int(b)) for site in sites for o, b in zip(out, np.repeat(s["site_bodyid"][site], outs_each), strict=True)]
  return sites, out, ends


def _plan_ref(s, acts):
  sites, _, ends = _plan_pair(s, acts)
  ends_plan, entries = _plan_ends(s, ends, True)
  return (sites, ends_plan), entries


def _ref(m, table, outs, x):
  (site, ref), ends = table
  gear_force, gear_torque = spatial.split(rows(m.actuator_gear, outs))
  pos, pos_ref, mat = rows(x.site_xpos, site), rows(x.site_xpos, ref), rows(x.site_xmat, ref)
  shift = vector.mat_t_vec(mat, pos - pos_ref)
  length = vector.dot(shift, gear_force) + vector.dot(_relative_rotation(m, x, site, ref), gear_torque)
  force, torque = vector.mat_vec(mat, gear_force), vector.mat_vec(mat, gear_torque)
  both = lambda a, b: jnp.concatenate([a, b])  # noqa: E731
  return Transmission(length, _moment(ends, x, both(pos, pos_ref), both(torque, -torque), both(force, -force)))


def _relative_rotation(m, x, site, ref):
  """Return the rotation vector that takes the frame of site `ref` to that of `site`, in the frame of `ref`."""
  orientation, orientation_ref = (quat.mul(rows(x.xquat, m.site_bodyid[k]), rows(m.site_quat, k)) for k in (site, ref))
  return quat.sub(orientation, orientation_ref)


def _plan_so3_sites(s, acts):
  sites, _, ends = _plan_pair(s, acts, 3)
  ends_plan, entries = _plan_ends(s, ends, True)
  return (sites, ends_plan), entries


def _so3_sites(m, table, outs, x):
  (site, ref), ends = table
  length = _flat(_relative_rotation(m, x, site, ref))
  axes = _flat_axes(rows(x.site_xmat, site))
  point = jnp.repeat(jnp.concatenate([rows(x.site_xpos, site), rows(x.site_xpos, ref)]), 3, axis=0)
  torque = jnp.concatenate([axes, -axes])
  return Transmission(length, _moment(ends, x, point, torque, jnp.zeros_like(torque)))


def _flat_axes(mat):
  """Return the columns of matrices (n, 3, 3, W) as (3 n, 3, W)."""
  return vector.transpose(mat).reshape(3 * mat.shape[0], 3, mat.shape[-1])


def _plan_crank(s, acts):
  sites, _, ends = _plan_pair(s, acts)
  ends_plan, entries = _plan_ends(s, ends, False)
  return (np.asarray(acts), sites, ends_plan), entries


def _crank(m, table, outs, x):
  """Compute slider-cranks: the slider's position along its axis at which the rod reaches the crank's site."""
  acts, (crank, slider), ends = table
  gear = rows(m.actuator_gear, outs)[:, 0]
  rod = rows(m.actuator_cranklength, acts)
  axis = rows(x.site_xmat, slider)[:, :, 2]
  arm = rows(x.site_xpos, crank) - rows(x.site_xpos, slider)
  along = vector.dot(arm, axis)
  det = along * along + rod * rod - vector.dot(arm, arm)
  reaches = det > 0
  root = jnp.sqrt(jnp.where(reaches, det, 1))
  # derivatives of the length along - root with respect to arm and axis
  ratio = jnp.where(reaches, 1 - along / root, 1)[:, None]
  by_arm = ratio * axis + jnp.where(reaches, 1 / root, 0)[:, None] * arm
  by_axis = ratio * arm
  force, torque = gear[:, None] * by_arm, gear[:, None] * vector.cross(axis, by_axis)
  both = lambda a, b: jnp.concatenate([a, b])  # noqa: E731
  point = both(rows(x.site_xpos, crank), rows(x.site_xpos, slider))
  moment = _moment(ends, x, point, both(jnp.zeros_like(torque), torque), both(force, -force))
  return Transmission(gear * (along - jnp.where(reaches, root, 0)), moment)


# ------------------------------------------------------------------------------------------------------------ adhesion


class BodyTable(NamedTuple):
  """Contact slots that an adhesive body can use."""

  slot: np.ndarray  # (nend,) slot of each wrench
  sign: np.ndarray  # (nend,) -1 on the first body of the contact, 1 on the second
  out: np.ndarray  # (nend,) row of the wrench's output
  out_slot: SumPlan  # output <- slots
  ends: Ends


class ChosenBodyTable(NamedTuple):
  """Bodies that pull at contact slots whose geoms are chosen at run time."""

  body: np.ndarray  # (nact,) body of each actuator
  entry: np.ndarray  # (nentry,) dof * nact + index of the actuator


def _plan_body(s, acts):
  if s["slot_chosen"]:
    return _plan_chosen_body(s, acts)
  outs, slots = s["actuator_outadr"][acts], s["slot_body"]
  ends, slot, sign, out = [], [], [], []
  touches = np.zeros((len(acts), len(slots)))
  for k, i in enumerate(acts):
    body = s["actuator_trnid"][i, 0]
    for c, pair in enumerate(slots):
      if body in pair:
        touches[k, c] = 1
        for b, side in zip(pair, (-1, 1), strict=True):
          ends.append((int(outs[k]), int(b)))
          slot.append(c)
          sign.append(side)
          out.append(k)
  ends_plan, entries = _plan_ends(s, ends, False)
  return BodyTable(np.array(slot, int), np.array(sign, int), np.array(out, int), plan_sum(touches), ends_plan), entries


def _plan_chosen_body(s, acts):
  outs, bodies, entries, moves = s["actuator_outadr"][acts], s["actuator_trnid"][acts, 0], [], topology.moving_dofs(s)
  for k, body in enumerate(bodies):
    touching = [int(b) for pair in s["pair_body"] if body in pair for b in pair]
    entries += [(k, int(v)) for v in np.flatnonzero(moves[touching].any(axis=0))]
  table = ChosenBodyTable(np.array(bodies, int), np.array([v * len(acts) + k for k, v in entries], int))
  return table, [(int(outs[k]), v) for k, v in entries]


def _chosen_body(m, t: ChosenBodyTable, outs, x):
  """Compute the same as `_body` where the slots' geoms are chosen at run time."""
  sides = m.plan.contact.sides
  body = jnp.asarray(m.geom_bodyid.astype(np.int32))[jnp.concatenate([x.contact_geom[:, 0], x.contact_geom[:, 1]])]
  is_body = body == t.body[:, None, None]
  touching = ((is_body[:, : len(is_body[0]) // 2] | is_body[:, len(is_body[0]) // 2 :]) & (x.contact_exclude >= 0)).astype(
    x.qpos.dtype
  )
  weight = -touching / jnp.maximum(jnp.sum(touching, axis=1, keepdims=True), 1)
  normal, point = rows(x.contact_frame, sides.slot)[:, 0], rows(x.contact_pos, sides.slot)
  wrench = join_components(vector.cross(point - sides.at_root(x.subtree_com, body), normal), normal)
  pull = wrench[:, None] * sides.from_slots(jnp.swapaxes(weight, 0, 1))[:, :, None]
  moment = vector.dot(x.cdof[:, None], sides.to_dofs(pull, body))
  return Transmission(jnp.zeros((len(outs), 1), x.qpos.dtype), rows(_flat(moment), t.entry))


def _body(m, t: BodyTable | ChosenBodyTable, outs, x):
  """Compute adhesion: minus the mean of the normal Jacobians of the body's contacts, including contacts in the gap."""
  if isinstance(t, ChosenBodyTable):
    return _chosen_body(m, t, outs, x)
  length = jnp.zeros((len(outs), 1), x.qpos.dtype)
  if not len(t.slot):
    return Transmission(length, length[:0])
  touching = (x.contact_exclude >= 0).astype(x.qpos.dtype)
  share = -1 / jnp.maximum(mask_sum(t.out_slot, touching), 1)
  weight = t.sign[:, None].astype(touching.dtype) * rows(touching, t.slot) * rows(share, t.out)
  force = weight[:, None] * rows(x.contact_frame, t.slot)[:, 0]
  return Transmission(length, _moment(t.ends, x, rows(x.contact_pos, t.slot), jnp.zeros_like(force), force))


KINDS = {
  "scalar joint": Kind(_plan_scalar, _scalar),
  "ball joint": Kind(_plan_ball, _ball),
  "free joint": Kind(_plan_free, _free),
  "SO3 of a ball joint": Kind(_plan_so3_ball, _so3_ball),
  "SO3 of two sites": Kind(_plan_so3_sites, _so3_sites),
  "tendon": Kind(_plan_tendon, _tendon),
  "site": Kind(_plan_site, _site),
  "site with reference": Kind(_plan_ref, _ref),
  "slider-crank": Kind(_plan_crank, _crank),
  "adhesive body": Kind(_plan_body, _body),
}

TRANSMISSIONS = (
  TrnType.JOINT, TrnType.JOINTINPARENT, TrnType.SLIDERCRANK, TrnType.TENDON, TrnType.SITE, TrnType.BODY, TrnType.SO3,
)  # fmt: skip


def _kind_of(s: dict[str, Any], actuator: int) -> str:
  """Return the key in KINDS of an actuator's transmission."""
  kind = TrnType(int(s["actuator_trntype"][actuator]))
  target, second = (int(i) for i in s["actuator_trnid"][actuator])
  if kind in (TrnType.JOINT, TrnType.JOINTINPARENT):
    joint = JointType(int(s["jnt_type"][target]))
    return {JointType.BALL: "ball joint", JointType.FREE: "free joint"}.get(joint, "scalar joint")
  if kind == TrnType.SO3:
    return "SO3 of a ball joint" if second == -1 else "SO3 of two sites"
  if kind == TrnType.SITE:
    return "site" if second == -1 else "site with reference"
  return {TrnType.TENDON: "tendon", TrnType.SLIDERCRANK: "slider-crank", TrnType.BODY: "adhesive body"}[kind]
