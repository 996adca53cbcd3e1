"""What soft constraints promise: one row against its formula, creep on a slope, friction that yields, unique solutions."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

# a slide that an equality holds at zero, so that its violation has either sign
ROW = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody><body><joint name="a" type="slide" axis="1 0 0"/><geom size=".1" mass="2"/></body></worldbody>
  <equality><joint joint1="a"/></equality>
</mujoco>
"""
# a sphere on a slope that cannot turn, and two pendulums that friction holds, of the joint and of a tendon
SLOPE = """
<mujoco>
  <option timestep="0.002" gravity="1.5 0 -9.81" cone="elliptic"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .1">
      <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/><joint type="slide" axis="0 0 1"/>
      <geom size=".1" mass="1" friction=".5"/>
    </body>
    <body pos="2 0 5">
      <joint axis="0 1 0" frictionloss="100"/><geom size=".05" pos="1 0 0" mass="1" contype="0" conaffinity="0"/>
    </body>
    <body pos="4 0 5">
      <joint name="b" axis="0 1 0"/><geom size=".05" pos="1 0 0" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <tendon><fixed frictionloss="100"><joint joint="b" coef="1"/></fixed></tendon>
</mujoco>
"""
SOLIMP = (0.5, 0.95, 0.1, 0.3, 3.0)


@functools.cache
def put(xml, noslip=0, refsafe=True):
  model = mujoco.MjModel.from_xml_string(xml)
  model.opt.noslip_iterations, model.opt.noslip_tolerance = noslip, 0
  model.opt.disableflags |= 0 if refsafe else int(mjx.DisableBit.REFSAFE)
  model.opt.tolerance = 0
  return mjx.put_model(model)


@mjx.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0, 0))
def _row(m, solref, solimp, position, velocity, push):
  d = mjx.make_data(m, keep=("efc_KBIP",))
  d = d.replace(qpos=d.qpos + position, qvel=d.qvel + velocity, qfrc_applied=d.qfrc_applied + push)
  return mjx.forward(m.replace(eq_solref=solref[None], eq_solimp=solimp[None]), d)


def row(solref, position, velocity, push, solimp=SOLIMP, refsafe=True):
  """Forward of ROW, 41 worlds: each argument is shared or has a value per world."""
  wide = [np.broadcast_to(np.asarray(x, float), (41, len(x))) for x in (solref, solimp)]
  return _row(put(ROW, refsafe=refsafe), *wide, *(np.broadcast_to(np.asarray(x, float), (41,)) for x in
    (position, velocity, push)))  # fmt: skip


def impedance(r, d0, d1, width, mid, power):
  """The documentation's curve."""
  x = np.minimum(np.abs(r) / width, 1)
  y = np.where(x < mid, x**power / mid ** (power - 1), 1 - (1 - x) ** power / (1 - mid) ** (power - 1))
  return d0 + y * (d1 - d0)


# P54, P55, P56
def test_a_single_row_obeys_its_formula():
  """a1 + d (b v + k r) = (1 - d) a0; the impedance is even in r, and within its bounds."""
  r = np.linspace(-0.15, 0.15, 41)
  out = row((0.05, 0.8), r, 0.3 * np.cos(9 * r), 5 * np.sin(7 * r))
  k, b, i, _ = np.asarray(out.efc_KBIP[:, 0]).T
  np.testing.assert_allclose(i, impedance(r, *SOLIMP), rtol=1e-12)
  np.testing.assert_allclose(i, i[::-1], rtol=1e-12)
  np.testing.assert_allclose(k, 1 / (0.95 * 0.05 * 0.8) ** 2)
  np.testing.assert_allclose(b, 2 / (0.95 * 0.05))
  np.testing.assert_allclose(out.efc_aref[:, 0], -b * out.qvel[:, 0] - k * i * r, rtol=1e-10, atol=1e-10)
  expected = (1 - i) * out.qacc_smooth[:, 0] + i * np.asarray(out.efc_aref[:, 0])
  np.testing.assert_allclose(out.qacc[:, 0], expected, rtol=1e-9, atol=1e-9)
  wild = row((0.05, 0.8), r, 0.0, 0.0, solimp=(-3.0, 7.0, 0.1, 0.5, 2.0))
  assert wild.efc_KBIP[:, 0, 2].min() == 1e-4 and wild.efc_KBIP[:, 0, 2].max() == 0.9999


