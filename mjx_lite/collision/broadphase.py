"""Capacities of contacts: which candidates the narrow phase treats, and which of its slots are kept.

Where a group of candidates has a budget, the nearest ones by their bounds are chosen, world by world. The contacts of all
groups then move up into few slots, in MuJoCo's order. What does not fit is counted, and marked in Data's status.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import boxes
from mjx_lite.core import linear
from mjx_lite.core.enums import GeomType
from mjx_lite.core.select import rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe, vector
from mjx_lite.math.once import once

ROUND = frozenset(("sphere-sphere", "sphere-capsule", "capsule-capsule"))  # groups of shapes around segments
_AT_A_TIME = 64  # pairs whose bounds are made, or left out, in one go
_FEW_TREES = 16  # pairs of geoms for each of trees, from which on to look at the trees first costs nothing
_GROUP = 32  # candidates of which the largest is looked at first
_EXACT = 1 << 24  # integers below are exact in float32, whose `top_k` is faster


class Capacity(NamedTuple):
  """How much may touch at a time; None: all that can."""

  ncon_max: int | None = None
  pair_max: int | Mapping[str, int] | None = None

  def budget(self, group: str, size: int) -> int:
    """How many of the candidates of a group, of which there are `size`, go to the narrow phase."""
    bound = self.pair_max.get(group) if isinstance(self.pair_max, Mapping) else self.pair_max
    return size if bound is None else min(int(bound), size)


NO_BOUND = Capacity()


class Balls(NamedTuple):
  """Bounding spheres of all geoms; those of planes mean nothing."""

  pos: jax.Array
  radius: jax.Array


class Boxes(NamedTuple):
  """Boxes along the geoms' axes."""

  center: jax.Array
  half: jax.Array
  mat: jax.Array


class Segments(NamedTuple):
  """What spheres and capsules are around; the segments of spheres are points."""

  pos: jax.Array
  axis: jax.Array
  length: jax.Array  # half of it
  thick: jax.Array  # radius around it


class Bounds(NamedTuple):
  """Of all geoms; a geom has segments or boxes, or both, whatever its type, and those that are right are taken."""

  balls: Balls
  boxes: Boxes
  segments: Segments


