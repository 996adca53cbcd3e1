"""Gymnasium's vector API around an environment, for learners in NumPy or torch instead of JAX (extra `rl`)."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

import mjx_lite as mjx
from mjx_lite.envs.base import Env
from mjx_lite.envs.wrappers import wrap
from mjx_lite.io.capacity import warn_of_shortage


class GymVectorEnv(VectorEnv):
  """A `gymnasium.vector.VectorEnv` that steps all worlds in one compiled program.

  A world that is done is reset in the same step (`AutoresetMode.SAME_STEP`). The returned observation is then the first
  observation of the new episode. `infos["final_obs"]` has the last observation of the old episode, and
  `infos["final_info"]` its return and length. New episodes start from a bank of initial states (`AutoReset`). The bank is
  recomputed every `episode_length` steps. Then, in `reset` and in `close`, a CapacityWarning tells of contacts
  that did not fit.
  """

  def __init__(self, env: Env, num_envs: int, *, seed: int = 0, **wrap_options: Any):
    """Create the environment without compiling anything yet.

    Args:
      env: the task.
      num_envs: number of worlds.
      seed: seed of the first reset, if `reset` is called without a seed.
      **wrap_options: arguments of `wrap` (episode_length, action_repeat, randomise, ...).
    """
    self.env = wrap(env, **wrap_options, auto_reset=True)
    self.num_envs, self._seed, self._state, self._steps = num_envs, seed, None, 0
    self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_fps": round(1 / env.dt)}
    self.single_action_space = spaces.Box(-1, 1, (env.action_size,), np.float32)
    self.action_space = spaces.Box(-1, 1, (num_envs, env.action_size), np.float32)
    obs = jax.eval_shape(env.reset, jax.random.key(0)).obs
    self.single_observation_space = _space(obs, ())
    self.observation_space = _space(obs, (num_envs,))
    self._reset, self._step = mjx.jit(self.env.reset), mjx.jit(self._outcome)

  def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
    """Start new episodes in all worlds. A list of seeds has one seed per world; `options` is ignored."""
    if isinstance(seed, list | np.ndarray):
      if len(seed) != self.num_envs:
        raise ValueError(f"the number of seeds, {len(seed)}, is not the number of worlds, {self.num_envs}.")
      keys = jax.vmap(jax.random.key)(jnp.asarray(seed))
    else:
      self._seed = self._seed if seed is None else seed
      keys = jax.random.split(jax.random.key(self._seed), self.num_envs)
      self._seed += 1  # the next reset without a seed draws other states
    self._tell()
    self._state, self._steps = self._first(keys), 0
    return self._observation(self._state.obs), {}

  def close_extras(self, **kwargs: Any) -> None:
    """Look for contacts that did not fit in the last episodes."""
    self._tell()

  def _tell(self) -> None:
    if self._state is not None:
      warn_of_shortage(self.env.model, self._state.data, type(self).__name__, stacklevel=4)

  def _first(self, keys):
    # commit the keys to their device, as torch's tensors are: otherwise the first step would be a compiled program of its own
    return self._reset(jax.device_put(keys, keys.sharding))

  def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Step all worlds; return observations, rewards, terminations, truncations and infos as NumPy arrays."""
    out = jax.device_get(self._advance(jnp.asarray(actions)))
    infos, done = {}, out["terminated"] | out["truncated"]
    if done.any():
      worlds = np.flatnonzero(done)
      final = np.full(self.num_envs, None, object)
      for i in worlds:
        final[i] = jax.tree.map(lambda x, i=i: np.asarray(x[i], np.float32), out["final_obs"])
      episode = {k: np.where(done, v, 0) for k, v in out["episode"].items()}
      infos = {"final_obs": final, "_final_obs": done, "_final_info": done}
      infos["final_info"] = {"episode": episode, "_episode": done}
    return self._observation(out["obs"]), out["reward"].astype(np.float64), out["terminated"], out["truncated"], infos

  def _advance(self, actions: jax.Array) -> dict[str, Any]:
    """Step all worlds and return the outputs of `_outcome`; refill the bank of initial states when it is due."""
    if self._state is None:
      raise RuntimeError("no episode has started: call reset() before step().")
    if actions.shape != self.action_space.shape:
      raise ValueError(f"actions have the shape {actions.shape}; the required shape is {self.action_space.shape}.")
    self._state, out = self._step(self._state, actions)
    self._steps += 1
    if self._steps % self.env.length == 0:  # a fixed bank would be overfitted
      self._tell()
      key = jax.random.fold_in(jax.random.key(self._seed), self._steps)
      self._state = self.env.refill(self._state, self._first(jax.random.split(key, self.num_envs)))
    return out

  def _outcome(self, state, actions):
    """Step the worlds; return the new state and a dict of the outputs that the host needs."""
    after = self.env.step(state, actions.astype(state.reward.dtype))
    truncated = after.info["truncation"] > 0
    sums = after.info["episode_metrics"]
    return after, {
      "obs": after.obs, "reward": after.reward, "truncated": truncated, "terminated": (after.done > 0) & ~truncated,
      "final_obs": after.info["final_obs"], "episode": {"r": sums["sum_reward"], "l": sums["length"]},
    }  # fmt: skip

  def _observation(self, obs):
    return jax.tree.map(lambda x: np.asarray(x, np.float32), jax.device_get(obs))


class TorchVectorEnv(GymVectorEnv):
  """`GymVectorEnv` with torch tensors for actions, observations, rewards and ends, on the device of the worlds.

  No data is copied or transferred to the host: the tensors share the memory of JAX's arrays (DLPack). JAX's arrays are
  constant, so clone a tensor before writing into it. `infos` always has an entry for every world; the masks `_final_obs` and
  `_final_info` mark the worlds whose entry is valid. This class needs a torch build that supports the device.
  """

  def __init__(self, env: Env, num_envs: int, *, seed: int = 0, **wrap_options: Any):
    """Import torch and create the environment; see `GymVectorEnv.__init__`."""
    try:
      self._torch: Any = importlib.import_module("torch")
    except ImportError as error:
      raise ImportError("TorchVectorEnv needs torch: pip install torch.") from error
    super().__init__(env, num_envs, seed=seed, **wrap_options)

  def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Apply actions (num_envs, nu); return observations, rewards, terminations, truncations and infos as tensors."""
    # wait for the step: it reads the memory of torch's tensor, which torch may overwrite next
    out = jax.block_until_ready(self._advance(jnp.from_dlpack(self._torch.as_tensor(actions).detach().contiguous())))
    out = jax.tree.map(self._torch.from_dlpack, out)
    done = out["terminated"] | out["truncated"]
    infos = {
      "final_obs": self._floats(out["final_obs"]), "_final_obs": done, "_final_info": done,
      "final_info": {"episode": out["episode"], "_episode": done},
    }  # fmt: skip
    return self._floats(out["obs"]), self._floats(out["reward"]), out["terminated"], out["truncated"], infos

  def _observation(self, obs):
    return self._floats(jax.tree.map(self._torch.from_dlpack, jax.block_until_ready(obs)))

  def _floats(self, tree):
    """Convert to 32 bits, as the spaces promise; no copy if the worlds use 32 bits."""
    return jax.tree.map(lambda x: x.float(), tree)


def _space(obs: Any, lead: tuple[int, ...]) -> spaces.Space:
  """Return the space of an observation (an array or a dict of arrays) with leading axes of shape `lead`."""
  if isinstance(obs, dict):
    return spaces.Dict({k: _space(v, lead) for k, v in obs.items()})
  return spaces.Box(-np.inf, np.inf, (*lead, *obs.shape), np.float32)