# P53, P57
def test_solref_is_safe_or_direct():
  k, b = (row((1e-4, 1.0), 0.01, 0.0, 0.0).efc_KBIP[0, 0, j] for j in (0, 1))
  np.testing.assert_allclose((k, b), (1 / (0.95 * 0.004) ** 2, 2 / (0.95 * 0.004)))
  k, b = (row((1e-4, 1.0), 0.01, 0.0, 0.0, refsafe=False).efc_KBIP[0, 0, j] for j in (0, 1))
  np.testing.assert_allclose((k, b), (1 / (0.95 * 1e-4) ** 2, 2 / (0.95 * 1e-4)))
  k, b = (row((-500.0, -20.0), 0.01, 0.0, 0.0).efc_KBIP[0, 0, j] for j in (0, 1))
  np.testing.assert_allclose((k, b), (500 / 0.95**2, 20 / 0.95))


@mjx.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def _creep(m, impratio):
  m = m.replace(opt=m.opt.replace(impratio=impratio))
  settled, _ = jax.lax.scan(lambda d, _: (mjx.step(m, d), None), mjx.make_data(m), None, length=250)
  later, _ = jax.lax.scan(lambda d, _: (mjx.step(m, d), None), settled, None, length=250)
  return settled.qvel[0], later.qpos


# P45, P46, P47
def test_creep_and_friction_that_yields():
  speed, qpos = _creep(put(SLOPE), jnp.array([1.0, 10.0, 100.0]))
  assert speed[0] > 1e-5
  np.testing.assert_allclose(speed[:-1] / speed[1:], 10, rtol=0.05)
  still, _ = _creep(put(SLOPE, noslip=5), jnp.ones(1))
  assert abs(still[0]) < 1e-3 * speed[0]
  # the pendulums' friction is ten times their load, and yet it gives way, slowly
  assert np.all(qpos[:, 3:] > 1e-3) and np.all(qpos[:, 3:] < 0.1)


@mjx.jit
@functools.partial(jax.vmap, in_axes=(None, None, 0, 0))
def _pushed(m, d, push, velocity):
  return mjx.forward(m, d.replace(qfrc_applied=push, qvel=d.qvel + velocity))


# P44, P133
def test_who_pushes_harder_gets_more():
  """No force, however small, is without effect, and friction has no jump where it changes its sign."""
  m = put(SLOPE)
  d = mjx.make_data(m)
  d = d.replace(qpos=d.qpos.at[2].set(-1e-3))
  push = np.zeros((40, m.nv))
  push[:20, 2], push[20:, 0] = -np.linspace(0, 1e3, 20), np.linspace(-2.5, -0.5, 20)
  out = _pushed(m, d, push, np.zeros_like(push))
  assert np.all(np.diff(out.qacc[:20, 2]) < 0)
  assert np.all(np.diff(out.qacc[20:, 0]) > 0)
  slope = np.diff(out.qacc[20:, 0]) / np.diff(push[20:, 0])
  assert slope.max() < 0.2  # of the sphere's alone: inside the cone
  velocity = np.zeros((40, m.nv))
  velocity[:, 3:] = np.linspace(-1e-6, 1e-6, 40)[:, None]
  out = _pushed(m, d, 0 * push, velocity)
  rows = out.efc_frictionloss[0] == 100
  assert {*np.asarray(out.efc_type[0])[rows]} == {mjx.ConstraintType.FRICTION_DOF, mjx.ConstraintType.FRICTION_TENDON}
  force = out.efc_force[:, rows]
  assert np.all(np.ptp(force, axis=0) < 1e-2) and np.all(np.diff(force, axis=0) < 0)


# P49, P51
@pytest.mark.parametrize("solver", [mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtSolver.mjSOL_CG, mujoco.mjtSolver.mjSOL_PGS])
def test_symmetry(solver):
  """A box that falls flat: primal solvers keep the symmetry, the dual one breaks it; a tolerance ends them early."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><geom type="plane" size="1 1 .1"/>
    <body pos="0 0 .099"><freejoint/><geom type="box" size=".1 .1 .1"/></body></worldbody></mujoco>""")
  is_primal = solver != mujoco.mjtSolver.mjSOL_PGS
  model.opt.solver, model.opt.iterations, model.opt.tolerance = solver, 10 if is_primal else 3, 0
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  d, forward = d.replace(qvel=d.qvel.at[2].set(-1.0)), mjx.jit(mjx.forward)
  coarse, d = forward(m.tree_replace({"opt.tolerance": jnp.asarray(1e6)}), d), forward(m, d)
  sideways = np.abs(np.asarray(d.qacc)[[0, 1, 3, 4, 5]]).max()
  assert d.qacc[2] > 10
  if is_primal:
    assert sideways < 1e-10 * d.qacc[2]
  else:
    assert sideways > 1e-3
  # a primal solver that is at the optimum, to round-off, ends without a tolerance, too
  assert coarse.solver_niter <= 1
  assert d.solver_niter <= 3 if is_primal else d.solver_niter == 3
