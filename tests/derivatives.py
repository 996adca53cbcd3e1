"""Reverse = forward = central differences, with two compiled programs whatever the number of arguments."""

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx


def assert_gradients(f, at, directions, *, names=None, rtol=2e-5, atol=1e-5, eps=1e-6):
  """Derivatives of a scalar function of arrays along a direction, argument by argument.

  Args:
    f: function of the arrays in `at`
    at: where
    directions: one array per argument
    names: of the arguments, for messages
    rtol, atol: of the differences; forward and reverse have to agree to round-off
    eps: length of a difference

  Returns:
    The gradients.
  """
  names = names or [f"argument {k}" for k in range(len(at))]
  grads = mjx.jit(jax.grad(f, argnums=range(len(at))))(*at)
  both = mjx.jit(lambda x, t: jax.jvp(f, x, t))
  zeros = tuple(jnp.zeros_like(x) for x in at)
  for k, (x, g, direction) in enumerate(zip(at, grads, directions, strict=True)):
    assert np.isfinite(g).all(), names[k]
    tangents = (*zeros[:k], jnp.asarray(direction, x.dtype), *zeros[k + 1 :])
    along = float(jnp.vdot(g, tangents[k]))
    np.testing.assert_allclose(both(tuple(at), tangents)[1], along, rtol=1e-8, atol=1e-10, err_msg=names[k])
    ends = [both((*at[:k], x + s * eps * tangents[k], *at[k + 1 :]), zeros)[0] for s in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * eps), along, rtol=rtol, atol=atol, err_msg=names[k])
  return grads
