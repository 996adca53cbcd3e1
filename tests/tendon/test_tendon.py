"""Tendons of whole models: derivatives, single flags, what actuators add, conversions, refusals."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal

ARMATURE = """
<mujoco>
  <option gravity="0 0 -2"/>
  <worldbody>
    <site name="w" pos="0.2 0 1"/>
    <body>
      <joint name="a" axis="0 1 0.2" damping="0.1"/>
      <geom size="0.05" pos="0.2 0 0"/>
      <site name="s" pos="0.2 0.1 0.1"/>
    </body>
    <body pos="1 0 0"><joint name="b" axis="0 1 0"/><geom size="0.05" pos="0.1 0 0"/></body>
  </worldbody>
  <tendon>
    <fixed name="f" damping="0.1"><joint joint="a" coef="1.3"/></fixed>
    <spatial name="r"><site site="w"/><site site="s"/></spatial>
  </tendon>
  <actuator>
    <general tendon="f" gear="2" gainprm="0" armature="0.03" damping="0.2 0.1 0.3"/>
    <general tendon="r" gear="1.5" gainprm="0" armature="0.4" damping="0.7"/>
    <general tendon="r" gear="0.5" gainprm="0" armature="0.2" damping="0 0.2"/>
  </actuator>
</mujoco>
"""
FIELDS = (
  "ten_length", "ten_J", "ten_velocity", "qfrc_spring", "qfrc_damper", "qfrc_passive", "M", "qLD", "qLDiagInv",
  "qfrc_bias", "qacc_smooth", "qvel", "qpos", "plastic",
)  # fmt: skip


def state_of(model, steps=30):
  data = mujoco.MjData(model)
  data.qvel[:] = np.random.default_rng(0).normal(size=model.nv)
  for _ in range(steps):
    mujoco.mj_step(model, data)
  return data


def assert_step_equals_c(model, data):
  before = mjx.put_data(model, data, keep=("qLD", "qLDiagInv"))
  after = mjx.jit(mjx.step)(mjx.put_model(model), before)
  mujoco.mj_step(model, data)
  for field in FIELDS:
    np.testing.assert_allclose(getattr(after, field), getattr(data, field), rtol=1e-9, atol=1e-11, err_msg=field)
  return after


@pytest.mark.parametrize(
  "name", ["tendons", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tendon_armature", "tendon_limits"))]
)
def test_step_gradient(name):
  """Forward = reverse = differences, also with respect to the tendons' geometry and properties."""
  model = optimal(load(name))
  m = mjx.put_model(model)
  d = mjx.put_data(m, state_of(model))
  rng = np.random.default_rng(1)
  w, w2, w3 = (jnp.asarray(rng.normal(size=n)) for n in (m.nv, m.ntendon, m.nplastic))

  def f(dq, qvel, site, size, stiffness, damping, armature, prm):
    names = ("tendon_stiffness", "tendon_damping", "tendon_armature")
    traced = {k: x for k, x in zip(names, (stiffness, damping, armature), strict=True) if k not in m.layout.pruned}
    m2 = m.replace(site_pos=site, geom_size=size, wrap_prm=prm, **traced)
    out = mjx.step(m2, d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())), qvel=qvel))
    return w @ out.qvel + w2 @ out.ten_length + w3 @ out.plastic

  at = (jnp.zeros(m.nv), d.qvel, m.site_pos, m.geom_size, m.tendon_stiffness, m.tendon_damping, m.tendon_armature, m.wrap_prm)
  directions = [rng.normal(size=x.shape) for x in at]
  directions[7] *= ~np.isin(m.wrap_type, (mjx.WrapType.SPHERE, mjx.WrapType.CYLINDER))  # ids of side sites
  assert_gradients(f, at, directions, rtol=3e-5, atol=1e-4)


def test_jacobian_is_the_derivative_of_the_length():
  model = load("tendons")
  m = mjx.put_model(model)
  d = mjx.put_data(m, state_of(model))

  def stages(dq):
    e = mjx.com_pos(m, mjx.kinematics(m, d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())))))
    return mjx.tendon(m, e)

  zero = jnp.zeros(m.nv)
  dense = np.zeros((m.ntendon, m.nv))
  dense[np.repeat(np.arange(m.ntendon), m.ten_J_rownnz), m.ten_J_colind] = mjx.jit(stages)(zero).ten_J
  # a path through the inside touches where C's Newton method stopped, at most 1e-6 from the optimum
  np.testing.assert_allclose(mjx.jit(jax.jacrev(lambda q: stages(q).ten_length))(zero), dense, atol=2e-6)


