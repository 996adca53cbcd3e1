"""The shortest way out of each other of two convex shapes that overlap, of all directions.

The shapes overlap in a direction n by f(n), the height of the farthest point of Y = A - B along n; the depth is the least f.
The sphere of directions is divided into triangles, each corner n_i of which has its farthest point y_i. In a triangle f is at
least g(n) = max(n . y_i), so the least of g there is a lower bound of f. The least g is where all three heights are the same,
or on a side where two heights are. The triangles with the lowest bounds are divided where g is least, until no bound is
below the least f that is known. Where a triangle is long and thin, or its parts would be, its longest side is halved instead.

One corner of the first triangles is the best direction known, because the bounds are best around it. Where a better
direction is found, the search begins again from that one.

The faces of polytopes are found exactly, the way out of curved shapes to a tolerance. Shapes that are symmetric about a
line may have the same depth in infinitely many directions: then the search finds the depth, but may run out of rounds before it
is proved. Such a result is marked, because nobody can tell it from a wrong one.

Source: `epa` answers the same question, by a polytope that grows inside of Y.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.shapes import first_min
from mjx_lite.core import linear
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest, largest

SHORTER = {8: 2e-10, 4: 2e-6}  # of the size of Y, by dtype: no way out is looked for that is shorter by less
# of the size of Y, by dtype: a result that may be wrong by more is marked. Far above rounding and what is looked for, lest a
# change of rounding changes the mark
DOUBT = {8: 1e-5, 4: 1e-4}
_COLUMNS = 8  # triangles that are divided at a time
_ATTEMPTS, _TRIAL = np.int32(3), 16  # searches, each from the best direction of the one before, and rounds of the first
_LONG = 4  # longest side of a triangle, of its height and of the distance from a corner to where it is to be divided
_FLAT = 64  # roundings, up to which three points lie on a line
_SIDES = (1, 2), (2, 0), (0, 1)  # corners at the ends of the side that is opposite to each corner
_FIRST = np.array([[x, y, z] for x in (0, 1) for y in (2, 3) for z in (4, 5)]).T  # an octahedron


class Way(NamedTuple):
  """A direction (3,), how far Y reaches there (), whether less than what was known, and whether it may be less by more than
  `DOUBT` somewhere else ()."""

  normal: jax.Array
  depth: jax.Array
  better: jax.Array
  unproved: jax.Array


class _Triangles(NamedTuple):
  """Triangles, one for each entry of the last axes.

  Attributes:
    corner: (3, ...) numbers of the directions at their corners.
    low: (...) the least of g; inf for none.
    place: (3, ...) where to divide.
    whole: (...) the corner that is opposite to the side on which that is; 3 for a place inside.
  """

  corner: jax.Array
  low: jax.Array
  place: jax.Array
  whole: jax.Array


class _State(NamedTuple):
  found: jax.Array  # (6, n) directions, and the farthest points there
  triangles: _Triangles  # (rows, columns)
  normal: jax.Array  # (3,) the best of them
  depth: jax.Array  # ()
  round: jax.Array  # ()


def shortest(furthest: Callable[[jax.Array], jax.Array], normal: jax.Array, size: jax.Array, rounds: int) -> Way:
  """The way out that is the shortest, to a tolerance.

  Args:
    furthest: the points of Y (3, n) farthest in directions (3, n).
    normal: (3,) the direction of the way out that is known.
    size: () of Y [m].
    rounds: bound of the number of divisions of 8 triangles each.
  """
  tolerance, doubt = (x[normal.dtype.itemsize] * size for x in (SHORTER, DOUBT))
  directions, points = _axes(furthest, normal)
  known = vector.dot(directions, points)[0]

  def attempt(state):
    best, _, low, k = state
    s = _begin(*_axes(furthest, best), rounds)
    most = jnp.where(k == 0, min(_TRIAL, rounds), rounds)
    s = jax.lax.while_loop(
      lambda s: (s.round < most) & (_lowest(s) < s.depth - tolerance), lambda s: _divide(s, furthest, tolerance), s
    )
    low = jnp.maximum(low, _lowest(s))
    return s.normal, s.depth, low, jnp.where(low >= s.depth - tolerance, _ATTEMPTS, k + 1)

  start = normal, known, jnp.full_like(known, -jnp.inf), jnp.int32(0)
  best, depth, low, _ = jax.lax.while_loop(lambda s: s[-1] < _ATTEMPTS, attempt, start)
  better = depth < known - tolerance
  return Way(jnp.where(better, best, normal), depth, better, low < depth - doubt)


def _axes(furthest: Callable, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The six ends of three axes (3, 6), the first of them the normal (3,), and the farthest points there."""
  normal = normal[:, None]
  across = safe.normalize(vector.cross(normal, first_min(jnp.abs(normal)).astype(normal.dtype)))
  axes = jnp.concatenate([normal, across, vector.cross(normal, across)], axis=1)
  directions = linear.materialized(jnp.stack([axes, -axes], axis=2).reshape(3, 6))
  return directions, linear.materialized(furthest(directions))


