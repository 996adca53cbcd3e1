"""Around an environment: episodes, action repeat, randomised models, quarantine, worlds, resets. `wrap` puts them together.

Wrappers below `Worlds` see one world; `AutoReset` sees the batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.envs.base import Env
from mjx_lite.envs.state import State

# of info, what AutoReset leaves from the episode that has ended
PRESERVE = ("truncation", "episode_done", "episode_metrics")


class Wrapper:
  """Passes everything on to the environment within."""

  def __init__(self, env: Any):
    self.env = env

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`."""
    return self.env.reset(key, model)

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
    return self.env.step(state, action, model)

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__") or name == "env":
      raise AttributeError(name)
    return getattr(self.env, name)


class Repeat(Wrapper):
  """Each action several times; rewards are summed, and the world stands still once it is done."""

  def __init__(self, env: Any, times: int):
    super().__init__(env)
    self.times = times

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`, with the last state's metrics."""

    def again(state, _):
      after = self.env.step(state, action, model)
      after = after.replace(reward=state.reward + after.reward)
      return mjx.where(state.done > 0, state, after), None

    fresh = state.replace(reward=jnp.zeros_like(state.reward), done=jnp.zeros_like(state.done))
    return jax.lax.scan(again, fresh, length=self.times)[0]


class Quarantine(Wrapper):
  """A world that diverges is done, gets no reward, shows no value that is not finite, and is counted in the metrics.

  Diverged is a world that the engine had to reset or whose controls it had to refuse (`d.status`), and one whose observation
  or reward is not finite. `metrics['diverged']` is 1 for it, in this step.
  """

  _BAD = (mjx.Warning.BADQPOS, mjx.Warning.BADQVEL, mjx.Warning.BADQACC, mjx.Warning.BADCTRL, mjx.Warning.RESET)

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`."""
    state = self.env.reset(key, model)
    return state.replace(metrics={**state.metrics, "diverged": jnp.zeros_like(state.reward)})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
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
  """Ends an episode after some steps, and says in `info` whether that was why (`truncation`).

  `info` also has `steps`, `episode_done`, and `episode_metrics`: sum of the rewards, length, sums of the metrics of the
  episode so far, of the whole episode where `episode_done` is 1.
  """

  def __init__(self, env: Any, length: int, action_repeat: int = 1):
    if length < 1 or action_repeat < 1:
      raise ValueError(f"an episode has at least one step, an action too, not {length} and {action_repeat}.")
    super().__init__(Repeat(env, action_repeat) if action_repeat > 1 else env)
    self.length, self.action_repeat = length, action_repeat

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`."""
    state = self.env.reset(key, model)
    zero = jnp.zeros_like(state.reward)
    sums = {"sum_reward": zero, "length": zero, **{k: zero for k in state.metrics}}
    own = {"steps": zero, "truncation": zero, "episode_done": zero, "episode_metrics": sums}
    return state.replace(info={**state.info, **own})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
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
  """Each episode in a model of its own: `randomise(model, key)` returns the changed one, by `with_params` for instance.

  What it changed is found by comparing the two, so nothing has to be said of axes; only that is kept, in `info['model']`.
  """

  def __init__(self, env: Any, randomise: Callable[[mjx.Model, jax.Array], mjx.Model]):
    super().__init__(env)
    self.randomise = randomise

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`."""
    base = self.env.model if model is None else model
    for_model, for_state = jax.random.split(key)
    changed = self.randomise(base, for_model)
    found = changes(base, changed)
    state = self.env.reset(for_state, changed)
    return state.replace(info={**state.info, "model": found})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
    base = self.env.model if model is None else model
    return self.env.step(state, action, with_changes(base, state.info["model"]))


def changes(base: mjx.Model, changed: mjx.Model) -> dict[str, jax.Array]:
  """The arrays in which two models differ as objects, by their place in the Model."""
  old, new = (jax.tree_util.tree_leaves_with_path(x) for x in (base, changed))
  if jax.tree.structure(base) != jax.tree.structure(changed):
    raise ValueError("randomise has to return the model that it was given, with other values of its arrays.")
  return {jax.tree_util.keystr(p): jnp.asarray(b) for (p, a), (_, b) in zip(old, new, strict=True) if a is not b}


def with_changes(base: mjx.Model, found: dict[str, jax.Array]) -> mjx.Model:
  """The model with arrays from `changes`."""
  return jax.tree_util.tree_map_with_path(lambda path, x: found.get(jax.tree_util.keystr(path), x), base)


class Worlds(Wrapper):
  """Many worlds: a leading axis in the keys, the states, the actions."""

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`, for keys with a leading axis; a model, if given, is shared."""
    if jnp.ndim(key) < (1 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 2):
      raise ValueError("reset of many worlds takes a key for each: jax.random.split(key, worlds).")
    return jax.vmap(lambda k: self.env.reset(k, model))(key)

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
    return jax.vmap(lambda s, a: self.env.step(s, a, model))(state, action)


class AutoReset(Wrapper):
  """Starts a new episode in each world that is done; goes around `Worlds`.

  The new episode is drawn from a bank of as many first states as there are worlds, so that a world does not start as it
  did before and no reset is computed in a step. A first state comes with its observation, its `info` and its randomised
  model. What learns from a bank that stays for long learns its entries by heart, so make them anew: all of them from time to
  time by `refill`, as the learners do, or with `refresh` so many in each step.

  After a step, `info['final_obs']` is the observation that the step led to, whether the episode ended there or not: bootstrap
  from it where `info['truncation']` is 1. `done`, `reward` and `metrics` are those of the step.
  """

  def __init__(self, env: Any, refresh: int = 0, preserve: tuple[str, ...] = PRESERVE):
    super().__init__(env)
    self.refresh, self.preserve = refresh, preserve

  def reset(self, key: jax.Array, model: Any = None) -> State:
    """As of `Env.reset`, for keys with a leading axis."""
    state = self.env.reset(key, model)
    own = {
      "final_obs": state.obs, "reset_bank": self._entry(state), "reset_key": jax.vmap(lambda k: jax.random.fold_in(k, 1))(key),
    }  # fmt: skip
    return state.replace(info={**state.info, **own})

  def step(self, state: State, action: jax.Array, model: Any = None) -> State:
    """As of `Env.step`."""
    info = dict(state.info)
    bank, keys = info.pop("reset_bank"), info.pop("reset_key")
    info.pop("final_obs")
    after = self.env.step(state.replace(info=info), action, model)
    worlds = after.done.shape[0]
    keys, draws = (jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)[i] for i in (0, 1))
    if self.refresh:
      fresh = self._entry(self.env.reset(jax.vmap(lambda k: jax.random.fold_in(k, 2))(draws[: self.refresh]), model))
      place = jax.random.choice(jax.random.fold_in(draws[0], 3), worlds, (min(self.refresh, worlds),), replace=False)
      bank = jax.tree.map(lambda b, f: b.at[place].set(f), bank, fresh)
    drawn = jax.vmap(lambda k: jax.random.randint(k, (), 0, worlds))(draws)
    first = jax.tree.map(lambda b: b[drawn], bank)
    new = mjx.where(after.done > 0, first, self._entry(after))
    kept = {k: v for k, v in after.info.items() if k not in new["info"]}
    own = {"final_obs": after.obs, "reset_bank": bank, "reset_key": keys}
    return after.replace(data=new["data"], obs=new["obs"], info={**kept, **new["info"], **own})

  def refill(self, state: State, fresh: State) -> State:
    """The state with the bank of another one, which `reset` has just returned for as many keys."""
    return state.replace(info={**state.info, "reset_bank": fresh.info["reset_bank"]})

  def _entry(self, state: State) -> dict[str, Any]:
    """What a reset replaces."""
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
  """The environment as a learner takes it: many worlds, episodes that end and start again.

  Args:
    env: the task.
    episode_length: steps, of the task's `dt`, after which an episode is truncated.
    action_repeat: steps that an action is taken for.
    randomise: from the Model and a key to the Model of an episode.
    auto_reset: start again where an episode is done.
    refresh: entries of the bank of first states that are made anew in each step.
    quarantine: end the episodes of worlds that diverge.
    preserve: keys of `info` that go on from one episode to the next.

  Returns:
    an object with `reset(keys)` and `step(state, actions)`; not jitted: `mjx_lite.jit` the loop that calls them.
  """
  if isinstance(env, Worlds | AutoReset):
    raise ValueError("this environment is wrapped already: give the one that `load` returned.")
  out: Any = Quarantine(env) if quarantine else env
  out = Episode(out, episode_length, action_repeat)
  out = Randomise(out, randomise) if randomise else out
  out = Worlds(out)
  return AutoReset(out, refresh, preserve) if auto_reset else out
