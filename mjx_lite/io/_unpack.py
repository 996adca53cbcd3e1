"""Contacts and constraint rows of a mujoco.MjData in the slots of a Data.

Tests: tests/io/test_put_data.py.
"""

from typing import Any

import mujoco
import numpy as np

from mjx_lite.model import pytree
from mjx_lite.model.enums import ConstraintType
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Contact, Data, Model

_CONSTANT = ("geom", "dim", "efc_address")  # constant for contacts; `geom` and `dim` only if slots are constant
_LIMITS = (ConstraintType.LIMIT_JOINT, ConstraintType.LIMIT_TENDON)


def read(m: Model, d: mujoco.MjData, start: Data) -> dict[str, Any]:
  """Return the fields of contacts and rows of the MjData, in the slots to which they belong, and the status.

  Args:
    m: the model.
    d: the MjData.
    start: Data without contacts, made of NumPy arrays.

  Raises:
    ValueError: for a contact or a row that the model cannot have.
  """
  slot, row = _slots(m, d), np.zeros(0, int)
  if d.nefc:
    row = _rows(m, d, slot)
  changes: dict[str, Any] = {"contact": _contacts(m, d, start.contact, slot)}
  for name in pytree.present(start):
    if name.startswith("efc_") and name not in ("efc_id", "efc_type"):
      changes[name] = _placed(getattr(start, name), row, getattr(d, name))
  if m.plan.contact.mixed:
    changes["efc_type"] = _placed(start.efc_type, row, d.efc_type)
  changes["solver_niter"] = np.array(d.solver_niter[: max(1, d.nisland)].max(), start.solver_niter.dtype)
  changes["solver_fwdinv"] = np.array(d.solver_fwdinv, start.solver_fwdinv.dtype)
  most = np.where(np.arange(len(start.status.most)) == 0, d.ncon, 0).astype(np.int32)
  status = start.status.replace(most=most)
  if (slot < 0).any():
    full = np.arange(len(Warning)) == Warning.CONTACTFULL
    status = status.replace(bits=status.bits | (1 << int(Warning.CONTACTFULL)), count=status.count + full.astype(np.int32))
  changes["status"] = status
  return changes


