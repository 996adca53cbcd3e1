"""Capacities of contacts from sampled states.

Tests: tests/collision/test_capacity.py, tests/io/test_mistakes.py.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from mjx_lite.batching import worlds
from mjx_lite.collision import driver
from mjx_lite.io.model import put_model


class SuggestedCapacity:
  """Capacities as keywords of put_model: `put_model(m, **suggest_capacity(m, qpos))`.

  Attributes:
    pair_max: number of candidate pairs for the narrow phase by group, such as 'box-box'.
    ncon_max: number of contact slots.
  """

  def __init__(self, pair_max: dict[str, int], ncon_max: int):
    self.pair_max = pair_max
    self.ncon_max = ncon_max

  def keys(self) -> Iterator[str]:
    """Return the keywords."""
    return iter(("pair_max", "ncon_max"))

  def __getitem__(self, key: str) -> Any:
    return getattr(self, key)

  def __repr__(self) -> str:
    return f"SuggestedCapacity(pair_max={self.pair_max}, ncon_max={self.ncon_max})"


def suggest_capacity(m: mujoco.MjModel, qpos_samples: Any, headroom: float = 1.5, spare: int = 4) -> SuggestedCapacity:
  """Compute capacities that suffice for the sampled configurations, with headroom.

  Sample the most crowded states of the simulation: the end of a rollout in which things fall, not its start. If a capacity is
  too small nevertheless, the status of the Data is marked (PAIRFULL, CONTACTFULL).

  Args:
    m: the compiled model.
    qpos_samples: configurations (n, nq) or (nq,).
    headroom: factor on the largest numbers found.
    spare: number added after the factor.

  Raises:
    TypeError: m is not a mujoco.MjModel.
    ValueError: there is no configuration, or the configurations are not of this model.
  """
  if not isinstance(m, mujoco.MjModel):
    raise TypeError(f"suggest_capacity takes a mujoco.MjModel, not {type(m).__name__}: give the model before put_model.")
  samples = np.asarray(qpos_samples, float)
  if samples.shape[-1:] != (m.nq,):
    raise ValueError(f"qpos_samples has shape {samples.shape}, and the model needs (n, {m.nq}).")
  samples = samples.reshape(-1, m.nq)
  if not len(samples):
    raise ValueError("suggest_capacity needs at least one configuration.")
  data, ncon, pos, mat = mujoco.MjData(m), 0, [], []
  for qpos in samples:
    data.qpos[:] = qpos
    mujoco.mj_kinematics(m, data)
    mujoco.mj_comPos(m, data)
    mujoco.mj_collision(m, data)
    ncon = max(ncon, data.ncon)
    pos.append(data.geom_xpos.copy())
    mat.append(data.geom_xmat.reshape(-1, 3, 3).copy())

  def roomy(n):
    return max(1, int(np.ceil(headroom * n)) + spare)

  model = put_model(m, ncon_max=1)  # avoids the tables of all possible slots
  count = jax.vmap(worlds.one_world(driver.count_near), in_axes=(None, 0, 0))
  near = jnp.max(count(model, *(jnp.asarray(np.stack(x), model.layout.dtype) for x in (pos, mat))), axis=0)
  groups = enumerate(model.plan.collision.groups)
  pair_max = {g.name: min(roomy(near[k]), len(g.pair)) for k, g in groups if g.bounded}
  return SuggestedCapacity(pair_max, roomy(ncon))