def _begin(directions: jax.Array, points: jax.Array, rounds: int) -> _State:
  """An octahedron."""
  first = _bounded(*(jnp.moveaxis(x[:, _FIRST], 0, 1) for x in (directions, points)), jnp.asarray(_FIRST, jnp.int32))
  dtype = directions.dtype

  def rows(x):
    return jnp.full((*x.shape[:-1], 1 + 2 * rounds, _COLUMNS), jnp.inf if x.dtype == dtype else 0, x.dtype).at[..., 0, :].set(x)

  found = jnp.pad(jnp.concatenate([directions, points]), ((0, 0), (0, _COLUMNS * rounds)))
  none = _State(found, jax.tree.map(rows, first), directions[:, 0], jnp.asarray(jnp.inf, dtype), jnp.int32(0))
  return _better(none, directions, points)


def _lowest(s: _State) -> jax.Array:
  """A lower bound of the depth."""
  return jnp.min(s.triangles.low)


def _better(s: _State, directions: jax.Array, points: jax.Array) -> _State:
  """With the best of some directions (3, n)."""
  low, k = first_largest(-vector.dot(directions, points)[:, None])
  better = linear.materialized(-low[0] < s.depth)
  new = directions.at[:, k[0]].get(mode="promise_in_bounds")
  return s._replace(normal=jnp.where(better, new, s.normal), depth=jnp.where(better, -low[0], s.depth))


def _divide(s: _State, furthest: Callable, tolerance: jax.Array) -> _State:
  """Divide the lowest triangle of each column."""
  t, columns = s.triangles, np.arange(_COLUMNS, dtype=np.int32)
  low, row = first_largest(-t.low)
  corner, place, whole = (x.at[..., row, columns].get(mode="promise_in_bounds") for x in (t.corner, t.place, t.whole))
  corner, place, whole, open_ = linear.materialized((corner, place, whole, -low < s.depth - tolerance))
  point = linear.materialized(furthest(place))
  number = 6 + _COLUMNS * s.round
  found = jax.lax.dynamic_update_slice_in_dim(s.found, jnp.concatenate([place, point]), number, 1)

  # three parts, each with the new direction in the place of a corner; of a division on a side one is flat
  is_new = np.eye(3, dtype=bool)[:, :, None]
  corners = jnp.where(is_new, number + columns, corner[:, None])
  old = found.at[:, corner].get(mode="promise_in_bounds")
  parts = [jnp.where(is_new[:, None], new[:, None], jnp.moveaxis(x, 0, 1)[:, :, None]) for new, x in (
    (place, old[:3]), (point, old[3:]))]  # fmt: skip
  flat = [x.reshape(*x.shape[:-2], 3 * _COLUMNS) for x in (*parts, corners)]
  new = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], 3, _COLUMNS), _bounded(*flat))
  new = new._replace(low=jnp.where(open_ & (whole != np.arange(3)[:, None]), new.low, jnp.inf))

  # the first part stays in its place, the others go to other columns, so that none has all the work
  def put(old, new):
    mine = np.arange(old.shape[-2], dtype=np.int32)[:, None] == row
    old = jnp.where(mine, new[..., :1, :], old)
    others = jnp.stack([jnp.roll(new[..., 1, :], 1, axis=-1), jnp.roll(new[..., 2, :], 3, axis=-1)], axis=-2)
    return jax.lax.dynamic_update_slice_in_dim(old, others, 1 + 2 * s.round, old.ndim - 2)

  s = s._replace(found=found, triangles=jax.tree.map(put, t, new), round=s.round + 1)
  return _better(s, place, point)


