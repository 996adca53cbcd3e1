"""Broad phase and capacities: which candidate pairs go to the narrow phase, and which contacts are kept.

Where a group of candidates has a budget, the candidates whose bounds overlap most are chosen, world by world. The contacts of
all groups are then compacted into the slots that the capacity allows, in MuJoCo's order. Candidates and contacts that do not
fit are dropped, and the status of Data is marked.

Tests: tests/collision/test_capacity.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import mixing
from mjx_lite.collision.convex import boxes
from mjx_lite.math import extreme, safe, vector
from mjx_lite.model.enums import GeomType
from mjx_lite.model.types import Model
from mjx_lite.ops import lanes, linear, tiles
from mjx_lite.ops import rows as slots
from mjx_lite.ops.select import gather, next_true, rows

ROUND = frozenset(("sphere-sphere", "sphere-capsule", "capsule-capsule"))  # groups whose shapes are segments with a radius
_PART = 16  # candidates in a part: a part is tested, or skipped, as a whole
_WORTH_TREES = 8  # average number of candidates of two trees from which testing the trees first costs nothing
_DIRECT_PARTS = 4  # maximum number of parts with which all candidates are tested directly
_BITS = 31  # usable bits of an integer
_GROUP = 32  # candidates whose maximum is compared first
_SHORT = 12  # contacts of a world: fewer are selected one by one
_EXACT = 1 << 24  # integers below are exact in float32, whose `top_k` is faster


class Balls(NamedTuple):
  """Bounding spheres of all geoms. The spheres of planes have no meaning."""

  pos: jax.Array
  radius: jax.Array
  reach: jax.Array  # a geom's share of margin + gap + slack [m]; shares of two geoms add up; not for explicit pairs


class Boxes(NamedTuple):
  """Boxes that are aligned with the axes of the geoms."""

  center: jax.Array
  half: jax.Array
  mat: jax.Array


class Segments(NamedTuple):
  """Segments and radii of spheres and capsules. The segment of a sphere is a point."""

  pos: jax.Array
  axis: jax.Array
  length: jax.Array  # half length of the segment
  thick: jax.Array  # radius around the segment


class Bounds(NamedTuple):
  """Bounds of all geoms. Every geom has a segment and a box; the group of a pair decides which of the two is used."""

  balls: Balls
  boxes: Boxes
  segments: Segments


def bounds(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array, slack: jax.Array | float = 0.0) -> Bounds:
  """Compute bounds from poses, `geom_rbound`, `geom_aabb` and `geom_size`, and reaches enlarged by a slack. Gradient: none."""
  given = geom_xpos, geom_xmat, m.geom_aabb, m.geom_size, m.geom_rbound, mixing.reach_of_geoms(m) + slack / 2
  pos, mat, aabb, size, radius, reach = jax.lax.stop_gradient(given)
  length = size[:, 1] * (m.geom_type == GeomType.CAPSULE)[:, None]
  center = pos + vector.mat_vec(mat, aabb[:, :3])
  return Bounds(Balls(pos, radius, reach), Boxes(center, aabb[:, 3:], mat), Segments(pos, mat[:, :, 2], length, size[:, 0]))


class Candidates(NamedTuple):
  """Pairs of geoms of one group."""

  geom1: np.ndarray  # (n,)
  geom2: np.ndarray
  group: str  # names of the two geom types, or "convex"
  tree: np.ndarray  # (ngeom,) id of each geom's kinematic tree


def overlap(b: Bounds, c: Candidates, reach: jax.Array | None = None) -> jax.Array:
  """Compute an upper bound (n, W) of reach minus distance for each candidate [m]; negative where a contact is impossible.

  The bound uses the bounding spheres and the boxes or segments. `reach` (n, W or 1) replaces the sum of the two geoms' reaches
  if the group contains explicit pairs. Source: `mj_filterSphere`, `mj_collideOBB`.
  """
  return _overlaps(b, c, reach)(lambda x, axis=0: x, False)


def _overlaps(b: Bounds, c: Candidates, reach: jax.Array | None) -> Callable[..., jax.Array]:
  """Return a function (take, lazy) that computes `overlap` for some candidates.

  `take(x, axis=0)` selects these candidates from an array x of all candidates. If `lazy` is true and no bounding spheres
  overlap in any world, the result is based on the spheres only.
  """
  shapes, distance = (b.segments, _distance_of_segments) if c.group in ROUND else (b.boxes, _distance_of_boxes)
  index, flat = np.stack([c.geom1, c.geom2]).astype(np.int32), _Flat(b.balls, shapes)

  def of_selected(take, lazy):
    stacked = flat.rows(take(jnp.asarray(index), 1))
    (one, first), (two, second) = (flat.parts([x[i] for x in stacked]) for i in range(2))
    within = one.reach + two.reach if reach is None else take(jax.lax.stop_gradient(reach))
    balls = within + one.radius + two.radius - safe.norm(one.pos - two.pos)

    def by_shapes(balls):
      return linear.no_alias(jnp.minimum(balls, within - distance(first, second)), balls)

    return jax.lax.cond(jnp.any(balls > 0), by_shapes, lambda x: x, balls) if lazy else by_shapes(balls)

  return of_selected


class _Flat:
  """All arrays of bounds, each stored once, concatenated: one array per world width (per-world or shared)."""

  def __init__(self, *parts: NamedTuple):
    leaves, self._form = jax.tree.flatten(list(parts))
    self._leaves = {id(x): x for x in leaves}
    self._order = [id(x) for x in leaves]
    widths = sorted({x.shape[-1] for x in leaves})
    self._alike = [[k for k, x in self._leaves.items() if x.shape[-1] == w] for w in widths]
    flat = {k: x.reshape(len(x), -1, x.shape[-1]) for k, x in self._leaves.items()}
    self._arrays = [vector.join([flat[k] for k in keys]) for keys in self._alike]

  def rows(self, index: jax.Array) -> list[jax.Array]:
    """Gather the rows (..., n, k, W or 1) of geoms (..., n) from each array."""
    return [x.at[index].get(mode="promise_in_bounds") for x in self._arrays]

  def parts(self, arrays: list[jax.Array]) -> list:
    """Split gathered rows into bounds of the same structure as the arguments of the constructor."""
    found = {}
    for keys, x in zip(self._alike, arrays, strict=True):
      leaves = [self._leaves[k] for k in keys]
      cuts = np.cumsum([int(np.prod(y.shape[1:-1])) for y in leaves])[:-1]
      for k, y, part in zip(keys, leaves, jnp.split(x, cuts, axis=1), strict=True):
        found[k] = part.reshape(len(x), *y.shape[1:])
    return jax.tree.unflatten(self._form, [found[k] for k in self._order])


def worth_trees(c: Candidates) -> bool:
  """Decide whether to test geoms against trees first: this pays if there are enough candidates per pair of trees."""
  one, two = c.tree[np.stack([c.geom1, c.geom2])]
  between = {frozenset(x) for x in zip(one.tolist(), two.tolist(), strict=True) if x[0] != x[1]}
  number = int(np.sum(one != two))
  return 2 * number >= len(one) > _DIRECT_PARTS * _PART and number >= _WORTH_TREES * len(between)


def near_trees(b: Balls, tree: np.ndarray, reach: jax.Array) -> jax.Array:
  """Find the worlds in which a geom is within reach of the bounding box of all geoms of a tree.

  Args:
    b: bounding spheres of all geoms.
    tree: (ngeom,) id of each geom's kinematic tree.
    reach: () the largest reach of all pairs [m].

  Returns:
    integers (ngeom, number of trees), trees in the order of their ids. Bit w modulo `_BITS` is set if the geom is near the tree
    in world w, so several worlds may share a bit.
  """
  members = [np.flatnonzero(tree == t) for t in np.unique(tree)]
  index = np.stack([np.resize(g, max(map(len, members))) for g in members])
  pos, radius = rows(b.pos, index), rows(b.radius, index)[:, :, None]
  low, high = linear.materialize((vector.fold(jnp.minimum, pos - radius, 1), vector.fold(jnp.maximum, pos + radius, 1)))
  pos, radius = b.pos[:, None], b.radius[:, None, None] + jax.lax.stop_gradient(reach)
  separate = vector.fold(jnp.logical_or, (pos - radius > high) | (low > pos + radius), 2)
  bit = np.left_shift(1, np.arange(separate.shape[-1]) % _BITS).astype(np.int32)
  return jax.lax.reduce_or(jnp.where(separate, 0, bit), (2,))


def _near_each_other(near: jax.Array, c: Candidates) -> tuple[jax.Array, jax.Array]:
  """Find the candidates whose geoms are near each other's trees in some world.

  Returns:
    the ascending indices of these candidates, padded to n rounded up to a multiple of `_PART`, and their number ().
  """
  n, size = len(c.geom1), _PART
  pair = np.stack([c.geom1, c.geom2])
  tree = np.unique(c.tree, return_inverse=True)[1][pair]
  beside = pair * near.shape[1] + tree[::-1]  # flat indices (geom 1, tree of geom 2) and (geom 2, tree of geom 1) into `near`
  start = np.arange(0, n, size)
  ahead = [np.unique(beside[0, k : k + size]) for k in start]  # few ids, where candidates of one geom are consecutive
  ahead = np.stack([np.resize(x, max(map(len, ahead))) for x in ahead])
  near = near.reshape(-1)
  is_near = jnp.any(rows(near, ahead) != 0, axis=1)
  beside = jnp.asarray(np.pad(beside, ((0, 0), (0, -n % size))).astype(np.int32))

  def look(state):
    k, *result = state
    one, two = near.at[jax.lax.dynamic_slice_in_dim(beside, k * size, size, 1)].get(mode="promise_in_bounds")
    both = linear.materialize((one & two != 0) & (k * size + _row(size)[:, 0] < n))

    def add(state):
      i, count, found = state
      return next_true(both, i), count + 1, jax.lax.dynamic_update_slice_in_dim(found, (k * size + i)[None], count, 0)

    _, *result = jax.lax.while_loop(lambda s: s[0] < size, add, (next_true(both, -1), *result))
    return next_true(is_near, k), *result

  begin = next_true(is_near, -1), jnp.int32(0), jnp.zeros(len(start) * size, jnp.int32)
  _, count, found = jax.lax.while_loop(lambda s: s[0] < len(start), look, begin)
  return found, count


def _distance_of_boxes(one: Boxes, two: Boxes) -> jax.Array:
  """Return a lower bound (n, W) of the distance of two boxes [m]."""
  rotation, offset = vector.mat_mat(vector.transpose(one.mat), two.mat), vector.mat_t_vec(one.mat, two.center - one.center)
  return boxes.separation(offset, rotation, one.half, two.half)


def _distance_of_segments(one: Segments, two: Segments) -> jax.Array:
  """Compute the distance (n, W) of spheres and capsules [m].

  Take the point of the first line nearest to the second line and clamp it to the first segment. Then find the nearest point on
  the second segment, then the point on the first segment nearest to that point. Source: Ericson, Real-Time Collision Detection,
  section 5.1.9.
  """
  u, v, offset = one.axis, two.axis, two.pos - one.pos
  uv, along_u, along_v = vector.dot(u, v), vector.dot(u, offset), vector.dot(v, offset)
  lines = (along_u - uv * along_v) / jnp.maximum(1 - uv * uv, jnp.finfo(uv.dtype).eps)  # of parallel lines any point will do
  t = jnp.clip(uv * jnp.clip(lines, -one.length, one.length) - along_v, -two.length, two.length)
  s = jnp.clip(uv * t + along_u, -one.length, one.length)
  s, t = linear.materialize((s, t))
  return safe.norm(offset + t[:, None] * v - s[:, None] * u) - one.thick - two.thick


class Chosen(NamedTuple):
  """A selection of candidates of a group, or of rows of contacts."""

  row: jax.Array  # (k, W) index of the candidate in its group, or of the row of contacts
  valid: jax.Array  # (k, W) whether the entry is valid; invalid entries, where there are fewer than k, may repeat valid ones
  number: jax.Array  # (W,) how many candidates are within reach, or how many rows are contacts, chosen or not


def nearest(overlap: jax.Array, budget: int, slack: jax.Array | float = 0.0) -> Chosen:
  """Choose the candidates of largest overlap (n, W); there are more candidates than the budget. Gradient: none.

  A candidate counts as within reach if its overlap is above the slack [m].
  """
  overlap, wanted = jax.lax.stop_gradient(overlap).astype(jnp.float32).T, budget
  number = jnp.sum(overlap > slack, axis=1, dtype=jnp.int32)
  count = -(-overlap.shape[1] // _GROUP)
  if count <= 2 * wanted:
    value, row = _largest(overlap, wanted)
  else:  # the chosen candidates are in the groups with the largest maxima; members of a group have stride `count`
    pad = count * _GROUP - overlap.shape[1]
    overlap = jnp.pad(overlap, ((0, 0), (0, pad)), constant_values=-jnp.inf).reshape(-1, _GROUP, count)
    group = jnp.sort(_largest(vector.fold(jnp.maximum, overlap, 1), wanted)[1])
    members = jnp.take_along_axis(overlap, group[:, None], axis=2).reshape(-1, _GROUP * wanted)
    value, among = _largest(members, wanted)
    column, member = (f(among, jnp.int32(wanted)) for f in (jax.lax.rem, jax.lax.div))
    row = count * member + jnp.take_along_axis(group, column, axis=1)
  return Chosen(row.T, value.T > 0, number)


def nearest_in_tile(
  b: Bounds,
  c: Candidates,
  reach: jax.Array | None,
  budget: int,
  slack: jax.Array | float = 0.0,
  near: jax.Array | None = None,
) -> Chosen:
  """Choose as `nearest` does, for a tile of worlds: a loop over parts of `_PART` candidates, with cheap tests first.

  Few parts have candidates within reach; these candidates are kept if they are among the nearest so far. With `near`, the
  result of `near_trees`, only candidates whose geoms are near each other's trees are tested. Gradient: none.
  """
  n, size = len(c.geom1), _PART
  tested, count = jnp.asarray(np.pad(np.arange(n, dtype=np.int32), (0, -n % size))), jnp.int32(n)
  if near is not None and worth_trees(c):
    tested, count = _near_each_other(near, c)
  overlaps = _overlaps(b, c, reach)

  def look(state):
    k, number, value, row = state
    part = jax.lax.dynamic_slice_in_dim(tested, k, size)
    found = overlaps(lambda x, axis=0: linear.materialize(jnp.take(x, part, axis, mode="clip")), True)
    found = jnp.where((found > 0) & (k + _row(size) < count), found, -jnp.inf)
    part = jnp.broadcast_to(part[:, None], found.shape)

    def add():
      within = vector.fold(jnp.add, (found > slack).astype(jnp.int32), 0)
      return number + within, *_kept(value, row, found, part)

    return k + size, *jax.lax.cond(jnp.any(found > 0), add, lambda: (number, value, row))

  value, row = _nothing(budget, b.balls.pos[:, 0])
  begin = jnp.int32(0), jnp.zeros_like(row[0]), value, row
  _, number, value, row = jax.lax.while_loop(lambda s: s[0] < count, look, begin)
  return Chosen(row, value > 0, number)


def _row(n: int) -> np.ndarray:
  return np.arange(n, dtype=np.int32)[:, None]


def _nothing(number: int, like: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return empty values (number, W), -inf, and their indices, zero."""
  shape = (number, like.shape[-1])
  return jnp.full(shape, -jnp.inf, like.dtype), jnp.zeros(shape, jnp.int32)


