"""Environments for reinforcement learning: `load(name)` returns a task in one world, `wrap` adds many worlds and episodes.

States have the form of Brax and MuJoCo Playground: `State(data, obs, reward, done, metrics, info)`.
"""

import functools
from collections.abc import Callable
from typing import Any

from mjx_lite.envs.base import Env
from mjx_lite.envs.classic import Cartpole, Pendulum, Reacher
from mjx_lite.envs.hand import InHandCube
from mjx_lite.envs.legged import Ant, Cheetah, Hopper, HumanoidWalk
from mjx_lite.envs.quadruped import Joystick
from mjx_lite.envs.state import State
from mjx_lite.envs.wrappers import AutoReset, Episode, Quarantine, Randomise, Repeat, Worlds, Wrapper, wrap

ENVS: dict[str, Callable[..., Env]] = {
  "pendulum": Pendulum,
  "cartpole_balance": Cartpole,
  "cartpole_swingup": functools.partial(Cartpole, swing_up=True),
  "reacher": Reacher,
  "hopper": Hopper,
  "cheetah": Cheetah,
  "ant": Ant,
  "humanoid_walk": HumanoidWalk,
  "joystick_flat": Joystick,
  "joystick_rough": functools.partial(Joystick, rough=True),
  "in_hand_cube": InHandCube,
}


def load(name: str, **options: Any) -> Env:
  """Load a task by its name.

  Args:
    name: one of `ENVS`.
    **options: arguments of the task's class: xml_path, ctrl_dt, and arguments of `put_model`.
  """
  if name not in ENVS:
    raise ValueError(f"environment '{name}' is unknown: use one of {', '.join(ENVS)}.")
  return ENVS[name](**options)


__all__ = [
  "ENVS", "AutoReset", "Env", "Episode", "Quarantine", "Randomise", "Repeat", "State", "Worlds", "Wrapper", "load", "wrap",
]  # fmt: skip
