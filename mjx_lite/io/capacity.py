"""Capacities of contacts: those that put_model chooses, those from given states, and what to say where they were too small.

Tests: tests/collision/test_capacity.py, tests/io/test_capacity_choice.py, tests/io/test_mistakes.py.
"""

import hashlib
import math
import warnings
from typing import Any

import mujoco
import numpy as np

from mjx_lite.collision import driver, near
from mjx_lite.collision.driver import CollisionPlan
from mjx_lite.compiler import workarounds
from mjx_lite.errors import CapacityWarning
from mjx_lite.io import fields, states, validate
from mjx_lite.model import layout
from mjx_lite.model.capacity import NO_BOUND, Capacity, rounded
from mjx_lite.model.enums import EnableBit
from mjx_lite.model.types import LARGEST_KERNEL, Data, Model

_HEADROOM, _SPARE = 1.5, 4  # of chosen capacities: factor on the largest number found, and a number added
_CHEAP = 128  # slots that are never shared
_REMEMBERED = 64  # choices that are remembered, as put_data(mj_model, ...) makes the same Model again
_CHOSEN: dict[bytes, Capacity] = {}  # chosen capacities by the digest of the model
_WARNED: set[bytes] = set()  # digests of models of which a warning was given


def choose(m: mujoco.MjModel, s: dict[str, Any], values: dict[str, np.ndarray], p: CollisionPlan) -> Capacity:
  """Choose the capacities of a model: none where all slots are cheap, otherwise what C needs in simulated states, with room.

  All slots are cheap where there are at most 128, or where slots times dofs are at most 1,000: such a step can be a kernel.
  All slots stay where the chosen number is more than half of them. The choice depends on the model alone.

  Args:
    m: the compiled model.
    s: its static fields.
    values: its float fields.
    p: the plan with a slot for every possible contact.
  """
  total = len(p.slot_pair)
  if total <= _CHEAP or total * m.nv <= LARGEST_KERNEL:
    return NO_BOUND
  digest = hashlib.blake2b(digest_size=16)
  options = {k: x for k in dir(m.opt) if not k.startswith("_") and not callable(x := getattr(m.opt, k))}
  layout.feed(digest, (sorted(s.items()), sorted(values.items()), sorted(options.items())))
  key = digest.digest()
  if key not in _CHOSEN:
    if len(_CHOSEN) >= _REMEMBERED:
      _CHOSEN.pop(next(iter(_CHOSEN)))
    _CHOSEN[key] = _from_states(m, {**s, **values}, p)
  return _CHOSEN[key]


def _from_states(m: mujoco.MjModel, s: dict[str, Any], p: CollisionPlan) -> Capacity:
  """Choose capacities from states that C simulates."""
  found = states.simulate(m)
  ncon_max = int(_roomy(found.ncon, found.is_drawn))
  if 2 * ncon_max > len(p.slot_pair):
    return NO_BOUND
  pairs = near.count(p, _overridden(m, s), found.xpos, found.xmat)
  chosen = {g.name: _roomy(n, found.is_drawn[found.posed]) for g, n in zip(p.groups, pairs.T, strict=True) if g.bounded}
  sizes = {g.name: len(g.pair) for g in p.groups}
  return Capacity({k: n for k, n in chosen.items() if 2 * n <= sizes[k]}, ncon_max)


def _roomy(n: np.ndarray, is_drawn: np.ndarray) -> int:
  """Return a capacity for the numbers of contacts or pairs (n,) in states, with room for more.

  The headroom counts where the start `is_drawn` (n,). At qpos0 and keyframes a robot may stand in the floor, with more contacts
  than later.
  """
  drawn, given = (int(n[mask].max(initial=0)) for mask in (is_drawn, ~is_drawn))
  return rounded(max(math.ceil(_HEADROOM * drawn), given) + _SPARE)


def _overridden(m: mujoco.MjModel, s: dict[str, Any]) -> dict[str, Any]:
  """Return the fields with the margins of the option's override, where it is on."""
  if not m.opt.enableflags & EnableBit.OVERRIDE:
    return s
  margin = m.opt.o_margin
  return {**s, "geom_margin": np.full(m.ngeom, margin / 2), "pair_margin": np.full(m.npair, margin)}


def suggest_capacity(m: mujoco.MjModel, qpos_samples: Any, headroom: float = 1.5, spare: int = 4) -> Capacity:
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
    UnsupportedModelError: the model uses features that are not implemented.
  """
  if not isinstance(m, mujoco.MjModel):
    raise TypeError(f"suggest_capacity takes a mujoco.MjModel, not {type(m).__name__}: give the model before put_model.")
  samples = np.asarray(qpos_samples, float)
  if samples.shape[-1:] != (m.nq,):
    raise ValueError(f"qpos_samples has shape {samples.shape}, and the model needs (n, {m.nq}).")
  samples = samples.reshape(-1, m.nq)
  if not len(samples):
    raise ValueError("suggest_capacity needs at least one configuration.")
  validate.check(m)
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
    return max(1, math.ceil(headroom * n) + spare)

  s, values = fields.split(m)
  p = driver.plan(s, values, int(m.opt.disableflags))
  pairs = near.count(p, _overridden(m, {**s, **values}), np.stack(pos), np.stack(mat)).max(axis=0, initial=0)
  pair_max = {g.name: min(roomy(n), len(g.pair)) for g, n in zip(p.groups, pairs, strict=True) if g.bounded}
  return Capacity(pair_max, roomy(ncon))


def shortage(m: Model, d: Data) -> str:
  """Return what to say if contacts or pairs did not fit in some world, "" otherwise. Traced arrays are not looked at.

  Args:
    m: the model.
    d: Data of one world or of many.
  """
  limits = m.plan.collision.limits
  if not limits or (most := workarounds.concrete(d.status.most)) is None:
    return ""
  most = np.asarray(most).reshape(-1, len(limits))
  over = most > limits
  if not over.any():
    return ""
  largest = most.max(axis=0)
  return (
    f"contacts did not fit and were dropped in {over.any(axis=1).sum():,} of {len(most):,} worlds: the model has "
    f"{m.capacity}. put_model(m, {_enough(m, largest)}) would have sufficed, and put_model(m, ncon_max='all') always does."
  )


def _enough(m: Model, most: np.ndarray) -> Capacity:
  """Return capacities for the largest numbers found. Pairs that were left out count with all contacts that they can have."""
  p = m.plan.collision
  groups = [g for g in p.groups if g.has_budget]
  slots, pairs = int(most[0]), {g.name: max(int(n), g.budget) for g, n in zip(groups, most[1:], strict=True)}
  slots += sum((pairs[g.name] - g.budget) * int(g.tables.ncon.max()) for g in groups)
  wider = {k: n if n == g.budget else min(rounded(n), len(g.pair)) for g, (k, n) in zip(groups, pairs.items(), strict=True)}
  return Capacity(wider or None, max(rounded(slots), len(p.slot_pair)))


def warn_of_shortage(m: Model, d: Data, function: str, stacklevel: int = 3) -> None:
  """Warn once for each model if contacts or pairs did not fit in some world.

  Args:
    m: the model.
    d: Data of one world or of many; traced arrays are not looked at.
    function: name of the public function that computed the Data.
    stacklevel: number of calls from here to the user's line.
  """
  if m.layout.digest not in _WARNED and (text := shortage(m, d)):
    _WARNED.add(m.layout.digest)
    warnings.warn(f"{function}: {text}", CapacityWarning, stacklevel=stacklevel)
