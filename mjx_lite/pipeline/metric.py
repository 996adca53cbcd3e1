"""Metric of the discrete integrator, and derivatives of smooth forces with respect to velocity.

Tests: tests/integrate/test_discrete.py, tests/integrate/test_integrators.py.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import force as actuator_force
from mjx_lite.constraint import adhesion, discrete, jacobian, soft
from mjx_lite.constraint.rows import Rows
from mjx_lite.integrate import implicit as implicit_
from mjx_lite.math import safe, symmetric
from mjx_lite.model.types import Data, Model
from mjx_lite.ops.select import put
from mjx_lite.pipeline.actuation import user_laws
from mjx_lite.pipeline.constraint import has_rows
from mjx_lite.pipeline.position import composite, mass_factor
from mjx_lite.smooth import (
  derivative,
  effective,
  mass,
)


def effective_metric(m: Model, d: Data) -> effective.Effective | None:
  """Return the metric of the discrete integrator; None for other integrators."""
  if not (m.opt.is_discrete and m.nv):
    return None
  slopes = drag = None
  if m.plan.effective.has_actuator and m.opt.use_actuation:
    ctrl, _ = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
    x = (ctrl, d.act, d.actuator_length, d.actuator_velocity, d.qfrc_actuator, user_laws(m, d))
    slopes = actuator_force.length_slope(m, *x), actuator_force.velocity_slope(m, *x)
  if derivative.with_medium(m):
    pose = (d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
    drag = derivative.by_tree(m, d.qvel, d.cinert, d.cdof, *pose, bias=False, drag_only=True)
  return effective.build(
    m,
    effective.Inputs(
      M=d.M,
      qpos=d.qpos,
      qvel=d.qvel,
      plastic=d.plastic,
      ten_length=d.ten_length,
      ten_velocity=d.ten_velocity,
      ten_J=d.ten_J,
      moment=d.actuator_moment,
      actuator_velocity=d.actuator_velocity,
      slopes=slopes,
      drag=drag,
    ),
  )


def convert_rows(m: Model, d: Data, rows: Rows, metric: effective.Effective) -> tuple[Data, Rows, jax.Array]:
  """Convert the rows of `make_constraint` to the effective metric. Also return the mask (nv, W) of dofs that rows act on."""
  if not has_rows(m):
    return d, rows, jnp.zeros(d.qvel.shape, bool)
  pull = adhesion.share(m, d.contact.adhesion, d.contact.dim) if m.plan.contact.adhesive else None
  rows, touched = discrete.in_metric(m, rows, d.cdof, _shrinkage(m, d, rows, metric), pull)
  return d.replace(efc_aref=rows.aref, efc_R=rows.R, efc_D=rows.D, efc_diagA=rows.diagA), rows, touched


def _shrinkage(m: Model, d: Data, rows: Rows, metric: effective.Effective) -> jax.Array:
  """Return the factor (nefc, W) of the rows' inverse inertia in the effective metric: from diagonals, or exact."""
  if not m.opt.use_diagexact:
    diagonal = d.M[m.plan.inertia.diagonal_entry], jnp.diagonal(metric.matrix).T
    return discrete.shrinkage(m, rows, d.cdof, *diagonal)
  factors = mass.dense_factor(m, metric.backbone), mass_factor(m, d)
  solvers = [functools.partial(mass.solve, m, f) for f in factors]
  ahead, behind = (jacobian.inverse_diagonal(m, rows.jacobian, d.cdof, f) for f in solvers)
  return jacobian.first_of_contact(m, safe.divide(ahead, behind))


def apply_free_gyro(m: Model, d: Data, metric: effective.Effective, touched: jax.Array) -> Data:
  """Make the gyroscopic force implicit for the free bodies that no row acts on. Source: `mjd_freeGyro`."""
  p = m.plan.derivative
  if not len(p.free_body):
    return d
  force = d.qfrc_smooth + metric.shift
  turned = implicit_.solve_free(m, d.qacc, free_metric(m, d, metric), force)
  if m.opt.contact_gradient in soft.WEIGHTS:
    turned = soft.straight_through(turned, d.qacc - d.qacc_smooth)
  return d.replace(qacc=jnp.where(free_gyro_mask(m, metric, touched), turned, d.qacc))


def free_metric(m: Model, d: Data, metric: effective.Effective) -> jax.Array:
  """Return the metric's blocks (n, 6, 6, W) of trees with one free joint only, with their bias force included."""
  dof = m.plan.derivative.free_dof
  block = metric.matrix[dof[:, :, None], dof[:, None]]
  return block + implicit_.free_bias(m, d.qvel, d.xpos, d.xmat, d.subtree_com, composite(m, d))


def free_gyro_mask(m: Model, metric: effective.Effective, touched: jax.Array) -> jax.Array:
  """Return the mask (nv, W) of dofs of free bodies that no row acts on and that the metric does not couple."""
  dof = m.plan.derivative.free_dof
  alone = ~metric.coupled & ~jnp.any(touched[dof], axis=1)
  spread = np.zeros((m.nv, 1), bool)
  return put(jnp.asarray(spread), dof.ravel(), jnp.repeat(alone, 6, axis=0))


def free_blocks(m: Model, d: Data, packed: jax.Array, medium: Any) -> jax.Array:
  """Return the blocks (n, 6, 6, W) of the implicit integrator for trees with one free joint only."""
  return implicit_.free_blocks(m, d.M, packed, medium, d.qvel, d.xpos, d.xmat, d.subtree_com, composite(m, d))


def deriv_smooth_vel(m: Model, d: Data, bias: bool = True) -> jax.Array:
  """Return the derivative (nv, nv) of the smooth forces with respect to velocity, within the sparsity of the trees.

  Args:
    m: the model.
    d: Data after forward.
    bias: whether to include qfrc_bias.

  Source: `mjd_smooth_vel`.
  """
  packed, trees = smooth_vel_derivatives(m, d, bias)
  out = symmetric.unpack(m.plan.derivative.packing, packed)
  return out if trees is None else out + trees


def smooth_vel_derivatives(m: Model, d: Data, bias: bool) -> tuple[jax.Array, Any]:
  """Return derivatives of smooth forces: of dampers and actuators packed; of medium and bias force per tree, or None."""
  slope = None
  if derivative.with_actuators(m):
    ctrl, _ = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
    slope = actuator_force.velocity_slope(
      m, ctrl, d.act, d.actuator_length, d.actuator_velocity, d.qfrc_actuator, user_laws(m, d)
    )
  packed = derivative.packed(m, d.qvel, d.ten_velocity, d.ten_J, d.actuator_moment, slope)
  if not bias and not derivative.with_medium(m):
    return packed, None
  pose = (d.xipos, d.ximat, d.geom_xpos, d.geom_xmat, d.subtree_com)
  return packed, derivative.by_tree(m, d.qvel, d.cinert, d.cdof, *pose, bias=bias)
