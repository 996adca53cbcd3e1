"""The Gymnasium adapter: spaces, and what `final_obs` means."""

import gymnasium
import numpy as np
import pytest

from mjx_lite import envs
from mjx_lite.envs.gym import GymVectorEnv

WORLDS, LENGTH = 3, 5


@pytest.fixture(scope="module")
def vector():
  return GymVectorEnv(envs.load("cartpole_balance"), WORLDS, episode_length=LENGTH)


def test_spaces_and_seeds(vector):
  assert isinstance(vector, gymnasium.vector.VectorEnv)
  first, _ = vector.reset(seed=3)
  assert vector.observation_space.contains(first)
  again, _ = vector.reset(seed=3)
  np.testing.assert_array_equal(first, again)
  assert len(np.unique(first[:, 0])) == WORLDS
  other, _ = vector.reset()
  assert np.any(other != again)


def test_final_observations(vector):
  obs, _ = vector.reset(seed=0)
  for i in range(2 * LENGTH):
    action = vector.action_space.sample() * 0.1
    before, (obs, reward, terminated, truncated, infos) = obs, vector.step(action)
    assert vector.observation_space.contains(obs)
    assert not terminated.any() and reward.shape == (WORLDS,) and (reward > 0.5).all()
    assert truncated.all() == truncated.any() == (i % LENGTH == LENGTH - 1)
    if not truncated.any():
      assert not infos
      continue
    assert infos["_final_obs"].all()
    final = np.stack(list(infos["final_obs"]))
    # the final observation continues the episode, the returned one does not
    assert np.abs(final[:, 0] - before[:, 0] - 0.02 * before[:, 3]).max() < 2e-3
    assert (np.abs(final - obs).max(axis=1) > 1e-3).all()
    np.testing.assert_array_equal(infos["final_info"]["episode"]["l"], LENGTH)
    assert (infos["final_info"]["episode"]["r"] > 0.5 * LENGTH).all()


def test_a_step_needs_a_reset():
  with pytest.raises(RuntimeError, match="reset"):
    GymVectorEnv(envs.load("pendulum"), 1).step(np.zeros((1, 1)))
