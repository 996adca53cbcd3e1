"""Distance, normal and witness points of two shapes from their nearest features, in closed form that JAX differentiates.

The features (which corners, which rim) are constant. They describe the boundary of Y = A - B at the foot of the origin. The
normal n at the foot satisfies two equations: n is orthogonal to every straight edge of the feature, and the point y(n) of a
curved feature lies on the line of n. Newton's method solves the equations for the two angles of n, without gradient. One more
step with gradient gives the derivative of the solution, by the implicit function theorem.

Tests: tests/collision/test_convex.py, tests/collision/test_single_precision.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import shortest, support
from mjx_lite.collision.convex.gjk import Features
from mjx_lite.collision.convex.support import ConvexShape
from mjx_lite.math import safe, vector
from mjx_lite.ops import linear, loops

_STEPS = 4  # of Newton's method for curved shapes
_ROUNDING = 2  # units of round-off, relative to the size of Y
_SINGULAR = 64  # units of round-off, up to which the slope of an equation is none
_FLAT = 0.05  # least spread of a cylinder's points, relative to its radius, where the cylinder stands on its cap


class Witness(NamedTuple):
  """Distance of the cores (P, W), normal (P, 3, W) from the first to the second, and the nearest point (P, 3, W) on the first.

  All in the frame of the first core. `lost` (P, W): the search ran out, or its features do not give the distance that it found.
  """

  dist: jax.Array
  normal: jax.Array
  point: jax.Array
  lost: jax.Array


class _Posed(NamedTuple):
  """Features as functions of poses and sizes."""

  a: ConvexShape
  b: ConvexShape
  rotation: jax.Array  # (P, 3, 3, W) rotation from the second shape's frame to the first's
  position: jax.Array  # (P, 3, W) position of the second shape [m]
  index_a: jax.Array
  index_b: jax.Array
  fixed_a: jax.Array  # (P, 3, 3, W) points fixed to the body
  fixed_b: jax.Array
  frozen_a: jax.Array  # (P, W) whether a curved core is treated as the polytope of its points
  frozen_b: jax.Array
  slack: jax.Array  # (P, W) rounding of a depth [m]


def witness(a: ConvexShape, b: ConvexShape, f: Features, asked: jax.Array | bool = True) -> Witness:
  """Compute the witness of two shapes; zeros if `asked` () is False.

  Gradient: exact where the features are unique. For polytopes whose nearest features change (flat on flat), that of the
  features found. The normal is constant where the equations are singular (shapes that touch in a point).
  """
  if asked is not True:
    zero = jnp.zeros_like(f.normal)
    nothing = Witness(zero[:, 0], zero, zero, zero[:, 0] > 0)
    return loops.repeat(lambda _, w: witness(a, b, f), jnp.asarray(asked, jnp.int32), 1, nothing)
  rotation = vector.mat_mat(vector.transpose(a.mat), b.mat)
  position = vector.mat_t_vec(a.mat, b.pos - a.pos)
  # an unused vertex repeats the first used vertex
  first = _pick_first(f.on)

  def filled(x):
    mask, use = (y if x.ndim == 3 else y[:, :, None] for y in (f.on, first))
    return jnp.where(mask, x, jnp.sum(jnp.where(use, x, 0), axis=1, keepdims=True))

  f = f._replace(**{k: filled(getattr(f, k)) for k in ("index_a", "index_b", "point_a", "point_b")})
  posed = _Posed(
    a=a,
    b=b,
    rotation=rotation,
    position=position,
    index_a=f.index_a,
    index_b=f.index_b,
    fixed_a=_fixed(a, f.index_a, f.point_a),
    fixed_b=_fixed(b, f.index_b, f.point_b),
    frozen_a=_is_flat(a, f.point_a),
    frozen_b=_is_flat(b, f.point_b),
    slack=_ROUNDING * jnp.finfo(f.normal.dtype).eps * f.size,
  )
  normal, depth = _settle(posed, f.normal)

  # the foot of the origin: the first vertex, moved along the edges
  y, pa = _points(posed, normal)
  dist = -vector.dot(normal, y[:, 0])
  # the vertices that were found may be less deep by the tolerance of the search than Y is
  dist = dist - jax.lax.stop_gradient(dist + depth)
  edges = _edges(_without_gradient(posed), jax.lax.stop_gradient(normal))[1]
  e = [vector.add(edges[i][k][:, None] * (y[:, k] - y[:, 0]) for k in (1, 2)) for i in range(2)]
  ea = [vector.add(edges[i][k][:, None] * (pa[:, k] - pa[:, 0]) for k in (1, 2)) for i in range(2)]
  off = y[:, 0] + dist[:, None] * normal
  g00, g01, g11 = vector.dot(e[0], e[0]), vector.dot(e[0], e[1]), vector.dot(e[1], e[1])
  r0, r1 = -vector.dot(e[0], off), -vector.dot(e[1], off)
  det = g00 * g11 - g01 * g01
  both = det > 1e-12 * g00 * g11
  s = jnp.where(both, safe.divide(r0 * g11 - r1 * g01, det), safe.divide(r0, g00))
  t = jnp.where(both, safe.divide(r1 * g00 - r0 * g01, det), 0)
  doubt = shortest.DOUBT[dist.dtype.itemsize] * f.size
  lost = f.lost | ~(jnp.abs(jax.lax.stop_gradient(dist) - f.dist) <= doubt)
  return Witness(dist, normal, pa[:, 0] + s[:, None] * ea[0] + t[:, None] * ea[1], lost & ~f.far)


def _settle(posed: _Posed, start: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Solve the two equations for the normal, from the normal found; the derivative is that of one more step.

  Returns:
    the normal, and how far (P, W) Y reaches along the normal, without gradient [m].
  """
  leaves, tree = jax.tree.flatten(posed)
  constant = [x if isinstance(x, np.ndarray) else None for x in leaves]

  def whole(arrays):
    rest = iter(arrays)
    return jax.tree.unflatten(tree, [next(rest) if x is None else x for x in constant])

  @jax.custom_jvp
  def settle(arrays, n):
    p = whole(arrays)

    def step(_, found):
      # the normal is where the depth of Y is least: reject a step that increases the depth, as where the feature is an edge
      # for a face that is hardly lower
      n, depth = found
      new = _newton(p, p, n)
      after = _depth(p, new)
      is_better = after <= depth + p.slack
      return jnp.where(is_better[:, None], new, n), jnp.where(is_better, after, depth)

    found = n, _depth(p, n)
    return jax.lax.fori_loop(0, _STEPS, step, found) if p.a.curved or p.b.curved else step(0, found)

  @settle.defjvp
  def _settle_jvp(primals, tangents):
    arrays, n = primals
    normal, depth = settle(arrays, n)
    fixed, at = _without_gradient(whole(arrays)), jax.lax.stop_gradient(normal)
    turn = jax.jvp(lambda x: _newton(fixed, whole(x), at), (arrays,), (tangents[0],))[1]
    return (normal, depth), (turn, jnp.zeros_like(depth))

  return settle([x for x in leaves if not isinstance(x, np.ndarray)], start)


