"""Compare every stage field with MuJoCo C after one step from the same state; differences carry the model's names.

`mjx-lite check` and the parity tests use this module. Both engines receive only the state, so a field that a stage does not
write cannot be right by chance. Contacts and constraint rows are compared in C's packed order, as `get_data` returns them.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import mujoco
import numpy as np

from mjx_lite.api import step
from mjx_lite.batching.compiling import jit
from mjx_lite.io.data import get_data, put_data
from mjx_lite.io.model import put_model

# stages in the order of a step, with MuJoCo's names of the fields that each stage writes
STAGE_FIELDS: dict[str, tuple[str, ...]] = {
  "kinematics": (
    *("xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis"),
    *("xiquat", "geom_xpos", "geom_xmat", "geom_xquat", "site_xpos", "site_xmat", "site_xquat"),
  ),
  "com_pos": ("subtree_com", "cinert", "cdof"),
  "camlight": ("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
  "tendon": ("ten_length", "ten_J"),
  "crb": ("crb", "M"),
  "factor_m": ("qLD", "qLDiagInv"),
  "collision": (
    *("ncon", "contact.geom", "contact.dim", "contact.dist", "contact.pos", "contact.frame", "contact.includemargin"),
    *("contact.friction", "contact.solref", "contact.solreffriction", "contact.solimp", "contact.surfacevel"),
    *("contact.adhesion", "contact.exclude"),
  ),
  "transmission": ("actuator_length", "actuator_moment"),
  "make_constraint": (
    *("nefc", "ne", "nf", "nl", "efc_type", "efc_id", "contact.efc_address", "efc_J", "efc_pos", "efc_margin"),
    *("efc_frictionloss", "efc_diagA", "efc_KBIP", "efc_D", "efc_R", "contact.mu"),
  ),
  "com_vel": ("cvel", "cdof_dot"),
  "fwd_velocity": ("actuator_velocity", "ten_velocity"),
  "passive": ("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_adhesion", "qfrc_passive"),
  "rne": ("qfrc_bias",),
  "reference_constraint": ("efc_vel", "efc_aref"),
  "fwd_actuation": ("act_dot", "actuator_force", "qfrc_actuator"),
  "fwd_acceleration": ("qfrc_smooth", "qacc_smooth"),
  "solve": ("qacc", "efc_force", "efc_state", "qfrc_constraint"),
  "sensor": ("sensordata",),
  "energy": ("energy",),
  "integrate": ("time", "act", "history", "qvel", "qpos", "plastic", "qacc_warmstart"),
}

TOLERANCE = 1e-10
# fields that depend on the solver's optimum have a larger tolerance
SOLVED = frozenset(
  ["qacc", "efc_force", "qfrc_constraint", "sensordata", "time", "act", "history", "qvel", "qpos", "plastic", "qacc_warmstart"]
)
SOLVED_TOLERANCE = 1e-8


class FieldError(NamedTuple):
  """The worst difference of one field between the engine and C."""

  stage: str  # the function that writes the field
  field: str  # MuJoCo's name
  worst: float  # relative error as `relative_error` defines it; inf for NaN or another size
  element: tuple[int, ...]  # index of the worst element in the field
  name: str  # description of the worst element with the names of the model
  ours: float
  theirs: float

  @property
  def tolerance(self) -> float:
    """Largest `worst` that counts as equal."""
    return SOLVED_TOLERANCE if self.field in SOLVED else TOLERANCE

  @property
  def ok(self) -> bool:
    """Whether the field is equal to C's within its tolerance."""
    return self.worst <= self.tolerance

  def __str__(self) -> str:
    return (
      f"{self.stage}: {self.field} of {self.name} is {self.ours:.17g}, C has {self.theirs:.17g} "
      f"(relative error {self.worst:.1e}, allowed {self.tolerance:.0e})"
    )


class Engine:
  """A Model with one compiled step. Pass the same Engine to `compare_stages` for many states.

  The options are those of `put_model`.
  """

  def __init__(self, mj_model: mujoco.MjModel, **options: Any):
    self.mj_model = mj_model
    self.m = put_model(mj_model, **options)
    self._step = jit(step)

  def step(self, state: mujoco.MjData) -> mujoco.MjData:
    """Take one step; return an MjData in C's packed order, with derived fields of the state before the integration."""
    before = put_data(self.m, state, keep="all")
    after = self._step(self.m, before)
    # get_data packs rows by qpos: use the qpos at which the rows were computed
    result: Any = get_data(self.mj_model, after.replace(qpos=before.qpos))
    result.qpos[:] = after.qpos
    return result


