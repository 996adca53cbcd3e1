"""Height fields against convex shapes, prism by prism: spheres and capsules in closed form, other shapes by the convex path.

A cell of the grid consists of two prisms, each from the base up to a triangle of the surface. The cells under a shape are a
window of the grid. The position of the window is computed at run time. The size of the window is static: the maximum number of
cells that the shape's bounding sphere can cover.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex import gjk, support, witness
from mjx_lite.collision.convex.support import ConvexShape
from mjx_lite.collision.hfield import prism
from mjx_lite.collision.shapes import NO_CONTACT, Contacts, Shape, make_contacts, only_where
from mjx_lite.math import vector
from mjx_lite.model.enums import MAXCONPAIR
from mjx_lite.ops import linear
from mjx_lite.ops.select import join, rows

CLOSED = ("sphere", "capsule")  # shapes with a closed form; a plan with such a shape has no other shapes
SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh")
MAXPRISM = 4096  # prisms of one pair: more would take minutes to compile and gigabytes to run

# corners of a cell's two prisms as offsets (column, row), in C's order
_CORNERS = np.array([[(0, 1), (0, 0), (1, 1)], [(0, 0), (1, 1), (1, 0)]], np.int32)
# indices of the corners at the right angle, at the end of the leg along columns and at the end of the leg along rows; the signs
# of the directions of these legs
_AT_LEGS, _LEG_SIGN = np.array([(0, 2, 1), (2, 0, 1)], np.int32), np.array([(1, -1), (-1, 1)], np.int32)


class HFieldPlan(NamedTuple):
  """Windows of B pairs, the P prisms of the windows, and the contact slots."""

  types: tuple[str, ...]  # geom types of the second geoms
  size: np.ndarray  # (B, 4) hfield_size
  grid: np.ndarray  # (B, 2) columns and rows of grid points
  window: np.ndarray  # (B, 2) columns and rows of cells
  first: np.ndarray  # (B,) first grid point in `height`
  height: np.ndarray  # heights of all grid points [m]
  pair: np.ndarray  # (P,) pair of each prism
  half: np.ndarray  # (P,) 0 or 1, which of the cell's two prisms
  step: np.ndarray  # (P, 2) column and row of the prism's cell in the window
  point: np.ndarray  # (G, 3) grid points of the windows: pair, column and row in the window
  at: np.ndarray  # (P, 3) indices into `point` of the prism's corners
  direct: np.ndarray  # prisms with their own slot: prisms of pairs with at most MAXCONPAIR prisms
  crowded: np.ndarray  # (B2, n) prisms of the other pairs, -1 pads
  slot: np.ndarray  # order of the slots: index into the slots of `direct`, then MAXCONPAIR slots of each crowded pair
  ncon: np.ndarray  # (B,) number of slots of each pair

  @property
  def width(self) -> np.ndarray:
    """Return the side lengths (P, 2) of the prisms' cells [m]."""
    return (2 * self.size[:, :2] / (self.grid - 1))[self.pair]


def cells(s: dict[str, Any], reach: np.ndarray, geom1: np.ndarray) -> np.ndarray:
  """Compute the number of columns and rows (B, 2) of cells that the second geoms can cover.

  Args:
    s: static fields of the model.
    reach: (B,) `geom_rbound` of the second geom plus margin + gap of the pair, at the time of `put_model` [m].
    geom1: (B,) geom ids of the height fields.
  """
  data = np.asarray(s["geom_dataid"])[geom1]
  count = np.stack([np.asarray(s[k])[data] for k in ("hfield_ncol", "hfield_nrow")], axis=1) - 1
  width = 2 * np.asarray(s["hfield_size"], float)[data, :2] / count
  return np.minimum(count, np.ceil(2 * reach[:, None] / width).astype(int) + 1)


