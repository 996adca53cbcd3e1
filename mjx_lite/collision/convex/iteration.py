"""One iteration of GJK for a moving target: a better simplex, a decision, and perhaps the next target (`gjk`).

The target starts at the origin. If the origin is inside of Y, the target leaves Y along a line, and is then placed above the
origin along the last normal, again and again, until the normal does not change.

Tests: tests/collision/test_convex.py, tests/collision/test_shortest_way.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import shortest, simplex, support
from mjx_lite.collision.convex.support import ConvexShape
from mjx_lite.math import safe, vector
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops import linear
from mjx_lite.ops.select import over

_SEPARATE, _LEAVE, _DESCEND = range(3)
PLACEMENTS = 5  # maximum number of placements of the target above the origin
_UNFINISHED = 0.01  # relative gap of the squared distance above which a step may increase it by this part
_LEAST, _GROWTH = 1e-5, 8.0  # least height of a target and first step outside, relative to the size of Y; growth of the step
_BEYOND = 4.0  # length of the step, relative to the length that is known to be inside of Y
_ROUGH = 0.3  # relative gap of the squared distance that suffices to decide that a target is outside


class Problem(NamedTuple):
  """What the loop of `gjk.find` does not change, for P pairs.

  Attributes:
    a, b: the shapes, without gradient.
    rotation, position: (P, 3, 3, W), (P, 3, W) pose of the second shape in the frame of the first [m].
    reach: (P, W) distance above which the result is not needed [m].
    polytopes: (P, W or 1) whether both shapes are polytopes.
    size: (P, W or 1) upper bound of the size of Y [m].
    small: distance below which shapes count as touching [m].
    doubt: as in `gjk.Features`.
    least: least height of a target above the surface [m].
    away: (P, 3, W) direction in which the target leaves Y.
    exact: relative gap of the squared distance at which a search ends.
    settles: a normal counts as the same if the cosine of its change is above one minus this.
    iterations: maximum number of iterations for one target.
  """

  a: ConvexShape
  b: ConvexShape
  rotation: jax.Array
  position: jax.Array
  reach: jax.Array
  polytopes: np.ndarray | jax.Array
  size: jax.Array
  small: jax.Array
  doubt: jax.Array
  least: jax.Array
  away: jax.Array
  exact: jax.Array
  settles: jax.Array
  iterations: int

  def support(self, direction: jax.Array) -> tuple[jax.Array, ...]:
    """Return the support point of Y in directions (P, 3, W), and more: see `support_of_difference`."""
    return support_of_difference(self.a, self.b, self.rotation, self.position, direction)

  def target_height(self, depth: jax.Array) -> jax.Array:
    """Return the target's height above the surface: as small as the depth, to find the same foot, but above rounding."""
    return jnp.clip(jnp.abs(depth), self.least, 0.1 * self.size)


class State(NamedTuple):
  """Loop state of `gjk.find`.

  Attributes:
    y: (P, 3, 3, W) vertices of the simplex, with their points `a` and `b` and indices `index_a` and `index_b` on the shapes.
    on: (P, 3, W) mask of the vertices that exist.
    v: (P, 3, W) from the target to the nearest point of the simplex.
    target: (P, 3, W).
    step: (P, W) distance of the target from the origin while the target leaves Y.
    normal: (P, 3, W) the last normal.
    stage: (P, W) `_SEPARATE`, `_LEAVE` or `_DESCEND`.
    placements: (P, W) number of placements of the target above the origin.
    lost, done, far, overlap: (P, W) masks.
    niter, nsupport: (P, W) number of iterations for this target, and of all iterations.
  """

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
  placements: jax.Array
  lost: jax.Array
  done: jax.Array
  far: jax.Array
  overlap: jax.Array
  niter: jax.Array
  nsupport: jax.Array


