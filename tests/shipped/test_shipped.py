"""What users run: float32, compiled by `mjx.jit` and by plain `jax.jit` with the options that ship, or called eagerly.

All other tests have 64 bits, where no machine code of the engine's own is made. C computes in double precision, so the
tolerances here are those of single precision: `TOL` of what a stage computes, `SOLVED` of what the solver's optimum decides,
each relative as `compare.relative_error` defines it.
"""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite import envs, sysid
from mjx_lite.testing import compare
from mjx_lite.testing.compare import optimal

pytestmark = pytest.mark.usefixtures("single_precision")

TOL, SOLVED = 2e-3, 2e-2
# what conftest leaves out of XLA's optimisations, users have
SHIPS = {"xla_backend_optimization_level": 3}
COMPILERS = {
  "mjx.jit": lambda f, **k: mjx.jit(f, compiler_options=SHIPS, **k),
  "jax.jit": lambda f, **k: jax.jit(f, compiler_options=SHIPS, **k),
}
# joints of all types and limits; elliptic cones; muscles, servos and activations; equalities; tendons; many trees; sensors;
# a real humanoid; a hull, whose steps XLA compiles
SCENES = ("joints", "elliptic", "actuators", "equalities", "tendons", "trees", "sensors", "humanoid_mjx", "hull")
# fields that round-off decides in single precision: which of two equal rows is active, and how far from its optimum
UNSURE = {"efc_state", "efc_force", "contact.exclude"}
STAGES = (
  "kinematics", "com_pos", "camlight", "tendon", "crb", "factor_m", "collision", "transmission", "com_vel", "passive", "rne",
  "fwd_velocity", "make_constraint", "fwd_actuation", "fwd_acceleration", "solve",
)  # fmt: skip


HULL = """<mujoco><asset><mesh name="wedge" vertex="0 0 0 .2 0 0 0 .2 0 .2 .2 0 0 0 .15 .1 .1 .2"/></asset><worldbody>
  <geom type="plane" size="1 1 .1"/><body pos="0 0 .01"><freejoint/><geom type="mesh" mesh="wedge"/></body></worldbody>
  </mujoco>"""


@functools.cache
def world(scene):
  """A model, and states along a trajectory of C under random controls."""
  model = optimal(mujoco.MjModel.from_xml_string(HULL) if scene == "hull" else load(scene))
  model.opt.tolerance = 1e-8  # that of single precision
  data, rng, states = mujoco.MjData(model), np.random.default_rng(0), []
  for k in range(60):
    if k % 10 == 0:
      data.ctrl[:] = rng.uniform(-0.5, 0.5, model.nu)
      states.append(compare._state_only(model, data))
    mujoco.mj_step(model, data)
  return model, states


def wrong(model, ours, theirs, skip=()):
  """Fields of ours that differ from C's by more than single precision explains."""
  fields = {f for fields in compare.STAGE_FIELDS.values() for f in fields} - UNSURE - set(skip)
  found = list(compare._differences(model, ours, theirs, fields))
  assert found
  return [str(e) for e in found if e.worst > (SOLVED if e.field in compare.SOLVED else TOL)]


def stepped(model, states):
  out = []
  for state in states:
    c = compare._state_only(model, state)
    mujoco.mj_step(model, c)
    out.append(c)
  return out


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("scene", SCENES)
def test_steps(scene, compiler):
  """Position and velocity after a step of a batch, beside C's."""
  model, states = world(scene)
  m = mjx.put_model(model)
  d = jax.tree.map(lambda *x: jnp.stack(x), *(mjx.put_data(m, s) for s in states))
  assert d.qpos.dtype == jnp.float32
  got = COMPILERS[compiler](jax.vmap(mjx.step, in_axes=(None, 0)))(m, d)
  for k, c in enumerate(stepped(model, states)):
    for name in ("qpos", "qvel", "act", "sensordata"):
      ours, theirs = np.asarray(getattr(got, name)[k], float), np.asarray(getattr(c, name))
      scale = np.maximum(1, np.abs(theirs).max(initial=0))
      np.testing.assert_allclose(ours, theirs, atol=SOLVED * scale * (0.05 if name == "qpos" else 1), err_msg=f"{name} {k}")


@pytest.mark.parametrize("compiler", [*COMPILERS, "eager"])
@pytest.mark.parametrize("scene", ["joints", "humanoid_mjx"])
def test_stages(scene, compiler):
  """Every public stage by itself, one world: what each has written is C's."""
  model, states = world(scene)
  m = mjx.put_model(model)
  compiled = {name: COMPILERS.get(compiler, lambda f: f)(getattr(mjx, name)) for name in STAGES}
  for state in states[1::2]:
    d = mjx.put_data(m, state, keep="all")
    for name in STAGES:
      d = compiled[name](m, d)
    c = compare._state_only(model, state)
    mujoco.mj_forward(model, c)
    skip = ("sensordata", "energy", "ten_velocity", "actuator_velocity", "efc_vel", "efc_aref", "qacc_warmstart")
    assert not (found := wrong(model, mjx.get_data(model, d), c, skip)), "\n".join(found)


