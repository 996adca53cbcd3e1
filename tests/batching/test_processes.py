"""Threads, and processes as Gymnasium's workers are: models and states go there by pickle."""

import concurrent.futures
import multiprocessing
import pickle
import threading

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight

import mjx_lite as mjx

pytestmark = pytest.mark.usefixtures("single_precision")

BALL = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"


def stepped(m, d, count=5):
  step = jax.jit(lambda m, d: mjx.step(m, d))
  for _ in range(count):
    d = step(m, d)
  return np.asarray(d.qpos)


def started(xml):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(xml))
  d = mjx.make_data(m)
  return m, d.replace(qvel=jnp.linspace(-1, 1, m.nv).astype(jnp.float32))


def test_two_threads_step_two_models():
  """Both trace, build kernels and run at the same time."""
  given = [started(xml) for xml in (straight.SWING, BALL)]
  want = [stepped(*x) for x in given]
  start = threading.Barrier(2)

  def work(x):
    with jax.enable_x64(False):
      start.wait()
      return [stepped(*x) for _ in range(2)]

  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    found = list(pool.map(work, given))
  for a, b in zip(found, want, strict=True):
    for x in a:
      np.testing.assert_array_equal(x, b)


def test_pickled_models_and_states_are_the_same():
  """One program serves the original and the copy: their layouts are equal."""
  m, d = started(straight.SWING)
  other, state = pickle.loads(pickle.dumps((m, mjx.jit(mjx.step, one_world=True)(m, d))))
  assert other.layout == m.layout and hash(other.layout) == hash(m.layout)
  step = jax.jit(lambda m, d: mjx.step(m, d))
  for a, b in zip(jax.tree.leaves(step(m, d)), jax.tree.leaves(state), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
  step(other, d)
  assert step._cache_size() == 1


def in_worker(pickled):
  """What a worker does, in a process that has imported nothing before."""
  import jax

  jax.config.update("jax_platforms", "cpu")
  return stepped(*pickle.loads(pickled))


def test_workers_step_what_they_are_sent():
  """As `gymnasium.vector.AsyncVectorEnv(..., context="spawn")`; JAX itself does not survive a fork once it runs."""
  m, d = started(straight.SWING)
  with multiprocessing.get_context("spawn").Pool(2) as pool:
    found = pool.map(in_worker, [pickle.dumps((m, d))] * 2)
  for x in found:
    np.testing.assert_allclose(x, stepped(m, d), rtol=1e-6, atol=1e-6)
