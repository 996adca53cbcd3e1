"""Parameters that follow from other parameters, as differentiable functions of them.

MuJoCo computes these parameters once, in `mj_setConst`: masses of subtrees, inverse inertias at qpos0 that scale the
constraints' impedance, lengths at qpos0, reference poses. After a mass of a Model is replaced, these parameters must be
computed again: only then is the Model consistent and its derivative complete.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import transmission
from mjx_lite.math import quat, safe, spatial, vector
from mjx_lite.math.groups import GroupPlan, plan_groups
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.enums import JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.rows import each
from mjx_lite.ops.select import join, put, rows, rows_or_zero
from mjx_lite.smooth import com, geom_const, inertia, kinematics, mass
from mjx_lite.tendon import inertia as tendon_inertia
from mjx_lite.tendon import tendon


class SetConstPlan(NamedTuple):
  """Index tables."""

  body: np.ndarray  # bodies that move, without those in `slider`
  slider: np.ndarray  # bodies that only slide along their own axes: C uses only the mass of these bodies
  body_dof: np.ndarray  # (len(body), nv) 1 where the dof moves the body
  dof_mean: SumPlan  # dof <- dofs whose inverse inertias are averaged
  dof_slider: np.ndarray  # (nv,) index in `slider` of the dof's body, -1 for other bodies
  length_joint: np.ndarray  # joints whose distances from two bodies count as sizes of these bodies
  length_body: np.ndarray  # (2, njnt) these bodies: the joint's body and its parent
  length: GroupPlan  # body <- distances (joint to own body, joint to parent, geoms)
  rotates: np.ndarray  # (nv,) whether the dof is a rotation


class Constants(NamedTuple):
  """Result of `constants`, by Model's names."""

  body_subtreemass: jax.Array
  body_invweight0: jax.Array
  dof_M0: jax.Array
  dof_invweight0: jax.Array
  dof_length: jax.Array
  geom_aabb: jax.Array
  geom_rbound: jax.Array
  geom_fluid: jax.Array
  tendon_length0: jax.Array
  tendon_invweight0: jax.Array
  actuator_length0: jax.Array
  actuator_acc0: jax.Array
  eq_data: jax.Array
  cam_pos0: jax.Array
  cam_poscom0: jax.Array
  cam_mat0: jax.Array
  light_pos0: jax.Array
  light_poscom0: jax.Array
  light_dir0: jax.Array


def plan(s: dict[str, Any], about_com: com.ComPlan) -> SetConstPlan:
  """Build the index tables from the static fields of the model."""
  nbody, nv, dof_body = s["nbody"], s["nv"], s["dof_bodyid"]
  moves = s["body_dofnum"][s["body_weldid"]] > 0
  moves[0] = False
  slides = moves & (s["body_simple"] == 2)
  body, slider = np.flatnonzero(moves & ~slides), np.flatnonzero(slides)
  slider_index = np.full(nbody, -1)
  slider_index[slider] = np.arange(len(slider))

  # the three dofs of a rotation, and of a free translation, share one value
  first = np.arange(nv) - s["jnt_dofadr"][s["dof_jntid"]]
  in_triple = np.isin(s["jnt_type"][s["dof_jntid"]], (JointType.FREE, JointType.BALL))
  block = np.arange(nv) - np.where(in_triple, first % 3, 0)
  same = block[:, None] == block
  mean = same / same.sum(axis=1, keepdims=True)

  owner = np.concatenate([s["jnt_bodyid"], s["body_parentid"][s["jnt_bodyid"]], s["geom_bodyid"]]).astype(int)
  return SetConstPlan(
    body=body,
    slider=slider,
    body_dof=about_com.ancestor_dof.matrix[body] > 0,
    dof_mean=plan_sum(mean),
    dof_slider=slider_index[dof_body],
    length_joint=np.arange(s["njnt"]),
    length_body=np.stack([s["jnt_bodyid"], s["body_parentid"][s["jnt_bodyid"]]]).astype(int),
    length=plan_groups(owner, nbody),
    rotates=about_com.rotates,
  )


