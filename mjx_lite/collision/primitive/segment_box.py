"""The segment of a capsule against a box: the nearest points of the segment and an edge, and the second contact.

The second contact is found from the first: the segment is followed over the nearest face, edge or corner of the box.

Tests: tests/collision/test_primitive.py, tests/gradients/test_ties.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.collision.shapes import only_where
from mjx_lite.math import safe, vector

# tolerances by dtype; single precision needs more than C's MINVAL. Squared sine of the angle up to which segment and edge are
# parallel, and relative difference up to which two distances are equal
TIES = {8: (0.0, 0.0), 4: (1e-10, 2e-6)}
_PERPENDICULAR = {8: 1e-9, 4: 1e-5}  # by dtype: cosine of segment and axis up to which they count as perpendicular


def _over(x: jax.Array) -> jax.Array:
  """Return the sign of x where x is outside of [-1, 1], else 0."""
  return jnp.where(jnp.abs(x) > 1, jnp.sign(x), 0)


def segment_edge(
  pos: jax.Array, half: jax.Array, size: jax.Array, axis: jax.Array, side: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Compute the closest points of the segment pos ± half and an edge of the box at the origin.

  Args:
    pos, half, size: (..., 3, W) centre and half vector of the segment, half sizes of the box [m].
    axis: (..., 3, W) one-hot, the axis of the edge.
    side: (..., 3, W) signs of the two coordinates across the edge.

  Returns:
    Four arrays (..., W): the weight in [-1, 1] on the segment; the weight in [-1, 1] on the edge; the end ±1 of the edge to
    which the weight was last clipped, 0 if it was never clipped; the squared distance [m^2], `NO_CONTACT` if segment and edge
    are parallel.
  """
  reach = vector.dot(axis, size)
  between = side * size - pos
  aa, ab, bb = reach * reach, -reach * vector.dot(axis, half), vector.dot(half, half)
  u, v = -reach * vector.dot(axis, between), vector.dot(half, between)
  across = jnp.where(axis, 0, half)
  det = aa * vector.dot(across, across)

  # nearest points of the infinite lines; then clip the weight on the edge, then the weight on the segment
  on_edge, on_seg = safe.divide(bb * u - ab * v, det), safe.divide(aa * v - ab * u, det)
  end = _over(on_edge)
  on_seg = jnp.where(end == 0, on_seg, safe.divide(v - ab * end, bb))
  tip = _over(on_seg)
  again = safe.divide(u - ab * tip, aa)
  on_edge = jnp.clip(jnp.where(tip == 0, on_edge, again), -1, 1)
  end = jnp.where((tip == 0) | (_over(again) == 0), end, _over(again))
  on_seg = jnp.clip(on_seg, -1, 1)

  between = between - on_seg[..., None, :] * half + on_edge[..., None, :] * axis * size
  crosses = det >= jnp.maximum(safe.MINVAL, TIES[det.dtype.itemsize][0] * aa * bb)
  return on_seg, on_edge, end, only_where(crosses, vector.dot(between, between))


class First(NamedTuple):
  """A capsule's first contact with a box, in the frame of the box.

  Attributes:
    pos, half, size: (P, 3, W) segment pos ± half, half sizes of the box [m].
    exact: (P, 3, W) mask of the components of `half` that are zero without rounding.
    weight: (P, W) of the first point on the segment.
    on_edge: (P, W) weight of the nearest point on the nearest edge.
    axis, corner: (P, 3, W) one-hot axis of the nearest edge, and the signs of its nearest corner.
    is_face, is_edge: (P, W) whether the nearest feature is a face or an edge; else the nearest feature is a corner.
  """

  pos: jax.Array
  half: jax.Array
  exact: jax.Array
  size: jax.Array
  weight: jax.Array
  on_edge: jax.Array
  axis: jax.Array
  corner: jax.Array
  is_face: jax.Array
  is_edge: jax.Array


class _Slopes(NamedTuple):
  """The segment of a capsule against the axes of a box, all (P, 3, W).

  Attributes:
    upward: whether the component along the axis is positive.
    differs: whether the segment leads from the nearest corner towards the other side.
    is_open: whether the segment is perpendicular to the axis up to rounding, but not exactly.
    tilt: `half`, with zeros along axes to which the segment is perpendicular [m].
    slope: absolute value of `tilt` [m].
    span: weight by which the segment crosses the box along the axis.
  """

  upward: jax.Array
  differs: jax.Array
  is_open: jax.Array
  tilt: jax.Array
  slope: jax.Array
  span: jax.Array


