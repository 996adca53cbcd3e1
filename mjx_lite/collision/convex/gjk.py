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

from typing import NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.collision.convex import boxes, iteration, shortest, support
from mjx_lite.collision.convex.iteration import Problem, State
from mjx_lite.collision.convex.support import ConvexShape
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear
from mjx_lite.ops.lanes import search
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
    unsure: (P, W) whether there may be a smaller depth, which was not searched for.
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
  unsure: jax.Array


def near(a: ConvexShape, b: ConvexShape, reach: jax.Array) -> jax.Array:
  """Return a mask (P, W) of the pairs that may be within reach (P, W or 1) [m], by bounding boxes. Without gradient."""
  a, b, reach = iteration.without_gradient(a), iteration.without_gradient(b), jax.lax.stop_gradient(reach)
  rotation = vector.mat_mat(vector.transpose(a.mat), b.mat)
  (middle_a, half_a), (middle_b, half_b) = support.box(a), support.box(b)
  offset = vector.mat_t_vec(a.mat, b.pos - a.pos) + vector.mat_vec(rotation, middle_b) - middle_a
  slack = 1e-5 * jnp.max(half_a + half_b, axis=1)  # for rounding
  return each(lambda row: boxes.separation(*row), (offset, rotation, half_a, half_b)) <= reach + slack


def find(
  a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int, asked: jax.Array | bool = True,
  searches: jax.Array | bool = True,
) -> Features:  # fmt: skip
  """Find the nearest features of two shapes.

  Args:
    a, b: the shapes.
    reach: (P, W or 1) distance of the shapes above which the result is not needed [m].
    iterations: maximum number of GJK iterations for one target.
    asked: () whether depth and features of overlapping shapes are needed; if not, only `overlap` is.
    searches: () whether a smaller depth is searched for where there may be one; if not, the result is `unsure` there.
  """
  p = iteration.problem(a, b, reach, iterations)
  start = iteration.start(p)
  no = start.done

  def continues(s: State) -> jax.Array:
    return jnp.any(~s.done & (asked | ~s.overlap))

  def settle(s: State) -> State:
    return jax.lax.while_loop(
      lambda c: continues(c[0]) & (c[1] < 6 * iterations), lambda c: (iteration.iterate(p, c[0]), c[1] + 1), (s, jnp.int32(0))
    )[0]

  def pass_(c):
    s, exit_, wanted, k = c
    s = settle(s)
    return *jax.lax.cond(k == 0, lambda: _leave_elsewhere(p, s, asked, searches, no), lambda: (s, exit_, wanted)), k + 1

  # one loop of two passes around the search, so that `iteration.iterate` is compiled once
  exit_ = shortest.Exit(p.away, p.away[:, 0], no, no)
  s, exit_, wanted, _ = jax.lax.while_loop(lambda c: continues(c[0]) & (c[3] < 2), pass_, (start, exit_, no, jnp.int32(0)))
  # rounding may turn the normal that the loop finds, and for curved shapes the loop ends early: keep the normal of the search
  normal = jnp.where(exit_.better[:, None], exit_.normal, s.normal)
  searched, unsure = wanted & searches, wanted & ~jnp.asarray(searches)
  lost = jnp.where(searched, exit_.unproved, s.lost | ~s.done & (asked | ~s.overlap))
  dist = jnp.where(s.overlap, -jnp.where(searched, exit_.depth, _height(s)), safe.norm(s.v))
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
    unsure=unsure,
  )


def _height(s: State) -> jax.Array:
  """Return the height (P, W) of the simplex along the normal [m]."""
  return linear.materialize(jnp.max(jnp.where(s.on, vector.dot(s.y, s.normal[:, None]), -jnp.inf), axis=1))


def _leave_elsewhere(
  p: Problem, s: State, asked: jax.Array | bool, searches: jax.Array | bool, no: jax.Array
) -> tuple[State, shortest.Exit, jax.Array]:
  """Restart where the boundary of Y is nearer to the origin.

  Args:
    p: the problem.
    s: state after the first pass.
    asked, searches: () as in `find`.
    no: (P, W) False.

  Returns:
    the state, the results of the searches, and a mask (P, W) of the searches, made or not.
  """

  def support_of(*at):
    a, b = support.one(p.a, *at), support.one(p.b, *at)
    rotation, position = support.entry(p.rotation, *at), support.entry(p.position, *at)
    return lambda direction: iteration.support_of_difference(a, b, rotation, position, direction[None])[0][0]

  def known(*numbers):
    return lambda *at: shortest.Known(*(support.entry(x, *at)[0, ..., 0] for x in numbers))

  depth = _height(s)
  exact, curved = (x[depth.dtype.itemsize] * p.size for x in (shortest.SHORTER, shortest.CURVED))
  tolerance = jnp.where(over(p.polytopes, 2), exact, curved) + 0 * depth
  wanted = s.overlap & ~s.far & asked & (depth > tolerance) & ~_is_shortest(p, s, depth, p.support(-s.normal)[0], tolerance)
  nothing = shortest.Exit(s.normal, depth, no, no)
  exit_ = search(wanted & searches, shortest.search(support_of, known(s.normal, depth, p.size + 0 * depth, tolerance)), nothing)
  # the target is near the boundary, and the first foot is final
  target = (exit_.depth + p.least)[:, None] * exit_.normal
  first = iteration.first_max(jnp.where(s.on, vector.dot(s.y, exit_.normal[:, None]), -jnp.inf)) & s.on
  back = jnp.sum(jnp.where(first[:, :, None], s.y, 0), axis=1) - target
  new = s._replace(
    on=first,
    v=back,
    target=target,
    normal=exit_.normal,
    placements=iteration.PLACEMENTS + 0 * s.placements,
    done=no,
    niter=0 * s.niter,
  )
  return jax.tree.map(lambda old, x: jnp.where(over(exit_.better, x.ndim), x, old), s, new), exit_, wanted


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
