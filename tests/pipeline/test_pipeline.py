"""What a step reads and what it leaves alone: inputs, stages that depend on part of the state, switches, warm starts."""

import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

# a ball that slides on a floor, and a servo that drives an arm into its limit
SCENE = """
<mujoco>
  <option timestep="0.005" iterations="50" tolerance="0"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .0999"><freejoint/><geom size=".1"/></body>
    <body pos="2 0 1"><joint name="a" axis="0 1 0" limited="true" range="-20 20" frictionloss=".1"/>
      <geom type="capsule" size=".04" fromto="0 0 0 .4 0 0"/></body>
  </worldbody>
  <actuator><general joint="a" dyntype="filter" dynprm=".05" gainprm="30" ctrllimited="true" ctrlrange="-1 1"/></actuator>
  <sensor><jointpos joint="a"/></sensor>
</mujoco>
"""
INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata")
OF_POSITIONS = (
  *("xpos", "xipos", "cinert", "crb", "M", "qLD", "cdof", "subtree_com", "actuator_length", "actuator_moment", "efc_pos"),
  *("efc_diagA", "efc_D", "efc_KBIP"),
)  # fmt: skip
OF_VELOCITIES = ("cvel", "cdof_dot", "qfrc_bias", "qfrc_passive", "actuator_velocity", "efc_vel", "efc_aref")

step, forward, inverse = mjx.jit(mjx.step), mjx.jit(mjx.forward), mjx.jit(mjx.inverse)


@functools.cache
def scene():
  """A model, and a state of a trajectory that touches the floor and the limit."""
  model = mujoco.MjModel.from_xml_string(SCENE)
  m = mjx.put_model(model)
  d = mjx.make_data(m, keep="all")
  d = d.replace(qvel=d.qvel.at[:6].set(jnp.arange(6) * 0.1), ctrl=d.ctrl + 5)
  for _ in range(40):
    d = step(m, d)
  assert np.asarray(d.efc_force)[-1] != 0 or (np.asarray(d.efc_force) != 0).sum() >= 3
  return m, d


def assert_same(a, b, fields, **how):
  for k in fields:
    np.testing.assert_allclose(getattr(a, k), getattr(b, k), err_msg=k, **{"rtol": 0, "atol": 0, **how})


# P05, P24, P52
def test_inputs_are_never_written():
  m, d = scene()
  wild = d.replace(xfrc_applied=d.xfrc_applied + 0.1, qfrc_applied=d.qfrc_applied + 0.1)
  assert_same(step(m, wild), wild, INPUTS)
  assert_same(forward(m, wild), wild, (*INPUTS, "time", "qpos", "qvel", "act", "qacc_warmstart"))
  assert np.asarray(wild.ctrl)[0] == 5


# P25
def test_stages_depend_on_what_they_should():
  m, d = scene()
  ref = forward(m, d)
  pushed = forward(m, d.replace(ctrl=-d.ctrl, qfrc_applied=d.qfrc_applied + 1, act=d.act + 1, time=d.time + 1))
  assert_same(pushed, ref, (*OF_POSITIONS, *OF_VELOCITIES))
  assert np.any(pushed.qacc != ref.qacc)
  faster = forward(m, d.replace(qvel=d.qvel + 1))
  assert_same(faster, ref, OF_POSITIONS)
  assert np.any(faster.qfrc_bias != ref.qfrc_bias)


# P40, P41, P43
def test_inverse_reads_accelerations_and_nothing_of_the_inputs():
  """It gives back the forces that forward dynamics was given, and those of the constraints."""
  m, d = scene()
  d = forward(m, d.replace(qfrc_applied=d.qfrc_applied + 0.2, xfrc_applied=d.xfrc_applied + 0.3))
  ref = inverse(m, d)
  np.testing.assert_allclose(ref.qfrc_inverse, d.qfrc_applied + d.qfrc_actuator + mjx.xfrc_accumulate(m, d), atol=1e-9)
  wild = d.replace(ctrl=-d.ctrl, qfrc_applied=d.qfrc_applied + 1, xfrc_applied=d.xfrc_applied + 1)
  other = inverse(m, wild.replace(act=d.act + 1, time=d.time + 1))
  assert_same(other, ref, ("qfrc_inverse", "qfrc_constraint", "efc_force"))
  assert_same(ref, d, ("qfrc_constraint", "efc_force"), rtol=1e-9, atol=1e-9)
  assert np.any(inverse(m, d.replace(qacc=d.qacc + 1)).qfrc_inverse != ref.qfrc_inverse)


