"""Small tasks: pendulum, cartpole, reacher."""

from typing import Any

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.envs.base import ASSETS, Env


class Pendulum(Env):
  """Swing a pendulum up and hold it there, with a motor that has less than half of the torque that lifting it takes."""

  xml_path = ASSETS / "pendulum.xml"
  ctrl_dt = 0.04

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Any angle, slowly moving."""
    angle, speed = jax.random.uniform(key, (2, 1), d.qpos.dtype, -1, 1)
    return d.replace(qpos=jnp.pi * angle, qvel=speed)

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Cosine and sine of the angle, velocity: (3,)."""
    return jnp.concatenate([jnp.cos(d.qpos), jnp.sin(d.qpos), d.qvel])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Height in [0, 1], less the cost of moving and of the torque."""
    torque = jnp.clip(action[0], -1, 1)
    return {"upright": 0.5 + 0.5 * jnp.cos(d.qpos[0]), "moving": -0.005 * d.qvel[0] ** 2, "effort": -0.01 * torque**2}


class Cartpole(Env):
  """Keep a pole upright on a cart (`swing_up=False`), or swing it up from hanging and keep it there."""

  xml_path = ASSETS / "cartpole.xml"

  def __init__(self, xml_path: Any = None, *, swing_up: bool = False, **options: Any):
    """As of `Env`.

    Args:
      xml_path: another model.
      swing_up: start from hanging and never fail; otherwise start near upright and fail where the pole falls.
      **options: of `Env`.
    """
    super().__init__(xml_path, **options)
    self.swing_up = swing_up

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Near upright, or near hanging."""
    noise = jax.random.uniform(key, (4,), d.qpos.dtype, -0.1, 0.1)
    return d.replace(qpos=noise[:2].at[1].add(jnp.pi if self.swing_up else 0), qvel=noise[2:])

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Position of the cart, cosine and sine of the pole's angle, velocities: (5,)."""
    return jnp.concatenate([d.qpos[:1], jnp.cos(d.qpos[1:]), jnp.sin(d.qpos[1:]), d.qvel])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """In [0, 1]: upright, times centred, times slow, times little force."""
    upright = 0.5 + 0.5 * jnp.cos(d.qpos[1])
    centred = 1 / (1 + 0.5 * d.qpos[0] ** 2)
    slow = 0.5 + 0.5 / (1 + 0.04 * d.qvel[1] ** 2)
    small = 0.8 + 0.2 * (1 - jnp.clip(action[0], -1, 1) ** 2)
    return {"upright": upright * centred * slow * small}

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """The pole has fallen, or the cart is at the end of the rail, when balancing."""
    fallen = (jnp.cos(d.qpos[1]) < 0.85) | (jnp.abs(d.qpos[0]) > 1.7)
    return jnp.zeros((), bool) if self.swing_up else fallen


class Reacher(Env):
  """Bring the tip of an arm of two links to a target, another one in each episode."""

  xml_path = ASSETS / "reacher.xml"

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Any configuration, any target within reach."""
    arm, target = jax.random.split(key)
    qpos = jax.random.uniform(arm, (2,), d.qpos.dtype, -1, 1) * jnp.array([jnp.pi, 2.5], d.qpos.dtype)
    angle, radius = jax.random.uniform(target, (2,), d.qpos.dtype)
    angle, radius = 2 * jnp.pi * angle, 0.05 + 0.2 * radius
    pos = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle), jnp.zeros_like(angle)])
    return d.replace(qpos=qpos, mocap_pos=pos[None])

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Cosines and sines of the angles, velocities, target, and the way from the tip to it [m]: (10,)."""
    target = d.mocap_pos[0, :2]
    return jnp.concatenate([jnp.cos(d.qpos), jnp.sin(d.qpos), 0.1 * d.qvel, target, target - d.site_xpos[0, :2]])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Nearness in [0, 1], sharper close to the target, less the cost of torques."""
    way = d.mocap_pos[0, :2] - d.site_xpos[0, :2]
    square = way[0] ** 2 + way[1] ** 2
    near = 0.5 / (1 + square / 0.1**2) + 0.5 / (1 + square / 0.02**2)
    return {"near": near, "effort": -0.02 * jnp.sum(jnp.clip(action, -1, 1) ** 2)}