def optimal(mj_model: mujoco.MjModel) -> mujoco.MjModel:
  """Return a copy of `mj_model` whose solver runs to the optimum, where qacc is unique and comparable."""
  m = copy.deepcopy(mj_model)
  m.opt.tolerance = 0  # no early termination
  m.opt.ls_tolerance = 1e-6
  m.opt.iterations = 50
  # C leaves stale entries in efc_state when it solves by islands
  m.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
  m.opt.ls_iterations = 100
  return m


def compare_stages(
  mj_model: mujoco.MjModel,
  mj_data: mujoco.MjData,
  fields: Iterable[str] | None = None,
  *,
  engine: Engine | None = None,
) -> list[FieldError]:
  """Take one step with C and one step with the engine, and compare every stage field.

  Derived fields are those of the state before the integration, as after `mj_step`. The fields of the stage 'integrate' (time,
  act, qvel, qpos, ...) are those of the next state. Call this function with 64 bits enabled, and with a model from `optimal`.

  Args:
    mj_model: the model
    mj_data: only the integration state is read
    fields: names of the fields to compare, such as 'xpos' or 'contact.dist'; by default all fields in `STAGE_FIELDS`
    engine: an Engine of the same model, to compile only once

  Returns:
    One entry per field that has elements, in the order of the stages, equal fields included (`entry.ok`).
  """
  known = [field for stage in STAGE_FIELDS.values() for field in stage]
  wanted = set(known if fields is None else fields)
  if unknown := wanted - set(known):
    raise ValueError(f"unknown fields {sorted(unknown)}: use names of {known}.")
  engine = engine or Engine(mj_model)
  ours = engine.step(_state_only(mj_model, mj_data))
  theirs = _state_only(mj_model, mj_data)
  mujoco.mj_step(mj_model, theirs)
  return list(_differences(mj_model, ours, theirs, wanted))


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
  """Compute elementwise |ours - theirs| / max(|theirs|, 0.01 max |theirs| of the field, 1e-3).

  The last two terms are floors: an element that is zero by cancellation carries the round-off of its terms.
  Whole numbers have the error 0 if they are equal, otherwise inf.
  """
  if theirs.dtype.kind in "iub":
    return np.where(ours == theirs, 0.0, np.inf)
  size = np.where(np.isfinite(theirs), np.abs(theirs), 0)
  scale = np.maximum(np.maximum(size, 1e-2 * size.max(initial=0)), 1e-3)
  with np.errstate(invalid="ignore"):  # inf - inf
    error = np.abs(ours - theirs) / scale
  same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
  return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def _errors_by_sensor(mj_model: mujoco.MjModel, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
  """Compute `relative_error` of sensordata for each sensor separately, because sensors have different units."""
  cuts = mj_model.sensor_adr[1:]
  return np.concatenate([relative_error(a, b) for a, b in zip(np.split(ours, cuts), np.split(theirs, cuts), strict=True)])


def element_name(mj_model: mujoco.MjModel, d: mujoco.MjData, field: str, index: tuple[int, ...]) -> str:
  """Describe an element of a field with the names of the model, for example "body 'left_foot' component 2"."""
  if not index:
    return "the model"
  kind, rest = _kind(mj_model, field), index[1:]
  where = f" component {rest[0] if len(rest) == 1 else rest}" if rest else ""
  i = index[0]
  if kind == "contact":
    return _contact_name(mj_model, d, i) + where
  if kind == "row":
    column = f", {_dof_name(mj_model, rest[0])}" if field == "efc_J" else where
    return _row_name(mj_model, d, i) + column
  if kind == "moment":
    return f"{_name(mj_model, mujoco.mjtObj.mjOBJ_ACTUATOR, i)}, {_dof_name(mj_model, rest[0])}"
  if kind == "tendon_J":
    return f"{_name(mj_model, mujoco.mjtObj.mjOBJ_TENDON, i)}, {_dof_name(mj_model, rest[0])}"
  if kind == "M":
    row = int(np.searchsorted(mj_model.M_rowadr, i, side="right")) - 1
    return f"{_dof_name(mj_model, row)}, {_dof_name(mj_model, int(mj_model.M_colind[i]))}"
  if kind == "dof":
    return _dof_name(mj_model, i) + where
  if kind == "qpos":
    joint = int(np.searchsorted(mj_model.jnt_qposadr, i, side="right")) - 1
    return f"{_name(mj_model, mujoco.mjtObj.mjOBJ_JOINT, joint)} component {i - mj_model.jnt_qposadr[joint]}"
  if kind == "sensor":
    sensor = int(np.searchsorted(mj_model.sensor_adr, i, side="right")) - 1
    return f"{_name(mj_model, mujoco.mjtObj.mjOBJ_SENSOR, sensor)} component {i - mj_model.sensor_adr[sensor]}"
  if isinstance(kind, mujoco.mjtObj):
    return _name(mj_model, kind, i) + where
  return f"element {index if rest else i}"


# the kind of element on the first axis of a field, by the field's name or its prefix
_KIND_OF_FIELD: dict[str, Any] = {
  **dict.fromkeys(("M", "qLD"), "M"),
  **dict.fromkeys(("cdof", "cdof_dot", "qLDiagInv", "qacc", "qacc_smooth", "qacc_warmstart", "qvel"), "dof"),
  **dict.fromkeys(("xanchor", "xaxis"), mujoco.mjtObj.mjOBJ_JOINT),
  **dict.fromkeys(("xpos", "xquat", "xmat", "xipos", "ximat"), mujoco.mjtObj.mjOBJ_BODY),
  **dict.fromkeys(("subtree_com", "cinert", "crb", "cvel"), mujoco.mjtObj.mjOBJ_BODY),
  **{"qpos": "qpos", "sensordata": "sensor", "efc_J": "row", "actuator_moment": "moment", "ten_J": "tendon_J"},
}
_KIND_OF_PREFIX: dict[str, Any] = {
  "contact.": "contact",
  "efc_": "row",
  "qfrc_": "dof",
  "geom_": mujoco.mjtObj.mjOBJ_GEOM,
  "site_": mujoco.mjtObj.mjOBJ_SITE,
  "cam_": mujoco.mjtObj.mjOBJ_CAMERA,
  "light_": mujoco.mjtObj.mjOBJ_LIGHT,
  "ten_": mujoco.mjtObj.mjOBJ_TENDON,
  "actuator_": mujoco.mjtObj.mjOBJ_ACTUATOR,
}


def _kind(mj_model: mujoco.MjModel, field: str) -> Any:
  """Return the kind of element on the first axis of a field."""
  if field in _KIND_OF_FIELD:
    return _KIND_OF_FIELD[field]
  return next((kind for prefix, kind in _KIND_OF_PREFIX.items() if field.startswith(prefix)), None)


def _state_only(mj_model: mujoco.MjModel, mj_data: mujoco.MjData) -> mujoco.MjData:
  """Return a new MjData with the integration state of `mj_data`; all other fields have their initial values."""
  d = mujoco.MjData(mj_model)
  signature = mujoco.mjtState.mjSTATE_INTEGRATION
  state = np.empty(mujoco.mj_stateSize(mj_model, signature))
  mujoco.mj_getState(mj_model, mj_data, state, signature)
  mujoco.mj_setState(mj_model, d, state, signature)
  return d


def _differences(
  mj_model: mujoco.MjModel, ours: mujoco.MjData, theirs: mujoco.MjData, wanted: set[str]
) -> Iterator[FieldError]:
  """Yield the worst difference of each wanted field, in the order of the stages."""
  for stage, fields in STAGE_FIELDS.items():
    for field in fields:
      if field not in wanted:
        continue
      a, b = read_field(mj_model, ours, field), read_field(mj_model, theirs, field)
      if a.shape != b.shape:
        # ncon and nefc come before the fields of this size, and report the difference more clearly
        text = f"its size: {a.shape}, in C {b.shape}"
        yield FieldError(
          stage=stage, field=field, worst=np.inf, element=(), name=text, ours=float(a.size), theirs=float(b.size)
        )
        continue
      if not b.size:
        continue
      error = _errors_by_sensor(mj_model, a, b) if field == "sensordata" else relative_error(a, b)
      index = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), error.shape))
      name = element_name(mj_model, theirs, field, index)
      yield FieldError(
        stage=stage,
        field=field,
        worst=float(error[index]),
        element=index,
        name=name,
        ours=float(a[index]),
        theirs=float(b[index]),
      )


