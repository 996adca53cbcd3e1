"""Solvers, friction cones and integrators together, on one small scene that has contacts of every condim at once.

CI runs what other tests do not have; `-m slow` runs the full product, and that of the condims one by one.
"""

import itertools

import mujoco
import numpy as np
import pytest

from mjx_lite.testing import compare

NEWTON, CG, PGS = (mujoco.mjtSolver.__members__[f"mjSOL_{k}"] for k in ("NEWTON", "CG", "PGS"))
PYRAMIDAL, ELLIPTIC = mujoco.mjtCone.mjCONE_PYRAMIDAL, mujoco.mjtCone.mjCONE_ELLIPTIC
EULER, RK4, IMPLICIT, FAST, DISCRETE = (
  mujoco.mjtIntegrator.__members__[f"mjINT_{k}"] for k in ("EULER", "RK4", "IMPLICIT", "IMPLICITFAST", "DISCRETE")
)
CONDIMS = (1, 3, 4, 6)
IN_CI = [(NEWTON, ELLIPTIC, DISCRETE), (PGS, PYRAMIDAL, DISCRETE), (PGS, ELLIPTIC, EULER)]
LIMIT = {NEWTON: 1e-8, CG: 1e-8, PGS: 1e-5}  # of what is solved
ITERATIONS = {NEWTON: 50, CG: 8000, PGS: 3000}
PRODUCT = list(itertools.product((NEWTON, CG, PGS), (PYRAMIDAL, ELLIPTIC), (EULER, RK4, IMPLICIT, FAST, DISCRETE)))

# a table that slides and tips on four spheres, and an arm with a servo, a damper, friction and a limit
SCENE = """
<mujoco>
  <option timestep="0.004" impratio="1.5" gravity="2 .7 -9"/>
  <default><geom friction=".3 .03 .02"/></default>
  <worldbody>
    <geom type="plane" size="1 1 .1" condim="1"/>
    <body pos="0 0 .198">
      <freejoint/>
      <geom type="box" size=".2 .2 .02" contype="0" conaffinity="0"/>
      <geom size=".05" pos=".2 .15 -.15" condim="{0}"/><geom size=".06" pos="-.2 .15 -.14" condim="{1}"/>
      <geom size=".05" pos=".2 -.15 -.15" condim="{2}"/><geom size=".05" pos="-.15 -.15 -.15" condim="{3}"/>
    </body>
    <body pos="-.6 0 .5">
      <joint name="a" axis="0 1 0" damping=".3" range="-5 20" solreflimit=".03 1"/>
      <geom type="capsule" size=".03" fromto="0 0 0 -.2 0 -.2" contype="0" conaffinity="0"/>
      <body pos="-.2 0 -.2">
        <joint axis="0 1 0" frictionloss=".05"/><geom size=".05" pos="-.04 0 -.05" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="a" kp="5" kv=".1"/></actuator>
</mujoco>
"""
ROWS = (
  *("nefc", "efc_type", "efc_id", "efc_J", "efc_pos", "efc_margin", "efc_frictionloss", "efc_diagA", "efc_KBIP"),
  *("efc_D", "efc_R", "efc_vel", "efc_aref", "contact.mu"),
)  # fmt: skip
SOLVED = ("qacc", "efc_force", "qvel", "qpos")


# P40, P41
@pytest.mark.parametrize(
  "solver, cone, integrator", [pytest.param(*x, marks=() if x in IN_CI else pytest.mark.slow) for x in PRODUCT]
)
def test_all_condims_at_once(solver, cone, integrator):
  check(CONDIMS, solver, cone, integrator)


# P40, P41
@pytest.mark.slow
@pytest.mark.parametrize("condim", CONDIMS)
@pytest.mark.parametrize("solver, cone, integrator", PRODUCT)
def test_condims_one_by_one(condim, solver, cone, integrator):
  check((condim,) * 4, solver, cone, integrator)


def check(condims, solver, cone, integrator):
  model = mujoco.MjModel.from_xml_string(SCENE.format(*condims))
  rows, solved, inverse, nefc = figures(model, solver, cone, integrator)
  # the rows that Runge-Kutta leaves are those of its last place, to which the accelerations before led
  assert rows.worst <= (LIMIT[solver] if integrator == RK4 else 1e-10), rows
  assert solved.worst <= LIMIT[solver], solved
  assert inverse <= LIMIT[solver]
  assert nefc >= (4 if condims[0] == 1 else 8)


def figures(model, solver, cone, integrator, steps=40, every=8):
  """Along a trajectory of C: the worst errors of rows and of what is solved, by how much inverse dynamics misses the forces
  (relative to those of the constraints), and C's largest number of rows.
  """
  model = compare.optimal(model)
  model.opt.solver, model.opt.cone, model.opt.integrator = solver, cone, integrator
  model.opt.iterations = ITERATIONS[solver]
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_FWDINV
  engine = compare.Engine(model)
  if solver == CG:  # C's optimum is that of its Newton's method; with the dual solver the discrete metric is another one
    model = model.__copy__()
    model.opt.solver, model.opt.iterations = NEWTON, ITERATIONS[NEWTON]
  data, rng, nefc, errors, miss = mujoco.MjData(model), np.random.default_rng(0), 0, [], 0
  for i in range(steps):
    if i % every == 0:
      data.ctrl[:] = rng.uniform(-1, 1, model.nu)
      errors += compare.compare_stages(model, data, (*ROWS, *SOLVED), engine=engine)
      ours = engine.step(data)
      miss = max(miss, ours.solver_fwdinv.max() / max(1, np.linalg.norm(ours.qfrc_constraint)))
    mujoco.mj_step(model, data)
    nefc = max(nefc, data.nefc)
  worst = [max((e for e in errors if e.field in fields), key=lambda e: e.worst) for fields in (ROWS, SOLVED)]
  return *worst, miss, nefc