def constants(m: Model) -> Constants:
  """Compute every float field of Model that `mj_setConst` writes, from the fields that it reads.

  MuJoCo's compiler makes statistics (`stat`), spring lengths, lengthrange and damping ratios; `mj_setConst` and this function
  do not change them.

  Source: `mj_setConst`.
  Gradient: for `actuator_acc0`, zero where an actuator moves nothing; for `dof_length`, that of the largest distance.
  """
  p = m.plan.set_const
  width = max(x.shape[-1] for x in jax.tree.leaves(m))
  total = vector.total(m.body_mass)[None]
  subtree = jnp.concatenate([total, mask_sum(m.plan.com.subtree, m.body_mass)[1:]])
  shapes = geom_const.geom_const(m)
  m = m.tree_replace({"body_subtreemass": subtree, **shapes._asdict()})

  # positions at qpos0, without contacts
  mocap = m.body_mocapid >= 0
  order = np.flatnonzero(mocap)[m.body_mocapid[mocap].argsort()]
  wide = lambda x: jnp.broadcast_to(x, (*x.shape[:-1], width))  # noqa: E731
  x = kinematics.kinematics(m, wide(m.qpos0), wide(rows(m.body_pos, order)), wide(rows(m.body_quat, order)))
  c = com.com_pos(m, x.xipos, x.ximat, x.xmat, x.xanchor, x.xaxis)
  none = jnp.zeros((0, width), c.cdof.dtype)
  t = tendon.Tendon(none, none)
  if m.ntendon:
    t = tendon.tendon(m, wide(m.qpos0), x.site_xpos, x.geom_xpos, x.geom_xmat, c.subtree_com, c.cdof)
  crb = inertia.crb(m, c.cinert, c.cdof)
  packed = crb.M + tendon_inertia.inertia(m, t.ten_J) if m.plan.tendon_inertia.present else crb.M
  factor = mass.factor(m, c.cinert, c.cdof, packed)
  act = transmission.transmission(m, _pose(m, wide(m.qpos0), x, c, t))

  inv = _inverse_weights(m, p, x, c, t, act, lambda b: mass.solve(m, factor, b))
  diagonal, dof_length = rows(crb.M, m.plan.inertia.diagonal_entry), _dof_length(m, p, x)
  eq_data = _eq_data(m, x)
  cam_pos0, cam_poscom0, cam_mat0 = _cameras(m, x, c)
  light_pos0, light_poscom0, light_dir0 = _lights(m, x, c)
  return Constants(
    body_subtreemass=subtree, body_invweight0=inv.body,
    dof_M0=diagonal, dof_invweight0=inv.dof, dof_length=dof_length,
    **shapes._asdict(),
    tendon_length0=t.ten_length, tendon_invweight0=inv.tendon, actuator_length0=act.length, actuator_acc0=inv.actuator,
    eq_data=eq_data, cam_pos0=cam_pos0, cam_poscom0=cam_poscom0, cam_mat0=cam_mat0,
    light_pos0=light_pos0, light_poscom0=light_poscom0, light_dir0=light_dir0,
  )  # fmt: skip


def _pose(m, qpos, x, c, t):
  """Return the inputs of transmissions, without contacts."""
  n, width = m.plan.contact.ncon, qpos.shape[-1]
  pos, frame = jnp.zeros((n, 3, width), qpos.dtype), jnp.zeros((n, 3, 3, width), qpos.dtype)
  no_contact, geom = jnp.full((n, width), -1), jnp.zeros((n, 2, width), jnp.int32)
  return transmission.Pose(
    qpos=qpos,
    xquat=x.xquat,
    site_xpos=x.site_xpos,
    site_xmat=x.site_xmat,
    subtree_com=c.subtree_com,
    cdof=c.cdof,
    ten_length=t.ten_length,
    ten_J=t.ten_J,
    contact_pos=pos,
    contact_frame=frame,
    contact_exclude=no_contact,
    contact_geom=geom,
  )


class _InverseWeights(NamedTuple):
  body: jax.Array
  dof: jax.Array
  tendon: jax.Array
  actuator: jax.Array


def _inverse_weights(m, p, x, c, t, act, solve) -> _InverseWeights:
  """Return J M^-1 J' of bodies, dofs and tendons, and |M^-1 J'| of actuators, from one solve with all rows J."""
  nv, nb, width = m.nv, len(p.body), c.cdof.shape[-1]
  moved = jnp.asarray(p.body_dof)[:, :, None, None]
  rotation, shift = spatial.split(c.cdof)
  arm = (rows(x.xipos, p.body) - rows(c.subtree_com, m.body_rootid[p.body]))[:, None]
  jac = jnp.concatenate(
    [jnp.where(moved, shift + vector.cross(rotation, arm), 0), jnp.where(moved, rotation, 0) + 0 * arm], axis=-2
  )
  jac = jnp.moveaxis(jac, 2, 1).reshape(6 * nb, nv, width)
  unit = jnp.broadcast_to(jnp.eye(nv, dtype=jac.dtype)[..., None], (nv, nv, width))
  k = m.plan.transmission
  moment = _scatter(act.moment, k.entry_out, k.entry_dof, m.nout, nv)
  jac = join([jac, unit, tendon.dense(m, t.ten_J), moment])
  if not nv:
    none = lambda *shape: jnp.zeros((*shape, width), jac.dtype)  # noqa: E731
    return _InverseWeights(none(m.nbody, 2), none(0), none(m.ntendon), none(m.nout))

  acc = each(jax.vmap(solve), jac)
  weight = jnp.sum(jac * acc, axis=1)
  body_weight = weight[: 6 * nb].reshape(nb, 2, 3, width)
  body_weight = (body_weight[:, :, 0] + body_weight[:, :, 1] + body_weight[:, :, 2]) / 3
  light = safe.quotient(1, rows(m.body_mass, p.slider))
  light = jnp.broadcast_to(light, (len(p.slider), width))
  body = jnp.zeros((m.nbody, 2, width), jac.dtype)
  body = put(put(body, p.body, body_weight), p.slider, jnp.stack([light, jnp.zeros_like(light)], axis=1))
  dof = mask_sum(p.dof_mean, weight[6 * nb : 6 * nb + nv])
  dof = jnp.where((p.dof_slider >= 0)[:, None], rows_or_zero(light, p.dof_slider), dof)
  norm = safe.sqrt(jnp.sum(acc[6 * nb + nv + m.ntendon :] ** 2, axis=1))
  return _InverseWeights(body, dof, weight[6 * nb + nv : 6 * nb + nv + m.ntendon], norm)


