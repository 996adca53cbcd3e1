"""Interface of the colliders: posed shapes in, contacts in static slots out.

A collider processes P geom pairs of one type pair in W worlds at once. A collider does not depend on the model. A slot without
a contact has distance `NO_CONTACT`; its other numbers are finite and have no meaning. The slots with `dist < margin`, in order,
are C's contacts in C's order.

Tests: tests/collision/test_primitive.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.math.geometry import make_frame
from mjx_lite.ops import linear

NO_CONTACT = 1e10  # distance [m] of an empty slot, larger than any margin


class Shape(NamedTuple):
  """One posed geom of each of P pairs.

  Attributes:
    pos: (P, 3, W) centre [m].
    mat: (P, 3, 3, W) rotation matrix, the geom's axes in columns, as `geom_xmat`.
    size: (P, 3, W or 1) `geom_size` [m].
    hull: vertices and polygons of meshes; constant.
  """

  pos: jax.Array
  mat: jax.Array
  size: jax.Array
  hull: GeomHulls | None = None

  def axis(self, k: int) -> jax.Array:
    """Return axis k of the geom in the world frame (P, 3, W)."""
    return self.mat[..., :, k, :]


class Contacts(NamedTuple):
  """Contacts of P pairs in n slots each.

  Attributes:
    dist: (P, n, W) distance between the surfaces [m], negative when they overlap.
    pos: (P, n, 3, W) midpoint between the surfaces [m].
    normal: (P, n, 3, W) from the first geom to the second.
    tangent: (P, n, 3, W) wanted direction of the first tangent; zero where `make_frame` chooses.
  """

  dist: jax.Array
  pos: jax.Array
  normal: jax.Array
  tangent: jax.Array

  @property
  def frame(self) -> jax.Array:
    """Axes (P, n, 3, 3, W) in rows: the normal, then two tangents. Computed last, only for the contacts that are kept."""
    return make_frame(self.normal, self.tangent)


class Collider(NamedTuple):
  """A function `(a, b, margin) -> Contacts` of two shapes and margin + gap (P, W or 1) [m], and its number of slots.

  Without a function the pair takes the convex path (`convex.collide`), which handles all such pairs of a model at once.
  """

  fn: Callable[[Shape, Shape, jax.Array], Contacts] | None
  ncon: int


def make_contacts(dist: jax.Array, pos: jax.Array, normal: jax.Array, tangent: jax.Array | None = None) -> Contacts:
  """Build contacts from slot distances (P, n, W), positions (P, n, 3, W) and normals (P, n or 1, 3, W)."""
  tangent = jnp.zeros((1, 1, 3, 1), normal.dtype) if tangent is None else tangent
  width = max(x.shape[-1] for x in (dist, pos, normal, tangent))
  batch = dist.shape[:-1]
  vectors = (jnp.broadcast_to(x, (*batch, 3, width)) for x in (pos, normal, tangent))
  return Contacts(jnp.broadcast_to(dist, (*batch, width)), *vectors)


def only_where(keep: jax.Array | np.ndarray, dist: jax.Array) -> jax.Array:
  """Return the distances where `keep`, `NO_CONTACT` elsewhere (in the dtype of dist, without gradient)."""
  return jnp.where(keep, dist, jnp.asarray(NO_CONTACT, dist.dtype))


def first_min(x: jax.Array, axis: int = -2) -> jax.Array:
  """Return a one-hot mask of the first smallest element along an axis."""
  index = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis % x.ndim)
  smallest = x <= jnp.min(x, axis=axis, keepdims=True)
  return index == jnp.min(jnp.where(smallest, index, x.shape[axis]), axis=axis, keepdims=True)


def rank_among(holds: jax.Array | np.ndarray) -> tuple[jax.Array, jax.Array]:
  """Count the true entries before each entry of a mask (P, n, W), and all true entries (P, W)."""
  before = [jnp.zeros_like(holds[:, 0], jnp.int32)]
  for k in range(holds.shape[1]):
    before.append(before[-1] + holds[:, k])
  return linear.materialize(jnp.stack(before[:-1], axis=1)), before[-1]


def entries(x: jax.Array, index: jax.Array) -> jax.Array:
  """Gather entries (P, k, ..., W) of x (P, n, ..., W) at indices (P, k, W)."""
  return jnp.take_along_axis(x, index.reshape(*index.shape[:2], *(1,) * (x.ndim - 3), index.shape[-1]), axis=1)
