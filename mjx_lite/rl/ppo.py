"""Proximal policy optimization (PPO) in one file: networks, advantages, loss, and the training iteration.

`train(env)` returns a policy and the learning curve. One iteration, from actions to the update of the weights, is one compiled
program. This module needs flax and optax: `pip install 'mjx_lite[rl]'`.

Reference: Schulman and others, Proximal policy optimization algorithms, arXiv 1707.06347; generalised advantages,
arXiv 1506.02438.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from mjx_lite.envs.base import Env
from mjx_lite.envs.state import State
from mjx_lite.rl import loop


@dataclasses.dataclass(frozen=True)
class Config:
  """Hyperparameters. The defaults suit small tasks; locomotion tasks need more worlds and more steps."""

  worlds: int = 64
  unroll: int = 32  # steps of each world in an iteration
  epochs: int = 4  # passes over the data of an iteration
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

  samples: jax.Array  # number of observations
  mean: jax.Array
  var: jax.Array

  def update(self, x: jax.Array) -> "Normal":
    """Return the statistics updated with the rows of x (..., n)."""
    x = x.reshape(-1, x.shape[-1])
    total = self.samples + len(x)
    delta = jnp.mean(x, axis=0) - self.mean
    var = self.var * self.samples + jnp.var(x, axis=0) * len(x) + delta**2 * self.samples * len(x) / total
    return Normal(total, self.mean + delta * len(x) / total, var / total)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalize x: subtract the mean, divide by the standard deviation, clip to [-10, 10]."""
    return jnp.clip((x - self.mean) / jnp.sqrt(self.var + 1e-6), -10, 10)


class Actor(nn.Module):
  """Policy network: mean (n,) of the action, and log standard deviation (n,), which does not depend on the observation."""

  hidden: Sequence[int]
  n: int

  @nn.compact
  def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean and log standard deviation of the action for normalized observations."""
    for width in self.hidden:
      x = nn.tanh(nn.Dense(width)(x))
    mean = nn.Dense(self.n, kernel_init=nn.initializers.orthogonal(0.01))(x)
    return mean, self.param("log_std", nn.initializers.constant(-0.5), (self.n,), x.dtype)


class Critic(nn.Module):
  """Value network."""

  hidden: Sequence[int]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Return the values of normalized observations."""
    for width in self.hidden:
      x = nn.tanh(nn.Dense(width)(x))
    return nn.Dense(1)(x)[..., 0]


class Learner(NamedTuple):
  """Training state without the environment: weights, state of the optimizer, observation statistics. A pytree."""

  params: Any
  opt_state: Any
  normal: Normal


class Unroll(NamedTuple):
  """Transitions of all worlds in an iteration; arrays (unroll, worlds, ...)."""

  obs: jax.Array
  action: jax.Array
  log_prob: jax.Array
  reward: jax.Array
  next_obs: jax.Array  # observation at the end of the step, before a reset
  done: jax.Array
  truncation: jax.Array


