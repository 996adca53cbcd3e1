"""Inverse dynamics.

Tests: tests/parity/test_inverse.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Rows
from mjx_lite.integrate import euler as euler_
from mjx_lite.integrate import implicit as implicit_
from mjx_lite.math import safe, vector
from mjx_lite.model import callbacks as user
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.enums import IntegratorType
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.constraint import has_rows, rebuild_rows
from mjx_lite.pipeline.dynamics import StageCache, until_velocity
from mjx_lite.pipeline.metric import (
  convert_rows,
  effective_metric,
  free_blocks,
  free_gyro_mask,
  free_metric,
  smooth_vel_derivatives,
)
from mjx_lite.pipeline.position import mass_factor
from mjx_lite.pipeline.sensors import sensor_acc
from mjx_lite.smooth import (
  applied,
  mass,
)
from mjx_lite.solver import cost


def inverse(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Compute the force `qfrc_inverse` that produces `qacc`, and the constraint forces at that acceleration.

  With the flag INVDISCRETE, `qacc` is the difference of two velocities over the timestep, as the integrator would make it.

  Args:
    m: the model.
    d: the Data, with `qacc`.
    callbacks: the user's functions in the loop; static.

  Source: `mj_inverse`.
  """
  m = user.attach(m, callbacks)
  d, cache = until_velocity(m, d)
  return _inverse(m, d, cache, sensors=True)


def _inverse(m: Model, d: Data, cache: StageCache, sensors: bool = False) -> Data:
  """Compute the part of `inverse` that depends on acceleration, from the rows of `make_constraint`."""
  if m.opt.is_discrete and m.nv:
    return _inverse_discrete(m, d, cache, sensors)
  qacc = _continuous(m, d, cache.factor) if m.opt.use_invdiscrete and m.nv else d.qacc
  d = _inverse_constraint(m, d, qacc, cache.rows)
  if sensors:
    d = sensor_acc(m, d.replace(qacc=qacc)).replace(qacc=d.qacc)
  force = mass.mul(m, d.cinert, d.cdof, d.M, qacc) + d.qfrc_bias - d.qfrc_passive - d.qfrc_constraint
  return d.replace(qfrc_inverse=force)


def _inverse_discrete(m: Model, d: Data, cache: StageCache, sensors: bool) -> Data:
  """Compute `_inverse` with the discrete integrator, whose acceleration always is a difference of velocities."""
  metric: Any = effective_metric(m, d)
  d, rows, touched = convert_rows(m, d, cache.rows, metric)
  d = _inverse_constraint(m, d, d.qacc, rows)
  d = sensor_acc(m, d) if sensors else d
  force = vector.mat_vec(metric.matrix, d.qacc)
  if len(m.plan.derivative.free_body):
    turned = implicit_.mul_free(m, force, free_metric(m, d, metric), d.qacc)
    force = jnp.where(free_gyro_mask(m, metric, touched), turned, force)
  return d.replace(qfrc_inverse=force - metric.shift + d.qfrc_bias - d.qfrc_passive - d.qfrc_constraint)


def _inverse_constraint(m: Model, d: Data, qacc: jax.Array, rows: Rows) -> Data:
  """Compute constraint forces at an acceleration (nv, W). Source: `mj_invConstraint`."""
  if not has_rows(m):
    return d.replace(qfrc_constraint=jnp.zeros_like(qacc))
  jar = jacobian.mul(m, rows.jacobian, d.cdof, qacc) - rows.aref
  force = cost.zones(m.plan, rows, jar).force
  return d.replace(
    efc_force=force, efc_state=cost.state(m.plan, rows, jar), qfrc_constraint=jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  )


def _continuous(m: Model, d: Data, factor: Any) -> jax.Array:
  """Return the acceleration for which the model's integrator gives the change of velocity `qacc`. Source: `mj_discreteAcc`."""
  if m.opt.integrator == IntegratorType.EULER:
    if not euler_.is_damped(m):
      return d.qacc
    force = euler_.mul(m, d.cinert, d.cdof, d.M, d.qvel, d.qacc)
  elif m.opt.integrator in (IntegratorType.IMPLICIT, IntegratorType.IMPLICITFAST):
    full = m.opt.integrator == IntegratorType.IMPLICIT
    packed, trees = smooth_vel_derivatives(m, d, bias=full)
    if full:
      force = implicit_.mul_full(m, d.M, packed, trees, d.qacc)
    else:
      force = implicit_.mul_fast(m, d.M, packed, trees, free_blocks(m, d, packed, trees), d.qacc)
  else:
    raise ValueError(
      f"inverse dynamics with the flag INVDISCRETE is not defined for {IntegratorType(m.opt.integrator).name}: "
      "use EULER, IMPLICIT or IMPLICITFAST, or leave the flag off."
    )
  return mass.solve(m, factor, force)


def compare_inverse(m: Model, d: Data) -> Data:
  """Compute `solver_fwdinv`: errors of inverse dynamics in constraint forces and inputs; zero without active constraints.

  Source: `mj_compareFwdInv`.
  """
  if not has_rows(m):
    return d.replace(solver_fwdinv=jnp.zeros_like(d.solver_fwdinv))
  back = _inverse(m, d, StageCache(mass_factor(m, d), rebuild_rows(m, d)[1]))
  xfrc = applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)
  misses = d.qfrc_constraint - back.qfrc_constraint, d.qfrc_applied + d.qfrc_actuator + xfrc - back.qfrc_inverse
  norms = jnp.stack([safe.sqrt(vector.total(x * x)) for x in misses])
  constrained = jnp.any(d.efc_D > 0, axis=0)
  return d.replace(qfrc_inverse=back.qfrc_inverse, solver_fwdinv=jnp.where(constrained, norms, 0))
