"""Every status bit: what sets it, and that nothing else does; other worlds are not touched."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite import Warning

STEP = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))


def worlds(m, n=3):
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), mjx.make_data(m))


@pytest.fixture(scope="module")
def model():
  return mjx.put_model(load("joints"))


# P90, P91, P92, P96
@pytest.mark.parametrize(
  "field, kind", [("qpos", Warning.BADQPOS), ("qvel", Warning.BADQVEL), ("qfrc_applied", Warning.BADQACC)]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12])
def test_bad_state_marks_and_resets_its_world_only(model, field, kind, value):
  many = worlds(model)
  moved = many.replace(qvel=many.qvel + 0.1, time=many.time + 1)
  bad = moved.replace(**{field: getattr(moved, field).at[1, 0].set(value)})
  out, good = STEP(model, bad), STEP(model, moved)
  expected = np.zeros(len(Warning), int)
  expected[[kind, Warning.RESET]] = 1
  np.testing.assert_array_equal(out.status.count[1], expected)
  assert out.status.bits[1] == (1 << kind) | (1 << Warning.RESET)
  assert np.isfinite(out.qpos[1]).all() and np.isfinite(out.qvel[1]).all()
  assert out.time[1] < 0.1  # started again
  for i in (0, 2):
    np.testing.assert_array_equal(out.status.count[i], good.status.count[i])
    np.testing.assert_array_equal(out.qpos[i], good.qpos[i])


# P90, P91, P92
def test_a_reset_world_has_the_inputs_of_a_new_one(model):
  """Bad velocities reset before the step, so that it is that of a new world; bad accelerations after it: the next one is."""
  many = worlds(model)
  inputs = {k: getattr(many, k) + 0.3 for k in ("ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos")}
  moved = many.replace(qvel=many.qvel + 0.1, time=many.time + 1, **inputs)
  fresh = STEP(model, many)
  early = STEP(model, moved.replace(qvel=moved.qvel.at[1, 0].set(np.nan)))
  late = STEP(model, moved.replace(qfrc_applied=moved.qfrc_applied.at[1, 0].set(np.nan)))
  for k in inputs:
    np.testing.assert_array_equal(getattr(early, k)[1], getattr(many, k)[1])
    np.testing.assert_array_equal(getattr(late, k)[1], getattr(many, k)[1])
    np.testing.assert_array_equal(getattr(early, k)[0], getattr(moved, k)[0])
  assert early.time[1] == late.time[1] == fresh.time[1]
  following = STEP(model, late)
  for k in ("qpos", "qvel", "act", "qacc"):
    np.testing.assert_array_equal(getattr(early, k)[1], getattr(fresh, k)[1])
    np.testing.assert_array_equal(getattr(following, k)[1], getattr(fresh, k)[1])


def test_bits_are_of_the_last_step_and_counters_stay(model):
  many = worlds(model)
  out = STEP(model, many.replace(qpos=many.qpos.at[1, 0].set(np.nan)))
  again = STEP(model, out)
  assert not again.status.bits.any()
  assert again.status.count[1, Warning.BADQPOS] == 1


# P94
def test_autoreset_off_lets_the_state_be(model):
  off = model.replace(opt=model.opt.replace(disableflags=int(mjx.DisableBit.AUTORESET)))
  many = worlds(model)
  out = STEP(off, many.replace(qvel=many.qvel.at[1, 0].set(np.nan)))
  assert out.status.count[1, Warning.BADQVEL] == 1 and out.status.count[1, Warning.RESET] == 0
  assert np.isnan(out.qvel[1]).any() and np.isfinite(out.qvel[0]).all()


# P93
def test_bad_control_zeroes_all_controls_of_its_world(model):
  many = worlds(model)
  many = many.replace(ctrl=many.ctrl + 0.5)
  out = STEP(model, many.replace(ctrl=many.ctrl.at[1, 2].set(np.nan)))
  zero = STEP(model, many.replace(ctrl=many.ctrl * 0))
  assert out.status.count[1, Warning.BADCTRL] == 1 and out.status.count[0, Warning.BADCTRL] == 0
  np.testing.assert_allclose(out.actuator_force[1], zero.actuator_force[1])
  assert np.isnan(out.ctrl[1, 2])


def test_solver_that_stops_early_says_so():
  m = mjx.put_model(
    mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody>
      <geom type="plane" size="1 1 1"/><body pos="0 0 .2"><freejoint/><geom type="capsule" size=".1 .2" euler="70 20 0"/></body>
    </worldbody></mujoco>""")
  )
  d = mjx.make_data(m)
  d = d.replace(qvel=d.qvel - 3.0)
  for iterations, flagged in ((1, True), (50, False)):
    short = m.replace(opt=m.opt.replace(iterations=iterations))
    out = d
    for _ in range(12):
      out = mjx.jit(mjx.step)(short, out)
    assert bool(out.status.count[Warning.SOLVER] > 0) == flagged
