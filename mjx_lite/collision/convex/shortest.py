"""Penetration depth of two overlapping convex shapes: the least overlap over all directions.

In a direction n the shapes overlap by f(n), the height of the farthest point of Y = A - B along n. The depth is the least f.
The sphere of directions is divided into triangles. Each corner n_i has its farthest point y_i. In a triangle f is at least
g(n) = max(n . y_i), so the least g in the triangle is a lower bound of f. The least g is where all three heights are equal, or
on a side where two heights are equal. Each round divides the triangles with the lowest bounds where g is least, until no bound
is below the least known f. Where a triangle or its parts would be long and thin, its longest side is halved instead.

The best known direction is a corner of the first triangles, because the bounds are best around a corner.

The faces of polytopes are found exactly, the direction of curved shapes to a tolerance. Shapes that are symmetric about a line
may have the same depth in infinitely many directions. The search then finds the depth, but may run out of rounds before the
depth is proved. Such a result is marked, because it cannot be distinguished from a wrong result.

Source: `epa` solves the same problem, with a polytope that grows inside Y.

Tests: tests/collision/test_shortest_way.py.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import first_min
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest, largest
from mjx_lite.ops import lanes, linear, loops

# by dtype, relative to the size of Y: a smaller improvement of the depth is not searched for. CURVED is coarser: Newton's
# method then refines the direction of curved shapes
SHORTER, CURVED = {8: 2e-10, 4: 2e-6}, {8: 4e-10, 4: 4e-6}
# by dtype, relative to the size of Y: a result with a larger possible error is marked. Far above rounding and the tolerances,
# so that a change of rounding does not change the mark
DOUBT = {8: 1e-5, 4: 1e-4}
ROUNDS = {8: 64, 4: 40}  # by dtype
_TRIANGLES, _COLUMNS = 128, 8  # capacity; a round divides one triangle of each column
_LOOK = 8  # rows that a kernel compares at a time; a divisor of `_TRIANGLES`
_LONG = 4  # largest ratio of the longest side to the height, and to the distance from a corner to the point of division
_FLAT = 64  # units of round-off, up to which three points count as collinear
_SIDES = (1, 2), (2, 0), (0, 1)  # corners at the ends of the side that is opposite to each corner
_FIRST = np.array([[x, y, z] for x in (0, 1) for y in (2, 3) for z in (4, 5)], np.int32).T  # an octahedron


class Exit(NamedTuple):
  """Result of a search: the direction (3,) of the least depth, the depth () of Y along this direction, whether the depth is
  less than the known depth (), and whether another direction may be better by more than `DOUBT` ()."""

  normal: jax.Array
  depth: jax.Array
  better: jax.Array
  unproved: jax.Array


class Known(NamedTuple):
  """Start of a search: a direction (3,), the depth () of Y along this direction, the size of Y (), and the tolerance (): the
  least improvement of the depth that counts. Lengths are in m."""

  normal: jax.Array
  depth: jax.Array
  size: jax.Array
  tolerance: jax.Array


class _Triangles(NamedTuple):
  """Triangles, one for each entry of the last axes.

  Attributes:
    corner: (2, 3, 3, ...) the directions at the three corners, and the farthest points of Y in these directions.
    low: (...) the least g; inf for an empty slot.
    division: (3, ...) direction at which to divide.
    whole: (...) the corner opposite to the side that contains this direction; 3 for a direction inside.
  """

  corner: jax.Array
  low: jax.Array
  division: jax.Array
  whole: jax.Array


class _State(NamedTuple):
  triangles: _Triangles  # (rows, columns)
  row: jax.Array  # (columns,) row of the triangle with the lowest bound of each column
  low: jax.Array  # (columns,) the bounds of these triangles
  dropped: jax.Array  # () the least bound of the triangles that did not fit
  normal: jax.Array  # (3,) the best direction so far
  depth: jax.Array  # ()
  round: jax.Array  # ()
  known: Known
  at: tuple[jax.Array, jax.Array]  # row and world


def search(
  furthest: Callable[[jax.Array, jax.Array], Callable[[jax.Array], jax.Array]],
  known: Callable[[jax.Array, jax.Array], Known],
) -> lanes.Search:
  """Describe the search for the least depth. The result of a search is a `Exit`.

  Args:
    furthest: function of a row and a world. It returns the support function of Y: from directions (3, n) to points (3, n).
    known: function of a row and a world. It returns the start of their search.
  """

  def start(row, world):
    k = known(row, world)
    reach = furthest(row, world)
    directions, points = _axes(reach, k.normal)
    return _begin(directions, points, k._replace(depth=vector.dot(directions, points)[0]), (row, world))

  def continues(s):
    rounds = ROUNDS[s.depth.dtype.itemsize] * _COLUMNS // lanes.columns(_COLUMNS)
    return (s.round < rounds) & (_lowest(s) < s.depth - s.known.tolerance)

  def end(s):
    k = s.known
    better = s.depth < k.depth - k.tolerance
    unproved = _lowest(s) < s.depth - DOUBT[s.depth.dtype.itemsize] * k.size
    return Exit(jnp.where(better, s.normal, k.normal), s.depth, better, unproved)

  return lanes.Search(start, continues, lambda s: _divide(s, furthest(*s.at)), end)


def _axes(furthest: Callable, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the six ends (3, 6) of three axes, and the farthest points there. The first axis is the normal (3,)."""
  normal = normal[:, None]
  across = safe.normalize(vector.cross(normal, first_min(jnp.abs(normal)).astype(normal.dtype)))
  axes = jnp.concatenate([normal, across, vector.cross(normal, across)], axis=1)
  directions = linear.materialize(jnp.stack([axes, -axes], axis=2).reshape(3, 6))
  return directions, linear.materialize(furthest(directions))


