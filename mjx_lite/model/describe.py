"""Short descriptions of Models, Datas and their parts, for people: sizes, options, bytes.

A description computes nothing. Traced and donated arrays are shown by dtype and shape, and a packed Data stays packed.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from mjx_lite.model import enums
from mjx_lite.model.packing import Packed
from mjx_lite.model.pytree import kept, specs

_UNNAMED = "MuJoCo Model"  # what the compiler calls a model without a name
_LARGEST = 10  # largest number of values that are written out
_MODEL_SIZES = ("nq", "nv", "nu", "na", "nbody", "njnt", "ngeom", "nsite", "neq", "ntendon", "nsensor", "nkey")
_DATA_SIZES = {
  "nq": "qpos", "nv": "qvel", "nu": "ctrl", "na": "act", "nbody": "xpos", "ngeom": "geom_xpos", "nsite": "site_xpos",
  "neq": "eq_active", "ntendon": "ten_length", "nefc": "efc_D", "nsensordata": "sensordata",
}  # fmt: skip
_ENUMS = {
  "integrator": enums.IntegratorType, "cone": enums.ConeType, "jacobian": enums.JacobianType, "solver": enums.SolverType,
  "disableflags": enums.DisableBit, "enableflags": enums.EnableBit,
}  # fmt: skip


def value(x: Any) -> str:
  """Format a small array by its values (at most 10), a larger array by dtype and shape, and other objects by value or type."""
  if not hasattr(x, "shape") or not hasattr(x, "dtype"):
    return repr(x) if isinstance(x, str | bytes | type(None)) or np.isscalar(x) else type(x).__name__
  if isinstance(x, np.ndarray | jax.Array) and not isinstance(x, jax.core.Tracer) and math.prod(x.shape) <= _LARGEST:
    there = not isinstance(x, jax.Array) or (x.is_fully_addressable and not x.is_deleted())
    if there and not jnp.issubdtype(x.dtype, jax.dtypes.extended):
      return np.array2string(np.asarray(x), separator=", ", max_line_width=1000)
  return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def parts(x: Any) -> str:
  """Format a dataclass with all its fields."""
  shown = []
  for f in dataclasses.fields(x):
    field, enum = getattr(x, f.name), _ENUMS.get(f.name)
    named = enum is not None and isinstance(field, int | np.integer)
    shown.append(f"{f.name}={_names(enum, int(field)) if named else value(field)}")
  return f"{type(x).__name__}({', '.join(shown)})"


def _names(enum: Any, number: int) -> str:
  try:
    return enum(int(number)).name or "0"
  except ValueError:
    return str(number)


def size(x: Any) -> str:
  """Format the number of bytes of a pytree's arrays."""
  n = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(x) if hasattr(leaf, "dtype"))
  for unit in ("B", "kB", "MB"):
    if n < 1000:
      return f"{n:.3g} {unit}"
    n /= 1000
  return f"{n:.3g} GB"


def model(m: Any) -> str:
  """Format a Model by its sizes and options."""
  name = bytes(m.layout.static.get("names", b"")).split(b"\0")[0].decode(errors="replace")
  sizes = {k: m.layout.static.get(k, 0) for k in _MODEL_SIZES} | dict(ncon=m.plan.sizes["ncon"], nefc=m.plan.sizes["nefc"])
  o = m.opt
  options = [f"{k}={_names(_ENUMS[k], getattr(o, k))}" for k in ("integrator", "solver", "cone") if hasattr(o, k)]
  options += [f"{k}={value(getattr(o, k))}" for k in ("iterations", "timestep") if hasattr(o, k)]
  declared = specs(type(m))
  batched = [f"{k}={value(x)}" for k, spec in declared.items() if _extra(x := getattr(m, k), spec)]
  shown = ", ".join(batched[:4]) + (f" and {len(batched) - 4} of {len(declared) - 4} other fields" if len(batched) > 4 else "")
  batches = [f"batched: {shown}"] if batched else []
  named = repr(name) if name not in ("", _UNNAMED) else ""
  limits = [str(m.capacity)] if m.plan.collision.limits else []
  return _listed("Model", named, m.layout.dtype, *_given(sizes), *limits, *options, *batches, size(m))


def _extra(x: Any, spec: Any) -> bool:
  """Return whether an array has batch axes before the axes of one world."""
  return hasattr(x, "ndim") and x.ndim > len(spec["shape"])


def data(d: Any) -> str:
  """Format a Data by its number of worlds and its sizes."""
  d = _shapes(d)
  keep = kept(d)
  sizes = {k: _length(getattr(d, field), spec) for k, field in _DATA_SIZES.items() if (spec := specs(type(d))[field])}
  sizes["ncon"] = _length(getattr(d.contact, "dist", None), dict(shape=("ncon",)))
  return _listed("Data", _worlds(d.qpos, 1), _dtype(d.qpos), *_given(sizes), f"keep={keep}" if keep else "", size(d))


def contact(c: Any) -> str:
  """Format contacts by the number of their slots."""
  slots = _length(c.dist, specs(type(c))["dist"])
  return _listed("Contact", _worlds(c.dist, 1), _dtype(c.dist), f"{slots} slots", size(c))


def _shapes(d: Any) -> Any:
  """Return the Data; if it is packed, return shapes instead of its arrays."""
  packed = vars(d).get("_packed")
  return d if packed is None else jax.eval_shape(Packed.unpacked, packed).replace(**vars(d)["_changes"])


def _length(x: Any, spec: Any) -> int | None:
  """Return the length of the first axis that a field has in one world, or None if the length is unknown."""
  ndim = len(spec["shape"])
  return x.shape[-ndim] if ndim and len(getattr(x, "shape", ())) >= ndim else None


def _worlds(x: Any, ndim: int) -> str:
  """Format the batch axes, which stand before the `ndim` axes of one world."""
  before = getattr(x, "shape", ())[:-ndim]
  return f"{' x '.join(map(str, before))} worlds" if before else ""


def _dtype(x: Any) -> str:
  if not hasattr(x, "dtype"):
    return type(x).__name__
  return f"{x.dtype}{', traced' if isinstance(x, jax.core.Tracer) else ''}"


def _given(sizes: dict[str, int | None]) -> list[str]:
  return [f"{k}={n}" for k, n in sizes.items() if n]


def _listed(name: str, *items: str) -> str:
  return f"{name}({', '.join(x for x in items if x)})"
