"""Training settings of the tasks: `ppo.train(envs.load("reacher"), **settings.PPO["reacher"])`.

Each training takes one to two minutes on two CPU cores in 32 bits; the joystick and the hand take three to five minutes.
README.md lists the returns reached, and the tests marked `slow` the returns required. `joystick_rough` continues from the
learner of `joystick_flat`, whose policy falls in a third of the worlds on rough ground:
`ppo.train(rough, **settings.PPO["joystick_rough"], learner=flat.learner)`.

Tests: tests/rl/test_ppo.py, tests/rl/test_shac.py.
"""

from typing import Any

from mjx_lite.rl import ppo, shac

PPO: dict[str, dict[str, Any]] = {
  "cartpole_balance": dict(iterations=80, config=ppo.Config()),
  "pendulum": dict(iterations=63, config=ppo.Config(episode_length=100)),
  "reacher": dict(iterations=500, config=ppo.Config(episode_length=100)),
  "joystick_flat": dict(iterations=300, config=ppo.Config(
    worlds=128, unroll=24, minibatches=8, hidden=(128, 128), learning_rate=5e-4, entropy=5e-3, episode_length=200,
  )),
  "joystick_rough": dict(iterations=150, config=ppo.Config(  # with learner= of joystick_flat
    worlds=128, unroll=24, minibatches=8, hidden=(128, 128), learning_rate=5e-4, entropy=5e-3, episode_length=200,
  )),
  "in_hand_cube": dict(iterations=150, config=ppo.Config(
    worlds=128, unroll=24, minibatches=8, hidden=(128, 128), learning_rate=5e-4, entropy=2e-3, episode_length=100,
  )),
}  # fmt: skip

SHAC: dict[str, dict[str, Any]] = {
  "pendulum": dict(iterations=600, config=shac.Config(episode_length=100)),
}
