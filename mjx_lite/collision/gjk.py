"""Signed distance of two convex cores, and the features that it is between.

The difference Y = A - B of two shapes contains the origin where they overlap. GJK finds the point c of Y that is nearest to
a target p outside; n = (p - c) / |p - c| is normal to Y there. Apart: the target is the origin, and |c| the distance.
Overlapping: the target leaves the centre of Y through the origin until it is outside, and is then placed above the
origin along the last normal until that does not change: c is then the foot of the origin on the boundary of Y, and
n . c its depth. One loop does all of this; every pass through it asks each shape for one support point.

The foot is the nearest of a neighbourhood. Unless it is known to be the nearest of all, the directions are searched for a
shorter way out (`shortest`), and where there is one the loop begins again above it.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import boxes, core, shortest
from mjx_lite.collision.core import Core
from mjx_lite.core import linear
from mjx_lite.core.lanes import search
from mjx_lite.core.select import over
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest

_APART, _LEAVE, _DESCEND = range(3)
_TURNS = 5  # of the target above the origin
_NARROW = 32.0  # width of a triangle, of the rounding of its corners, from which it has a normal
_UNFINISHED = 0.01  # part of the squared distance that a support point may still gain
_LEAST, _GROWTH = 1e-5, 8.0  # least height of a target and first step outside, of the size of Y; growth of that step
_BEYOND = 4.0  # length of that step, of what is known to be inside
_ROUGH = 0.3  # part of the squared distance that may be missing where a target has just been found to be outside


class Features(NamedTuple):
  """Where two cores are nearest, or overlap least; in the frame of the first. Without gradient.

  Attributes:
    normal: (P, 3, W) from the first to the second.
    on: (P, 3, W) which of three vertices of Y are used.
    index_a, index_b: (P, 3, W) support indices of these vertices in the two cores.
    point_a: (P, 3, 3, W) their points on the first core; of polytopes the indices count.
    point_b: (P, 3, 3, W) and on the second, in its own frame.
    far: (P, W) whether the cores are known to be farther apart than the reach.
    overlap: (P, W) whether the origin was inside of Y.
    count: (P, W) support points that were asked for.
    dist: (P, W) the distance that was found, negative where the cores overlap.
    doubt: (P, W) the error from which a distance counts as lost: `shortest.DOUBT` times the size.
    lost: (P, W) whether the search ran out of iterations or rounds while the error might be so large.
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
  """`Features` in the making; v (P, 3, W) from the target to the nearest point of the simplex y (P, 3, 3, W)."""

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
  """Point nearest to the origin of the simplex of w and y, which w is part of.

  Args:
    y: (P, 3, 3, W) vertices, of which those exist that are on (P, 3, W).
    w: (P, 3, W).
    away: (P, 3, W) a direction.

  Returns:
    the point (P, 3, W), which vertices besides w span it (P, 3, W), whether the origin is inside, and if so how far it is
    from there to the outside in that direction (P, W).
  """
  e = linear.materialized(y - w[:, None])
  n = [vector.cross(e[:, (k + 1) % 3], e[:, (k + 2) % 3]) for k in range(3)]
  n = linear.materialized(jnp.stack(n, axis=1))  # of the triangle without vertex k
  length2, area2 = ([vector.dot(x[:, k], x[:, k]) for k in range(3)] for x in (e, n))
  w2 = vector.dot(w, w)
  tiny = jnp.finfo(w.dtype).eps

  # every simplex of two or three vertices with w: the bits of the vertices, and how near its plane is
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
  # along the normal: in the plane of a narrow triangle, sums of its edges have errors many times its width
  above = _ratio(vector.dot(normal, w), vector.dot(normal, normal))[:, None] * normal
  several = (best & (best - 1)) > 0  # bits
  point = jnp.where(several[:, None], above, foot)

  # inside of the tetrahedron: on the inner side of all its faces
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
  """x / y, or x where y, which is not negative, is zero."""
  return x / jnp.where(y > 0, y, 1)


def near(a: Core, b: Core, reach: jax.Array) -> jax.Array:
  """Which pairs (P, W) may be within reach (P, W or 1), by boxes around them. Without gradient."""
  a, b, reach = _held(a), _held(b), jax.lax.stop_gradient(reach)
  turn = vector.mat_mat(vector.transpose(a.mat), b.mat)
  (middle_a, half_a), (middle_b, half_b) = core.box(a), core.box(b)
  offset = vector.mat_t_vec(a.mat, b.pos - a.pos) + vector.mat_vec(turn, middle_b) - middle_a
  slack = 1e-5 * jnp.max(half_a + half_b, axis=1)  # of rounding
  return boxes.separation(offset, turn, half_a, half_b) <= reach + slack


