"""A small number of contacts between moving bodies, as a low-rank update of the articulated operator.

With A the operator without these contacts and C their rows, scaled by a root of the curvature,

  (A + C'C)^-1 = A^-1 - A^-1 C' (1 + C A^-1 C')^-1 C A^-1   (Woodbury).

A = L'DL, and C L^-1 is nonzero only on the paths from the contacts' bodies to their roots (`articulated.path_up`). The small
matrix 1 + C A^-1 C' is made of products of these paths; the fewer contacts, the smaller it is. A solve passes up and down the
tree once. The condition number of the small matrix is at most the ratio by which contacts are stiffer than their bodies.
MuJoCo's impedance, which is below one, bounds that ratio.

Source: Featherstone, Exploiting sparsity in operational-space dynamics, Int. J. Robotics Research 29 (2010).

Tests: tests/solver/test_coupled.py.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import Jacobian
from mjx_lite.math import extreme, vector
from mjx_lite.model.types import Model
from mjx_lite.ops import linear
from mjx_lite.ops.select import gather
from mjx_lite.smooth import articulated
from mjx_lite.smooth.articulated import Factor, Half, Path

_ROWS = 24  # at most, of the small matrix


class Chosen(NamedTuple):
  """The first contacts between moving bodies; none if some world has many more of them.

  If some world has many more, the whole tile waits for its conjugate gradients, so the low-rank update would save nothing.
  """

  slot: jax.Array  # (k, W) chosen slots, ncon where a world has fewer than k
  number: jax.Array  # () largest number of chosen contacts in a world; 0 if none are chosen
  among: jax.Array  # (ncon, W) whether a slot is chosen
  unchosen: jax.Array  # (ncon, W) contacts between moving bodies that are not chosen


class Update(NamedTuple):
  """Low-rank update of a factor by the chosen contacts."""

  number: jax.Array  # () as in `Chosen`
  path: Path  # (k, ...) paths of the scaled rows on both bodies up the tree
  response: jax.Array  # (nfree, 6, 6, W) motion of the free joints' bodies per unit wrench
  inverse: jax.Array  # (k * ndir, k * ndir, W) inverse of the small matrix


def choose(m: Model, j: Jacobian, a: jax.Array) -> Chosen:
  """Choose among the contacts that push, by their curvature a (ncon, ndir, ndir, W)."""
  c = m.plan.contact
  size, index = max(1, _ROWS // c.ndir), np.arange(c.ncon, dtype=np.int32)[:, None]
  couples = between(m, j, a)
  count = vector.total(couples.astype(a.dtype))
  fits = linear.materialize(jnp.all(count <= 2 * size))
  candidates = couples & fits
  number = jnp.where(fits, jnp.max(jnp.minimum(count, size)), 0).astype(jnp.int32)
  slot = extreme.true_rows(candidates, size, number)
  among = candidates & (index <= slot[-1])
  return Chosen(slot, number, among, linear.materialize(couples & ~among))


def between(m: Model, j: Jacobian, a: jax.Array) -> jax.Array:
  """Return the mask (ncon, W) of the contacts between moving bodies that push, from their curvature."""
  c = m.plan.contact
  moves = c.sides.are_moving(j.body, a.dtype)
  return linear.materialize((moves[: c.ncon] * moves[c.ncon :] > 0) & (a[:, 0, 0] > 0))


def factor(m: Model, f: Factor, j: Jacobian, a: jax.Array, chosen: Chosen) -> Update:
  """Compute the low-rank update of the factor f by the chosen contacts; a is their curvature."""
  c, bodies = m.plan.contact, cast(jax.Array, j.body)
  size, nfree, width = len(chosen.slot), len(f.free_cdof), a.shape[-1]
  response = jax.lax.cond(chosen.number > 0, lambda: _response(f), lambda: jnp.zeros((nfree, 6, 6, width), a.dtype))

  def add(state):
    k, paths, matrix = state
    slot = chosen.slot[k][None]
    exists, slot = slot < c.ncon, linear.materialize(jnp.minimum(slot, c.ncon - 1))
    side = jnp.concatenate([slot, slot + c.ncon])
    basis, body = gather(j.basis, side), linear.materialize(gather(bodies, side))
    root = _root(jnp.where(exists[0], gather(a, slot)[0], 0))
    sign = np.array([-1, 1]).reshape(2, 1, 1, 1).astype(a.dtype)
    wrench = sign * vector.add(root[i][:, None] * basis[:, i, None] for i in range(c.ndir))
    path = linear.materialize(articulated.path_up(m, f, body, linear.materialize(wrench)))
    paths = jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y[None], k, 0), paths, path)
    motion = linear.materialize(_moved(response, path))

    def product(state):
      i, matrix = state
      block = _product(path, motion, _at(paths, i)) + jnp.where(i == k, np.eye(c.ndir, dtype=a.dtype)[..., None], 0)
      block = linear.materialize(block)
      matrix = jax.lax.dynamic_update_slice(matrix, block, (k * c.ndir, i * c.ndir, jnp.int32(0)))
      return i + 1, jax.lax.dynamic_update_slice(matrix, jnp.swapaxes(block, 0, 1), (i * c.ndir, k * c.ndir, jnp.int32(0)))

    _, matrix = jax.lax.while_loop(lambda s: s[0] <= k, product, (jnp.int32(0), matrix))
    return k + 1, paths, matrix

  like = jax.eval_shape(lambda: articulated.path_up(m, f, bodies[:2], jnp.zeros((2, c.ndir, 6, width), a.dtype)))
  none = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), like)
  eye = jnp.broadcast_to(jnp.eye(size * c.ndir, dtype=a.dtype)[..., None], (size * c.ndir, size * c.ndir, width))
  _, paths, matrix = jax.lax.while_loop(lambda s: s[0] < chosen.number, add, (jnp.int32(0), none, eye))
  return Update(chosen.number, paths, response, _inverse(matrix, chosen.number, c.ndir))


def solve(m: Model, f: Factor, update: Update, x: jax.Array) -> jax.Array:
  """Solve for x (nv, W) with the factor f and its low-rank update."""
  half = articulated.up(m, f, x)
  return articulated.down(m, f, jax.lax.cond(update.number > 0, lambda: _corrected(m, f, update, half), lambda: half))


def _corrected(m: Model, f: Factor, update: Update, half: Half) -> Half:
  """Correct the result of the upward pass for the forces of the chosen contacts."""
  ndir, width = update.path.pull.shape[-2:]
  flat = half.rest.reshape(-1, half.rest.shape[-1])
  motion = articulated.free_motion(f, half.free)[1]

  def project(state):
    k, projected = state
    path = _at(update.path, k)
    value = jnp.zeros((ndir, width), flat.dtype)
    if len(flat):
      rest = gather(flat, path.position.reshape(-1, width)).reshape(path.position.shape)
      value = vector.total((path.pull * rest[:, :, None]).reshape(-1, ndir, width))
    if f.free is not None:
      value = value + vector.total(vector.dot(path.wrench, gather(motion, path.joint)[:, None]))
    return k + 1, jax.lax.dynamic_update_slice_in_dim(projected, linear.materialize(value)[None], k, 0)

  projected = jnp.zeros((len(update.path.pull), ndir, width), flat.dtype)
  _, projected = jax.lax.while_loop(lambda s: s[0] < update.number, project, (jnp.int32(0), projected))
  force = linear.materialize(vector.mat_vec(update.inverse, projected.reshape(-1, width))).reshape(projected.shape)
  index = np.arange(half.rest.shape[0] * half.rest.shape[1], dtype=np.int32).reshape(*half.rest.shape[:2], 1)
  joint = np.arange(len(half.free), dtype=np.int32)[:, None]

  def apply(state):
    k, rest, wrench = state
    path, slot_force = _at((update.path, force), k)
    reaction = linear.materialize(vector.dot(path.rest, slot_force))
    for side in range(2):
      rest = rest - jnp.where(index == path.position[:, None, side], reaction[:, None, side], 0)
    if f.free is not None:
      total = linear.materialize(vector.add(path.wrench[:, i] * slot_force[i] for i in range(ndir)))
      for side in range(2):
        wrench = wrench + jnp.where((joint == path.joint[side])[:, None], total[side], 0)
    return k + 1, rest, wrench

  start = jnp.int32(0), half.rest, jnp.zeros_like(half.free)
  _, rest, wrench = jax.lax.while_loop(lambda s: s[0] < update.number, apply, start)
  return Half(rest, half.free - vector.dot(f.free_cdof, wrench[:, None]) if f.free is not None else half.free)


def _at(x: Any, k: jax.Array) -> Any:
  """Return the pytree x at index k of the first axis."""
  return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, k, keepdims=False), x)


def _response(f: Factor) -> jax.Array:
  """Compute the motion (nfree, 6, 6, W) of the free joints' bodies per unit wrench on each body."""
  if f.free is None:
    return f.free_cdof
  half = linear.materialize(vector.mat_mat(f.free.inverse, f.free_cdof))
  return vector.mat_mat(vector.transpose(f.free_cdof), half)


