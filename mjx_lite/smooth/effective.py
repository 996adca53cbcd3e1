"""Effective metric of the discrete integrator: M + h D + h^2 K, and the force -h K v that belongs to it.

D and K are the slopes of dampers, springs, actuators and the medium over velocity and position; a slope counts only where it
resists the motion. With this metric instead of M, the constrained acceleration is the change of velocity over a step that is
implicit in all of these forces. One solve contains constraints and smooth forces.

Source: MuJoCo 4.0 documentation, Computation, Integrators (discrete).

Tests: tests/integrate/test_discrete.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import transmission
from mjx_lite.math import linalg
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum
from mjx_lite.model.enums import BiasType, GainType, SolverType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.smooth import derivative, inertia, passive
from mjx_lite.tendon import force as tendon_force
from mjx_lite.tendon import tendon


class EffectivePlan(NamedTuple):
  """Index tables, and which terms exist."""

  has_actuator: bool  # whether an actuator's force may depend on length or velocity
  moment: np.ndarray  # (nout * nv,) entry of the packed moments, nJmom for zero
  free_tendon: SumPlan  # trees of one free joint <- tendons that act on them
  free_out: SumPlan  # trees of one free joint <- outputs of actuators that act on them


class Effective(NamedTuple):
  """Metric, and the data that the gyroscopic correction of free bodies needs."""

  matrix: jax.Array  # (nv, nv, W)
  backbone: jax.Array  # (nC, W) packed like M: the metric without the couplings by tendons and actuators
  shift: jax.Array  # (nv, W) -h K v
  coupled: jax.Array  # (nfree, W) trees of one free joint on which a tendon or an actuator adds to the metric


_STIFF = {
  "actuator_gaintype": (GainType.AFFINE, GainType.MUSCLE, GainType.DCMOTOR),
  "actuator_biastype": (BiasType.AFFINE, BiasType.MUSCLE, BiasType.DCMOTOR, BiasType.SO3),
}


def plan(
  s: dict[str, Any], moment: transmission.TransmissionPlan, t: tendon.TendonPlan, d: derivative.DerivativePlan
) -> EffectivePlan:
  """Build the index tables from the static fields of the model."""
  nv, n = s["nv"], len(moment.entry_out)
  entry = np.full((s["nout"], nv), n)
  entry[moment.entry_out, moment.entry_dof] = np.arange(n)
  on_tendon = np.zeros((s["ntendon"], nv), bool)
  on_tendon[t.entry_tendon, t.entry_dof] = True
  free = d.free_dof
  touched = [plan_sum(x[:, free].any(axis=2).T.astype(float)) for x in (on_tendon, entry < n)]
  return EffectivePlan(any(np.isin(s[f], kinds).any() for f, kinds in _STIFF.items()), entry.ravel(), *touched)


class Inputs(NamedTuple):
  """Fields that the metric depends on."""

  M: jax.Array  # (nC, W) packed
  qpos: jax.Array
  qvel: jax.Array
  plastic: jax.Array
  ten_length: jax.Array
  ten_velocity: jax.Array
  ten_J: jax.Array
  moment: jax.Array  # (nJmom, W) packed
  actuator_velocity: jax.Array
  slopes: tuple[jax.Array, jax.Array] | None  # (nout, W) slopes of the actuators' forces over length and velocity
  drag: jax.Array | None  # (nv, nv, W) slope of the medium's drag over velocity


def build(m: Model, x: Inputs) -> Effective:
  """Build the metric at a state.

  With the dual solver, terms of tendons and actuators are left out, as in C.

  Source: `mjd_effBuild`, `mjd_effShift`, `mjd_effActuation`.
  """
  p = m.plan.effective
  h, packed_m = m.opt.timestep, m.plan.inertia
  diagonal, shift = _joints(m, x)
  backbone = x.M + jnp.where(packed_m.diagonal[:, None], rows(diagonal, packed_m.row), 0)
  if x.drag is not None:
    flat = x.drag.reshape(m.nv * m.nv, x.drag.shape[-1])
    backbone = backbone - 0.5 * h * (
      rows(flat, packed_m.row * m.nv + packed_m.col) + rows(flat, packed_m.col * m.nv + packed_m.row)
    )
  matrix = inertia.full(m, backbone)
  coupled = jnp.zeros((len(m.plan.derivative.free_body), x.qvel.shape[-1]), bool)
  if m.opt.solver == SolverType.PGS:
    return Effective(matrix, backbone, shift, coupled)
  f = m.plan.tendon_force
  if (f.has_spring and m.opt.use_spring) or (f.has_damper and m.opt.use_damper):
    stiffness, slope = tendon_force.slopes(m, x.ten_length, x.ten_velocity, x.plastic)
    weight, jac = h * h * stiffness + h * slope, tendon.dense(m, x.ten_J)
    matrix = matrix + linalg.gram(jac, jac * weight[:, None])
    shift = shift - tendon.to_joints(m, x.ten_J, h * stiffness * x.ten_velocity)
    coupled = coupled | (mask_sum(p.free_tendon, jnp.where(weight != 0, 1.0, 0.0)) > 0)
  if x.slopes is not None:
    stiffness, slope = (jnp.maximum(-s, 0) for s in x.slopes)
    weight, jac = h * h * stiffness + h * slope, _dense_moment(m, x.moment)
    matrix = matrix + linalg.gram(jac, jac * weight[:, None])
    shift = shift - transmission.to_joints(m, x.moment, h * stiffness * x.actuator_velocity)
    coupled = coupled | (mask_sum(p.free_out, jnp.where(weight != 0, 1.0, 0.0)) > 0)
  backbone = jnp.where(packed_m.diagonal[:, None], rows(jnp.diagonal(matrix).T, packed_m.row), backbone)
  return Effective(matrix, backbone, shift, coupled)


def _joints(m: Model, x: Inputs) -> tuple[jax.Array, jax.Array]:
  """Return the terms of joint springs and dampers on the diagonal (nv, W), and their shift (nv, W)."""
  h, p = m.opt.timestep, m.plan.passive
  diagonal = shift = jnp.zeros_like(x.qvel)
  if p.has_damper and m.opt.use_damper:
    diagonal = diagonal + h * jnp.maximum(derivative.damping(m, x.qvel), 0)
  if p.has_spring and m.opt.use_spring:
    stiffness = h * jnp.maximum(passive.stiffness(m, passive.joint_extensions(m, x.qpos, x.plastic)), 0)
    diagonal, shift = diagonal + h * stiffness, -stiffness * x.qvel
  return diagonal, shift


def _dense_moment(m: Model, moment: jax.Array) -> jax.Array:
  """Return the dense moments (nout, nv, W)."""
  padded = jnp.concatenate([moment, jnp.zeros_like(moment, shape=(1, moment.shape[-1]))])
  return rows(padded, m.plan.effective.moment).reshape(m.nout, m.nv, moment.shape[-1])
