"""Brax's PPO trains an environment of this package as it is. Runs where brax is installed; CI does not install it."""

import jax
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
