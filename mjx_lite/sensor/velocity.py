"""Sensors of the velocity stage.

Tests: tests/sensor/test_sensors.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.model.types import Data, Model
from mjx_lite.sensor import frames
from mjx_lite.sensor.position import FrameTables, first_active


def velocimeter(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the velocity of a site in the frame of the site [m/s]."""
  return vector.mat_t_vec(frames.orientation(d, t.object), frames.velocity(d, t.object).linear)


def gyro(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the angular velocity of a site in the frame of the site [rad/s]."""
  return vector.mat_t_vec(frames.orientation(d, t.object), frames.velocity(d, t.object).angular)


def frame_linvel(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the velocity of a frame as seen from its reference frame, which may rotate [m/s]."""
  v = frames.velocity(d, t.object)
  if t.reference is None:
    return v.linear
  r = frames.velocity(d, t.reference)
  arm = frames.position(d, t.object) - frames.position(d, t.reference)
  relative = v.linear - r.linear - vector.cross(r.angular, arm)
  return vector.mat_t_vec(frames.orientation(d, t.reference), relative)


def frame_angvel(m: Model, d: Data, t: FrameTables) -> jax.Array:
  """Return the angular velocity of a frame relative to its reference frame [rad/s]."""
  v = frames.velocity(d, t.object).angular
  if t.reference is None:
    return v
  return vector.mat_t_vec(frames.orientation(d, t.reference), v - frames.velocity(d, t.reference).angular)


def limit_vel(m: Model, d: Data, row: np.ndarray) -> jax.Array:
  """Return the velocity of an active limit; zero where the limit is not active."""
  return first_active(d.efc_D > 0, d.efc_vel, row) if (row >= 0).any() else jnp.zeros((len(row), 1), d.qpos.dtype)
