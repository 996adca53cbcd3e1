"""Tables of the kinematic tree in NumPy, from the static fields of a model: bodies in subtrees, and dofs that move bodies.

Tests: tests/parity/test_support.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def subtrees(s: Mapping[str, Any]) -> np.ndarray:
  """Return a mask [a, b] (nbody, nbody) of the bodies b in the subtree of body a, which includes a itself."""
  below = np.eye(s["nbody"], dtype=bool)
  for b in range(s["nbody"] - 1, 0, -1):
    below[s["body_parentid"][b]] |= below[b]
  return below


def moving_dofs(s: Mapping[str, Any]) -> np.ndarray:
  """Return a mask [body, dof] (nbody, nv) of the dofs that move a body."""
  return subtrees(s)[s["dof_bodyid"]].T