def read_field(mj_model: mujoco.MjModel, d: mujoco.MjData, field: str) -> np.ndarray:
  """Return a field of MjData as an array with elements on the first axis; sparse matrices are converted to dense ones."""
  if field == "efc_J":
    if not mujoco.mj_isSparse(mj_model):
      # C allocates memory for rows that it drops; a model without dofs has no rows
      return d.efc_J.reshape(-1, mj_model.nv)[: d.nefc] if mj_model.nv else np.zeros((0, 0))
    return _dense(mj_model.nv, d.efc_J, d.efc_J_rownnz, d.efc_J_rowadr, d.efc_J_colind)
  if field == "actuator_moment":
    return _dense(mj_model.nv, d.actuator_moment, d.moment_rownnz, d.moment_rowadr, d.moment_colind)
  if field == "ten_J":
    return _dense(mj_model.nv, d.ten_J, mj_model.ten_J_rownnz, mj_model.ten_J_rowadr, mj_model.ten_J_colind)
  if field.startswith("contact."):
    return np.array(getattr(d.contact, field.removeprefix("contact.")))
  return np.array(getattr(d, field))


def _dense(nv: int, value: np.ndarray, rownnz: np.ndarray, rowadr: np.ndarray, colind: np.ndarray) -> np.ndarray:
  """Convert a matrix (n, nv) from MuJoCo's compressed row format to a dense matrix."""
  full = np.zeros((len(rownnz), nv))
  for row, (count, start) in enumerate(zip(rownnz, rowadr, strict=True)):
    full[row, colind[start : start + count]] = value.ravel()[start : start + count]
  return full