class _Path(NamedTuple):
  """The path from the first contact to the second, each (P, W): direction, maximum length, and whether there is a path."""

  direction: jax.Array
  limit: jax.Array
  ok: jax.Array


def second_weight(c: First) -> tuple[jax.Array, jax.Array]:
  """Compute the weight (P, W) of a capsule's second contact on its segment, and whether there is a second contact (P, W).

  The second point is found from the first point: follow the segment until it ends or leaves the face or edge of the box.
  """
  s = _slopes(c)
  face, edge, corner = _path_over_face(c, s), _path_over_edge(c, s), _path_over_corner(c, s)
  path = [
    jnp.where(c.is_face, on_face, jnp.where(c.is_edge, on_edge, on_corner))
    for on_face, on_edge, on_corner in zip(face, edge, corner, strict=True)
  ]
  direction, limit, ok = path
  return c.weight + direction * jnp.minimum(1 - direction * c.weight, limit), ok


def _slopes(c: First) -> _Slopes:
  upward = c.half > 0
  differs = upward != (c.corner > 0)
  # an axis is open if the segment is perpendicular to it: rounding must not decide there whether and where there is a second
  # contact. A segment level with a side would leave the box after one rounding error divided by another
  is_open = c.half * c.half <= _PERPENDICULAR[c.half.dtype.itemsize] ** 2 * vector.dot(c.half, c.half)[..., None, :]
  tilt = jnp.where(is_open, 0, c.half)
  is_open &= ~c.exact
  slope = jnp.abs(tilt)
  span = only_where(slope >= safe.MINVAL, safe.divide(2 * c.size, slope))
  inside_edge = (c.is_edge & ~c.is_face)[..., None, :] & c.axis
  none_differs = ~jnp.any(differs & ~is_open & ~inside_edge, axis=-2)
  differs = jnp.where(is_open, none_differs[..., None, :], differs)
  return _Slopes(upward=upward, differs=differs, is_open=is_open, tilt=tilt, slope=slope, span=span)


def _path_over_face(c: First, s: _Slopes) -> _Path:
  """Go to the point where the segment leaves the sides of the face; one end of the segment is above the face."""
  end = c.pos + c.weight[..., None, :] * c.half
  outside = jnp.abs(end) > c.size
  toward = -c.weight
  exits = jnp.stack([c.size - end, -c.size - end], axis=1) * safe.divide(toward[..., None, :], s.tilt)[:, None]
  limit = jnp.min(jnp.where((exits > 0) & ~outside[:, None], exits, 2), axis=(1, 2))
  return _Path(toward, limit, jnp.any(outside, axis=-2))


def _path_over_edge(c: First, s: _Slopes) -> _Path:
  """Go over that face beside the edge with which the segment makes the smaller angle; the segment crosses the edge."""
  across = s.differs & ~c.axis
  next1, next2 = jnp.roll(c.axis, 1, axis=-2), jnp.roll(c.axis, 2, axis=-2)
  flat = jnp.where((vector.dot(next1, s.slope) > vector.dot(next2, s.slope))[..., None, :], next1, next2)
  direction = jnp.where(jnp.any(across & flat, axis=-2), 1, -1)
  up = jnp.where(jnp.any(c.axis & s.upward, axis=-2), 1, -1)
  along = 0.5 * vector.dot(c.axis, s.span) * (1 - up * direction * c.on_edge)
  along = only_where(~jnp.any(c.axis & s.is_open, axis=-2), along)
  limit = jnp.minimum(vector.dot(flat, s.span), along)
  return _Path(direction, limit, jnp.sum(across, axis=-2) == 1)


def _path_over_corner(c: First, s: _Slopes) -> _Path:
  """Follow the edge to which the segment is nearly parallel, else go over the face across that edge."""
  count = jnp.sum(s.differs, axis=-2)
  one = count == 1
  special = s.differs == one[..., None, :]
  follow = 2 * vector.dot(special, c.half * c.half) > vector.dot(c.half, c.half)
  direction = jnp.where(one == follow, 1, -1)
  limit = jnp.min(only_where(special == follow[..., None, :], s.span), axis=-2)
  return _Path(direction, limit, one | (count == 2))