def _begin(directions: jax.Array, points: jax.Array, known: Known, at: tuple[jax.Array, jax.Array]) -> _State:
  """Return the first state: the triangles of an octahedron."""
  first = _bounded(jnp.moveaxis(jnp.stack([directions, points])[:, :, _FIRST], 1, 2))
  dtype, columns = directions.dtype, lanes.columns(_COLUMNS)

  def rows(x, whole):
    x = x.reshape(*x.shape[:-1], -1, columns)
    return whole.at[..., : x.shape[-2], :].set(x)

  room, none = (_TRIANGLES // columns, columns), jnp.asarray(jnp.inf, dtype)
  triangles = jax.tree.map(lambda x: rows(x, lanes.empty((*x.shape[:-1], *room), x.dtype)), first)
  bounds = rows(first.low, jnp.full(room, none))
  row, low = _lowest_rows(bounds, jnp.int32(0))
  s = _State(
    triangles=triangles._replace(low=bounds),
    row=row,
    low=low,
    dropped=none,
    normal=directions[:, 0],
    depth=none,
    round=jnp.int32(0),
    known=known,
    at=at,
  )
  return _better(s, directions, points)


def _lowest(s: _State) -> jax.Array:
  """Return a lower bound of the depth."""
  return jnp.minimum(jnp.min(s.low), s.dropped)


def _used(round_: jax.Array, columns: int) -> jax.Array:
  """Return the number of rows in use after a number of rounds, if there is room: a round divides a triangle into three."""
  return _FIRST.shape[1] // columns + 2 * round_


def _lowest_rows(low: jax.Array, round_: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the row of the lowest bound of each column, and this bound, from bounds (rows, columns) after a number of rounds."""
  size, columns = low.shape
  if not lanes.packs():
    least, row = first_largest(-low)
    return row, -least

  def look(k, s):
    row, least = s
    bound, at = first_largest(-jax.lax.dynamic_slice_in_dim(low, _LOOK * k, _LOOK))
    is_lower = -bound < least
    return jnp.where(is_lower, _LOOK * k + at, row), jnp.where(is_lower, -bound, least)

  number = jnp.minimum(_used(round_, columns), size)
  none = jnp.zeros(columns, jnp.int32), jnp.full(columns, jnp.inf, low.dtype)
  return loops.over(look, jax.lax.div(number + _LOOK - 1, jnp.int32(_LOOK)), none)


def _place(low: jax.Array, filled: list[jax.Array], row: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the row (columns,) of each column for a new triangle, and the bound of the triangle that it replaces there.

  That is the row `row`, which is empty, or, if all rows are in use, the row with the highest bound, except those in `filled`.
  """
  size = len(low)

  def bounds(k, low):
    return jnp.where(functools.reduce(jnp.logical_or, (k == x for x in filled)), -jnp.inf, low)

  def look(k, s):
    at, most = s
    bound = bounds(k, low[k])
    return jnp.where(bound > most, k, at), jnp.maximum(bound, most)

  if lanes.packs():
    none = filled[0], jnp.full_like(low[0], -jnp.inf)
    at, most = loops.over(look, jnp.where(row < size, 0, jnp.int32(size)), none)
  else:
    most, at = first_largest(bounds(np.arange(size, dtype=np.int32)[:, None], low))
  return jnp.where(row < size, row, at), jnp.where(row < size, jnp.inf, most)


def _better(s: _State, directions: jax.Array, points: jax.Array) -> _State:
  """Return the state with the best of the directions (3, n), if this direction is better than the state's."""
  low, k = first_largest(-vector.dot(directions, points)[:, None])
  better = linear.materialize(-low[0] < s.depth)
  new = directions.at[:, k[0]].get(mode="promise_in_bounds")
  return s._replace(normal=jnp.where(better, new, s.normal), depth=jnp.where(better, -low[0], s.depth))


def _divide(s: _State, furthest: Callable) -> _State:
  """Divide the lowest triangle of each column."""
  t, row, count = s.triangles, s.row, s.low.shape[0]
  columns = np.arange(count, dtype=np.int32)
  corner, division, whole = (x.at[..., row, columns].get(mode="promise_in_bounds") for x in (t.corner, t.division, t.whole))
  corner, division, whole, is_open = linear.materialize((corner, division, whole, s.low < s.depth - s.known.tolerance))
  point = linear.materialize(furthest(division))

  # three parts: each replaces one corner by the new direction. A division on a side makes one part flat
  here = jnp.stack([division, point])[:, None, :, None]
  parts = jnp.where(np.eye(3, dtype=bool)[:, None, :, None], here, corner[:, :, :, None])
  new = _bounded(parts.reshape(2, 3, 3, 3 * count))
  new = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], 3, count), new)
  new = new._replace(low=jnp.where(is_open & (whole != np.arange(3)[:, None]), new.low, jnp.inf))

  # the first part replaces the parent, of which it keeps two corners. The other parts go to other columns, to balance the work
  def put(t, row, part, where=True):
    return jax.tree.map(lambda old, x: lanes.put(old, row, x, where), t, part)

  first = jax.tree.map(lambda x: x[..., 0, :], new)
  changed = put(t._replace(corner=t.corner[:, 0]), row, first._replace(corner=first.corner[:, 0]))
  t = changed._replace(corner=t.corner.at[:, 0].set(changed.corner))
  filled, dropped = [row], s.dropped
  for k, by in ((1, 1), (2, 3)):
    part = jax.tree.map(lambda x, k=k, by=by: jnp.roll(x[..., k, :], by, axis=-1), new)
    at, worst = _place(t.low, filled, _used(s.round, count) + k - 1)
    keep = worst < part.low
    dropped = jnp.minimum(dropped, jnp.min(jnp.where(keep, part.low, worst)))
    t, filled = put(t, at, part, ~keep), [*filled, at]
  row, low = _lowest_rows(t.low, s.round + 1)
  s = s._replace(triangles=t, row=row, low=low, dropped=dropped, round=s.round + 1)
  return _better(s, division, point)


