"""Contacts and constraint rows of a Data in the packed form of mujoco.MjData."""

from typing import Any

import mujoco
import numpy as np

from mjx_lite.collision import pairs
from mjx_lite.core import pytree
from mjx_lite.core.enums import ConeType, ConstraintType, JointType, TrnType
from mjx_lite.core.types import Data, Model
from mjx_lite.smooth import transmission

_CONTACT_NUMBERS = ("dist", "includemargin", "mu", "adhesion")
_CONTACT_VECTORS = ("pos", "friction", "solref", "solreffriction", "solimp", "surfacevel")


def fill(result: mujoco.MjData, m: mujoco.MjModel, d: Data, slots: np.ndarray, active: np.ndarray) -> None:
  """Write contacts and rows; everything else of the MjData has been written.

  Args:
    result: the MjData.
    m: its model.
    d: Data of one world, on the host.
    slots: contact slots that hold a contact.
    active: (nefc,) rows that C would have.
  """
  jac = np.zeros((int(active.sum()), m.nv))
  _fill_jacobian(jac, m, result, d, active)
  nonzero = jac != 0
  sparse = bool(mujoco.mj_isSparse(m))
  count = int(nonzero.sum()) if sparse else jac.size
  mujoco._functions._realloc_con_efc(result, ncon=len(slots), nefc=len(jac), nJ=count)  # the arena is C's, as in MJX
  _fill_contacts(result, d, slots, active)
  _fill_rows(result, d, slots, active)
  if not len(jac):
    return
  if sparse:
    rows, cols = np.nonzero(nonzero)
    result.efc_J[:] = jac[rows, cols]
    result.efc_J_colind[:] = cols
    result.efc_J_rownnz[:] = nonzero.sum(axis=1)
    result.efc_J_rowadr[:] = np.cumsum(result.efc_J_rownnz) - result.efc_J_rownnz
  else:
    result.efc_J[:] = jac.ravel()


class _Static(dict):
  """Fields of an MjModel by name, as the plans read them."""

  def __init__(self, m: mujoco.MjModel, **own: Any):
    super().__init__(**own)
    self._m = m

  def __missing__(self, name: str) -> Any:
    return getattr(self._m, name)


def fill_moment(result: mujoco.MjData, m: mujoco.MjModel, d: Data) -> None:
  """Write the moments of the actuators with their sparsity."""
  static, touching = _Static(m), np.zeros((0, 2), int)
  if (m.actuator_trntype == TrnType.BODY).any():
    geoms = [(p.geom1, p.geom2) for p in pairs.candidates(static, m.opt.disableflags)]
    touching = m.geom_bodyid[np.array(geoms, int).reshape(-1, 2)]
  p = transmission.plan(_Static(m, slot_chosen=True, pair_body=touching))
  count = np.bincount(p.entry_out, minlength=m.nout)
  result.moment_rownnz[:] = count
  result.moment_rowadr[:] = np.cumsum(count) - count
  result.moment_colind[: len(p.entry_dof)] = p.entry_dof
  result.actuator_moment[: len(p.entry_dof)] = d.actuator_moment


def read_moment(m: Model, d: mujoco.MjData) -> np.ndarray:
  """Moments of an MjData in the Model's entries."""
  dense = np.zeros((m.nout, m.nv))
  for out, (start, count) in enumerate(zip(d.moment_rowadr, d.moment_rownnz, strict=True)):
    dense[out, d.moment_colind[start : start + count]] = d.actuator_moment[start : start + count]
  return dense[m.plan.transmission.entry_out, m.plan.transmission.entry_dof]


def _fill_contacts(result, d, slots, active):
  number = np.cumsum(active) - 1
  for i, s in enumerate(slots):
    c = result.contact[i]
    for name in _CONTACT_NUMBERS:
      setattr(c, name, float(getattr(d.contact, name)[s]))
    for name in _CONTACT_VECTORS:
      getattr(c, name)[:] = getattr(d.contact, name)[s]
    c.frame[:] = np.asarray(d.contact.frame[s]).ravel()
    c.dim, c.exclude = int(d.contact.dim[s]), int(d.contact.exclude[s])
    c.geom1, c.geom2 = (int(g) for g in d.contact.geom[s])
    c.geom[:] = d.contact.geom[s]
    c.elem[:], c.vert[:], c.flex[:] = -1, -1, -1
    c.H[:] = 0  # the arena is not cleared
    first = int(d.contact.efc_address[s])
    c.efc_address = int(number[first]) if not c.exclude and active[first] else -1


