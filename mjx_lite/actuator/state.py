"""State that the laws of the actuators read.

Tests: tests/actuator/test_actuator_trajectories.py.
"""

from typing import NamedTuple

import jax


class UserLaws(NamedTuple):
  """Results of the user's functions, None where no actuator needs one."""

  rates: jax.Array | None = None  # (na, W)
  gain: jax.Array | None = None  # (nactuator, W)
  bias: jax.Array | None = None  # (nactuator, W)


class State(NamedTuple):
  """Inputs of all actuators, world axis last."""

  ctrl: jax.Array  # (nu, W) delayed, clamped, slewed
  act: jax.Array  # (na, W)
  length: jax.Array  # (nout, W)
  velocity: jax.Array  # (nout, W)
  act_used: jax.Array  # (na, W) act, or the next act of actuators with `actearly`
  gain_input: jax.Array  # (nactuator, W) a control or an entry of act_used
  user: UserLaws = UserLaws()
