"""Articulated-body factor and solve: (M + diag(d) + sum_b J_b' K_b J_b)^-1 without forming a matrix.

With spatial vectors about one point per tree the classical recursion (Featherstone, Rigid Body Dynamics Algorithms,
section 7.3) needs no change of frame. Dof by dof, from the leaves:

  U = I s,  D = s.U + d,  I <- I - U U'/D,  I_parent += I

where I is packed. Initially I is the inertia (plus a stiffness K, 6x6) of the bodies whose last dof this is. The recursion is
the sparse factorisation M = L' D L with L[i, j] = U_i.s_j / D_i for every ancestor j of i.

A loop runs over the depths and eliminates the dofs of one depth together. All depths are padded with empty dofs to the widest
depth, so the program has the same few kernels for a tree of any depth. Arrays in this form are (depth, row, ..., W). The six
dofs of a free joint, always the first of a tree, are not depths: the padding would make them as wide as all other depths. After
the elimination of their descendants, S'IS + diag(d) is inverted as a 6x6 matrix, last dof first, with the same L and D.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import safe, spatial, vector
from mjx_lite.math.tree import mask_sum
from mjx_lite.model.types import Model
from mjx_lite.ops import linear, loops, tiles
from mjx_lite.ops.select import gather, rows, rows_or_zero
from mjx_lite.smooth.articulated_plan import ArticulatedPlan

_BLOCK = 4  # rows of a depth that fit into the innermost cache, for a tile of worlds
_DIAGONAL = np.eye(6, dtype=bool)[..., None]


class Factor(NamedTuple):
  """Factor of the articulated inertia: of the dofs by depth, and of the free joints."""

  cdof: jax.Array  # (ndepth, width, 6, W)
  force: jax.Array  # U (ndepth, width, 6, W)
  inv: jax.Array  # 1/D (ndepth, width, W)
  free_cdof: jax.Array  # (nfree, 6, 6, W), one row per dof
  free: "Free | None"  # None without free joints


class Free(NamedTuple):
  """Matrices of free joints after the elimination of all other dofs: A = S'IS + diag(d) = L'DL."""

  inverse: jax.Array  # (nfree, 6, 6, W)
  lower: jax.Array  # (6, nfree, 6, W) rows of L, below its diagonal
  inv: jax.Array  # (6, nfree, W) 1/D


def _by_depth(p: ArticulatedPlan, x: jax.Array) -> jax.Array:
  """Arrange a dof array (nv, ..., W) by depth: (ndepth, width, ..., W), zero for empty dofs."""
  return rows(jnp.concatenate([x, jnp.zeros_like(x[:1])]), p.dof)


def _by_dof(p: ArticulatedPlan, x: jax.Array, free: jax.Array) -> jax.Array:
  """Arrange an array by depth, and an array of the free joints' dofs (nfree, 6, ..., W), as a dof array (nv, ..., W)."""
  x, free = (y.reshape(-1, *y.shape[2:]) for y in (x, free))
  return rows(jnp.concatenate([x, free]) if len(free) else x, p.position)


