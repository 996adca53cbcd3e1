"""Contacts and constraint rows of a Data in the packed form of mujoco.MjData.

Tests: tests/io/test_put_data.py, tests/io/test_get_data.py.
"""

import collections
from typing import Any

import mujoco
import numpy as np

from mjx_lite.actuator import transmission
from mjx_lite.collision import pairs
from mjx_lite.model import pytree
from mjx_lite.model.enums import ConstraintType, EnableBit, JointType, TrnType
from mjx_lite.model.types import Data, Model

_CONTACT_FIELDS = (
  "dist", "includemargin", "mu", "adhesion", "pos", "frame", "friction", "solref", "solreffriction", "solimp", "surfacevel",
  "dim", "exclude", "geom",
)  # fmt: skip
_ROW_FIELDS = tuple(name for name in pytree.specs(Data) if name.startswith("efc_"))
_LAW = "efc_KBIP"


def fill(result: mujoco.MjData, m: mujoco.MjModel, d: Data, moment: tuple[np.ndarray, np.ndarray]) -> None:
  """Write moments, tendon paths, contacts, rows and islands; all other fields of the MjData have been written.

  Args:
    result: the MjData.
    m: its model.
    d: Data of one world, on the host.
    moment: output and dof of each entry of actuator_moment, from `moment_entries`.
  """
  _fill_moment(result, d, moment)
  _fill_paths(result, m, d)
  slots = np.flatnonzero(d.contact.exclude >= 0)
  active = d.efc_D > 0
  mujoco._functions._realloc_con_efc(result, ncon=len(slots), nefc=0, nJ=0)  # C owns the arena, as in MJX
  _fill_contacts(result, d, slots, active)
  mujoco.mj_makeConstraint(m, result)  # C's Jacobian, in C's sparsity; the values of the rows come from d
  kind, ident = d.efc_type[active], _packed_ids(d, slots, active)
  if len(slots):
    result.contact.mu[:] = d.contact.mu[slots]  # C has overwritten mu
  if not (np.array_equal(kind, result.efc_type) and np.array_equal(ident, result.efc_id)):
    jac, law = _jacobian(m, result, d, slots, active), _laws(result, d, slots, active)
    mujoco._functions._realloc_con_efc(result, ncon=len(slots), nefc=len(jac), nJ=_count(m, jac))
    _fill_contacts(result, d, slots, active)
    _fill_jacobian(result, m, jac)
    result.efc_KBIP[:] = law
  _fill_rows(result, d, kind, ident, active)
  mujoco.mj_island(m, result)
  mujoco.mj_projectConstraint(m, result)
  if m.opt.enableflags & EnableBit.DIAGEXACT:
    _fill_rows(result, d, kind, ident, active)  # the projection changed the rows
  _fill_inertia(result, m, d)
  # fields that C computes on demand may not have been computed
  result.flg_energypos = result.flg_energyvel = result.flg_subtreevel = result.flg_rnepost = 0


class _Static(dict):
  """Fields of an MjModel by name, in the form that the plans read."""

  def __init__(self, m: mujoco.MjModel, **own: Any):
    super().__init__(**own)
    self._m = m

  def __missing__(self, name: str) -> Any:
    return getattr(self._m, name)


