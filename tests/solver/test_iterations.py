"""Solvers take as many iterations as C at default options, and stop where rounding leaves nothing to gain.

A pile of boxes, the humanoid and the hand of mujoco-mjx; all but Newton's method on the pile with `-m slow`.
"""

import jax
import mujoco
import numpy as np
import pytest
from models import WATCHED, load

import mjx_lite as mjx
from mjx_lite.solver import operator

S = mujoco.mjtSolver
BOX = '<body pos="{x} {y} {z}" euler="{a} {b} {c}"><freejoint/><geom type="box" size=".12 .1 .1"/></body>'
PILE = (
  '<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="3 3 .1"/>'
  + "".join(BOX.format(x=0.04 * (i % 2), y=0.03 * (i % 3), z=0.11 + 0.21 * i, a=7 * i, b=3 * i, c=20 * i) for i in range(3))
  + "</worldbody></mujoco>"
)


def iterations(name, solver, nstate=200):
  """Iterations of states along C's trajectory: ours, C's, and ours without a tolerance."""
  model = mujoco.MjModel.from_xml_string(PILE) if name == "pile" else load(name).__copy__()
  model.opt.solver, model.opt.disableflags = solver, model.opt.disableflags | mujoco.mjtDisableBit.mjDSBL_ISLAND
  model.opt.iterations, model.opt.ls_iterations, model.opt.tolerance, model.opt.ls_tolerance = 100, 50, 1e-8, 0.01
  m, data, rng, states, theirs = mjx.put_model(model), mujoco.MjData(model), np.random.default_rng(0), [], []
  for i in range(60 + nstate):
    if i % 10 == 0:
      data.ctrl[:] = rng.uniform(-0.5, 0.5, model.nu)
    if i >= 60:
      states.append(mjx.put_data(m, data))
    mujoco.mj_step(model, data)
    if i >= 60:
      theirs.append(data.solver_niter[0])
  solve = mjx.jit(jax.vmap(lambda m, d: mjx.forward(m, d).solver_niter, in_axes=(None, 0)))
  states = jax.tree.map(lambda *x: np.stack(x), *states)
  exact = np.asarray(solve(m.replace(opt=m.opt.replace(tolerance=0 * m.opt.tolerance)), states))
  return np.asarray(solve(m, states)), np.array(theirs), exact


@WATCHED
@pytest.mark.parametrize(
  "cone, dtype",
  [
    ("pyramidal", np.float32),
    pytest.param("pyramidal", np.float64, marks=pytest.mark.slow),
    *(pytest.param("elliptic", x, marks=pytest.mark.slow) for x in (np.float32, np.float64)),
  ],
)
def test_no_factor_to_learn_that_it_is_not_needed(cone, dtype, monkeypatch):
  """Newton's method makes one for each iteration, and hardly any besides: not another to see that the last was enough."""
  factors, factor = [], operator.factor

  def counted(*args):
    jax.debug.callback(lambda: factors.append(None))
    return factor(*args)

  monkeypatch.setattr(operator, "factor", counted)
  # a density of its own, or it would run a program traced before `factor` was watched
  model = mujoco.MjModel.from_xml_string(PILE.replace("<option", f'<option cone="{cone}" density="{1 + np.finfo(dtype).bits}"'))
  m, data, niter = mjx.put_model(model, dtype=dtype), mujoco.MjData(model), []
  step = jax.jit(mjx.forward)
  for i in range(120):
    mujoco.mj_step(model, data)
    if i >= 60:
      niter.append(step(m, mjx.put_data(m, data)).solver_niter)
  jax.effects_barrier()
  iterations = int(np.sum(niter))
  assert iterations > 60
  assert iterations <= len(factors) < 1.2 * iterations, (iterations, len(factors))


CASES = [(name, solver) for name in ("pile", "humanoid", "hand") for solver in (S.mjSOL_NEWTON, S.mjSOL_CG)]


# P50, P51
@pytest.mark.parametrize("name, solver", [pytest.param(*x, marks=() if x == CASES[0] else pytest.mark.slow) for x in CASES])
def test_as_many_as_c(name, solver):
  ours, theirs, exact = iterations(name, solver)
  assert abs(ours.mean() / theirs.mean() - 1) < 0.1
  assert (ours == theirs).mean() > 0.9 and theirs.mean() > 1
  assert np.all(exact >= ours) and exact.mean() > ours.mean()
  if solver == S.mjSOL_NEWTON:
    assert ours.mean() < 5 and ours.max() <= 20
    assert exact.max() < 40  # without a tolerance, too