def _without_gradient(p: _Posed) -> _Posed:
  """Stop the gradient of all arrays; constants stay NumPy arrays."""
  return jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else jax.lax.stop_gradient(x), p)


def _depth(p: _Posed, n: jax.Array) -> jax.Array:
  """Return how far (P, W) Y reaches along a normal [m]."""
  reach_b = support.extent(p.b, -vector.mat_t_vec(p.rotation, n)[:, None])[:, 0]
  return support.extent(p.a, n[:, None])[:, 0] + reach_b - vector.dot(n, p.position)


def _pick_first(on):
  return jnp.argmax(on, axis=1)[:, None] == np.arange(3)[:, None]


def _fixed(c: ConvexShape, index: jax.Array, point: jax.Array) -> jax.Array:
  """Return points (P, 3, 3, W) fixed to the body: corners, or the points found on a curved core."""
  corners = support.corner(c, index)
  if not c.curved:
    return corners
  size = jnp.stack([c.size[:, 0], c.size[:, 0], c.size[:, 1]], axis=1)[:, None]
  fixed = jax.lax.stop_gradient(safe.divide(point, size))
  return jnp.where(support.is_kind(c, support.CORNERS, 4), corners, fixed * size)


def _is_flat(c: ConvexShape, point: jax.Array) -> jax.Array:
  """Return whether the points on a core stay fixed to the body: those of a cylinder that stands on its cap."""
  spread = vector.dot(point[:, 1:] - point[:, :1], (point[:, 1:] - point[:, :1]) * np.array([1, 1, 0])[:, None])
  return support.is_kind(c, support.CYLINDER, 2) & (jnp.max(spread, axis=1) > (_FLAT * c.size[:, 0]) ** 2)


