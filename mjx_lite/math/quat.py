"""Quaternions, wxyz, component axis before the world axis.

Tests: tests/smooth/test_mechanics.py, tests/transforms/test_promises.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import safe, trig, vector
from mjx_lite.ops import linear


def mul(p: jax.Array, q: jax.Array) -> jax.Array:
  """Return the Hamilton product p q. Source: `mju_mulQuat`."""
  (pw, px, py, pz), (qw, qx, qy, qz) = (vector.parts(x) for x in vector.alike(p, q))
  return vector.join(
    [
      pw * qw - px * qx - py * qy - pz * qz,
      pw * qx + px * qw + py * qz - pz * qy,
      pw * qy - px * qz + py * qw + pz * qx,
      pw * qz + px * qy - py * qx + pz * qw,
    ]
  )


def conjugate(q: jax.Array) -> jax.Array:
  """Return the inverse of a unit quaternion."""
  return jnp.concatenate([q[..., :1, :], -q[..., 1:, :]], axis=-2)


def rotate(q: jax.Array, v: jax.Array) -> jax.Array:
  """Rotate a 3-vector by a unit quaternion. Source: `mju_rotVecQuat`."""
  (w, *u), r = (vector.parts(x) for x in vector.alike(q, v))
  t = [2 * x for x in vector.cross_parts(u, r)]
  return vector.join([x + w * y + z for x, y, z in zip(r, t, vector.cross_parts(u, t), strict=True)])


def to_mat(q: jax.Array) -> jax.Array:
  """Return the rotation matrix of a unit quaternion. Source: `mju_quat2Mat`."""
  w, x, y, z = vector.parts(q)
  ww, xx, yy, zz = w * w, x * x, y * y, z * z
  return vector.matrix(
    (ww + xx - yy - zz, 2 * (x * y - w * z), 2 * (x * z + w * y)),
    (2 * (x * y + w * z), ww - xx + yy - zz, 2 * (y * z - w * x)),
    (2 * (x * z - w * y), 2 * (y * z + w * x), ww - xx - yy + zz),
  )


def from_rotvec(v: jax.Array) -> jax.Array:
  """Return the unit quaternion of a rotation vector [rad]; smooth at zero."""
  cos, sinc = safe.cos_sinc_half(vector.dot(v, v)[..., None, :])
  return jnp.concatenate([cos, sinc * v], axis=-2)


def to_rotvec(q: jax.Array) -> jax.Array:
  """Return the rotation vector [rad] of a unit quaternion, with an angle in (-pi, pi]. Source: `mju_quat2Vel` with dt = 1.

  Gradient: exact at the identity (2 on the vector part); one-sided at angle pi.
  """
  w, u = q[..., :1, :], q[..., 1:, :]
  s2 = vector.dot(u, u)[..., None, :]
  # below s = 1e-4: angle/s = 2/w (1 - s^2/(3 w^2)), exact to round-off and smooth through zero
  small = s2 < 1e-8
  s = jnp.sqrt(jnp.where(small, 1, s2))
  angle = 2 * trig.arctan2(s, jnp.where(small, 1, w))
  angle = jnp.where(angle > jnp.pi, angle - 2 * jnp.pi, angle)
  sw = jnp.where(small, jnp.where(w == 0, 1, w), 1)
  return linear.materialize(jnp.where(small, 2 / sw * (1 - s2 / (3 * sw * sw)), angle / s)) * u


def sub(qa: jax.Array, qb: jax.Array) -> jax.Array:
  """Return the rotation vector [rad] that takes qb to qa, in the frame of qb. Source: `mju_subQuat`."""
  return to_rotvec(linear.materialize(mul(conjugate(qb), qa)))


def integrate(q: jax.Array, omega: jax.Array, dt: jax.Array | float) -> jax.Array:
  """Rotate the normalized q by the local angular velocity omega [rad/s] for dt [s]. Source: `mju_quatIntegrate`."""
  return mul(safe.normalize(q), from_rotvec(omega * dt))