# P48
def test_the_solution_does_not_depend_on_the_start():
  m, d = scene()
  ref = forward(m, d)
  for seed in range(3):
    start = 30 * np.random.default_rng(seed).normal(size=m.nv)
    assert_same(forward(m, d.replace(qacc_warmstart=jnp.asarray(start))), ref, ("qacc", "efc_force"), rtol=1e-9, atol=1e-9)


# P52
def test_warm_start_is_the_acceleration_of_the_last_step():
  m, d = scene()
  after = step(m, d)
  assert_same(after, after.replace(qacc_warmstart=after.qacc), ("qacc_warmstart",))
  assert np.any(after.qacc_warmstart != d.qacc_warmstart)
  assert not np.any(mjx.reset_data(m, after).qacc_warmstart)


# P20
def test_a_step_in_two_parts():
  m, d = scene()
  halves = mjx.jit(lambda m, d: mjx.step2(m, mjx.step1(m, d)))
  whole = d
  for _ in range(30):
    whole, d = step(m, whole), halves(m, d)
  assert_same(whole, d, ("time", "qpos", "qvel", "act", "qacc"), rtol=1e-9, atol=1e-9)


# P22
def test_a_control_function_is_called_between_the_parts():
  m, d = scene()
  law = lambda m, d: -jnp.sign(d.qpos[-1:]) * (1 + 0 * d.ctrl)  # noqa: E731
  whole = mjx.jit(lambda m, d: mjx.step(m, d, callbacks=mjx.Callbacks(control=law)))(m, d)
  first = mjx.jit(mjx.step1)(m, d)
  parts = mjx.jit(mjx.step2)(m, first.replace(ctrl=law(m, first)))
  assert np.any(whole.ctrl != d.ctrl)
  assert_same(whole, parts, ("ctrl", "qpos", "qvel", "act", "qacc"), rtol=1e-9, atol=1e-9)


# P29, P70, P122
@pytest.mark.parametrize("flag", ["CONSTRAINT", "GRAVITY", "SENSOR"])
def test_switches(flag):
  m, d = scene()
  off = m.replace(opt=m.opt.replace(disableflags=m.opt.disableflags | int(mjx.DisableBit[flag])))
  ref, out = step(m, d), step(off, d)
  if flag == "CONSTRAINT":
    np.testing.assert_array_equal(out.qacc, out.qacc_smooth)
  elif flag == "GRAVITY":
    still = forward(off, mjx.make_data(m))
    assert not np.any(still.qfrc_bias) and np.any(off.opt.gravity)
  else:
    assert_same(out, ref, ("qpos", "qvel", "act", "qacc", "time"), rtol=1e-12, atol=1e-15)
  assert flag == "SENSOR" or np.any(out.qacc != ref.qacc)


# P28
def test_options_that_change_between_steps_are_those_of_a_new_model():
  m, d = scene()
  model = mujoco.MjModel.from_xml_string(SCENE)
  model.opt.gravity[:], model.opt.timestep, model.opt.impratio = (1, 2, -3), 0.003, 4
  opt = m.opt.replace(gravity=jnp.array([1.0, 2, -3]), timestep=jnp.asarray(0.003), impratio=jnp.asarray(4.0))
  changed = step(m.replace(opt=opt), d)
  assert_same(changed, step(mjx.put_model(model), d), ("qpos", "qvel", "qacc", "time", "efc_aref"))
  assert np.any(changed.qacc != step(m, d).qacc)
