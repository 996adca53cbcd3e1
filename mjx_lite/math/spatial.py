"""Spatial (6D) algebra about one point, rotation first; the notation of Featherstone, Rigid Body Dynamics Algorithms.

A composite inertia is MuJoCo's 10-vector `[Ixx Iyy Izz Ixy Ixz Iyz | m rx m ry m rz | m]`.
"""

import jax
import jax.numpy as jnp

from mjx_lite.math import vector


def join(rot: jax.Array, lin: jax.Array) -> jax.Array:
  """Spatial vector from its rotational and translational part."""
  return jnp.concatenate([rot, lin], axis=-2)


def split(v: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Rotational and translational part of a spatial vector."""
  return v[..., :3, :], v[..., 3:, :]


def cross_motion(v: jax.Array, m: jax.Array) -> jax.Array:
  """Derivative of the motion vector m carried by v. Source: `mju_crossMotion`."""
  (w, u), (a, b) = split(v), split(m)
  return join(vector.cross(w, a), vector.cross(w, b) + vector.cross(u, a))


def cross_force(v: jax.Array, f: jax.Array) -> jax.Array:
  """Derivative of the force vector f carried by v. Source: `mju_crossForce`."""
  (w, u), (t, f3) = split(v), split(f)
  return join(vector.cross(w, t) + vector.cross(u, f3), vector.cross(w, f3))


def sym_vec(i6: jax.Array, v: jax.Array) -> jax.Array:
  """Symmetric 3x3 matrix `[xx yy zz xy xz yz]` times a vector."""
  xx, yy, zz, xy, xz, yz = (i6[..., k, :] for k in range(6))
  x, y, z = (v[..., k, :] for k in range(3))
  return jnp.stack([xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z], axis=-2)


def inertia_mul(inertia: jax.Array, v: jax.Array) -> jax.Array:
  """Composite inertia (10) times motion vector: a force vector. Source: `mju_mulInertVec`."""
  w, u = split(v)
  mr, mass = inertia[..., 6:9, :], inertia[..., 9:10, :]
  return join(sym_vec(inertia[..., :6, :], w) + vector.cross(mr, u), mass * u - vector.cross(mr, w))


def inertia_about(inertia: jax.Array, mat: jax.Array, r: jax.Array, mass: jax.Array) -> jax.Array:
  """Composite inertia of a body about a point.

  Args:
    inertia: principal moments (..., 3, W) [kg m^2].
    mat: principal axes, as columns (..., 3, 3, W).
    r: centre of mass minus the point (..., 3, W) [m].
    mass: (..., W) [kg].

  Source: `mju_inertCom`.
  """
  scaled = mat * inertia[..., None, :, :]
  moments = sum(scaled[..., k, :] * mat[..., k, :] for k in range(3))
  products = [vector.dot(scaled[..., i, :, :], mat[..., j, :, :]) for i, j in ((0, 1), (0, 2), (1, 2))]
  x, y, z = (r[..., k, :] for k in range(3))
  mass = mass[..., None, :]
  moments = moments + mass * jnp.stack([y * y + z * z, x * x + z * z, x * x + y * y], axis=-2)
  products = jnp.stack(products, axis=-2) - mass * jnp.stack([x * y, x * z, y * z], axis=-2)
  return jnp.concatenate([moments, products, mass * r, jnp.broadcast_to(mass, (*r.shape[:-2], 1, r.shape[-1]))], axis=-2)


def inertia_matrix(inertia: jax.Array) -> jax.Array:
  """Composite inertia (10) as a symmetric 6x6 matrix."""
  xx, yy, zz, xy, xz, yz, mx, my, mz, m = (inertia[..., k, :] for k in range(10))
  o = jnp.zeros_like(m)
  return vector.matrix(
    (xx, xy, xz, o, -mz, my),
    (xy, yy, yz, mz, o, -mx),
    (xz, yz, zz, -my, mx, o),
    (o, mz, -my, m, o, o),
    (-mz, o, mx, o, m, o),
    (my, -mx, o, o, o, m),
  )
