"""With which settings tasks are learned, in one place: `ppo.train(envs.load("reacher"), **settings.PPO["reacher"])`.

Each takes a minute or two on two CPU cores, in 32 bits; the tests marked `slow` say what is reached.
"""

from typing import Any

from mjx_lite.rl import ppo, shac

PPO: dict[str, dict[str, Any]] = {
  "cartpole_balance": dict(iterations=80, config=ppo.Config()),
  "pendulum": dict(iterations=63, config=ppo.Config(episode_length=100)),
  "reacher": dict(iterations=500, config=ppo.Config(episode_length=100)),
}

SHAC: dict[str, dict[str, Any]] = {
  "pendulum": dict(iterations=600, config=shac.Config(episode_length=100)),
}
