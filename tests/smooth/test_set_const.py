"""`set_const` against `mj_setConst`, after random changes of what it reads; its gradient."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import OTHERS, SCENE_NAMES, load
from random_models import random_model

import mjx_lite as mjx
from mjx_lite.smooth.set_const import Constants

IN_CI = ("equalities", "media", "tendon_armature", "transmissions", "myo_elbow/myoelbow_2dof6muscles")
NAMES = [pytest.param(n, marks=() if n in IN_CI else pytest.mark.slow) for n in (*SCENE_NAMES, "humanoid", *OTHERS)]


def changed(model, rng):
  """A copy with changes that keep the structure; what follows from them is filled with nonsense."""
  m = copy.copy(model)
  factor = rng.uniform(0.5, 2, m.nbody)
  m.body_mass[:] *= factor
  m.body_inertia[:] *= factor[:, None] * rng.uniform(0.9, 1.1, (m.nbody, 3))
  free = m.body_simple == 0
  free[0] = False
  m.body_ipos[free] += 0.02 * rng.normal(size=(free.sum(), 3))
  m.body_iquat[free] += 0.1 * rng.normal(size=(free.sum(), 4))
  m.body_iquat[:] /= np.linalg.norm(m.body_iquat, axis=1)[:, None]
  for field in ("body_pos", "jnt_pos", "site_pos", "cam_pos", "light_pos", "light_dir"):
    x = getattr(m, field)
    x[:] += 0.01 * rng.normal(size=x.shape)
  for field in ("geom_size", "actuator_gear", "dof_armature", "tendon_armature", "actuator_armature"):
    x = getattr(m, field)
    x[:] *= rng.uniform(0.8, 1.2, x.shape)
  mujoco.mj_integratePos(m, m.qpos0, 0.1 * rng.normal(size=m.nv), 1)
  for field in Constants._fields:
    if field not in ("eq_data", "geom_fluid", "geom_aabb", "geom_rbound"):
      getattr(m, field)[:] = np.nan
  bodies = m.eq_objtype == mujoco.mjtObj.mjOBJ_BODY
  m.eq_data[bodies, 3:6] = 7
  return m


def assert_constants_equal_c(model):
  ours = mjx.jit(mjx.set_const)(mjx.put_model(model))
  mujoco.mj_setConst(model, mujoco.MjData(model))
  for field in Constants._fields:
    theirs = getattr(model, field)
    scale = np.abs(theirs[np.abs(theirs) < 1e9]).max(initial=1e-3)
    np.testing.assert_allclose(
      np.reshape(getattr(ours, field), theirs.shape), theirs, rtol=1e-10, atol=1e-12 * scale, err_msg=field
    )


@pytest.mark.parametrize("name", NAMES)
def test_equals_c(name):
  assert_constants_equal_c(changed(load(name), np.random.default_rng(0)))


@pytest.mark.slow  # the scenes above are in CI
@pytest.mark.parametrize("seed", range(40))
def test_models_by_chance_equal_c(seed):
  assert_constants_equal_c(changed(random_model(seed, rich=True), np.random.default_rng(0)))


def test_tendon_that_nothing_moves():
  assert_constants_equal_c(
    mujoco.MjModel.from_xml_string("""
      <mujoco>
        <worldbody>
          <site name="a"/><site name="b" pos="0 0 1"/><body><joint/><geom size=".1"/></body>
        </worldbody>
        <tendon><spatial frictionloss="1"><site site="a"/><site site="b"/></spatial></tendon>
      </mujoco>""")
  )


@pytest.fixture(scope="module")
def weighted():
  """A model with actuators, and a function of its parameters that looks at all constants."""
  m = mjx.put_model(load("actuators"))
  weights = {k: np.random.default_rng(1).normal(size=getattr(m, k).shape) for k in Constants._fields}

  def f(mass, pos, gear):
    m2 = m.with_params(body_mass=mass, body_ipos=pos, actuator_gear=gear)
    return sum(jnp.vdot(w, getattr(m2, k)) for k, w in weights.items() if k != "geom_aabb")

  return m, mjx.jit(f), mjx.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))


def test_gradient(weighted):
  m, f, grad = weighted
  at, rng = (m.body_mass, m.body_ipos, m.actuator_gear), np.random.default_rng(2)
  _, found = grad(*at)
  for k, (x, g) in enumerate(zip(at, found, strict=True)):
    direction = jnp.asarray(rng.normal(size=x.shape)) * jnp.maximum(jnp.abs(x), 0.1) * (k != 0 or m.body_mass > 0)
    ends = [f(*at[:k], x + h * direction, *at[k + 1 :]) for h in (1e-5, -1e-5)]
    slope = jnp.vdot(g, direction)
    assert abs(slope) > 1e-3
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, slope, rtol=1e-6)


def test_batched(weighted):
  m, *_ = weighted
  masses = m.body_mass * jnp.array([[1.0], [1.5]])
  both = mjx.jit(jax.vmap(lambda mass: m.with_params(body_mass=mass)))(masses)
  one = m.with_params(body_mass=masses[1])
  for field in Constants._fields:
    np.testing.assert_allclose(getattr(both, field)[1], getattr(one, field), rtol=1e-12, atol=1e-12, err_msg=field)


def test_what_with_params_refuses():
  m = mjx.put_model(load("boxes"))
  with pytest.raises(ValueError, match="dof_invweight0 follows"):
    m.with_params(dof_invweight0=m.dof_invweight0)
  with pytest.raises(ValueError, match="has shape"):
    m.with_params(body_mass=m.body_mass[:1])


def test_batched_without_dofs():
  """Nothing that moves: arrays without entries are of the batch's width too."""
  xml = '<mujoco><worldbody><body pos="0 0 1"><geom size=".1" mass="2"/></body></worldbody></mujoco>'
  m = mjx.put_model(mujoco.MjModel.from_xml_string(xml))
  masses = jnp.outer(jnp.array([1.0, 3.0]), m.body_mass)
  both = jax.jit(jax.vmap(lambda mass: m.with_params(body_mass=mass).body_subtreemass))(masses)
  np.testing.assert_allclose(both, [[2, 2], [6, 6]])
  sizes = jnp.multiply.outer(jnp.array([1.0, 3.0]), m.geom_size)  # what is at the geoms' width only is joined with what is not
  wide = jax.jit(jax.vmap(lambda size: m.with_params(geom_size=size).geom_rbound))(sizes)
  np.testing.assert_allclose(wide, [[0.1], [0.3]])
