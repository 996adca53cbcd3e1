"""The learner: its parts on numbers, a few iterations here, and a whole task where there is time."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import envs
from mjx_lite.rl import ppo, settings


def test_advantages_bootstrap_where_an_episode_was_cut_short():
  config = ppo.Config(discount=0.5, gae_lambda=1.0)
  column = lambda *x: jnp.array(x)[:, None]  # noqa: E731
  value, next_value = column(1.0, 2.0, 3.0), column(2.0, 8.0, 4.0)
  zero = jnp.zeros((3, 1))
  for truncated, expected in ((0.0, 1.0), (1.0, 1.0 + 0.5 * 8.0)):
    data = ppo.Unroll(
      obs=zero,
      action=zero,
      log_prob=zero,
      reward=column(1.0, 1.0, 1.0),
      next_obs=zero,
      done=column(0.0, 1.0, 0.0),
      truncation=column(0.0, truncated, 0.0),
    )
    second = expected - 2.0
    found = ppo.advantages(config, value, next_value, data)[:, 0]
    np.testing.assert_allclose(found, [1.0 + 0.5 * 2.0 - 1.0 + 0.5 * second, second, 1.0 + 0.5 * 4.0 - 3.0])


def test_statistics_of_observations():
  x = np.random.default_rng(0).normal(2.0, 3.0, (40, 3))
  normal = ppo.Normal(jnp.zeros(()) + 1e-9, jnp.zeros(3), jnp.ones(3))
  for part in np.split(x, [5, 30]):
    normal = normal.update(jnp.asarray(part))
  np.testing.assert_allclose(normal.mean, x.mean(0), rtol=1e-6)
  np.testing.assert_allclose(normal.var, x.var(0), rtol=1e-6)


def test_log_prob_is_that_of_a_normal():
  mean, log_std, action = jnp.array([0.3, -1.0]), jnp.array([0.2, -0.7]), jnp.array([1.0, -0.5])
  expected = jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum()
  assert ppo.log_prob(mean, log_std, action) == pytest.approx(float(expected))


def test_a_few_iterations_change_the_policy_and_training_resumes(tmp_path):
  env, seen = envs.load("cartpole_balance", dtype=np.float32), []
  config = ppo.Config(worlds=16, unroll=16, epochs=2, hidden=(16,), episode_length=50)
  options = dict(iterations=4, config=config, checkpoint=tmp_path / "run")
  out = ppo.train(env, **options, progress=lambda i, entry, learner: seen.append((i, learner)))
  assert [i for i, _ in seen] == [0, 1, 2, 3] and [x["steps"] for x in out.curve] == [256, 512, 768, 1024]
  assert sum(x["episodes"] for x in out.curve) > 0
  for x in out.curve:
    assert np.isfinite([v for k, v in x.items() if k not in ("return", "length")]).all() and x["diverged"] == 0
    assert np.isnan(x["return"]) == np.isnan(x["length"]) == (x["episodes"] == 0)  # nothing is known then
  assert out.curve[0]["episodes"] == 0 or out.curve[0]["length"] < 16
  first, last = (jax.tree.leaves(x.params) for x in (seen[0][1], out.learner))
  assert all(np.isfinite(b).all() and np.any(a != b) for a, b in zip(first, last, strict=True))
  action = out.policy(jnp.zeros(5))
  assert action.shape == (1,) and np.abs(action) <= 1
  np.testing.assert_array_equal(ppo.make_policy(env, out.learner, config)(jnp.zeros(5)), action)
  (line,) = out.plot(path=tmp_path / "curve.png", label="ppo").lines
  ended = [x for x in out.curve if x["episodes"]]
  np.testing.assert_array_equal(line.get_xydata(), [(x["steps"], x["return"]) for x in ended])
  assert (tmp_path / "curve.png").stat().st_size > 1000
  again = ppo.train(env, **options)  # all is done already
  np.testing.assert_equal(again.curve, out.curve)  # NaN is NaN, also from a file
  jax.tree.map(np.testing.assert_array_equal, again.learner, out.learner)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_means_are_over_the_episodes_that_ended(dtype):
  reward, done = np.array([[1, 2], [3, np.nan]], dtype), np.array([[1, 0], [1, 0]], dtype)
  data = ppo.Unroll(
    obs=None, action=None, log_prob=None, reward=jnp.ones((2, 2), dtype), next_obs=None, done=jnp.asarray(done), truncation=None
  )
  ended = {"sum_reward": jnp.asarray(reward), "length": jnp.asarray(2 * reward)}
  for transform in (lambda f: f, jax.jit):
    entry = transform(lambda done: ppo.report(data._replace(done=done), ended, jnp.zeros(2, dtype)))(data.done)
    assert (entry["return"], entry["length"], entry["episodes"]) == (2, 4, 2)
    entry = transform(lambda done: ppo.report(data._replace(done=done), ended, jnp.zeros(2, dtype)))(0 * data.done)
    assert np.isnan(entry["return"]) and np.isnan(entry["length"]) and entry["episodes"] == 0 and entry["reward"] == 1


# the least return at the end, of as many steps as an episode has, and longest time [s] on two cores that do nothing else
LEARNED = {"cartpole_balance": (450, 120), "reacher": (50, 240)}


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", LEARNED)
def test_learns_a_task_in_minutes(name):
  least, seconds = LEARNED[name]
  env = envs.load(name, dtype=np.float32)
  start = time.process_time()
  out = ppo.train(env, **settings.PPO[name])
  assert time.process_time() - start < 2 * seconds
  ended = [x["return"] for x in out.curve if x["episodes"]]
  assert np.mean(ended[-3:]) > least > 3 * np.mean(ended[:3])
  worlds = envs.wrap(env, episode_length=1000, auto_reset=False)

  def advance(state, _):
    state = worlds.step(state, out.policy(state.obs))
    return state, (state.done, state.reward)

  # the policy without noise, longer than it was trained
  run = mjx.jit(lambda keys: jax.lax.scan(advance, worlds.reset(keys), length=999)[1])
  done, reward = run(jax.random.split(jax.random.key(7), 16))
  assert not done.any()
  assert np.median(reward[-1]) > 0.8  # upright, or with its tip within a centimetre of the target


def steps_of(env, policy, start, steps):
  """Data after each step, and whether each world has never been done: worlds from states that are given."""

  def one(carry, _):
    state, kept = carry
    state = jax.vmap(env.step)(state, policy(state.obs))
    return (state, kept * (1 - state.done)), (state.data.qpos, state.data.qvel, state.data.xmat)

  (_, kept), record = mjx.jit(lambda s: jax.lax.scan(one, (s, jnp.ones_like(s.done)), length=steps))(start)
  return kept, record


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_quadruped_learns_to_follow_its_joystick():
  """Five seconds at each command, of which the last four count: velocities in the trunk's own frame."""
  env = envs.load("joystick_flat", dtype=np.float32)
  out = ppo.train(env, **settings.PPO["joystick_flat"])
  commands = np.repeat(np.array([[0, 0, 0], [0.8, 0, 0], [-0.6, 0, 0], [0, 0.4, 0], [0, 0, -0.8]], np.float32), 16, axis=0)

  def begin(key, command):
    state = env.reset(key)
    d = state.data.replace(mocap_pos=command[None])
    return state.replace(data=d, obs=env.observe(env.model, d))

  start = mjx.jit(jax.vmap(begin))(jax.random.split(jax.random.key(8), len(commands)), jnp.asarray(commands))
  kept, (_, qvel, xmat) = steps_of(env, out.policy, start, 250)
  trunk = int(env.mj_model.jnt_bodyid[0])
  v = np.einsum("twij,twi->twj", xmat[50:, :, trunk], qvel[50:, :, :3])
  mean = np.concatenate([v[..., :2], qvel[50:, :, 5:6]], axis=-1).mean(0)
  assert np.sum(kept) > 0.9 * len(commands)
  assert np.median(np.abs(mean - commands).max(-1)) < 0.1
  assert all(np.median(np.abs(mean - commands)[i : i + 16].max(-1)) < 0.2 for i in range(0, len(commands), 16))


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_hand_learns_to_turn_a_cube():
  """The angle to the goal at the end is less than two thirds of what it is where nothing is done."""
  env = envs.load("in_hand_cube", dtype=np.float32)
  out = ppo.train(env, **settings.PPO["in_hand_cube"])
  start = mjx.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(8), 64))

  def final_angle(policy):
    kept, (qpos, *_) = steps_of(env, policy, start, 100)
    away = jax.vmap(lambda q, d: env.away(d.replace(qpos=q)))(qpos[-1], start.data)
    return float(np.mean(kept)), float(np.median(2 * np.arccos(np.minimum(away[:, 0], 1))))

  kept, angle = final_angle(out.policy)
  _, still = final_angle(lambda obs: jnp.zeros((len(obs), env.action_size), obs.dtype))
  assert kept > 0.9 and angle < 0.67 * still
