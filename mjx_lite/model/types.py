"""Model and Data: immutable pytrees with MuJoCo's names.

Each array field is declared once: its symbolic shape for one world, its unit, and for Data the stage that writes the field.
Allocation, conversion, the shape tests and the field table of the documentation are derived from the declarations.

Vocabulary: prefix `x` is the world frame, `c` a frame at the tree's centre of mass, no prefix a local frame. Spatial vectors
have the rotation first. Quaternions are wxyz. Matrices multiply column vectors, except `contact.frame`, whose axes are rows.
*Transmission* maps joint to actuator space, *impedance* is the d of the constraint law, a *row* is one scalar constraint.

Tests: tests/architecture/test_layers.py, tests/io/test_io.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from mjx_lite import errors
from mjx_lite.math import quat
from mjx_lite.model import above, describe, enums, fit
from mjx_lite.model.bind import BoundFields, NamedElements
from mjx_lite.model.capacity import Capacity
from mjx_lite.model.layout import Layout
from mjx_lite.model.option import Option, Statistic
from mjx_lite.model.packing import Lazy
from mjx_lite.model.pytree import OptionalField, Replaceable, array, of_kind, pytree, specs, static
from mjx_lite.model.status import Status

if TYPE_CHECKING:
  from mjx_lite.plan import Plan

__all__ = ["INPUTS", "STATE", "Contact", "Data", "Model", "Option", "Statistic"]

_DISABLE = enums.DisableBit
LARGEST_KERNEL = 1000  # largest contact slots times dofs for straight-line machine code


@pytree
class Model(NamedElements, Replaceable):
  """mjModel: floats of the physics as arrays, everything else in `layout`.

  Every name of mjModel works: `m.body_mass` is a traced array, `m.body_parentid` a read-only NumPy array, `m.nv` a
  number. Python control flow may depend on static fields, but not on traced fields. Every field is static or traced.
  """

  def __repr__(self) -> str:
    return describe.model(self)

  layout: Layout = static()
  opt: Option
  stat: Statistic
  qpos0: jax.Array = array("nq")
  qpos_spring: jax.Array = array("nq")
  body_pos: jax.Array = array("nbody", 3, unit="m")
  body_quat: jax.Array = array("nbody", 4)
  body_ipos: jax.Array = array("nbody", 3, unit="m")
  body_iquat: jax.Array = array("nbody", 4)
  body_mass: jax.Array = array("nbody", unit="kg")
  body_subtreemass: jax.Array = array("nbody", unit="kg")
  body_inertia: jax.Array = array("nbody", 3, unit="kg m^2")
  body_invweight0: jax.Array = array("nbody", 2)
  body_gravcomp: jax.Array = array("nbody")
  jnt_solref: jax.Array = array("njnt", 2)
  jnt_solimp: jax.Array = array("njnt", 5)
  jnt_pos: jax.Array = array("njnt", 3, unit="m")
  jnt_axis: jax.Array = array("njnt", 3)
  jnt_stiffness: jax.Array = array("njnt")
  jnt_stiffnesspoly: jax.Array = array("njnt", 2)
  jnt_springyield: jax.Array = array("njnt")
  jnt_range: jax.Array = array("njnt", 2, unit="m|rad")
  jnt_actfrcrange: jax.Array = array("njnt", 2)
  jnt_margin: jax.Array = array("njnt", unit="m|rad")
  dof_solref: jax.Array = array("nv", 2)
  dof_solimp: jax.Array = array("nv", 5)
  dof_frictionloss: jax.Array = array("nv")
  dof_armature: jax.Array = array("nv")
  dof_damping: jax.Array = array("nv")
  dof_dampingpoly: jax.Array = array("nv", 2)
  dof_invweight0: jax.Array = array("nv")
  dof_M0: jax.Array = array("nv")
  dof_length: jax.Array = array("nv")
  geom_size: jax.Array = array("ngeom", 3, unit="m")
  geom_rbound: jax.Array = array("ngeom", unit="m")
  geom_aabb: jax.Array = array("ngeom", 6, unit="m")
  geom_pos: jax.Array = array("ngeom", 3, unit="m")
  geom_quat: jax.Array = array("ngeom", 4)
  geom_friction: jax.Array = array("ngeom", 3)
  geom_margin: jax.Array = array("ngeom", unit="m")
  geom_gap: jax.Array = array("ngeom", unit="m")
  geom_solmix: jax.Array = array("ngeom")
  geom_solref: jax.Array = array("ngeom", 2)
  geom_solimp: jax.Array = array("ngeom", 5)
  geom_fluid: jax.Array = array("ngeom", 12)
  geom_surfacevel: jax.Array = array("ngeom", 6)
  geom_adhesion: jax.Array = array("ngeom", unit="N")
  site_size: jax.Array = array("nsite", 3, unit="m")
  site_pos: jax.Array = array("nsite", 3, unit="m")
  site_quat: jax.Array = array("nsite", 4)
  cam_pos: jax.Array = array("ncam", 3, unit="m")
  cam_quat: jax.Array = array("ncam", 4)
  cam_poscom0: jax.Array = array("ncam", 3, unit="m")
  cam_pos0: jax.Array = array("ncam", 3, unit="m")
  cam_mat0: jax.Array = array("ncam", 3, 3)
  cam_fovy: jax.Array = array("ncam")
  cam_intrinsic: jax.Array = array("ncam", 4)
  cam_sensorsize: jax.Array = array("ncam", 2)
  light_pos: jax.Array = array("nlight", 3, unit="m")
  light_dir: jax.Array = array("nlight", 3)
  light_poscom0: jax.Array = array("nlight", 3, unit="m")
  light_pos0: jax.Array = array("nlight", 3, unit="m")
  light_dir0: jax.Array = array("nlight", 3)
  pair_solref: jax.Array = array("npair", 2)
  pair_solreffriction: jax.Array = array("npair", 2)
  pair_solimp: jax.Array = array("npair", 5)
  pair_margin: jax.Array = array("npair", unit="m")
  pair_gap: jax.Array = array("npair", unit="m")
  pair_friction: jax.Array = array("npair", 5)
  pair_adhesion: jax.Array = array("npair", unit="N")
  eq_solref: jax.Array = array("neq", 2)
  eq_solimp: jax.Array = array("neq", 5)
  eq_data: jax.Array = array("neq", 12)
  tendon_solref_lim: jax.Array = array("ntendon", 2)
  tendon_solimp_lim: jax.Array = array("ntendon", 5)
  tendon_solref_fri: jax.Array = array("ntendon", 2)
  tendon_solimp_fri: jax.Array = array("ntendon", 5)
  tendon_range: jax.Array = array("ntendon", 2, unit="m|rad")
  tendon_actfrcrange: jax.Array = array("ntendon", 2, unit="N")
  tendon_margin: jax.Array = array("ntendon")
  tendon_stiffness: jax.Array = array("ntendon")
  tendon_stiffnesspoly: jax.Array = array("ntendon", 2)
  tendon_damping: jax.Array = array("ntendon")
  tendon_dampingpoly: jax.Array = array("ntendon", 2)
  tendon_armature: jax.Array = array("ntendon")
  tendon_frictionloss: jax.Array = array("ntendon")
  tendon_lengthspring: jax.Array = array("ntendon", 2)
  tendon_springyield: jax.Array = array("ntendon")
  tendon_length0: jax.Array = array("ntendon")
  tendon_invweight0: jax.Array = array("ntendon")
  wrap_prm: jax.Array = array("nwrap")
  actuator_gear: jax.Array = array("nout", 6)
  actuator_acc0: jax.Array = array("nout")
  actuator_length0: jax.Array = array("nout")
  actuator_lengthrange: jax.Array = array("nout", 2)
  actuator_dynprm: jax.Array = array("nactuator", 10)
  actuator_gainprm: jax.Array = array("nactuator", 10)
  actuator_biasprm: jax.Array = array("nactuator", 10)
  actuator_ctrlrange: jax.Array = array("nu", 2)
  actuator_forcerange: jax.Array = array("nactuator", 2)
  actuator_actrange: jax.Array = array("nactuator", 2)
  actuator_cranklength: jax.Array = array("nactuator", unit="m")
  actuator_damping: jax.Array = array("nactuator")
  actuator_dampingpoly: jax.Array = array("nactuator", 2)
  actuator_armature: jax.Array = array("nactuator")
  actuator_delay: jax.Array = array("nactuator", unit="s")
  sensor_cutoff: jax.Array = array("nsensor")
  sensor_delay: jax.Array = array("nsensor", unit="s")
  sensor_interval: jax.Array = array("nsensor", 2, unit="s")
  key_time: jax.Array = array("nkey", unit="s")
  key_qpos: jax.Array = array("nkey", "nq")
  key_qvel: jax.Array = array("nkey", "nv")
  key_act: jax.Array = array("nkey", "na")
  key_ctrl: jax.Array = array("nkey", "nu")
  key_plastic: jax.Array = array("nkey", "nplastic")
  key_mpos: jax.Array = array("nkey", "nmocap", 3)
  key_mquat: jax.Array = array("nkey", "nmocap", 4)

  @property
  def tile(self) -> int:
    """Number of worlds per tile on CPU, 0 for all worlds at once."""
    return self.layout.tile

  @property
  def why_not_straight(self) -> str:
    """The first reason why a step is not tried as machine code without loops (`compiler/kernels.py`); "" if it is tried."""
    contacts = self.plan.collision
    size = len(contacts.slot_row) * self.nv
    if contacts.compact is not None:
      return "contacts have capacities (ncon_max)"
    if not contacts.is_closed:
      return "contacts of hulls, height fields or distance fields are searched for, or pairs have a capacity (pair_max)"
    if size > LARGEST_KERNEL:
      return f"{len(contacts.slot_row)} contact slots times {self.nv} dofs are more than {LARGEST_KERNEL}"
    return ""

  @property
  def capacity(self) -> Capacity:
    """Capacities of contacts as arguments of put_model: `put_model(mj_model, **m.capacity)`."""
    return self.plan.collision.capacity

  @property
  def plan(self) -> "Plan":
    """Index tables of the subsystems."""
    return self.layout.plan

  def __getattr__(self, name: str) -> Any:
    if not name.startswith("_"):
      try:
        return self.layout.static[name]
      except KeyError:
        pass
    advice = f": {errors.MODEL_NAMES[name]}." if name in errors.MODEL_NAMES else "."
    raise AttributeError(f"'{name}' is neither an array of Model nor a field of mjModel{advice}")

  def __dir__(self) -> list[str]:
    return [*super().__dir__(), *self.layout.static]

  def check(self) -> None:
    """Refuse a Model with an array whose shape is not that of one world of this model. Under jax.vmap, it checks one world.

    Raises:
      TypeError: a field is not an array.
      ValueError: a field has another shape; the message names the field.
    """
    for name, shape in fit.shapes(Model, self.layout).items():
      value = getattr(self, name)
      if getattr(value, "shape", None) != shape:
        fit.check_shape(f"Model.{name}", value, shape)
    for part in ("opt", "stat"):
      for name, spec in specs(type(getattr(self, part))).items():
        fit.check_shape(f"Model.{part}.{name}", getattr(getattr(self, part), name), spec["shape"])

  def with_params(self, **changes: Any) -> "Model":
    """Return a copy with some parameters changed, and every dependent field computed again (`set_const`).

    `m.with_params(body_mass=mass, geom_size=size)`, `m.with_params(opt=m.opt.replace(timestep=h))`.

    Args:
      **changes: arrays by the names of Model's fields, in the shapes of these fields, and `opt`.

    Raises:
      ValueError: for a dependent field (change the fields that it depends on, or use `replace`), for a name or shape that is
        not Model's, and for a change that `replace` refuses.
    """
    return above.call("with_params", self, **changes)

  def replace(self, **changes: Any) -> "Model":
    """Return a copy with some arrays changed and all others as they are, for experts.

    Dependent fields are not computed again: after a change of a mass, `body_subtreemass`, `dof_invweight0` and other fields
    still belong to the old mass. `with_params` computes dependent fields again.

    Raises:
      ValueError: for a static field, for a field whose terms were left out because it was zero, for an array whose last axes
        are not the field's shape, and for an option that decides the contact slots or the constraint rows.
    """
    shapes = fit.shapes(Model, self.layout)
    for name, value in changes.items():
      if name in self.layout.static:
        raise ValueError(
          f"Model.{name} is static: it decides shapes or program structure. "
          "Change it in the MjModel (or MjSpec) and call put_model again."
        )
      if name in self.layout.pruned and value is not getattr(self, name):
        raise _left_out(f"Model.{name}", name)
      if name in shapes:
        fit.check_change(f"Model.{name}", value, shapes[name], getattr(self, name))
    for name in _OPT_PRUNABLE & self.layout.pruned if "opt" in changes else ():
      if getattr(changes["opt"], name) is not getattr(self.opt, name):
        raise _left_out(f"Model.opt.{name}", name)
    if "opt" in changes and (changes["opt"].disableflags ^ self.opt.disableflags) & _DISABLE.FILTERPARENT:
      raise ValueError(
        "the flag FILTERPARENT decides which geoms can collide: set it in MjModel.opt, then call put_model again."
      )
    if "opt" in changes and changes["opt"].use_contact and not self.layout.plan.collision.enabled:
      raise ValueError(
        "contacts were disabled, so there are no slots for them: "
        "clear the flags CONTACT and CONSTRAINT in MjModel.opt, then call put_model again."
      )
    if "opt" in changes and changes["opt"].cone != self.opt.cone:
      raise ValueError("the friction cone decides the constraint rows: set MjModel.opt.cone, then call put_model again.")
    return super().replace(**changes)


_OPT_PRUNABLE = frozenset(["density", "viscosity"])


def _left_out(shown: str, name: str) -> ValueError:
  return ValueError(
    f"{shown} was zero everywhere, so its terms were left out of the program. "
    f"Build the model with put_model(..., keep=('{name}',)) to change it."
  )


@pytree
class Contact(Replaceable):
  """Contact slots of a model, in MuJoCo's order.

  `efc_address`, the first row of the slot, is constant. `dim` and `geom` are constant too, except with capacities or adhesion.
  `exclude` is 0 for a contact with rows, 1 for a contact in the gap, 3 for a contact that no dof changes, -1 for an empty slot.
  """

  def __repr__(self) -> str:
    return describe.contact(self)

  dist: jax.Array = array("ncon", unit="m", stage="collision")
  pos: jax.Array = array("ncon", 3, unit="m", stage="collision")
  frame: jax.Array = array("ncon", 3, 3, stage="collision")
  includemargin: jax.Array = array("ncon", unit="m", stage="collision")
  friction: jax.Array = array("ncon", 5, stage="collision")
  solref: jax.Array = array("ncon", 2, stage="collision")
  solreffriction: jax.Array = array("ncon", 2, stage="collision")
  solimp: jax.Array = array("ncon", 5, stage="collision")
  adhesion: jax.Array = array("ncon", unit="N", stage="collision")
  surfacevel: jax.Array = array("ncon", 3, unit="m/s|rad/s", stage="collision")
  mu: jax.Array = array("ncon", stage="make_constraint")
  dim: jax.Array = array("ncon", dtype="int")
  geom: jax.Array = array("ncon", 2, dtype="int")
  exclude: jax.Array = array("ncon", stage="collision", dtype="int")
  efc_address: jax.Array = array("ncon", dtype="int")

  geom1 = property(lambda self: self.geom[..., 0])
  geom2 = property(lambda self: self.geom[..., 1])


_KEEP = "the step does not hand it on, unless make_data(m, keep=...) names it, or keep='all'"
_ON_DEMAND = "call mjx_lite.{}(m, d), which returns a Data that has it; in a scan begin with make_data(m, keep=...)"


# rotation matrix -> quaternion from which it is computed
QUATERNIONS = {"xmat": "xquat", "ximat": "xiquat", "geom_xmat": "geom_xquat", "site_xmat": "site_xquat"}


_to_mat = jax.jit(lambda q: quat.to_mat(q[..., None])[..., 0])  # (..., 4) to (..., 3, 3); compiled, as users read it eagerly


def _rotation(quaternion: str) -> Callable[["Data"], jax.Array]:
  return lambda d: _to_mat(getattr(d, quaternion))


@pytree
class Data(BoundFields, Lazy):
  """mjData of one world: state, inputs and everything that the stages compute.

  Some fields are optional: a Data keeps them only if `make_data(m, keep=...)` names them. Rotation matrices that are not kept
  are computed from the quaternions when they are read. `crb`, `qLD`, `qLDiagInv` and `efc_KBIP` are missing if not kept.
  Fields computed on demand (`cacc`, `cfrc_int`, `cfrc_ext`, `subtree_linvel`, `subtree_angmom`) are in the results of
  `rne_postconstraint` and `subtree_vel`.

  Some fields are integers or booleans, with respect to which JAX does not differentiate. Call
  `jax.grad(f, allow_int=True)(d)`, whose result has no derivatives for these fields (`float0`), or differentiate with respect
  to chosen fields: `jax.grad(lambda qpos: f(d.replace(qpos=qpos)))(d.qpos)`.

  Files: pickle takes a Data as it is. orbax refuses arrays of size zero, and most models have some: save
  `mjx_lite.to_state_dict(d)`, and pass the restored dict to `from_state_dict`.
  """

  def __repr__(self) -> str:
    return describe.data(self)

  def __getattr__(self, name: str) -> Any:
    try:
      return super().__getattr__(name)
    except AttributeError:
      if name not in errors.DATA_NAMES:
        raise
    raise AttributeError(f"Data has no '{name}': {errors.DATA_NAMES[name]}.")

  def replace(self, **changes: Any) -> "Data":
    """Return a copy with some fields changed. Numbers become arrays, and arrays lose weak types.

    Raises:
      TypeError: a name is not a field; the message has the nearest name.
    """
    return super().replace(**self.as_arrays(changes))

  # state
  time: jax.Array = array(unit="s", kind="state")
  qpos: jax.Array = array("nq", unit="m|rad", kind="state")
  qvel: jax.Array = array("nv", unit="m/s|rad/s", kind="state")
  act: jax.Array = array("na", kind="state")
  history: jax.Array = array("nhistory", kind="state")
  plastic: jax.Array = array("nplastic", kind="state")
  qacc_warmstart: jax.Array = array("nv", kind="state")
  # inputs
  ctrl: jax.Array = array("nu", kind="input")
  qfrc_applied: jax.Array = array("nv", kind="input")
  xfrc_applied: jax.Array = array("nbody", 6, kind="input")
  eq_active: jax.Array = array("neq", dtype="bool", kind="input")
  mocap_pos: jax.Array = array("nmocap", 3, unit="m", kind="input")
  mocap_quat: jax.Array = array("nmocap", 4, kind="input")
  userdata: jax.Array = array("nuserdata", kind="input")
  # position
  xpos: jax.Array = array("nbody", 3, unit="m", stage="kinematics")
  xquat: jax.Array = array("nbody", 4, stage="kinematics")
  _xmat: jax.Array | None = array("nbody", 3, 3, stage="kinematics")
  xipos: jax.Array = array("nbody", 3, unit="m", stage="kinematics")
  _ximat: jax.Array | None = array("nbody", 3, 3, stage="kinematics")
  xiquat: jax.Array = array("nbody", 4, stage="kinematics")
  xanchor: jax.Array = array("njnt", 3, unit="m", stage="kinematics")
  xaxis: jax.Array = array("njnt", 3, stage="kinematics")
  geom_xpos: jax.Array = array("ngeom", 3, unit="m", stage="kinematics")
  _geom_xmat: jax.Array | None = array("ngeom", 3, 3, stage="kinematics")
  geom_xquat: jax.Array = array("ngeom", 4, stage="kinematics")
  site_xpos: jax.Array = array("nsite", 3, unit="m", stage="kinematics")
  _site_xmat: jax.Array | None = array("nsite", 3, 3, stage="kinematics")
  site_xquat: jax.Array = array("nsite", 4, stage="kinematics")
  subtree_com: jax.Array = array("nbody", 3, unit="m", stage="com_pos")
  cdof: jax.Array = array("nv", 6, stage="com_pos")
  cinert: jax.Array = array("nbody", 10, stage="com_pos")
  cam_xpos: jax.Array = array("ncam", 3, unit="m", stage="camlight")
  cam_xmat: jax.Array = array("ncam", 3, 3, stage="camlight")
  light_xpos: jax.Array = array("nlight", 3, unit="m", stage="camlight")
  light_xdir: jax.Array = array("nlight", 3, stage="camlight")
  ten_length: jax.Array = array("ntendon", unit="m|rad", stage="tendon")
  ten_J: jax.Array = array("nJten", stage="tendon")
  _crb: jax.Array | None = array("nbody", 10, stage="crb")
  M: jax.Array = array("nC", stage="crb")
  _qLD: jax.Array | None = array("nC", stage="factor_m")
  _qLDiagInv: jax.Array | None = array("nv", stage="factor_m")
  contact: Contact
  actuator_length: jax.Array = array("nout", stage="transmission")
  actuator_moment: jax.Array = array("nJmom", stage="transmission")
  # velocity
  cvel: jax.Array = array("nbody", 6, stage="com_vel")
  cdof_dot: jax.Array = array("nv", 6, stage="com_vel")
  ten_velocity: jax.Array = array("ntendon", stage="fwd_velocity")
  actuator_velocity: jax.Array = array("nout", stage="fwd_velocity")
  qfrc_spring: jax.Array = array("nv", stage="passive")
  qfrc_damper: jax.Array = array("nv", stage="passive")
  qfrc_gravcomp: jax.Array = array("nv", stage="passive")
  qfrc_fluid: jax.Array = array("nv", stage="passive")
  qfrc_adhesion: jax.Array = array("nv", stage="passive")
  qfrc_passive: jax.Array = array("nv", stage="passive")
  qfrc_bias: jax.Array = array("nv", stage="rne")
  # constraint rows
  efc_type: jax.Array = array("nefc", dtype="int")
  efc_id: jax.Array = array("nefc", dtype="int")
  efc_pos: jax.Array = array("nefc", stage="make_constraint")
  efc_margin: jax.Array = array("nefc", stage="make_constraint")
  efc_frictionloss: jax.Array = array("nefc", stage="make_constraint")
  efc_diagA: jax.Array = array("nefc", stage="make_constraint")
  _efc_KBIP: jax.Array | None = array("nefc", 4, stage="make_constraint")
  efc_D: jax.Array = array("nefc", stage="make_constraint")
  efc_R: jax.Array = array("nefc", stage="make_constraint")
  efc_vel: jax.Array = array("nefc", stage="make_constraint")
  efc_aref: jax.Array = array("nefc", stage="make_constraint")
  efc_force: jax.Array = array("nefc", stage="solve")
  efc_state: jax.Array = array("nefc", stage="solve", dtype="int")
  # acceleration
  act_dot: jax.Array = array("na", stage="fwd_actuation")
  actuator_force: jax.Array = array("nout", stage="fwd_actuation")
  qfrc_actuator: jax.Array = array("nv", stage="fwd_actuation")
  qfrc_smooth: jax.Array = array("nv", stage="fwd_acceleration")
  qacc_smooth: jax.Array = array("nv", stage="fwd_acceleration")
  qfrc_constraint: jax.Array = array("nv", stage="solve")
  qacc: jax.Array = array("nv", stage="solve")
  solver_niter: jax.Array = array(stage="solve", dtype="int")
  solver_fwdinv: jax.Array = array(2, stage="step")
  qfrc_inverse: jax.Array = array("nv", stage="inverse")
  sensordata: jax.Array = array("nsensordata")
  # computed on demand
  energy: jax.Array = array(2, unit="J", stage="energy")
  _subtree_linvel: jax.Array | None = array("nbody", 3, unit="m/s", stage="subtree_vel")
  _subtree_angmom: jax.Array | None = array("nbody", 3, unit="kg m^2/s", stage="subtree_vel")
  _cacc: jax.Array | None = array("nbody", 6, stage="rne_postconstraint")
  _cfrc_int: jax.Array | None = array("nbody", 6, stage="rne_postconstraint")
  _cfrc_ext: jax.Array | None = array("nbody", 6, stage="rne_postconstraint")
  status: Status

  # optional fields: present within a step, kept after it only if `make_data(keep=...)` names them
  xmat, ximat, geom_xmat, site_xmat = (OptionalField(otherwise=_rotation(q)) for q in QUATERNIONS.values())
  crb, qLD, qLDiagInv, efc_KBIP = (OptionalField(_KEEP) for _ in range(4))
  subtree_linvel, subtree_angmom = (OptionalField(_ON_DEMAND.format("subtree_vel")) for _ in range(2))
  cacc, cfrc_int, cfrc_ext = (OptionalField(_ON_DEMAND.format("rne_postconstraint")) for _ in range(3))


# what a step reads of the step before (mjSTATE_INTEGRATION without the inputs), and what the user gives
STATE, INPUTS = of_kind(Data, "state"), of_kind(Data, "input")
