"""Boxes that lie upon each other: reverse mode, which computes each step anew, goes with forward mode, which does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep import state_of

import mjx_lite as mjx
from mjx_lite.collision.primitive.box import _local_sphere_box


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_round_off_does_not_turn_the_derivative_of_a_sphere_level_with_a_side(dtype):
  """A capsule's second sphere stands so where the capsule leaves a face."""
  size = jnp.asarray([[0.2], [0.15], [0.1]], dtype)

  def normal(center, size):
    return _local_sphere_box(center, jnp.full(1, 0.05, dtype), size)[2][0, 0]

  for toward in (0, 1):
    center = size.at[0].set(np.nextafter(dtype(0.2), dtype(toward))).at[1].set(0.0).at[2].set(0.14)
    for slope in jax.grad(normal, argnums=(0, 1))(center, size):
      np.testing.assert_array_equal(slope, 0)


@pytest.mark.slow
def test_reverse_mode_is_forward_mode_where_boxes_rest():
  model, data = state_of("boxes")
  m, rng = mjx.put_model(model, dtype=np.float64), np.random.default_rng(1)
  d = mjx.put_data(m, data)
  d = d.replace(**{k: getattr(d, k) * (1 + 2.0**-24 * rng.uniform(-1, 1, getattr(d, k).shape)) for k in ("qpos", "qvel")})
  one = jnp.zeros(m.geom_size.shape).at[1, 0].set(1.0)

  def last(size):
    moved = m.with_params(geom_size=m.geom_size + size * one)
    return jnp.dot(mjx.rollout(moved, d, steps=72)[1]["qpos"][-1], np.arange(1, 1 + m.nq))

  reverse = mjx.jit(jax.grad(last))(0.0)
  forward = mjx.jit(lambda s: jax.jvp(last, (s,), (1.0,)))(0.0)[1]
  np.testing.assert_allclose(reverse, forward, rtol=1e-8)
