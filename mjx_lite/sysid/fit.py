"""Fit parameters of a Model to measured trajectories."""

import functools
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid import problem, programs
from mjx_lite.sysid.cut import Pieces, cut
from mjx_lite.sysid.params import Param, apply, labels_of, size
from mjx_lite.sysid.problem import Trajectory
from mjx_lite.sysid.result import Fit, judge

_AGAIN = 2  # passes in which noise that was not given is that of the pass before
_FLOOR = 1e-9  # least noise that is believed, relative to what was measured


def fit(
  m: mjx.Model,
  params: Param | Sequence[Param],
  trajectories: Trajectory | Sequence[Trajectory],
  *,
  noise: float | Mapping[str, Any] | None = None,
  start_noise: Any = None,
  segment: int | None = None,
  iterations: int = 100,
  tolerance: float | None = None,
) -> Fit:
  """Find parameters with which the model does what was measured: least squares in units of the noise.

  Levenberg-Marquardt (optimistix) with exact Jacobians, forward through the steps, contacts included. Use 64 bits
  (`jax.config.update("jax_enable_x64", True)`): in 32 bits it stops early.

  Args:
    m: the model; its own values of the parameters are where the search starts.
    params: what is unknown: `sysid.field(m, "dof_damping", "hip", bounds=(0, 2))`, `sysid.mass`, `sysid.kp`, ...
    trajectories: what was measured.
    noise: standard deviation of what was measured: a number, or by name a number or (n,). Estimated, for each number that
      is measured, from what is left over if None.
    start_noise: standard deviation of the given starts in tangent coordinates (dqpos, dqvel, dact), a number or (nx,); the
      starts are then unknowns too. None: they are exact. inf: nothing is known of them.
    segment: steps of a segment: multiple shooting, for long, unstable or chaotic trajectories. The states at the starts of
      segments are unknowns, guessed from measured qpos and qvel, and the jumps between segments shrink to nothing in three
      passes. None: each trajectory in one piece.
    iterations: at most so many evaluations in a pass.
    tolerance: relative change at which to stop; 1e-8 in 64 bits, 1e-4 in 32.

  Returns:
    the fitted model, the values with their covariance, and what was measured beside what the model does. Warns
    (`NotIdentified`) of every parameter that the data say nothing about.
  """
  params = (params,) if isinstance(params, Param) else tuple(params)
  params = tuple(x._replace(bounds=(float(x.bounds[0]), float(x.bounds[1])), labels=tuple(x.labels)) for x in params)
  trajectories = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
  for what, given in (("parameter", params), ("trajectory", trajectories)):
    if not given:
      raise ValueError(f"there is no {what} to fit.")
  if not any(t.measured for t in trajectories):
    raise ValueError("nothing is measured: Trajectory.measured maps names of sensors, or of Data's fields, to a row per step.")
  d = mjx.jit(mjx.make_data)(m)  # one program, not one for every field
  names = dict.fromkeys(name for t in trajectories for name in t.measured)
  channels = tuple(problem.channel(m, d, name) for name in names)
  pieces = cut(m, d, trajectories, channels, segment)
  starts = bool(pieces.link) or start_noise is not None
  sizes = tuple(size(m, x) for x in params)
  p = problem.Structure(params, sizes, channels, len(pieces.ctrl), pieces.link, starts)
  box = _box(m, params)
  tolerance = tolerance or (1e-8 if m.qpos0.dtype == jnp.float64 else 1e-4)
  tables, low, high = _tables(m, d, p, pieces, box, start_noise)
  solver = _solver(p, tolerance)

  sigma = _noise(p, pieces, noise)
  passes = [(jump, False) for jump in (problem.JUMPS if pieces.link else problem.JUMPS[-1:])]
  passes += [(problem.JUMPS[-1], True)] * (_AGAIN if noise is None else 0)
  z, total = np.zeros_like(low), 0
  z[: len(box.first)] = box.first / box.scale
  found: Any = None
  for jump, again in passes:
    sigma = _left(p, pieces, found, sigma) if again else sigma
    weight = {k: np.asarray(pieces.mask[k] / sigma[k], low.dtype) for k in sigma}
    found = solver(z, tables._replace(weight=weight, join=1 / (jump * tables.spread)), low, high, iterations)
    z, total = np.asarray(found.z), total + int(found.iterations)
  if not (np.isfinite(found.residual).all() and np.isfinite(found.jacobian).all()):
    raise FloatingPointError("the rollouts or their derivatives are not finite: other first values, or segment=, may help.")
  if not found.converged:
    warnings.warn(f"sysid.fit has not converged within {iterations} evaluations: what it returns is no minimum.", stacklevel=2)
  values = np.asarray(found.z[: len(box.first)], float) * box.scale
  return judge(m, _applied(params)(m, np.asarray(values, low.dtype)), p, pieces, box, found, sigma, total)


