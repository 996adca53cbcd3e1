"""Contacts of the signed distance fields of meshes with other shapes, found by the descent of many points.

Each point descends from its own start, with a line search as in C. So the contacts depend on the number of points and
iterations, and are not exact. The lengths of the steps are searched without derivatives; the steps themselves are
differentiated.

Differs: where round-off decides the path of a point, some contacts are at other positions than C's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.sdf import field
from mjx_lite.collision.sdf.field import Octrees
from mjx_lite.collision.shapes import Contacts, Shape, make_contacts, only_where
from mjx_lite.math import safe, vector
from mjx_lite.model.enums import GeomType
from mjx_lite.ops.select import gather

SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "sdf")  # types that `collide` accepts as first geom
_TRIES = 15  # lengths of a step that are tried, each half of the previous length
_ENOUGH = 0.1  # part of the decrease predicted by the slope that a step must reach


class FieldCollider(NamedTuple):
  """Planner, collider and capacity of one type pair with distance fields; an entry of `sdf_mesh.FIELD_COLLIDERS`."""

  plan: Callable[[dict[str, Any], np.ndarray, np.ndarray], Any]  # static fields of the model, ids of both geoms -> plan
  collide: Callable[[Any, Shape, Shape, jax.Array | None], Contacts]  # as `collide` below
  ncon: Callable[[dict[str, Any]], int]  # static fields -> most contacts of a pair


class SdfPlan(NamedTuple):
  """Pairs of one type with distance fields."""

  kind: str  # type of the first geoms
  trees: Octrees
  tree1: np.ndarray  # (P,) octree of the first geom, -1 if it is another shape
  tree2: np.ndarray  # (P,)
  box1: np.ndarray  # (P, 6) centre and half size of the bounds [m] of the first geom, for distance fields
  box2: np.ndarray  # (P, 6) the same of the second geom
  start: np.ndarray  # (n, 3) start of each point as a fraction of a box, from 0 to 1
  iterations: int


def halton(first: int, count: int, base: int) -> np.ndarray:
  """Return `count` elements of a Halton sequence, from element `first`. Source: `mju_Halton`."""
  out = np.zeros(count)
  for i in range(count):
    n, f = first + i, 1 / base
    while n:
      out[i] += f * (n % base)
      f, n = f / base, n // base
  return out


def plan(kind: str, s: dict[str, Any], geom1: np.ndarray, geom2: np.ndarray) -> SdfPlan:
  """Plan pairs whose first geoms are of one type."""
  data = np.asarray(s["geom_dataid"])
  both = kind == "sdf"
  trees = field.octrees(s, np.concatenate([data[geom1] if both else data[:0], data[geom2]]))
  tree1 = trees.row[data[geom1]] if both else np.full(len(geom1), -1)
  start = np.stack([halton(0, int(s["sdf_initpoints"]), base) for base in (2, 3, 5)], axis=1)
  box = np.asarray(s["sdf_aabb"], float)
  return SdfPlan(
    kind=kind,
    trees=trees,
    tree1=tree1,
    tree2=trees.row[data[geom2]],
    box1=box[geom1],
    box2=box[geom2],
    start=start,
    iterations=int(s["sdf_iterations"]),
  )


class _Pairs(NamedTuple):
  """Inputs of the distance functions of P pairs. The points are in the frame of the second geom."""

  rotation: jax.Array  # (P, 1, 3, 3, W) rotation from the second geom's frame to the first's
  shift: jax.Array  # (P, 1, 3, W) translation [m]
  size: jax.Array  # (P, 1, 3, W) of the first geom
  tree1: jax.Array  # (P, W or 1) octree of each geom
  tree2: jax.Array


def collide(p: SdfPlan, a: Shape, b: Shape, chosen: jax.Array | None = None) -> Contacts:
  """Compute the contacts of shapes with distance fields, one for each point that ends inside both shapes.

  Args:
    p: the plan.
    a, b: shapes; b are the distance fields.
    chosen: (P, W) index of each pair in the plan, if pairs are chosen at run time.

  Source: `mjc_SDF`.
  Gradient: that of the steps of the points, with constant step lengths.
  """
  p = p._replace(trees=field.ready(p.trees, a.pos.dtype))
  choose = (lambda x: jnp.asarray(x)[..., None]) if chosen is None else (lambda x: gather(jnp.asarray(x)[..., None], chosen))
  rotation, shift = vector.mat_mat(vector.transpose(a.mat), b.mat), vector.mat_t_vec(a.mat, b.pos - a.pos)
  tree1, tree2 = (choose(x.astype(np.int32)) for x in (p.tree1, p.tree2))
  pairs = _Pairs(rotation[:, None], shift[:, None], a.size[:, None], tree1, tree2)
  low, high = _common_box(p, a, rotation, shift, choose)
  meet = jnp.all(low <= high, axis=1)[:, None]

  # start in the first geom's frame, descend in the second geom's
  y = low[:, None] + (high - low)[:, None] * p.start[..., None].astype(low.dtype)
  x = vector.mat_t_vec(pairs.rotation, y - pairs.shift)
  going = jnp.broadcast_to(meet, x[:, :, 0].shape)

  def step(carry, _):
    x, going = carry
    moved, dist0, dist = _descend(p, pairs, x, going, _deepest)
    return (jnp.where(going[:, :, None], moved, x), going & ~(dist0 < dist)), None

  (x, _), _ = jax.lax.scan(step, (x, going), None, p.iterations)
  x, _, _ = _descend(p, pairs, x, jnp.broadcast_to(meet, going.shape), _overlap)
  both = _fields(p, pairs, x)
  dist, _ = _overlap(*both)
  slope = safe.normalize(both[0][1]) - safe.normalize(both[1][1])
  return contacts(b, x, dist, slope, meet)


def contacts(b: Shape, x: jax.Array, dist: jax.Array, slope: jax.Array, meet: jax.Array) -> Contacts:
  """Build contacts at points (P, n, 3, W) in the frames of distance fields; of equal points only the first counts.

  Args:
    b: the distance fields.
    x: points [m].
    dist: (P, n, W) [m]; there is no contact where dist is positive.
    slope: (P, n, 3, W) direction that leads out of the second shape; there is no contact where slope is zero.
    meet: (P, n or 1, W) mask of possible contacts.

  Source: `addPreContact`.
  """
  normal, length = safe.normalize_with_norm(slope)
  exists = meet & (dist <= 0) & (length > 0)
  normal = -vector.mat_vec(b.mat[:, None], normal)
  pos = b.pos[:, None] + vector.mat_vec(b.mat[:, None], x) + 0.5 * dist[:, :, None] * normal
  return make_contacts(only_where(exists & ~_known(x, exists), dist), pos, normal)


def _known(x: jax.Array, exists: jax.Array) -> jax.Array:
  """Return whether each point (P, n, 3, W) equals an earlier point in the mask `exists`. Source: `isknown`."""
  x = jax.lax.stop_gradient(x)
  same = 4.5 * jnp.finfo(x.dtype).eps  # 1e-15 in double precision
  earlier = np.tri(x.shape[1], k=-1, dtype=bool)[:, :, None]
  between = x[:, :, None] - x[:, None]
  return jnp.any((vector.dot(between, between) < same * same) & earlier & exists[:, None], axis=2)


def _common_box(p, a, rotation, shift, choose):
  """Return the two corners (P, 3, W) of the intersection of both bounding boxes, in the first geom's frame."""
  dtype = rotation.dtype
  if p.kind == "sdf":
    box = choose(p.box1.astype(dtype))
    centre, half = box[:, :3], box[:, 3:]
  else:
    half = bounds(p.kind, a.size)
    centre = jnp.zeros_like(half)
  box = choose(p.box2.astype(dtype))
  other = vector.mat_vec(rotation, box[:, :3]) + shift
  reach = vector.mat_vec(jnp.abs(rotation), box[:, 3:])
  return jnp.maximum(centre - half, other - reach), jnp.minimum(centre + half, other + reach)