def problem(a: ConvexShape, b: ConvexShape, reach: jax.Array, iterations: int) -> Problem:
  """Make the problem of `gjk.find` from its arguments."""
  a, b, reach = without_gradient(a), without_gradient(b), jax.lax.stop_gradient(reach)
  width = max(x.shape[-1] for x in (a.pos, b.pos, a.mat, b.mat, a.size, b.size, reach))
  rotation = vector.mat_mat(vector.transpose(a.mat), b.mat)
  position = vector.mat_t_vec(a.mat, b.pos - a.pos)
  rotation, position, reach = (jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in (rotation, position, reach))
  polytopes = support.is_kind(a, support.CORNERS, 2) & support.is_kind(b, support.CORNERS, 2)
  tiny = jnp.finfo(position.dtype).eps
  size = _extent(a) + _extent(b)
  small = size * tiny**0.5 * 0.1
  doubt = size * shortest.DOUBT[position.dtype.itemsize]
  least = size * max(_LEAST, tiny**0.5)  # above `small`
  away = safe.normalize(position)  # a coordinate axis, if the centres coincide

  # curved shapes need a start for Newton's method, and depth enough for it where the features that it starts from lack one
  lib = np if isinstance(polytopes, np.ndarray) else jnp
  exact, settles = (lib.where(polytopes, x, max(y, 16 * tiny)) for x, y in ((16 * tiny, 1e-9), (4 * tiny, 1e-7)))
  exact, settles = (jnp.asarray(x, position.dtype) for x in (exact, settles))
  return Problem(
    a=support.laid_out(a),  # last: the bounding boxes above use the constant tables
    b=support.laid_out(b),
    rotation=rotation,
    position=position,
    reach=reach,
    polytopes=polytopes,
    size=size,
    small=small,
    doubt=doubt,
    least=least,
    away=away,
    exact=exact,
    settles=settles,
    iterations=iterations,
  )


def start(p: Problem) -> State:
  """Return the first state: no vertex, and the origin as target."""
  number, _, width = p.position.shape
  zero = jnp.zeros((number, 3, 3, width), p.position.dtype)
  index = jnp.zeros((number, 3, width), jnp.int32)
  no = jnp.zeros((number, width), bool)
  return State(
    y=zero,
    a=zero,
    b=zero,
    index_a=index,
    index_b=index,
    on=jnp.zeros(index.shape, bool),
    v=-p.position,
    target=jnp.zeros_like(p.position),
    step=p.least + jnp.zeros_like(p.position[:, 0]),
    normal=p.away,
    stage=index[:, 0],
    placements=index[:, 0],
    lost=no,
    done=no,
    far=no,
    overlap=no,
    niter=index[:, 0],
    nsupport=index[:, 0],
  )


def restarted(p: Problem, s: State, normal: jax.Array, depth: jax.Array) -> State:
  """Return a state that starts at the vertex of its simplex that is farthest along a normal (P, 3, W).

  The target is above the boundary of Y, `depth` (P, W) away along the normal. It is near the boundary: the first foot is final.
  """
  target = (depth + p.least)[:, None] * normal
  first = first_max(jnp.where(s.on, vector.dot(s.y, normal[:, None]), -jnp.inf)) & s.on
  back = jnp.sum(jnp.where(first[:, :, None], s.y, 0), axis=1) - target
  placements, done = PLACEMENTS + 0 * s.placements, jnp.zeros_like(s.done)
  return s._replace(on=first, v=back, target=target, normal=normal, placements=placements, done=done, niter=0 * s.niter)


def start_above(p: Problem, normal: jax.Array, depth: jax.Array) -> State:
  """Return a first state as `restarted` does: with the vertex of Y that is farthest along the normal. The origin is in Y."""
  s = start(p)
  at = p.support(normal)
  vertex = [x[:, None] + jnp.zeros_like(old) for x, old in zip(at, (s.y, s.a, s.b, s.index_a, s.index_b), strict=True)]
  fields = dict(zip(("y", "a", "b", "index_a", "index_b"), vertex, strict=True))
  on, stage = s.on.at[:, 0].set(True), jnp.full_like(s.stage, _DESCEND)
  return restarted(p, s._replace(**fields, on=on, stage=stage, overlap=~s.overlap), normal, depth)


def iterate(p: Problem, s: State) -> State:
  """Take one step: find a better simplex for the target, decide whether this target is done, and choose the next target."""
  new, progress = _improve(p, s)
  new, decision = _decide(p, s, new, progress)
  new = _retarget(p, s, new, progress, decision)
  return jax.tree.map(lambda old, x: jnp.where(over(s.done, x.ndim), old, x), s, new)


class _Progress(NamedTuple):
  """What one step found. Masks and numbers are (P, W).

  Attributes:
    vertex: (P, 3, W) the new support point of Y.
    leaves: whether the target leaves Y.
    fresh: whether the simplex was empty.
    v2: squared length of v before the step [m^2].
    ahead: v times the vector from the target to the new vertex [m^2].
    stop: whether the simplex is the nearest one.
    inside: whether the target is inside of the simplex.
    far: whether the distance of the shapes is above the reach.
    outlet: distance from the target to the outside of the simplex along `away`, where the target is inside [m].
  """

  vertex: jax.Array
  leaves: jax.Array
  fresh: jax.Array
  v2: jax.Array
  ahead: jax.Array
  stop: jax.Array
  inside: jax.Array
  far: jax.Array
  outlet: jax.Array


