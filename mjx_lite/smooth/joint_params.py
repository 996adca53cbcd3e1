"""Armature and damping of the dofs, with those of the actuators on their joints.

Tests: tests/smooth/test_set_const.py, tests/parity/test_stages.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.enums import TrnType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


class JointParamsPlan(NamedTuple):
  """Index tables."""

  by_actuator: SumPlan  # dof <- actuators on the dof's joint
  first_out: np.ndarray  # actuator -> first output of the actuator


def plan(s: dict[str, Any]) -> JointParamsPlan:
  """Build the index tables from the static fields of the model."""
  acts = np.zeros((s["nv"], s["nactuator"]))
  on_joint = np.isin(s["actuator_trntype"], (TrnType.JOINT, TrnType.JOINTINPARENT))
  for i in np.flatnonzero(on_joint):
    acts[s["dof_jntid"] == s["actuator_trnid"][i, 0], i] = 1
  return JointParamsPlan(plan_sum(acts), np.array(s["actuator_outadr"], int))


def dof_armature(m: Model) -> jax.Array:
  """Return the armature of the dofs (nv, 1 or W), with the actuators on their joints. Source: `mj_actuatorArmature`."""
  if "actuator_armature" in m.layout.pruned:
    return m.dof_armature
  return m.dof_armature + _reflected(m, m.actuator_armature)


def dof_damping(m: Model) -> tuple[jax.Array, jax.Array]:
  """Return damping (nv, 1 or W) and its polynomial (nv, 2, 1 or W) of dofs and actuators. Source: `mj_actuatorDamping`."""
  if "actuator_damping" in m.layout.pruned:
    return m.dof_damping, m.dof_dampingpoly
  return m.dof_damping + _reflected(m, m.actuator_damping), m.dof_dampingpoly + _reflected(m, m.actuator_dampingpoly)


def _reflected(m, x):
  """Sum gear^2 x over the actuators on each dof's joint, for x (nactuator, ..., W)."""
  p = m.plan.joint_params
  gear = rows(m.actuator_gear, p.first_out)[:, 0]
  gear = gear.reshape(gear.shape[0], *(1,) * (x.ndim - 2), gear.shape[-1])
  return mask_sum(p.by_actuator, gear * gear * x)
