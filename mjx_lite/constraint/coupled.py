"""The curvature of contacts that may couple two moving bodies, as a dense matrix of all dofs.

Tests: tests/constraint/test_curvature.py.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.contact import Coupling
from mjx_lite.constraint.contact_bodies import ChosenSides
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.math import linalg, vector
from mjx_lite.ops import lanes, linear, tiles
from mjx_lite.ops import rows as slots
from mjx_lite.ops.select import next_true, rows, rows_or_zero

_SLIDING = 3  # directions of a contact before those of rotation


def curvature(p: Coupling, a: jax.Array, j: Jacobian, cdof: jax.Array) -> jax.Array:
  """Compute the curvature (nv, nv, W) of the contacts that may couple bodies; at least its upper triangle.

  For one world or a tile, a loop adds the contacts that push in some world. For a batch, all contacts are added at once.
  """
  a, basis = (jnp.broadcast_to(x, (*x.shape[:-1], cdof.shape[-1])) for x in (rows(a, p.slot), rows(j.basis, p.side)))
  curvature = tiles.choose(a, single=sum_of_pushing, tile=sum_of_pushing, batch=sum_of_all)
  return curvature(p, a, basis, j.body, cdof)


def sum_of_all(p: Coupling, a: jax.Array, basis: jax.Array, body: jax.Array | None, cdof: jax.Array) -> jax.Array:
  """Compute the curvature (nv, nv, W) of contacts in one product.

  Args:
    p: sides of the contacts.
    a: (n, ndir, ndir, W) curvature in frame components.
    basis: (nside, ndir, 6, W) frame components of a side's motion.
    body: (nside, W) bodies of the sides, if they are chosen at run time.
    cdof: (nv, 6, W).
  """
  moves = rows_or_zero(jnp.asarray(p.sides.moves(body, cdof.dtype)), p.slot_side)
  left, right = _halves(a, rows_or_zero(basis, p.slot_side), moves, cdof)
  return linalg.gram(left, right, upper=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def sum_of_pushing(p: Coupling, a: jax.Array, basis: jax.Array, body: jax.Array | None, cdof: jax.Array) -> jax.Array:
  """Compute `sum_of_all` in a loop over the contacts that push in some world.

  The derivatives are those of `sum_of_all`.
  """
  if lanes.packs() and isinstance(p.sides, ChosenSides):
    return _sum_by_slot(p.sides, a, basis, cast(jax.Array, body), cdof)
  a, basis = linear.materialize((a, basis))
  pushes = jnp.any(vector.fold(jnp.logical_or, (a != 0).reshape(len(a), -1, a.shape[-1]), 1), axis=1)

  def add(state):
    k, total = state
    side = jnp.asarray(p.slot_side.astype(np.int32))[k]
    exists, side = (side >= 0)[:, None, None, None], jnp.maximum(side, 0)
    slot_basis = jnp.where(exists, basis.at[side].get(mode="promise_in_bounds"), 0)[None]
    slot_moves = jnp.asarray(p.sides.moves(body, cdof.dtype, side))[None]
    left, right = _halves(jax.lax.dynamic_slice_in_dim(a, k, 1), slot_basis, slot_moves, cdof)
    return next_true(pushes, k), total + vector.add(x[:, None] * y[None] for x, y in zip(left, right, strict=True))

  zero = jnp.zeros((len(cdof), len(cdof), cdof.shape[-1]), cdof.dtype)
  return jax.lax.while_loop(lambda s: s[0] < len(a), add, (next_true(pushes, -1), zero))[1]


@sum_of_pushing.defjvp
def _(p: Coupling, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
  return jax.jvp(functools.partial(sum_of_all, p), primals, tangents)


def _sum_by_slot(sides: ChosenSides, a: jax.Array, basis: jax.Array, body: jax.Array, cdof: jax.Array) -> jax.Array:
  """Compute the upper triangle of `sum_of_pushing` in a kernel, from slots whose bodies are chosen at run time.

  First come the contacts without friction against rotation, by their first directions alone, then those that have it.
  """
  number, nv = len(a), len(cdof)
  row, col = np.triu_indices(nv)

  def add(r, total):
    a, (basis1, basis2), (body1, body2) = r[0][0], (x[0] for x in r[1:3]), (x[0] for x in r[3:])
    ndir = len(a)
    sign, trees = sides.signs(body1, body2, a.dtype), sides.tree
    # a dof moves a body of its own tree alone, and both bodies of one tree have the same basis
    of_tree = [jnp.where(sides.is_of_tree(body2, t), basis2, basis1) for t in range(trees.max() + 1)]
    axes = [vector.add(of_tree[t][:, k] * cdof[i, k] for k in range(6)) for i, t in enumerate(trees)]
    frame = jnp.stack([s * x for s, x in zip(sign, axes, strict=True)], axis=1)
    half = jnp.stack([vector.add(a[d, e] * frame[e] for e in range(ndir)) for d in range(ndir)])
    return total + vector.add(frame[d][row] * half[d][col] for d in range(ndir))

  both = basis[:number], basis[number:], body[:number], body[number:]
  total, pushes = jnp.zeros((len(row), a.shape[-1]), a.dtype), a[:, 0, 0] > 0
  if a.shape[1] <= _SLIDING:
    total = slots.fold(add, (a, *both), slots.upto(pushes), total)
  else:
    rotates = functools.reduce(jnp.logical_or, (a[:, k, k] > 0 for k in range(_SLIDING, a.shape[1])))
    slides = jnp.where(rotates[:, None, None], 0, a[:, :_SLIDING, :_SLIDING])
    some = slides, *(x[:, :_SLIDING] for x in both[:2]), *both[2:]
    total = slots.fold(add, some, slots.upto(pushes & ~rotates), total)
    total = slots.fold_where(add, (a, *both), rotates, total)
  return jnp.zeros((nv, nv, a.shape[-1]), a.dtype).at[row, col].set(total)


def _halves(a: jax.Array, basis: jax.Array, moves: jax.Array, cdof: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Compute the rows (n * ndir, nv, W) of the contacts' Jacobian, and the product of a with these rows.

  Args:
    a: (n, ndir, ndir, W) curvature in frame components.
    basis: (n, nside, ndir, 6, W) frame components of a side's motion.
    moves: (n, nside, nv, W or 1) signs of the dofs that move a side.
    cdof: (nv, 6, W).
  """
  sides = range(basis.shape[1])
  frame = vector.add(vector.add(basis[:, s, :, None, k] * cdof[:, k] for k in range(6)) * moves[:, s, None] for s in sides)
  frame = linear.materialize(frame)
  half = linear.materialize(vector.add(a[:, :, k, None] * frame[:, None, k] for k in range(a.shape[1])))
  left, right = (x.reshape(-1, *x.shape[2:]) for x in (frame, half))
  return left, right
