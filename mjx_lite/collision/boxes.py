"""Distance of two boxes from below."""

import jax
import jax.numpy as jnp

from mjx_lite.math import safe, vector

_PARALLEL = 0.05  # sine of the angle below which two edges are left to the faces' normals


def separation(offset: jax.Array, turn: jax.Array, half_a: jax.Array, half_b: jax.Array) -> jax.Array:
  """How far apart (n, W) two boxes are at least, along the normals of their faces and across their edges; negative in overlap.

  Args:
    offset: (n, 3, W) centre of the second in the frame of the first [m].
    turn: (n, 3, 3, W) orientation of the second in that frame.
    half_a, half_b: (n, 3, W or 1) half sizes [m].
  """
  size = jnp.abs(turn)
  of_a = jnp.max(jnp.abs(offset) - half_a - vector.mat_vec(size, half_b), axis=1)
  of_b = jnp.max(jnp.abs(vector.mat_t_vec(turn, offset)) - half_b - vector.mat_t_vec(size, half_a), axis=1)
  best = jnp.maximum(of_a, of_b)
  for i in range(3):
    j, k = (i + 1) % 3, (i + 2) % 3
    # first the cross products of axis i of the first with all axes of the second, not of unit length
    length = safe.sqrt(jnp.maximum(1 - turn[:, i] * turn[:, i], 0))
    along = jnp.abs(offset[:, k, None] * turn[:, j] - offset[:, j, None] * turn[:, k])
    reach_a = half_a[:, j, None] * size[:, k] + half_a[:, k, None] * size[:, j]
    others = (1, 2), (2, 0), (0, 1)
    reach_b = jnp.stack([half_b[:, m] * size[:, i, n] + half_b[:, n] * size[:, i, m] for m, n in others], axis=1)
    gap = jnp.where(length > _PARALLEL, (along - reach_a - reach_b) / jnp.maximum(length, _PARALLEL), -jnp.inf)
    best = jnp.maximum(best, jnp.max(gap, axis=1))
  return best