def _improve(p: Problem, s: State) -> tuple[State, _Progress]:
  """Return the state with a better simplex, and what the step found."""
  w, point_a, point_b, index_a, index_b = p.support(-s.v)
  w, point_a, point_b = linear.materialize((w, point_a, point_b))
  rel, y_rel = w - s.target, s.y - s.target[:, None]
  v2, ahead = vector.dot(s.v, s.v), vector.dot(s.v, rel)
  fresh = ~s.on.any(axis=1)
  same = (s.on & (s.index_a == index_a[:, None]) & (s.index_b == index_b[:, None])).any(axis=1) & p.polytopes
  leaves = s.stage == _LEAVE
  far = (s.stage == _SEPARATE) & (ahead > 0) & (ahead * ahead > p.reach * p.reach * v2)
  close = v2 - ahead <= jnp.where(leaves, _ROUGH, p.exact) * v2
  stop = ~fresh & (same | close)

  point, span, inside, outlet = simplex.nearest(y_rel, s.on, rel, p.away)
  # rounding may hide the progress of a step that only turns the simplex, as on the path to a farther vertex
  rounding = 16 * jnp.finfo(v2.dtype).eps * p.size * safe.sqrt(v2)
  hidden = jnp.maximum(rounding, jnp.where(v2 - ahead > _UNFINISHED * v2, _UNFINISHED * v2, 0))
  stop |= ~fresh & ~inside & (vector.dot(point, point) >= v2 + jnp.where(v2 - ahead > rounding, hidden, 0))
  stop, inside, far = linear.materialize((stop, inside, far))
  inside &= ~stop
  keep = stop | s.done
  slot = jnp.argmin(jnp.where(span, 1, 0), axis=1)[:, None] == np.arange(3)[:, None]
  put = slot & ~keep[:, None]
  new = s._replace(
    y=jnp.where(put[:, :, None], w[:, None], s.y),
    a=jnp.where(put[:, :, None], point_a[:, None], s.a),
    b=jnp.where(put[:, :, None], point_b[:, None], s.b),
    index_a=jnp.where(put, index_a[:, None], s.index_a),
    index_b=jnp.where(put, index_b[:, None], s.index_b),
    on=jnp.where(keep[:, None], s.on, span | slot),
    v=jnp.where(keep[:, None], s.v, point),
  )
  return new, _Progress(
    vertex=w, leaves=leaves, fresh=fresh, v2=v2, ahead=ahead, stop=stop, inside=inside, far=far, outlet=outlet
  )


class _Decision(NamedTuple):
  """Whether the search for a target is over. Masks and numbers are (P, W).

  Attributes:
    end: whether the search is over.
    inside, outside, touch: whether the target is then inside, outside or on the boundary of Y.
    tired: whether the search ran out of iterations.
    doubtful: whether the distance of the target is in doubt.
    normal: (P, 3, W) from the nearest point to the target.
    depth: height of the nearest point above the origin along this normal [m].
    done, step, stage: as in `State`.
  """

  end: jax.Array
  inside: jax.Array
  outside: jax.Array
  touch: jax.Array
  tired: jax.Array
  doubtful: jax.Array
  normal: jax.Array
  depth: jax.Array
  done: jax.Array
  step: jax.Array
  stage: jax.Array


def _decide(p: Problem, s: State, new: State, x: _Progress) -> tuple[State, _Decision]:
  """Decide whether the search for this target is over. Return the state with v written to memory, and the decision.

  Args:
    p: the problem.
    s: state before the step.
    new: state with the better simplex.
    x: what the step found.
  """
  v = linear.materialize(new.v)
  length = linear.materialize(safe.norm(v))
  tired = s.niter >= p.iterations - 1
  doubtful = x.v2 - jnp.maximum(x.ahead, 0) > p.doubt * safe.sqrt(x.v2)  # the distance is between ahead / |v| and |v|
  touch = length <= p.small
  inside = x.inside | touch & (s.stage != _DESCEND)
  end = x.stop | tired | inside | touch
  outside = end & ~inside
  n = -v / jnp.where(length > 0, length, 1)[:, None]
  depth = linear.materialize(vector.dot(n, jnp.where(x.leaves[:, None], x.vertex, v + s.target)))
  settled = (s.stage == _DESCEND) & ((vector.dot(n, s.normal) > 1 - p.settles) | (s.placements >= PLACEMENTS) | inside | touch)
  settled = linear.materialize(settled)
  done = s.done | x.far & ~x.fresh | outside & (s.stage == _SEPARATE) | end & settled
  known = jnp.where(touch | ~jnp.isfinite(x.outlet), 0, x.outlet + jnp.where(x.leaves, s.step, 0))
  step = jnp.maximum(jnp.where(x.leaves, _GROWTH * s.step, s.step), _BEYOND * known)
  step = jnp.where(end & inside & (s.stage != _DESCEND), step, s.step)
  done |= step > 64 * p.size
  stage = jnp.where(end & inside & (s.stage == _SEPARATE), _LEAVE, jnp.where(outside & x.leaves, _DESCEND, s.stage))
  return new._replace(v=v), _Decision(
    end=end,
    inside=inside,
    outside=outside,
    touch=touch,
    tired=tired,
    doubtful=doubtful,
    normal=n,
    depth=depth,
    done=done,
    step=step,
    stage=stage,
  )


