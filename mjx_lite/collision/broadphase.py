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
from mjx_lite.core.select import rows
from mjx_lite.math import safe, vector

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
  """Bounding spheres, and boxes along the axes of the geoms, of all geoms."""

  pos: jax.Array
  radius: jax.Array
  center: jax.Array
  half: jax.Array
  mat: jax.Array


def bounds(geom_xpos: jax.Array, geom_xmat: jax.Array, rbound: jax.Array, aabb: jax.Array) -> Bounds:
  """Bounds from poses, `geom_rbound` and `geom_aabb`; those of planes mean nothing."""
  fields = geom_xpos, rbound, geom_xpos + vector.mat_vec(geom_xmat, aabb[:, :3]), aabb[:, 3:], geom_xmat
  return Bounds(*(jax.lax.stop_gradient(x) for x in fields))


def separation(b: Bounds, geom1: np.ndarray, geom2: np.ndarray) -> jax.Array:
  """Lower bound (n, W) of the distances of geoms (n,) [m]. Source: `mj_collideOBB`, `mj_filterSphere`."""
  one, two = (Bounds(*(rows(x, g) for x in b)) for g in (geom1, geom2))
  turn, offset = vector.mat_mat(vector.transpose(one.mat), two.mat), vector.mat_t_vec(one.mat, two.center - one.center)
  of_boxes = boxes.separation(offset, turn, one.half, two.half)
  return jnp.maximum(safe.norm(one.pos - two.pos) - one.radius - two.radius, of_boxes)


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
