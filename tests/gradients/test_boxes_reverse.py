"""Boxes that lie upon each other: reverse mode, which computes each step anew, goes with forward mode, which does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweep import state_of

import mjx_lite as mjx


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
