"""The Gymnasium adapter: spaces, and what `final_obs` means."""

import sys

import gymnasium
import jax
import numpy as np
import pytest

from mjx_lite import envs
from mjx_lite.envs.gym import GymVectorEnv, TorchVectorEnv

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


def test_episodes_do_not_start_in_the_same_few_states_for_ever(vector):
  starts = [vector.reset(seed=0)[0]]
  for i in range(6 * LENGTH):
    obs = vector.step(np.zeros((WORLDS, 1)))[0]
    if i % LENGTH == LENGTH - 1:
      starts.append(obs)
  starts = np.concatenate(starts)
  assert len(np.unique(starts[:, 0])) > 2 * WORLDS  # of a single bank there are as many as worlds
  vector.reset(seed=0)
  for _ in range(3 * LENGTH):
    obs = vector.step(np.zeros((WORLDS, 1)))[0]
  np.testing.assert_array_equal(obs, starts[3 * WORLDS : 4 * WORLDS])  # the seed says which


def test_committed_actions_need_no_second_program(vector):
  """Arrays from torch's memory are committed to their device, and so is the state after a step of them."""
  vector.reset(seed=0)
  action = jax.device_put(np.zeros((WORLDS, 1), np.float32), jax.devices()[0])
  vector._advance(action)
  known = vector._step._cache_size()
  vector._advance(action)
  assert vector._step._cache_size() == known


def test_actions_of_another_shape_are_refused(vector):
  vector.reset(seed=0)
  for shape in ((WORLDS,), (WORLDS + 1, 1), (WORLDS, 2)):
    with pytest.raises(ValueError, match=r"required shape is \(3, 1\)"):
      vector.step(np.zeros(shape))
  with pytest.raises(ValueError, match="number of seeds, 2"):
    vector.reset(seed=[0, 1])


def test_a_step_needs_a_reset():
  with pytest.raises(RuntimeError, match="reset"):
    GymVectorEnv(envs.load("pendulum"), 1).step(np.zeros((1, 1)))


def test_tensors_of_torch_are_jax_arrays(monkeypatch):
  torch = pytest.importorskip("torch", reason="torch is not installed: `pip install torch` to see the adapter share memory")
  env = envs.load("cartpole_balance", dtype=np.float32)
  ours = TorchVectorEnv(env, WORLDS, episode_length=LENGTH)
  other = GymVectorEnv(env, WORLDS, episode_length=LENGTH)
  received, advanced, advance = [], [], ours._advance

  def watched(actions):
    received.append(actions)
    advanced.append(advance(actions))
    return advanced[-1]

  monkeypatch.setattr(ours, "_advance", watched)
  obs, _ = ours.reset(seed=1)
  np.testing.assert_array_equal(obs.numpy(), other.reset(seed=1)[0])
  for i in range(LENGTH):
    action = (0.1 * torch.randn(WORLDS, 1, generator=torch.Generator().manual_seed(i))).requires_grad_()
    obs, reward, terminated, truncated, infos = ours.step(action)
    handed = advanced[-1]
    assert received[-1].unsafe_buffer_pointer() == action.data_ptr()
    assert obs.data_ptr() == handed["obs"].unsafe_buffer_pointer()  # nothing was copied
    assert reward.data_ptr() == handed["reward"].unsafe_buffer_pointer()
    expected = other.step(action.detach().numpy())
    assert {obs.dtype, reward.dtype} == {torch.float32} and terminated.dtype == truncated.dtype == torch.bool
    for a, b in zip((obs, reward, terminated, truncated), expected, strict=False):
      np.testing.assert_array_equal(a.numpy(), b)
  assert truncated.all() and infos["_final_obs"].all() and not terminated.any()
  np.testing.assert_array_equal(infos["final_obs"].numpy(), np.stack(list(expected[4]["final_obs"])))
  np.testing.assert_array_equal(infos["final_info"]["episode"]["r"].numpy(), expected[4]["final_info"]["episode"]["r"])


def test_without_torch_the_adapter_says_so(monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(ImportError, match="pip install torch"):
    TorchVectorEnv(envs.load("pendulum"), 1)