def test_tendon_of_no_length():
  """Its pull is along x as in C, and its derivatives are zero."""
  text = ARMATURE.replace('name="w" pos="0.2 0 1"', 'name="w" pos="0.2 0.1 0.1"')
  model = mujoco.MjModel.from_xml_string(text[: text.index("<actuator>")] + "</mujoco>")
  m = mjx.put_model(model, keep=("tendon_stiffness", "tendon_armature"))
  d = mjx.make_data(m).replace(qvel=jnp.ones(2))
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  e = mjx.jit(mjx.forward)(m, d)
  np.testing.assert_allclose(e.ten_length, data.ten_length, atol=1e-15)
  np.testing.assert_allclose(e.ten_J, data.ten_J, atol=1e-15)

  def f(q, v, k):
    out = mjx.step(m.replace(tendon_stiffness=k, tendon_armature=k), d.replace(qpos=q, qvel=v))
    return jnp.sum(out.qvel + out.ten_length[1])

  for g in mjx.jit(jax.grad(f, argnums=range(3)))(d.qpos, d.qvel, m.tendon_stiffness):
    assert np.isfinite(g).all()


@pytest.mark.parametrize("flag", ["mjDSBL_SPRING", "mjDSBL_DAMPER"])
def test_each_flag_alone(flag):
  model = load("tendons").__copy__()
  data = state_of(model)
  model.opt.disableflags |= getattr(mujoco.mjtDisableBit, flag)
  before = data.plastic.copy()
  after = assert_step_equals_c(model, data)
  kept, gone = ("qfrc_damper", "qfrc_spring") if flag == "mjDSBL_SPRING" else ("qfrc_spring", "qfrc_damper")
  assert not np.any(getattr(after, gone)) and np.any(getattr(after, kept))
  assert np.array_equal(after.plastic, before) == (flag == "mjDSBL_SPRING")


def test_properties_of_actuators_on_tendons():
  """Armature and damping, times the square of the gear, of one and of several actuators."""
  model = mujoco.MjModel.from_xml_string(ARMATURE)
  data = state_of(model)
  after = assert_step_equals_c(model, data)
  without = mujoco.MjData(model)
  bare = mujoco.MjModel.__copy__(model)
  bare.actuator_armature[:], bare.actuator_damping[:] = 0, 0
  without.qpos[:] = data.qpos
  mujoco.mj_forward(bare, without)
  assert np.abs(after.M - without.M).max() > 0.1


def test_kept_properties_have_gradients():
  model = load("tendons").__copy__()
  data = state_of(model)
  m = mjx.put_model(model, keep=("tendon_armature",))
  d = mjx.put_data(m, data)
  value = 0.1 + jnp.arange(m.ntendon) * (model.tendon_type == mujoco.mjtTendon.mjTENDON_FIXED)

  def f(x):
    qvel = mjx.step(m.replace(tendon_armature=x), d).qvel
    return jnp.sum(qvel), qvel

  slope = mjx.jit(jax.grad(f, has_aux=True))
  np.testing.assert_allclose(slope(m.tendon_armature)[1], mjx.jit(mjx.step)(mjx.put_model(model), d).qvel, rtol=1e-9)
  g, _ = slope(value)
  assert np.isfinite(g).all() and np.any(g)
  with pytest.raises(ValueError, match="tendon_armature"):
    mjx.put_model(model).replace(tendon_armature=value)


def test_kept_friction_is_that_of_c():
  model = load("tendons").__copy__()
  m = mjx.put_model(model, keep=("tendon_frictionloss",))
  loss = jnp.where(jnp.arange(m.ntendon) % 2 == 0, 0.4, 0)
  model.tendon_frictionloss[:] = loss
  data = state_of(optimal(model))
  d = mjx.put_data(m, data)
  m = m.replace(opt=m.opt.replace(tolerance=jnp.zeros(()), iterations=50))

  def f(x):
    qvel = mjx.step(m.replace(tendon_frictionloss=x), d).qvel
    return jnp.sum(qvel), qvel

  g, qvel = mjx.jit(jax.grad(f, has_aux=True))(loss)
  mujoco.mj_step(optimal(model), data)
  np.testing.assert_allclose(qvel, data.qvel, rtol=1e-8, atol=1e-10)
  assert np.isfinite(g).all() and np.any(g)


