"""The log-Cholesky form of inertias: inverse, what it means, derivatives, a model with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.sysid import inertia


@jax.jit
def tensor(theta):
  """What the physics depends on: inertia matrix (9), centre of mass, mass."""
  x = inertia.from_theta(theta)
  w, v = x.iquat[0], x.iquat[1:]
  skew = jnp.stack([jnp.cross(v, e) for e in jnp.eye(3)], axis=1)
  r = (w * w - v @ v) * jnp.eye(3) + 2 * jnp.outer(v, v) + 2 * w * skew
  return jnp.concatenate([((r * x.inertia) @ r.T).ravel(), x.ipos, x.mass[None]])


@jax.jit
def differences(theta, h):
  """Central differences, a column per number."""
  return jax.vmap(lambda e: (tensor(theta + h * e) - tensor(theta - h * e)) / (2 * h), out_axes=1)(jnp.eye(10))


jacobian = jax.jit(jax.jacrev(tensor))
there_and_back = jax.jit(lambda x: inertia.to_theta(inertia.from_theta(x)))


@pytest.fixture(scope="module")
def theta():
  return jnp.asarray(0.3 * np.random.default_rng(0).normal(size=10))


def test_is_the_pseudo_inertia(theta):
  (a, d1, d2, d3, s12, s23, s13, *t), e = np.asarray(theta), np.exp
  u = e(a) * np.array([[e(d1), s12, s13, t[0]], [0, e(d2), s23, t[1]], [0, 0, e(d3), t[2]], [0, 0, 0, 1]])
  j = u @ u.T
  second = j[:3, :3] - np.outer(j[:3, 3], j[:3, 3]) / j[3, 3]
  expected = [*(np.trace(second) * np.eye(3) - second).ravel(), *(j[:3, 3] / j[3, 3]), j[3, 3]]
  np.testing.assert_allclose(tensor(theta), expected, rtol=1e-12, atol=1e-14)
  np.testing.assert_allclose(there_and_back(theta), theta, rtol=1e-12, atol=1e-14)


def test_derivatives(theta):
  expected = differences(theta, 1e-6)
  np.testing.assert_allclose(jax.jit(jax.jacfwd(tensor))(theta), expected, atol=1e-8)
  np.testing.assert_allclose(jacobian(theta), expected, atol=1e-8)
  np.testing.assert_allclose(jax.jit(jax.jacfwd(there_and_back))(theta), np.eye(10), atol=1e-12)


def test_equal_moments_are_finite():
  """A ball: the products of inertia have no derivative there, everything else has."""
  ball = jnp.zeros(10)
  j, known = jacobian(ball), np.array([0, 1, 2, 3, 7, 8, 9])
  assert np.isfinite(j).all()
  np.testing.assert_allclose(j[:, known], differences(ball, 1e-6)[:, known], atol=1e-8)
  assert np.isfinite(jax.jit(jax.hessian(lambda x: tensor(x).sum()))(ball)).all()


def test_model_with_inertia():
  m = mjx.put_model(load("boxes"))
  bodies = np.array([1, 2])
  same = mjx.jit(lambda m: inertia.with_inertia(m, bodies, inertia.get_inertia(m, bodies)))(m)
  for field in ("body_mass", "body_ipos", "body_subtreemass", "dof_invweight0"):
    np.testing.assert_allclose(getattr(same, field), getattr(m, field), rtol=1e-9, atol=1e-12, err_msg=field)