def _from_children(p: ArticulatedPlan, like: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return for each depth the masks of the next depth, 1 at (row, row of the child), and whether all children keep the row."""
  return jnp.asarray(np.roll(p.to_parent, -1, axis=0), like.dtype), jnp.asarray(np.roll(p.keeps_row, -1))


def _at_parents(
  p: ArticulatedPlan, mask: jax.Array, keeps_row: jax.Array, x: jax.Array, add: jax.Array | None = None
) -> jax.Array:
  """Sum the rows x (width, ..., W) of a depth at their parents, by the depth's masks (trees, rows, rows), and add `add`."""
  if not p.keeps_row.all():
    x = _unless(keeps_row, functools.partial(_summed, mask), x)
  return x if add is None else add + x


def _unless(keeps_row: jax.Array, function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
  """Apply a function to the rows x, unless every dof of the depth has its parent's row, which is the usual case."""
  return loops.repeat(lambda _, x: function(x), 1 - keeps_row.astype(jnp.int32), 1, x)


def _summed(mask: jax.Array, x: jax.Array) -> jax.Array:
  if len(mask) == 1:
    return vector.combine_rows(mask[0], x)
  return vector.combine_rows(mask, x.reshape(*mask.shape[:2], *x.shape[1:])).reshape(x.shape)


def _gathered(index: jax.Array, x: jax.Array) -> jax.Array:
  return x.at[index].get(mode="promise_in_bounds")


def factor(
  m: Model,
  cinert: jax.Array,
  cdof: jax.Array,
  diagonal: jax.Array,
  stiffen: Callable[[jax.Array, np.ndarray], jax.Array] | None = None,
) -> Factor:
  """Factor M + diag + stiffness.

  The results of a depth are summed at the parents at the beginning of the next iteration, so that the product with the masks
  reads the loop's carry. If the product followed its operand directly, XLA would compute the operand in the product's flat
  shape, without vectors and five times slower.

  Args:
    cinert: (nbody, 10, W) spatial inertia about the tree's centre of mass.
    cdof: (nv, 6, W).
    diagonal: (nv, W) armature and other terms of the diagonal.
    stiffen: adds stiffnesses of bodies, packed and about the same point, to rows (n, 21, W); its second argument (nbody,) is
      the row of each body, -1 for bodies that no dof moves.
  """
  p = m.plan.articulated
  if not m.nv:
    none = _by_depth(p, cdof)
    return Factor(none, none, _by_depth(p, diagonal), none, None)
  inertias = linear.materialize(spatial.packed_inertia(mask_sum(p.carried, cinert)))
  if stiffen is not None:
    inertias = stiffen(inertias, p.body_row)
  s, d = _by_depth(p, cdof), _by_depth(p, diagonal)

  in_tile = _block_by_block if p.dof.shape[1] > _rows_of_block(p) else _all_at_once
  sweep = tiles.choose(cdof, single=_all_at_once, tile=in_tile, batch=_all_at_once)
  remaining, force, inv = sweep(p, inertias, s, d)
  axes = rows(cdof, p.free)
  if not len(p.free):
    return Factor(s, force, inv, axes, None)
  u = linear.materialize(
    spatial.mul_packed((rows(inertias, p.free_carried_row) + mask_sum(p.free_row, remaining))[:, None], axes)
  )
  matrix = vector.dot(axes[:, :, None], u[:, None]) + jnp.where(_DIAGONAL, rows(diagonal, p.free)[:, None], 0)
  return Factor(s, force, inv, axes, _factor_free(matrix))


class _Swept(NamedTuple):
  """Result of the elimination of all depths."""

  remaining: jax.Array  # (width, 21, W) inertias that the rows of the first depth pass to their parents
  force: jax.Array  # U (ndepth, width, 6, W)
  inv: jax.Array  # 1/D (ndepth, width, W)


def _all_at_once(p: ArticulatedPlan, inertias: jax.Array, s: jax.Array, d: jax.Array) -> _Swept:
  """Eliminate the dofs depth by depth, given inertias (n, 21, W), axes s (ndepth, width, 6, W) and diagonal d."""

  def up(remaining, x):
    inertia_row, axis, diag, mask, keeps_row, empty = x
    return _eliminate(
      _at_parents(p, mask, keeps_row, remaining, inertias.at[inertia_row].get(mode="promise_in_bounds")), axis, diag, empty
    )

  none = jnp.zeros((p.dof.shape[1], *inertias.shape[1:]), inertias.dtype)
  tables = jnp.asarray(p.carried_row.astype(np.int32)), s, d, *_from_children(p, s), _is_empty(p)
  remaining, (force, inv) = jax.lax.scan(up, none, tables, reverse=True)
  return _Swept(remaining, force, inv)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _block_by_block(p: ArticulatedPlan, inertias: jax.Array, s: jax.Array, d: jax.Array) -> _Swept:
  """Do the same as `_all_at_once`, one block of trees at a time through all depths: the carry then fits the innermost cache.

  The loops carry the arrays that `_all_at_once` stacks. Reverse mode would save these arrays in every iteration, so derivatives
  are those of `_all_at_once`.
  """
  (ndepth, width), size, zero = p.dof.shape, _rows_of_block(p), jnp.int32(0)
  masks, keeps_row = _from_children(p, s)
  trees = masks.shape[1] * size // width
  tables = jnp.asarray(p.carried_row.astype(np.int32)), s, d, _is_empty(p)

  def eliminate_depth(state, k):
    block, remaining, force, inv = state
    row = block * size

    def start(x):
      return k, row, *(zero,) * (x.ndim - 2)

    inertia_row, axis, diag, empty = (jax.lax.dynamic_slice(x, start(x), (1, size, *x.shape[2:]))[0] for x in tables)
    mask = jax.lax.dynamic_slice(masks, (k, block * trees, zero, zero), (1, trees, *masks.shape[2:]))[0]
    own = inertias.at[linear.materialize(inertia_row)].get(mode="promise_in_bounds")
    remaining, (u, d) = _eliminate(_at_parents(p, mask, keeps_row[k], remaining, own), axis, diag, empty)
    force, inv = (jax.lax.dynamic_update_slice(x, y[None], start(x)) for x, y in ((force, u), (inv, d)))
    return (block, remaining, force, inv), None

  def through(swept, block):
    none = jnp.zeros((size, *inertias.shape[1:]), inertias.dtype)
    depths = np.arange(ndepth, dtype=np.int32)
    (_, remaining, force, inv), _ = jax.lax.scan(eliminate_depth, (block, none, swept.force, swept.inv), depths, reverse=True)
    return _Swept(jax.lax.dynamic_update_slice_in_dim(swept.remaining, remaining, block * size, 0), force, inv), None

  nothing = _Swept(jnp.zeros((width, *inertias.shape[1:]), inertias.dtype), jnp.zeros_like(s), jnp.zeros_like(d))
  return jax.lax.scan(through, nothing, np.arange(width // size, dtype=np.int32))[0]


@_block_by_block.defjvp
def _block_by_block_jvp(p: ArticulatedPlan, primals: Any, tangents: Any) -> Any:
  return jax.jvp(functools.partial(_all_at_once, p), primals, tangents)


def _eliminate(body: jax.Array, axis: jax.Array, diag: jax.Array, empty: jax.Array) -> tuple[jax.Array, Any]:
  """Eliminate dofs from inertias (n, 21, W); return the remaining inertias, and U and 1/D of the dofs."""
  body = linear.materialize(body)
  u = linear.materialize(spatial.mul_packed(body, axis))
  inv = linear.materialize(1 / jnp.where(empty, 1, jnp.maximum(vector.dot(axis, u) + diag, safe.MINVAL)))
  return body - spatial.packed_square(u, inv), (u, inv)


def _is_empty(p: ArticulatedPlan) -> jax.Array:
  """Return a mask (ndepth, width, 1) of the rows without a dof."""
  return jnp.asarray((p.dof == len(p.position))[..., None])


def _rows_of_block(p: ArticulatedPlan) -> int:
  """Return the number of rows of a block in `_block_by_block`, which contains whole trees."""
  width, ntree = p.dof.shape[1], p.to_parent.shape[1]
  return max(n * width // ntree for n in range(1, ntree + 1) if ntree % n == 0 and (n == 1 or n * width // ntree <= _BLOCK))


def _factor_free(matrix: jax.Array) -> Free:
  """Factor and invert matrices (nfree, 6, 6, W) by the sweep operator, one row and column at a time.

  Source: Goodnight, A Tutorial on the SWEEP Operator, The American Statistician 33 (1979).
  """

  def sweep(a, k):
    here = (jnp.arange(6) == k)[:, None]
    row = jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False)
    inv = 1 / jnp.maximum(jax.lax.dynamic_index_in_dim(row, k, 1, keepdims=False), safe.MINVAL)
    side, scaled = jnp.where(here, -1, row), row * inv[:, None]
    return jnp.where(here[:, None] | here, 0, a) - side[:, :, None] * (side * inv[:, None])[:, None], (scaled, inv)

  def two(a, k):  # two sweeps per iteration: one alone cannot overwrite the matrix that it reads, so XLA would copy it
    a, second = sweep(a, k + 1)
    a, first = sweep(linear.materialize(a), k)
    return a, jax.tree.map(lambda *x: jnp.stack(x), first, second)

  swept, rest = jax.lax.scan(two, matrix, jnp.arange(0, 6, 2), reverse=True)
  return Free(-swept, *(x.reshape(6, *x.shape[2:]) for x in rest))


class Half(NamedTuple):
  """Forces after the first half of a solve with L'DL, up the tree: L'^-1 x."""

  rest: jax.Array  # (ndepth, width, W) by depth, divided by D
  free: jax.Array  # (nfree, 6, W) of free joints, not divided by D


def solve(m: Model, f: Factor, x: jax.Array) -> jax.Array:
  """Solve with the factor for x (nv, W): forces up the tree, then accelerations down the tree."""
  return down(m, f, up(m, f, x)) if m.nv else x


def up(m: Model, f: Factor, x: jax.Array) -> Half:
  """Compute the first half of `solve`."""
  p = m.plan.articulated

  def step(pull, a):
    axis, force, inv, mask, keeps_row, u = a
    pull = _at_parents(p, mask, keeps_row, pull)
    rest = linear.materialize((u - vector.dot(axis, pull)) * inv)
    return pull + force * rest[:, None], rest

  none = jnp.zeros(f.force.shape[1:], f.force.dtype)
  pull, rest = jax.lax.scan(step, none, (f.cdof, f.force, f.inv, *_from_children(p, x), _by_depth(p, x)), reverse=True)
  free = rows(x, p.free)
  return Half(rest, free - vector.dot(f.free_cdof, mask_sum(p.free_row, pull)[:, None]) if f.free is not None else free)


def down(m: Model, f: Factor, half: Half) -> jax.Array:
  """Compute the second half of `solve`."""
  p = m.plan.articulated

  def step(acc, a):
    axis, force, inv, parent, keeps_row, rest = a
    carried = acc if p.keeps_row.all() else _unless(keeps_row, functools.partial(_gathered, parent), acc)
    acc_dof = linear.materialize(rest - vector.dot(force, carried) * inv)
    return carried + axis * acc_dof[:, None], acc_dof

  free, motion = free_motion(f, half.free)
  acc = rows_or_zero(motion, p.on_free)
  _, out = jax.lax.scan(step, acc, (f.cdof, f.force, f.inv, jnp.asarray(p.parent), jnp.asarray(p.keeps_row), half.rest))
  return _by_dof(p, out, free)


def free_motion(f: Factor, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the accelerations of the free joints' dofs and the motions of their bodies, both (nfree, 6, W), for forces x."""
  if f.free is None:
    return x, x
  acc = vector.add(f.free.inverse[:, i] * x[:, i, None] for i in range(6))  # the inverse is symmetric
  return acc, vector.add(f.free_cdof[:, i] * acc[:, i, None] for i in range(6))


class Path(NamedTuple):
  """Path of wrenches on n bodies, k on each, up the tree: nonzero entries of L'^-1 x, with x the wrenches' joint forces."""

  position: jax.Array  # (ndepth, n, W) depth * width + row of the dof that moves the body; arbitrary if there is none
  pull: jax.Array  # (ndepth, n, k, W) entry of this dof, zero if there is none
  rest: jax.Array  # pull divided by D
  joint: jax.Array  # (n, W) free joint that moves the body; arbitrary if there is none
  wrench: jax.Array  # (n, k, 6, W) wrench that reaches the free joint's body, zero if there is none


def path_up(m: Model, f: Factor, body: jax.Array, wrench: jax.Array) -> Path:
  """Compute the path of wrenches (n, k, 6, W) on bodies (n, W) to their roots."""
  p = m.plan.articulated

  def step(remaining, a):
    axis, force, inv, table, first = a
    position = gather(table[:, None], body)
    moves = position >= 0
    position = linear.materialize(jnp.where(moves, position, first))
    row = linear.materialize(position - first)
    pull = linear.materialize(jnp.where(moves[:, None], vector.dot(gather(axis, row)[:, None], remaining), 0))
    rest = linear.materialize(pull * gather(inv, row)[:, None])
    return remaining - gather(force, row)[:, None] * rest[:, :, None], (position, pull, rest)

  ndepth, width = p.dof.shape
  tables = jnp.asarray(p.path.astype(np.int32)), jnp.asarray(np.arange(ndepth, dtype=np.int32) * width)
  if ndepth:
    remaining, (position, pull, rest) = jax.lax.scan(step, wrench, (f.cdof, f.force, f.inv, *tables), reverse=True)
  else:
    remaining, position, rest = wrench, jnp.zeros((0, *body.shape), body.dtype), jnp.zeros_like(wrench[None, :, :, 0])[:0]
    pull = rest
  joint = gather(p.base.astype(np.int32)[:, None], body)
  return Path(position, pull, rest, jnp.maximum(joint, 0), jnp.where((joint >= 0)[:, None, None], remaining, 0))


class Packed(NamedTuple):
  """MuJoCo's packed factor M = L' D L."""

  qLD: jax.Array
  qLDiagInv: jax.Array


def packed(m: Model, f: Factor, cdof: jax.Array) -> Packed:
  """Return the factor in MuJoCo's form: L below the diagonal, D on the diagonal. Source: `mj_factorM`."""
  p, i = m.plan.articulated, m.plan.inertia
  free, free_inv = _packed_free(f)
  inv = _by_dof(p, f.inv, free_inv)
  is_free = np.isin(i.row, p.free)
  row, col = i.row[~is_free], i.col[~is_free]
  force = rows(f.force.reshape(-1, *f.force.shape[2:]), p.position[row])
  entry = vector.dot(force, rows(cdof, col)) * rows(inv, row)
  entry = jnp.where((row == col)[:, None], 1 / rows(inv, row), entry)
  if f.free is None:
    return Packed(entry, inv)
  row, col = (p.position[k[is_free]] - p.dof.size for k in (i.row, i.col))  # six per joint
  entry = jnp.concatenate([entry, rows(free, 6 * row + col % 6)])
  return Packed(rows(entry, np.argsort(np.argsort(is_free, kind="stable"))), inv)


def _packed_free(f: Factor) -> tuple[jax.Array, jax.Array]:
  """Return L of the free joints' dofs with D on its diagonal (nfree * 36, W), and 1/D (nfree, 6, W)."""
  if f.free is None:
    return f.free_cdof, f.free_cdof[..., 0, :]
  lower, inv = jnp.swapaxes(f.free.lower, 0, 1), jnp.swapaxes(f.free.inv, 0, 1)
  entry = jnp.where(_DIAGONAL, 1 / inv[:, None], lower)
  return entry.reshape(-1, entry.shape[-1]), inv
