"""Articulated-body factor and solve: (M + diag(d) + sum_b J_b' K_b J_b)^-1 without forming a matrix.

With spatial vectors about one point per tree the classical recursion (Featherstone, Rigid Body Dynamics Algorithms,
section 7.3) needs no change of frame. Dof by dof, from the leaves:

  U = I s,  D = s.U + d,  I <- I - U U'/D,  I_parent += I

where I, kept packed, starts as the inertia (plus a stiffness K, 6x6) of the bodies that hang on the dof. This is the sparse
factorisation M = L' D L with L[i, j] = U_i.s_j / D_i for every ancestor j of i.

The dofs of one depth are done together, and a loop runs over the depths, each padded with empty dofs to the widest: the
program has a handful of kernels however deep the tree is. Arrays in this form are (depth, row, ..., W).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.select import rows, rows_or_zero
from mjx_lite.core.types import Model
from mjx_lite.math import safe, spatial, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum


class ArticulatedPlan(NamedTuple):
  """Index tables, root first."""

  hang: SumPlan  # dofs that bodies hang on, and on no later dof <- these bodies
  hung: np.ndarray  # (ndepth, width) row of that sum, -1 where no body hangs
  dof: np.ndarray  # (ndepth, width) dof, nv where there is none
  to_parent: np.ndarray  # (ndepth, width, width) 1 at (row of the parent one depth above, row)
  place: np.ndarray  # (nv,) dof -> depth * width + row


class Factor(NamedTuple):
  """Factor of an articulated inertia, by depth."""

  cdof: jax.Array  # (ndepth, width, 6, W)
  force: jax.Array  # U (ndepth, width, 6, W)
  inv: jax.Array  # 1/D (ndepth, width, W)


def plan(s: dict[str, Any]) -> ArticulatedPlan:
  """Index tables from the static fields of the model."""
  nv, nbody, parent = s["nv"], s["nbody"], s["dof_parentid"]
  last = np.full(nbody, -1)
  for b in range(1, nbody):
    n = s["body_dofnum"][b]
    last[b] = s["body_dofadr"][b] + n - 1 if n else last[s["body_parentid"][b]]
  hang = np.zeros((nv, nbody))
  hang[last[last >= 0], np.flatnonzero(last >= 0)] = 1
  bears = hang.any(axis=1)

  depth = np.zeros(nv, int)
  for v in range(nv):
    depth[v] = depth[parent[v]] + 1 if parent[v] >= 0 else 0
  ndepth = depth.max(initial=-1) + 1
  width = np.bincount(depth, minlength=1).max(initial=0)
  dof, row = np.full((ndepth, width), nv), np.zeros(nv, int)
  to_parent = np.zeros((ndepth, width, width))
  for k in range(ndepth):
    members = np.flatnonzero(depth == k)
    dof[k, : len(members)] = members
    row[members] = np.arange(len(members))
    if k:
      to_parent[k, row[parent[members]], row[members]] = 1
  hung = np.append(np.where(bears, np.cumsum(bears) - 1, -1), -1)[dof]
  return ArticulatedPlan(plan_sum(hang[bears]), hung, dof, to_parent, depth * width + row)


def _by_depth(p: ArticulatedPlan, x: jax.Array) -> jax.Array:
  """Dof array (nv, ..., W) by depth, empty dofs zero."""
  return rows(jnp.concatenate([x, jnp.zeros_like(x[:1])]), p.dof)


def _by_dof(p: ArticulatedPlan, x: jax.Array) -> jax.Array:
  """Array by depth as a dof array."""
  return rows(x.reshape(-1, *x.shape[2:]), p.place)


def _sum_rows(mask: jax.Array, x: jax.Array) -> jax.Array:
  """Matrix (n, n) times the rows of x (n, ..., W)."""
  return vector.combine_rows(mask, x)


def _from_children(p: ArticulatedPlan, like: jax.Array) -> jax.Array:
  """Masks of the depth below: 1 at (row, row of the child)."""
  return jnp.asarray(np.roll(p.to_parent, -1, axis=0), like.dtype)


def factor(m: Model, cinert: jax.Array, cdof: jax.Array, diagonal: jax.Array, stiffness: jax.Array | None = None) -> Factor:
  """Factor M + diag + stiffness.

  What each depth hands on is summed at the parents when their turn comes, not before: a product with the masks reads what
  the loop carries. One that follows its operand at once has XLA compute the operand in the product's flat shape, an
  index at a time and five times slower.

  Args:
    cinert: (nbody, 10, W) spatial inertia about the tree's centre of mass.
    cdof: (nv, 6, W).
    diagonal: (nv, W) armature and what else is on the diagonal.
    stiffness: (nbody, 21, W) packed, of the contacts, about the same point.
  """
  p: ArticulatedPlan = m.plan.articulated
  s, d = _by_depth(p, cdof), _by_depth(p, diagonal)
  if not m.nv:
    return Factor(s, s, d)
  own = spatial.packed_inertia(mask_sum(p.hang, cinert))
  if stiffness is not None:
    own = own + mask_sum(p.hang, stiffness)
  own = rows_or_zero(own, p.hung)

  def up(left, x):
    body, axis, diag, mask, empty = x
    body = body + _sum_rows(mask, left)
    u = spatial.mul_packed(body, axis)
    inv = 1 / jnp.where(empty, 1, jnp.maximum(vector.dot(axis, u) + diag, safe.MINVAL))
    return body - spatial.packed_square(u, inv), (u, inv)

  empty = (p.dof == m.nv)[..., None]
  _, (force, inv) = jax.lax.scan(up, jnp.zeros_like(own[0]), (own, s, d, _from_children(p, cdof), empty), reverse=True)
  return Factor(s, force, inv)


def solve(m: Model, f: Factor, x: jax.Array) -> jax.Array:
  """Solve with the factor for x (nv, W): forces up the tree, accelerations down it."""
  p: ArticulatedPlan = m.plan.articulated
  if not m.nv:
    return x
  def up(pull, a):
    axis, force, inv, mask, u = a
    pull = _sum_rows(mask, pull)
    rest = (u - vector.dot(axis, pull)) * inv
    return pull + force * rest[:, None], rest

  none, parent = jnp.zeros_like(f.force[0]), p.to_parent.argmax(axis=1)  # any row where there is no parent
  _, rest = jax.lax.scan(up, none, (f.cdof, f.force, f.inv, _from_children(p, x), _by_depth(p, x)), reverse=True)

  def down(acc, a):
    axis, force, inv, parent, rest = a
    carried = acc.at[parent].get(mode="promise_in_bounds")
    acc_dof = rest - vector.dot(force, carried) * inv
    return carried + axis * acc_dof[:, None], acc_dof

  _, out = jax.lax.scan(down, none, (f.cdof, f.force, f.inv, jnp.asarray(parent.astype(np.int32)), rest))
  return _by_dof(p, out)


class Packed(NamedTuple):
  """MuJoCo's packed factor M = L' D L."""

  qLD: jax.Array
  qLDiagInv: jax.Array


def packed(m: Model, f: Factor, cdof: jax.Array) -> Packed:
  """The factor as MuJoCo stores it: L below the diagonal, D on it. Source: `mj_factorM`."""
  p, i = m.plan.articulated, m.plan.inertia
  force, inv = _by_dof(p, f.force), _by_dof(p, f.inv)
  off = vector.dot(rows(force, i.row), rows(cdof, i.col)) * rows(inv, i.row)
  return Packed(jnp.where(i.diagonal[:, None], 1 / rows(inv, i.row), off), inv)
