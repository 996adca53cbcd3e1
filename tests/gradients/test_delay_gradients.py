"""Gradients of what delayed and intermittent sensors read steps later, through the histories of sensors and controls."""

import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal

STEPS = 8


@functools.cache
def on_its_way(name, before):
  """A state whose histories are full."""
  model = optimal(load(name).__copy__())
  model.sensor_cutoff[:] = 0
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(before):
    data.ctrl[:] = 0.4 * rng.uniform(-1, 1, model.nu)
    mujoco.mj_step(model, data)
  m = mjx.put_model(model)
  return m, mjx.put_data(m, data)


def samples_of(m):
  """Which entries of the history are samples; the others are times and places."""
  p = m.plan.sensor
  buffers = (m.plan.actuator.history, *(x.late.buffers for x in (p.position, p.velocity, p.acceleration)))
  return np.unique(np.concatenate([b.value[b.valid_value] for b in buffers]))


@pytest.mark.parametrize("name, before", [("sensor_delays", 40), pytest.param("delays", 40, marks=pytest.mark.slow)])
def test_through_histories(name, before):
  """What sensors read, and the state, after some steps: by the state, controls, samples of before, and the delays."""
  m, d = on_its_way(name, before)
  rng, samples = np.random.default_rng(1), samples_of(m)
  delay = "sensor_delay" if m.nsensor else "actuator_delay"
  w, v = (jnp.asarray(rng.normal(size=x.shape)) for x in (d.sensordata, d.qvel))

  def f(qpos, qvel, ctrl, past, late):
    d2 = d.replace(qpos=qpos, qvel=qvel, history=d.history.at[samples].set(past))
    after, seen = mjx.rollout(m.replace(**{delay: late}), d2, ctrl, record=("sensordata",))
    return jnp.sum(seen["sensordata"] @ w) + v @ after.qvel

  late = getattr(m, delay)
  late = late + jnp.where(late > 0, 2e-4, 0)  # away from the samples
  at = (d.qpos, d.qvel, jnp.asarray(rng.uniform(-0.4, 0.4, (STEPS, m.nu))), d.history[samples], late)
  direction = [rng.normal(size=x.shape) for x in at[:-1]] + [np.where(late > 0, rng.uniform(1, 2, late.shape), 0)]
  grads = assert_gradients(f, at, direction, names=("qpos", "qvel", "ctrl", "past", "late"))
  assert all(np.any(g) for g in grads)
