"""Conversion of a mujoco.MjModel to a Model.

Tests: tests/io/test_io.py.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from mjx_lite.collision import driver
from mjx_lite.collision.driver import CollisionPlan
from mjx_lite.constraint.soft import WEIGHTS
from mjx_lite.io import capacity, fields, options, validate
from mjx_lite.model import enums
from mjx_lite.model.capacity import Capacity
from mjx_lite.model.layout import Layout
from mjx_lite.model.types import Model, Option, Statistic
from mjx_lite.plan import Plan, plan

VERSION = "4.0"  # version of MuJoCo whose behaviour is reproduced

# float fields whose terms are left out of the program if the fields are zero everywhere
PRUNABLE = {
  "dof_frictionloss": ("dof_frictionloss",),
  "dof_damping": ("dof_damping", "dof_dampingpoly"),
  "jnt_stiffness": ("jnt_stiffness", "jnt_stiffnesspoly"),
  "body_gravcomp": ("body_gravcomp",),
  "geom_surfacevel": ("geom_surfacevel",),
  "geom_adhesion": ("geom_adhesion", "pair_adhesion"),
  "tendon_stiffness": ("tendon_stiffness", "tendon_stiffnesspoly"),
  "tendon_damping": ("tendon_damping", "tendon_dampingpoly"),
  "tendon_armature": ("tendon_armature",),
  "tendon_frictionloss": ("tendon_frictionloss",),
  "actuator_armature": ("actuator_armature",),
  "actuator_damping": ("actuator_damping", "actuator_dampingpoly"),
  "density": ("density",),  # of opt
  "viscosity": ("viscosity",),  # of opt
}
CONTACT_GRADIENTS = ("exact", *WEIGHTS)


def put_model(
  m: mujoco.MjModel,
  device: Any = None,
  *,
  dtype: Any = None,
  keep: tuple[str, ...] = (),
  tile: int | None = None,
  ncon_max: int | Literal["all"] | None = None,
  pair_max: int | Mapping[str, int] | None = None,
  contact_gradient: str = "exact",
  contact_reach: float = 0.02,
  **mjx_options: Any,
) -> Model:
  """Convert a compiled mujoco model to a Model.

  Args:
    m: the compiled model.
    device: jax.Device where the arrays go; JAX's default device if None.
    dtype: float32 or float64; JAX's default (float32, or float64 under jax_enable_x64) if None.
    keep: float fields to keep in the program although they are zero now: 'dof_frictionloss', 'dof_damping', 'jnt_stiffness',
      'body_gravcomp', 'geom_surfacevel', 'geom_adhesion', 'tendon_stiffness', 'tendon_damping', 'tendon_armature',
      'tendon_frictionloss', 'actuator_armature', 'actuator_damping', and of opt 'density', 'viscosity'. A field that is
      zero now can be changed or differentiated only if it is kept.
    tile: number of worlds computed at a time; 0 for all at once. The default on CPU is 128, 64 where nv is above 64, and 32
      where nv is above 96; on other devices it is 0. `jax.export` with a symbolic number of worlds needs 0, and the constraint
      that there are at least 513 worlds: `symbolic_shape("b", constraints=["b >= 513"])`. Where `compiler/regions.py` has
      lanes, a tile has at most 16 worlds, except for differentiated functions.
    ncon_max: number of contact slots of a world; "all" for a slot for every possible contact. If there are more contacts, the
      last ones in MuJoCo's order are dropped, and `Data.status` is marked with CONTACTFULL. Without ncon_max and pair_max, both
      are chosen: no limits for at most 128 slots, and where slots times dofs are at most 1,000; otherwise 1.5 times what C
      needs in a fixed number of simulated states, and a few more. `Model.capacity` has the choice, which is the same on every
      machine.
    pair_max: number of candidate pairs of geoms in each group ('box-box', 'sphere-capsule', ...) in which contacts are
      searched; the pairs with the nearest bounds are taken. Or a mapping from group to number; all pairs if only ncon_max is
      given. `Data.status` is marked with PAIRFULL where more pairs are within reach. `suggest_capacity` proposes ncon_max and
      pair_max from your own states.
    contact_gradient: how derivatives treat contacts; values are the same in all modes. "exact": only contacts that touch have
      derivatives. "smooth": a contact sets in over distances of about `contact_reach` around touching. "from_distance": a
      contact has derivatives before it touches, with a weight that falls as exp(-distance / contact_reach), so that there is a
      gradient towards missed contacts. Change the mode later by `m.tree_replace({"opt.contact_gradient": "smooth"})`.
    contact_reach: length [m] of the modes "smooth" and "from_distance".
    **mjx_options: arguments that have a meaning only in MJX (impl, naconmax, njmax, ...); they cause a warning.

  Raises:
    UnsupportedModelError: the model uses features that are not implemented; the message names all of them.
    TypeError: m is not a mujoco.MjModel, or an argument is known neither here nor in MJX.
    ValueError: the model or a field named in `keep` is not usable; a timestep that is not above 0; a body with joints and
      without mass.
  """
  options.pass_over("put_model", mjx_options, ARGUMENTS)
  _check_arguments(m, keep)
  if contact_gradient not in CONTACT_GRADIENTS or not contact_reach > 0:
    raise ValueError(
      f"contact_gradient has to be one of {', '.join(CONTACT_GRADIENTS)} and contact_reach above 0, "
      f"not {contact_gradient!r} and {contact_reach}."
    )
  validate.check(m)
  validate.check_numbers(m)
  kind = np.dtype(dtype or jnp.zeros(()).dtype)
  if kind not in (np.float32, np.float64):
    raise ValueError(f"dtype has to be float32 or float64, not {kind}.")
  if jax.dtypes.canonicalize_dtype(kind) != kind:
    raise ValueError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")

  static, values = fields.split(m)
  zero = {k for k, of in PRUNABLE.items() if not any(np.any(_value(m, f)) for f in of)}
  pruned = frozenset(f for k in zero - set(keep) for f in PRUNABLE[k])
  if tile is None:
    on_cpu = (device.platform if device is not None else jax.default_backend()) == "cpu"
    tile = (128 if m.nv <= 64 else 64 if m.nv <= 96 else 32) if on_cpu else 0
  contacts = _contacts(m, static, values, Capacity(pair_max, ncon_max))
  plans = plan(static, values, pruned, contacts, m.opt.cone == enums.ConeType.ELLIPTIC, m.opt.timestep)
  _tell_size(m, plans, kind.itemsize)
  layout = Layout(static, plans, pruned, tile, kind.name)

  def put(x: Any) -> jax.Array:
    return jax.device_put(np.array(x, kind), device)  # a copy: JAX on CPU may alias its argument

  arrays = {k: put(getattr(m, k)) for k in values if k not in ("cam_mat0", "key_mpos", "key_mquat")}
  arrays.update({k: put(x) for k, x in _same_frames(m).items()})
  arrays["cam_mat0"] = put(m.cam_mat0.reshape(-1, 3, 3))
  arrays["key_mpos"] = put(m.key_mpos.reshape(m.nkey, m.nmocap, 3))
  arrays["key_mquat"] = put(m.key_mquat.reshape(m.nkey, m.nmocap, 4))
  option = _nested(Option, m.opt, put, contact_gradient=contact_gradient, contact_reach=put(contact_reach))
  return Model(layout=layout, opt=option, stat=_nested(Statistic, m.stat, put), **arrays)


_LARGE = 1 << 30  # bytes: a larger matrix per world causes a warning
# the keyword arguments of put_model
ARGUMENTS = tuple(name for name, p in inspect.signature(put_model).parameters.items() if p.kind == p.KEYWORD_ONLY)


def _check_arguments(m, keep):
  if not isinstance(m, mujoco.MjModel):
    hint = {Model: "it is already a Model of mjx_lite", mujoco.MjSpec: "call .compile() on the MjSpec first"}
    reason = hint.get(type(m), "load one with mujoco.MjModel.from_xml_path")
    raise TypeError(f"put_model takes a mujoco.MjModel, not {type(m).__name__}: {reason}.")
  if not mujoco.__version__.startswith(VERSION + "."):
    raise ValueError(
      f"the model was compiled by MuJoCo {mujoco.__version__}, mjx_lite reproduces {VERSION}: "
      f"pip install 'mujoco=={VERSION}.*'."
    )
  unknown = sorted(set(keep) - set(PRUNABLE))
  if unknown:
    raise ValueError(f"keep has {unknown}: put_model leaves out only {sorted(PRUNABLE)}, so keep takes only these names.")


def _tell_size(m: mujoco.MjModel, plans: Plan, itemsize: int) -> None:
  """Warn if one world of the model may take more memory than a machine has; the step would be killed without a message."""
  rows = plans.sizes["nefc"]
  is_dual = m.opt.solver == mujoco.mjtSolver.mjSOL_PGS or m.opt.noslip_iterations > 0
  size = itemsize * rows * (rows if is_dual else m.nv)
  if size > _LARGE:
    matrix = "rows by rows, as PGS and noslip need them" if is_dual else "rows by dofs"
    warnings.warn(
      f"put_model: {plans.sizes['ncon']:,} contact slots and {rows:,} constraint rows in each world. One matrix of them "
      f"({matrix}) takes {size / 1e9:.1f} GB for each world. put_model(m) without ncon_max makes room for the contacts that "
      "can exist at once, put_model(m, **mjx.suggest_capacity(m, qpos)) for those that exist in configurations qpos.",
      stacklevel=3,
    )


def _contacts(m: mujoco.MjModel, static: dict[str, Any], values: dict[str, np.ndarray], given: Capacity) -> CollisionPlan:
  """Plan the contacts within given capacities; without any, within those that are chosen.

  Raises:
    ValueError: capacities below 1, or of groups that cannot be bounded.
  """
  everything = driver.plan(static, values, int(m.opt.disableflags))
  if given == Capacity():
    return driver.limit(everything, capacity.choose(m, static, values, everything))
  by_group = given.pair_max if isinstance(given.pair_max, Mapping) else {"pair_max": given.pair_max}
  for name, value in {"ncon_max": given.ncon_max, **by_group}.items():
    if isinstance(value, str) and (name, value) != ("ncon_max", "all"):
      raise ValueError(f"put_model: {name} has to be a number{' or all' * (name == 'ncon_max')}, not {value!r}.")
    if value is not None and not isinstance(value, str) and int(value) < 1:
      raise ValueError(f"put_model: {name} has to be at least 1, not {value}.")
  able = sorted(g.name for g in everything.groups if g.bounded)
  if isinstance(given.pair_max, Mapping) and (unknown := sorted({*given.pair_max} - {*able})):
    raise ValueError(f"put_model: pair_max has {unknown}; the groups of this model that can be bounded are {able}.")
  return driver.limit(everything, given)


def _same_frames(m: mujoco.MjModel) -> dict[str, np.ndarray]:
  """Return the poses of inertias, geoms and sites, exact where MuJoCo's compiler equates them with the body's or its inertia's.

  C's kinematics then ignores the remainders below 1e-6 in the fields; here the fields get the values with which C computes.
  Flags that are stale after an edit of the fields are ignored, as if `mj_setConst` had been called.
  """
  same = mujoco.mjtSameFrame
  unit = np.array([1.0, 0, 0, 0])
  out: dict[str, np.ndarray] = {}
  fields = (("body", "body_ipos", "body_iquat"), ("geom", "geom_pos", "geom_quat"), ("site", "site_pos", "site_quat"))
  for kind, pos_field, quat_field in fields:
    frame = getattr(m, f"{kind}_sameframe")
    body = np.arange(m.nbody) if kind == "body" else getattr(m, f"{kind}_bodyid")
    pos, quat = getattr(m, pos_field).copy(), getattr(m, quat_field).copy()
    pos[frame == same.mjSAMEFRAME_BODY] = 0
    quat[np.isin(frame, (same.mjSAMEFRAME_BODY, same.mjSAMEFRAME_BODYROT))] = unit
    at, turned = frame == same.mjSAMEFRAME_INERTIA, np.isin(frame, (same.mjSAMEFRAME_INERTIA, same.mjSAMEFRAME_INERTIAROT))
    pos[at], quat[turned] = m.body_ipos[body[at]], m.body_iquat[body[turned]]
    for field, x in ((pos_field, pos), (quat_field, quat)):
      old = getattr(m, field)
      rest = np.abs(x - old).max(axis=1, initial=0)
      if field is quat_field:
        rest = np.minimum(rest, np.abs(x + old).max(axis=1, initial=0))
      out[field] = np.where(rest[:, None] < 1e-6, x, old)
  return out


def _value(m: mujoco.MjModel, name: str) -> Any:
  """Return a field of the model, or of its opt."""
  return getattr(m, name) if hasattr(m, name) else getattr(m.opt, name)


def _nested(cls: type, source: Any, put: Any, **own: Any) -> Any:
  """Convert an mjOption or mjStatistic, and add fields that MuJoCo does not have."""
  values = {
    f.name: int(getattr(source, f.name)) if f.metadata.get("static") else put(getattr(source, f.name))
    for f in dataclasses.fields(cls)
    if f.name not in own
  }
  return cls(**values, **own)