@pytest.mark.parametrize("compiler", [*COMPILERS, "one_world", "eager"])
def test_a_step_of_one_world(compiler):
  model, states = world("joints")
  m = mjx.put_model(model)
  step = {**COMPILERS, "one_world": lambda f: mjx.jit(f, one_world=True), "eager": lambda f: f}[compiler](mjx.step)
  for state, c in zip(states, stepped(model, states), strict=True):
    got = step(m, mjx.put_data(m, state))
    np.testing.assert_allclose(got.qvel, c.qvel, atol=SOLVED * max(1, np.abs(c.qvel).max()))
    np.testing.assert_allclose(got.qpos, c.qpos, atol=0.05 * SOLVED)


def smooth_world():
  """A double pendulum with a servo and damping, away from limits: C's differences are derivatives there."""
  model = mujoco.MjModel.from_xml_string(
    """<mujoco><option integrator="implicitfast"/><worldbody><body><joint name="a" axis="0 1 0" damping=".1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02"/><body pos="0 0 -.3"><joint name="b" axis="0 1 0" damping=".1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".02"/></body></body></worldbody>
    <actuator><position joint="a" kp="5"/><motor joint="b"/></actuator></mujoco>"""
  )
  data = mujoco.MjData(model)
  data.qpos[:], data.qvel[:], data.ctrl[:] = (0.3, -0.2), (1, -2), (0.5, 0.1)
  return model, data


@pytest.mark.parametrize("compiler", COMPILERS)
def test_gradients(compiler):
  """`transition_jac`, and the gradient of a batch, beside C's centred differences."""
  model, data = smooth_world()
  nx = 2 * model.nv
  A, B = np.zeros((nx, nx)), np.zeros((nx, model.nu))
  mujoco.mjd_transitionFD(model, data, 1e-6, True, A, B, None, None)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  jac = COMPILERS[compiler](mjx.transition_jac)(m, d)
  np.testing.assert_allclose(jac.A, A, atol=1e-4 * np.abs(A).max())
  np.testing.assert_allclose(jac.B, B, atol=1e-4 * np.abs(B).max())
  many = jax.tree.map(lambda x: jnp.stack([x] * 5), d)

  def speed(ctrl):
    return jax.vmap(mjx.step, in_axes=(None, 0))(m, many.replace(ctrl=ctrl)).qvel[:, 1].sum()

  got = COMPILERS[compiler](jax.grad(speed))(many.ctrl)
  np.testing.assert_allclose(got, np.broadcast_to(B[model.nv + 1], got.shape), atol=1e-4 * np.abs(B).max())


@pytest.mark.parametrize("compiler", [*COMPILERS, "eager"])
def test_other_parameters(compiler):
  """`with_params` in each world of a batch, as C's `mj_setConst` and step have it."""
  model, data = smooth_world()
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  factors = np.array([0.5, 1.0, 2.0])

  def moved(factor):
    return mjx.step(m.with_params(body_mass=m.body_mass * factor), d).qvel

  got = {**COMPILERS, "eager": lambda f: f}[compiler](jax.vmap(moved))(jnp.asarray(factors, jnp.float32))
  for factor, ours in zip(factors, got, strict=True):
    other, data = smooth_world()
    other.body_mass[:] *= factor
    mujoco.mj_setConst(other, mujoco.MjData(other))
    mujoco.mj_step(other, data)
    np.testing.assert_allclose(ours, data.qvel, atol=1e-4)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_environment(compiler):
  """Steps of an environment are C's, with the same controls."""
  env = envs.load("cartpole_balance")
  model = env.mj_model
  state = COMPILERS[compiler](env.reset)(jax.random.key(1))
  step, c = COMPILERS[compiler](env.step), mujoco.MjData(model)
  c.qpos[:], c.qvel[:] = state.data.qpos, state.data.qvel
  for k in range(10):
    action = jnp.full((env.action_size,), 0.3 * np.sin(k), jnp.float32)
    state = step(state, action)
    c.ctrl[:] = state.data.ctrl
    for _ in range(env.n_substeps):
      mujoco.mj_step(model, c)
    np.testing.assert_allclose(state.data.qpos, c.qpos, atol=1e-4)
    np.testing.assert_allclose(state.data.qvel, c.qvel, atol=1e-3)
  assert np.isfinite(np.asarray(state.obs)).all() and state.reward > 0


def test_identification():
  """The damping of a joint, of positions that C computed."""
  model, _ = smooth_world()
  m = mjx.put_model(model)
  rng = np.random.default_rng(0)
  ctrl = np.cumsum(rng.normal(size=(200, model.nu)), axis=0) * 0.05
  model.dof_damping[:] = (0.25, 0.1)
  c, angles = mujoco.MjData(model), []
  for u in ctrl:
    c.ctrl[:] = u
    mujoco.mj_step(model, c)
    angles.append(c.qpos + 1e-4 * rng.normal(size=model.nq))
  measured = sysid.Trajectory(ctrl, {"qpos": np.array(angles)})
  fit = sysid.fit(m, [sysid.field(m, "dof_damping", "a", bounds=(0, 2))], measured)
  np.testing.assert_allclose(fit.model.dof_damping[0], 0.25, rtol=0.02)
