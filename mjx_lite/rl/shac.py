"""Short-horizon actor-critic (SHAC) in one file: policy optimization with the simulator's gradient.

The actor ascends the derivative of the rewards in a short horizon plus the critic's value at the end of the horizon. The
derivative goes through every step of the simulator, also through contacts. The reward must lead smoothly to the goal. If only
contact is rewarded, or impacts are stiff, the gradient has little information (`notebooks/gradients.ipynb`): prefer PPO.

Reference: Xu and others, Accelerated policy learning with parallel differentiable simulation, arXiv 2204.07137.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mjx_lite.envs.base import Env
from mjx_lite.rl import loop
from mjx_lite.rl.ppo import Actor, Critic, Learner, Normal, Result, Unroll, advantages, fresh, minibatches, outcome, report


@dataclasses.dataclass(frozen=True)
class Config:
  """Hyperparameters. The defaults suit small tasks."""

  worlds: int = 16
  horizon: int = 16  # steps of each world in an iteration; the gradient goes through all of these steps
  critic_epochs: int = 8  # passes of the critic over an iteration's data
  minibatches: int = 4
  hidden: tuple[int, ...] = (64, 64)
  actor_rate: float = 1e-2
  critic_rate: float = 5e-3
  discount: float = 0.98
  gae_lambda: float = 0.95
  target: float = 0.2  # weight of the critic in the moving average per iteration; the average is the target critic 'slow'
  max_gradient: float = 1.0
  max_world_gradient: float = 100.0  # clip norm per world, of the gradient with respect to the state after each step
  episode_length: int = 500


def tame(tree: Any, limit: float) -> Any:
  """Return the arrays (worlds, ...) unchanged, and clip the norm of their gradient in each world to the limit.

  Gradient: clipped per world; zero for a world whose gradient is not finite.
  """

  @jax.custom_vjp
  def same(arrays):
    return arrays

  def back(_, slopes):
    square = sum(jnp.sum(g.reshape(len(g), -1) ** 2, axis=1) for g in slopes)
    good = jnp.isfinite(square)
    scale = jnp.minimum(1, limit / jnp.sqrt(jnp.where(good, jnp.maximum(square, 1e-30), 1)))

    def column(x, g):
      return x.reshape(-1, *(1,) * (g.ndim - 1))

    return ([jnp.where(column(good, g), g * column(scale, g).astype(g.dtype), 0) for g in slopes],)

  same.defvjp(lambda arrays: (arrays, None), back)
  leaves, form = jax.tree.flatten(tree)
  at = [i for i, x in enumerate(leaves) if jnp.issubdtype(x.dtype, jnp.floating) and x.size]
  for i, x in zip(at, same([leaves[i] for i in at]), strict=True):
    leaves[i] = x
  return jax.tree.unflatten(form, leaves)


def gain(
  config: Config, worlds: Any, actor: Any, critic: Any, params: Any, normal: Normal, state: Any, noise: jax.Array
) -> tuple[jax.Array, Any]:
  """Compute the actor's mean discounted return per step, with the target critic's value at the end of the horizon.

  Args:
    config: hyperparameters.
    worlds: the wrapped environment.
    actor: policy network.
    critic: value network.
    params: weights of the networks: 'actor', 'slow' (the target critic).
    normal: statistics of the observations.
    state: state of the worlds at the start.
    noise: standard normal noise of the actions (horizon, worlds, nu).

  Returns:
    the gain (), and a tuple for the critic: the last state, the `Unroll`, sums over the ended episodes, and the worlds that
    diverged.
  """
  limit = config.max_world_gradient / (config.worlds * config.horizon)  # a world contributes this share of the mean

  def value(obs):
    return critic.apply(params["slow"], normal(obs))

  def one(carry, noise):
    state, weight, total = carry
    mean, log_std = actor.apply(params["actor"], normal(state.obs))
    action = jnp.tanh(mean + jnp.exp(log_std) * noise)  # smooth at the bounds, where clipping would have no gradient
    after = worlds.step(state, action)
    after = after.replace(data=tame(after.data, limit))
    truncation, reached = after.info["truncation"], after.info["final_obs"]
    total += weight * (after.reward + config.discount * truncation * value(reached))
    weight = jnp.where(after.done > 0, 1, config.discount * weight)  # discounting restarts with the next episode
    data = Unroll(
      obs=state.obs,
      action=action,
      log_prob=jnp.zeros_like(after.reward),
      reward=after.reward,
      next_obs=reached,
      done=after.done,
      truncation=truncation,
    )
    return (after, weight, total), (data, *outcome(after))

  one_each = jnp.ones_like(state.reward)
  (state, weight, total), record = jax.lax.scan(one, (state, one_each, 0 * one_each), noise)
  total += weight * value(state.obs)
  return jnp.mean(total) / config.horizon, (state, *record)


class _Shac:
  """SHAC for a task with `action_size` controls, in the form that `loop.train` takes."""

  def __init__(self, config: Config, action_size: int):
    self.config, self.action_size = config, action_size
    self.actor: Any = Actor(config.hidden, action_size)
    self.critic: Any = Critic(config.hidden)
    rates = {"actor": optax.adam(config.actor_rate, b1=0.7, b2=0.95), "critic": optax.adam(config.critic_rate)}
    self.optimisers = {k: optax.chain(optax.clip_by_global_norm(config.max_gradient), x) for k, x in rates.items()}

  def begin(self, obs, key):
    """Return a new learner."""
    params, normal = fresh(self.actor, self.critic, obs, key)
    opt_state = {k: self.optimisers[k].init(x) for k, x in params.items()}
    return Learner({**params, "slow": params["critic"]}, opt_state, normal)

  def iterate(self, worlds, state, learner, key):
    """Update the actor, then fit the critic to the data of the actor's unroll."""
    config, (params, opt_state, normal) = self.config, learner
    for_noise, for_order = jax.random.split(key)
    noise = jax.random.normal(for_noise, (config.horizon, config.worlds, self.action_size), state.reward.dtype)

    def loss(params):
      gained, record = gain(config, worlds, self.actor, self.critic, params, normal, state, noise)
      return -gained, record

    params, opt_state, (state, data, ended, diverged) = self._update("actor", loss, params, opt_state)
    value, following = (self.critic.apply(params["slow"], normal(x)) for x in (data.obs, data.next_obs))
    target = value + advantages(config, value, following, data)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (normal(data.obs), target))

    def regress(carry, rows):
      obs, target = jax.tree.map(lambda x: x[rows], flat)

      def error(params):
        return jnp.mean((self.critic.apply(params["critic"], obs) - target) ** 2), None

      params, opt_state, _ = self._update("critic", error, *carry)
      return (params, opt_state), None

    rows = minibatches(for_order, config.worlds * config.horizon, config.minibatches, config.critic_epochs)
    (params, opt_state), _ = jax.lax.scan(regress, (params, opt_state), rows)
    params["slow"] = optax.incremental_update(params["critic"], params["slow"], config.target)
    return state, Learner(params, opt_state, normal.update(data.obs)), report(data, ended, diverged)

  def _update(self, name, loss, params, opt_state):
    """Take one optimizer step on one network."""
    out, gradient = jax.value_and_grad(lambda p: loss({**params, name: p}), has_aux=True)(params[name])
    step, new = self.optimisers[name].update(gradient, opt_state[name], params[name])
    return {**params, name: optax.apply_updates(params[name], step)}, {**opt_state, name: new}, out[1]


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
  """Train a policy for a task whose reward is smooth in the state. Arguments as of `ppo.train`."""
  config = config or Config()
  learner, curve = loop.train(
    _Shac(config, env.action_size), env, config, config.horizon, learner, seed=seed, wrap_options=wrap_options,
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
  return lambda obs: jnp.tanh(actor.apply(learner.params["actor"], learner.normal(obs))[0])
