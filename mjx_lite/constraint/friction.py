"""Dry friction of dofs and tendons: one row each.

Tests: tests/solver/test_soft.py.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import RowParams
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows


def plan_dof(s: dict[str, Any], present: bool) -> np.ndarray:
  """Return the dofs with a friction row."""
  return np.arange(s["nv"] if present else 0)


def plan_tendon(movable: np.ndarray, present: bool) -> np.ndarray:
  """Return the tendons with a friction row: the tendons whose length can change."""
  return movable if present else np.zeros(0, int)


def rows_dof(m: Model, dofs: np.ndarray) -> RowParams:
  """Build the friction rows of dofs; a dof without friction has an inactive row. Source: `mj_instantiateFriction`."""
  n = len(dofs)
  zero = jnp.zeros((n, 1), m.dof_frictionloss.dtype)
  return RowParams(
    active=m.dof_frictionloss[:n] > 0, pos=zero, violation=zero, margin=zero, diag=m.dof_invweight0[:n], scale=zero + 1,
    solref=m.dof_solref[:n], solimp=m.dof_solimp[:n], frictionloss=m.dof_frictionloss[:n],
    bias=zero, stiff=False,
  )  # fmt: skip


def rows_tendon(m: Model, tendons: np.ndarray) -> RowParams:
  """Build the friction rows of tendons; a tendon without friction has an inactive row. Source: `mj_instantiateFriction`."""
  loss = rows(m.tendon_frictionloss, tendons)
  zero = jnp.zeros((len(tendons), 1), loss.dtype)
  return RowParams(
    active=loss > 0, pos=zero, violation=zero, margin=zero, diag=rows(m.tendon_invweight0, tendons), scale=zero + 1,
    solref=rows(m.tendon_solref_fri, tendons), solimp=rows(m.tendon_solimp_fri, tendons), frictionloss=loss,
    bias=zero, stiff=False,
  )  # fmt: skip
