"""Wrappers of an environment: episodes, action repeat, randomised models, quarantine, batch of worlds, resets.

`wrap` combines the wrappers. Wrappers inside `Worlds` see one world; `AutoReset` sees the batch.

Tests: tests/envs/test_envs.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.envs.base import Env
from mjx_lite.envs.state import State

# keys of info that AutoReset keeps from the episode that has ended
PRESERVE = ("truncation", "episode_done", "episode_metrics")


class Wrapper:
  """Base class: forwards all calls and attributes to the wrapped environment."""

  def __init__(self, env: Any):
    self.env = env

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode; see `Env.reset`."""
    return self.env.reset(key, model)

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action; see `Env.step`."""
    return self.env.step(state, action, model)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__") or name == "env":
      raise AttributeError(name)
    return getattr(self.env, name)


class Repeat(Wrapper):
  """Applies each action `times` times and sums the rewards. A world that is done does not move any more."""

  def __init__(self, env: Any, times: int):
    super().__init__(env)
    self.times = times

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action `times` times (see `Env.step`); the metrics are those of the last state."""

    def repeat(state, _):
      after = self.env.step(state, action, model)
      after = after.replace(reward=state.reward + after.reward)
      return mjx.where(state.done > 0, state, after), None

    fresh = state.replace(reward=jnp.zeros_like(state.reward), done=jnp.zeros_like(state.done))
    return jax.lax.scan(repeat, fresh, length=self.times)[0]


class Quarantine(Wrapper):
  """Ends the episode of a world that diverges, with zero reward and with non-finite values replaced by zero.

  A world has diverged if the engine reset the world or refused its controls (`d.status`), or if its observation or reward is
  not finite. `metrics['diverged']` is 1 for this world in this step.
  """

  _BAD = (mjx.Warning.BADQPOS, mjx.Warning.BADQVEL, mjx.Warning.BADQACC, mjx.Warning.BADCTRL, mjx.Warning.RESET)

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode (see `Env.reset`) and add the metric 'diverged'."""
    state = self.env.reset(key, model)
    return state.replace(metrics={**state.metrics, "diverged": jnp.zeros_like(state.reward)})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action (see `Env.step`) and end the episode if the world diverged."""
    after = self.env.step(state, action, model)
    kinds = np.array(self._BAD)
    bad = jnp.any(after.data.status.count[kinds] > state.data.status.count[kinds])
    for x in (*jax.tree.leaves(after.obs), after.reward):
      bad |= ~jnp.all(jnp.isfinite(x))
    clean = lambda tree: jax.tree.map(lambda x: jnp.where(bad & ~jnp.isfinite(x), jnp.zeros_like(x), x), tree)  # noqa: E731
    return after.replace(
      obs=clean(after.obs), reward=jnp.where(bad, 0, after.reward), done=jnp.where(bad, 1, after.done),
      metrics={**clean(after.metrics), "diverged": bad.astype(after.reward.dtype)},
    )  # fmt: skip


class Episode(Wrapper):
  """Truncates an episode after `length` steps; `info['truncation']` is 1 if the episode ended for this reason.

  `info` also has `steps`, `episode_done`, and `episode_metrics`: the sum of the rewards, the length and the sums of the
  metrics. The sums are those of the episode so far, and of the whole episode where `episode_done` is 1.
  """

  def __init__(self, env: Any, length: int, action_repeat: int = 1):
    if length < 1 or action_repeat < 1:
      raise ValueError(f"length = {length} and action_repeat = {action_repeat} must be at least 1.")
    super().__init__(Repeat(env, action_repeat) if action_repeat > 1 else env)
    self.length, self.action_repeat = length, action_repeat

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode (see `Env.reset`) with all counters at zero."""
    state = self.env.reset(key, model)
    zero = jnp.zeros_like(state.reward)
    sums = {"sum_reward": zero, "length": zero, **{k: zero for k in state.metrics}}
    own = {"steps": zero, "truncation": zero, "episode_done": zero, "episode_metrics": sums}
    return state.replace(info={**state.info, **own})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action (see `Env.step`) and update the counters and sums."""
    info = state.info
    after = self.env.step(state, action, model)
    steps = info["steps"] + self.action_repeat
    truncation = jnp.where((steps >= self.length) & (after.done == 0), 1, 0).astype(after.done.dtype)
    done = jnp.maximum(after.done, truncation)
    now = {"sum_reward": after.reward, "length": jnp.full_like(steps, self.action_repeat), **after.metrics}
    old = info["episode_metrics"]
    sums = {k: jnp.where(info["episode_done"] > 0, 0, old[k]) + now[k] for k in old}
    own = {"steps": steps, "truncation": truncation, "episode_done": done, "episode_metrics": sums}
    return after.replace(done=done, info={**after.info, **own})