def _bounded(n: jax.Array, y: jax.Array, corner: jax.Array) -> _Triangles:
  """Triangles of directions n with farthest points y (3 corners, 3, m), whose numbers are `corner` (3, m)."""
  tiny = (_FLAT * jnp.finfo(n.dtype).eps) ** 2
  side = jnp.stack([y[k] - y[i] for i, k in _SIDES])

  # where all three heights are the same. Small vectors are scaled first: `normalize` replaces what is shorter than MINVAL
  unit = [safe.normalize(x) for x in side[:2]]
  up = vector.cross(*unit)
  flat = vector.dot(up, up) <= tiny
  up = jnp.where(vector.dot(up, vector.add(n))[None] < 0, -up, up)
  planes = jnp.stack([vector.cross(n[i], n[k]) for i, k in _SIDES])
  turn = jnp.where(vector.dot(planes[0], n[0]) < 0, -1, 1)
  inside = ~flat & jnp.all(turn * vector.dot(planes, up[None]) > 0, axis=0)

  # where two are, on a side
  ends = [jnp.stack([n[s[q]] for s in _SIDES])[:, None] for q in (0, 1)]
  rise = [vector.dot(side[None], x) for x in ends]
  both = jnp.abs(rise[0]) + jnp.abs(rise[1])
  rise = [x / jnp.where(both > 0, both, 1) for x in rise]
  tied = rise[0] * rise[1] < 0
  on_side = jnp.abs(rise[1])[:, :, None] * ends[0] + jnp.abs(rise[0])[:, :, None] * ends[1]

  place = safe.normalize(jnp.concatenate([up[None], on_side.reshape(9, *up.shape)]))
  place = linear.materialized(place)
  height = jnp.max(vector.dot(place[:, None], y[None]), axis=1)
  counts = jnp.concatenate([inside[None], tied.reshape(9, -1)])
  low, which = first_largest(jnp.where(counts, -height, -jnp.inf))
  place = jnp.sum(jnp.where((np.arange(10)[:, None] == which)[:, None], place, 0), axis=0)
  whole = jnp.where(which == 0, 3, jax.lax.div(which - 1, jnp.int32(3)))

  # not where a thin triangle would be left
  along = jnp.stack([n[k] - n[i] for i, k in _SIDES])
  long2, longest = first_largest(vector.dot(along, along))
  off, area = place - n, vector.cross(along[0], along[1])
  near2 = -largest(-vector.dot(off, off))
  area2 = vector.dot(area, area)
  halved = ((long2 > _LONG**2 * near2) | (long2 * long2 > _LONG**2 * area2)) & (whole != longest)
  # two triangles at one side are divided there at nearly the same place: the slivers between need no search of their own
  low = jnp.where(area2 > SHORTER[n.dtype.itemsize] ** 2 * long2, low, -jnp.inf)
  middle = safe.normalize(vector.add(jnp.where(longest == k, 0, n[k]) for k in range(3)))
  place, whole = jnp.where(halved, middle, place), jnp.where(halved, longest, whole).astype(jnp.int32)
  return _Triangles(corner, *linear.materialized((-low, place, whole)))
