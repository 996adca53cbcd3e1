"""Proximal policy optimisation, in one file: networks, advantages, loss, and the loop that calls them.

`train(env)` returns a policy and the learning curve. One iteration, from actions to the update of the weights, is one compiled
program. Needs flax and optax: `pip install 'mjx_lite[rl]'`.

Reference: Schulman and others, Proximal policy optimization algorithms, arXiv 1707.06347; generalised advantages,
arXiv 1506.02438.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import mjx_lite as mjx
from mjx_lite.envs.base import Env
from mjx_lite.envs.state import State
from mjx_lite.envs.wrappers import wrap
from mjx_lite.rl import loop


@dataclasses.dataclass(frozen=True)
class Config:
  """Settings, good for small tasks; tasks with legs want more worlds and more steps."""

  worlds: int = 64
  unroll: int = 32  # steps of each world in an iteration
  epochs: int = 4  # times that the data of an iteration are used
  minibatches: int = 4
  hidden: tuple[int, ...] = (64, 64)
  learning_rate: float = 1e-3
  discount: float = 0.97
  gae_lambda: float = 0.95
  clip: float = 0.2
  entropy: float = 1e-3
  value_weight: float = 0.5
  max_gradient: float = 0.5
  episode_length: int = 500


class Normal(NamedTuple):
  """Running mean and variance of observations."""

  count: jax.Array
  mean: jax.Array
  var: jax.Array

  def update(self, x: jax.Array) -> "Normal":
    """With the rows of x (..., n) counted in."""
    x = x.reshape(-1, x.shape[-1])
    total = self.count + len(x)
    delta = jnp.mean(x, axis=0) - self.mean
    var = self.var * self.count + jnp.var(x, axis=0) * len(x) + delta**2 * self.count * len(x) / total
    return Normal(total, self.mean + delta * len(x) / total, var / total)

  def __call__(self, x: jax.Array) -> jax.Array:
    """x in units of the deviation, at most 10."""
    return jnp.clip((x - self.mean) / jnp.sqrt(self.var + 1e-6), -10, 10)


class Actor(nn.Module):
  """Mean (n,) of the action, and logarithm of its deviation, which does not depend on the observation."""

  hidden: Sequence[int]
  n: int

  @nn.compact
  def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of normalised observations."""
    for width in self.hidden:
      x = nn.tanh(nn.Dense(width)(x))
    mean = nn.Dense(self.n, kernel_init=nn.initializers.orthogonal(0.01))(x)
    return mean, self.param("log_std", nn.initializers.constant(-0.5), (self.n,), x.dtype)


