"""Spatial (6D) algebra about one point, rotation first, in the notation of Featherstone, Rigid Body Dynamics Algorithms.

A composite inertia is MuJoCo's 10-vector `[Ixx Iyy Izz Ixy Ixz Iyz | m rx m ry m rz | m]`.

Tests: tests/smooth/test_articulated.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector


def join(rot: jax.Array, lin: jax.Array) -> jax.Array:
  """Join a rotational and a translational part (..., 3, W) into a spatial vector (..., 6, W)."""
  return jnp.concatenate([rot, lin], axis=-2)


def split(v: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Split a spatial vector into its rotational and translational part."""
  return vector.split(v, 3)


def cross_motion(v: jax.Array, m: jax.Array) -> jax.Array:
  """Return the time derivative v x m of a motion vector m that moves with velocity v. Source: `mju_crossMotion`."""
  (w, u), (a, b) = (_halves(x) for x in vector.alike(v, m))
  return vector.join([*vector.cross_parts(w, a), *_add(vector.cross_parts(w, b), vector.cross_parts(u, a))])


def _halves(v):
  """Return the components of the rotational and of the translational part."""
  x = vector.parts(v)
  return x[:3], x[3:]


def _add(a, b):
  return [x + y for x, y in zip(a, b, strict=True)]


def _cross_force(v, f):
  """Return the time derivative v x* f of a force vector f that moves with velocity v. Source: `mju_crossForce`."""
  (w, u), (t, f3) = v, f
  return [*_add(vector.cross_parts(w, t), vector.cross_parts(u, f3)), *vector.cross_parts(w, f3)]


def _sym_vec(i6, v):
  """Multiply a symmetric 3x3 matrix `[xx yy zz xy xz yz]` by a vector."""
  (xx, yy, zz, xy, xz, yz), (x, y, z) = i6, v
  return xx * x + xy * y + xz * z, xy * x + yy * y + yz * z, xz * x + yz * y + zz * z


def inertia_mul(inertia: jax.Array, v: jax.Array) -> jax.Array:
  """Multiply a composite inertia (10) by a motion vector; the result is a force vector. Source: `mju_mulInertVec`."""
  inertia, v = vector.alike(inertia, v)
  return vector.join(_inertia_mul(vector.parts(inertia), _halves(v)))


def _inertia_mul(inertia, v):
  (w, u), mr, mass = v, inertia[6:9], inertia[9]
  lin = [mass * x - y for x, y in zip(u, vector.cross_parts(mr, w), strict=True)]
  return [*_add(_sym_vec(inertia[:6], w), vector.cross_parts(mr, u)), *lin]


def newton_euler(inertia: jax.Array, vel: jax.Array, acc: jax.Array) -> jax.Array:
  """Return the force that gives a composite inertia I (10) an acceleration at a velocity: I acc + vel x* I vel."""
  inertia, vel, acc = vector.alike(inertia, vel, acc)
  i, v, a = vector.parts(inertia), _halves(vel), _halves(acc)
  momentum = _inertia_mul(i, v)
  return vector.join(_add(_inertia_mul(i, a), _cross_force(v, (momentum[:3], momentum[3:]))))


def inertia_about(inertia: jax.Array, mat: jax.Array, r: jax.Array, mass: jax.Array) -> jax.Array:
  """Return the composite inertia (..., 10, W) of a body about a point.

  Args:
    inertia: principal moments (..., 3, W) [kg m^2].
    mat: principal axes, as columns (..., 3, 3, W).
    r: centre of mass minus the point (..., 3, W) [m].
    mass: (..., W) [kg].

  Source: `mju_inertCom`.
  """
  scaled = mat * inertia[..., None, :, :]
  moments = vector.add(scaled[..., k, :] * mat[..., k, :] for k in range(3))
  products = [vector.dot(scaled[..., i, :, :], mat[..., j, :, :]) for i, j in ((0, 1), (0, 2), (1, 2))]
  x, y, z = vector.parts(r)
  mass = mass[..., None, :]
  moments = moments + mass * vector.join([y * y + z * z, x * x + z * z, x * x + y * y])
  products = jnp.stack(products, axis=-2) - mass * vector.join([x * y, x * z, y * z])
  return jnp.concatenate([moments, products, mass * r, jnp.broadcast_to(mass, (*r.shape[:-2], 1, r.shape[-1]))], axis=-2)


# index of each entry of a symmetric 6x6 matrix in its packed form: the upper triangle, row by row. int32 in both precisions:
# JAX treats an int64 array as int32 wherever a trace without 64 bits still holds this array
_UPPER = np.zeros((6, 6), np.int32)
_UPPER[np.triu_indices(6)] = np.arange(21)
_UPPER = np.maximum(_UPPER, _UPPER.T)


def unpack(x: jax.Array) -> jax.Array:
  """Return symmetric matrices (n, 6, 6, W) from packed matrices (n, 21, W)."""
  return x[:, _UPPER]


def packed_inertia(inertia: jax.Array) -> jax.Array:
  """Return composite inertias (n, 10, W) as packed matrices (n, 21, W)."""
  xx, yy, zz, xy, xz, yz, mx, my, mz, m = vector.parts(inertia)
  o = jnp.zeros_like(m)
  rows = (xx, xy, xz, o, -mz, my), (yy, yz, mz, o, -mx), (zz, -my, mx, o), (m, o, o), (m, o), (m,)
  return vector.join([x for row in rows for x in row])


def mul_packed(x: jax.Array, v: jax.Array) -> jax.Array:
  """Multiply packed matrices (n, 21, W) by vectors (n, 6, W)."""
  entry, component = vector.parts(x), vector.parts(v)
  return vector.join([vector.add(entry[k] * y for k, y in zip(row, component, strict=True)) for row in _UPPER])


def packed_square(u: jax.Array, weight: jax.Array) -> jax.Array:
  """Return the packed matrices (n, 21, W) weight u u', for u (n, 6, W) and weight (n, W)."""
  scaled = u * weight[:, None]
  return vector.join([u[:, i, None] * scaled[:, i:] for i in range(6)])