def _kept(value: jax.Array, row: jax.Array, new_value: jax.Array, new_row: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Merge values and rows (k, W) with new values and rows (n, W), and return the k largest positive values and their rows."""
  if lanes.packs():
    return _replaced(value, row, new_value, new_row)
  values, rows_ = jnp.concatenate([value, new_value]), jnp.concatenate([row, new_row])
  index = _row(len(values))
  return _sorted(values, len(value), lambda at: vector.fold(jnp.add, jnp.where(index == at, rows_, 0), 0))


def _replaced(value: jax.Array, row: jax.Array, new_value: jax.Array, new_row: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Do what `_kept` does in no order: each positive new value replaces the smallest value, if it is larger."""

  def replace(state):
    remaining, value, row = state
    best, at = extreme.first_largest(remaining)
    least, slot = extreme.first_largest(-value)
    new = vector.fold(jnp.add, jnp.where(_row(len(new_row)) == at, new_row, 0), 0)
    value, row = (lanes.put(x, slot, y, best > -least) for x, y in ((value, best), (row, new)))
    return jnp.where(_row(len(remaining)) == at, -jnp.inf, remaining), value, row

  def continues(state):
    return jnp.any(vector.fold(jnp.logical_or, state[0] > 0, 0))

  return jax.lax.while_loop(continues, replace, (new_value, value, row))[1:]


def _sorted(values: jax.Array, number: int, row_at: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Select the largest positive values (number, W) of values (n, W), and their rows, which `row_at` computes from indices."""
  index = _row(len(values))

  def take(state):
    k, remaining, value, row = state
    best, at = extreme.first_largest(remaining)
    value, row = (jax.lax.dynamic_update_slice_in_dim(x, y[None], k, 0) for x, y in ((value, best), (row, row_at(at))))
    return k + 1, jnp.where(index == at, -jnp.inf, remaining), value, row

  def continues(state):
    k, remaining, *_ = state
    return (k < number) & jnp.any(vector.fold(jnp.logical_or, remaining > 0, 0))  # two reductions: one would end the region

  none = jnp.full((number, values.shape[-1]), -jnp.inf, values.dtype), jnp.zeros((number, values.shape[-1]), jnp.int32)
  return jax.lax.while_loop(continues, take, (jnp.int32(0), values, *none))[2:]


def _largest(x: jax.Array, number: int) -> list[jax.Array]:
  """Return `top_k` in buffers: if its result is sliced directly, XLA sorts the whole array."""
  return linear.materialize_everywhere(jax.lax.top_k(x, number))


def first_contacts(touches: jax.Array, rank: jax.Array, number: int, size: int, fills: bool) -> Chosen:
  """Choose the first rows (number, W) that are contacts, in MuJoCo's order.

  Args:
    touches: (n, W) whether a row is a contact.
    rank: (n, W) or (n, 1) position of a row in MuJoCo's order of all possible contacts.
    number: number of rows kept.
    size: upper bound of the ranks, exclusive.
    fills: whether the remaining entries have to be rows without a contact. If not, the remaining entries may be any rows.
  """
  exact, total = size < _EXACT, vector.fold(jnp.add, touches.astype(jnp.int32), 0)
  if not fills and tiles.choose(touches, single=True, tile=True, batch=False):
    if exact and number < _SHORT:
      nearness = jnp.where(touches, size - rank, -jnp.inf).astype(jnp.float32)
      value, row = _sorted(nearness, number, lambda at: at)
      return Chosen(row, value > 0, total)
    if size * len(touches) < np.iinfo(np.int32).max:
      return Chosen(*_first_contacts_by_key(touches, rank, number, size), total)
  key = jnp.where(touches, rank, size).astype(jnp.float32 if exact else jnp.int32)
  row = jax.lax.top_k(-key.T, number)[1].T
  return Chosen(row, gather(touches, row), total)


def _first_contacts_by_key(touches: jax.Array, rank: jax.Array, number: int, size: int) -> tuple[jax.Array, jax.Array]:
  """Choose the first contacts of a tile of worlds, or of a kernel's worlds, by keys of the rank and the row.

  Returns:
    the rows (number, W), and whether they are valid.
  """
  n, nothing = len(touches), jnp.int32(size * len(touches))
  key = linear.materialize(jnp.where(touches, rank * n + _row(n), nothing))  # the row is the key modulo n
  found = (_first_by_rank if lanes.packs() else _first_by_insertion)(key, touches, number, nothing)
  return jax.lax.rem(found, jnp.int32(n)), found < nothing


def _first_by_insertion(key: jax.Array, wanted: jax.Array, number: int, nothing: jax.Array) -> jax.Array:
  """Return the smallest wanted keys (number, W) in order: one key (n, W) after another is inserted into the sorted list.

  Keys that are not wanted, and other entries, are `nothing`.
  """
  n, is_contact = len(key), linear.materialize(jnp.any(wanted, axis=1))

  def insert(state):
    k, first = state
    new = jax.lax.dynamic_index_in_dim(key, k)
    first = jnp.concatenate([first[:1], jnp.minimum(first[1:], jnp.maximum(first[:-1], new))])
    return next_true(is_contact, k), first

  begin = jnp.full((number + 1, wanted.shape[-1]), nothing).at[0].set(-1)  # first entry: sentinel
  _, first = jax.lax.while_loop(lambda s: s[0] < n, insert, (next_true(is_contact, -1), begin))
  return linear.materialize(first[1:])


def _first_by_rank(key: jax.Array, wanted: jax.Array, number: int, nothing: jax.Array) -> jax.Array:
  """Do what `_first_by_insertion` does in a kernel: the number of smaller keys is a key's place. The wanted keys differ."""

  def append(key, state):
    count, keys = state
    return count + 1, keys.at[count[0]].set(key[0])

  start = jnp.zeros(1, jnp.int32), lanes.empty(key.shape, key.dtype)
  count, keys = slots.fold_where(append, key, wanted, start)

  def place(key, first):
    rank = slots.total(lambda other: (other < key).astype(jnp.int32), keys, count)
    return first.at[rank[0]].set(key[0], mode="drop")

  return slots.fold(place, keys, count, jnp.full((number, 1), nothing))