def _held(c: Core) -> Core:
  return c._replace(**{k: jax.lax.stop_gradient(getattr(c, k)) for k in ("pos", "mat", "size", "scale")})


def find(a: Core, b: Core, reach: jax.Array, iterations: int, asked: jax.Array | bool = True) -> Features:
  """Features between two cores.

  Args:
    a, b: the cores.
    reach: (P, W or 1) distance of the cores beyond which nothing need be known [m].
    iterations: bound of GJK for one target.
    asked: () whether more is asked of those that overlap than that they do.
  """
  a, b, reach = _held(a), _held(b), jax.lax.stop_gradient(reach)
  width = max(x.shape[-1] for x in (a.pos, b.pos, a.mat, b.mat, a.size, b.size, reach))
  turn = vector.mat_mat(vector.transpose(a.mat), b.mat)
  place = vector.mat_t_vec(a.mat, b.pos - a.pos)
  turn, place, reach = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (turn, place, reach))
  polytopes = core.is_kind(a, core.CORNERS, 2) & core.is_kind(b, core.CORNERS, 2)
  tiny = jnp.finfo(place.dtype).eps
  size = _extent(a) + _extent(b)
  small = size * tiny**0.5 * 0.1  # distance at which shapes count as touching
  doubt = size * shortest.DOUBT[place.dtype.itemsize]
  least = size * max(_LEAST, tiny**0.5)  # above what counts as touching
  away = safe.normalize(place)  # an axis, if the centres are one

  # curved cores only need a start for Newton's method
  lib = np if isinstance(polytopes, np.ndarray) else jnp
  rough = max(1e-7, 16 * tiny)
  exact, settles = (lib.where(polytopes, x, y) for x, y in ((16 * tiny, rough), (4 * tiny, rough)))
  exact, settles = (jnp.asarray(x, place.dtype) for x in (exact, settles))

  def height(depth):
    """Of the target above the surface: as small as what it is to find is, lest it finds something else, but above rounding."""
    return jnp.clip(jnp.abs(depth), least, 0.1 * size)

  a, b = core.laid_out(a), core.laid_out(b)  # boxes, before, are tables of their own

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

    # a better simplex, or none
    point, span, inside, out = _nearest(y_rel, s.on, rel, away)
    # rounding may hide the progress of a step that turns the simplex on the way to a farther one
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

    # this target is done: what next
    v = linear.materialized(v)
    length = linear.materialized(safe.norm(v))
    tired = s.count >= iterations - 1
    doubtful = v2 - jnp.maximum(ahead, 0) > doubt * safe.sqrt(v2)  # of the distance between |v| and ahead / |v|
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
    # begin again with the vertex that is farthest along the way
    begin = jnp.where((stage == _LEAVE)[:, None], away, n)
    along = linear.materialized(jnp.where(on, vector.dot(y, begin[:, None]), -jnp.inf))
    first = _first_max(along) & on
    # but with the triangle if the origin's foot is on it: then it is the target's foot too
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
    """Of the simplex along the normal."""
    return linear.materialized(jnp.max(jnp.where(s.on, vector.dot(s.y, s.normal[:, None]), -jnp.inf), axis=1))

  def furthest_of(*at):
    one_a, one_b = core.one(a, *at), core.one(b, *at)
    its_turn, its_place = core.entry(turn, *at), core.entry(place, *at)
    return lambda direction: _furthest(one_a, one_b, its_turn, its_place, direction[None])[0][0]

  def known(*numbers):
    return lambda *at: shortest.Known(*(core.entry(x, *at)[0, ..., 0] for x in numbers))

  def elsewhere(s: _State) -> tuple[_State, shortest.Way, jax.Array]:
    """Begin again where the boundary of Y is nearer to the origin; the way there, and whether one was looked for."""
    depth = height_of(s)
    exact, curved = (x[depth.dtype.itemsize] * size for x in (shortest.SHORTER, shortest.CURVED))
    tolerance = jnp.where(over(polytopes, 2), exact, curved) + 0 * depth
    look = s.overlap & ~s.far & asked & (depth > tolerance) & ~_is_shortest(a, b, s, depth, furthest(-s.normal)[0], tolerance)
    nothing = shortest.Way(s.normal, depth, no, no)
    way = search(look, shortest.search(furthest_of, known(s.normal, depth, size + 0 * depth, tolerance)), nothing)
    # near to the boundary, and ready with the first foot
    target = (way.depth + least)[:, None] * way.normal
    first = _first_max(jnp.where(s.on, vector.dot(s.y, way.normal[:, None]), -jnp.inf)) & s.on
    back = jnp.sum(jnp.where(first[:, :, None], s.y, 0), axis=1) - target
    new = s._replace(on=first, v=back, target=target, normal=way.normal, turn=_TURNS + 0 * s.turn, done=no, count=0 * s.count)
    return jax.tree.map(lambda old, x: jnp.where(over(way.better, x.ndim), x, old), s, new), way, look

  def pass_(c):
    s, way, looked, k = c
    s = settle(s)
    return *jax.lax.cond(k == 0, lambda: elsewhere(s), lambda: (s, way, looked)), k + 1

  # one loop around the search, lest it is compiled twice
  way = shortest.Way(away, away[:, 0], no, no)
  s, way, looked, _ = jax.lax.while_loop(lambda c: go_on(c[0]) & (c[3] < 2), pass_, (start, way, no, jnp.int32(0)))
  # the search for a foot of curved shapes ends early
  replaced = way.better & ~polytopes
  normal = jnp.where(replaced[:, None], way.normal, s.normal)
  lost = jnp.where(looked, way.unproved, s.lost | ~s.done & (asked | ~s.overlap))
  dist = jnp.where(s.overlap, -jnp.where(looked, way.depth, height_of(s)), safe.norm(s.v))
  return Features(normal, s.on, s.index_a, s.index_b, s.a, s.b, s.far, s.overlap, s.passes, dist, doubt + 0 * dist, lost)


