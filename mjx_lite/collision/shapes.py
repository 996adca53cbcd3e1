"""What a collider takes and returns: posed shapes in, contacts in static slots out.

A collider treats P geom pairs of one type pair at once, in W worlds. It knows nothing of models. A slot without a
contact has distance `NO_CONTACT`; its other numbers are finite and mean nothing. Slots with `dist < margin`, read in
order, are C's contacts in C's order.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.hulls import HullOf
from mjx_lite.core import linear
from mjx_lite.math.geometry import make_frame

NO_CONTACT = 1e10  # distance [m] of an empty slot, larger than any margin


class Shape(NamedTuple):
  """A posed geom of each of P pairs.

  Attributes:
    pos: (P, 3, W) centre [m].
    mat: (P, 3, 3, W) rotation matrix, the geom's axes in columns, as `geom_xmat`.
    size: (P, 3, W or 1) `geom_size` [m].
    hull: vertices and polygons of meshes; constant.
  """

  pos: jax.Array
  mat: jax.Array
  size: jax.Array
  hull: HullOf | None = None

  def axis(self, k: int) -> jax.Array:
    """Axis k of the geom in the world (P, 3, W)."""
    return self.mat[..., :, k, :]


class Contacts(NamedTuple):
  """Contacts of P pairs in n slots each.

  Attributes:
    dist: (P, n, W) distance between the surfaces [m], negative when they overlap.
    pos: (P, n, 3, W) midpoint between the surfaces [m].
    normal: (P, n, 3, W) from the first geom to the second.
    tangent: (P, n, 3, W) where the first tangent is to point, as near as it can; zero where that is left to the frame.
  """

  dist: jax.Array
  pos: jax.Array
  normal: jax.Array
  tangent: jax.Array

  @property
  def frame(self) -> jax.Array:
    """Axes (P, n, 3, 3, W) in rows: the normal, then two tangents. Made last, of those contacts that are left."""
    return make_frame(self.normal, self.tangent)


class Collider(NamedTuple):
  """A function `(a, b, margin) -> Contacts` of two shapes and margin + gap (P, W or 1) [m], and its number of slots.

  Without a function the pair goes the convex way (`convex.collide`), one body for all such pairs of a model.
  """

  fn: Callable[[Shape, Shape, jax.Array], Contacts] | None
  ncon: int


def make_contacts(dist: jax.Array, pos: jax.Array, normal: jax.Array, tangent: jax.Array | None = None) -> Contacts:
  """Contacts from slot distances (P, n, W), positions (P, n, 3, W) and normals (P, n or 1, 3, W)."""
  tangent = jnp.zeros((1, 1, 3, 1), normal.dtype) if tangent is None else tangent
  width = max(x.shape[-1] for x in (dist, pos, normal, tangent))
  batch = dist.shape[:-1]
  vectors = (jnp.broadcast_to(x, (*batch, 3, width)) for x in (pos, normal, tangent))
  return Contacts(jnp.broadcast_to(dist, (*batch, width)), *vectors)


def only_where(keep: jax.Array | np.ndarray, dist: jax.Array) -> jax.Array:
  """Distances where there is a contact, `NO_CONTACT` elsewhere (in the dtype of dist, without gradient)."""
  return jnp.where(keep, dist, jnp.asarray(NO_CONTACT, dist.dtype))


def first_min(x: jax.Array, axis: int = -2) -> jax.Array:
  """One-hot mask of the first smallest element along an axis."""
  index = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis % x.ndim)
  smallest = x <= jnp.min(x, axis=axis, keepdims=True)
  return index == jnp.min(jnp.where(smallest, index, x.shape[axis]), axis=axis, keepdims=True)


def rank_among(holds: jax.Array | np.ndarray) -> tuple[jax.Array, jax.Array]:
  """How many of the entries before each of a mask (P, n, W) hold, and how many do in all (P, W)."""
  before = [jnp.zeros_like(holds[:, 0], jnp.int32)]
  for k in range(holds.shape[1]):
    before.append(before[-1] + holds[:, k])
  return linear.materialized(jnp.stack(before[:-1], axis=1)), before[-1]


def entries(x: jax.Array, index: jax.Array) -> jax.Array:
  """Entries (P, k, ..., W) of x (P, n, ..., W) at indices (P, k, W)."""
  return jnp.take_along_axis(x, index.reshape(*index.shape[:2], *(1,) * (x.ndim - 3), index.shape[-1]), axis=1)
