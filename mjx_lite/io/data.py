"""Data: creation, and conversion from and to mujoco.MjData.

Tests: tests/io/test_io.py, tests/io/test_put_data.py.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import mujoco
import numpy as np

from mjx_lite.io import _pack, _unpack, checkpoint, options
from mjx_lite.io.model import ARGUMENTS, put_model
from mjx_lite.model import fit, pytree, status
from mjx_lite.model.types import Contact, Data, Model
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import plastic
from mjx_lite.tendon import force as tendon_force

_KINDS = {"int": np.int32, "bool": np.bool_}


def shape_of(m: Any, spec: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[int, ...]:
  """Return the shape of a declared field for one world."""
  return tuple((sizes[d] if d in sizes else getattr(m, d)) if isinstance(d, str) else d for d in spec["shape"])


def _zeros(m: Model, spec: Mapping[str, Any]) -> np.ndarray:
  return np.zeros(shape_of(m, spec, m.plan.sizes), _KINDS.get(spec["dtype"], m.layout.dtype))


def _allocate(m: Model, cls: type, keep: Sequence[str] = ()) -> dict[str, np.ndarray | None]:
  optional = pytree.optional_fields(cls)
  out: dict[str, Any] = {f"_{name}": None for name in optional}
  for name, spec in pytree.specs(cls).items():
    if name not in optional or name in keep:
      out[f"_{name}" if name in optional else name] = _zeros(m, spec)
  return out


def _names(keep: Sequence[str]) -> Sequence[str]:
  """Check `keep` and return the names of the fields to keep."""
  optional = pytree.optional_fields(Data)
  if keep == "all":
    return optional
  if isinstance(keep, str) or not set(keep) <= set(optional):
    raise ValueError(f"keep takes 'all' or names of {', '.join(optional)}, not {keep!r}; all other fields are always kept.")
  return keep


def make_data(m: Model | mujoco.MjModel, device: Any = None, *, keep: Sequence[str] = (), **mjx_options: Any) -> Data:
  """Create the Data of one world at the model's reference configuration; computed fields are zero.

  Differs: MjData always has `crb`, `qLD`, `qLDiagInv` and `efc_KBIP`; a Data has these fields only where `keep` names them.
  `rne_postconstraint` and `subtree_vel` return `cacc`, `cfrc_int`, `cfrc_ext`, `subtree_linvel` and `subtree_angmom` on demand.

  Args:
    m: a Model, or a mujoco model (put_model is called on it, as in MJX).
    device: jax.Device where the arrays go.
    keep: optional fields, which a step returns only if they are named here, or 'all': `crb`, `qLD`, `qLDiagInv`, `efc_KBIP`;
      the results of `rne_postconstraint` and `subtree_vel`; and rotation matrices, which are otherwise computed from the
      quaternions each time that they are read. Optional fields cost memory and time in every step.
    **mjx_options: arguments of put_model where m is a mujoco model; and arguments that have a meaning only in MJX, which cause
      a warning.

  Raises:
    ValueError: for a name in keep that is not an optional field.
    TypeError: for an argument that is known neither here nor in MJX.
  """
  m = _model_of("make_data", m, device, mjx_options)
  if not isinstance(m, Model):
    raise TypeError(f"make_data takes a Model or a mujoco.MjModel, not {type(m).__name__}.")
  return _put(_start(m, keep), device)


def _model_of(function: str, m: Any, device: Any, given: Mapping[str, Any], stacklevel: int = 4) -> Any:
  """Return the Model that a function of this module was given, or the Model of an MjModel, with the arguments of put_model."""
  own = {name: x for name, x in given.items() if name in ARGUMENTS}
  options.pass_over(function, {name: x for name, x in given.items() if name not in own}, ARGUMENTS, stacklevel)
  if isinstance(m, mujoco.MjModel):
    return put_model(m, device, **own)
  if isinstance(m, Model) and own:
    raise TypeError(f"{function}: {', '.join(own)} are arguments of put_model: pass them when you make the Model.")
  return m


def _start(m: Model, keep: Sequence[str]) -> Data:
  """Return the initial Data: NumPy arrays, except arrays that are computed from traced arrays of the Model."""
  for name in ("qpos0", "body_pos", "body_quat"):  # the fields that are read below
    fit.check_shape(f"Model.{name}", getattr(m, name), fit.shapes(Model, m.layout)[name])
  d = Data(
    contact=Contact(**_allocate(m, Contact)), status=status.Status(**_allocate(m, status.Status)),
    **_allocate(m, Data, _names(keep)),
  )  # fmt: skip
  mocap = np.flatnonzero(m.body_mocapid >= 0)
  order = mocap[np.argsort(m.body_mocapid[mocap])]
  contact = d.contact.replace(
    dist=np.full_like(d.contact.dist, 1e10), exclude=np.full_like(d.contact.exclude, -1),
    geom=np.array(m.plan.collision.slot_geom, np.int32).reshape(-1, 2), dim=np.array(m.plan.collision.slot_dim, np.int32),
    efc_address=np.array(m.plan.rows.address, np.int32),
  )  # fmt: skip
  d = d.replace(
    qpos=_own(m.qpos0), mocap_pos=_own(m.body_pos)[order], mocap_quat=_own(m.body_quat)[order],
    eq_active=np.array(m.eq_active0, bool), contact=contact, ctrl=np.array(m.plan.actuator.ctrl0, m.layout.dtype),
    efc_type=np.array(m.plan.rows.type, np.int32), efc_id=np.array(m.plan.rows.id, np.int32),
  )  # fmt: skip
  if m.nplastic:
    d = d.replace(plastic=tendon_force.initial(m, plastic.initial(m)))
  return d.replace(history=sensor.start(m, m.opt.timestep[None])[:, 0]) if m.nhistory else d


def _own(x: jax.Array) -> Any:
  """Return a copy: a NumPy array, whose operations need no compilation, unless x is traced."""
  return jnp.array(x) if isinstance(x, jax.core.Tracer) else np.array(x)


def _put(d: Data, device: Any) -> Data:
  """Put the NumPy arrays on the device, as constants if something is traced; nothing is compiled for the transfer."""
  checkpoint.register_with_flax()  # flax may have been imported after this package
  with jax.ensure_compile_time_eval():
    d = jax.tree.map(lambda x: jax.device_put(x, device) if isinstance(x, np.ndarray) else x, d)
  return jax.device_put(d, device) if device is not None else d


@options.renamed(mj_model="m", mj_data="d")
def put_data(
  m: mujoco.MjModel | Model, d: mujoco.MjData, device: Any = None, *, keep: Sequence[str] = (), **mjx_options: Any
) -> Data:
  """Convert a mujoco.MjData to a Data: state, inputs, computed fields, and contacts and constraint rows in their slots.

  Where the model has fewer slots than the MjData has contacts, the last contacts are left out, and the status says CONTACTFULL.

  Args:
    m: the model of the data.
    d: the data.
    device: jax.Device where the arrays go.
    keep: as in make_data.
    **mjx_options: as in make_data.

  Raises:
    ValueError: the MjData is of another model, or has a contact or a constraint row that the Model cannot have.
    TypeError: d is not a mujoco.MjData, or an argument is known neither here nor in MJX.
  """
  if not isinstance(d, mujoco.MjData):
    raise TypeError(f"put_data takes a mujoco.MjModel and a mujoco.MjData, not {type(d).__name__}.")
  model = _model_of("put_data", m, device, mjx_options, stacklevel=5)
  _check_same_model(model, d)
  out = _start(model, keep)
  changes = {}
  for name in pytree.present(out):
    if name.startswith(("efc_", "solver_", "actuator_moment")) or not hasattr(d, name):
      continue
    like = getattr(out, name)
    value = np.array(getattr(d, name), like.dtype)  # a copy: JAX on CPU may alias its argument
    changes[name] = value.reshape(like.shape)
  changes["actuator_moment"] = np.array(_pack.read_moment(model, d), model.layout.dtype)
  changes.update(_unpack.read(model, d, out))
  return _put(out.replace(**changes), device)


def _check_same_model(m: Any, d: Any) -> None:
  for size, field in (("nq", "qpos"), ("nv", "qvel"), ("nu", "ctrl"), ("nmocap", "mocap_pos"), ("nbody", "xpos")):
    have = getattr(d, field).shape[0]
    if have != getattr(m, size):
      raise ValueError(f"the Data is of another model: its {field} has {have} rows, the model has {size} = {getattr(m, size)}.")


def _check_types(mj_model: Any, d: Any) -> None:
  if not isinstance(mj_model, mujoco.MjModel) or not isinstance(d, Data):
    raise TypeError(
      "get_data takes a mujoco.MjModel and a Data of mjx_lite, get_data_into a mujoco.MjData before them, "
      f"not {type(mj_model).__name__} and {type(d).__name__}."
    )


@options.renamed(mj_model="m")
def get_data(m: mujoco.MjModel, d: Data, **mjx_options: Any) -> mujoco.MjData | list[mujoco.MjData]:
  """Convert a Data to a mujoco.MjData, or to a list of MjData if the Data has a leading world axis.

  Most of the time is spent on allocations: `get_data_into` writes into existing MjData instead. `efc_J` is computed here. For a
  Data after `step`, the new qpos is used where a row depends on qpos: limits of ball joints and couplings of joints.

  Args:
    m: the model of the data.
    d: the Data.
    **mjx_options: arguments that have a meaning only in MJX; they cause a warning.
  """
  options.pass_over("get_data", mjx_options, stacklevel=4)
  _check_types(m, d)
  batch = d.qpos.ndim > 1
  result = [mujoco.MjData(m) for _ in range(d.qpos.shape[0])] if batch else mujoco.MjData(m)
  _write(result, m, d)
  return result


@options.renamed(mj_model="m")
def get_data_into(result: mujoco.MjData | list[mujoco.MjData], m: mujoco.MjModel, d: Data, **mjx_options: Any) -> None:
  """Write a Data into existing mujoco.MjData, with contacts and constraint rows packed as in MuJoCo.

  Args:
    result: one MjData, or a list with one for each world of a Data with a leading world axis.
    m: the model of the data.
    d: the Data.
    **mjx_options: arguments that have a meaning only in MJX; they cause a warning.
  """
  options.pass_over("get_data_into", mjx_options, stacklevel=4)
  _check_types(m, d)
  if (d.qpos.ndim > 1) != isinstance(result, list):
    raise ValueError("a Data with a world axis needs a list of MjData, a Data without one a single MjData.")
  _write(result, m, d)


def _write(result: mujoco.MjData | list[mujoco.MjData], mj_model: mujoco.MjModel, d: Data) -> None:
  """Fill one MjData, or a list with one for each world."""
  batch = isinstance(result, list)
  d = d.replace(**{name: getattr(d, name, None) for name in pytree.optional_fields(Data)})  # rotation matrices, of all worlds
  leaves, form = jax.tree.flatten(jax.device_get(d))  # one transfer
  worlds = [jax.tree.unflatten(form, [x[i] for x in leaves]) for i in range(len(d.qpos))] if batch else [
    jax.tree.unflatten(form, leaves)]  # fmt: skip
  moment = _pack.moment_entries(mj_model)
  for target, one in zip(result if batch else [result], worlds, strict=True):
    _check_same_model(mj_model, one)
    _fill(target, one)
    _pack.fill(target, mj_model, one, moment)


def _fill(result: mujoco.MjData, d: Data) -> None:
  there = pytree.present(d)
  for name in _plain_fields():
    if name not in there:
      continue
    value, target = np.asarray(getattr(d, name)), getattr(result, name)
    if isinstance(target, np.ndarray):
      target[...] = value.reshape(target.shape)
    else:
      setattr(result, name, value.item())
  result.solver_niter[0] = d.solver_niter
  result.solver_fwdinv[:] = d.solver_fwdinv


@functools.cache
def _plain_fields() -> tuple[str, ...]:
  """Return the fields of Data that mujoco.MjData has in the same form."""
  packed = ("efc_", "solver_", "actuator_moment")
  return tuple(name for name in pytree.specs(Data) if not name.startswith(packed) and hasattr(mujoco.MjData, name))


def bytes_per_world(d: Data) -> int:
  """Return the number of bytes of one world's Data."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(d))