def _name(mj_model: mujoco.MjModel, kind: mujoco.mjtObj, i: int) -> str:
  """Return an element's kind with its name, or with its id if it has no name."""
  name = mujoco.mj_id2name(mj_model, kind, i)
  word = kind.name.removeprefix("mjOBJ_").lower()
  return f"{word} '{name}'" if name else f"{word} {i}"


def _dof_name(mj_model: mujoco.MjModel, dof: int) -> str:
  """Describe a degree of freedom by its joint."""
  joint = int(mj_model.dof_jntid[dof])
  return f"{_name(mj_model, mujoco.mjtObj.mjOBJ_JOINT, joint)} dof {dof - mj_model.jnt_dofadr[joint]}"


def _contact_name(mj_model: mujoco.MjModel, d: mujoco.MjData, i: int) -> str:
  """Describe a contact by its two geoms."""
  geoms = [_name(mj_model, mujoco.mjtObj.mjOBJ_GEOM, int(g)).removeprefix("geom ") for g in d.contact.geom[i]]
  return f"contact {i} of {geoms[0]} and {geoms[1]}"


def _row_name(mj_model: mujoco.MjModel, d: mujoco.MjData, row: int) -> str:
  """Describe a constraint row by the constrained element."""
  kind, i = mujoco.mjtConstraint(int(d.efc_type[row])), int(d.efc_id[row])
  constraint = mujoco.mjtConstraint
  if kind == constraint.mjCNSTR_EQUALITY:
    what = _name(mj_model, mujoco.mjtObj.mjOBJ_EQUALITY, i)
  elif kind == constraint.mjCNSTR_FRICTION_DOF:
    what = f"friction of {_dof_name(mj_model, i)}"
  elif kind == constraint.mjCNSTR_FRICTION_TENDON:
    what = f"friction of {_name(mj_model, mujoco.mjtObj.mjOBJ_TENDON, i)}"
  elif kind == constraint.mjCNSTR_LIMIT_JOINT:
    what = f"limit of {_name(mj_model, mujoco.mjtObj.mjOBJ_JOINT, i)}"
  elif kind == constraint.mjCNSTR_LIMIT_TENDON:
    what = f"limit of {_name(mj_model, mujoco.mjtObj.mjOBJ_TENDON, i)}"
  else:
    what = f"{_contact_name(mj_model, d, i)} direction {row - int(d.contact.efc_address[i])}"
  return f"row {row}, {what}"
