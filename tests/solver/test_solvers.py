"""Every solver reaches the optimum, which is unique: that of Newton's method and of C; noslip does what C's does."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import TOO_LARGE, load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal, relative_error

pytestmark = TOO_LARGE
S = mujoco.mjtSolver
# two bodies on each other on a slope
STACK = """
<mujoco>
  <option gravity="1 0.5 -9" cone="{cone}"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1" friction="0.4 0.02 0.001"/>
    <body pos="0 0 0.095"><freejoint/><geom size="0.1" condim="{condim}"/></body>
    <body pos="0.05 0 0.26"><freejoint/><geom size="0.1" mass="1"/></body>
    <body pos="1 0 1"><joint frictionloss="0.3"/><geom size="0.1" pos="0.1 0 0"/></body>
  </worldbody>
</mujoco>
"""


def stack(cone, condim):
  return mujoco.MjModel.from_xml_string(STACK.format(cone=cone, condim=condim))


def worst(model, reference, nstate=8):
  """Largest relative errors of qacc and qfrc_constraint against C's for another model, over states of its trajectory."""
  sweeps = {"xla_backend_optimization_level": 1} if model.opt.solver == S.mjSOL_PGS else {}  # a thousand take longer than LLVM
  m, forward = mjx.put_model(model), mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)), compiler_options=sweeps)
  data, rng, states, theirs = mujoco.MjData(reference), np.random.default_rng(0), [], []
  for k in range(6 * nstate):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    mujoco.mj_step(reference, data)
    if k % 6 == 0:
      mujoco.mj_forward(reference, data)
      states.append(mjx.put_data(m, data))
      theirs.append((data.qacc.copy(), data.qfrc_constraint.copy()))
  d = forward(m, jax.tree.map(lambda *x: np.stack(x), *states))
  assert np.asarray(d.solver_niter).max() > 2
  ours = zip(np.asarray(d.qacc), np.asarray(d.qfrc_constraint), strict=True)
  return max(relative_error(a, b).max() for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


# P48
@pytest.mark.parametrize(
  "name, solver, iterations, tolerance",
  [
    ("elliptic", S.mjSOL_CG, 500, 1e-8), ("pairs", S.mjSOL_CG, 500, 1e-8),
    pytest.param("tendon_limits", S.mjSOL_CG, 500, 1e-8, marks=pytest.mark.slow),
    ("elliptic", S.mjSOL_PGS, 1000, 1e-5), pytest.param("pairs", S.mjSOL_PGS, 1000, 1e-5, marks=pytest.mark.slow),
  ],
)  # fmt: skip
def test_solvers(name, solver, iterations, tolerance):
  reference = optimal(load(name))
  model = reference.__copy__()
  model.opt.solver, model.opt.iterations = solver, iterations
  assert worst(model, reference) < tolerance


@pytest.mark.parametrize("name", ["elliptic", pytest.param("pairs", marks=pytest.mark.slow)])
def test_noslip(name):
  model = optimal(load(name))
  model.opt.noslip_iterations = 6
  assert worst(model, model) < 1e-8
  without = model.__copy__()
  without.opt.noslip_iterations = 0
  assert worst(without, model) > 1e-3


# P98
@pytest.mark.parametrize("solver", [S.mjSOL_NEWTON, S.mjSOL_CG, S.mjSOL_PGS])
def test_statistics(solver):
  """C's; of the dual solver the improvements, also of the last sweep, which gains too little to go on."""
  model = stack("elliptic", 3)
  model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
  model.opt.solver, model.opt.iterations = solver, 30
  data = mujoco.MjData(model)
  mujoco.mj_step(model, data, 20)
  data.qacc_warmstart[:], model.opt.ls_tolerance = 0, 1e6  # line searches end where the slope is not zero
  m = mjx.put_model(model)
  d, s = mjx.jit(lambda m, d: (d := mjx.forward(m, d), mjx.solver_statistics(m, d)))(m, mjx.put_data(m, data))
  mujoco.mj_forward(model, data)
  n = int(s.niter)
  assert n == d.solver_niter and 1 < n <= 30
  assert not any(np.any(x[n:]) for x in s[:-1])
  assert np.all(np.asarray(s.improvement[: n - 1]) > model.opt.tolerance)
  assert s.nactive[n - 1] == np.sum(np.asarray(d.efc_state) != 0)
  assert n == data.solver_niter[0]
  if solver == S.mjSOL_PGS:
    assert not any(np.any(x) for x in (s.lineslope, s.neval, s.nupdate))
    np.testing.assert_allclose(s.improvement[:n], [data.solver[i].improvement for i in range(n)], rtol=1e-4, atol=1e-9)
    return
  for k in ("improvement", "gradient", "lineslope", "nactive", "nchange", "neval", "nupdate"):
    theirs = np.array([getattr(data.solver[i], k) for i in range(n)])
    np.testing.assert_allclose(getattr(s, k)[: n - 1], theirs[: n - 1], rtol=1e-4, atol=1e-9, err_msg=k)


# slow: the cone's gradient is in tests/gradients, the dual solver's in test_first_slots.py, noslip's in the other case here
@pytest.mark.parametrize(
  "cone, condim, solver, noslip",
  [pytest.param("elliptic", 6, S.mjSOL_PGS, 3, marks=pytest.mark.slow), ("pyramidal", 4, S.mjSOL_CG, 3)],
)
def test_gradients(cone, condim, solver, noslip):
  model = optimal(stack(cone, condim))
  data = mujoco.MjData(model)
  for _ in range(20):
    mujoco.mj_step(model, data)
  model.opt.solver, model.opt.noslip_iterations, model.opt.iterations = solver, noslip, 300
  model.opt.noslip_tolerance = 0
  m, rng = mjx.put_model(model), np.random.default_rng(0)
  d = mjx.put_data(m, data)
  w = jnp.asarray(rng.normal(size=m.nv))

  def f(dq, qvel, friction, mass):
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    return w @ mjx.forward(m.replace(geom_friction=friction, body_mass=mass), d.replace(qpos=q, qvel=qvel)).qacc

  at = (jnp.zeros(m.nv), d.qvel, m.geom_friction, m.body_mass)
  assert_gradients(f, at, [rng.normal(size=x.shape) * (jnp.abs(x) if k > 1 else 1e-2) for k, x in enumerate(at)], rtol=1e-4)
