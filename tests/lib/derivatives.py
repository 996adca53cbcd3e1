"""Derivatives = central differences, with one compiled program whatever the number of arguments; two with forward mode."""

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx


def assert_gradients(f, at, directions, *, names=None, rtol=2e-5, atol=1e-5, eps=1e-6, forward=False):
  """Derivatives of a scalar function of arrays along a direction, argument by argument.

  Args:
    f: function of the arrays in `at`
    at: where
    directions: one array per argument
    names: of the arguments, for messages
    rtol, atol: of the differences
    eps: length of a difference
    forward: whether forward mode is looked at too, which has to agree with reverse to round-off. The engine's own rules are
      of forward mode and JAX transposes them, so where reverse is right forward is; this says so of some whole steps

  Returns:
    The gradients.
  """
  names = names or [f"argument {k}" for k in range(len(at))]
  both = mjx.jit(jax.value_and_grad(f, argnums=range(len(at))))
  along_all = mjx.jit(lambda x, t: jax.jvp(f, x, t)[1]) if forward else None
  grads = both(*at)[1]
  zeros = tuple(jnp.zeros_like(x) for x in at)
  for k, (x, g, direction) in enumerate(zip(at, grads, directions, strict=True)):
    assert np.isfinite(g).all(), names[k]
    tangent = jnp.asarray(direction, x.dtype)
    along = float(jnp.vdot(g, tangent))
    if along_all is not None:
      tangents = (*zeros[:k], tangent, *zeros[k + 1 :])
      np.testing.assert_allclose(along_all(tuple(at), tangents), along, rtol=1e-8, atol=1e-10, err_msg=names[k])
    ends = [both(*at[:k], x + s * eps * tangent, *at[k + 1 :])[0] for s in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / (2 * eps), along, rtol=rtol, atol=atol, err_msg=names[k])
  return grads
