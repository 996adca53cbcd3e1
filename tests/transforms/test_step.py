"""Transformations of the step: batched = unbatched, scan = repeated, one trace, gradients."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import SCENE_NAMES, load

import mjx_lite as mjx


def start(name, n, seed=0, **options):
  """A model and n worlds near its reference configuration."""
  m = mjx.put_model(load(name), **options)
  d = mjx.make_data(m)

  def one(key):
    a, b, c = jax.random.split(key, 3)
    qvel = 0.3 * jax.random.normal(a, d.qvel.shape, d.qvel.dtype)
    moved = mjx.integrate_pos(m, d.qpos, 0.1 * jax.random.normal(b, d.qvel.shape, d.qvel.dtype), jnp.ones((), d.qpos.dtype))
    return d.replace(qpos=moved, qvel=qvel, ctrl=jax.random.uniform(c, d.ctrl.shape, d.ctrl.dtype, -1, 1))

  return m, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(seed), n))


def world(many, i=0):
  return jax.device_put(jax.tree.map(lambda x: np.asarray(x)[i], many))


@pytest.mark.parametrize("name", [pytest.param("joints", marks=pytest.mark.slow), "elliptic"])
def test_batched_equals_unbatched(name):
  m, many = start(name, 6)
  step = mjx.jit(mjx.step)
  batched = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, many)
  for i in range(6):
    one = step(m, world(many, i))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(batched), strict=True):
      np.testing.assert_allclose(x, y[i], rtol=1e-9, atol=1e-9)


def test_scan_equals_repeated_step_and_rollout():
  m, many = start("trees", 3)
  ctrl = jnp.zeros((3, 5, m.nu))
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  once, d = mjx.jit(step), many
  for _ in range(5):
    d = once(m, d)
  scanned = mjx.jit(lambda d: jax.lax.scan(lambda c, _: (step(m, c), None), d, None, length=5)[0])(many)
  final, record = mjx.jit(jax.vmap(mjx.rollout, in_axes=(None, 0, 0)))(m, many, ctrl)
  for other in (scanned, final):
    np.testing.assert_allclose(other.qpos, d.qpos, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(other.qvel, d.qvel, rtol=1e-9, atol=1e-9)
  np.testing.assert_allclose(record["qpos"][:, -1], d.qpos, rtol=1e-9, atol=1e-9)


def test_repeated_steps_compile_once():
  m, many = start("trees", 1)
  d = world(many)
  step = mjx.jit(lambda m, d: mjx.step(m, d))  # a function of its own: jit's cache belongs to the function
  for _ in range(3):
    d = step(m, d)
  assert step._cache_size() == 1
  assert not any(x.weak_type for x in jax.tree.leaves((m, d)))


def test_equal_models_share_one_trace():
  step = mjx.jit(lambda m, d: mjx.step(m, d))
  for scale in (1, 2):
    m = mjx.put_model(load("trees"))
    m = m.replace(body_mass=m.body_mass * scale)
    step(m, mjx.make_data(m))
  assert step._cache_size() == 1


def test_change_of_an_algorithm_option_retraces_and_of_a_number_does_not():
  m = mjx.put_model(load("trees"))
  step = mjx.jit(lambda m, d: mjx.step(m, d))
  d = mjx.make_data(m)
  step(m, d)
  step(m.tree_replace({"opt.timestep": m.opt.timestep * 0.5}), d)
  assert step._cache_size() == 1
  step(m.replace(opt=m.opt.replace(iterations=3)), d)
  assert step._cache_size() == 2


# P20
def test_step1_control_step2_is_a_step():
  m, many = start("joints", 1)
  d = world(many)
  ctrl = jnp.linspace(-1, 1, m.nu)
  whole = mjx.jit(mjx.step)(m, d.replace(ctrl=ctrl))
  parts = mjx.jit(mjx.step2)(m, mjx.jit(mjx.step1)(m, d).replace(ctrl=ctrl))
  for name in ("qpos", "qvel", "qacc", "time", "qacc_warmstart"):
    np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-10, atol=1e-10, err_msg=name)


def test_stages_called_alone_make_forward():
  m, many = start("trees", 1)
  d = world(many)
  whole = mjx.jit(mjx.forward)(m, d)
  for stage in (mjx.fwd_position, mjx.fwd_velocity, mjx.fwd_actuation, mjx.fwd_acceleration, mjx.solve):
    d = mjx.jit(stage)(m, d)
  for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(d), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


# slow: all others; of those in CI three have sensors by which numbers in double precision came in once
DOUBTED = ("joints", "sensors", "sensor_rays", "sticky")


@pytest.mark.parametrize("name", [n if n in DOUBTED else pytest.param(n, marks=pytest.mark.slow) for n in SCENE_NAMES])
def test_float32_step_under_x64_has_no_float64(name):
  m, many = start(name, 2, dtype=np.float32)
  jaxpr = jax.make_jaxpr(jax.vmap(mjx.step, in_axes=(None, 0)))(m, many)
  assert "f64[" not in str(jaxpr), [line for line in str(jaxpr).splitlines() if "f64[" in line][:5]
  out = jax.eval_shape(jax.vmap(mjx.step, in_axes=(None, 0)), m, many)
  assert [x.dtype for x in jax.tree.leaves(out)] == [x.dtype for x in jax.tree.leaves(many)]


def test_float32_follows_float64():
  small, many = start("humanoid", 4, dtype=np.float32)
  large = mjx.put_model(load("humanoid"))
  wide = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, many)
  a = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(small, many)
  b = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(large, wide)
  np.testing.assert_allclose(a.qvel, b.qvel, atol=2e-3 * float(jnp.abs(b.qvel).max()))


def test_jacobian_operator_equals_its_dense_form():
  m, many = start("pairs", 1)
  d = mjx.jit(mjx.forward)(m, world(many))
  j = np.asarray(mjx.jit(mjx.constraint_jacobian)(m, d))
  active = np.asarray(d.efc_D) > 0
  assert active.any()
  np.testing.assert_allclose((j @ d.qvel)[active], d.efc_vel[active], atol=1e-10)
  np.testing.assert_allclose(j.T @ d.efc_force, d.qfrc_constraint, atol=1e-9)


def test_constraint_jacobian_equals_c():
  model = load("trees")
  data = mujoco.MjData(model)
  for _ in range(150):
    mujoco.mj_step(model, data)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.jit(mjx.forward)(m, mjx.put_data(m, data))
  active = np.asarray(d.efc_D) > 0
  j = np.asarray(mjx.constraint_jacobian(m, d))[active]
  assert data.nefc == active.sum() > 0
  np.testing.assert_allclose(j, data.efc_J.reshape(-1, model.nv), atol=1e-10)


def test_inertia_products_agree():
  m, many = start("joints", 1)
  d = mjx.jit(mjx.forward)(m, world(many))
  full, vec = np.asarray(mjx.full_m(m, d)), np.linspace(-1, 1, m.nv)
  np.testing.assert_allclose(mjx.mul_m(m, d, vec), full @ vec, atol=1e-12)
  np.testing.assert_allclose(mjx.solve_m(m, d, vec), np.linalg.solve(full, vec), rtol=1e-8, atol=1e-9)


def test_batch_of_a_model_in_which_nothing_touches_or_moves():
  """Arrays without entries are joined whatever their widths; the gradient is zero."""
  model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><body pos="0 0 1"><geom size=".1"/></body></worldbody></mujoco>')
  m = mjx.put_model(model)
  d = mjx.make_data(m)

  def height(mass):
    m2 = m.with_params(body_mass=mass)
    return mjx.step(m2, mjx.step(m2, d)).subtree_com[0, 2]

  masses = jnp.multiply.outer(jnp.array([1.0, 3.0]), m.body_mass)
  np.testing.assert_allclose(mjx.jit(jax.vmap(height))(masses), 1)
  gradient = mjx.jit(jax.vmap(jax.grad(height)))(masses)
  np.testing.assert_allclose(gradient[:, 1], 0, atol=1e-15)  # that of the world's mass, at another height, is not
