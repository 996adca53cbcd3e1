"""Dexterity: in-hand rotation of a cube.

Tests: tests/envs/test_robot_tasks.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.envs.base import ASSETS, Env

TURN = 2.0  # largest rotation of a goal about the vertical [rad]


class InHandCube(Env):
  """Rotate a cube on the palm to the goal orientation without dropping it."""

  xml_path = ASSETS / "in_hand_cube.xml"
  ctrl_dt = 0.04

  def __init__(self, xml_path: Any = None, *, upright: bool = True, **options: Any):
    """Load the model; see `Env.__init__`.

    Args:
      xml_path: another model for the same task.
      upright: if True, goals are rotations about the vertical, which are learned in minutes; otherwise goals are arbitrary
        orientations, which take far more steps.
      **options: arguments of `Env`.
    """
    super().__init__(xml_path, **options)
    self.upright = upright

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw a cube pose on the palm with a small rotation about the vertical, and a goal orientation (see `upright`)."""
    for_fingers, for_cube, for_goal = jax.random.split(key, 3)
    dtype = d.qpos.dtype
    fingers = 0.1 * jax.random.uniform(for_fingers, (self.action_size,), dtype, -1, 1)
    x, y, heading = jax.random.uniform(for_cube, (3,), dtype, -1, 1) * jnp.array([0.004, 0.004, 0.4], dtype)
    cube = d.qpos[-7:].at[0].add(x).at[1].add(y)
    cube = cube.at[3].set(jnp.cos(heading / 2)).at[6].set(jnp.sin(heading / 2))
    if self.upright:
      half = 0.5 * TURN * jax.random.uniform(for_goal, (), dtype, -1, 1)
      goal = jnp.zeros(4, dtype).at[0].set(jnp.cos(half)).at[3].set(jnp.sin(half))
    else:
      goal = jax.random.normal(for_goal, (4,), dtype)
      goal = goal / jnp.sqrt(goal[0] ** 2 + goal[1] ** 2 + goal[2] ** 2 + goal[3] ** 2)
    return d.replace(qpos=jnp.concatenate([fingers, cube]), ctrl=fingers, mocap_quat=goal[None])

  def away(self, d: mjx.Data) -> jax.Array:
    """Return the rotation from the cube to the goal as a quaternion (4,) with nonnegative scalar part."""
    a, b = d.qpos[-4:], d.mocap_quat[0]
    scalar = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
    vector = a[0] * b[1:] - b[0] * a[1:] - jnp.cross(a[1:], b[1:])
    return jnp.where(scalar < 0, -1, 1) * jnp.concatenate([scalar[None], vector])

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return finger angles, controls, position and axes of the cube, axes of the goal, `away`, and velocities: (3 nu + 25,)."""
    nu = self.action_size
    axes = d.xmat[-2, :, :2].reshape(-1), d.xmat[-1, :, :2].reshape(-1)
    moving = 0.1 * d.qvel[:nu], 10 * d.qvel[nu : nu + 3], 0.1 * d.qvel[nu + 3 :]
    return jnp.concatenate([d.qpos[:nu], d.ctrl, 10 * d.qpos[-7:-4], *axes, self.away(d), *moving])

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward nearness to the goal, at most 2, with a sharper peak close to the goal; penalize strain and dropping the cube."""
    square = 1 - self.away(d)[0] ** 2  # squared sine of half the angle
    return {
      "near": 1 - square + 1 / (1 + square / 0.05),
      "strain": -0.05 * jnp.mean((d.qpos[: self.action_size] - d.ctrl) ** 2),
      "dropped": -10 * self.failed(m, d).astype(square.dtype),
    }

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the cube has left the palm."""
    x, y, z = d.qpos[-7], d.qpos[-6], d.qpos[-5]
    return (z < 0.02) | (jnp.abs(x) > 0.07) | (jnp.abs(y) > 0.07)
