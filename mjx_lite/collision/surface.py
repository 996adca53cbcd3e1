"""Velocities of moving geom surfaces, such as conveyor belts and turntables.

Tests: tests/parity/test_stages.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.model.types import Model
from mjx_lite.ops.select import gather, rows


def velocity(
  m: Model, slot_geom: np.ndarray | jax.Array, xpos: jax.Array, xmat: jax.Array, pos: jax.Array, frame: jax.Array
) -> jax.Array:
  """Return the velocity (ncon, 3, W) of the second surface against the first: along both tangents [m/s], and spin [rad/s].

  Args:
    slot_geom: (ncon, 2) geoms of the contacts; (ncon, 2, W) if geoms are chosen at run time.
    xpos, xmat: poses of all geoms.
    pos, frame: position and frame of each contact.

  Source: `mj_geomSurfaceVelocity`, `mj_addSurfaceVel`.
  """
  pick: Any = rows if isinstance(slot_geom, np.ndarray) else gather
  linear, angular = [], []
  for k in (0, 1):
    geom = slot_geom[:, k]
    own, mat = pick(m.geom_surfacevel, geom), pick(xmat, geom)
    turning = vector.mat_vec(mat, own[:, 3:])
    angular.append(turning)
    linear.append(vector.mat_vec(mat, own[:, :3]) + vector.cross(turning, pos - pick(xpos, geom)))
  across = vector.mat_vec(frame[:, 1:], linear[1] - linear[0])
  spin = vector.dot(frame[:, 0], angular[1] - angular[0])
  return jnp.concatenate([across, spin[:, None]], axis=1)
