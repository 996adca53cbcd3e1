"""Brax's PPO and the wrappers of Brax and MuJoCo Playground take this package's environments as they are.

Runs where brax and playground are installed; CI does not install them.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite import envs

pytest.importorskip("brax", reason="brax is not installed: `pip install brax` to see its PPO train this package's environments")


def test_brax_ppo_trains_our_environment(monkeypatch):
  if not hasattr(jax, "device_put_replicated"):  # brax 0.14 calls what jax 0.10 has removed
    put = lambda x, devices: jax.tree.map(lambda a: jax.numpy.stack([a] * len(devices)), x)  # noqa: E731
    monkeypatch.setattr(jax, "device_put_replicated", put, raising=False)
  from brax.training.agents.ppo import train as ppo

  env, seen = envs.load("cartpole_balance", dtype=np.float32), []
  with jax.enable_x64(False):  # brax's own wrappers mix both precisions otherwise
    make_policy, params, _ = ppo.train(
      env, num_timesteps=2048, episode_length=100, num_envs=16, batch_size=16, num_minibatches=2, unroll_length=8, num_evals=2,
      num_eval_envs=8, normalize_observations=True, progress_fn=lambda steps, metrics: seen.append((steps, metrics)),
    )  # fmt: skip
  assert seen[-1][0] >= 2048
  for _, metrics in seen:
    assert 0 < metrics["eval/episode_reward"] <= 100 and np.isfinite(metrics["eval/avg_episode_length"])
  action, _ = make_policy(params, deterministic=True)(np.zeros(5, np.float32), jax.random.key(0))
  assert action.shape == (1,) and np.abs(action) <= 1


def randomise(model, rng):
  """In the form that both have: a batched model and its axes."""
  mass = jax.vmap(lambda key: model.body_mass * jax.random.uniform(key, (), model.body_mass.dtype, 0.5, 2))(rng)
  axes = jax.tree.map(lambda _: None, model).tree_replace({"body_mass": 0})
  return model.tree_replace({"body_mass": mass}), axes


WRAPPERS = {
  "brax": ("brax.envs.wrappers.training", "wrap"), "playground": ("mujoco_playground._src.wrapper", "wrap_for_brax_training")
}  # fmt: skip


@pytest.mark.parametrize("whose", WRAPPERS)
def test_wrappers_randomise_end_and_reset(whose):
  module, name = WRAPPERS[whose]
  pytest.importorskip(module.split(".")[0])
  wrap = getattr(importlib.import_module(module), name)
  env, keys = envs.load("pendulum", dtype=np.float32), jax.random.split(jax.random.PRNGKey(0), 3)
  own = env.model
  with jax.enable_x64(False):
    worlds = wrap(env, episode_length=4, action_repeat=2, randomization_fn=lambda m: randomise(m, keys))
    state = jax.jit(worlds.reset)(keys)
    first, step = state, jax.jit(worlds.step)
    for i in range(4):
      state = step(state, jnp.ones((3, 1)))
      assert np.all(state.done == (i % 2)) and np.all(state.info["truncation"] == (i % 2))
      if i == 0:
        same = jax.vmap(lambda s: env.step(env.step(s, jnp.ones(1)), jnp.ones(1)))(first)
        lighter = np.abs(state.data.qvel - same.data.qvel)
        assert (lighter > 1e-3).all()  # another mass in each world
    np.testing.assert_array_equal(state.data.qpos, first.data.qpos)
  assert env.model is own
