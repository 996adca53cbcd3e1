"""The fields of a mujoco.MjModel for plans.

Tests: tests/io/test_io.py.
"""

import numbers
from typing import Any

import mujoco
import numpy as np

from mjx_lite.model import enums, pytree
from mjx_lite.model.types import Model

_GEOM_WRAPS = (enums.WrapType.SPHERE, enums.WrapType.CYLINDER)  # the parameter of these kinds is the id of a side site


def every(m: mujoco.MjModel) -> dict[str, Any]:
  """Return all public data of mjModel by name; arrays are copied."""
  out: dict[str, Any] = {}
  for name in dir(m):
    if name.startswith("_"):
      continue
    value = getattr(m, name)
    if isinstance(value, np.ndarray):
      out[name] = value.copy()
    elif isinstance(value, numbers.Number | bytes):
      out[name] = value
  return out


def split(m: mujoco.MjModel) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Return the static fields of a model, and the float fields of the physics, by mjModel's names."""
  fields, traced = every(m), set(pytree.specs(Model))
  static = {k: v for k, v in fields.items() if k not in traced}
  static["wrap_sideid"] = np.where(np.isin(m.wrap_type, _GEOM_WRAPS), np.rint(m.wrap_prm), -1).astype(int)
  static.update(sdf_initpoints=m.opt.sdf_initpoints, sdf_iterations=m.opt.sdf_iterations, sdf_aabb=m.geom_aabb.copy())
  return static, {k: v for k, v in fields.items() if k in traced}