def _fill_rows(result, d, slots, active):
  kind = np.asarray(d.efc_type)[active]
  result.ne = int(np.sum(kind == ConstraintType.EQUALITY))
  result.nf = int(np.sum((kind == ConstraintType.FRICTION_DOF) | (kind == ConstraintType.FRICTION_TENDON)))
  result.nl = int(np.sum((kind == ConstraintType.LIMIT_JOINT) | (kind == ConstraintType.LIMIT_TENDON)))
  for name in pytree.specs(Data):
    if name.startswith("efc_"):
      target = getattr(result, name)
      target[...] = np.asarray(getattr(d, name))[active].reshape(target.shape)
  slot_number = np.zeros(max(len(d.contact.dist), 1), int)
  slot_number[slots] = np.arange(len(slots))
  is_contact = kind >= ConstraintType.CONTACT_FRICTIONLESS
  result.efc_id[is_contact] = slot_number[result.efc_id[is_contact]]


def _fill_jacobian(jac, m, result, d, active):
  """Rows of J by C's own point Jacobians."""
  kind, ident = np.asarray(d.efc_type), np.asarray(d.efc_id)
  equalities = _equality_rows(m, result) if (kind[active] == ConstraintType.EQUALITY).any() else {}
  for out, r in enumerate(np.flatnonzero(active)):
    k = int(ident[r])
    first = int(np.flatnonzero((kind == kind[r]) & (ident == k))[0])
    if kind[r] == ConstraintType.EQUALITY:
      jac[out] = equalities.get((k, int(r) - first), 0)
    elif kind[r] == ConstraintType.FRICTION_DOF:
      jac[out, k] = 1
    elif kind[r] in (ConstraintType.FRICTION_TENDON, ConstraintType.LIMIT_TENDON):
      entry = slice(m.ten_J_rowadr[k], m.ten_J_rowadr[k] + m.ten_J_rownnz[k])
      jac[out, m.ten_J_colind[entry]] = result.ten_J[entry] * (1 if r == first else -1)
    elif kind[r] == ConstraintType.LIMIT_JOINT:
      adr = m.jnt_dofadr[k]
      if m.jnt_type[k] == JointType.BALL:
        axis = np.zeros(3)
        q = np.asarray(d.qpos[m.jnt_qposadr[k] : m.jnt_qposadr[k] + 4], float)
        mujoco.mju_quat2Vel(axis, q / np.linalg.norm(q), 1.0)
        jac[out, adr : adr + 3] = -axis / np.linalg.norm(axis)
      else:
        jac[out, adr] = 1 if r == first else -1
    else:
      jac[out] = _contact_row(m, result, d, k, int(r) - first)


def _equality_rows(m, result):
  """Rows of the active equalities as C makes them, by constraint and row."""
  scratch = mujoco.MjData(m)
  for name in ("qpos", "qvel", "eq_active", "mocap_pos", "mocap_quat"):
    getattr(scratch, name)[...] = getattr(result, name)
  mujoco.mj_kinematics(m, scratch)
  mujoco.mj_comPos(m, scratch)
  mujoco.mj_tendon(m, scratch)
  mujoco.mj_makeConstraint(m, scratch)
  jac = scratch.efc_J
  if mujoco.mj_isSparse(m):
    dense = np.zeros((scratch.nefc, m.nv))
    mujoco.mju_sparse2dense(dense, jac, scratch.efc_J_rownnz, scratch.efc_J_rowadr, scratch.efc_J_colind)
    jac = dense
  jac = jac.reshape(-1, m.nv)[: scratch.nefc]  # C keeps room for rows that it drops
  ident = np.asarray(scratch.efc_id[: scratch.ne])
  return {(int(k), int(np.sum(ident[:r] == k))): jac[r] for r, k in enumerate(ident)}


def _contact_row(m, result, d, slot, edge):
  frame, point = np.asarray(d.contact.frame[slot], float), np.asarray(d.contact.pos[slot], float)
  linear, turning = np.zeros((2, 3, m.nv)), np.zeros((2, 3, m.nv))
  for side, geom in enumerate(d.contact.geom[slot]):
    mujoco.mj_jac(m, result, linear[side], turning[side], point, int(m.geom_bodyid[geom]))
  rows = np.concatenate([frame @ (linear[1] - linear[0]), frame @ (turning[1] - turning[0])])
  if d.contact.dim[slot] == 1:
    return rows[0]
  if m.opt.cone == ConeType.ELLIPTIC:
    return rows[edge]
  direction, sign = edge // 2 + 1, 1 - 2 * (edge % 2)
  return rows[0] + sign * d.contact.friction[slot][direction - 1] * rows[direction]
