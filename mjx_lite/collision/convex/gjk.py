"""Signed distance of two convex cores by GJK, and the nearest features.

The Minkowski difference Y = A - B of two shapes contains the origin if the shapes overlap. GJK finds the point c of Y that is
nearest to a target p outside of Y; n = (p - c) / |p - c| is normal to Y at c.

If the shapes do not overlap, the target is the origin, and |c| is the distance. If the shapes overlap, the target moves along
the line from the centre of Y through the origin until the target is outside of Y. Then the target is placed above the origin
along the last normal, again and again, until the normal does not change. Now c is the foot of the origin on the boundary of Y,
and n . c is the depth. One loop does all of this; each iteration evaluates the support function of each shape once.

The foot is a local minimum of the depth. Unless the foot is known to be the global minimum, `shortest` searches all directions
for a smaller depth. If there is one, the loop restarts above that point of the boundary.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import boxes, core, shortest
from mjx_lite.collision.convex.core import Core
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops import linear
from mjx_lite.ops.lanes import search
from mjx_lite.ops.select import over

_APART, _LEAVE, _DESCEND = range(3)
_TURNS = 5  # maximum number of placements of the target above the origin
_NARROW = 32.0  # a triangle has a normal if its width is above this multiple of the rounding of its corners
_UNFINISHED = 0.01  # relative gap of the squared distance above which a step may increase it by this part
_LEAST, _GROWTH = 1e-5, 8.0  # least height of a target and first step outside, relative to the size of Y; growth of the step
_BEYOND = 4.0  # length of the step, relative to the length that is known to be inside of Y
_ROUGH = 0.3  # relative gap of the squared distance that suffices to decide that a target is outside


class Features(NamedTuple):
  """Nearest features of two cores, or the features of least depth, in the frame of the first core. Without gradient.

  Attributes:
    normal: (P, 3, W) from the first core to the second.
    on: (P, 3, W) mask of the vertices of Y that span the feature, at most three.
    index_a, index_b: (P, 3, W) support indices of these vertices in the two cores.
    point_a: (P, 3, 3, W) the vertices' points on the first core; for polytopes the indices define the points.
    point_b: (P, 3, 3, W) the vertices' points on the second core, in the frame of the second core.
    far: (P, W) whether the distance of the cores is known to be above the reach.
    overlap: (P, W) whether the origin was inside of Y.
    count: (P, W) number of evaluated support points.
    dist: (P, W) distance, negative where the cores overlap [m].
    doubt: (P, W) error above which a distance counts as lost: `shortest.DOUBT` times the size [m].
    lost: (P, W) whether the search ran out of iterations or rounds while the error might exceed `doubt`.
  """

  normal: jax.Array
  on: jax.Array
  index_a: jax.Array
  index_b: jax.Array
  point_a: jax.Array
  point_b: jax.Array
  far: jax.Array
  overlap: jax.Array
  count: jax.Array
  dist: jax.Array
  doubt: jax.Array
  lost: jax.Array


class _State(NamedTuple):
  """Loop state of `find`; v (P, 3, W) points from the target to the nearest point of the simplex y (P, 3, 3, W)."""

  y: jax.Array
  a: jax.Array
  b: jax.Array
  index_a: jax.Array
  index_b: jax.Array
  on: jax.Array
  v: jax.Array
  target: jax.Array
  step: jax.Array
  normal: jax.Array
  stage: jax.Array
  turn: jax.Array
  lost: jax.Array
  done: jax.Array
  far: jax.Array
  overlap: jax.Array
  count: jax.Array
  passes: jax.Array


def _nearest(y: jax.Array, on: jax.Array, w: jax.Array, away: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
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
  e = linear.materialized(y - w[:, None])
  n = [vector.cross(e[:, (k + 1) % 3], e[:, (k + 2) % 3]) for k in range(3)]
  n = linear.materialized(jnp.stack(n, axis=1))  # normal of the triangle of w and y without vertex k
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
  best = linear.materialized(best)
  span = jnp.stack([best & 1 << k != 0 for k in range(3)], axis=1)
  edge, normal = (vector.add(jnp.where((best == b)[:, None], x[:, k], 0) for k, b in enumerate(bits))
                  for x, bits in ((e, (1, 2, 4)), (n, (6, 5, 3))))  # fmt: skip
  foot = w - _ratio(vector.dot(edge, w), vector.dot(edge, edge))[:, None] * edge
  # for a triangle, use the normal: for a narrow triangle, sums of its edges have errors of many times the width
  above = _ratio(vector.dot(normal, w), vector.dot(normal, normal))[:, None] * normal
  several = (best & (best - 1)) > 0  # more than one bit: a triangle
  point = jnp.where(several[:, None], above, foot)

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


def near(a: Core, b: Core, reach: jax.Array) -> jax.Array:
  """Return a mask (P, W) of the pairs that may be within reach (P, W or 1) [m], by bounding boxes. Without gradient."""
  a, b, reach = _held(a), _held(b), jax.lax.stop_gradient(reach)
  turn = vector.mat_mat(vector.transpose(a.mat), b.mat)
  (middle_a, half_a), (middle_b, half_b) = core.box(a), core.box(b)
  offset = vector.mat_t_vec(a.mat, b.pos - a.pos) + vector.mat_vec(turn, middle_b) - middle_a
  slack = 1e-5 * jnp.max(half_a + half_b, axis=1)  # for rounding
  return boxes.separation(offset, turn, half_a, half_b) <= reach + slack


def _held(c: Core) -> Core:
  return c._replace(**{k: jax.lax.stop_gradient(getattr(c, k)) for k in ("pos", "mat", "size", "scale")})


def find(a: Core, b: Core, reach: jax.Array, iterations: int, asked: jax.Array | bool = True) -> Features:
  """Find the nearest features of two cores.

  Args:
    a, b: the cores.
    reach: (P, W or 1) distance of the cores above which the result is not needed [m].
    iterations: maximum number of GJK iterations for one target.
    asked: () whether depth and features of overlapping cores are needed; if not, only `overlap` is.
  """
  a, b, reach = _held(a), _held(b), jax.lax.stop_gradient(reach)
  width = max(x.shape[-1] for x in (a.pos, b.pos, a.mat, b.mat, a.size, b.size, reach))
  turn = vector.mat_mat(vector.transpose(a.mat), b.mat)
  place = vector.mat_t_vec(a.mat, b.pos - a.pos)
  turn, place, reach = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (turn, place, reach))
  polytopes = core.is_kind(a, core.CORNERS, 2) & core.is_kind(b, core.CORNERS, 2)
  tiny = jnp.finfo(place.dtype).eps
  size = _extent(a) + _extent(b)
  small = size * tiny**0.5 * 0.1  # distance below which shapes count as touching
  doubt = size * shortest.DOUBT[place.dtype.itemsize]
  least = size * max(_LEAST, tiny**0.5)  # above `small`
  away = safe.normalize(place)  # a coordinate axis, if the centres coincide

  # curved cores only need a start for Newton's method
  lib = np if isinstance(polytopes, np.ndarray) else jnp
  rough = max(1e-7, 16 * tiny)
  exact, settles = (lib.where(polytopes, x, y) for x, y in ((16 * tiny, rough), (4 * tiny, rough)))
  exact, settles = (jnp.asarray(x, place.dtype) for x in (exact, settles))

  def height(depth):
    """Choose the target's height above the surface: as small as the depth, to find the same foot, but above rounding."""
    return jnp.clip(jnp.abs(depth), least, 0.1 * size)

  a, b = core.laid_out(a), core.laid_out(b)  # last: the bounding boxes above use the constant tables

  furthest = functools.partial(_furthest, a, b, turn, place)

  def body(s: _State) -> _State:
    w, point_a, point_b, index_a, index_b = furthest(-s.v)
    w, point_a, point_b = linear.materialized((w, point_a, point_b))
    rel, y_rel = w - s.target, s.y - s.target[:, None]
    v2, ahead = vector.dot(s.v, s.v), vector.dot(s.v, rel)
    fresh = ~s.on.any(axis=1)
    same = (s.on & (s.index_a == index_a[:, None]) & (s.index_b == index_b[:, None])).any(axis=1) & polytopes
    leaves = s.stage == _LEAVE
    far = (s.stage == _APART) & (ahead > 0) & (ahead * ahead > reach * reach * v2)
    close = v2 - ahead <= jnp.where(leaves, _ROUGH, exact) * v2
    stop = ~fresh & (same | close)

    # find a better simplex
    point, span, inside, out = _nearest(y_rel, s.on, rel, away)
    # rounding may hide the progress of a step that only rotates the simplex, on the way to a farther vertex
    slack = jnp.where(v2 - ahead > _UNFINISHED * v2, jnp.asarray(1 + _UNFINISHED, v2.dtype), 1)
    stop |= ~fresh & ~inside & (vector.dot(point, point) >= slack * v2)
    stop, inside, far = linear.materialized((stop, inside, far))
    inside &= ~stop
    keep = stop | s.done
    slot = jnp.argmin(jnp.where(span, 1, 0), axis=1)[:, None] == np.arange(3)[:, None]
    put = slot & ~keep[:, None]
    y = jnp.where(put[:, :, None], w[:, None], s.y)
    pa = jnp.where(put[:, :, None], point_a[:, None], s.a)
    pb = jnp.where(put[:, :, None], point_b[:, None], s.b)
    ia = jnp.where(put, index_a[:, None], s.index_a)
    ib = jnp.where(put, index_b[:, None], s.index_b)
    on = jnp.where(keep[:, None], s.on, span | slot)
    v = jnp.where(keep[:, None], s.v, point)

    # decide whether this target is done, and choose the next target
    v = linear.materialized(v)
    length = linear.materialized(safe.norm(v))
    tired = s.count >= iterations - 1
    doubtful = v2 - jnp.maximum(ahead, 0) > doubt * safe.sqrt(v2)  # the distance is between ahead / |v| and |v|
    touch = length <= small
    inside |= touch & (s.stage != _DESCEND)
    end = stop | tired | inside | touch
    outside = end & ~inside
    n = -v / jnp.where(length > 0, length, 1)[:, None]
    depth = linear.materialized(vector.dot(n, jnp.where(leaves[:, None], w, v + s.target)))
    settled = (s.stage == _DESCEND) & ((vector.dot(n, s.normal) > 1 - settles) | (s.turn >= _TURNS) | inside | touch)
    settled = linear.materialized(settled)
    done = s.done | far & ~fresh | outside & (s.stage == _APART) | end & settled
    known = jnp.where(touch | ~jnp.isfinite(out), 0, out + jnp.where(leaves, s.step, 0))
    step = jnp.maximum(jnp.where(leaves, _GROWTH * s.step, s.step), _BEYOND * known)
    step = jnp.where(end & inside & (s.stage != _DESCEND), step, s.step)
    done |= step > 64 * size
    stage = jnp.where(end & inside & (s.stage == _APART), _LEAVE, jnp.where(outside & leaves, _DESCEND, s.stage))
    moved = end & ~done
    target = jnp.where((stage == _LEAVE)[:, None], step[:, None] * away, (depth + height(depth))[:, None] * n)
    target = jnp.where(moved[:, None], target, s.target)
    # restart with the vertex that is farthest in the direction of the new target
    begin = jnp.where((stage == _LEAVE)[:, None], away, n)
    along = linear.materialized(jnp.where(on, vector.dot(y, begin[:, None]), -jnp.inf))
    first = _first_max(along) & on
    # but keep the whole triangle if the foot of the origin is on the triangle: the foot of the target is the same
    side = jnp.stack([vector.dot(n, vector.cross(y[:, k], y[:, (k + 1) % 3])) for k in range(3)], axis=1)
    above = (stage == _DESCEND) & on.all(axis=1) & ((side > 0).all(axis=1) | (side < 0).all(axis=1))
    on = jnp.where((moved & ~above)[:, None], first, on)
    restart = jnp.where(above[:, None], along[:, :1] * n, jnp.sum(jnp.where(first[:, :, None], y, 0), axis=1)) - target
    new = _State(
      y, pa, pb, ia, ib, on, jnp.where(moved[:, None], restart, v), target, step,
      jnp.where((outside & ~(touch & (s.stage == _DESCEND)))[:, None], n, s.normal), stage,
      s.turn + (outside & (s.stage == _DESCEND)), jnp.where(end, tired & ~(stop | inside | touch) & doubtful, s.lost), done,
      s.far | far & ~fresh & ~s.done,
      s.overlap | (stage != _APART), jnp.where(moved, 0, s.count + 1), s.passes + 1,
    )  # fmt: skip
    return jax.tree.map(lambda old, x: jnp.where(over(s.done, x.ndim), old, x), s, new)

  shape = place.shape[0], width
  zero3 = jnp.zeros((shape[0], 3, 3, width), place.dtype)
  index = jnp.zeros((shape[0], 3, width), jnp.int32)
  no = jnp.zeros(shape, bool)
  start = _State(
    zero3, zero3, zero3, index, index, jnp.zeros(index.shape, bool), -place, jnp.zeros_like(place),
    least + jnp.zeros_like(place[:, 0]), away, index[:, 0], index[:, 0], no, no, no, no, index[:, 0], index[:, 0],
  )  # fmt: skip

  def go_on(s: _State) -> jax.Array:
    return jnp.any(~s.done & (asked | ~s.overlap))

  def settle(s: _State) -> _State:
    return jax.lax.while_loop(
      lambda c: go_on(c[0]) & (c[1] < 6 * iterations), lambda c: (body(c[0]), c[1] + 1), (s, jnp.int32(0))
    )[0]

  def height_of(s: _State) -> jax.Array:
    """Return the height (P, W) of the simplex along the normal [m]."""
    return linear.materialized(jnp.max(jnp.where(s.on, vector.dot(s.y, s.normal[:, None]), -jnp.inf), axis=1))

  def furthest_of(*at):
    one_a, one_b = core.one(a, *at), core.one(b, *at)
    its_turn, its_place = core.entry(turn, *at), core.entry(place, *at)
    return lambda direction: _furthest(one_a, one_b, its_turn, its_place, direction[None])[0][0]

  def known(*numbers):
    return lambda *at: shortest.Known(*(core.entry(x, *at)[0, ..., 0] for x in numbers))

  def elsewhere(s: _State) -> tuple[_State, shortest.Way, jax.Array]:
    """Restart where the boundary of Y is nearer to the origin; return state, search result and a mask of the searches."""
    depth = height_of(s)
    exact, curved = (x[depth.dtype.itemsize] * size for x in (shortest.SHORTER, shortest.CURVED))
    tolerance = jnp.where(over(polytopes, 2), exact, curved) + 0 * depth
    look = s.overlap & ~s.far & asked & (depth > tolerance) & ~_is_shortest(a, b, s, depth, furthest(-s.normal)[0], tolerance)
    nothing = shortest.Way(s.normal, depth, no, no)
    way = search(look, shortest.search(furthest_of, known(s.normal, depth, size + 0 * depth, tolerance)), nothing)
    # the target is near the boundary, and the first foot is final
    target = (way.depth + least)[:, None] * way.normal
    first = _first_max(jnp.where(s.on, vector.dot(s.y, way.normal[:, None]), -jnp.inf)) & s.on
    back = jnp.sum(jnp.where(first[:, :, None], s.y, 0), axis=1) - target
    new = s._replace(on=first, v=back, target=target, normal=way.normal, turn=_TURNS + 0 * s.turn, done=no, count=0 * s.count)
    return jax.tree.map(lambda old, x: jnp.where(over(way.better, x.ndim), x, old), s, new), way, look

  def pass_(c):
    s, way, looked, k = c
    s = settle(s)
    return *jax.lax.cond(k == 0, lambda: elsewhere(s), lambda: (s, way, looked)), k + 1

  # one loop of two passes around the search, so that `body` is compiled once
  way = shortest.Way(away, away[:, 0], no, no)
  s, way, looked, _ = jax.lax.while_loop(lambda c: go_on(c[0]) & (c[3] < 2), pass_, (start, way, no, jnp.int32(0)))
  # for curved shapes the loop ends before the normal is exact; keep the normal of the search
  replaced = way.better & ~polytopes
  normal = jnp.where(replaced[:, None], way.normal, s.normal)
  lost = jnp.where(looked, way.unproved, s.lost | ~s.done & (asked | ~s.overlap))
  dist = jnp.where(s.overlap, -jnp.where(looked, way.depth, height_of(s)), safe.norm(s.v))
  return Features(
    normal=normal,
    on=s.on,
    index_a=s.index_a,
    index_b=s.index_b,
    point_a=s.a,
    point_b=s.b,
    far=s.far,
    overlap=s.overlap,
    count=s.passes,
    dist=dist,
    doubt=doubt + 0 * dist,
    lost=lost,
  )


