"""The quadruped and the hand: they stand, hold, observe the command, and start again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import envs

WORLDS, STEPS, LENGTH = 8, 60, 40


def run(name):
  """States of worlds whose servos rest, but one in which they thrash."""
  env = envs.load(name, dtype=np.float32)
  out = envs.wrap(env, episode_length=LENGTH)
  action = jnp.zeros((WORLDS, env.action_size), jnp.float32).at[-1].set(jnp.sign(jnp.arange(env.action_size) % 3 - 0.5))

  @mjx.jit
  def simulate(keys):
    first = out.reset(keys)

    def one(state, _):
      state = out.step(state, action)
      return state, (state.obs, state.reward, state.done, state.metrics, state.info["final_obs"], state.info["truncation"])

    return first, *jax.lax.scan(one, first, length=STEPS)

  first, _, record = simulate(jax.random.split(jax.random.key(0), WORLDS))
  for x in jax.tree.leaves((first.obs, record)):
    assert np.isfinite(x).all()
  assert not np.any(record[3]["diverged"])
  done, truncation = record[2][:, :-1], record[5][:, :-1]
  np.testing.assert_array_equal(np.argwhere(done), [[LENGTH - 1, i] for i in range(WORLDS - 1)])  # none fell
  np.testing.assert_array_equal(done, truncation)
  starts = {tuple(x) for x in np.asarray(first.obs).tolist()}
  assert {tuple(x) for x in np.asarray(record[0][LENGTH - 1, :-1]).tolist()} <= starts
  obs, reward, *_, final, _ = record
  return env, first, obs, reward, final


@pytest.mark.parametrize("name", ["joystick_flat", pytest.param("joystick_rough", marks=pytest.mark.slow)])
def test_quadruped_stands_and_observes_its_command(name):
  _, first, obs, reward, final = run(name)
  command = first.data.mocap_pos[:, 0]
  assert len(np.unique(np.asarray(command), axis=0)) > WORLDS // 2
  np.testing.assert_array_equal(obs[LENGTH - 2, :-1, :3], command[:-1])
  still = np.asarray(final[LENGTH - 2, :-1])
  assert np.all(still[:, 5] > 0.9)  # upright
  assert np.abs(still[:, 6:9]).max() < 0.2  # standing
  expected = np.exp(-4 * (np.asarray(command) ** 2)[:-1, :2].sum(1)) + 0.5 * np.exp(-4 * np.asarray(command)[:-1, 2] ** 2)
  if name == "joystick_flat":
    np.testing.assert_allclose(reward[LENGTH - 2, :-1], expected, atol=0.15)  # it sways


def test_quadruped_at_the_command_gets_the_whole_reward():
  env = envs.load("joystick_flat")
  d = jax.eval_shape(lambda: mjx.make_data(env.model))
  d = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), d)
  turned = jnp.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # faces along y
  rest = env.mj_model.key_qpos[0]
  d = d.replace(
    qpos=jnp.asarray(rest), ctrl=jnp.asarray(rest[7:]), xmat=d.xmat.at[:].set(turned), mocap_pos=jnp.array([[0.7, 0.2, -0.5]]),
    qvel=d.qvel.at[:2].set(jnp.array([-0.2, 0.7])).at[5].set(-0.5),
  )  # fmt: skip
  assert sum(env.score(env.model, d, d, jnp.zeros(12)).values()) == pytest.approx(1.5)
  sideways = d.replace(qvel=d.qvel.at[:2].set(jnp.array([0.7, 0.2])))
  assert sum(env.score(env.model, d, sideways, jnp.zeros(12)).values()) < 1


def test_hand_holds_the_cube_and_observes_the_rotation_to_the_goal():
  env, first, _, _, final = run("in_hand_cube")
  assert np.abs(np.asarray(final)[LENGTH - 2, :-1, 24:27]).max() < 10 * 0.06  # on the palm
  rotations = jax.vmap(env.away)(first.data)
  for q, goal, w in zip(first.data.qpos[:, -4:], first.data.mocap_quat[:, 0], rotations, strict=True):
    reached = product(np.asarray(q), np.asarray(w))
    assert abs(abs(reached @ np.asarray(goal)) - 1) < 1e-5
  d = jax.tree.map(lambda x: x[0], first.data)
  there = d.replace(mocap_quat=-d.qpos[None, -4:])  # the same orientation, by the other quaternion
  terms = env.score(env.model, d, there, jnp.zeros(env.action_size))
  assert terms["near"] == pytest.approx(2, abs=1e-4) and terms["dropped"] == 0
  assert env.score(env.model, d, d.replace(qpos=d.qpos.at[-5].set(-0.1)), jnp.zeros(env.action_size))["dropped"] == -10


def product(a, b):
  """Of two quaternions."""
  return np.concatenate([[a[0] * b[0] - a[1:] @ b[1:]], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])
