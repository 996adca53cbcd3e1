"""Accelerations: without constraints, and with them by the solver.

Tests: tests/io/test_put_data.py, tests/pipeline/test_pipeline.py.
"""

from typing import Any

import jax.numpy as jnp

from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Rows
from mjx_lite.math import linalg
from mjx_lite.model import status
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model
from mjx_lite.ops import linear
from mjx_lite.ops.loops import saved
from mjx_lite.pipeline.constraint import has_rows, rebuild_rows, rows_of_data
from mjx_lite.pipeline.metric import convert_rows, effective_metric
from mjx_lite.pipeline.position import mass_factor
from mjx_lite.smooth import (
  applied,
  effective,
  mass,
)
from mjx_lite.solver import cost, dual, implicit_diff, noslip, operator, primal, statistics


def fwd_acceleration(m: Model, d: Data) -> Data:
  """Compute the smooth force and the acceleration without constraints."""
  return smooth_acceleration(m, d, mass_factor(m, d), effective_metric(m, d))


def smooth_acceleration(m: Model, d: Data, factor: Any, metric: effective.Effective | None = None) -> Data:
  """Compute the smooth force and the acceleration without constraints, with the factor of M or in the effective metric."""
  xfrc = applied.xfrc_accumulate(m, d.cdof, d.xipos, d.subtree_com, d.xfrc_applied)
  passive, actuator = linear.materialize((d.qfrc_passive, d.qfrc_actuator))
  smooth = linear.no_alias(passive - d.qfrc_bias + d.qfrc_applied + actuator + xfrc, passive, d.qfrc_bias, actuator)
  if metric is not None:
    acc = linalg.factor_solve(linalg.cholesky(metric.matrix), smooth + metric.shift)
    return d.replace(qfrc_smooth=smooth, qacc_smooth=acc)
  return d.replace(qfrc_smooth=smooth, qacc_smooth=mass.solve(m, factor, smooth))


def solve(m: Model, d: Data) -> Data:
  """Compute constraint forces and the acceleration."""
  return solve_rows(m, d, rows_of_data(m, d), effective_metric(m, d))


def solve_rows(m: Model, d: Data, rows: Rows, in_metric: effective.Effective | None = None) -> Data:
  """Compute constraint forces and the acceleration, from rows in the same metric."""
  if not has_rows(m):
    return d.replace(qacc=d.qacc_smooth, qfrc_constraint=jnp.zeros_like(d.qacc), solver_niter=d.solver_niter * 0)
  problem = _problem(m, d, rows, in_metric)
  metric, smooth = problem.metric, problem.qfrc_smooth
  solution = implicit_diff.solve(problem, d.qacc_warmstart)
  solution = solution._replace(qacc=saved(solution.qacc))
  force = cost.zones(m.plan, rows, solution.jar).force if solution.force is None else solution.force
  qfrc = jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  converged = solution.stopped | (primal.steepness(problem, solution.ma - smooth - qfrc) < m.opt.tolerance)
  qacc, niter = solution.qacc, solution.niter
  if m.opt.noslip_iterations:
    refined = noslip.refine(problem, dual.build(problem, operator.factor_m(m, metric)), force)
    force, qacc, niter = refined.force, refined.qacc, niter + refined.niter
    qfrc = jacobian.mul_t(m, rows.jacobian, d.cdof, force)
  return d.replace(
    qacc=qacc, efc_force=force, efc_state=cost.state(m.plan, rows, solution.jar), qfrc_constraint=qfrc,
    solver_niter=niter, status=status.mark(d.status, Warning.SOLVER, ~converged),
  )  # fmt: skip


def _problem(m: Model, d: Data, rows: Rows, in_metric: effective.Effective | None) -> primal.Problem:
  """Return the solver's minimization problem."""
  metric, smooth = operator.Metric(d.cinert, d.cdof, d.M), d.qfrc_smooth
  if in_metric is not None:
    metric, smooth = metric._replace(effective=in_metric.matrix, backbone=in_metric.backbone), smooth + in_metric.shift
  return primal.Problem(m, metric, rows, smooth, d.qacc_smooth, 1 / mass.trace(m, d.cinert, d.cdof, d.M))


def solver_statistics(m: Model, d: Data) -> statistics.SolverStatistics:
  """Return what each iteration of the solver does in the state of d. The solver runs again; a step does not pay for this.

  Differs: C writes the statistics into MjData in every step.

  Args:
    m: the model.
    d: Data after forward, which leaves the warm start unchanged.
  """
  if not has_rows(m):
    return statistics.none(m.opt.iterations, d.solver_niter * 0, d.qpos.dtype)
  metric, (d, rows) = effective_metric(m, d), rebuild_rows(m, d)
  if metric is not None:
    d, rows, _ = convert_rows(m, d, rows, metric)
  return statistics.collect(_problem(m, d, rows, metric), d.qacc_warmstart)
