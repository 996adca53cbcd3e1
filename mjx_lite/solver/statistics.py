"""Statistics of each solver iteration, computed on demand by a second run of the solver; a step does not pay for them.

Tests: tests/solver/test_solvers.py, tests/solver/test_iterates.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector
from mjx_lite.model.enums import ConstraintState, SolverType
from mjx_lite.solver import cg, cost, dual, newton, pgs, primal
from mjx_lite.solver.primal import Problem


class SolverStatistics(NamedTuple):
  """Statistics of the solver, one entry per iteration, zero after the last; n is `opt.iterations`.

  Attributes:
    improvement: (n,) decrease of the cost, primal or dual, scaled by 1/trace(M).
    gradient: (n,) length of the gradient after the iteration, scaled by 1/trace(M); zero for the dual solver.
    lineslope: (n,) slope along the direction where the line search ended, scaled by 1/trace(M); zero for the dual solver.
    nactive: (n,) number of rows that are not satisfied after the iteration.
    nchange: (n,) number of rows whose state the iteration changed.
    neval: (n,) number of points at which the line search knew the cost, the start among them; zero for the dual solver.
    nupdate: (n,) number of rows added to the Hessian of Newton's method or removed from it; rows of cones in their middle zone
      always count; zero for the other solvers. C updates its factor for each change; here the factor is computed anew.
    niter: () number of iterations.
  """

  improvement: jax.Array
  gradient: jax.Array
  lineslope: jax.Array
  nactive: jax.Array
  nchange: jax.Array
  neval: jax.Array
  nupdate: jax.Array
  niter: jax.Array


class _Values(NamedTuple):
  """Results of one iteration of a solver, each (W,)."""

  improvement: jax.Array
  gradient: jax.Array
  lineslope: jax.Array
  neval: jax.Array


class _Run(NamedTuple):
  """A solver that runs iteration by iteration."""

  start: Any
  step: Callable[[Any], Any]
  jar: Callable[[Any], jax.Array]  # J qacc - aref (nefc, W) at an iterate
  values: Callable[[Any, Any], _Values]  # from the iterates before and after


def _primal(make_method: Callable[[Problem], primal.Method]) -> Callable[[Problem, jax.Array], _Run]:
  def run(p: Problem, warmstart: jax.Array) -> _Run:
    method = make_method(p)

    def values(before, s):
      grad = primal.gradient(p, s.ma, cost.zones(p.model.plan, p.rows, s.jar))
      moved = safe.normalize(s.qacc - before.qacc)
      slope = p.scale * jnp.abs(vector.total(grad * moved))
      return _Values(s.improvement, primal.steepness(p, grad), slope, s.neval)

    return _Run(primal.start(p, warmstart, method.start(p)), lambda s: primal.step(p, method, s), lambda s: s.jar, values)

  return run


def _dual(p: Problem, warmstart: jax.Array) -> _Run:
  problem, start = pgs.start(p, warmstart)

  def values(before, s):
    none = jnp.zeros_like(p.scale)
    return _Values(s.improvement, none, none, none.astype(jnp.int32))

  def jar(s):
    return primal.point(p, dual.acceleration(p, problem, s.force))[1]

  return _Run(start, lambda s: pgs.step(p, problem, s), jar, values)


RUNS = {SolverType.NEWTON: _primal(newton.method), SolverType.CG: _primal(cg.method), SolverType.PGS: _dual}


def collect(p: Problem, warmstart: jax.Array) -> SolverStatistics:
  """Collect the statistics of the iterations that solve the problem. Source: `mjSolverStat`."""
  m = p.model
  run = RUNS[m.opt.solver](p, warmstart)
  index = np.arange(m.opt.iterations)[:, None]

  def state(s):
    return cost.state(m.plan, p.rows, run.jar(s))

  def step(carry, _):
    s, last, out = carry
    after = run.step(s)
    now = state(after)
    is_current = (index == s.niter) & (after.niter > s.niter)
    x = run.values(s, after)
    entry = (x.improvement, x.gradient, x.lineslope, *_rows_that_count(last, now), x.neval, _updates(m.opt.solver, last, now))
    return (after, now, [jnp.where(is_current, x, y) for x, y in zip(entry, out, strict=True)]), None

  width, kinds = p.rows.D.shape[-1], (*3 * [p.rows.D.dtype], *4 * [jnp.int32])
  out = [jnp.zeros((m.opt.iterations, width), t) for t in kinds]
  (last, _, out), _ = jax.lax.scan(step, (run.start, state(run.start), out), None, length=m.opt.iterations)
  return SolverStatistics(*out, niter=last.niter)


def none(iterations: int, niter: jax.Array, dtype: Any) -> SolverStatistics:
  """Return the statistics of a solver that had nothing to do; niter (W,) is zero."""
  real, whole = (jnp.zeros((iterations, *niter.shape), t) for t in (dtype, jnp.int32))
  return SolverStatistics(*3 * [real], *4 * [whole], niter=niter)


def _rows_that_count(last: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Count (W,) the rows that are not satisfied, and the rows whose state changed."""
  return _count(now != int(ConstraintState.SATISFIED)), _count(now != last)


def _updates(solver: int, last: jax.Array, now: jax.Array) -> jax.Array:
  """Count (W,) the rows that change the Hessian. Source: `HessianIncremental`, `HessianCone`."""
  if solver != SolverType.NEWTON:
    return _count(now < 0)
  quadratic, middle = int(ConstraintState.QUADRATIC), int(ConstraintState.CONE)
  return _count((last == quadratic) != (now == quadratic)) + _count(now == middle)


def _count(x: jax.Array) -> jax.Array:
  return jnp.sum(x, axis=0, dtype=jnp.int32)