def _moved(response: jax.Array, path: Path) -> jax.Array:
  """Compute the motion (2, ndir, 6, W) of the free joints' bodies under the wrenches that reach these bodies."""
  if not len(response):
    return path.wrench
  return vector.mat_vec(gather(response, path.joint)[:, None], path.wrench)


def _product(path: Path, motion: jax.Array, path2: Path) -> jax.Array:
  """Compute the block (ndir, ndir, W) of C A^-1 C' for two contacts: a sum over the part of the tree that both paths share."""
  ndir, width = path.pull.shape[-2:]
  out = vector.add(
    jnp.where((path.position == path2.position[:, side, None])[:, :, None], path2.rest[:, side, None], 0) for side in range(2)
  )
  terms = (path.pull[..., :, None, :] * linear.materialize(out)[..., None, :, :]).reshape(-1, ndir * ndir, width)
  total = vector.total(terms) if len(terms) else jnp.zeros((ndir * ndir, width), path.pull.dtype)
  if motion.size:
    for i in range(2):
      same = (path.joint[i] == path2.joint).astype(motion.dtype)
      shared = linear.materialize(vector.add(same[k] * path2.wrench[k] for k in range(2)))
      total = total + vector.dot(motion[i][:, None], shared[None]).reshape(ndir * ndir, width)
  return total.reshape(ndir, ndir, width)