def _is_shortest(a: Core, b: Core, s: _State, depth: jax.Array, below: jax.Array, tolerance: jax.Array) -> jax.Array:
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
  foot, over = s.v + s.target, _inner_radius(a) + _inner_radius(b) - depth
  aside2 = vector.dot(foot, foot) - depth * depth
  return enough | (over > 0) & (safe.sqrt(over * over + aside2) - over < 4 * tolerance)


def _inner_radius(c: Core) -> jax.Array:
  """Return the radius (P, W or 1) of a ball inside of the core that can touch every point of the boundary [m]."""
  if not c.curved:
    return jnp.zeros_like(c.size[:, 0])
  low, high = (f(f(c.size[:, 0], c.size[:, 1]), c.size[:, 2]) for f in (jnp.minimum, jnp.maximum))
  return jnp.where(core.is_kind(c, core.ELLIPSOID, 2), low * low / high, 0)


def _furthest(a: Core, b: Core, turn: jax.Array, place: jax.Array, direction: jax.Array) -> tuple[jax.Array, ...]:
  """Return the support point (P, 3, W) of Y in a direction, the support points of the two cores, and their indices (P, W)."""
  point_a, index_a = core.support(a, direction)
  point_b, index_b = core.support(b, -vector.mat_t_vec(turn, direction))
  return point_a - place - vector.mat_vec(turn, point_b), point_a, point_b, index_a, index_b


def _first_max(x: jax.Array) -> jax.Array:
  """Return a one-hot mask of the first largest element along the second axis."""
  return first_largest(x)[1][:, None] == np.arange(x.shape[1])[:, None]


def _extent(c: Core) -> jax.Array:
  """Return the radius (P, W or 1) of a ball around the centre that contains the core [m]."""
  middle, half = core.box(c)
  corners = safe.norm(jnp.abs(middle) + half)
  x, y, z = (c.size[:, k] for k in range(3))
  round_ = jnp.where(core.is_kind(c, core.CYLINDER, 2), x + y, jnp.maximum(jnp.maximum(x, y), z))
  return jnp.where(core.is_kind(c, core.CORNERS, 2), corners, round_)