def _retarget(p: Problem, s: State, new: State, x: _Progress, e: _Decision) -> State:
  """Return the next state: with the next target and the simplex for it, where the search for this target is over.

  Args:
    p: the problem.
    s: state before the step.
    new: state with the better simplex.
    x: what the step found.
    e: the decision about this target.
  """
  moved = e.end & ~e.done
  target = jnp.where(
    (e.stage == _LEAVE)[:, None], e.step[:, None] * p.away, (e.depth + p.target_height(e.depth))[:, None] * e.normal
  )
  target = jnp.where(moved[:, None], target, s.target)
  # restart with the vertex that is farthest in the direction of the new target
  begin = jnp.where((e.stage == _LEAVE)[:, None], p.away, e.normal)
  along = linear.materialize(jnp.where(new.on, vector.dot(new.y, begin[:, None]), -jnp.inf))
  first = first_max(along) & new.on
  # but keep the whole triangle if the foot of the origin is on the triangle: the foot of the target is the same
  side = [vector.dot(e.normal, vector.cross(new.y[:, k], new.y[:, (k + 1) % 3])) for k in range(3)]
  side = jnp.stack(side, axis=1)
  above = (e.stage == _DESCEND) & new.on.all(axis=1) & ((side > 0).all(axis=1) | (side < 0).all(axis=1))
  on = jnp.where((moved & ~above)[:, None], first, new.on)
  restart = jnp.where(above[:, None], along[:, :1] * e.normal, jnp.sum(jnp.where(first[:, :, None], new.y, 0), axis=1)) - target
  return new._replace(
    on=on,
    v=jnp.where(moved[:, None], restart, new.v),
    target=target,
    step=e.step,
    normal=jnp.where((e.outside & ~(e.touch & (s.stage == _DESCEND)))[:, None], e.normal, s.normal),
    stage=e.stage,
    placements=s.placements + (e.outside & (s.stage == _DESCEND)),
    lost=jnp.where(e.end, e.tired & ~(x.stop | e.inside | e.touch) & e.doubtful, s.lost),
    done=e.done,
    far=s.far | x.far & ~x.fresh & ~s.done,
    overlap=s.overlap | (e.stage != _SEPARATE),
    niter=jnp.where(moved, 0, s.niter + 1),
    nsupport=s.nsupport + 1,
  )


def support_of_difference(
  a: ConvexShape, b: ConvexShape, rotation: jax.Array, position: jax.Array, direction: jax.Array
) -> tuple[jax.Array, ...]:
  """Return the support point (P, 3, W) of Y in a direction, the support points of the two shapes, and their indices (P, W)."""
  point_a, index_a = support.farthest(a, direction)
  point_b, index_b = support.farthest(b, -vector.mat_t_vec(rotation, direction))
  return point_a - position - vector.mat_vec(rotation, point_b), point_a, point_b, index_a, index_b


def first_max(x: jax.Array) -> jax.Array:
  """Return a one-hot mask of the first largest element along the second axis."""
  return first_largest(x)[1][:, None] == np.arange(x.shape[1])[:, None]


def _extent(c: ConvexShape) -> jax.Array:
  """Return the radius (P, W or 1) of a ball around the centre that contains the shape [m]."""
  middle, half = support.box(c)
  corners = safe.norm(jnp.abs(middle) + half)
  x, y, z = (c.size[:, k] for k in range(3))
  round_ = jnp.where(support.is_kind(c, support.CYLINDER, 2), x + y, jnp.maximum(jnp.maximum(x, y), z))
  return jnp.where(support.is_kind(c, support.CORNERS, 2), corners, round_)


def without_gradient(c: ConvexShape) -> ConvexShape:
  """Stop the gradient of pose, size and scale."""
  return c._replace(**{k: jax.lax.stop_gradient(getattr(c, k)) for k in ("pos", "mat", "size", "scale")})
