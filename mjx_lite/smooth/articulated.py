"""Articulated-body factor and solve: (M + diag(d) + sum_b J_b' K_b J_b)^-1 without forming a matrix.

With spatial vectors about one point per tree the classical recursion (Featherstone, Rigid Body Dynamics Algorithms,
section 7.3) needs no change of frame. Dof by dof, from the leaves:

  U = I s,  D = s.U + d,  I <- I - U U'/D,  I_parent += I

where I starts as the inertia (plus a stiffness K, 6x6) of the bodies that hang on the dof. This is the sparse
factorisation M = L' D L with L[i, j] = U_i.s_j / D_i for every ancestor j of i. The dofs of one depth are done together.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.select import join, rows
from mjx_lite.core.types import Model
from mjx_lite.math import safe, vector
from mjx_lite.math.tree import SumPlan, mask_sum, plan_sum


class Depth(NamedTuple):
  """Dofs at one depth of the dof tree."""

  dof: np.ndarray
  parent: np.ndarray  # row of the parent in the depth above (all zero at depth 0)
  to_parent: SumPlan  # depth above <- this depth


class ArticulatedPlan(NamedTuple):
  """Index tables, root first."""

  own_body: SumPlan  # dof <- bodies that hang on it and on no later dof
  depths: tuple[Depth, ...]
  order: np.ndarray  # dof -> row in the concatenation of the depths


class Factor(NamedTuple):
  """Factor of an articulated inertia, in the order of the depths (lists, root first)."""

  cdof: list[jax.Array]  # (n, 6, W)
  force: list[jax.Array]  # U (n, 6, W)
  inv: list[jax.Array]  # 1/D (n, W)


def plan(s: dict[str, Any]) -> ArticulatedPlan:
  """Index tables from the static fields of the model."""
  nv, nbody, parent = s["nv"], s["nbody"], s["dof_parentid"]
  last = np.full(nbody, -1)
  for b in range(1, nbody):
    n = s["body_dofnum"][b]
    last[b] = s["body_dofadr"][b] + n - 1 if n else last[s["body_parentid"][b]]
  own = np.zeros((nv, nbody))
  own[last[last >= 0], np.flatnonzero(last >= 0)] = 1

  depth = np.zeros(nv, int)
  for v in range(nv):
    depth[v] = depth[parent[v]] + 1 if parent[v] >= 0 else 0
  depths, above = [], np.array([-1])
  for k in range(depth.max(initial=-1) + 1):
    dofs = np.flatnonzero(depth == k)
    position = {int(v): i for i, v in enumerate(above)}
    row = np.array([position[int(parent[v])] if k else 0 for v in dofs], int)
    to_parent = np.zeros((len(above), len(dofs)))
    to_parent[row, np.arange(len(dofs))] = 1
    depths.append(Depth(dofs, row, plan_sum(to_parent)))
    above = dofs
  order = np.zeros(nv, int)
  if nv:
    order[np.concatenate([d.dof for d in depths])] = np.arange(nv)
  return ArticulatedPlan(plan_sum(own), tuple(depths), order)


def factor(m: Model, inertia: jax.Array, cdof: jax.Array, diagonal: jax.Array) -> Factor:
  """Factor M + diag + stiffness.

  Args:
    inertia: (nbody, 6, 6, W) spatial inertia, contact stiffness included, about the tree's centre of mass.
    cdof: (nv, 6, W).
    diagonal: (nv, W) armature and what else is on the diagonal.
  """
  p: ArticulatedPlan = m.plan.articulated
  own = mask_sum(p.own_body, inertia)
  axes, forces, invs = [], [], []
  below = None
  for k in range(len(p.depths) - 1, -1, -1):
    depth = p.depths[k]
    body = rows(own, depth.dof)
    if below is not None:
      body = body + below
    s = rows(cdof, depth.dof)
    u = jnp.sum(body * s[:, None], axis=-2)
    inv = 1 / jnp.maximum(vector.dot(s, u) + rows(diagonal, depth.dof), safe.MINVAL)
    axes.append(s)
    forces.append(u)
    invs.append(inv)
    if k:
      below = mask_sum(depth.to_parent, body - u[:, :, None] * (u * inv[:, None])[:, None])
  return Factor(axes[::-1], forces[::-1], invs[::-1])


def solve(m: Model, f: Factor, x: jax.Array) -> jax.Array:
  """Solve with the factor for x (nv, W): forces up the tree, accelerations down it."""
  p: ArticulatedPlan = m.plan.articulated
  rest: list[jax.Array] = [x] * len(p.depths)
  pull = None
  for k in range(len(p.depths) - 1, -1, -1):
    depth = p.depths[k]
    u = rows(x, depth.dof)
    if pull is not None:
      u = u - vector.dot(f.cdof[k], pull)
    rest[k] = u * f.inv[k]
    if k:
      push = f.force[k] * rest[k][:, None]
      pull = mask_sum(depth.to_parent, push if pull is None else pull + push)
  acc, out = None, []
  for k, depth in enumerate(p.depths):
    a = rest[k]
    if acc is not None:
      carried = rows(acc, depth.parent)
      a = a - vector.dot(f.force[k], carried) * f.inv[k]
      acc = carried + f.cdof[k] * a[:, None]
    else:
      acc = f.cdof[k] * a[:, None]
    out.append(a)
  return join(out, p.order) if out else x


class Packed(NamedTuple):
  """MuJoCo's packed factor M = L' D L."""

  qLD: jax.Array
  qLDiagInv: jax.Array


def packed(m: Model, f: Factor, cdof: jax.Array) -> Packed:
  """The factor as MuJoCo stores it: L below the diagonal, D on it. Source: `mj_factorM`."""
  p, i = m.plan.articulated, m.plan.inertia
  if not m.nv:
    return Packed(cdof[:, 0], cdof[:, 0])
  force, inv = join(f.force, p.order), join(f.inv, p.order)
  off = vector.dot(rows(force, i.row), rows(cdof, i.col)) * rows(inv, i.row)
  return Packed(jnp.where(i.diagonal[:, None], 1 / rows(inv, i.row), off), inv)