class Critic(nn.Module):
  """The value of a state."""

  hidden: Sequence[int]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Of normalised observations."""
    for width in self.hidden:
      x = nn.tanh(nn.Dense(width)(x))
    return nn.Dense(1)(x)[..., 0]


class Learner(NamedTuple):
  """All that changes while learning, but for the environment: a pytree that can be stored."""

  params: Any
  opt_state: Any
  normal: Normal


class Unroll(NamedTuple):
  """What the worlds did in an iteration; arrays (unroll, worlds, ...)."""

  obs: jax.Array
  action: jax.Array
  log_prob: jax.Array
  reward: jax.Array
  next_obs: jax.Array  # where the step led to: not the start of the next episode
  done: jax.Array
  truncation: jax.Array


class Result(NamedTuple):
  """What was learned."""

  policy: Callable[[jax.Array], jax.Array]  # from an observation to the mean action in [-1, 1]
  learner: Learner
  curve: list[dict[str, float]]  # by iteration: steps, return and length of the episodes that ended (NaN: none), ...

  def plot(self, axes: Any = None, *, label: str | None = None, path: str | os.PathLike | None = None) -> Any:
    """Draw the learning curve, return over steps, where episodes ended; returns matplotlib's axes.

    Args:
      axes: where to draw; those of a new figure if None.
      label: of the curve.
      path: of a file to write.
    """
    if axes is None:
      axes = importlib.import_module("matplotlib.figure").Figure((5, 2.5), layout="constrained").add_subplot()
    ended = [x for x in self.curve if x["episodes"]]
    axes.plot([x["steps"] for x in ended], [x["return"] for x in ended], lw=1, label=label)
    axes.set_xlabel("steps")
    axes.set_ylabel("return")
    if path is not None:
      axes.figure.savefig(path)
    return axes


def log_prob(mean: jax.Array, log_std: jax.Array, action: jax.Array) -> jax.Array:
  """Logarithm of a normal density, summed over the components of the action."""
  z = (action - mean) * jnp.exp(-log_std)
  return jnp.sum(-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def advantages(config: Any, value: jax.Array, next_value: jax.Array, data: Unroll) -> jax.Array:
  """Generalised advantages (unroll, worlds).

  Where an episode ends the sum stops; where it was only cut short (`truncation`) what would have followed is not zero but
  the value of the state that was reached. Of the settings, `discount` and `gae_lambda` are used.
  """
  follows = 1 - data.done * (1 - data.truncation)
  delta = data.reward + config.discount * follows * next_value - value

  def one(later, x):
    delta, done = x
    now = delta + config.discount * config.gae_lambda * (1 - done) * later
    return now, now

  return jax.lax.scan(one, jnp.zeros_like(delta[0]), (delta, data.done), reverse=True)[1]


def outcome(after: State) -> tuple[dict[str, jax.Array], jax.Array]:
  """What `report` needs of the worlds after a step: sums over their episodes, and which diverged."""
  ended = {k: after.info["episode_metrics"][k] for k in ("sum_reward", "length")}
  return ended, after.metrics.get("diverged", jnp.zeros_like(after.done))


def minibatches(key: jax.Array, count: int, number: int, epochs: int) -> jax.Array:
  """Numbers of the rows of each minibatch (epochs * number, size): every epoch goes through `count` rows in another order."""
  order = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, epochs))
  size = count // number
  return order[:, : size * number].reshape(-1, size)


def report(data: Unroll, ended: dict[str, jax.Array], diverged: jax.Array) -> dict[str, jax.Array]:
  """An entry of the learning curve: means over the episodes that ended, NaN where none did."""
  episodes = jnp.sum(data.done)

  def mean(x):
    total = jnp.sum(jnp.where(data.done > 0, x, 0))
    return jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)

  return {
    "return": mean(ended["sum_reward"]), "length": mean(ended["length"]), "episodes": episodes,
    "reward": jnp.mean(data.reward), "diverged": jnp.sum(diverged),
  }  # fmt: skip


def train(
  env: Env,
  *,
  iterations: int = 100,
  config: Config | None = None,
  seed: int = 0,
  learner: Learner | None = None,
  checkpoint: str | os.PathLike | None = None,
  every: int = 10,
  progress: Callable[[int, dict[str, float], Learner], None] | None = None,
  **wrap_options: Any,
) -> Result:
  """Learn a task.

  Args:
    env: the task, with observations that are arrays.
    iterations: each takes `unroll` steps in `worlds` worlds.
    config: settings.
    seed: of everything that is random.
    learner: to go on from; a new one by default.
    checkpoint: folder for orbax to write the whole state of learning to. Called again with the same folder, learning goes on
      where it was, up to `iterations` in all, as if it had not been interrupted.
    every: iterations between checkpoints.
    progress: called after each iteration with its number, its entry of the curve, and the learner.
    **wrap_options: arguments of `mjx_lite.envs.wrap` (randomise, action_repeat, refresh, ...).
  """
  config = config or Config()
  worlds = wrap(env, episode_length=config.episode_length, **wrap_options)
  # Any: flax's `apply` says that it may return a tuple
  actor: Any = Actor(config.hidden, env.action_size)
  critic: Any = Critic(config.hidden)
  optimiser = optax.chain(optax.clip_by_global_norm(config.max_gradient), optax.adam(config.learning_rate))
  key, for_env, for_params = jax.random.split(jax.random.key(seed), 3)
  state, starts = loop.begin(worlds, for_env, config.worlds)
  now = learner
  if now is None:
    params, normal = fresh(actor, critic, state.obs, for_params)
    now = Learner(params, optimiser.init(params), normal)

  def act(carry, key):
    """One step of all worlds under the policy."""
    state, params, normal = carry
    mean, log_std = actor.apply(params["actor"], normal(state.obs))
    action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
    after = worlds.step(state, action)
    data = Unroll(
      state.obs, action, log_prob(mean, log_std, action), after.reward, after.info["final_obs"], after.done,
      after.info["truncation"],
    )  # fmt: skip
    return (after, params, normal), (data, *outcome(after))

  def loss(params, normal, batch):
    data, advantage, target = batch
    obs = normal(data.obs)
    mean, log_std = actor.apply(params["actor"], obs)
    ratio = jnp.exp(log_prob(mean, log_std, data.action) - data.log_prob)
    advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantage)
    error = critic.apply(params["critic"], obs) - target
    return -jnp.mean(gain) + config.value_weight * jnp.mean(error**2) - config.entropy * jnp.sum(log_std)

  def iterate(state, learner, key):
    """Unroll, then a few passes over what came of it."""
    params, opt_state, normal = learner
    for_actions, for_order = jax.random.split(key)
    carry = (state, params, normal)
    (state, *_), (data, ended, diverged) = jax.lax.scan(act, carry, jax.random.split(for_actions, config.unroll))
    value = critic.apply(params["critic"], normal(data.obs))
    advantage = advantages(config, value, critic.apply(params["critic"], normal(data.next_obs)), data)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (data, advantage, advantage + value))

    def update(carry, rows):
      params, opt_state = carry
      gradient = jax.grad(loss)(params, normal, jax.tree.map(lambda x: x[rows], flat))
      step, opt_state = optimiser.update(gradient, opt_state, params)
      return (optax.apply_updates(params, step), opt_state), None

    rows = minibatches(for_order, config.worlds * config.unroll, config.minibatches, config.epochs)
    (params, opt_state), _ = jax.lax.scan(update, (params, opt_state), rows)

    return state, Learner(params, opt_state, normal.update(data.obs)), report(data, ended, diverged)

  now, curve = loop.run(
    mjx.jit(iterate), state, now, key, iterations=iterations, steps=config.worlds * config.unroll, starts=starts,
    renew=-(-config.episode_length // config.unroll), checkpoint=checkpoint, every=every, progress=progress,
  )  # fmt: skip
  return Result(make_policy(env, now, config), now, curve)


def make_policy(env: Env, learner: Learner, config: Config | None = None) -> Callable[[jax.Array], jax.Array]:
  """The function from an observation to the mean action, of a learner.

  Args:
    env: the task.
    learner: of `train`, or of its `progress`.
    config: the settings it was trained with.
  """
  actor: Any = Actor((config or Config()).hidden, env.action_size)
  return lambda obs: jnp.clip(actor.apply(learner.params["actor"], learner.normal(obs))[0], -1, 1)


def fresh(actor: Any, critic: Any, obs: jax.Array, key: jax.Array) -> tuple[dict[str, Any], Normal]:
  """Weights at random of both networks, statistics of the first observations."""
  if not isinstance(obs, jax.Array):
    raise TypeError("this learner takes observations that are arrays, not dicts.")
  first, second = jax.random.split(key)
  params = {"actor": actor.init(first, obs[0]), "critic": critic.init(second, obs[0])}
  n = obs.shape[-1]
  empty = Normal(jnp.full((), 1e-3, obs.dtype), jnp.zeros(n, obs.dtype), jnp.ones(n, obs.dtype))
  return params, empty.update(obs)
