"""Sums over groups of rows of unequal size: per tendon over its segments, per dof over the tendons that pull on it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core.select import rows

_DENSE = 4096  # up to this many entries a product with a 0/1 matrix is cheaper than a padded gather


class GroupPlan(NamedTuple):
  """Rows of each group."""

  index: np.ndarray  # (ngroup, longest) row, nrow where there is none
  nrow: int


def plan_groups(group: np.ndarray, ngroup: int) -> GroupPlan:
  """Table of the rows of each group.

  Args:
    group: (nrow,) group of each row.
    ngroup: number of groups.
  """
  group = np.asarray(group, int)
  members = [np.flatnonzero(group == g) for g in range(ngroup)]
  index = np.full((ngroup, max((len(x) for x in members), default=0)), len(group))
  for g, x in enumerate(members):
    index[g, : len(x)] = x
  return GroupPlan(index, len(group))


def group_sum(plan: GroupPlan, x: jax.Array) -> jax.Array:
  """Sum (ngroup, ..., W) of the rows of x (nrow, ..., W) in each group."""
  ngroup, longest = plan.index.shape
  if longest == 1 and (plan.index < plan.nrow).all():
    return rows(x, plan.index[:, 0])
  rest = x.shape[1:]
  if ngroup * plan.nrow <= _DENSE:
    mask = (plan.index[:, :, None] == np.arange(plan.nrow)).any(axis=1)
    flat = x.reshape(plan.nrow, math.prod(rest))
    return jax.lax.dot(mask.astype(x.dtype), flat, precision=jax.lax.Precision.HIGHEST).reshape(ngroup, *rest)
  return jnp.sum(rows(jnp.concatenate([x, jnp.zeros_like(x[:1])]), plan.index), axis=1)
