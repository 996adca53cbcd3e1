"""Dry friction of the dofs: one row per dof."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mjx_lite.constraint.rows import RowParams
from mjx_lite.core.types import Model


def plan_dof(s: dict[str, Any], present: bool) -> np.ndarray:
  """Dofs with a friction row."""
  return np.arange(s["nv"] if present else 0)


def rows_dof(m: Model, dofs: np.ndarray) -> RowParams:
  """Friction rows; a dof without friction has an inactive one. Source: `mj_instantiateFriction`."""
  n = len(dofs)
  zero = jnp.zeros((n, 1), m.dof_frictionloss.dtype)
  return RowParams(
    active=m.dof_frictionloss[:n] > 0, pos=zero, violation=zero, margin=zero, diag=m.dof_invweight0[:n], scale=zero + 1,
    solref=m.dof_solref[:n], solimp=m.dof_solimp[:n], frictionloss=m.dof_frictionloss[:n],
    bias=zero, stiff=False,
  )  # fmt: skip
