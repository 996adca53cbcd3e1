"""Inertial parameters that are physical for all values: the log-Cholesky form of the pseudo-inertia.

A mass distribution has the second moments J = sum of dm [p; 1][p; 1]' (4x4), and every positive definite J belongs to some
distribution. Let J = U U' for an upper triangular U with positive diagonal, written as

  U = e^a [e^d1 s12 s13 t1; 0 e^d2 s23 t2; 0 0 e^d3 t3; 0 0 0 1],

Then the ten numbers theta = (a, d1, d2, d3, s12, s23, s13, t1, t2, t3) are unconstrained. The mass is e^(2 a), the center of
mass is t, and the second moments about the center of mass are e^(2 a) L L', with L the upper left 3x3 block of U without e^a.
Gradient descent on theta cannot leave the set of physical inertias.

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
  """Convert ten unconstrained numbers to an inertia; use `jax.vmap` for several bodies.

  Args:
    theta: (10,), see the module's docstring.

  Gradient: exact where the principal moments differ. If two moments are equal, Model's form cannot express a product of
  inertia between their two axes to first order. The derivative omits this product of inertia and stays finite.
  """
  a, d, (s12, s23, s13), t = theta[0], jnp.exp(theta[1:4]), theta[4:7], theta[7:]
  lower = jnp.zeros_like(a)
  root = jnp.stack([jnp.stack([d[0], s12, s13]), jnp.stack([lower, d[1], s23]), jnp.stack([lower, lower, d[2]])])
  return from_second_moments(jnp.exp(2 * a), t, _symmetric_product(root))


def from_second_moments(mass: jax.Array, ipos: jax.Array, second: jax.Array) -> Inertia:
  """Compute the inertia from mass, center of mass, and second moments (3, 3) per mass about the center of mass.

  Gradient: as that of `from_theta`.
  """
  iquat, moment = _principal(second)
  # moment of inertia about an axis: sum of the second moments along the other two axes
  return Inertia(mass, ipos, iquat, mass * (jnp.roll(moment, -1) + jnp.roll(moment, 1)))


def to_theta(x: Inertia) -> jax.Array:
  """Convert an inertia to theta (10,); the inverse of `from_theta` up to the order of the principal axes.

  The mass and the second moments must be positive. So no two principal moments may add up to the third, as for a flat body.
  A second moment below 1e-12 of the largest is raised to this value.
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
  """Return theta (n, 10) of the bodies with the given ids (n,)."""
  bodies = np.asarray(bodies)
  return jax.vmap(to_theta)(Inertia(m.body_mass[bodies], m.body_ipos[bodies], m.body_iquat[bodies], m.body_inertia[bodies]))


def with_inertia(m: mjx.Model, bodies: np.ndarray, theta: jax.Array) -> mjx.Model:
  """Return the model in which the bodies (n,) have the inertias of theta (n, 10); `with_params` updates dependent fields."""
  x = jax.vmap(from_theta)(theta)
  fields = dict(body_mass=x.mass, body_ipos=x.ipos, body_iquat=x.iquat, body_inertia=x.inertia)
  bodies = np.asarray(bodies)
  return m.with_params(**{k: getattr(m, k).at[bodies].set(v) for k, v in fields.items()})


def _symmetric_product(a):
  """Compute A A', exactly symmetric."""
  product = jnp.matmul(a, a.T, precision=jax.lax.Precision.HIGHEST)
  return 0.5 * (product + product.T)


def matrix(q):
  """Convert a unit quaternion to a rotation matrix (3, 3)."""
  w, x, y, z = q
  return jnp.stack([
    jnp.stack([w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)]),
    jnp.stack([2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)]),
    jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z]),
  ])  # fmt: skip


@jax.custom_jvp
def _principal(s):
  """Return the unit quaternion of the principal axes of a symmetric matrix, and its eigenvalues, ascending."""
  value, axes = jnp.linalg.eigh(s)
  axes = axes * jnp.where(jnp.linalg.det(axes) < 0, jnp.array([1, 1, -1], s.dtype), 1)  # right-handed
  return _quaternion(axes), value


def _quaternion(r):
  """Convert a rotation matrix to a unit quaternion, from the largest of the four squared components."""
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
  # R' dS R = [omega x, diag] + d diag: an off-diagonal entry rotates its two axes by entry / gap of the eigenvalues
  i, j = np.array([1, 2, 0]), np.array([2, 0, 1])
  gap = value[i] - value[j]
  distinct = jnp.abs(gap) > 1e3 * jnp.finfo(s.dtype).eps * jnp.max(jnp.abs(value))
  omega = jnp.where(distinct, mixed[i, j] / jnp.where(distinct, gap, 1), 0)
  w, v = q[0], q[1:]
  dq = 0.5 * jnp.concatenate([-jnp.dot(v, omega)[None], w * omega + jnp.cross(v, omega)])
  return (q, value), (dq, jnp.diagonal(mixed))
