"""Which body hangs on which, and which dofs move it: tables in NumPy from the static fields of a model."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def subtrees(s: Mapping[str, Any]) -> np.ndarray:
  """Whether b is in the subtree of a, as a itself is: [a, b], (nbody, nbody) of bools."""
  below = np.eye(s["nbody"], dtype=bool)
  for b in range(s["nbody"] - 1, 0, -1):
    below[s["body_parentid"][b]] |= below[b]
  return below


def moving_dofs(s: Mapping[str, Any]) -> np.ndarray:
  """Whether a dof moves a body: [body, dof], (nbody, nv) of bools."""
  return subtrees(s)[s["dof_bodyid"]].T
