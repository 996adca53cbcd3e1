"""Frames, segments and boxes.

Tests: tests/collision/test_primitive.py, tests/collision/test_contact_rules.py.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, vector


def make_frame(normal: jax.Array, tangent: jax.Array | None = None) -> jax.Array:
  """Return a right-handed frame (..., 3, 3, W) with the axes as rows: the unit normal, then two tangents.

  The first tangent is the given direction, made orthogonal to the normal. Without a direction, or where the direction is
  shorter than 1/2, the y axis is used, or the z axis where the normal is within 60 degrees of the y axis.

  Source: `mju_makeFrame`.
  """
  x = safe.normalize(normal)
  near_y = jnp.abs(x[..., 1:2, :]) >= 0.5
  axes = np.eye(3, dtype=x.dtype)[..., None]
  hint = jnp.where(near_y, axes[2], axes[1])
  if tangent is not None:
    given = vector.dot(tangent, tangent)[..., None, :] >= 0.25
    hint = jnp.where(given, tangent, hint)
  y = safe.normalize(hint - vector.dot(hint, x)[..., None, :] * x)
  return jnp.stack([x, y, vector.cross(x, y)], axis=-3)
