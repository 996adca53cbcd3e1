"""Lower bound of the distance of two boxes, by separating axes.

Tests: tests/collision/test_capacity.py, tests/collision/test_convex.py.
"""

import functools

import jax
import jax.numpy as jnp

from mjx_lite.math import safe
from mjx_lite.ops import linear

PARALLEL = 0.05  # sine of the angle below which two edges count as parallel: their cross product is then no axis


def separation(offset: jax.Array, rotation: jax.Array, half_a: jax.Array, half_b: jax.Array) -> jax.Array:
  """Return a lower bound (n, W) of the distance of two boxes [m], negative where the boxes overlap.

  The bound is the largest gap along the separating axes: the face normals and the cross products of edges. The code is written
  component by component, so that XLA makes one kernel without reductions.

  Args:
    offset: (n, 3, W) centre of the second box in the frame of the first box [m].
    rotation: (n, 3, 3, W) rotation of the second box relative to the first box.
    half_a, half_b: (n, 3, W or 1) half sizes of the first and the second box [m].
  """
  offset, rotation = linear.materialize((offset, rotation))
  t, a, b = ([x[:, i] for i in range(3)] for x in (offset, half_a, half_b))
  r = [[rotation[:, i, j] for j in range(3)] for i in range(3)]
  size = [[jnp.abs(x) for x in row] for row in r]
  gaps = []
  for i in range(3):
    reach = a[i] + b[0] * size[i][0] + b[1] * size[i][1] + b[2] * size[i][2]
    gaps.append(jnp.abs(t[i]) - reach)
    reach = b[i] + a[0] * size[0][i] + a[1] * size[1][i] + a[2] * size[2][i]
    gaps.append(jnp.abs(t[0] * r[0][i] + t[1] * r[1][i] + t[2] * r[2][i]) - reach)
  for i in range(3):
    for n in range(3):
      # cross product of axis i of the first box and axis n of the second box; its length is not 1
      (j, k), (p, q) = ((i + 1) % 3, (i + 2) % 3), ((n + 1) % 3, (n + 2) % 3)
      length = safe.sqrt(jnp.maximum(1 - r[i][n] * r[i][n], 0))
      reach = a[j] * size[k][n] + a[k] * size[j][n] + b[p] * size[i][q] + b[q] * size[i][p]
      gap = (jnp.abs(t[k] * r[j][n] - t[j] * r[k][n]) - reach) / jnp.maximum(length, PARALLEL)
      gaps.append(jnp.where(length > PARALLEL, gap, -jnp.inf))
  return functools.reduce(jnp.maximum, gaps)