class Box(NamedTuple):
  """Where the search starts, and where it may go."""

  labels: list[str]  # P of them
  first: np.ndarray  # (P,)
  low: np.ndarray  # (P,)
  high: np.ndarray  # (P,)
  scale: np.ndarray  # (P,)


def _box(m, params):
  """First values, bounds and scales (P,) of the parameters."""
  labels = labels_of(m, params)
  each = [np.asarray(x, float) for x in _first(params)(m)]
  first = np.concatenate(each)
  low, high = (np.concatenate([np.full(len(x), p.bounds[i], float) for p, x in zip(params, each, strict=True)]) for i in (0, 1))
  bad = np.flatnonzero((first < low) | (first > high) | ~np.isfinite(first))
  if len(bad):
    told = ", ".join(f"{labels[i]} = {first[i]:g} is not within [{low[i]:g}, {high[i]:g}]" for i in bad)
    raise ValueError(f"the search starts from the model's own values: {told}.")
  given = np.concatenate([np.full(len(x), p.scale or np.nan) for p, x in zip(params, each, strict=True)])
  wide = np.where(np.isfinite(high - low), high - low, np.where(first != 0, np.abs(first), 1))
  return Box(labels, first, low, high, np.where(np.isfinite(given), given, wide))


@functools.lru_cache(maxsize=16)
def _solver(p, tolerance):
  """The least-squares solver; the same Params on data of the same shape find its programs compiled."""
  if importlib.util.find_spec("optimistix") is None:
    raise ImportError("sysid.fit needs optimistix: pip install 'mjx_lite[sysid]'.")
  count, width = sum(p.sizes), programs.width(p.segments)
  push = _pushed(p._replace(segments=width, link=(0,) if p.link else ()))

  @programs.Ahead
  def step(now, first, found, tables, low, high):
    found = programs.together(found, p.segments)
    both = problem.assembled(p, now.next_z, found, tables)
    return _solve().advance(now, first, both, low, high, tolerance=tolerance)

  def run(z, tables, low, high, iterations):
    each = programs.parts(tables, width)

    def arguments(z):
      delta = np.zeros((p.segments, tables.spread.size), z.dtype)
      delta = z[count:].reshape(delta.shape) if p.starts else delta
      delta = np.concatenate([delta, np.repeat(delta[-1:], width * len(each) - p.segments, axis=0)])
      return [(z[:count], delta[i * width : (i + 1) * width], t) for i, t in enumerate(each)]

    one = push.shapes(*arguments(z)[0])
    push.prepare(*arguments(z)[0])  # compiles while the rest is imported and traced
    shapes = [one] * len(each)
    whole = jax.eval_shape(lambda *x: problem.assembled(p, z, programs.together(x, p.segments), tables), *shapes)
    start = _solve().begin(z, whole, low, high)
    step.prepare(start, np.asarray(True), shapes, tables, low, high)
    _applied(p.params).prepare(tables.m, z[:count])  # for the end: compiles meanwhile
    return _solve().least_squares(
      lambda z: programs.on_all_cores(push, arguments(np.asarray(z))),
      lambda now, first, found: step(now, first, found, tables, low, high),
      start, iterations,
    )  # fmt: skip

  return run