def plan(s: dict[str, Any], reach: np.ndarray, geom1: np.ndarray, types: list[str]) -> HFieldPlan:
  """Plan pairs of a height field and a convex geom of a given type; for the arguments see `cells`."""
  data = np.asarray(s["geom_dataid"])[geom1]
  sizes, rows_, cols = (np.asarray(s[k]) for k in ("hfield_size", "hfield_nrow", "hfield_ncol"))
  scale = np.repeat(sizes[:, 2].astype(float), rows_ * cols)
  window = cells(s, reach, geom1)
  number = 2 * window.prod(axis=1)
  pair = np.repeat(np.arange(len(data)), number)
  within = np.concatenate([np.arange(n) for n in number]).astype(int)
  cell, half = within // 2, within % 2
  step = np.stack([cell % window[pair, 0], cell // window[pair, 0]], axis=1)

  points = [[(i, x, y) for y in range(h + 1) for x in range(w + 1)] for i, (w, h) in enumerate(window)]
  begin = np.cumsum([0, *(len(x) for x in points)])[pair][:, None]
  corner = step[:, None] + _CORNERS[half]
  at = begin + corner[..., 0] + (window[pair, 0] + 1)[:, None] * corner[..., 1]

  many = number > MAXCONPAIR
  start = np.concatenate([[0], np.cumsum(number)])[:-1]
  k = np.arange(number[many].max(initial=0))
  crowded = np.where(k < number[many][:, None], start[many][:, None] + k, -1)
  direct = np.flatnonzero(~many[pair])
  ncon = np.minimum(number, MAXCONPAIR)
  # first slot of each pair among the slots that the collider makes
  begin = np.zeros(len(data), int)
  begin[~many] = np.concatenate([[0], np.cumsum(number[~many])])[:-1]
  begin[many] = len(direct) + MAXCONPAIR * np.arange(many.sum())
  slot = np.concatenate([b + np.arange(n) for b, n in zip(begin, ncon, strict=True)]).astype(int)
  return HFieldPlan(
    types=tuple(types),
    size=sizes[data].astype(float),
    grid=np.stack([cols[data], rows_[data]], axis=1),
    window=window,
    first=np.asarray(s["hfield_adr"])[data],
    height=np.asarray(s["hfield_data"], float) * scale,
    pair=pair,
    half=half,
    step=step,
    point=np.concatenate([np.array(x, int).reshape(-1, 3) for x in points]),
    at=at,
    direct=direct,
    crowded=crowded,
    slot=slot,
    ncon=ncon,
  )


class Found(NamedTuple):
  """Contacts (1, number of slots) and two masks of worlds.

  Attributes:
    contacts: contacts of all pairs.
    full: (W,) whether a pair had more contacts than slots, or covered more cells than its window.
    lost: (W,) whether a search ran out of iterations or rounds.
  """

  contacts: Contacts
  full: jax.Array
  lost: jax.Array


def collide(p: HFieldPlan, a: Shape, b: Shape, margin: jax.Array, iterations: int) -> Found:
  """Compute the contacts of height fields with convex shapes: one contact for each prism that is nearer than the margin.

  Args:
    p: the plan.
    a: poses of the height fields.
    b: the shapes.
    margin: margin + gap (B, W or 1) [m].
    iterations: maximum number of iterations for one nearest point.

  Differs: the depth is the least penetration depth of shape and prism, to round-off. For boxes and meshes without a margin and
  a gap, C ends its search as soon as a corner of the shape is found a second time, because corners of prisms have no index in
  C (`mjc_prism_support`, `epa`). For one prism in ten, C then reports a smaller depth, down to zero, along another normal. With
  a gap of 1e-9 in the model C does not end its search early, and agrees.

  Source: `mjc_ConvexHField`.
  Gradient: of the nearest features of prism and shape; the heights are constants.
  """
  near = _under(p, a, b, margin)
  find = _closed if p.types[0] in CLOSED else _search
  active, dist, pos, normal, lost = find(p, a, b, margin, near, iterations)
  dist, wide = only_where(active, dist), near.wide

  parts = [[rows(x, p.direct)] for x in (dist, pos, normal)]
  if len(p.crowded):
    index = np.maximum(p.crowded, 0)
    real = active[index] & (p.crowded >= 0)[..., None]
    upto = jnp.cumsum(real.astype(jnp.int32), axis=1)
    source = jnp.sum(upto[:, None] <= np.arange(MAXCONPAIR, dtype=np.int32)[:, None, None], axis=2)
    have = source < index.shape[1]
    source = jnp.minimum(source, index.shape[1] - 1)
    wide |= jnp.any(upto[:, -1] > MAXCONPAIR, axis=0)
    first_slots = [jnp.take_along_axis(dist[index], source, axis=1)]
    first_slots += [jnp.take_along_axis(x[index], source[:, :, None], axis=1) for x in (pos, normal)]
    first_slots[0] = only_where(have, first_slots[0])
    for part, x in zip(parts, first_slots, strict=True):
      part.append(x.reshape(-1, *x.shape[2:]))
  dist, pos, normal = (join(part, p.slot)[None] for part in parts)
  return Found(make_contacts(dist, pos, normal), wide, jnp.any(lost, axis=0))


class _Under(NamedTuple):
  """Prisms under the shapes, in the frames of the height fields; without gradient.

  Attributes:
    corner: (P, 3, 2, W) x and y of the upper corners of the prisms [m].
    z: (P, 3, W) heights of the upper corners [m].
    exists: (P, W) mask of the prisms that are under the shape.
    wide: (W,) mask of the worlds in which a window is too small.
    size: (B, W) upper bound of all lengths [m].
  """

  corner: jax.Array
  z: jax.Array
  exists: jax.Array
  wide: jax.Array
  size: jax.Array


def _under(p: HFieldPlan, a: Shape, b: Shape, margin: jax.Array) -> _Under:
  """Compute the prisms in the windows under the shapes."""
  a, b = (x._replace(**{k: jax.lax.stop_gradient(getattr(x, k)) for k in ("pos", "mat", "size")}) for x in (a, b))
  dtype, margin = b.pos.dtype, jax.lax.stop_gradient(margin)
  position = vector.mat_t_vec(a.mat, b.pos - a.pos)
  low, high = _bounds(p, a, b)
  low, high = position - low - margin[:, None], position + high + margin[:, None]

  half, last = p.size[:, :2, None].astype(dtype), (p.grid - 1)[..., None]
  begin = jnp.clip(jnp.floor((low[:, :2] + half) / (2 * half) * last.astype(dtype)), 0, last).astype(jnp.int32)
  end = jnp.clip(jnp.ceil((high[:, :2] + half) / (2 * half) * last.astype(dtype)), 0, last).astype(jnp.int32)
  wide = jnp.any(end - begin > p.window[..., None], axis=(0, 1))

  cell = rows(begin, p.pair) + p.step[..., None].astype(np.int32)
  exists = jnp.all(cell < rows(end, p.pair), axis=1)
  owner = p.point[:, 0]
  grid = jnp.minimum(rows(begin, owner) + p.point[:, 1:, None].astype(np.int32), last[owner].astype(np.int32))  # column, row
  first, stride = (x[owner].astype(np.int32)[:, None] for x in (p.first, p.grid[:, 0]))
  z = jnp.asarray(p.height, dtype).at[first + grid[:, 0] + stride * grid[:, 1]].get(mode="promise_in_bounds")
  z = rows(linear.materialize(z), p.at)
  width = p.width[:, None, :, None].astype(dtype)
  xy: Any = width * (cell[:, None] + _CORNERS[p.half][..., None].astype(np.int32)) - half[p.pair][:, None]
  exists &= jnp.any(z >= rows(low[:, 2], p.pair)[:, None], axis=1)
  return _Under(xy, z, exists, wide, p.size.sum(axis=1)[:, None] + jnp.max(jnp.abs(position), axis=(0, 1)))


def _bounds(p: HFieldPlan, a: Shape, b: Shape) -> tuple[jax.Array, jax.Array]:
  """Compute the extents (B, 3, W or 1) of the shapes against and along the axes of the height fields [m]."""
  if p.types[0] == "sphere":
    return b.size[:, :1], b.size[:, :1]
  if p.types[0] == "capsule":
    reach = b.size[:, :1] + jnp.abs(vector.mat_t_vec(a.mat, b.axis(2))) * b.size[:, 1:2]
    return reach, reach
  shape = support.make(list(p.types), b.pos, b.mat, b.size, b.hull)
  rotation, radius = vector.mat_mat(vector.transpose(a.mat), b.mat), shape.radius[:, None]
  return support.extent(shape, -rotation) + radius, support.extent(shape, rotation) + radius


def _closed(p: HFieldPlan, a: Shape, b: Shape, margin: jax.Array, near: _Under, iterations: int) -> tuple[jax.Array, ...]:
  """Find the prisms (P, W) that spheres or capsules touch, in closed form; the results are those of `_search`, none is lost."""
  del iterations
  prisms, sign, origin = _legs(p, near)
  middle = sign * (rows(vector.mat_t_vec(a.mat, b.pos - a.pos), p.pair) - origin)
  if p.types[0] == "sphere":
    found = prism.point(prisms, _split(middle))
  else:
    half = vector.mat_t_vec(a.mat, b.axis(2) * b.size[:, 1:2])
    found = prism.segment(prisms, _split(middle), _split(sign * rows(half, p.pair)))
  radius, mat = rows(b.size[:, 0], p.pair), rows(a.mat, p.pair)
  dist, normal = found.dist - radius, jnp.stack(found.normal, axis=1)
  local = origin + sign * (jnp.stack(found.point, axis=1) - (radius + 0.5 * dist)[:, None] * normal)
  pos = rows(a.pos, p.pair) + vector.mat_vec(mat, local)
  return near.exists & (dist < rows(margin, p.pair)), dist, pos, vector.mat_vec(mat, sign * normal), jnp.zeros(dist.shape, bool)


def _split(x: jax.Array) -> prism.Vec:
  """Split a vector (P, 3, W) into its components (P, W)."""
  return x[:, 0], x[:, 1], x[:, 2]


def _legs(p: HFieldPlan, near: _Under) -> tuple[prism.Prisms, jax.Array, jax.Array]:
  """Return prisms in coordinates along their legs, the signs (P, 3, 1) of these coordinates, and their origins (P, 3, W)."""
  dtype = near.z.dtype
  width = p.width.astype(dtype)
  right = (p.half == 0)[:, None]
  height = [jnp.where(right, near.z[:, i], near.z[:, j]) for i, j in _AT_LEGS.T]
  corner = jnp.where(right[..., None], near.corner[:, 0], near.corner[:, 2])
  origin = jnp.concatenate([corner, jnp.zeros_like(corner[:, :1])], axis=1)
  sign = np.concatenate([_LEG_SIGN[p.half], np.ones((len(p.half), 1), int)], axis=1)[..., None].astype(dtype)
  prisms = prism.Prisms((width[:, :1], width[:, 1:]), tuple(height), p.size[p.pair, 3:].astype(dtype))
  return prisms, jnp.asarray(sign), origin


def _search(p: HFieldPlan, a: Shape, b: Shape, margin: jax.Array, near: _Under, iterations: int) -> tuple[jax.Array, ...]:
  """Find the prisms (P, W) that shapes touch, by the convex path; return distance, position and normal in the world, and a mask
  (P, W) of the searches that ran out."""
  shape = support.make(list(p.types), b.pos, b.mat, b.size, b.hull)
  prisms = _prisms(p, a, near)
  shapes = support.of_rows(shape, p.pair)
  reach = rows(margin, p.pair)

  def make(first, second, limit, found, asked):
    w = witness.witness(first, second, found, asked)
    dist = w.dist - second.radius
    active = ~found.far & (w.dist < limit)
    pos = w.point + 0.5 * jnp.where(active, dist, 0)[:, None] * w.normal
    pos = first.pos + vector.mat_vec(first.mat, pos)
    return active, dist, pos, vector.mat_vec(first.mat, w.normal), w.lost

  limit = reach + shapes.radius
  wanted = near.exists & gjk.near(prisms, shapes, limit)
  zero = jnp.zeros_like(prisms.pos)
  no = jnp.zeros(wanted.shape, bool)
  nothing = no, jnp.full_like(zero[:, 0], NO_CONTACT), zero, zero + 1, no
  return gjk.rows_of(wanted, prisms, shapes, limit, iterations, make, nothing)


def _prisms(p: HFieldPlan, a: Shape, near: _Under) -> ConvexShape:
  """Make convex shapes of the prisms."""
  dtype, z = near.z.dtype, near.z
  base = jnp.broadcast_to(-p.size[p.pair, 3][:, None, None].astype(dtype), z.shape)
  corners = jnp.concatenate([jnp.concatenate([near.corner, x[:, :, None]], axis=2) for x in (base, z)], axis=1)
  centre = jnp.mean(corners, axis=1)
  # prisms that are not under the shape are moved far below, so that their search ends at once
  away = jnp.where(near.exists, 0, 100 * rows(near.size, p.pair)).astype(dtype)
  mat = rows(a.mat, p.pair)
  down = centre - away[:, None] * np.array([0, 0, 1], dtype)[:, None]
  one = jnp.ones((len(p.pair), 3, 1), dtype)
  return ConvexShape(
    pos=rows(a.pos, p.pair) + vector.mat_vec(mat, down),
    mat=mat,
    kind=np.full(len(p.pair), support.CORNERS),
    size=one,
    table=corners - centre[:, None],
    scale=one,
    radius=one[:, 0] * 0,
  )
