"""Signed distance of two convex shapes by GJK, and the nearest features.

The Minkowski difference Y = A - B of two shapes contains the origin if the shapes overlap. GJK finds the point c of Y that is
nearest to a target p outside of Y; n = (p - c) / |p - c| is normal to Y at c.

If the shapes do not overlap, the target is the origin, and |c| is the distance. If the shapes overlap, the target moves along
the line from the centre of Y through the origin until the target is outside of Y. Then the target is placed above the origin
along the last normal, again and again, until the normal does not change. Now c is the foot of the origin on the boundary of Y,
and n . c is the depth. One loop does all of this; each iteration evaluates the support function of each shape once.
A shape is here without its radius (`support.ConvexShape`).

The foot is a local minimum of the depth. Unless the foot is known to be the global minimum, `shortest` searches all directions
for a smaller depth. If there is one, the loop restarts above that point of the boundary.

Tests: tests/collision/test_convex.py, tests/collision/test_shortest_way.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.collision.convex import boxes, iteration, shortest, support
from mjx_lite.collision.convex.iteration import Problem, State
from mjx_lite.collision.convex.support import ConvexShape
from mjx_lite.math import safe, vector
from mjx_lite.ops import lanes, linear
from mjx_lite.ops.rows import each
from mjx_lite.ops.select import over


class Features(NamedTuple):
  """Nearest features of two shapes, or the features of least depth, in the frame of the first shape. Without gradient.

  Attributes:
    normal: (P, 3, W) from the first shape to the second.
    on: (P, 3, W) mask of the vertices of Y that span the feature, at most three.
    index_a, index_b: (P, 3, W) support indices of these vertices in the two shapes.
    point_a: (P, 3, 3, W) the vertices' points on the first shape; for polytopes the indices define the points.
    point_b: (P, 3, 3, W) the vertices' points on the second shape, in the frame of the second shape.
    far: (P, W) whether the distance of the shapes is known to be above the reach.
    overlap: (P, W) whether the origin was inside of Y.
    nsupport: (P, W) number of evaluated support points.
    dist: (P, W) distance, negative where the shapes overlap [m].
    size: (P, W) upper bound of the size of Y [m].
    lost: (P, W) whether the search ran out of iterations or rounds while the error might exceed `DOUBT` times the size.
  """

  normal: jax.Array
  on: jax.Array
  index_a: jax.Array
  index_b: jax.Array
  point_a: jax.Array
  point_b: jax.Array
  far: jax.Array
  overlap: jax.Array
  nsupport: jax.Array
  dist: jax.Array
  size: jax.Array
  lost: jax.Array


def near(a: ConvexShape, b: ConvexShape, reach: jax.Array) -> jax.Array:
  """Return a mask (P, W) of the pairs that may be within reach (P, W or 1) [m], by bounding boxes. Without gradient."""
  a, b, reach = iteration.without_gradient(a), iteration.without_gradient(b), jax.lax.stop_gradient(reach)
  rotation = vector.mat_mat(vector.transpose(a.mat), b.mat)
  (middle_a, half_a), (middle_b, half_b) = support.box(a), support.box(b)
  offset = vector.mat_t_vec(a.mat, b.pos - a.pos) + vector.mat_vec(rotation, middle_b) - middle_a
  slack = 1e-5 * jnp.max(half_a + half_b, axis=1)  # for rounding
  return each(lambda row: boxes.separation(*row), (offset, rotation, half_a, half_b)) <= reach + slack


def rows_of(
  wanted: jax.Array, a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int, make: Callable[..., Any], default: Any
) -> Any:
  """Return rows (P, ..., W) made of the nearest features of the wanted pairs, and equal to `default` elsewhere.

  Args:
    wanted: (P, W) mask of the pairs.
    a, b, reach, iterations: as in `find`.
    make: function of some of the shapes and their reach, with a lane in place of a world, their features, and `asked` of
      `find`. It returns their rows.
    default: the other rows; those of shapes that are far from each other.
  """
  if lanes.packs() and len(wanted) > 1:
    if lanes.is_differentiated():
      return _features_first(wanted, a, b, reach, iterations, make, default)
    return _in_rounds(wanted, a, b, reach, iterations, make, default)

  def look(at, asked):
    some = support.take_lanes(a, at), support.take_lanes(b, at), reach if at is None else at.take(reach)
    found = find(*some, iterations, asked)
    return make(*some, found, asked), ~found.far

  return lanes.map_where(wanted, look, default, sift=True)


class _Start(NamedTuple):
  """Where a search starts (`shortest.Known`), for P pairs: arrays (P, ..., W). The last ones are `rotation` and `position` of
  `Problem`."""

  normal: jax.Array
  depth: jax.Array
  size: jax.Array
  tolerance: jax.Array
  rotation: jax.Array
  position: jax.Array

  def known(self, row: jax.Array, world: jax.Array) -> shortest.Known:
    """Return the start of one pair in one world."""
    return shortest.Known(*(support.entry(x, row, world)[0, ..., 0] for x in self[:4]))

  def furthest(self, a: ConvexShape, b: ConvexShape, *at: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return the support function of Y for the shapes, the pair `at[0]` in the world `at[1]`."""
    rotation, position = (support.entry(x, *at) for x in (self.rotation, self.position))
    return lambda direction: iteration.support_of_difference(a, b, rotation, position, direction[None])[0][0]