def _bounded(corner: jax.Array) -> _Triangles:
  """Return triangles and their bounds, from the corners (2, 3 corners, 3, m): directions and the farthest points there."""
  n, y = corner
  tiny = (_FLAT * jnp.finfo(n.dtype).eps) ** 2
  side = jnp.stack([y[k] - y[i] for i, k in _SIDES])

  # inside: all three heights are equal. Small vectors are scaled first: `normalize` replaces vectors shorter than MINVAL
  unit = [safe.normalize(x) for x in side[:2]]
  up = vector.cross(*unit)
  flat = vector.dot(up, up) <= tiny
  up = jnp.where(vector.dot(up, vector.add(n))[None] < 0, -up, up)
  planes = jnp.stack([vector.cross(n[i], n[k]) for i, k in _SIDES])
  sign = jnp.where(vector.dot(planes[0], n[0]) < 0, -1, 1)
  inside = ~flat & jnp.all(sign * vector.dot(planes, up[None]) > 0, axis=0)

  # on a side: two heights are equal
  ends = [jnp.stack([n[s[q]] for s in _SIDES])[:, None] for q in (0, 1)]
  rise = [vector.dot(side[None], x) for x in ends]
  both = jnp.abs(rise[0]) + jnp.abs(rise[1])
  rise = [x / jnp.where(both > 0, both, 1) for x in rise]
  tied = rise[0] * rise[1] < 0
  on_side = jnp.abs(rise[1])[:, :, None] * ends[0] + jnp.abs(rise[0])[:, :, None] * ends[1]

  division = safe.normalize(jnp.concatenate([up[None], on_side.reshape(9, *up.shape)]))
  division = linear.materialize(division)
  height = jnp.max(vector.dot(division[:, None], y[None]), axis=1)
  counts = jnp.concatenate([inside[None], tied.reshape(9, -1)])
  low, which = first_largest(jnp.where(counts, -height, -jnp.inf))
  division = jnp.sum(jnp.where((np.arange(10)[:, None] == which)[:, None], division, 0), axis=0)
  whole = jnp.where(which == 0, 3, jax.lax.div(which - 1, jnp.int32(3)))

  # halve the longest side where a thin triangle would be left
  along = jnp.stack([n[k] - n[i] for i, k in _SIDES])
  long2, longest = first_largest(vector.dot(along, along))
  off, area = division - n, vector.cross(along[0], along[1])
  near2 = -largest(-vector.dot(off, off))
  area2 = vector.dot(area, area)
  halved = ((long2 > _LONG**2 * near2) | (long2 * long2 > _LONG**2 * area2)) & (whole != longest)
  # two triangles that share a side are divided there at nearly the same point: the slivers between need no search
  low = jnp.where(area2 > SHORTER[n.dtype.itemsize] ** 2 * long2, low, -jnp.inf)
  middle = safe.normalize(vector.add(jnp.where(longest == k, 0, n[k]) for k in range(3)))
  division, whole = jnp.where(halved, middle, division), jnp.where(halved, longest, whole).astype(jnp.int32)
  return _Triangles(corner, *linear.materialize((-low, division, whole)))