class Randomise(Wrapper):
  """Gives each episode its own model: `randomise(model, key)` returns the changed model, for instance from `with_params`.

  The changed arrays are found by comparing the two models, so that no batch axes have to be declared. Only the changed arrays
  are stored, in `info['model']`.
  """

  def __init__(self, env: Any, randomise: Callable[[mjx.Model, jax.Array], mjx.Model]):
    super().__init__(env)
    self.randomise = randomise

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Draw a model and start a new episode with this model; see `Env.reset`."""
    base = self.env.model if model is None else model
    for_model, for_state = jax.random.split(key)
    changed = self.randomise(base, for_model)
    found = changes(base, changed)
    state = self.env.reset(for_state, changed)
    return state.replace(info={**state.info, "model": found})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action with the model of the episode; see `Env.step`."""
    base = self.env.model if model is None else model
    return self.env.step(state, action, with_changes(base, state.info["model"]))


def changes(base: mjx.Model, changed: mjx.Model) -> dict[str, jax.Array]:
  """Return the arrays of `changed` that are not the same Python objects as in `base`, by their path in the Model."""
  old, new = (jax.tree_util.tree_leaves_with_path(x) for x in (base, changed))
  if jax.tree.structure(base) != jax.tree.structure(changed):
    raise ValueError(
      "randomise must return the given model, with other values of arrays, but the structure of the returned model differs."
    )
  return {jax.tree_util.keystr(p): jnp.asarray(b) for (p, a), (_, b) in zip(old, new, strict=True) if a is not b}


def with_changes(base: mjx.Model, found: dict[str, jax.Array]) -> mjx.Model:
  """Return the model with the arrays from `changes` inserted."""
  return jax.tree_util.tree_map_with_path(lambda path, x: found.get(jax.tree_util.keystr(path), x), base)


class Worlds(Wrapper):
  """A batch of worlds: keys, states and actions have a leading world axis."""

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode in each world (see `Env.reset`). `key` has one key per world; `model`, if given, is shared."""
    if jnp.ndim(key) < (1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2):
      raise ValueError("reset of a batch takes one key per world: give jax.random.split(key, worlds).")
    return jax.vmap(lambda k: self.env.reset(k, model))(key)

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action per world; see `Env.step`."""
    return jax.vmap(lambda s, a: self.env.step(s, a, model))(state, action)