def moment_entries(m: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
  """Return the output and the degree of freedom of each entry of actuator_moment."""
  static, touching = _Static(m), np.zeros((0, 2), int)
  if (m.actuator_trntype == TrnType.BODY).any():
    geoms = [(p.geom1, p.geom2) for p in pairs.candidates(static, m.opt.disableflags)]
    touching = m.geom_bodyid[np.array(geoms, int).reshape(-1, 2)]
  p = transmission.plan(_Static(m, slot_chosen=True, pair_body=touching))
  return p.entry_out, p.entry_dof


def _fill_moment(result, d, entries):
  out, dof = entries
  count = np.bincount(out, minlength=len(result.moment_rownnz))
  result.moment_rownnz[:] = count
  result.moment_rowadr[:] = np.cumsum(count) - count
  result.moment_colind[: len(dof)] = dof
  result.actuator_moment[: len(dof)] = d.actuator_moment


def _fill_paths(result, m, d):
  """Write the points of the tendon paths, for drawing."""
  if m.ntendon:
    mujoco.mj_tendon(m, result)
    result.ten_length[:] = d.ten_length
    result.ten_J[:] = np.asarray(d.ten_J).reshape(result.ten_J.shape)


def read_moment(m: Model, d: mujoco.MjData) -> np.ndarray:
  """Return the moments of an MjData in the order of the Model's entries."""
  dense = np.zeros((m.nout, m.nv))
  for out, (start, count) in enumerate(zip(d.moment_rowadr, d.moment_rownnz, strict=True)):
    dense[out, d.moment_colind[start : start + count]] = d.actuator_moment[start : start + count]
  return dense[m.plan.transmission.entry_out, m.plan.transmission.entry_dof]


def _fill_inertia(result, m, d):
  """Write the inertia fields that the Data may lack; C computes them from the other fields."""
  if not hasattr(d, "crb"):
    mujoco.mj_crb(m, result)
    result.M[:] = d.M  # C's M is without armatures
  if not hasattr(d, "qLD"):
    result.qLD[:] = result.qLDiagInv[:] = 0
    if np.any(d.M):
      mujoco.mj_factorM(m, result)


def _fill_contacts(result, d, slots, active):
  if not len(slots):
    return
  c = result.contact
  for name in _CONTACT_FIELDS:
    target = getattr(c, name)
    target[...] = getattr(d.contact, name)[slots].reshape(target.shape)
  c.geom1[:], c.geom2[:] = d.contact.geom[slots].T
  c.elem[...], c.vert[...], c.flex[...] = -1, -1, -1
  c.H[...] = 0  # the arena is not cleared
  first = d.contact.efc_address[slots]
  if not len(active):
    c.efc_address[:] = -1
    return
  has = (d.contact.exclude[slots] == 0) & (first >= 0) & active[first]
  c.efc_address[:] = np.where(has, (np.cumsum(active) - 1)[first], -1)


def _packed_ids(d, slots, active):
  """Return efc_id of the active rows; a contact has its packed index."""
  kind, ident = d.efc_type[active], d.efc_id[active].copy()
  number = np.zeros(max(len(d.contact.dist), 1), int)
  number[slots] = np.arange(len(slots))
  of_contact = kind >= ConstraintType.CONTACT_FRICTIONLESS
  ident[of_contact] = number[ident[of_contact]]
  return ident


def _fill_rows(result, d, kind, ident, active):
  result.ne = int(np.sum(kind == ConstraintType.EQUALITY))
  result.nf = int(np.sum((kind == ConstraintType.FRICTION_DOF) | (kind == ConstraintType.FRICTION_TENDON)))
  result.nl = int(np.sum((kind == ConstraintType.LIMIT_JOINT) | (kind == ConstraintType.LIMIT_TENDON)))
  for name in _ROW_FIELDS:
    if name == _LAW and not hasattr(d, _LAW):
      continue  # keep C's value
    target = getattr(result, name)
    target[...] = getattr(d, name)[active].reshape(target.shape)
  result.efc_id[:] = ident


def _jacobian(m, result, d, slots, active):
  """Return the rows of J (nefc, nv) where C would have other rows, as at the edge of a limit.

  Rows of contacts and equalities are C's. Rows of friction and limits are written here, because the sides of a limit that are
  rows may differ.
  """
  kind, ident, packed = d.efc_type, d.efc_id, _packed_ids(d, slots, active)
  theirs, jac = _rows_of_c(m, result), np.zeros((int(active.sum()), m.nv))
  for out, r in enumerate(np.flatnonzero(active)):
    k = int(ident[r])
    first = int(np.flatnonzero((kind == kind[r]) & (ident == k))[0])
    if kind[r] == ConstraintType.FRICTION_DOF:
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
      jac[out] = theirs.get((int(kind[r]), int(packed[out]), int(r) - first), 0)
  return jac


def _laws(result, d, slots, active):
  """Return the rows of efc_KBIP (nefc, 4) from C; zero for rows that C does not have."""
  theirs = _by_row(result, result.efc_KBIP.copy())
  ours = _row_keys(d.efc_type[active], _packed_ids(d, slots, active))
  return np.array([theirs.get(key, np.zeros(4)) for key in ours]).reshape(-1, 4)


def _rows_of_c(m, result):
  """Return the rows of J in an MjData, by the keys of `_row_keys`."""
  if not result.nefc or not m.nv:
    return {}
  jac = result.efc_J
  if mujoco.mj_isSparse(m):
    dense = np.zeros((result.nefc, m.nv))
    mujoco.mju_sparse2dense(dense, jac, result.efc_J_rownnz, result.efc_J_rowadr, result.efc_J_colind)
    jac = dense
  jac = jac.reshape(-1, m.nv)[: result.nefc].copy()  # C allocates rows that it drops
  return _by_row(result, jac)


def _by_row(result, values):
  """Return values of the rows of an MjData, by the keys of the rows."""
  return dict(zip(_row_keys(result.efc_type, result.efc_id), values, strict=True))


def _row_keys(kind, ident):
  """Return the key of each row: type, element, and index among the rows of this element."""
  seen, out = collections.Counter(), []
  for key in zip(kind.tolist(), ident.tolist(), strict=True):
    out.append((*key, seen[key]))
    seen[key] += 1
  return out


def _count(m, jac):
  return int(np.count_nonzero(jac)) if mujoco.mj_isSparse(m) else jac.size


def _fill_jacobian(result, m, jac):
  if not len(jac):
    return
  if not mujoco.mj_isSparse(m):
    result.efc_J[:] = jac.ravel()
    return
  rows, cols = np.nonzero(jac)
  result.efc_J[:] = jac[rows, cols]
  result.efc_J_colind[:] = cols
  result.efc_J_rownnz[:] = (jac != 0).sum(axis=1)
  result.efc_J_rowadr[:] = np.cumsum(result.efc_J_rownnz) - result.efc_J_rownnz
  result.efc_J_rowsuper[:] = 0  # no two rows are known to have the same columns
