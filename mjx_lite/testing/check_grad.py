"""Comparison of autodiff with central differences, per block of inputs, with flags for suspicious derivatives.

Tests: tests/gradients/test_check_grad.py.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.api import differentiate_pos, integrate_pos
from mjx_lite.batching.compiling import jit
from mjx_lite.model.types import Data, Model
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
_DATA_FIELDS = ("qpos", "qvel", "act", "ctrl", "qfrc_applied")
_OPTION_FIELDS = ("timestep", "gravity")


class BlockCheck(NamedTuple):
  """Result of the check for one block of inputs, along one random direction."""

  block: str
  field: str
  autodiff: float  # derivative of the loss along the direction, by reverse mode
  difference: float  # the same by central differences
  error: float  # |autodiff - difference| / max(|difference|, 1e-3 of the largest over all blocks)
  direction: np.ndarray  # of the shape of the block
  flags: tuple[str, ...]  # of 'wrong', 'not finite', 'no sensitivity', 'not smooth', 'stiff'
  steps: int = 1  # number of steps before the loss

  @property
  def ok(self) -> bool:
    """Whether autodiff is finite and, where the step is smooth, agrees with the differences."""
    return "wrong" not in self.flags and "not finite" not in self.flags


def check_grad(
  m: Model,
  d: Data,
  *,
  steps: int | Sequence[int] = 1,
  blocks: Iterable[str] | None = None,
  seed: int = 0,
  tolerance: float = 1e-5,
  write: Callable[[str], None] | None = print,
) -> list[BlockCheck]:
  """Compare gradients of steps from a state with central differences, and print a line per block of inputs.

  The loss is a random linear function of the next state (positions in tangent coordinates, velocities, activations).
  Parameters change by `with_params`, so dependent fields change too. Use 64 bits and a model whose solver converges
  (tolerance 1e-10 or less, enough iterations): otherwise the differences see the solver's error. Two programs are compiled,
  whatever the number of blocks and of horizons: a gradient, and a rollout with one world per point of the differences.

  Flags: *not smooth* where one-sided differences disagree with each other (a contact or a limit begins or ends nearby: the
  derivative there is that of one side, or the mean of both); *no sensitivity* where derivative and differences are zero;
  *stiff* where the derivative with respect to a relative change of the input is above 1e4 times the blocks' median;
  *wrong* where autodiff and differences disagree though the step is smooth; *not finite* where autodiff is not finite.

  Args:
    m: the model.
    d: the state.
    steps: number of steps before the loss, or several numbers of steps, each of which is checked.
    blocks: labels of BLOCKS; all blocks that the model has if None.
    seed: of the directions and of the loss.
    tolerance: largest relative error.
    write: called with each line; None for silence.

  Returns:
    one entry per block, for each number of steps.
  """
  horizons = (steps,) if isinstance(steps, int | np.integer) else tuple(steps)
  problem = make_problem(m, d, horizons, blocks, seed)
  differences = _differences(problem)
  out = []
  for i, (h, g) in enumerate(zip(horizons, gradients(problem), strict=True)):
    found = _assess(problem, g, {k: x[i] for k, x in differences.items()}, tolerance, h)
    if write is not None:
      _write(found, write)
    out += found
  return out


class Problem(NamedTuple):
  """A loss, the point where its derivatives are compared, and the directions."""

  fields: dict[str, str]  # block -> field of Data, Model or Model.opt
  at: dict[str, jax.Array]
  direction: dict[str, jax.Array]
  losses: Callable[..., jax.Array]  # function of at and rest: one loss for each number of steps
  rest: tuple[Any, ...]


def make_problem(m: Model, d: Data, horizons: tuple[int, ...], blocks: Iterable[str] | None = None, seed: int = 0) -> Problem:
  """Return the problem of `check_grad` for the blocks that the model has."""
  fields = {k: BLOCKS[k] for k in (BLOCKS if blocks is None else blocks)}
  fields = {k: f for k, f in fields.items() if _value(m, d, f).size and f not in m.layout.pruned}
  if not fields:
    raise ValueError(f"the model has none of the inputs {list(BLOCKS if blocks is None else blocks)}.")
  rng = np.random.default_rng(seed)
  at = {k: jnp.zeros(m.nv, d.qpos.dtype) if f == "qpos" else _value(m, d, f) for k, f in fields.items()}
  direction = {k: _direction(rng, x, fields[k]) for k, x in at.items()}
  losses = functools.partial(_losses, fields=tuple(fields.items()), horizons=horizons)
  return Problem(fields, at, direction, losses, (m, d, loss_weights(m, seed)))


def gradients(p: Problem) -> list[dict[str, jax.Array]]:
  """Return the gradient of each loss with respect to each block, from one program."""
  gradient = jit(jax.grad(lambda at, pick, *rest: jnp.vdot(pick, p.losses(at, *rest))))
  n = len(jax.eval_shape(p.losses, p.at, *p.rest))
  return [gradient(p.at, pick, *p.rest) for pick in jnp.eye(n, dtype=p.rest[1].qpos.dtype)]


def _assess(p, gradient, differences, tolerance, steps):
  """Compare derivatives with differences for one number of steps, block by block."""
  size = [abs(x.central) for x in differences.values()]
  largest = max((x for x in size if np.isfinite(x)), default=0.0)
  middle = float(np.median([x for x in size if x])) if any(size) else 0.0
  out = []
  for k, found in differences.items():
    slope = float(jnp.vdot(gradient[k], p.direction[k]))
    scale = max(abs(found.central), 1e-3 * largest, 1e-30)
    error = abs(slope - found.central) / scale
    flags = []
    if not bool(jnp.isfinite(gradient[k]).all()):
      flags.append("not finite")
    elif slope == 0 and abs(found.central) <= 1e-9 * largest:
      flags.append("no sensitivity")
    elif not found.jump <= tolerance * scale:
      flags.append("not smooth")
    elif not error <= tolerance:
      flags.append("wrong")
    if abs(found.central) > 1e4 * middle:
      flags.append("stiff")
    out.append(
      BlockCheck(
        block=k,
        field=p.fields[k],
        autodiff=slope,
        difference=found.central,
        error=error,
        direction=np.asarray(p.direction[k]),
        flags=tuple(flags),
        steps=steps,
      )
    )
  return out


def loss_weights(m: Model, seed: int = 0) -> tuple[np.ndarray, ...]:
  """Return coefficients of the loss: of the motion from the first position, the last velocity, the last activations."""
  rng = np.random.default_rng(seed + 1)
  return tuple(rng.normal(size=n) for n in (m.nv, m.nv, m.na))


def _value(m, d, field):
  if field in _DATA_FIELDS:
    return getattr(d, field)
  return getattr(m.opt if field in _OPTION_FIELDS else m, field)


def _direction(rng, x, field):
  """Return a random direction: relative for parameters, of order one for the state."""
  noise = rng.normal(size=x.shape)
  return jnp.asarray(noise if field in (*_DATA_FIELDS, "body_ipos") else noise * np.abs(x), x.dtype)


def _losses(at, m, d, weights, *, fields, horizons):
  """Return random linear functions of the states after several numbers of steps."""
  data, option, model = {}, {}, {}
  names = dict(fields)
  for k, x in at.items():
    field = names[k]
    if field == "qpos":
      data[field] = integrate_pos(m, d.qpos, x, jnp.ones((), x.dtype))
    elif field in _DATA_FIELDS:
      data[field] = x
    else:
      (option if field in _OPTION_FIELDS else model)[field] = x
  if option:
    model["opt"] = m.opt.replace(**option)
  m2 = m.with_params(**model) if model else m
  _, after = rollout(m2, d.replace(**data), steps=max(horizons), record=("qpos", "qvel", "act"))
  return jnp.stack([_loss(m, d, {k: x[h - 1] for k, x in after.items()}, weights) for h in horizons])


def _loss(m, d, after, weights):
  moved = differentiate_pos(m, jnp.ones((), d.qpos.dtype), d.qpos, after["qpos"])
  return sum(jnp.vdot(w, x) for w, x in zip(weights, (moved, after["qvel"], after["act"]), strict=True))


class _Difference(NamedTuple):
  central: float
  jump: float  # between the two one-sided differences, beyond the effect of curvature


_WIDTHS = (0.25, 0.29, 0.33, 0.37)  # of differences, as powers of the machine epsilon
_ENDS = (-2, -1, 1, 2)


def _differences(p):
  """Return differences along the directions for each number of steps, at the width where they are smoothest.

  Wide differences see less of the solver's round-off; narrow differences cross fewer switches.
  """
  eps, n = float(jnp.finfo(p.rest[1].qpos.dtype).eps), len(p.at)
  points = np.array([end * eps**power for power in _WIDTHS for end in _ENDS])
  shift = np.zeros((n, 1 + n * len(points)))  # (block, world); the first world has no shift
  for i, row in enumerate(shift):
    row[1 + i * len(points) : 1 + (i + 1) * len(points)] = points
  moved = {
    k: x + jnp.multiply.outer(jnp.asarray(s, x.dtype), p.direction[k]) for (k, x), s in zip(p.at.items(), shift, strict=True)
  }
  values = jit(jax.vmap(p.losses, in_axes=(0, None, None, None)))(moved, *p.rest)
  here, *values = np.split(np.asarray(values, float), [1 + i * len(points) for i in range(n)])
  out = {}
  for k, value in zip(p.at, values, strict=True):
    by_width = value.reshape(len(_WIDTHS), len(_ENDS), -1)
    out[k] = [
      min((_difference(x[:, i], here[0, i], eps**power) for x, power in zip(by_width, _WIDTHS, strict=True)), key=_roughness)
      for i in range(by_width.shape[-1])
    ]
  return out


def _roughness(x):
  return x.jump if np.isfinite(x.jump) else np.inf


def _difference(ends, here, h):
  """Return the central difference at 0, extrapolated from two widths, and the jump of the slope."""
  low2, low, high, high2 = ends
  near, wide = (high - low) / (2 * h), (high2 - low2) / (4 * h)
  # second differences are proportional to the square of the width where the function is smooth
  bend, bend2 = (high - 2 * here + low) / h, (high2 - 2 * here + low2) / (2 * h)
  return _Difference(float((4 * near - wide) / 3), float(abs(bend - bend2 / 2) + abs(near - wide)))


def _write(found, write):
  write(f"{'input':>18}  {'autodiff':>13}  {'differences':>13}  {'error':>8}  ({found[0].steps} steps)")
  for x in found:
    write(f"{x.block:>18}  {x.autodiff:13.6e}  {x.difference:13.6e}  {x.error:8.1e}  {', '.join(x.flags)}")