class Result(NamedTuple):
  """Result of a training."""

  policy: Callable[[jax.Array], jax.Array]  # from an observation to the mean action in [-1, 1]
  learner: Learner
  curve: list[dict[str, float]]  # per iteration: steps, return and length of the episodes that ended (NaN: none), ...

  def plot(self, axes: Any = None, *, label: str | None = None, path: str | os.PathLike | None = None) -> Any:
    """Plot the learning curve (return over steps) of the iterations in which episodes ended; return matplotlib's axes.

    Args:
      axes: matplotlib axes; the axes of a new figure if None.
      label: label of the curve.
      path: image file to write.
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
  """Compute the log density of a normal distribution, summed over the components of the action."""
  z = (action - mean) * jnp.exp(-log_std)
  return jnp.sum(-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


def advantages(config: Any, value: jax.Array, next_value: jax.Array, data: Unroll) -> jax.Array:
  """Compute generalized advantages (unroll, worlds).

  The sum stops at the end of an episode. At a truncation, the value of the reached state replaces the future rewards; at a
  termination, the future rewards are zero. Of `config`, `discount` and `gae_lambda` are used.
  """
  follows = 1 - data.done * (1 - data.truncation)
  delta = data.reward + config.discount * follows * next_value - value

  def one(later, x):
    delta, done = x
    now = delta + config.discount * config.gae_lambda * (1 - done) * later
    return now, now

  return jax.lax.scan(one, jnp.zeros_like(delta[0]), (delta, data.done), reverse=True)[1]


def outcome(after: State) -> tuple[dict[str, jax.Array], jax.Array]:
  """Return the inputs of `report` after a step: sums over the episodes, and the worlds that diverged."""
  ended = {k: after.info["episode_metrics"][k] for k in ("sum_reward", "length")}
  return ended, after.metrics.get("diverged", jnp.zeros_like(after.done))


def minibatches(key: jax.Array, count: int, number: int, epochs: int) -> jax.Array:
  """Draw row indices of the minibatches (epochs * number, size): a random permutation of `count` rows for each epoch."""
  order = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, epochs))
  size = count // number
  return order[:, : size * number].reshape(-1, size)


def report(data: Unroll, ended: dict[str, jax.Array], diverged: jax.Array) -> dict[str, jax.Array]:
  """Compute an entry of the learning curve: means over the episodes that ended, NaN if no episode ended."""
  episodes = jnp.sum(data.done)

  def mean(x):
    total = jnp.sum(jnp.where(data.done > 0, x, 0))
    return jnp.where(episodes > 0, total / jnp.maximum(episodes, 1), jnp.nan)

  return {
    "return": mean(ended["sum_reward"]), "length": mean(ended["length"]), "episodes": episodes,
    "reward": jnp.mean(data.reward), "diverged": jnp.sum(diverged),
  }  # fmt: skip


class _Ppo:
  """PPO for a task with `action_size` controls, in the form that `loop.train` takes."""

  def __init__(self, config: Config, action_size: int):
    self.config = config
    # Any: flax annotates `apply` as possibly returning a tuple
    self.actor: Any = Actor(config.hidden, action_size)
    self.critic: Any = Critic(config.hidden)
    self.optimiser = optax.chain(optax.clip_by_global_norm(config.max_gradient), optax.adam(config.learning_rate))

  def begin(self, obs, key):
    """Return a new learner."""
    params, normal = fresh(self.actor, self.critic, obs, key)
    return Learner(params, self.optimiser.init(params), normal)

  def iterate(self, worlds, state, learner, key):
    """Unroll the policy, then update the networks with `epochs` passes over the data."""
    config, (params, opt_state, normal) = self.config, learner
    for_actions, for_order = jax.random.split(key)
    carry = (state, params, normal)
    act = functools.partial(self._act, worlds)
    (state, *_), (data, ended, diverged) = jax.lax.scan(act, carry, jax.random.split(for_actions, config.unroll))
    value = self.critic.apply(params["critic"], normal(data.obs))
    advantage = advantages(config, value, self.critic.apply(params["critic"], normal(data.next_obs)), data)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (data, advantage, advantage + value))

    def update(carry, rows):
      params, opt_state = carry
      gradient = jax.grad(self._loss)(params, normal, jax.tree.map(lambda x: x[rows], flat))
      step, opt_state = self.optimiser.update(gradient, opt_state, params)
      return (optax.apply_updates(params, step), opt_state), None

    rows = minibatches(for_order, config.worlds * config.unroll, config.minibatches, config.epochs)
    (params, opt_state), _ = jax.lax.scan(update, (params, opt_state), rows)
    return state, Learner(params, opt_state, normal.update(data.obs)), report(data, ended, diverged)

  def _act(self, worlds, carry, key):
    """Take one step of all worlds under the policy."""
    state, params, normal = carry
    mean, log_std = self.actor.apply(params["actor"], normal(state.obs))
    action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)
    after = worlds.step(state, action)
    data = Unroll(
      obs=state.obs,
      action=action,
      log_prob=log_prob(mean, log_std, action),
      reward=after.reward,
      next_obs=after.info["final_obs"],
      done=after.done,
      truncation=after.info["truncation"],
    )
    return (after, params, normal), (data, *outcome(after))

  def _loss(self, params, normal, batch):
    """Compute the clipped loss of the policy, plus the loss of the values, minus the entropy."""
    config, (data, advantage, target) = self.config, batch
    obs = normal(data.obs)
    mean, log_std = self.actor.apply(params["actor"], obs)
    ratio = jnp.exp(log_prob(mean, log_std, data.action) - data.log_prob)
    advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantage)
    error = self.critic.apply(params["critic"], obs) - target
    return -jnp.mean(gain) + config.value_weight * jnp.mean(error**2) - config.entropy * jnp.sum(log_std)


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
  """Train a policy for a task.

  Args:
    env: the task; its observations must be arrays.
    iterations: number of iterations; each iteration takes `unroll` steps in `worlds` worlds.
    config: hyperparameters.
    seed: seed of all random numbers.
    learner: training state to continue from; a new training state by default.
    checkpoint: folder to which orbax writes the whole training state. A second call with the same folder resumes the training,
      up to `iterations` in total, with the same result as without the interruption.
    every: number of iterations between checkpoints.
    progress: called after each iteration with the iteration's number, its entry of the curve, and the learner.
    **wrap_options: arguments of `mjx_lite.envs.wrap` (randomise, action_repeat, refresh, ...).
  """
  config = config or Config()
  learner, curve = loop.train(
    _Ppo(config, env.action_size), env, config, config.unroll, learner, seed=seed, wrap_options=wrap_options,
    iterations=iterations, checkpoint=checkpoint, every=every, progress=progress,
  )  # fmt: skip
  return Result(make_policy(env, learner, config), learner, curve)


def make_policy(env: Env, learner: Learner, config: Config | None = None) -> Callable[[jax.Array], jax.Array]:
  """Return the deterministic policy of a learner: the function from an observation to the mean action.

  Args:
    env: the task.
    learner: the learner that `train` returns, or that `progress` receives.
    config: the hyperparameters of the training.
  """
  actor: Any = Actor((config or Config()).hidden, env.action_size)
  return lambda obs: jnp.clip(actor.apply(learner.params["actor"], learner.normal(obs))[0], -1, 1)


def fresh(actor: Any, critic: Any, obs: jax.Array, key: jax.Array) -> tuple[dict[str, Any], Normal]:
  """Initialize the weights of both networks at random, and the statistics with the first observations."""
  if not isinstance(obs, jax.Array):
    raise TypeError("the observations are not arrays: the learners of mjx_lite.rl do not take dicts of arrays.")
  first, second = jax.random.split(key)
  params = {"actor": actor.init(first, obs[0]), "critic": critic.init(second, obs[0])}
  n = obs.shape[-1]
  empty = Normal(jnp.full((), 1e-3, obs.dtype), jnp.zeros(n, obs.dtype), jnp.ones(n, obs.dtype))
  return params, empty.update(obs)
