"""The first-order learner: its gradient is that of what the worlds gain, and it learns where there is time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import envs
from mjx_lite.rl import settings, shac
from mjx_lite.rl.ppo import Actor, Critic, Normal


class Short(envs.Pendulum):
  """A pendulum that fails above some speed."""

  def failed(self, m, d):
    return jnp.abs(d.qvel[0]) > 1.5


def test_gradient_goes_through_steps_ends_and_starts_of_episodes():
  env, worlds, horizon = Short(), 6, 5
  config = shac.Config(worlds=worlds, horizon=horizon, max_world_gradient=np.inf)
  wrapped = envs.wrap(env, episode_length=3)
  actor, critic = Actor((4,), 1), Critic((4,))
  keys = jax.random.split(jax.random.key(0), worlds)
  noise = jax.random.normal(jax.random.key(1), (horizon, worlds, 1))
  normal = Normal(jnp.ones(()), jnp.array([0.1, -0.1, 0.2]), jnp.array([0.5, 0.4, 2.0]))
  params = {"actor": actor.init(jax.random.key(2), jnp.zeros(3)), "slow": critic.init(jax.random.key(3), jnp.zeros(3))}
  leaves, form = jax.tree.flatten(params["actor"])
  rng = np.random.default_rng(0)
  direction = jax.tree.unflatten(form, [jnp.asarray(rng.normal(size=x.shape)) for x in leaves])

  @mjx.jit
  def both(h):
    state = wrapped.reset(keys)
    gained = functools.partial(shac.gain, config, wrapped, actor, critic)

    def objective(p):
      return gained({**params, "actor": p}, normal, state, noise)

    (value, (last, data, *_)), slope = jax.value_and_grad(objective, has_aux=True)(params["actor"])
    slope_along = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(direction), strict=True))
    away = objective(jax.tree.map(lambda a, b: a + h * b, params["actor"], direction))[0]
    return value, slope_along, away, data, last.obs

  value, slope_along, up, data, last = both(1e-6)
  down = both(-1e-6)[2]
  assert data.truncation.sum() and data.done.sum() > data.truncation.sum()  # both ways to end are in it
  np.testing.assert_allclose(slope_along, (up - down) / 2e-6, rtol=1e-6)
  # the value by hand
  slow = lambda obs: critic.apply(params["slow"], normal(obs))  # noqa: E731
  total = np.zeros(worlds)
  for i in range(worlds):
    weight = 1.0
    for t in range(horizon):
      follows = config.discount * float(data.truncation[t, i]) * float(slow(data.next_obs[t, i]))
      total[i] += weight * (float(data.reward[t, i]) + follows)
      weight = 1.0 if data.done[t, i] else weight * config.discount
    total[i] += weight * float(slow(last[i]))  # where an episode has just ended, of the next one's start
  np.testing.assert_allclose(value, total.mean() / horizon, rtol=1e-9)


def test_taming_keeps_values_and_bounds_each_world():
  x = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(3), "c": jnp.arange(3)}
  weight = jnp.array([[0.1, 0.2], [30.0, 40.0], [1.0, jnp.nan]])

  def f(a):
    out = shac.tame({**x, "a": a}, 5.0)
    assert out["c"].dtype == x["c"].dtype
    return jnp.sum(weight * out["a"]), out

  (_, out), slope = jax.value_and_grad(f, has_aux=True)(x["a"])
  jax.tree.map(np.testing.assert_array_equal, out, x)
  np.testing.assert_allclose(slope, [[0.1, 0.2], [3.0, 4.0], [0.0, 0.0]])


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_learns_to_swing_a_pendulum_up():
  env = envs.load("pendulum", dtype=np.float32)
  out = shac.train(env, **settings.SHAC["pendulum"])
  ended = [x["return"] for x in out.curve if x["episodes"]]
  assert np.mean(ended[:5]) < 30 and np.mean(ended[-5:]) > 70
