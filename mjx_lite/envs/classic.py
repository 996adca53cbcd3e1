"""Small tasks: pendulum, cartpole, reacher.

Tests: tests/envs/test_envs.py, tests/envs/test_gym.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.envs.base import ASSETS, Env


class Pendulum(Env):
  """Swing a pendulum up and balance it. The motor has less than half of the torque needed to lift the pendulum directly."""

  xml_path = ASSETS / "pendulum.xml"
  ctrl_dt = 0.04

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw an angle uniformly over the circle, and a velocity in [-1, 1] rad/s."""
    angle, speed = jax.random.uniform(key, (2, 1), d.qpos.dtype, -1, 1)
    return d.replace(qpos=jnp.pi * angle, qvel=speed)

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return the cosine and sine of the angle, and the velocity: (3,)."""
    return jnp.concatenate([jnp.cos(d.qpos), jnp.sin(d.qpos), d.qvel])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward height in [0, 1]; penalize velocity and torque."""
    torque = jnp.clip(action[0], -1, 1)
    return {"upright": 0.5 + 0.5 * jnp.cos(d.qpos[0]), "moving": -0.005 * d.qvel[0] ** 2, "effort": -0.01 * torque**2}


class Cartpole(Env):
  """Balance a pole on a cart (`swing_up=False`), or swing the pole up from hanging and balance it."""

  xml_path = ASSETS / "cartpole.xml"

  def __init__(self, xml_path: Any = None, *, swing_up: bool = False, **options: Any):
    """Load the model; see `Env.__init__`.

    Args:
      xml_path: another model for the same task.
      swing_up: if True, episodes start with the pole hanging and never fail; otherwise they start near upright and fail
        when the pole falls or the cart reaches the end of the rail.
      **options: arguments of `Env`.
    """
    super().__init__(xml_path, **options)
    self.swing_up = swing_up

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw a state near upright, or near hanging with `swing_up`."""
    noise = jax.random.uniform(key, (4,), d.qpos.dtype, -0.1, 0.1)
    return d.replace(qpos=noise[:2].at[1].add(jnp.pi if self.swing_up else 0), qvel=noise[2:])

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return the position of the cart, cosine and sine of the pole's angle, and both velocities: (5,)."""
    return jnp.concatenate([d.qpos[:1], jnp.cos(d.qpos[1:]), jnp.sin(d.qpos[1:]), d.qvel])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward the product, in [0, 1], of four factors: pole upright, cart centered, pole slow, small force."""
    upright = 0.5 + 0.5 * jnp.cos(d.qpos[1])
    centred = 1 / (1 + 0.5 * d.qpos[0] ** 2)
    slow = 0.5 + 0.5 / (1 + 0.04 * d.qvel[1] ** 2)
    small = 0.8 + 0.2 * (1 - jnp.clip(action[0], -1, 1) ** 2)
    return {"upright": upright * centred * slow * small}

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the pole has fallen or the cart is at the end of the rail; always False with `swing_up`."""
    fallen = (jnp.cos(d.qpos[1]) < 0.85) | (jnp.abs(d.qpos[0]) > 1.7)
    return jnp.zeros((), bool) if self.swing_up else fallen


class Reacher(Env):
  """Move the tip of a two-link arm to a target. Each episode has another target."""

  xml_path = ASSETS / "reacher.xml"

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw a configuration, and a target within reach of the arm."""
    arm, target = jax.random.split(key)
    qpos = jax.random.uniform(arm, (2,), d.qpos.dtype, -1, 1) * jnp.array([jnp.pi, 2.5], d.qpos.dtype)
    angle, radius = jax.random.uniform(target, (2,), d.qpos.dtype)
    angle, radius = 2 * jnp.pi * angle, 0.05 + 0.2 * radius
    pos = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.zeros_like(angle)])
    return d.replace(qpos=qpos, mocap_pos=pos[None])

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return cosines and sines of the angles, scaled velocities, target, and vector from tip to target [m]: (10,)."""
    target = d.mocap_pos[0, :2]
    return jnp.concatenate([jnp.cos(d.qpos), jnp.sin(d.qpos), 0.1 * d.qvel, target, target - d.site_xpos[0, :2]])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward nearness to the target in [0, 1], with a sharper peak close to the target; penalize torques."""
    error = d.mocap_pos[0, :2] - d.site_xpos[0, :2]
    square = error[0] ** 2 + error[1] ** 2
    near = 0.5 / (1 + square / 0.1**2) + 0.5 / (1 + square / 0.02**2)
    return {"near": near, "effort": -0.02 * jnp.sum(jnp.clip(action, -1, 1) ** 2)}
