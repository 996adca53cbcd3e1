"""Derivatives of the smooth forces with respect to velocity, which the implicit integrators add to M.

Dampers and actuators act along rows of a Jacobian, so their derivatives J' diag(slope) J are packed like M. The derivative of
the bias force and of the medium is one matrix per tree. Forward differentiation of the forces gives its columns; trees do not
share dofs, so one tangent gives a column of every tree.

Tests: tests/integrate/test_integrators.py.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import transmission
from mjx_lite.math import symmetric
from mjx_lite.model.enums import BiasType, GainType, JointType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows
from mjx_lite.smooth import com, fluid, joint_params, rne
from mjx_lite.tendon import force as tendon_force
from mjx_lite.tendon import tendon


class DerivativePlan(NamedTuple):
  """Index tables, and which terms exist."""

  packing: symmetric.SymmetricPlan  # packing of a matrix with the sparsity of the trees; M may have fewer entries
  from_m: np.ndarray  # entry of the packing -> entry of packed M, -1 where M is zero
  to_m: np.ndarray  # entry of packed M -> entry of the packing
  moment: symmetric.GramPlan  # products of the moments of the actuators' outputs
  tendon: symmetric.GramPlan  # products of the tendons' Jacobians
  has_actuator: bool  # whether an actuator's force may depend on velocity
  tangent: np.ndarray  # (ntangent, nv) 1 for the dofs of each tangent
  entry: np.ndarray  # (nv, nv) index into the flattened columns (ntangent, nv)
  same_tree: np.ndarray  # (nv, nv) whether two dofs are in one tree
  free_body: np.ndarray  # bodies with one free joint, alone in their trees
  free_dof: np.ndarray  # (n, 6) dofs of these bodies


_WITH_SPEED = {
  "actuator_gaintype": (GainType.AFFINE, GainType.MUSCLE, GainType.DCMOTOR, GainType.SO3, GainType.PID),
  "actuator_biastype": (BiasType.AFFINE, BiasType.DCMOTOR, BiasType.SO3),
}


def plan(
  s: dict[str, Any], packed_m: symmetric.SymmetricPlan, moment: transmission.TransmissionPlan, t: tendon.TendonPlan
) -> DerivativePlan:
  """Build the index tables from the static fields of the model."""
  nv, tree = s["nv"], s["dof_treeid"]
  within = np.arange(nv) - np.searchsorted(tree, tree)  # trees own ranges of dofs
  tangent = np.zeros((within.max(initial=-1) + 1, nv))
  tangent[within, np.arange(nv)] = 1
  free = np.flatnonzero(s["jnt_type"] == JointType.FREE)
  dof = s["jnt_dofadr"][free]
  alone = s["tree_dofnum"][tree[dof]] == 6
  row = np.repeat(np.arange(nv), s["D_rownnz"])
  col = s["D_colind"][: s["nD"]].astype(int)
  lower = row >= col
  p = symmetric.plan_packed(row[lower], col[lower], nv)
  from_m = packed_m.dense[p.row * nv + p.col]
  return DerivativePlan(
    packing=p, from_m=np.where(from_m < len(packed_m.row), from_m, -1), to_m=p.dense[packed_m.row * nv + packed_m.col],
    moment=symmetric.plan_gram(p, moment.entry_out, moment.entry_dof),
    tendon=symmetric.plan_gram(p, t.entry_tendon, t.entry_dof),
    has_actuator=any(np.isin(s[field], kinds).any() for field, kinds in _WITH_SPEED.items()),
    tangent=tangent, entry=within[None] * nv + np.arange(nv)[:, None], same_tree=tree[:, None] == tree,
    free_body=s["jnt_bodyid"][free[alone]], free_dof=dof[alone][:, None] + np.arange(6),
  )  # fmt: skip


def damping(m: Model, qvel: jax.Array) -> jax.Array:
  """Return the slope (nv, W) of the joints' damping over velocity, positive where damping resists the motion."""
  return _slope(*joint_params.dof_damping(m), qvel)


def _slope(first, higher, speed):
  speed = jnp.abs(speed)
  return first + speed * (2 * higher[:, 0] + 3 * higher[:, 1] * speed)


def packed(m: Model, qvel, ten_velocity, ten_J, moment, actuator_slope: jax.Array | None) -> jax.Array:
  """Return the derivative of the forces of dampers and actuators, packed by `plan.derivative.packing`.

  Args:
    m: the model.
    qvel: (nv, W).
    ten_velocity: (ntendon, W).
    ten_J: (nJten, W).
    moment: (nJmom, W) packed.
    actuator_slope: (nout, W) derivative of each output's force over its velocity, or None.

  Source: `mjd_actuator_vel`, `mjd_passive_vel`.
  """
  p = m.plan.derivative
  packing = p.packing
  out = jnp.zeros((len(packing.row), qvel.shape[-1]), qvel.dtype)
  if m.opt.use_damper and m.plan.passive.has_damper:
    out = out - jnp.where(packing.diagonal[:, None], rows(damping(m, qvel), packing.row), 0)
  if m.opt.use_damper and m.plan.tendon_force.has_damper:
    out = out - symmetric.gram(p.tendon, ten_J, _slope(*tendon_force.damping(m), ten_velocity))
  return out if actuator_slope is None else out + symmetric.gram(p.moment, moment, actuator_slope)


def is_diagonal(m: Model) -> bool:
  """Return whether dampers and actuators add only to the diagonal of M."""
  p = m.plan.derivative
  tendons = m.opt.use_damper and m.plan.tendon_force.has_damper and not p.tendon.is_diagonal
  return not tendons and (p.moment.is_diagonal or not with_actuators(m))


def with_actuators(m: Model) -> bool:
  """Return whether forces of actuators may depend on velocity."""
  return m.plan.derivative.has_actuator and m.opt.use_actuation


def with_medium(m: Model) -> bool:
  """Return whether there is a medium."""
  return m.plan.fluid.exists and m.opt.use_passive


def by_tree(
  m: Model, qvel, cinert, cdof, xipos, ximat, geom_xpos, geom_xmat, subtree_com, *, bias: bool, drag_only: bool = False
) -> jax.Array:
  """Return the derivative (nv, nv, W) of the medium's force or only its drag, minus that of the bias force if `bias`.

  Source: `mjd_rne_vel`, `mjd_ellipsoidFluid`, `mjd_inertiaBoxFluid`.
  """
  p = m.plan.derivative

  def force(v):
    velocity = com.com_vel(m, cdof, v)
    out = jnp.zeros_like(v)
    if with_medium(m):
      out = out + fluid.fluid(m, cdof, velocity.cvel, xipos, ximat, geom_xpos, geom_xmat, subtree_com, drag_only)
    return out - rne.rne(m, cinert, cdof, velocity.cvel, velocity.cdof_dot, v) if bias else out

  tangents = jnp.broadcast_to(jnp.asarray(p.tangent, qvel.dtype)[..., None], (*p.tangent.shape, qvel.shape[-1]))
  columns = jax.vmap(lambda t: jax.jvp(force, (qvel,), (t,))[1])(tangents)
  flat = rows(columns.reshape(-1, qvel.shape[-1]), p.entry.ravel())
  return jnp.where(p.same_tree[..., None], flat.reshape(m.nv, m.nv, flat.shape[-1]), 0)