def _root(a: jax.Array) -> list[jax.Array]:
  """Compute the rows (ndir, W) of R with R R' = a, for positive semidefinite a (ndir, ndir, W).

  Pivots at the level of round-off count as zero.
  """
  n, least = len(a), 8 * jnp.finfo(a.dtype).eps
  remainder = [[a[i, k] for k in range(n)] for i in range(n)]
  columns = []
  for k in range(n):
    positive = remainder[k][k] > least * a[k, k]
    scale = jnp.where(positive, jax.lax.rsqrt(jnp.where(positive, remainder[k][k], 1)), 0)
    column = [remainder[i][k] * scale if i >= k else jnp.zeros_like(scale) for i in range(n)]
    for i in range(k + 1, n):
      for j in range(k + 1, i + 1):
        remainder[i][j] = remainder[i][j] - column[i] * column[j]
    columns.append(column)
  return [linear.materialize(jnp.stack([columns[k][i] for k in range(n)])) for i in range(n)]


def _inverse(a: jax.Array, number: jax.Array, size: int) -> jax.Array:
  """Invert the first `size * number` rows and columns of positive definite matrices (n, n, W).

  All other rows and columns of `a` are those of the identity. The method is the sweep of `articulated` for the dofs of free
  joints, but in blocks of `size` rows and without L; the number of blocks, `number`, is known at run time only.
  Source: Goodnight, A Tutorial on the SWEEP Operator, The American Statistician 33 (1979).
  """
  index, within = np.arange(len(a), dtype=np.int32)[:, None], np.arange(size, dtype=np.int32)[:, None, None]

  def sweep(state):
    k, a = state
    first = k * size
    here = (index >= first) & (index < first + size)
    row = linear.materialize(jax.lax.dynamic_slice_in_dim(a, first, size))
    inverse = _small_inverse(jax.lax.dynamic_slice_in_dim(row, first, size, 1))
    side = linear.materialize(jnp.where(here, -(index == first + within).astype(a.dtype), row))
    scaled = linear.materialize(vector.add(inverse[:, i, None] * side[i] for i in range(size)))
    return k + 1, jnp.where(here[:, None] | here, 0, a) - vector.add(side[i][:, None] * scaled[i] for i in range(size))

  _, swept = jax.lax.while_loop(lambda s: s[0] < number, sweep, (jnp.int32(0), a))
  return -swept


def _small_inverse(a: jax.Array) -> jax.Array:
  """Invert positive definite matrices (n, n, W) by sweeping row by row."""
  for k in range(len(a)):
    here = np.arange(len(a))[:, None] == k
    side = jnp.where(here, -1, a[k])
    a = linear.materialize(jnp.where(here[:, None] | here, 0, a) - side[:, None] * (side / a[k, k]))
  return -a
