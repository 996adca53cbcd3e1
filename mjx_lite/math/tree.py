"""Sums over ancestors and descendants as products with a constant 0/1 matrix.

With spatial quantities written about one point per tree, velocities, composite inertias and bias forces are plain sums
along the tree; with the world axis last such a sum is one matrix product.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector

_ONE_BLOCK = 48  # up to this many columns one product is cheaper than several


class SumPlan(NamedTuple):
  """A sparse constant matrix as blocks of consecutive rows: (row range, column range, dense block)."""

  shape: tuple[int, int]
  blocks: tuple[tuple[int, int, int, int, np.ndarray], ...]


def plan_sum(mask: np.ndarray) -> SumPlan:
  """Cut a matrix into blocks of consecutive rows with a common column range, one per kinematic tree where it has several."""
  mask = np.asarray(mask, np.float64)
  nrow, ncol = mask.shape
  if ncol <= _ONE_BLOCK:
    return SumPlan((nrow, ncol), ((0, nrow, 0, ncol, mask),) if nrow and ncol else ((0, nrow, 0, 0, mask[:, :0]),))
  span = []
  for r in range(nrow):
    nz = np.flatnonzero(mask[r])
    span.append((int(nz[0]), int(nz[-1]) + 1) if len(nz) else (0, 0))
  blocks: list[list[int]] = []
  for r, (lo, hi) in enumerate(span):
    if blocks:
      _, _, blo, bhi = blocks[-1]
      merged = (lo, hi) if blo == bhi else (blo, bhi) if lo == hi else (min(lo, blo), max(hi, bhi))
      if lo == hi or blo == bhi or (lo < bhi and blo < hi):
        blocks[-1] = [blocks[-1][0], r + 1, *merged]
        continue
    blocks.append([r, r + 1, lo, hi])
  return SumPlan((nrow, ncol), tuple((a, b, lo, hi, mask[a:b, lo:hi]) for a, b, lo, hi in blocks))


def dense(plan: SumPlan) -> np.ndarray:
  """The matrix itself."""
  full = np.zeros(plan.shape)
  for a, b, lo, hi, block in plan.blocks:
    full[a:b, lo:hi] = block
  return full


def transpose(plan: SumPlan) -> SumPlan:
  """The plan of the transposed matrix."""
  return plan_sum(dense(plan).T)


def mask_sum(plan: SumPlan, x: jax.Array) -> jax.Array:
  """Constant matrix (n, k) times x (k, ..., W): for each row the sum of the entries that it selects."""
  parts = []
  for a, b, lo, hi, block in plan.blocks:
    if lo == hi:
      parts.append(jnp.zeros((b - a, *x.shape[1:]), x.dtype))
    elif block.shape == (1, 1) and block[0, 0] == 1:
      parts.append(x[lo:hi])
    else:
      parts.append(vector.combine_rows(jnp.asarray(block, x.dtype), x[lo:hi]))
  return jnp.concatenate(parts) if len(parts) > 1 else parts[0] if parts else x[:0]