def bounds(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Bounds:
  """Bounds from poses, `geom_rbound`, `geom_aabb` and `geom_size`. Gradient: none."""
  pos, mat, aabb, size, radius = jax.lax.stop_gradient((geom_xpos, geom_xmat, m.geom_aabb, m.geom_size, m.geom_rbound))
  length = size[:, 1] * (m.geom_type == GeomType.CAPSULE)[:, None]
  center = pos + vector.mat_vec(mat, aabb[:, :3])
  return Bounds(Balls(pos, radius), Boxes(center, aabb[:, 3:], mat), Segments(pos, mat[:, :, 2], length, size[:, 0]))


def overlap(
  b: Bounds, geom1: np.ndarray, geom2: np.ndarray, group: str, reach: jax.Array, tree: np.ndarray, tiled: bool
) -> jax.Array:
  """How far geoms (n,) of a group are within reach (n, W or 1) of each other at most (W, n) [m]; negative of others.

  By bounding spheres and by the shapes. Where worlds are few at a time (tiles), pairs are, too, and looked at no closer than
  needed: -inf where all geoms are apart, in all worlds, from the boxes around the others' trees, by the spheres alone where all
  of these are apart.

  Args:
    b: of all geoms.
    geom1, geom2: pairs; those of the same trees had better follow each other.
    group: name of the pairs' types.
    reach: margin + gap.
    tree: (ngeom,) a number for the tree that a geom belongs to.
    tiled: whether worlds are few.

  Source: `mj_filterSphere`, `mj_collideOBB`.
  """
  reach = jax.lax.stop_gradient(reach)
  shapes, better = (b.segments, _of_segments) if group in ROUND else (b.boxes, _of_boxes)
  index, flat = np.stack([geom1, geom2]).astype(np.int32), _Flat(b.balls, shapes)

  def some(take):
    both = flat.rows(take(jnp.asarray(index), 1))
    (one, first), (two, second) = (flat.parts([x[i] for x in both]) for i in range(2))
    balls = take(reach) + one.radius + two.radius - safe.norm(one.pos - two.pos)

    def by_shapes(balls):
      return linear.apart(jnp.minimum(balls, take(reach) - better(first, second)), balls)

    return (jax.lax.cond(jnp.any(balls > 0), by_shapes, lambda x: x, balls) if tiled else by_shapes(balls)).T

  if not tiled:
    return some(lambda x, axis=0: x)
  wanted = None
  if len(geom1) >= _FEW_TREES * np.unique(tree[index], axis=1).shape[1]:
    wanted = _may_meet(b.balls, index, tree, jnp.max(reach))
  return _in_parts(some, len(geom1), b.balls.pos[0, 0], wanted)


class _Flat:
  """All that bounds have of geoms, each array once and side by side: those of each world, and those that all have in common."""

  def __init__(self, *parts: NamedTuple):
    leaves, self._form = jax.tree.flatten(list(parts))
    self._leaves = {id(x): x for x in leaves}
    self._order = [id(x) for x in leaves]
    widths = sorted({x.shape[-1] for x in leaves})
    self._alike = [[k for k, x in self._leaves.items() if x.shape[-1] == w] for w in widths]
    flat = {k: x.reshape(len(x), -1, x.shape[-1]) for k, x in self._leaves.items()}
    self._arrays = [vector.join([flat[k] for k in keys]) for keys in self._alike]

  def rows(self, index: jax.Array) -> list[jax.Array]:
    """The arrays at geoms (..., n), a row (..., n, k, W or 1) of each."""
    return [x.at[index].get(mode="promise_in_bounds") for x in self._arrays]

  def parts(self, arrays: list[jax.Array]) -> list:
    """What this was made of, of the geoms that the rows are of."""
    found = {}
    for keys, x in zip(self._alike, arrays, strict=True):
      leaves = [self._leaves[k] for k in keys]
      cuts = np.cumsum([int(np.prod(y.shape[1:-1])) for y in leaves])[:-1]
      for k, y, part in zip(keys, leaves, jnp.split(x, cuts, axis=1), strict=True):
        found[k] = part.reshape(len(x), *y.shape[1:])
    return jax.tree.unflatten(self._form, [found[k] for k in self._order])


def _in_parts(some, n: int, like: jax.Array, wanted: jax.Array | None) -> jax.Array:
  """Columns (W, n), made in a loop over parts, which stay in the cache.

  Args:
    some: function of `take(x, axis=0)`, which cuts out of an array with n entries along an axis those of a part, that returns
      the columns of the part.
    n: number of columns.
    like: (W,) of their type.
    wanted: (n,) columns: only parts with some of them are made, -inf elsewhere.
  """
  size = min(n, _AT_A_TIME)
  start = np.minimum(np.arange(0, n, size), n - size).astype(np.int32)  # the last may repeat some of the one before
  first, count = jnp.asarray(start), len(start)
  if wanted is not None:
    is_wanted = jnp.any(wanted[start[:, None] + np.arange(size)], axis=1)
    first, count = jnp.sort(jnp.where(is_wanted, start, n)), jnp.sum(is_wanted)

  def write(i, out):
    columns = some(lambda x, axis=0: jax.lax.dynamic_slice_in_dim(x, first[i], size, axis))
    return jax.lax.dynamic_update_slice_in_dim(out, columns, first[i], 1)

  out = jnp.full((*like.shape, n), -jnp.inf, like.dtype)
  return jax.lax.fori_loop(0, count, write, out)


def _may_meet(b: Balls, pair: np.ndarray, tree: np.ndarray, reach: jax.Array) -> jax.Array:
  """Whether geoms (2, n) are each within reach of the box around all geoms of the other's tree, in some world (n,)."""
  trees, place = np.unique(tree[pair], return_inverse=True)
  members = [np.flatnonzero(tree == t) for t in trees]
  index = np.stack([np.resize(g, max(map(len, members))) for g in members])
  pos, radius = rows(b.pos, index), rows(b.radius, index)[:, :, None]
  low, high = once(vector.fold(jnp.minimum, pos - radius, 1)), once(vector.fold(jnp.maximum, pos + radius, 1))
  geoms, which = np.unique(pair, return_inverse=True)
  pos, radius = rows(b.pos, geoms)[:, None], rows(b.radius, geoms)[:, None, None] + reach
  apart = jnp.any((pos - radius > high) | (low > pos + radius), axis=2)
  near = jnp.any(~apart, axis=-1)  # of geoms and trees
  place, which = place.reshape(pair.shape), which.reshape(pair.shape)
  one, two = (rows(near.reshape(-1), which[i] * len(trees) + place[1 - i]) for i in range(2))
  return one & two


def _of_boxes(one: Boxes, two: Boxes) -> jax.Array:
  """Lower bound (n, W) of the distance of boxes."""
  turn, offset = vector.mat_mat(vector.transpose(one.mat), two.mat), vector.mat_t_vec(one.mat, two.center - one.center)
  return boxes.separation(offset, turn, one.half, two.half)


def _of_segments(one: Segments, two: Segments) -> jax.Array:
  """Distance (n, W) of spheres and capsules.

  The nearest point of the one's line to the other's, moved into its segment; then, in turn, the other's nearest to it and its
  own nearest to that. Source: Ericson, Real-Time Collision Detection, section 5.1.9.
  """
  u, v, offset = one.axis, two.axis, two.pos - one.pos
  uv, along_u, along_v = vector.dot(u, v), vector.dot(u, offset), vector.dot(v, offset)
  lines = (along_u - uv * along_v) / jnp.maximum(1 - uv * uv, jnp.finfo(uv.dtype).eps)  # of parallel ones any point will do
  t = jnp.clip(uv * jnp.clip(lines, -one.length, one.length) - along_v, -two.length, two.length)
  s = jnp.clip(uv * t + along_u, -one.length, one.length)
  s, t = linear.materialized((s, t))
  return safe.norm(offset + t[:, None] * v - s[:, None] * u) - one.thick - two.thick


class Chosen(NamedTuple):
  """Candidates of a group: their places in the group (k, W), and whether some within reach were left out (W,)."""

  place: jax.Array
  lost: jax.Array


def nearest(overlap: jax.Array, budget: int) -> Chosen:
  """The candidates of largest overlap (W, n), of which there are more than the budget. Gradient: none."""
  overlap, wanted = jax.lax.stop_gradient(overlap).astype(jnp.float32), budget + 1
  count = -(-overlap.shape[1] // _GROUP)
  if count <= 2 * wanted:
    value, place = _largest(overlap, wanted)
  else:  # they are in the groups with the largest entries; a group's members lie `count` apart
    pad = count * _GROUP - overlap.shape[1]
    overlap = jnp.pad(overlap, ((0, 0), (0, pad)), constant_values=-jnp.inf).reshape(-1, _GROUP, count)
    group = jnp.sort(_largest(vector.fold(jnp.maximum, overlap, 1), wanted)[1])
    members = jnp.take_along_axis(overlap, group[:, None], axis=2).reshape(-1, _GROUP * wanted)
    value, among = _largest(members, wanted)
    place = count * (among // wanted) + jnp.take_along_axis(group, among % wanted, axis=1)
  return Chosen(place[:, :budget].T, value[:, budget] > 0)


def _largest(x: jax.Array, number: int) -> list[jax.Array]:
  """`top_k`; a slice of what it returns would make XLA sort all."""
  return linear.written(jax.lax.top_k(x, number))


def first_contacts(touches: jax.Array, rank: jax.Array, number: int, size: int) -> Chosen:
  """Rows (number, W) of contacts in MuJoCo's order, behind them rows without a contact.

  Args:
    touches: (n, W) whether a row is a contact.
    rank: (n, W) or (n, 1) place of a row among all that there could be.
    number: of rows kept.
    size: above all ranks.
  """
  exact = size < _EXACT
  key = jnp.where(touches, rank, size).astype(jnp.float32 if exact else jnp.int32)
  place = jax.lax.top_k(-key.T, number)[1].T
  return Chosen(place, jnp.sum(touches, axis=0) > number)