def _in_rounds(
  wanted: jax.Array, a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int, make: Callable[..., Any], default: Any
) -> Any:
  """Return rows as `rows_of` does, in a kernel: rows of all wanted pairs, then the searches, then the rows of those again."""
  zero = jnp.zeros((len(wanted), 3, 1), a.pos.dtype)
  number, no = zero[:, 0], jnp.zeros(wanted.shape, bool)
  nothing = shortest.Exit(zero, number, no, no)
  begin = _Start(zero, number, number, number, zero[:, None] + jnp.zeros((3, 1, 1), zero.dtype), zero)

  def pair(at):
    return support.take_lanes(a, at), support.take_lanes(b, at), at.take(reach)

  def one_round(state):
    again, rows, wanted, exit_ = state

    def first(p, at):
      found = jax.tree.map(at.take, exit_)
      both = iteration.start_above(p, found.normal, found.depth), iteration.start(p)
      return jax.tree.map(lambda x, y: jnp.where(again, x, y), *both)

    last = _last_states(wanted, lambda at: iteration.problem(*pair(at), iterations), first)

    def row(item):
      at = lanes.row(item)
      some, s, found = pair(at), jax.tree.map(at.take, last), jax.tree.map(at.take, exit_)
      p = iteration.problem(*some, iterations)
      searches, start = _start(p, s, True)
      features = _features(*some[:2], p, s, found, jnp.broadcast_to(again, searches.shape))
      return make(*some, features, True), start, searches & ~again

    rows, start, searches = lanes.in_queue(wanted, row, (rows, begin, no))

    def furthest(*at):
      one, two = (support.laid_out(support.one(iteration.without_gradient(x), *at)) for x in (a, b))
      return start.furthest(one, two, *at)

    return jnp.bool_(True), rows, searches, lanes.search(searches, shortest.search(furthest, start.known), nothing)

  rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(wanted), *x.shape[1:])), default)
  state = jnp.bool_(False), rows, wanted, nothing
  return jax.lax.while_loop(lambda s: ~s[0] | jnp.any(s[2]), one_round, state)[1]


def _features_first(
  wanted: jax.Array, a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int, make: Callable[..., Any], default: Any
) -> Any:
  """Return rows as `_in_rounds` does, in a loop that can be differentiated, after all features, which have no gradient."""
  fixed_a, fixed_b, fixed_reach = iteration.without_gradient(a), iteration.without_gradient(b), jax.lax.stop_gradient(reach)
  first = lanes.row(jnp.int32(0))
  one = jax.eval_shape(lambda: find(support.take_lanes(a, first), support.take_lanes(b, first), fixed_reach[:1], 1))
  nothing = jax.tree.map(lambda x: jnp.zeros((len(wanted), *x.shape[1:]), x.dtype), one)
  found = _in_rounds(wanted, fixed_a, fixed_b, fixed_reach, iterations, lambda a, b, reach, x, asked: x, nothing)

  def row(item):
    at = lanes.row(item)
    some = support.take_lanes(a, at), support.take_lanes(b, at), at.take(reach)
    return make(*some, jax.tree.map(at.take, found), True)

  return lanes.in_queue(wanted & ~found.far, row, default)