def _solve():
  """The module that needs optimistix, whose import takes a while."""
  from mjx_lite.sysid import solve

  return solve


@functools.lru_cache(maxsize=16)
def _pushed(p):
  """`problem.pushed`, of unknowns in their units."""
  return programs.Ahead(lambda theta, delta, t: problem.pushed(p, theta * t.scale, delta * t.spread, t))


@functools.lru_cache(maxsize=16)
def _first(params):
  """The model's own values, in one program."""
  return programs.Ahead(lambda m: [p.get(m) for p in params])


@functools.lru_cache(maxsize=16)
def _applied(params):
  """`apply`, compiled: eagerly it would take twice as long to compile. It runs once: little is made of it."""
  return programs.Ahead(lambda m, values: apply(m, params, values), compiler_options={"xla_backend_optimization_level": 0})


def _tables(m, d, p, pieces: Pieces, box, start_noise):
  """All numbers of the problem but the weights, and the bounds of the unknowns."""
  nx, dtype = 2 * m.nv + m.na, m.qpos0.dtype
  state = np.concatenate([pieces.start["qvel"], pieces.start["act"]], axis=1)
  spread = np.concatenate([np.ones(m.nv), np.maximum(np.abs(state).max(axis=0, initial=0), 1)]) if p.starts else np.ones(nx)
  prior, free = np.zeros((p.segments, nx)), np.full((p.segments, nx), np.inf)
  if start_noise is None:
    free[pieces.first] = 0
  else:
    prior[pieces.first] = 1 / np.broadcast_to(np.asarray(start_noise, float), nx)
  free = free.ravel() if p.starts else np.zeros(0)
  low, high = (np.concatenate([x / box.scale, y]) for x, y in ((box.low, -free), (box.high, free)))

  def put(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)

  start, ctrl, measured, prior, scale, spread = map(
    put, (pieces.start, pieces.ctrl, pieces.measured, prior, box.scale, spread)
  )
  tables = problem.Tables(m, d, start, ctrl, measured, {}, spread, prior, scale, spread)  # weight and join come with each pass
  return tables, put(low), put(high)


def _noise(p, pieces, noise):
  """Standard deviations (n,) by channel; a twentieth of what was seen where they are to be estimated."""
  out = {}
  for c in p.channels:
    if isinstance(noise, Mapping) and c.name not in noise:
      raise ValueError(f"noise has nothing for {c.name!r}, which was measured.")
    given = noise[c.name] if isinstance(noise, Mapping) else noise
    if given is not None and not np.all(np.asarray(given, float) > 0):
      raise ValueError(f"the noise of {c.name!r} has to be positive, not {given}.")
    n = len(c.columns)
    out[c.name] = _seen(c, pieces) / 20 if given is None else np.broadcast_to(np.asarray(given, float), n)
  return out


def _seen(c, pieces):
  """How much each number of a channel varies."""
  if c.tangent:
    return np.ones(len(c.columns))
  x = np.where(pieces.mask[c.name], pieces.measured[c.name], np.nan).reshape(-1, len(c.columns))
  some = np.isfinite(x).any(axis=0)
  out = np.zeros(x.shape[1])
  out[some] = np.nanstd(x[:, some], axis=0)
  return np.where(out > 0, out, 1)


def _left(p, pieces, found, sigma):
  """Standard deviations of what is left over."""
  miss = problem.misses(p, pieces.ctrl.shape[1], np.asarray(found.residual, float), sigma)
  used = sum(x.sum() for x in pieces.mask.values())
  lost = used / max(used - sum(p.sizes), 1)
  out = {}
  for c in p.channels:
    number = np.maximum(pieces.mask[c.name].sum(axis=(0, 1)), 1)
    out[c.name] = np.maximum(np.sqrt(lost * (miss[c.name] ** 2).sum(axis=(0, 1)) / number), _FLOOR * _seen(c, pieces))
  return out
