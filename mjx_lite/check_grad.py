"""Autodiff against central differences, block of inputs by block, with a word on what looks wrong."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.api import differentiate_pos, integrate_pos, jit
from mjx_lite.core.types import Data, Model
from mjx_lite.rollout import rollout

# inputs of a step: label -> field of Data, of Model, or of Model.opt
BLOCKS = {
  "qpos": "qpos", "qvel": "qvel", "act": "act", "ctrl": "ctrl", "applied force": "qfrc_applied",
  "mass": "body_mass", "inertia": "body_inertia", "centre of mass": "body_ipos", "friction": "geom_friction",
  "dof friction": "dof_frictionloss", "damping": "dof_damping", "armature": "dof_armature", "stiffness": "jnt_stiffness",
  "tendon stiffness": "tendon_stiffness", "tendon damping": "tendon_damping", "geom size": "geom_size",
  "geom position": "geom_pos", "body position": "body_pos", "gear": "actuator_gear", "gain": "actuator_gainprm",
  "bias": "actuator_biasprm", "solref": "geom_solref", "solimp": "geom_solimp", "limit solref": "jnt_solref",
  "equality solref": "eq_solref", "timestep": "timestep", "gravity": "gravity",
}  # fmt: skip
_OF_DATA = ("qpos", "qvel", "act", "ctrl", "qfrc_applied")
_OF_OPTION = ("timestep", "gravity")


class BlockCheck(NamedTuple):
  """What was found for one block of inputs, along one random direction."""

  block: str
  field: str
  autodiff: float  # derivative of the loss along the direction, by reverse mode
  difference: float  # the same by central differences
  error: float  # |autodiff - difference| / max(|difference|, 1e-3 of the largest over all blocks)
  direction: np.ndarray  # in the block
  flags: tuple[str, ...]  # of 'wrong', 'not finite', 'no sensitivity', 'not smooth', 'stiff'

  @property
  def ok(self) -> bool:
    """Whether autodiff is finite and, where the step is smooth, agrees."""
    return "wrong" not in self.flags and "not finite" not in self.flags


def check_grad(
  m: Model,
  d: Data,
  *,
  steps: int = 1,
  blocks: Iterable[str] | None = None,
  seed: int = 0,
  tolerance: float = 1e-5,
  write: Callable[[str], None] | None = print,
) -> list[BlockCheck]:
  """Compare gradients of steps from a state with central differences, and print a line per block of inputs.

  The loss is a random linear function of the next state (positions in tangent coordinates, velocities, activations).
  Parameters go through `with_params`, so that what follows from them does. Use 64 bits and a model whose solver converges
  (tolerance 1e-10 or less, enough iterations): otherwise the differences see the solver's error.

  Flags: *not smooth* where one-sided differences disagree with each other (a contact or a limit begins or ends nearby: the
  derivative there is that of one side, or their mean); *no sensitivity* where derivative and differences are zero; *stiff*
  where the derivative with respect to a relative change of the input is above 1e4 times that of the other blocks' median;
  *wrong* where the two disagree though the step is smooth; *not finite* where autodiff is.

  Args:
    m: the model.
    d: the state.
    steps: number of steps that the loss looks through.
    blocks: labels of BLOCKS; all that the model has if None.
    seed: of the directions and of the loss.
    tolerance: largest relative error.
    write: called with each line; None for silence.

  Returns:
    one entry per block.
  """
  chosen = {k: BLOCKS[k] for k in (BLOCKS if blocks is None else blocks)}
  values = {k: x for k, f in chosen.items() if (x := _value(m, d, f)).size and f not in m.layout.pruned}
  if not values:
    raise ValueError("the model has none of these inputs.")
  rng, weights = np.random.default_rng(seed), loss_weights(m, seed)
  at = {k: jnp.zeros(m.nv, x.dtype) if chosen[k] == "qpos" else x for k, x in values.items()}
  direction = {k: _direction(rng, x, chosen[k]) for k, x in at.items()}
  loss = functools.partial(_loss, fields=tuple(chosen.items()), steps=steps)
  gradient = jit(jax.grad(loss))(at, m, d, weights)
  value = jit(loss)
  far = {k: _differences(value, at, k, direction[k], m, d, weights) for k in values}
  size = {k: x.central for k, x in far.items()}
  largest = max((abs(x) for x in size.values() if np.isfinite(x)), default=0.0)
  middle = float(np.median([abs(x) for x in size.values() if x]) if any(size.values()) else 0.0)
  out = []
  for k in values:
    slope = float(jnp.vdot(gradient[k], direction[k]))
    finite = bool(jnp.isfinite(gradient[k]).all())
    found = far[k]
    scale = max(abs(found.central), 1e-3 * largest, 1e-30)
    error, smooth = abs(slope - found.central) / scale, found.jump <= tolerance * scale
    flags = []
    if not finite:
      flags.append("not finite")
    elif slope == 0 and abs(found.central) <= 1e-9 * largest:
      flags.append("no sensitivity")
    elif not smooth:
      flags.append("not smooth")
    elif not error <= tolerance:
      flags.append("wrong")
    if abs(found.central) > 1e4 * middle:
      flags.append("stiff")
    out.append(BlockCheck(k, chosen[k], slope, found.central, error, np.asarray(direction[k]), tuple(flags)))
  if write is not None:
    _write(out, write)
  return out


def loss_weights(m: Model, seed: int = 0) -> tuple[np.ndarray, ...]:
  """Coefficients of the loss: of the motion from the first position, of the last velocity, of the last activations."""
  rng = np.random.default_rng(seed + 1)
  return tuple(rng.normal(size=n) for n in (m.nv, m.nv, m.na))


def _value(m, d, field):
  if field in _OF_DATA:
    return getattr(d, field)
  return getattr(m.opt if field in _OF_OPTION else m, field)


def _direction(rng, x, field):
  """Random direction: relative for parameters, of order one for the state."""
  noise = rng.normal(size=x.shape)
  return jnp.asarray(noise if field in ("qpos", "qvel", "act", "ctrl", "qfrc_applied", "body_ipos") else noise * np.abs(x))


def _loss(at, m, d, weights, *, fields, steps):
  """Random linear function of the state after the steps."""
  data, option, model = {}, {}, {}
  names = dict(fields)
  for k, x in at.items():
    field = names[k]
    if field == "qpos":
      data[field] = integrate_pos(m, d.qpos, x, jnp.ones((), x.dtype))
    elif field in _OF_DATA:
      data[field] = x
    else:
      (option if field in _OF_OPTION else model)[field] = x
  if option:
    model["opt"] = m.opt.replace(**option)
  m2 = m.with_params(**model) if model else m
  after, _ = rollout(m2, d.replace(**data), steps=steps, record=())
  moved = differentiate_pos(m, jnp.ones((), after.qpos.dtype), d.qpos, after.qpos)
  return sum(jnp.vdot(w, x) for w, x in zip(weights, (moved, after.qvel, after.act), strict=True))


class _Difference(NamedTuple):
  central: float
  jump: float  # between the two one-sided differences, beyond what curvature explains


def _differences(value, at, k, direction, m, d, weights):
  """Differences along a direction, of the width at which they are smoothest.

  The wide ones see less of the solver's round-off, the narrow ones cross fewer switches.
  """
  eps = float(jnp.finfo(direction.dtype).eps)
  f = lambda x: float(value({**at, k: at[k] + x * direction}, m, d, weights))  # noqa: E731
  here = f(0.0)
  return min((_difference(f, here, eps**power) for power in (0.25, 0.29, 0.33)), key=lambda x: x.jump)


def _difference(f, here, h):
  """Central difference at 0, extrapolated from two widths; and how much the slope jumps."""
  ends = {k: f(k * h) for k in (-2, -1, 1, 2)}
  near, wide = (ends[1] - ends[-1]) / (2 * h), (ends[2] - ends[-2]) / (4 * h)
  # second differences are proportional to the square of the width where the function is smooth
  bend, bend2 = ((ends[k] - 2 * here + ends[-k]) / (k * h) for k in (1, 2))
  return _Difference((4 * near - wide) / 3, abs(bend - bend2 / 2) + abs(near - wide))


def _write(found, write):
  write(f"{'input':>18}  {'autodiff':>13}  {'differences':>13}  {'error':>8}")
  for x in found:
    write(f"{x.block:>18}  {x.autodiff:13.6e}  {x.difference:13.6e}  {x.error:8.1e}  {', '.join(x.flags)}")