def _is_shortest(a: Core, b: Core, s: _State, depth: jax.Array, below: jax.Array, tolerance: jax.Array) -> jax.Array:
  """Whether it is easy to see that no way out is shorter than the one found (P, W), as where shapes rest.

  The triangle that was found and the farthest point on the other side, `below`, are in Y: if the other faces of this
  tetrahedron are higher above the origin than the depth, so are those of Y. Where one shape is an ellipsoid, a ball inside of Y
  touches its boundary at the foot: if the origin is between the centre of the ball and the foot, Y reaches nowhere less than
  the ball.
  """
  enough = s.on.all(axis=1)
  corners = [below, *(s.y[:, k] for k in range(3))]
  for k in range(4):
    x, y, z, opposite = (corners[(k + i) % 4] for i in range(4))
    normal = vector.cross(y - x, z - x)
    height = vector.dot(normal, x) * jnp.where(vector.dot(normal, opposite - x) < 0, 1, -1)
    least = depth + (-tolerance if k == 1 else tolerance)  # the triangle's own height is the depth
    enough &= (height > 0) & (height * height >= least * least * vector.dot(normal, normal))
  foot, over = s.v + s.target, _inner_radius(a) + _inner_radius(b) - depth
  aside2 = vector.dot(foot, foot) - depth * depth
  return enough | (over > 0) & (safe.sqrt(over * over + aside2) - over < 4 * tolerance)


def _inner_radius(c: Core) -> jax.Array:
  """Radius (P, W or 1) of a ball that rolls in the core all over its boundary."""
  if not c.curved:
    return jnp.zeros_like(c.size[:, 0])
  low, high = (f(f(c.size[:, 0], c.size[:, 1]), c.size[:, 2]) for f in (jnp.minimum, jnp.maximum))
  return jnp.where(core.is_kind(c, core.ELLIPSOID, 2), low * low / high, 0)


def _furthest(a: Core, b: Core, turn: jax.Array, place: jax.Array, direction: jax.Array) -> tuple[jax.Array, ...]:
  """The farthest point (P, 3, W) of Y in a direction, those of the cores it is the difference of, and their indices (P, W)."""
  point_a, index_a = core.support(a, direction)
  point_b, index_b = core.support(b, -vector.mat_t_vec(turn, direction))
  return point_a - place - vector.mat_vec(turn, point_b), point_a, point_b, index_a, index_b


def _first_max(x: jax.Array) -> jax.Array:
  """One-hot mask of the first largest element along the second axis."""
  return first_largest(x)[1][:, None] == np.arange(x.shape[1])[:, None]


def _extent(c: Core) -> jax.Array:
  """Radius (P, W or 1) of a ball about the centre that holds the core."""
  middle, half = core.box(c)
  corners = safe.norm(jnp.abs(middle) + half)
  x, y, z = (c.size[:, k] for k in range(3))
  round_ = jnp.where(core.is_kind(c, core.CYLINDER, 2), x + y, jnp.maximum(jnp.maximum(x, y), z))
  return jnp.where(core.is_kind(c, core.CORNERS, 2), corners, round_)
