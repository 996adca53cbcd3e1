"""A quadruped under a joystick: track a commanded velocity, on flat and on rough ground.

Tests: tests/envs/test_robot_tasks.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.envs.base import ASSETS, Env

COMMAND = (1.0, 0.5, 1.0)  # largest commanded velocity forward, to the left [m/s], and about the vertical [rad/s]
SPREAD = 4.0  # largest |x| and |y| of the initial positions on rough ground [m]


class Joystick(Env):
  """Track a commanded velocity: forward, to the left, and about the vertical. Each episode has its own command.

  The command is stored as the position of a mocap body, `data.mocap_pos[0]`. Write to this field to steer.
  """

  ctrl_dt = 0.02

  def __init__(self, xml_path: Any = None, *, rough: bool = False, **options: Any):
    """Load the model; see `Env.__init__`.

    Args:
      xml_path: another model, with a free trunk, geoms named *_foot, and servos whose ranges are centered at rest.
      rough: if True, walk on hills instead of a plane.
      **options: arguments of `Env`.
    """
    super().__init__(xml_path or ASSETS / f"joystick_{'rough' if rough else 'flat'}.xml", **options)
    c = self.mj_model
    self.rough = rough
    self._trunk = int(c.jnt_bodyid[0])
    self._feet = np.array([i for i in range(c.ngeom) if c.geom(i).name.endswith("_foot")])
    self._rest = np.asarray(c.qpos0 if c.nkey == 0 else c.key_qpos[0])
    hills = c.hfield_size[:, 2]
    self._lift = float(hills.max()) if len(hills) else 0.0

  def start(self, m: mjx.Model, d: mjx.Data, key: jax.Array) -> mjx.Data:
    """Draw a standing state with any heading, any position on rough ground, and a new command (zero in one of ten episodes)."""
    for_pose, for_joints, for_speed, for_command, for_rest = jax.random.split(key, 5)
    dtype = d.qpos.dtype
    x, y, heading = jax.random.uniform(for_pose, (3,), dtype, -1, 1) * jnp.array([SPREAD, SPREAD, jnp.pi], dtype)
    rest = jnp.asarray(self._rest, dtype)
    position = jnp.stack([x, y]) if self.rough else jnp.zeros(2, dtype)
    upright = jnp.stack([jnp.cos(heading / 2), jnp.zeros_like(heading), jnp.zeros_like(heading), jnp.sin(heading / 2)])
    joints = rest[7:] + 0.1 * jax.random.uniform(for_joints, rest[7:].shape, dtype, -1, 1)
    qpos = jnp.concatenate([position, rest[2:3] + self._lift, upright, joints])
    command = jax.random.uniform(for_command, (3,), dtype, -1, 1) * jnp.array(COMMAND, dtype)
    command = jnp.where(jax.random.bernoulli(for_rest, 0.1), 0, command)
    qvel = 0.05 * jax.random.normal(for_speed, d.qvel.shape, dtype)
    return d.replace(qpos=qpos, qvel=qvel, ctrl=rest[7:], mocap_pos=command[None])

  def velocity(self, d: mjx.Data) -> jax.Array:
    """Return the linear velocity of the trunk in the trunk's frame (3,) [m/s]."""
    R = d.xmat[self._trunk]
    return R[0] * d.qvel[0] + R[1] * d.qvel[1] + R[2] * d.qvel[2]

  def observe(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return command, vertical in the trunk's frame, velocities, joint angles and servo targets minus rest: (12 + 3 nu,)."""
    rest = jnp.asarray(self._rest[7:], d.qpos.dtype)
    return jnp.concatenate([
      d.mocap_pos[0], d.xmat[self._trunk, 2], self.velocity(d), d.qvel[3:6], d.qpos[7:] - rest, 0.1 * d.qvel[6:], d.ctrl - rest,
    ])  # fmt: skip

  def score(self, m: mjx.Model, before: mjx.Data, d: mjx.Data, action: jax.Array) -> dict[str, jax.Array]:
    """Reward tracking of the command, at most 1.5 per step; penalize bouncing, rolling, deviation from rest, and strain."""
    wanted, v, w = d.mocap_pos[0], self.velocity(d), d.qvel[3:6]
    rest = jnp.asarray(self._rest[7:], d.qpos.dtype)
    return {
      "walking": jnp.exp(-4 * ((v[0] - wanted[0]) ** 2 + (v[1] - wanted[1]) ** 2)),
      "turning": 0.5 * jnp.exp(-4 * (w[2] - wanted[2]) ** 2),
      "bouncing": -0.2 * jnp.minimum(v[2] ** 2, 1),
      "rolling": -0.02 * jnp.minimum(w[0] ** 2 + w[1] ** 2, 10),
      "posture": -0.05 * jnp.mean((d.qpos[7:] - rest) ** 2),
      "strain": -0.01 * jnp.mean((d.qpos[7:] - d.ctrl) ** 2),
    }

  def failed(self, m: mjx.Model, d: mjx.Data) -> jax.Array:
    """Return whether the trunk leans by more than 60 degrees, is less than 0.1 m above the feet, or has left the hills."""
    above = d.qpos[2] - jnp.mean(d.geom_xpos[self._feet, 2])
    return (d.xmat[self._trunk, 2, 2] < 0.5) | (above < 0.1) | (d.qpos[2] < -0.2)
