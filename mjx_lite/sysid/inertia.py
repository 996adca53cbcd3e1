"""Inertial parameters that are physical whatever their values: the log-Cholesky form of the pseudo-inertia.

A mass distribution has the second moments J = sum of dm [p; 1][p; 1]' (4x4), and every positive definite J belongs to some
distribution. With J = U U' for an upper triangular U of positive diagonal, written as

  U = e^a [e^d1 s12 s13 t1; 0 e^d2 s23 t2; 0 0 e^d3 t3; 0 0 0 1],

the ten numbers theta = (a, d1, d2, d3, s12, s23, s13, t1, t2, t3) are free: mass e^(2 a), centre of mass t, second moments
about it e^(2 a) L L' with L the upper left block of U without e^a. Gradient descent on theta cannot leave what is physical.

Reference: Rucker and Wensing, Smooth parameterization of rigid-body inertia, IEEE Robotics and Automation Letters 7(2), 2022.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx


class Inertia(NamedTuple):
  """Inertia of one body in Model's form: about the centre of mass, in principal axes."""

  mass: jax.Array  # () [kg]
  ipos: jax.Array  # (3,) centre of mass in the body's frame [m]
  iquat: jax.Array  # (4,) principal axes in the body's frame
  inertia: jax.Array  # (3,) principal moments [kg m^2]


def from_theta(theta: jax.Array) -> Inertia:
  """Inertia of ten free numbers; `jax.vmap` for several bodies.

  Args:
    theta: (10,), see the module.

  Gradient: exact where the principal moments differ. Where two are equal, Model's form cannot express a product of inertia
  between their axes to first order; it is left out of the derivative, which stays finite.
  """
  a, d, (s12, s23, s13), t = theta[0], jnp.exp(theta[1:4]), theta[4:7], theta[7:]
  lower = jnp.zeros_like(a)
  root = jnp.stack([jnp.stack([d[0], s12, s13]), jnp.stack([lower, d[1], s23]), jnp.stack([lower, lower, d[2]])])
  return from_second_moments(jnp.exp(2 * a), t, _symmetric_product(root))


def from_second_moments(mass: jax.Array, ipos: jax.Array, second: jax.Array) -> Inertia:
  """Inertia of a mass, a centre of mass, and second moments (3, 3) about it per mass. Gradient: as of `from_theta`."""
  iquat, moment = _principal(second)
  # moment of inertia about an axis: the second moments along the two others
  return Inertia(mass, ipos, iquat, mass * (jnp.roll(moment, -1) + jnp.roll(moment, 1)))


def to_theta(x: Inertia) -> jax.Array:
  """The ten numbers (10,) of an inertia; the inverse of `from_theta` up to the order of the principal axes.

  The mass and the second moments have to be positive: no two principal moments may add up to the third, as they do for a
  flat body. What is below 1e-12 of the largest is taken for that.
  """
  moment = (0.5 * jnp.sum(x.inertia) - x.inertia) / x.mass
  moment = jnp.maximum(moment, 1e-12 * jnp.max(moment))
  axes = matrix(x.iquat / jnp.linalg.norm(x.iquat))
  s = _symmetric_product(axes * jnp.sqrt(moment))
  u33 = jnp.sqrt(s[2, 2])
  s13, s23 = s[0, 2] / u33, s[1, 2] / u33
  u22 = jnp.sqrt(s[1, 1] - s23 * s23)
  s12 = (s[0, 1] - s13 * s23) / u22
  u11 = jnp.sqrt(s[0, 0] - s12 * s12 - s13 * s13)
  head = jnp.stack([0.5 * jnp.log(x.mass), *(jnp.log(u) for u in (u11, u22, u33)), s12, s23, s13])
  return jnp.concatenate([head, x.ipos])


def get_inertia(m: mjx.Model, bodies: np.ndarray) -> jax.Array:
  """The ten numbers (n, 10) of some bodies of a model."""
  bodies = np.asarray(bodies)
  return jax.vmap(to_theta)(Inertia(m.body_mass[bodies], m.body_ipos[bodies], m.body_iquat[bodies], m.body_inertia[bodies]))


def with_inertia(m: mjx.Model, bodies: np.ndarray, theta: jax.Array) -> mjx.Model:
  """A model whose bodies (n,) have the inertias of theta (n, 10), and all that follows from them (`with_params`)."""
  x = jax.vmap(from_theta)(theta)
  fields = dict(body_mass=x.mass, body_ipos=x.ipos, body_iquat=x.iquat, body_inertia=x.inertia)
  bodies = np.asarray(bodies)
  return m.with_params(**{k: getattr(m, k).at[bodies].set(v) for k, v in fields.items()})


def _symmetric_product(a):
  """A A', symmetric to the last bit."""
  product = jnp.matmul(a, a.T, precision=jax.lax.Precision.HIGHEST)
  return 0.5 * (product + product.T)


def matrix(q):
  """Rotation matrix of a unit quaternion."""
  w, x, y, z = q
  return jnp.stack([
    jnp.stack([w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)]),
    jnp.stack([2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)]),
    jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z]),
  ])  # fmt: skip


@jax.custom_jvp
def _principal(s):
  """Unit quaternion of the principal axes of a symmetric matrix, and its eigenvalues, ascending."""
  value, axes = jnp.linalg.eigh(s)
  axes = axes * jnp.where(jnp.linalg.det(axes) < 0, jnp.array([1, 1, -1], s.dtype), 1)  # right-handed
  return _quaternion(axes), value


def _quaternion(r):
  """Unit quaternion of a rotation matrix, from the largest of its four squared components."""
  (a, b, c), (d, e, f), (g, h, i) = r
  rows = jnp.stack([
    jnp.stack([1 + a + e + i, h - f, c - g, d - b]),
    jnp.stack([h - f, 1 + a - e - i, b + d, c + g]),
    jnp.stack([c - g, b + d, 1 - a + e - i, f + h]),
    jnp.stack([d - b, c + g, f + h, 1 - a - e + i]),
  ])  # fmt: skip
  q = rows[jnp.argmax(jnp.diagonal(rows))]
  return q / jnp.linalg.norm(q)


@_principal.defjvp
def _principal_jvp(primals, tangents):
  (s,), (ds,) = primals, tangents
  q, value = _principal(s)
  axes = matrix(q)
  mixed = jnp.matmul(jnp.matmul(axes.T, ds, precision="highest"), axes, precision="highest")
  # R' dS R = [omega x, diag] + d diag: an off-diagonal entry turns its two axes by itself over the gap
  i, j = np.array([1, 2, 0]), np.array([2, 0, 1])
  gap = value[i] - value[j]
  apart = jnp.abs(gap) > 1e3 * jnp.finfo(s.dtype).eps * jnp.max(jnp.abs(value))
  omega = jnp.where(apart, mixed[i, j] / jnp.where(apart, gap, 1), 0)
  w, v = q[0], q[1:]
  dq = 0.5 * jnp.concatenate([-jnp.dot(v, omega)[None], w * omega + jnp.cross(v, omega)])
  return (q, value), (dq, jnp.diagonal(mixed))