def _last_states(wanted: jax.Array, problem: Callable[..., Problem], first: Callable[..., State]) -> State:
  """Return the states (P, ..., 1) at the end of the iterations of the wanted pairs (P, 1), in a kernel.

  Args:
    wanted: the mask.
    problem: function of a lane. It returns the problem of the lane's pair.
    first: function of the problem and the lane. It returns the first state.
  """
  constant: list[Any] = []  # what of a problem are no numbers of a lane, and the form of a problem

  def start(row, world):
    at = lanes.row(row)
    p = problem(at)
    leaves, form = jax.tree.flatten(p)
    constant[:] = [[None if isinstance(x, jax.Array) else x for x in leaves], form]
    return first(p, at), jnp.int32(0), [x for x in leaves if isinstance(x, jax.Array)]

  def whole(own):
    rest = iter(own)
    return jax.tree.unflatten(constant[1], [next(rest) if x is None else x for x in constant[0]])

  def continues(state):
    s, count, own = state
    return _continues(s, True) & (count < 6 * whole(own).iterations)

  def advance(state):
    s, count, own = state
    return iteration.iterate(whole(own), s), count + 1, own

  method = lanes.Search(start, continues, advance, lambda state: jax.tree.map(lambda x: x[0, ..., 0], state[0]))
  one = jax.eval_shape(lambda: method.end(start(jnp.int32(0), jnp.int32(0))))
  none = jax.tree.map(lambda x: lanes.empty((len(wanted), *x.shape, 1), x.dtype), one)
  return lanes.search(wanted, method, none)


def find(a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int, asked: jax.Array | bool = True) -> Features:
  """Find the nearest features of two shapes.

  Args:
    a, b: the shapes.
    reach: (P, W or 1) distance of the shapes above which the result is not needed [m].
    iterations: maximum number of GJK iterations for one target.
    asked: () whether depth and features of overlapping shapes are needed; if not, only `overlap` is.
  """
  p = iteration.problem(a, b, reach, iterations)
  first = iteration.start(p)
  no = first.done

  def leave_elsewhere(s):
    searches, start = _start(p, s, asked)

    def furthest(*at):
      return start.furthest(support.one(p.a, *at), support.one(p.b, *at), *at)

    nothing = shortest.Exit(s.normal, start.depth, no, no)
    found = lanes.search(searches, shortest.search(furthest, start.known), nothing)
    new = iteration.restarted(p, s, found.normal, found.depth)
    return jax.tree.map(lambda old, x: jnp.where(over(found.better, x.ndim), x, old), s, new), found, searches

  def pass_(c):
    s, found, searches, k = c
    s = _settled(p, s, asked)
    return *jax.lax.cond(k == 0, lambda: leave_elsewhere(s), lambda: (s, found, searches)), k + 1

  # one loop of two passes around the search, so that `iteration.iterate` is compiled once
  state = first, shortest.Exit(p.away, p.away[:, 0], no, no), no, jnp.int32(0)
  s, found, searches, _ = jax.lax.while_loop(lambda c: _continues(c[0], asked) & (c[3] < 2), pass_, state)
  return _features(a, b, p, s, found, searches, asked)


def _continues(s: State, asked: jax.Array | bool) -> jax.Array:
  return jnp.any(~s.done & (asked | ~s.overlap))


def _settled(p: Problem, s: State, asked: jax.Array | bool) -> State:
  """Return the state at the end of the iterations."""
  return jax.lax.while_loop(
    lambda c: _continues(c[0], asked) & (c[1] < 6 * p.iterations),
    lambda c: (iteration.iterate(p, c[0]), c[1] + 1),
    (s, jnp.int32(0)),
  )[0]