def _scatter(entry, row, col, nrow, ncol):
  """Return the dense array (nrow, ncol, W) of packed entries at constant indices."""
  index = np.full((nrow, ncol), -1)
  index[row, col] = np.arange(len(row))
  return rows_or_zero(entry, index.ravel()).reshape(nrow, ncol, entry.shape[-1])


def _dof_length(m, p, x):
  """Return lengths (nv, W) that convert rotation to displacement: body size, or 1 for slides. Source: `mj_setConst`."""
  dist = [safe.norm(rows(x.xipos, b) - x.xanchor) for b in p.length_body]
  reach = m.geom_rbound + safe.norm(rows(x.xipos, m.geom_bodyid) - x.geom_xpos)
  dist.append(jnp.where(m.geom_rbound > 0, reach, 0))
  dist = join([*dist, jnp.zeros((1, 1), x.xipos.dtype)])
  index = np.pad(p.length.members, ((0, 0), (0, 1)), constant_values=p.length.nrow)  # a zero for bodies without distances
  size = jnp.maximum(safe.largest(rows(dist, index), axis=1), 1e-5)
  size = jnp.where((np.arange(m.nbody) == 0)[:, None], 1e-5, size)
  return jnp.where(p.rotates[:, None], rows(size, m.dof_bodyid), 1)


def _eq_data(m, x):
  """Return eq_data with the second anchor of constraints between bodies, and the relative pose of welds that request it."""
  p = m.plan.rows.equality
  is_weld = np.isin(np.arange(len(p.point)), p.rotational)
  between_bodies = np.flatnonzero(~p.is_site)
  if not len(between_bodies):
    return m.eq_data
  point = p.point[between_bodies]
  given, found = np.where(is_weld, p.body[::-1], p.body)[:, between_bodies]
  data = rows(m.eq_data, point)
  anchor = rows(x.xpos, given) + vector.mat_vec(rows(x.xmat, given), data[:, :3])
  anchor = vector.mat_t_vec(rows(x.xmat, found), anchor - rows(x.xpos, found))
  q1, q2 = (rows(x.xquat, b) for b in p.body[:, between_bodies])
  rotation = quat.mul(quat.conjugate(q1), q2)
  data = jnp.broadcast_to(data, (*data.shape[:2], anchor.shape[-1]))
  fresh = jnp.concatenate([data[:, :3], anchor, rotation, data[:, 10:]], axis=1)
  welded = is_weld[between_bodies][:, None, None]
  kept = jnp.where(data[:, 11:] != 0, fresh, data)
  fresh = jnp.concatenate([fresh[:, :6], data[:, 6:]], axis=1)
  return put(m.eq_data, point, jnp.where(welded, kept, fresh))


def _position0(m, body, target, pos, x, c):
  """Return positions relative to the body and to a centre of mass, with cameras or lights fixed to their bodies."""
  arm = quat.rotate(rows(x.xquat, body), pos)
  return arm, rows(x.xpos, body) + arm - rows(c.subtree_com, np.where(target >= 0, target, body))


def _cameras(m, x, c):
  at = _position0(m, m.cam_bodyid, m.cam_targetbodyid, m.cam_pos, x, c)
  return *at, quat.to_mat(quat.mul(rows(x.xquat, m.cam_bodyid), m.cam_quat))


def _lights(m, x, c):
  at = _position0(m, m.light_bodyid, m.light_targetbodyid, m.light_pos, x, c)
  return *at, safe.normalize(quat.rotate(rows(x.xquat, m.light_bodyid), m.light_dir))