def _placed(into: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Return a copy with values at the indices `index`; values with an index below zero are left out."""
  out, there = into.copy(), index >= 0
  out[index[there]] = np.reshape(values, (len(index), *into.shape[1:]))[there]
  return out


def _contacts(m: Model, d: mujoco.MjData, start: Contact, slot: np.ndarray) -> Contact:
  """Return the contacts in their slots."""
  names = set(pytree.specs(Contact)) - {*_CONSTANT}
  if m.plan.contact.chosen:
    names |= {"geom", "dim"}
  elif m.plan.contact.mixed:
    names |= {"dim"}
  return start.replace(**{name: _placed(getattr(start, name), slot, getattr(d.contact, name)) for name in names})


def _slots(m: Model, d: mujoco.MjData) -> np.ndarray:
  """Return the slot (ncon,) of each contact, -1 where no slot is left."""
  p, geoms, dims = m.plan.collision, np.reshape(d.contact.geom, (-1, 2)), d.contact.dim
  if m.plan.contact.chosen:
    for pair, dim in zip(geoms, dims, strict=True):
      _check_dim(m, pair, dim, dim <= m.plan.contact.ndir)
    return np.where(np.arange(d.ncon) < len(p.slot_dim), np.arange(d.ncon), -1)
  of_pair: dict[tuple[int, int], list[int]] = {}
  for i, pair in enumerate(p.slot_geom.tolist()):
    of_pair.setdefault((pair[0], pair[1]), []).append(i)
  out = np.full(d.ncon, -1)
  for k, (pair, dim) in enumerate(zip(geoms.tolist(), dims, strict=True)):
    free = of_pair.get((pair[0], pair[1]))
    if free is None:
      raise ValueError(
        f"put_data: the MjData has a contact of {_geoms(m, pair)}, which cannot touch in the Model: "
        "put the model of this MjData, with contacts enabled."
      )
    able = [i for i in free if m.plan.contact.mixed or p.slot_dim[i] == dim]
    _check_dim(m, pair, dim, able or not free)
    if able:
      out[k] = able[0]
      free.remove(able[0])
  return out


def _check_dim(m: Model, pair: Any, dim: int, is_right: Any) -> None:
  if not is_right:
    raise ValueError(
      f"put_data: the contact of {_geoms(m, pair)} has condim {dim}, and in the Model this contact has another: "
      "put the model of this MjData."
    )


def _geoms(m: Model, pair: Any) -> str:
  """Return the names of two geoms, or their indices."""

  def name(i):
    start = m.name_geomadr[i]
    return m.names[start : m.names.index(b"\0", start)].decode()

  return " and ".join(f"geom '{name(i)}'" if name(i) else f"geom {i}" for i in pair)


def _rows(m: Model, d: mujoco.MjData, slot: np.ndarray) -> np.ndarray:
  """Return the row (nefc,) of each row of the MjData.

  The row is -1 for contacts that have no slot, and for rows that are zero in the Jacobian.
  """
  p, first_of_slots = m.plan.rows, m.plan.contact_force.first_row if len(m.plan.rows.address) else len(m.plan.rows.type)
  ours: dict[tuple[int, int], list[int]] = {}
  for i, key in enumerate(zip(p.type[:first_of_slots].tolist(), p.id[:first_of_slots].tolist(), strict=True)):
    ours.setdefault(key, []).append(i)
  out, kinds, ids, begun = np.full(d.nefc, -1), d.efc_type.tolist(), d.efc_id.tolist(), d.contact.efc_address
  for r, (kind, i) in enumerate(zip(kinds, ids, strict=True)):
    if kind >= ConstraintType.CONTACT_FRICTIONLESS:
      out[r] = p.address[slot[i]] + r - begun[i] if slot[i] >= 0 else -1
      continue
    free = ours.get((kind, i), [])
    upper = kind in _LIMITS and len(free) == 2 and _is_upper(m, d, r)
    if free:
      out[r] = free.pop(1 if upper else 0)
    elif _jacobian(d, r).any():
      raise ValueError(
        f"put_data: the MjData has a constraint row of type {ConstraintType(kind).name} of element {i}, for which the Model "
        "has none: put the model of this MjData; if a friction loss was zero, name its field in put_model(..., keep=...)."
      )
  return out


def _is_upper(m: Model, d: mujoco.MjData, r: int) -> bool:
  """Return whether a row of a limit is that of the upper bound, if it is the limit's only row or the first of two."""
  i, jac = d.efc_id[r], _jacobian(d, r)
  if d.efc_type[r] == ConstraintType.LIMIT_JOINT:
    return bool(jac[m.jnt_dofadr[i]] < 0)
  start, count = m.ten_J_rowadr[i], m.ten_J_rownnz[i]
  along = jac[m.ten_J_colind[start : start + count]] @ np.ravel(d.ten_J)[start : start + count]
  if along:
    return bool(along < 0)
  low, high = d.model.tendon_range[i]
  return abs(d.ten_length[i] - low - d.efc_pos[r]) > abs(high - d.ten_length[i] - d.efc_pos[r])


def _jacobian(d: mujoco.MjData, r: int) -> np.ndarray:
  """Return a row (nv,) of the MjData's Jacobian."""
  out = np.zeros(d.model.nv)
  if mujoco.mj_isSparse(d.model):
    entry = slice(d.efc_J_rowadr[r], d.efc_J_rowadr[r] + d.efc_J_rownnz[r])
    out[d.efc_J_colind[entry]] = d.efc_J[entry]
  else:
    out[:] = d.efc_J.reshape(-1, d.model.nv)[r]
  return out