def _points(p: _Posed, n: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the vertices of Y for the normal n, and their points on the first core, both (P, 3, 3, W)."""
  pa, pb = p.fixed_a, p.fixed_b
  if p.a.curved:
    move = support.curved_point(p.a, n[:, None], p.index_a, pa)
    pa = jnp.where(p.frozen_a[:, None, None], pa, move)
  if p.b.curved:
    local = -vector.mat_t_vec(p.rotation, n)
    move = support.curved_point(p.b, local[:, None], p.index_b, pb)
    pb = jnp.where(p.frozen_b[:, None, None], pb, move)
  return linear.materialize((pa - p.position[:, None] - vector.mat_vec(p.rotation[:, None], pb), pa))


def _scale(p: _Posed, y: jax.Array) -> jax.Array:
  """Return the size (P, W) of what the vertices y (P, 3, 3, W) of Y are differences of [m]."""
  return jnp.max(jnp.abs(y), axis=(1, 2)) + jnp.max(jnp.abs(p.position), axis=1)


def _edges(p: _Posed, n: jax.Array):
  """Return the number of edges (P, W), and each edge as weights of the second and third vertex of Y relative to the first."""
  y, _ = _points(p, n)
  e1, e2 = y[:, 1] - y[:, 0], y[:, 2] - y[:, 0]
  tiny = (1e-5 * _scale(p, y)) ** 2
  l1, l2 = vector.dot(e1, e1), vector.dot(e2, e2)
  has1, has2 = l1 > tiny, l2 > tiny
  area = vector.cross(e1, e2)
  both = has1 & has2 & (vector.dot(area, area) > 1e-10 * l1 * l2)
  one = has1 | has2
  use_second = has2 & (~has1 | (~both & (l2 > l1)))
  count = jnp.where(both, 2, jnp.where(one, 1, 0))
  zero, whole = jnp.zeros_like(l1), jnp.ones_like(l1)
  first = {1: jnp.where(use_second, zero, jnp.where(one, whole, zero)), 2: jnp.where(use_second, whole, zero)}
  second = {1: zero, 2: jnp.where(both, whole, zero)}
  return count, linear.materialize((first, second))


def _newton(fixed: _Posed, posed: _Posed, n: jax.Array) -> jax.Array:
  """Take one Newton step for the normal, with the residual of `posed` and the slope of `fixed`."""
  count, edges = _edges(fixed, n)

  def edge(y, i):
    return vector.add(edges[i][k][:, None] * (y[:, k] - y[:, 0]) for k in (1, 2))

  y0, _ = _points(fixed, n)
  e0 = safe.normalize(edge(y0, 0))
  e0 = e0 - vector.dot(e0, n)[:, None] * n
  scale = _scale(fixed, y0)
  hint = jnp.where((jnp.abs(n[:, :1]) < 0.7), np.array([1, 0, 0])[:, None], np.array([0, 1, 0])[:, None]).astype(n.dtype)
  u1 = jax.lax.stop_gradient(safe.normalize(jnp.where(count[:, None] > 0, e0, vector.cross(n, hint))))
  u2 = jax.lax.stop_gradient(vector.cross(n, u1))

  def residual(p, c1, c2):
    m = safe.normalize(n + c1[:, None] * u1 + c2[:, None] * u2)
    y, _ = _points(p, m)
    along = safe.normalize(edge(y, 0))
    flat = y[:, 0] - vector.dot(y[:, 0], m)[:, None] * m
    second = edge(y, 1)
    second = safe.normalize(second - vector.dot(second, along)[:, None] * along)
    side = jnp.where(count[:, None] > 0, vector.cross(m, along), u2)
    r1 = jnp.where(count > 0, vector.dot(m, along), vector.dot(flat, u1) / scale)
    r2 = jnp.where(count == 2, vector.dot(m, second), vector.dot(flat, side) / scale)
    return linear.materialize((r1, r2))

  zero = jnp.zeros_like(n[:, 0])
  one = jnp.ones_like(zero)
  base = residual(posed, zero, zero)
  slope = jax.vmap(lambda *t: jax.jvp(lambda *c: residual(fixed, *c), (zero, zero), t)[1])
  (j11, j12), (j21, j22) = slope(jnp.stack([one, zero]), jnp.stack([zero, one]))
  det = jax.lax.stop_gradient(j11 * j22 - j12 * j21)
  size = jnp.abs(j11 * j22) + jnp.abs(j12 * j21)
  ok = jnp.abs(det) > 1e-9 * size + _SINGULAR * jnp.finfo(n.dtype).eps
  # one equation at most, as where all normals around an edge leave equally far: the shortest step that solves it
  norm2 = j11 * j11 + j12 * j12 + j21 * j21 + j22 * j22
  scale = jnp.where(ok, det, jnp.where(norm2 > (_SINGULAR * jnp.finfo(n.dtype).eps) ** 2, norm2, 0))
  c1 = safe.divide(-jnp.where(ok, base[0] * j22 - base[1] * j12, base[0] * j11 + base[1] * j21), scale)
  c2 = safe.divide(-jnp.where(ok, base[1] * j11 - base[0] * j21, base[0] * j12 + base[1] * j22), scale)
  change2 = jax.lax.stop_gradient(c1 * c1 + c2 * c2)
  sane = change2 < 0.25
  c1, c2 = jnp.where(sane, c1, 0), jnp.where(sane, c2, 0)
  return linear.materialize(safe.normalize(n + c1[:, None] * u1 + c2[:, None] * u2))
