"""Quotients whose denominator may be zero: finite derivatives in single precision, of first and second order."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.math import safe
from mjx_lite.smooth import geom_const

MOTOR = """
<mujoco>
<worldbody><body><joint name="j" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 -.3"/></body></worldbody>
<actuator><dcmotor joint="j" motorconst=".05" resistance="2" {motor}/></actuator></mujoco>
"""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("den", [0.0, 1e-30, 1e-14, 1e-12, 1e-3, 2.0])
@pytest.mark.parametrize("num", [0.0, 1.0, -10.0])
def test_value_and_derivatives(num, den, dtype):
  x, y = (jnp.asarray(k, dtype) for k in (num, den))
  least = max(1e-15, safe.smallest(dtype))
  np.testing.assert_allclose(safe.quotient(x, y), num / max(den, least), rtol=1e-6)
  by_num, by_den = jax.grad(safe.quotient, (0, 1))(x, y)
  np.testing.assert_allclose(by_num, 1 / max(den, least), rtol=1e-6)
  np.testing.assert_allclose(by_den, -num / den**2 if den > least else 0, rtol=1e-5)
  for first in (jax.jacfwd, jax.jacrev):
    assert all(np.isfinite(h).all() for h in jax.tree.leaves(first(jax.jacfwd(safe.quotient, (0, 1)), (0, 1))(x, y)))


@pytest.mark.parametrize("transform", ["eager", "jit", "vmap"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("motor", ['lugre="1000 1"', 'lugre="1000 1 .1 .2 0"'])
def test_bristles_without_friction(motor, dtype, transform):
  """The gradient of a rollout over the controls, beside differences in double precision."""

  def build(dtype):
    model = mujoco.MjModel.from_xml_string(MOTOR.format(motor=motor))
    m = mjx.put_model(model, dtype=dtype)
    start = mjx.make_data(m)

    def last(ctrl):
      def step(d, u):
        return mjx.step(m, d.replace(ctrl=u)), None

      return 1e4 * jax.lax.scan(step, start, ctrl)[0].qpos[0]

    return last

  ctrl = np.array([[1.0], [3.0], [10.0], [2.0], [1.0]])
  grad = jax.grad(build(dtype))
  if transform == "vmap":
    found = jax.jit(jax.vmap(grad))(jnp.asarray(np.stack([ctrl, ctrl]), dtype))[1]
  else:
    found = (jax.jit(grad) if transform == "jit" else grad)(jnp.asarray(ctrl, dtype))
  exact, h = jax.jit(build(np.float64)), 1e-4
  eye = np.eye(5)[..., None]
  right = np.array([(exact(ctrl + h * e) - exact(ctrl - h * e)) / (2 * h) for e in eye])
  np.testing.assert_allclose(found[:, 0], right, rtol=2e-3 if dtype == np.float32 else 1e-4, atol=1e-3 * np.abs(right).max())


def test_spheres_have_second_derivatives_of_added_mass():
  """Ellipsoids with equal semi-axes, where the denominators of their inertias are zero."""
  axes = jnp.full((1, 3, 1), 0.1, jnp.float32)
  first = jax.jacfwd(geom_const.added_mass)(axes)
  assert np.isfinite(first).all() and np.abs(first).max() > 0
  assert np.isfinite(jax.jacfwd(jax.jacfwd(geom_const.added_mass))(axes)).all()
