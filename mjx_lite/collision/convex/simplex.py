"""The point of a simplex nearest to the origin.

Tests: tests/collision/test_convex.py, tests/collision/test_shortest_way.py.
"""

import functools

import jax
import jax.numpy as jnp

from mjx_lite.math import vector
from mjx_lite.ops import linear

_NARROW = 32.0  # a triangle has a normal if its width is above this multiple of the rounding of its corners


def nearest(y: jax.Array, on: jax.Array, w: jax.Array, away: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Find the point nearest to the origin on the simplex of w and y, among the faces that contain w.

  Args:
    y: (P, 3, 3, W) vertices.
    on: (P, 3, W) mask of the vertices that exist.
    w: (P, 3, W) the new vertex.
    away: (P, 3, W) a direction.

  Returns:
    the point (P, 3, W); a mask (P, 3, W) of the vertices that span its face together with w; whether the origin is inside of
    the tetrahedron (P, W); if so, the distance (P, W) from the origin to the outside in direction `away`.
  """
  e = linear.materialize(y - w[:, None])
  n = [vector.cross(e[:, (k + 1) % 3], e[:, (k + 2) % 3]) for k in range(3)]
  n = linear.materialize(jnp.stack(n, axis=1))  # normal of the triangle of w and y without vertex k
  length2, area2 = ([vector.dot(x[:, k], x[:, k]) for k in range(3)] for x in (e, n))
  w2 = vector.dot(w, w)
  tiny = jnp.finfo(w.dtype).eps

  # every edge and triangle with w: the bits of its other vertices, and the squared distance of its line or plane
  best2, best = w2, jnp.zeros(w2.shape, jnp.int32)
  for i in range(3):
    t = _ratio(-vector.dot(e[:, i], w), length2[i])
    foot = w + t[:, None] * e[:, i]
    size2 = vector.dot(foot, foot)
    better = on[:, i] & (t > 0) & (t < 1) & (size2 < best2)
    best, best2 = jnp.where(better, 1 << i, best), jnp.where(better, size2, best2)
  for k in range(3):
    i, j = (k + 1) % 3, (k + 2) % 3
    turned, height = vector.cross(n[:, k], w), vector.dot(n[:, k], w)
    s, t = _ratio(-vector.dot(e[:, j], turned), area2[k]), _ratio(vector.dot(e[:, i], turned), area2[k])
    longest2 = jnp.maximum(length2[i], length2[j])
    wide = area2[k] > (_NARROW * tiny) ** 2 * longest2 * (w2 + longest2)
    size2 = _ratio(height * height, area2[k])
    better = on[:, i] & on[:, j] & (s > 0) & (t > 0) & (s + t < 1) & wide & (size2 < best2)
    best, best2 = jnp.where(better, 7 - (1 << k), best), jnp.where(better, size2, best2)
  best = linear.materialize(best)
  span = jnp.stack([best & 1 << k != 0 for k in range(3)], axis=1)
  edge, normal = (vector.add(jnp.where((best == b)[:, None], x[:, k], 0) for k, b in enumerate(bits))
                  for x, bits in ((e, (1, 2, 4)), (n, (6, 5, 3))))  # fmt: skip
  foot = w - _ratio(vector.dot(edge, w), vector.dot(edge, edge))[:, None] * edge
  # for a triangle, use the normal: for a narrow triangle, sums of its edges have errors of many times the width
  above = _ratio(vector.dot(normal, w), vector.dot(normal, normal))[:, None] * normal
  is_triangle = (best & (best - 1)) > 0  # more than one bit
  point = jnp.where(is_triangle[:, None], above, foot)

  # the origin is inside of the tetrahedron if it is on the inner side of all faces
  volume = vector.dot(e[:, 0], n[:, 0])
  weight = [-vector.dot(w, n[:, k]) for k in range(3)]
  sign = jnp.where(volume < 0, -1, 1)
  last = jnp.abs(volume) - sign * (weight[0] + weight[1] + weight[2])
  inside = on.all(axis=1) & (jnp.abs(volume) > 0) & (last >= 0)
  height = [sign * x for x in weight]
  for x in height:
    inside &= x >= 0
  fall = [-sign * vector.dot(away, n[:, k]) for k in range(3)]
  fall.append(-(fall[0] + fall[1] + fall[2]))
  out = [jnp.where(f > 0, _ratio(h, f), jnp.inf) for h, f in zip((*height, last), fall, strict=True)]
  return point, span, inside, functools.reduce(jnp.minimum, out)


def _ratio(x: jax.Array, y: jax.Array) -> jax.Array:
  """Return x / y, or x where y is zero; y is not negative."""
  return x / jnp.where(y > 0, y, 1)