class AutoReset(Wrapper):
  """Starts a new episode in each world that is done. This wrapper must enclose `Worlds`.

  The initial state is drawn from a bank that has as many initial states as there are worlds. So a world starts from varying
  states, and a step computes no reset. The bank stores each initial state with its observation, its `info` and its randomised
  model. A learner overfits to a bank that stays the same for long. Recompute the whole bank from time to time with `refill`,
  as the learners do, or recompute `refresh` entries in each step.

  After a step, `info['final_obs']` is the observation at the end of the step, before a reset: bootstrap from this observation
  where `info['truncation']` is 1. `done`, `reward` and `metrics` are those of the step.
  """

  def __init__(self, env: Any, refresh: int = 0, preserve: tuple[str, ...] = PRESERVE):
    super().__init__(env)
    self.refresh, self.preserve = refresh, preserve

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """Start a new episode in each world and fill the bank. `key` has one key per world; see `Env.reset`."""
    state = self.env.reset(key, model)
    own = {
      "final_obs": state.obs, "reset_bank": self._entry(state), "reset_key": jax.vmap(lambda k: jax.random.fold_in(k, 1))(key),
    }  # fmt: skip
    return state.replace(info={**state.info, **own})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """Apply one action per world (see `Env.step`) and reset the worlds that are done."""
    info = dict(state.info)
    bank, keys = info.pop("reset_bank"), info.pop("reset_key")
    info.pop("final_obs")
    after = self.env.step(state.replace(info=info), action, model)
    worlds = after.done.shape[0]
    keys, draws = (jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)[i] for i in (0, 1))
    if self.refresh:
      fresh = self._entry(self.env.reset(jax.vmap(lambda k: jax.random.fold_in(k, 2))(draws[: self.refresh]), model))
      entries = jax.random.choice(jax.random.fold_in(draws[0], 3), worlds, (min(self.refresh, worlds),), replace=False)
      bank = jax.tree.map(lambda b, f: b.at[entries].set(f), bank, fresh)
    drawn = jax.vmap(lambda k: jax.random.randint(k, (), 0, worlds))(draws)
    first = jax.tree.map(lambda b: b[drawn], bank)
    new = mjx.where(after.done > 0, first, self._entry(after))
    most = after.data.status.most  # of all episodes, as a warning at the end tells of contacts that did not fit
    new["data"] = new["data"].replace(status=new["data"].status.replace(most=most))
    kept = {k: v for k, v in after.info.items() if k not in new["info"]}
    own = {"final_obs": after.obs, "reset_bank": bank, "reset_key": keys}
    return after.replace(data=new["data"], obs=new["obs"], info={**kept, **new["info"], **own})

  def refill(self, state: State, fresh: State) -> State:
    """Return the state with the bank of `fresh`, a state that `reset` returned for the same number of worlds."""
    return state.replace(info={**state.info, "reset_bank": fresh.info["reset_bank"]})

  def _entry(self, state: State) -> dict[str, Any]:
    """Return the parts of a state that a reset replaces."""
    return {"data": state.data, "obs": state.obs, "info": {k: v for k, v in state.info.items() if k not in self.preserve}}


def wrap(
  env: Env,
  *,
  episode_length: int = 1000,
  action_repeat: int = 1,
  randomise: Callable[[mjx.Model, jax.Array], mjx.Model] | None = None,
  auto_reset: bool = True,
  refresh: int = 0,
  quarantine: bool = True,
  preserve: tuple[str, ...] = PRESERVE,
) -> Any:
  """Wrap an environment for a learner: a batch of worlds, with episodes that end and start again.

  Args:
    env: the task.
    episode_length: number of steps, of the task's `dt`, after which an episode is truncated.
    action_repeat: number of steps for which an action is applied.
    randomise: function of the Model and a key that returns the Model of an episode.
    auto_reset: whether to start a new episode where an episode is done.
    refresh: number of entries of the bank of initial states that are recomputed in each step.
    quarantine: whether to end the episodes of worlds that diverge.
    preserve: keys of `info` that are kept from one episode to the next.

  Returns:
    an object with `reset(keys)` and `step(state, actions)`. The methods are not compiled: apply `mjx_lite.jit` to the loop
    that calls the methods.
  """
  if isinstance(env, Worlds | AutoReset):
    raise ValueError("the environment is wrapped already: give the environment that `load` returned.")
  out: Any = Quarantine(env) if quarantine else env
  out = Episode(out, episode_length, action_repeat)
  out = Randomise(out, randomise) if randomise else out
  out = Worlds(out)
  return AutoReset(out, refresh, preserve) if auto_reset else out
