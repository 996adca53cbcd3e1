"""Capacities of contacts: which candidates the narrow phase treats, and which of its slots are kept.

Where a group of candidates has a budget, the nearest ones by their bounds are chosen, world by world. The contacts of all
groups then move up into few slots, in MuJoCo's order. What does not fit is counted, and marked in Data's status.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision import boxes
from mjx_lite.core.enums import GeomType
from mjx_lite.core.select import rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe, vector

ROUND = frozenset(("sphere-sphere", "sphere-capsule", "capsule-capsule"))  # groups of shapes around segments
_EXACT = 1 << 24  # integers below are exact in float32, whose `top_k` is faster


class Capacity(NamedTuple):
  """How much may touch at a time; None: all that can."""

  ncon_max: int | None = None
  pair_max: int | Mapping[str, int] | None = None

  def budget(self, group: str, size: int) -> int:
    """How many of the candidates of a group, of which there are `size`, go to the narrow phase."""
    bound = self.pair_max.get(group) if isinstance(self.pair_max, Mapping) else self.pair_max
    return size if bound is None else min(int(bound), size)


NO_BOUND = Capacity()


class Bounds(NamedTuple):
  """Bounding spheres, and boxes along the axes of the geoms, of all geoms; segments of round ones."""

  pos: jax.Array
  radius: jax.Array
  center: jax.Array
  half: jax.Array
  mat: jax.Array
  thick: jax.Array  # radius of round geoms
  length: jax.Array  # half of their segment, zero of spheres


def bounds(m: Model, geom_xpos: jax.Array, geom_xmat: jax.Array) -> Bounds:
  """Bounds from poses, `geom_rbound` and `geom_aabb`; those of planes mean nothing."""
  aabb = m.geom_aabb
  center = geom_xpos + vector.mat_vec(geom_xmat, aabb[:, :3])
  length = m.geom_size[:, 1] * (m.geom_type == GeomType.CAPSULE)[:, None]
  fields = geom_xpos, m.geom_rbound, center, aabb[:, 3:], geom_xmat, m.geom_size[:, 0], length
  return Bounds(*(jax.lax.stop_gradient(x) for x in fields))


def separation(b: Bounds, geom1: np.ndarray, geom2: np.ndarray, group: str) -> jax.Array:
  """Lower bound (n, W) of the distances of geoms (n,) of a group [m]. Source: `mj_collideOBB`, `mj_filterSphere`."""
  one, two = (Bounds(*(rows(x, g) for x in b)) for g in (geom1, geom2))
  if group in ROUND:
    return _segments(one, two) - one.thick - two.thick
  turn, offset = vector.mat_mat(vector.transpose(one.mat), two.mat), vector.mat_t_vec(one.mat, two.center - one.center)
  of_boxes = boxes.separation(offset, turn, one.half, two.half)
  return jnp.maximum(safe.norm(one.pos - two.pos) - one.radius - two.radius, of_boxes)


def _segments(one: Bounds, two: Bounds) -> jax.Array:
  """Distance (n, W) of the segments in capsules; those of spheres are points. It costs less than a bound by boxes.

  The nearest point of the one's line to the other's, moved into its segment; then, in turn, the other's nearest to it and its
  own nearest to that. Source: Ericson, Real-Time Collision Detection, section 5.1.9.
  """
  u, v, offset = one.mat[:, :, 2], two.mat[:, :, 2], two.pos - one.pos
  uv, along_u, along_v = vector.dot(u, v), vector.dot(u, offset), vector.dot(v, offset)
  lines = (along_u - uv * along_v) / jnp.maximum(1 - uv * uv, jnp.finfo(uv.dtype).eps)  # of parallel ones any point will do
  t = jnp.clip(uv * jnp.clip(lines, -one.length, one.length) - along_v, -two.length, two.length)
  s = jnp.clip(uv * t + along_u, -one.length, one.length)
  return safe.norm(offset + t[:, None] * v - s[:, None] * u)


class Chosen(NamedTuple):
  """Candidates of a group: their places in the group (k, W), and whether some within reach were left out (W,)."""

  place: jax.Array
  lost: jax.Array


def nearest(gap: jax.Array, budget: int) -> Chosen:
  """The candidates of smallest gap (n, W), the bound of the distance minus margin + gap [m]. Gradient: none."""
  gap = jax.lax.stop_gradient(gap)
  place = jax.lax.top_k(-gap.astype(jnp.float32).T, budget)[1].T
  return Chosen(place, jnp.sum(gap < 0, axis=0) > budget)


def first_contacts(touches: jax.Array, rank: jax.Array, number: int, size: int) -> Chosen:
  """Rows (number, W) of contacts in MuJoCo's order, behind them rows without a contact.

  Args:
    touches: (n, W) whether a row is a contact.
    rank: (n, W) or (n, 1) place of a row among all that there could be.
    number: of rows kept.
    size: above all ranks.
  """
  exact = size < _EXACT
  key = jnp.where(touches, rank, size).astype(jnp.float32 if exact else jnp.int32)
  place = jax.lax.top_k(-key.T, number)[1].T
  return Chosen(place, jnp.sum(touches, axis=0) > number)