def _features(
  a: ConvexShape, b: ConvexShape, p: Problem, s: State, found: shortest.Exit, searched: jax.Array,
  asked: jax.Array | bool = True,
) -> Features:  # fmt: skip
  """Return the features of a last state, and of the results of the searches where `searched` (P, W) is true."""
  # rounding may turn the normal that the loop finds, and for curved shapes the loop ends early: keep the normal of the search
  normal = jnp.where((searched & found.better)[:, None], found.normal, s.normal)
  lost = jnp.where(searched, found.unproved, s.lost | ~s.done & (asked | ~s.overlap))
  dist = jnp.where(s.overlap, -jnp.where(searched, found.depth, _height(s)), safe.norm(s.v))
  return Features(
    normal=normal,
    on=s.on,
    index_a=support.own_index(a, s.index_a),
    index_b=support.own_index(b, s.index_b),
    point_a=s.a,
    point_b=s.b,
    far=s.far,
    overlap=s.overlap,
    nsupport=s.nsupport,
    dist=dist,
    size=p.size + 0 * dist,
    lost=lost,
  )


def _height(s: State) -> jax.Array:
  """Return the height (P, W) of the simplex along the normal [m]."""
  return linear.materialize(jnp.max(jnp.where(s.on, vector.dot(s.y, s.normal[:, None]), -jnp.inf), axis=1))


def _start(p: Problem, s: State, asked: jax.Array | bool) -> tuple[jax.Array, _Start]:
  """Return a mask (P, W) of the pairs for which a smaller depth is searched, after the first iterations, and the start of the
  searches."""
  depth = _height(s)
  exact, curved = (x[depth.dtype.itemsize] * p.size for x in (shortest.SHORTER, shortest.CURVED))
  tolerance = jnp.where(over(p.polytopes, 2), exact, curved) + 0 * depth
  searches = s.overlap & ~s.far & asked & (depth > tolerance) & ~_is_shortest(p, s, depth, p.support(-s.normal)[0], tolerance)
  return searches, _Start(s.normal, depth, p.size + 0 * depth, tolerance, p.rotation, p.position)


def _is_shortest(p: Problem, s: State, depth: jax.Array, below: jax.Array, tolerance: jax.Array) -> jax.Array:
  """Return a mask (P, W) of the pairs whose depth is proved to be the least depth by a cheap test, as for resting shapes.

  The triangle that was found and the farthest point on the other side, `below`, are in Y. They span a tetrahedron: if the other
  faces of the tetrahedron are farther from the origin than the depth, then so is the rest of Y's boundary. Where one shape is
  an ellipsoid, a ball inside of Y touches the boundary of Y at the foot. If the origin is between the centre of the ball and
  the foot, Y extends in every direction at least as far as the ball.
  """
  enough = s.on.all(axis=1)
  corners = [below, *(s.y[:, k] for k in range(3))]
  for k in range(4):
    x, y, z, opposite = (corners[(k + i) % 4] for i in range(4))
    normal = vector.cross(y - x, z - x)
    height = vector.dot(normal, x) * jnp.where(vector.dot(normal, opposite - x) < 0, 1, -1)
    least = depth + (-tolerance if k == 1 else tolerance)  # k = 1: the height of the triangle itself is the depth
    enough &= (height > 0) & (height * height >= least * least * vector.dot(normal, normal))
  foot, excess = s.v + s.target, _inner_radius(p.a) + _inner_radius(p.b) - depth
  aside2 = vector.dot(foot, foot) - depth * depth
  return enough | (excess > 0) & (safe.sqrt(excess * excess + aside2) - excess < 4 * tolerance)


def _inner_radius(c: ConvexShape) -> jax.Array:
  """Return the radius (P, W or 1) of a ball inside of the shape that can touch every point of the boundary [m]."""
  if not c.curved:
    return jnp.zeros_like(c.size[:, 0])
  low, high = (f(f(c.size[:, 0], c.size[:, 1]), c.size[:, 2]) for f in (jnp.minimum, jnp.maximum))
  return jnp.where(support.is_kind(c, support.ELLIPSOID, 2), low * low / high, 0)
