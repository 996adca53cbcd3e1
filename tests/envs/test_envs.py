"""Environments and their wrappers. The wrappers are tried on one small model, the tasks are traced, and slowly run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import envs, viz

WORLDS = 6


def heavier(m, key):
  return m.with_params(body_mass=m.body_mass * jax.random.uniform(key, m.body_mass.shape, m.body_mass.dtype, 0.5, 2))


class Hold(envs.Pendulum):
  """A pendulum that fails above some speed, and whose reward tells the torque."""

  def failed(self, m, d):
    return jnp.abs(d.qvel[0]) > 4

  def score(self, m, before, d, action):
    return {"torque": action[0]}


@pytest.mark.parametrize("name", envs.ENVS)
def test_episodes_start_within_the_joints_ranges(name):
  env = envs.load(name)
  m, keys = env.model, jax.random.split(jax.random.key(0), 64)
  qpos = jax.jit(jax.vmap(lambda key: env.start(m, mjx.make_data(m), key).qpos))(keys)
  limited = np.flatnonzero(m.jnt_limited)
  low, high = np.asarray(m.jnt_range)[limited].T
  angle = np.asarray(qpos)[:, m.jnt_qposadr[limited]]
  assert ((low - 0.05 < angle) & (angle < high + 0.05)).all()


@pytest.fixture(scope="module")
def env():
  return Hold()


@pytest.fixture(scope="module")
def wrapped(env):
  """The wrapped environment, its first state, and its compiled step."""
  out = envs.wrap(env, episode_length=9, randomise=heavier, refresh=1)
  keys = jax.random.split(jax.random.key(0), WORLDS)
  return out, mjx.jit(out.reset)(keys), mjx.jit(out.step)


def signature(tree):
  return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", envs.ENVS)
def test_reset_and_step_have_the_same_form(name):
  env = envs.load(name)
  out = envs.wrap(env, action_repeat=2)
  state = jax.eval_shape(out.reset, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2)))
  after = jax.eval_shape(out.step, state, jax.ShapeDtypeStruct((2, env.action_size), state.reward.dtype))
  assert signature(state) == signature(after)
  assert [f.name for f in dataclasses.fields(state)] == ["data", "obs", "reward", "done", "metrics", "info"]
  assert state.obs.shape == (2, env.observation_size)
  assert state.reward.shape == state.done.shape == (2,)
  assert jnp.issubdtype(state.done.dtype, jnp.floating)
  assert env.dt == pytest.approx(env.n_substeps * env.sim_dt)


def test_a_step_is_that_many_steps_of_the_engine(wrapped):
  out, state, step = wrapped
  state = state.replace(info={**state.info, "steps": jnp.zeros(WORLDS)})
  action = jnp.linspace(-1.5, 1.5, WORLDS)[:, None]  # beyond the range: clipped
  after = step(state, action)
  env = out.unwrapped
  for i in range(2):
    m = heavier(env.model, jax.random.split(jax.random.split(jax.random.key(0), WORLDS)[i])[0])
    d = jax.tree.map(lambda x, i=i: x[i], state.data).replace(ctrl=jnp.clip(action[i], -1, 1))
    d = mjx.rollout(m, d, steps=env.n_substeps)[0]
    np.testing.assert_allclose(after.info["final_obs"][i], env.observe(m, d), rtol=1e-12)
  np.testing.assert_allclose(after.reward, action[:, 0])


def test_episodes_end_and_start_again(wrapped):
  out, state, step = wrapped
  first_obs, bank = np.asarray(state.obs), state.info["reset_bank"]
  starts, truncated, failed = [], 0, 0
  length = np.zeros(WORLDS)
  for _ in range(40):
    before, state = state, step(state, jnp.ones((WORLDS, 1)))
    length += 1
    done = np.asarray(state.done) > 0
    by_time = np.asarray(state.info["truncation"]) > 0
    speed = np.abs(np.asarray(state.info["final_obs"])[:, 2])
    np.testing.assert_array_equal(done & ~by_time, speed > 4)  # the observation is the one that ended the episode
    np.testing.assert_array_equal(by_time, (length >= 9) & (speed <= 4))
    np.testing.assert_array_equal(state.info["episode_done"], state.done)
    np.testing.assert_array_equal(state.info["episode_metrics"]["length"], length)
    np.testing.assert_allclose(state.info["episode_metrics"]["sum_reward"], length)
    np.testing.assert_array_equal(state.info["steps"], np.where(done, 0, length))
    np.testing.assert_array_equal(np.asarray(state.obs)[~done], np.asarray(state.info["final_obs"])[~done])
    np.testing.assert_allclose(state.obs, jax.vmap(out.unwrapped.observe, (None, 0))(out.model, state.data), rtol=1e-12)
    np.testing.assert_array_equal(np.asarray(state.data.time)[done], 0)
    for name, x in state.info["model"].items():  # the model is the same within an episode
      np.testing.assert_array_equal(np.asarray(x)[~done], np.asarray(before.info["model"][name])[~done])
    starts.extend(np.asarray(state.obs)[done])
    truncated, failed = truncated + by_time.sum(), failed + (done & ~by_time).sum()
    length[done] = 0
  assert truncated and failed  # both ways of ending were tried
  starts = np.unique(np.round(starts, 9), axis=0)
  assert len(starts) > WORLDS  # more starts than the bank had at first: it is made anew
  assert np.isin(np.round(first_obs, 9), starts).any()
  assert np.any(bank["obs"] != state.info["reset_bank"]["obs"])


def test_a_bank_is_refilled_with_the_states_of_a_reset(wrapped):
  out, state, step = wrapped
  fresh = mjx.jit(out.reset)(jax.random.split(jax.random.key(1), WORLDS))
  full = out.refill(state, fresh)
  jax.tree.map(np.testing.assert_array_equal, full.info["reset_bank"], fresh.info["reset_bank"])
  jax.tree.map(np.testing.assert_array_equal, (full.data, full.obs), (state.data, state.obs))
  ended = state.replace(info={**full.info, "steps": jnp.full_like(full.info["steps"], 8)})
  after = step(ended, jnp.zeros((WORLDS, 1)))  # all episodes end; one entry of the bank is new again
  assert np.all(after.done) and np.isin(np.asarray(after.obs)[:, 0], np.asarray(fresh.obs)[:, 0]).sum() >= WORLDS - 2
  assert not np.isin(np.asarray(after.obs)[:, 0], np.asarray(state.obs)[:, 0]).any()


def test_randomised_models_differ_between_worlds_only_where_they_were_changed(wrapped):
  _, state, _ = wrapped
  model = state.info["model"]
  assert {".body_mass", ".body_subtreemass"} <= set(model)
  assert ".geom_size" not in model and ".opt.timestep" not in model
  assert len(np.unique(np.asarray(model[".body_mass"])[:, 1])) == WORLDS


def test_a_diverged_world_is_done_unrewarded_and_counted(wrapped):
  _, state, step = wrapped
  qvel = state.data.qvel.at[2].set(jnp.nan)
  bad = state.replace(data=state.data.replace(qvel=qvel))
  after, clean = step(bad, jnp.ones((WORLDS, 1))), step(state, jnp.ones((WORLDS, 1)))
  expected = np.arange(WORLDS) == 2
  np.testing.assert_array_equal(after.metrics["diverged"], expected)
  np.testing.assert_array_equal(after.reward, np.where(expected, 0, 1))
  assert after.done[2] == 1 and after.info["truncation"][2] == 0
  for x in jax.tree.leaves((after.obs, after.data.qpos, after.data.qvel, after.metrics, after.info["final_obs"])):
    assert np.isfinite(x).all()
  np.testing.assert_array_equal(after.obs[~expected], clean.obs[~expected])  # neighbours do not notice


def test_action_repeat_stops_where_the_world_is_done(env):
  repeat = envs.Repeat(env, 5)
  start = env.reset(jax.random.key(1))
  start = env.set_state(start, jnp.full(1, jnp.pi / 2), jnp.full(1, 3.9))  # falls, and is soon too fast
  after = mjx.jit(repeat.step)(start, jnp.full(1, 0.5))
  assert after.done == 1
  steps = round(float(after.data.time) / env.dt)
  assert 1 <= steps < 5
  assert after.reward == pytest.approx(0.5 * steps)


@pytest.mark.parametrize("name", ["_mjx_model", "sys"])
def test_the_model_is_exchanged_by_the_names_that_other_wrappers_use(env, name):
  """As the wrappers for randomised models do, Playground's and Brax's, with axes of a tree of None."""
  own = env.model
  mass = jnp.stack([own.body_mass, 2 * own.body_mass])
  axes = jax.tree.map(lambda _: None, own).tree_replace({"body_mass": 0})

  def step(model, state):
    setattr(env.unwrapped, name, model)
    try:
      return env.step(state, jnp.full(1, 0.5)).data.qvel
    finally:
      setattr(env.unwrapped, name, own)

  state = env.reset(jax.random.key(0))
  qvel = jax.vmap(step, in_axes=(axes, None))(own.tree_replace({"body_mass": mass}), state)
  expected = [env.step(state, jnp.full(1, 0.5), own.replace(body_mass=x)).data.qvel for x in mass]
  np.testing.assert_allclose(qvel, expected, rtol=1e-12)
  assert np.abs(qvel[0] - qvel[1]) > 1e-3 and env.model is own


def test_render_hands_on_the_states_in_order(env, monkeypatch):
  """Lists of States and States as scan stacks them are (worlds, steps) for `viz`, an action apart."""
  seen = []
  monkeypatch.setattr(viz, "render", lambda mj_model, state, **options: seen.append((state, options)))
  start = env.reset(jax.random.key(0))
  path = [env.set_state(start, jnp.full(1, float(i)), jnp.zeros(1)) for i in range(3)]
  env.render(path[1])
  env.render(path, 48, 64, camera="side", fps=10)
  pairs = [jax.tree.map(lambda *x: jnp.stack(x), s, env.set_state(s, s.data.qpos + 10, s.data.qvel)) for s in path]
  env.render(pairs)
  env.render(jax.tree.map(lambda *x: jnp.stack(x), *pairs), grid=(1, 2))
  one, path_qpos, worlds, scanned = (state["qpos"] for state, _ in seen)
  np.testing.assert_array_equal(one, [1])
  np.testing.assert_array_equal(path_qpos, [[0], [1], [2]])
  np.testing.assert_array_equal(worlds[..., 0], [[0, 1, 2], [10, 11, 12]])
  np.testing.assert_array_equal(scanned, worlds)
  assert seen[1][1]["dt"] == env.dt and (seen[1][1]["height"], seen[1][1]["width"]) == (48, 64)
  assert seen[1][1]["camera"] == "side" and seen[1][1]["fps"] == 10 and seen[3][1]["grid"] == (1, 2)
  assert seen[0][0]["xfrc_applied"].shape == (env.mj_model.nbody, 6)
  with pytest.raises(NotImplementedError, match="scene_option"):
    env.render(path, modify_scene_fns=[print])


def test_tree_replace(env):
  state = jax.eval_shape(env.reset, jax.random.key(0))
  state = state.tree_replace({"data.qpos": 1, "info.note": 2})
  assert state.data.qpos == 1 and state.info["note"] == 2


def test_what_cannot_be_is_refused(env):
  with pytest.raises(ValueError, match="not a multiple"):
    envs.Pendulum(ctrl_dt=0.015)
  for options in (dict(episode_length=0), dict(action_repeat=0)):
    with pytest.raises(ValueError, match="must be at least 1"):
      envs.wrap(env, **options)
  with pytest.raises(ValueError, match="wrapped already"):
    envs.wrap(envs.wrap(env))
  state = jax.eval_shape(env.reset, jax.random.key(0))
  for shape in ((), (2,), (3, 1)):
    with pytest.raises(ValueError, match="an action of one world"):
      jax.eval_shape(env.step, state, jax.ShapeDtypeStruct(shape, np.float32))
  with pytest.raises(ValueError, match="no State"):
    env.render([])
  with pytest.raises(ValueError, match="cartpole_balance"):
    envs.load("cartpole")
  with pytest.raises(ValueError, match="randomise must return"):
    jax.eval_shape(envs.Randomise(env, lambda m, key: m.body_mass).reset, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", envs.ENVS)
def test_random_actions_keep_worlds_finite(name):
  env = envs.load(name, dtype=np.float32)
  out = envs.wrap(env, episode_length=200)
  keys = jax.random.split(jax.random.key(0), 16)

  def advance(state, key):
    action = jax.random.uniform(key, (16, env.action_size), jnp.float32, -1, 1)
    state = out.step(state, action)
    return state, (state.reward, state.metrics["diverged"])

  run = mjx.jit(lambda keys: jax.lax.scan(advance, out.reset(keys), jax.random.split(jax.random.key(1), 300)))
  state, (reward, diverged) = run(keys)
  assert np.isfinite(reward).all() and not np.any(diverged)
  assert np.all(state.info["steps"] < 200)
