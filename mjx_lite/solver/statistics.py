"""What each iteration of the solver did: on demand, by running the solver again, so that a step does not pay for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.enums import ConstraintState, SolverType
from mjx_lite.solver import cg, cost, dual, newton, pgs, primal
from mjx_lite.solver.primal import Problem


class SolverStatistics(NamedTuple):
  """One entry per iteration, zero after the last; n is `opt.iterations`.

  Attributes:
    improvement: (n,) drop of the cost, primal or dual, scaled by 1/trace(M).
    gradient: (n,) length of the gradient after it, scaled alike; zero for the dual solver.
    nactive: (n,) rows that are not satisfied after it.
    nchange: (n,) rows whose state it changed.
    niter: () number of iterations.
  """

  improvement: jax.Array
  gradient: jax.Array
  nactive: jax.Array
  nchange: jax.Array
  niter: jax.Array


class _Run(NamedTuple):
  """A solver, iteration by iteration."""

  start: Any
  step: Callable[[Any], Any]
  jar: Callable[[Any], jax.Array]  # J qacc - aref (nefc, W) at an iterate
  values: Callable[[Any, Any], tuple[jax.Array, jax.Array]]  # iterates before and after -> improvement, gradient, each (W,)


def _primal(method: Callable[[Problem], primal.Method]) -> Callable[[Problem, jax.Array], _Run]:
  def run(p: Problem, warmstart: jax.Array) -> _Run:
    how = method(p)

    def values(_, s):
      return s.improvement, p.scale * primal.norm(primal.gradient(p, s.ma, cost.zones(p.model.plan, p.rows, s.jar)))

    return _Run(primal.start(p, warmstart, how.start(p)), lambda s: primal.step(p, how, s), lambda s: s.jar, values)

  return run


def _dual(p: Problem, warmstart: jax.Array) -> _Run:
  problem, start = pgs.start(p, warmstart)

  def values(before, s):
    return p.scale * (dual.cost(problem, before.force) - dual.cost(problem, s.force)), jnp.zeros_like(p.scale)

  def jar(s):
    return primal.point(p, dual.acceleration(p, problem, s.force))[1]

  return _Run(start, lambda s: pgs.step(p, problem, s), jar, values)


RUNS = {SolverType.NEWTON: _primal(newton.method), SolverType.CG: _primal(cg.method), SolverType.PGS: _dual}


def collect(p: Problem, warmstart: jax.Array) -> SolverStatistics:
  """Statistics of the iterations that solve the problem. Source: `mjSolverStat`."""
  m = p.model
  run = RUNS[m.opt.solver](p, warmstart)
  place = np.arange(m.opt.iterations)[:, None]

  def state(s):
    return cost.state(m.plan, p.rows, run.jar(s))

  def step(carry, _):
    s, last, out = carry
    after = run.step(s)
    now = state(after)
    active, changed = (jnp.sum(x, axis=0, dtype=jnp.int32) for x in (now != int(ConstraintState.SATISFIED), now != last))
    here = (place == s.niter) & (after.niter > s.niter)
    entry = (*run.values(s, after), active, changed)
    return (after, now, [jnp.where(here, x, y) for x, y in zip(entry, out, strict=True)]), None

  width = p.rows.D.shape[-1]
  out = [jnp.zeros((m.opt.iterations, width), t) for t in (p.rows.D.dtype, p.rows.D.dtype, jnp.int32, jnp.int32)]
  (last, _, out), _ = jax.lax.scan(step, (run.start, state(run.start), out), None, length=m.opt.iterations)
  return SolverStatistics(*out, niter=last.niter)
