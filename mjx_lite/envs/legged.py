"""Locomotion tasks: hopper, cheetah, ant, humanoid. All robots run or walk along x.

Tests: tests/envs/test_envs.py.
"""

import pathlib

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.envs.base import ASSETS, Env


class _Runner(Env):
  """Base class: forward velocity is rewarded; the observation is the state without the horizontal position."""

  noise = 0.05  # scale of the noise of the initial configuration and velocity
  effort = 0.1  # weight of the squared action
  alive = 0.0  # reward of each step without failure
  unobserved = 1  # number of leading coordinates of qpos (horizontal position) that are not observed

  def rest(self, m: mjx.Model) -> jax.Array:
    """Return the configuration around which episodes start."""
    return m.qpos0

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw a state near rest. The noise is integrated as a velocity, so that quaternions keep unit length."""
    for_qpos, for_qvel = jax.random.split(key)
    move = jax.random.uniform(for_qpos, d.qvel.shape, d.qpos.dtype, -1, 1)
    qvel = self.noise * jax.random.normal(for_qvel, d.qvel.shape, d.qpos.dtype)
    return d.replace(qpos=mjx.integrate_pos(m, self.rest(m), move, jnp.asarray(self.noise, d.qpos.dtype)), qvel=qvel)

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return the configuration without the horizontal position, and velocities clipped to 10 m/s or rad/s."""
    return jnp.concatenate([d.qpos[self.unobserved :], jnp.clip(d.qvel, -10, 10)])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward the velocity along x [m/s], and a constant for each step without failure; penalize torques."""
    speed = (d.qpos[0] - before.qpos[0]) / self.dt
    effort = -self.effort * jnp.mean(jnp.clip(action, -1, 1) ** 2)
    return {"forward": speed, "effort": effort, "alive": self.alive * (1 - self.failed(m, d).astype(speed.dtype))}


class Hopper(_Runner):
  """Hop forward on one leg, without falling."""

  xml_path = ASSETS / "hopper.xml"
  ctrl_dt = 0.012
  noise, effort, alive = 0.02, 0.01, 1.0

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the trunk is below 0.7 m or leans by more than 0.6 rad."""
    return (d.xpos[1, 2] < 0.7) | (jnp.abs(d.qpos[2]) > 0.6)


class Cheetah(_Runner):
  """Run as fast as possible on two springy legs."""

  xml_path = ASSETS / "cheetah.xml"
  ctrl_dt = 0.05
  noise, effort = 0.05, 0.6


class Ant(_Runner):
  """Run forward on four legs, without turning over."""

  xml_path = ASSETS / "ant.xml"
  ctrl_dt = 0.05
  noise, effort, alive = 0.05, 0.5, 0.5
  unobserved = 2

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the trunk lies on the ground, is above 1.2 m, or is upside down."""
    height = d.qpos[2]
    return (height < 0.24) | (height > 1.2) | (d.xmat[1, 2, 2] < 0)


class HumanoidWalk(_Runner):
  """Walk forward at a given speed, upright."""

  xml_path = pathlib.Path(mjx.__file__).parent / "models" / "humanoid.xml"
  ctrl_dt = 0.02
  noise = 0.01
  unobserved = 2
  speed = 1.2  # [m/s]

  def rest(self, m: mjx.Model) -> jax.Array:
    """Return the configuration of the first keyframe, in which the humanoid stands."""
    return m.key_qpos[0]

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward walking at the given speed without sideways motion, and an upright pelvis; penalize torque. At most 2 per step."""
    forward, sideways = (d.qpos[0] - before.qpos[0]) / self.dt, (d.qpos[1] - before.qpos[1]) / self.dt
    return {
      "walking": jnp.exp(-2 * (forward - self.speed) ** 2 - 2 * sideways**2),
      "upright": 0.5 * (1 + d.xmat[1, 2, 2]),
      "effort": -0.1 * jnp.mean(jnp.clip(action, -1, 1) ** 2),
    }

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the pelvis is below 0.6 m or leans by more than 60 degrees."""
    return (d.qpos[2] < 0.6) | (d.xmat[1, 2, 2] < 0.5)
