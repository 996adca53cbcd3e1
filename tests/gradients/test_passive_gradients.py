"""Gradients of the medium's force, of plastic springs, of energies and of Jacobians, at singular points too."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx


def random_gradients(f, at, names, rng, finite=2e-6):
  """`assert_gradients` along random directions."""
  return assert_gradients(f, at, [rng.normal(size=x.shape) for x in at], names=names, rtol=1e-4, atol=finite)


@pytest.mark.parametrize("moving", [False, True])
def test_medium(moving):
  model = load("media")
  m = mjx.put_model(model)
  rng = np.random.default_rng(0)
  d = mjx.fwd_position(m, mjx.make_data(m))
  w = jnp.asarray(rng.normal(size=m.nv))

  def f(qvel, wind, density, viscosity, coefficients, heavier):
    opt = m.opt.replace(wind=wind, density=density, viscosity=viscosity)
    m2 = m.replace(opt=opt, geom_fluid=coefficients, body_mass=m.body_mass * (1 + heavier))
    return jnp.dot(w, mjx.passive(m2, mjx.com_vel(m2, d.replace(qvel=qvel))).qfrc_fluid)

  # at rest, without wind
  qvel, wind = (jnp.asarray(rng.normal(size=m.nv)), m.opt.wind) if moving else (jnp.zeros(m.nv), jnp.zeros(3))
  names = ("qvel", "wind", "density", "viscosity", "geom_fluid", "body_mass")
  at = (qvel, wind, m.opt.density, m.opt.viscosity, m.geom_fluid, jnp.zeros(m.nbody))
  grads = random_gradients(f, at, names, rng)
  for name, g in zip(names, grads, strict=True):
    assert moving == (np.abs(g).max() > 0) or name in ("qvel", "wind"), name
  assert np.abs(grads[0]).max() > 0 and np.abs(grads[1]).max() > 0


def test_kept_medium_has_its_gradient():
  model = load("boxes")
  m = mjx.put_model(model)
  for field in ("density", "viscosity"):
    with pytest.raises(ValueError, match=rf"keep=\('{field}',\)"):
      m.replace(opt=m.opt.replace(**{field: jnp.ones(())}))
    with pytest.raises(ValueError, match=rf"keep=\('{field}',\)"):
      m.tree_replace({f"opt.{field}": jnp.ones(())})
  assert m.replace(opt=m.opt.replace(gravity=m.opt.gravity * 2)).opt.gravity[2] < -15
  m = mjx.put_model(model, keep=("density",))
  d = mjx.com_vel(m, mjx.fwd_position(m, mjx.make_data(m).replace(qvel=jnp.ones(m.nv))))
  f = lambda x: jnp.sum(mjx.passive(m.replace(opt=m.opt.replace(density=x)), d).qfrc_fluid ** 2)  # noqa: E731
  g = jax.grad(f)(jnp.asarray(1.3))
  assert np.isfinite(g) and g > 0


@pytest.mark.parametrize("steps", [0, 90])
def test_plastic(steps):
  """Within the yield limit, and beyond it."""
  model = load("yielding")
  m = mjx.put_model(model)
  data = mujoco.MjData(model)
  data.ctrl[:] = 1
  for _ in range(steps):
    mujoco.mj_step(model, data)
  mujoco.mj_forward(model, data)
  d = mjx.put_data(m, data)
  rng = np.random.default_rng(1)
  w, u = jnp.asarray(rng.normal(size=m.nplastic)), jnp.asarray(rng.normal(size=m.nv))

  def f(dq, qvel, plastic, limit):
    m2 = m.replace(jnt_springyield=limit)
    d2 = d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())), qvel=qvel, plastic=plastic)
    return jnp.dot(w, mjx.euler(m2, d2).plastic) + jnp.dot(u, mjx.passive(m2, d2).qfrc_spring)

  grads = random_gradients(f, (jnp.zeros(m.nv), d.qvel, d.plastic, m.jnt_springyield), ("dq", "qvel", "plastic", "limit"), rng)
  assert (np.abs(grads[3]).max() > 0) == (steps > 0)


def test_at_the_reference_and_without_a_limit():
  """A ball spring at its reference, whose turn has no direction; and springs that follow their joints at once."""
  m = mjx.put_model(load("yielding"))
  d = mjx.make_data(m)

  def f(qpos, plastic, limit):
    out = mjx.euler(m.replace(jnt_springyield=limit), d.replace(qpos=qpos, plastic=plastic))
    out = mjx.energy_pos(m, mjx.passive(m, out))
    return jnp.sum(out.plastic**2) + jnp.sum(out.qfrc_spring) + out.energy[0]

  for limit in (m.jnt_springyield, jnp.zeros(m.njnt)):
    for g in mjx.jit(jax.grad(f, argnums=(0, 1, 2)))(d.qpos, d.plastic, limit):
      assert np.isfinite(g).all()
  still = mjx.jit(mjx.euler)(m.replace(jnt_springyield=jnp.zeros(m.njnt)), d)
  np.testing.assert_allclose(still.plastic, d.qpos[: m.nplastic], atol=1e-15)


def test_potential_is_that_of_the_forces():
  """Along every dof the potential falls as springs and gravity push."""
  model = load("yielding")
  data = mujoco.MjData(model)
  data.ctrl[:] = 1
  for _ in range(70):
    mujoco.mj_step(model, data)
  data.qvel[:] = 0
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)

  def f(dq):
    moved = d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())))
    return mjx.energy_pos(m, mjx.kinematics(m, moved)).energy[0]

  slope = mjx.jit(jax.grad(f))(jnp.zeros(m.nv))
  np.testing.assert_allclose(slope, data.qfrc_bias - data.qfrc_spring, rtol=1e-8, atol=1e-9)


def test_jacobians():
  """J is the derivative of the point, its rate the derivative of J, and its own derivative that of differences."""
  model = load("yielding")
  data = mujoco.MjData(model)
  data.qvel[:] = np.random.default_rng(0).normal(size=model.nv)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "hand")
  rng = np.random.default_rng(3)
  w = jnp.asarray(rng.normal(size=(2, m.nv, 3)))

  def placed(dq):
    moved = d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())))
    return mjx.com_pos(m, mjx.kinematics(m, moved))

  zero = jnp.zeros(m.nv)
  jacobian = lambda dq: jnp.stack(mjx.jac_body_com(m, placed(dq), body))  # noqa: E731
  point = mjx.jit(jax.jacrev(lambda dq: placed(dq).xipos[body]))
  np.testing.assert_allclose(mjx.jit(jacobian)(zero)[0].T, point(zero), atol=1e-12)
  rate = mjx.jit(lambda v: jax.jvp(jacobian, (zero,), (v,))[1])(d.qvel)
  np.testing.assert_allclose(rate, mjx.jit(lambda: jnp.stack(mjx.jac_dot(m, d, d.xipos[body], body)))(), atol=1e-9)
  random_gradients(lambda dq: jnp.sum(w * jacobian(dq)), (zero,), ("dq",), rng)
  # the gradient of a force's joint-space image with respect to the point is finite for traced and fixed ids alike
  f = lambda p, i: jnp.sum(mjx.apply_ft(m, d, jnp.ones(3), jnp.zeros(3), p, i) ** 2)  # noqa: E731
  for i in (body, jnp.asarray(body), 0):
    assert np.isfinite(mjx.jit(jax.grad(f))(jnp.ones(3), i)).all()