def test_constraint_jacobian():
  """Dense rows of tendons, forward and transposed, are those that the solver's operator uses."""
  model = load("tendon_limits")
  m = mjx.put_model(model)
  d = mjx.jit(mjx.forward)(m, mjx.put_data(m, state_of(model)))
  dense = mjx.jit(mjx.constraint_jacobian)(m, d)
  tendon = np.isin(d.efc_type, (mjx.ConstraintType.FRICTION_TENDON, mjx.ConstraintType.LIMIT_TENDON))
  assert tendon.sum() == 5 + 2 * 3
  np.testing.assert_allclose(dense @ d.qvel, d.efc_vel, atol=1e-12)
  np.testing.assert_allclose(dense.T @ d.efc_force, d.qfrc_constraint, atol=1e-10)


def test_energy():
  """Springs of tendons store energy, their armature has kinetic energy."""
  for name in ("tendons", "tendon_armature"):
    model = load(name).__copy__()
    data = state_of(model)
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    d = mjx.jit(mjx.forward)(mjx.put_model(model), mjx.put_data(model, data))
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(d.energy, data.energy, rtol=1e-10)


def test_mass_matrix_operations():
  model = load("tendon_armature")
  data = state_of(model)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.jit(mjx.forward)(m, mjx.put_data(m, data))
  x, out = np.random.default_rng(0).normal(size=m.nv), np.zeros(m.nv)
  mujoco.mj_mulM(model, data, out, x)
  np.testing.assert_allclose(mjx.mul_m(m, d, jnp.asarray(x)), out, rtol=1e-10)
  solved = np.zeros((1, m.nv))
  mujoco.mj_solveM(model, data, solved, x[None])
  np.testing.assert_allclose(mjx.solve_m(m, d, jnp.asarray(x)), solved[0], rtol=1e-10)


def test_conversions_and_reset():
  model = load("tendons")
  data = state_of(model)
  m = mjx.put_model(model)
  np.testing.assert_allclose(mjx.make_data(m).plastic, mujoco.MjData(model).plastic)
  d = mjx.put_data(m, data)
  back = mjx.get_data(model, d)
  for field in ("ten_length", "ten_J", "ten_velocity", "plastic"):
    np.testing.assert_array_equal(getattr(back, field), getattr(data, field))
  np.testing.assert_allclose(mjx.reset_data(m, d).plastic, mujoco.MjData(model).plastic)


def test_worlds_do_not_mix():
  model = load("tendons")
  m, data = mjx.put_model(model), state_of(model)
  d = mjx.put_data(m, data, keep=("qLD", "qLDiagInv"))
  vel = jnp.stack([d.qvel, -d.qvel, 0 * d.qvel])
  many = mjx.jit(jax.vmap(lambda v: mjx.step(m, d.replace(qvel=v))))(vel)
  one = mjx.jit(mjx.step)
  for i in range(3):
    alone = one(m, d.replace(qvel=vel[i]))
    for field in FIELDS:
      np.testing.assert_allclose(getattr(many, field)[i], getattr(alone, field), rtol=1e-9, atol=1e-11, err_msg=field)


def test_armature_of_a_wrapping_tendon_is_refused():
  text = ARMATURE.replace('<site site="w"/>', '<site site="w"/><geom geom="g"/>').replace(
    '<site name="w" pos="0.2 0 1"/>', '<site name="w" pos="0.2 0 1"/><geom name="g" size="0.1" pos="0.2 0 0.5"/>'
  )
  model = mujoco.MjModel.from_xml_string(text.replace('armature="0.4"', "").replace('armature="0.2"', ""))
  model.actuator_armature[1] = 0.4
  with pytest.raises(mjx.UnsupportedModelError, match=r"actuator 1: armature = 0\.4.*tendon 'r' wraps"):
    mjx.put_model(model)