def bounds(kind: str, size: jax.Array) -> jax.Array:
  """Return the half sizes (P, 3, W) of the bounding boxes of primitive shapes."""
  r, h = size[:, 0], size[:, 1]
  if kind in ("sphere", "capsule", "cylinder"):
    return jnp.stack([r, r, {"sphere": r, "capsule": h + r, "cylinder": h}[kind]], axis=1)
  return size


def _fields(p: SdfPlan, pairs: _Pairs, x: jax.Array):
  """Return distances and gradients of the second geoms, then of the first geoms, at points in the second geoms' frames."""
  y = vector.mat_vec(pairs.rotation, x) + pairs.shift
  if p.kind == "sdf":
    both = field.interpolate(p.trees, jnp.concatenate(jnp.broadcast_arrays(pairs.tree2, pairs.tree1)), jnp.concatenate([x, y]))
    (second, first), (slope, other) = (jnp.split(z, 2) for z in both)
  else:
    second, slope = field.interpolate(p.trees, pairs.tree2, x)
    first, other = field.FIELDS[GeomType[p.kind.upper()]](y, pairs.size)
  return (second, slope), (first, vector.mat_t_vec(pairs.rotation, other))


def _deepest(one, two):
  """Return an objective, least where one shape is deepest in the other, and its gradient. Source: mjSDFTYPE_COLLISION."""
  (a, slope_a), (b, slope_b) = one, two
  most = jnp.maximum(a, b)
  slope = jnp.where((a > b)[:, :, None], slope_a, slope_b)
  return a + b + jnp.abs(most), slope_a + slope_b + jnp.where((most > 0)[:, :, None], slope, -slope)


def _overlap(one, two):
  """Return the distance from the intersection of both shapes, and its gradient. Source: mjSDFTYPE_INTERSECTION."""
  (a, slope_a), (b, slope_b) = one, two
  return jnp.maximum(a, b), jnp.where((a > b)[:, :, None], slope_a, slope_b)


def _descend(p, pairs, x, going, objective):
  """Return the points after one descent step, and the objective before and after the step.

  Source: `stepGradient`.
  """
  dist0, slope = objective(*_fields(p, pairs, x))
  fixed, at, down, start = jax.lax.stop_gradient((pairs, x, slope, dist0))
  promised = _ENOUGH * vector.dot(down, down)

  def shorten(carry):
    n, length, dist, searching = carry
    tried = jnp.where(searching, 0.5 * length, length)
    dist = jnp.where(searching, objective(*_fields(p, fixed, at - tried[:, :, None] * down))[0], dist)
    return n + 1, tried, dist, searching & (dist - start > -promised * tried)

  searching = jax.lax.stop_gradient(going) & (promised >= 0)
  carry = 0, jnp.full_like(start, 2), start, searching
  _, length, dist, _ = jax.lax.while_loop(lambda c: jnp.any(c[3]) & (c[0] < _TRIES), shorten, carry)
  length = jnp.where(going & ~(start < dist), length, 0)
  return x - jax.lax.stop_gradient(length)[:, :, None] * slope, start, jax.lax.stop_gradient(dist)
