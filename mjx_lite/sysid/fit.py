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
from mjx_lite.sysid.params import Param, apply, labels_of, size
from mjx_lite.sysid.problem import Trajectory
from mjx_lite.sysid.result import Fit, summarise
from mjx_lite.sysid.segments import Segments, split

_AGAIN = 2  # passes with the noise estimated from the residuals of the previous pass
_FLOOR = 1e-9  # lower bound of the estimated noise, relative to the spread of the measurements


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
  """Fit parameters of the model to measured trajectories by least squares, with residuals in units of the noise.

  The method is Levenberg-Marquardt (optimistix) with exact forward-mode Jacobians through the steps, also through contacts.
  Use 64 bits (`jax.config.update("jax_enable_x64", True)`): in 32 bits the search stops early.

  Args:
    m: the model; the search starts from the model's values of the parameters.
    params: the unknown parameters: `sysid.field(m, "dof_damping", "hip", bounds=(0, 2))`, `sysid.mass`, `sysid.kp`, ...
    trajectories: the measured trajectories.
    noise: standard deviation of the measurements: a number, or a mapping from names to a number or (n,). If None, the noise of
      each measured number is estimated from the residuals.
    start_noise: standard deviation of the given initial states in tangent coordinates (dqpos, dqvel, dact), a number or (nx,);
      the initial states are then unknowns too. None: the initial states are exact. inf: the initial states are unknown.
    segment: number of steps of a segment, for multiple shooting of long, unstable or chaotic trajectories. The states at the
      starts of segments are then unknowns, guessed from measured qpos and qvel. The jumps between segments shrink to nearly
      zero in three passes. None: each trajectory is one segment.
    iterations: maximum number of evaluations in a pass.
    tolerance: relative change at which to stop; by default 1e-8 in 64 bits, 1e-4 in 32 bits.

  Returns:
    the fitted model, the values with their covariance, the measurements, and the residuals. `fit` warns (`NotIdentified`) of
    every parameter that the data do not determine.
  """
  params = (params,) if isinstance(params, Param) else tuple(params)
  params = tuple(x._replace(bounds=(float(x.bounds[0]), float(x.bounds[1])), labels=tuple(x.labels)) for x in params)
  trajectories = [trajectories] if isinstance(trajectories, Trajectory) else list(trajectories)
  _check_arguments(params, trajectories)
  d = mjx.jit(mjx.make_data)(m)  # one program instead of one per field
  names = dict.fromkeys(name for t in trajectories for name in t.measured)
  channels = tuple(problem.channel(m, d, name) for name in names)
  segments = split(m, d, trajectories, channels, segment)
  p = problem.Structure(
    params=params,
    sizes=tuple(size(m, x) for x in params),
    channels=channels,
    segments=len(segments.ctrl),
    link=segments.link,
    starts=bool(segments.link) or start_noise is not None,
  )
  box = _box(m, params)
  tolerance = tolerance or (1e-8 if m.qpos0.dtype == jnp.float64 else 1e-4)
  tables, low, high = _tables(m, d, p, segments, box, start_noise)
  solver = _solver(p, tolerance)
  found, sigma, total = _run_passes(p, segments, solver, tables, low, high, box, noise, iterations)
  if not (np.isfinite(found.residual).all() and np.isfinite(found.jacobian).all()):
    raise FloatingPointError(
      "the rollouts or the derivatives of the rollouts are not finite. Use other initial values of the parameters, or segment=."
    )
  if not found.converged:
    warnings.warn(
      f"sysid.fit has not converged within {iterations} evaluations: the returned values are not at a minimum.", stacklevel=2
    )
  values = np.asarray(found.z[: len(box.first)], float) * box.scale
  return summarise(m, _applied(params)(m, np.asarray(values, low.dtype)), p, segments, box, found, sigma, total)


def _check_arguments(params, trajectories):
  """Raise ValueError if there is nothing to fit, or nothing to fit to."""
  for name, given in (("params", params), ("trajectories", trajectories)):
    if not given:
      raise ValueError(f"{name} is empty: sysid.fit needs at least one element.")
  if not any(t.measured for t in trajectories):
    raise ValueError(
      "no trajectory has measurements: Trajectory.measured maps names of sensors, or of fields of Data, to one row per step."
    )


def _run_passes(p, segments: Segments, solver, tables, low, high, box, noise, iterations):
  """Run the passes: smaller and smaller jumps between segments, then again with the noise estimated from the residuals.

  Returns:
    the solution of the last pass, the noise by channel, and the number of iterations of all passes.
  """
  sigma = _noise(p, segments, noise)
  passes = [(jump, False) for jump in (problem.JUMPS if segments.link else problem.JUMPS[-1:])]
  passes += [(problem.JUMPS[-1], True)] * (_AGAIN if noise is None else 0)
  z, total = np.zeros_like(low), 0
  z[: len(box.first)] = box.first / box.scale
  found: Any = None
  for jump, again in passes:
    sigma = _residual_noise(p, segments, found, sigma) if again else sigma
    weight = {k: np.asarray(segments.mask[k] / sigma[k], low.dtype) for k in sigma}
    found = solver(z, tables._replace(weight=weight, join=1 / (jump * tables.spread)), low, high, iterations)
    z, total = np.asarray(found.z), total + int(found.iterations)
  return found, sigma, total


class Box(NamedTuple):
  """Initial values, bounds and scales of the P parameters."""

  labels: list[str]  # P labels
  first: np.ndarray  # (P,)
  low: np.ndarray  # (P,)
  high: np.ndarray  # (P,)
  scale: np.ndarray  # (P,)


def _box(m, params):
  """Return initial values, bounds and scales (P,) of the parameters; check that the initial values are within bounds."""
  labels = labels_of(m, params)
  values = [np.asarray(x, float) for x in _first(params)(m)]
  first = np.concatenate(values)
  pairs = list(zip(params, values, strict=True))
  low, high = (np.concatenate([np.full(len(x), p.bounds[i], float) for p, x in pairs]) for i in (0, 1))
  bad = np.flatnonzero((first < low) | (first > high) | ~np.isfinite(first))
  if len(bad):
    outside = ", ".join(f"{labels[i]} = {first[i]:g} is not within [{low[i]:g}, {high[i]:g}]" for i in bad)
    raise ValueError(f"the search starts from the values of the model, which must be within the bounds: {outside}.")
  given = np.concatenate([np.full(len(x), p.scale or np.nan) for p, x in pairs])
  wide = np.where(np.isfinite(high - low), high - low, np.where(first != 0, np.abs(first), 1))
  return Box(labels=labels, first=first, low=low, high=high, scale=np.where(np.isfinite(given), given, wide))


@functools.lru_cache(maxsize=16)
def _solver(p, tolerance):
  """Make the least-squares solver. The cache reuses the compiled programs for equal Params and data of the same shape."""
  if importlib.util.find_spec("optimistix") is None:
    raise ImportError("sysid.fit needs optimistix: pip install 'mjx_lite[sysid]'.")
  count, width = sum(p.sizes), programs.part_size(p.segments)
  propagate = _propagation(p._replace(segments=width, link=(0,) if p.link else ()))

  @programs.CompiledAhead
  def step(now, first, found, tables, low, high):
    found = programs.concatenate(found, p.segments)
    linearised = problem.assemble_jacobian(p, now.next_z, found, tables)
    return _solve().advance(now, first, linearised, low, high, tolerance=tolerance)

  def run(z, tables, low, high, iterations):
    parts = programs.split_tables(tables, width)

    def arguments(z):
      delta = np.zeros((p.segments, tables.spread.size), z.dtype)
      delta = z[count:].reshape(delta.shape) if p.starts else delta
      delta = np.concatenate([delta, np.repeat(delta[-1:], width * len(parts) - p.segments, axis=0)])
      return [(z[:count], delta[i * width : (i + 1) * width], t) for i, t in enumerate(parts)]

    part_shapes = propagate.shapes(*arguments(z)[0])
    propagate.prepare(*arguments(z)[0])  # compiles while the other programs are imported and traced
    shapes = [part_shapes] * len(parts)

    def assemble(*found):
      return problem.assemble_jacobian(p, z, programs.concatenate(found, p.segments), tables)

    linearised = jax.eval_shape(assemble, *shapes)
    start = _solve().begin(z, linearised, low, high)
    step.prepare(start, np.asarray(True), shapes, tables, low, high)
    _applied(p.params).prepare(tables.m, z[:count])  # needed after the search; compiles in the background
    return _solve().least_squares(
      lambda z: programs.run_parallel(propagate, arguments(np.asarray(z))),
      lambda now, first, found: step(now, first, found, tables, low, high),
      start, iterations,
    )  # fmt: skip

  return run


def _solve():
  """Import the module that needs optimistix; the import is slow."""
  from mjx_lite.sysid import solve

  return solve


@functools.lru_cache(maxsize=16)
def _propagation(p):
  """Compile `problem.propagate_tangents` with scaled unknowns as arguments."""
  return programs.CompiledAhead(lambda theta, delta, t: problem.propagate_tangents(p, theta * t.scale, delta * t.spread, t))


@functools.lru_cache(maxsize=16)
def _first(params):
  """Compile one program that reads the model's own values of the parameters."""
  return programs.CompiledAhead(lambda m: [p.get(m) for p in params])


@functools.lru_cache(maxsize=16)
def _applied(params):
  """Compile `apply` with little optimization, because it runs once; eager evaluation would compile twice as long."""
  options = {"xla_backend_optimization_level": 0}
  return programs.CompiledAhead(lambda m, values: apply(m, params, values), compiler_options=options)


def _tables(m, d, p, segments: Segments, box, start_noise):
  """Return the tables of the problem without the weights, and the bounds of the unknowns."""
  nx, dtype = 2 * m.nv + m.na, m.qpos0.dtype
  state = np.concatenate([segments.start["qvel"], segments.start["act"]], axis=1)
  spread = np.concatenate([np.ones(m.nv), np.maximum(np.abs(state).max(axis=0, initial=0), 1)]) if p.starts else np.ones(nx)
  prior, free = np.zeros((p.segments, nx)), np.full((p.segments, nx), np.inf)
  if start_noise is None:
    free[segments.first] = 0
  else:
    prior[segments.first] = 1 / np.broadcast_to(np.asarray(start_noise, float), nx)
  free = free.ravel() if p.starts else np.zeros(0)
  low, high = (np.concatenate([x / box.scale, y]) for x, y in ((box.low, -free), (box.high, free)))

  def put(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)

  start, ctrl, measured = map(put, (segments.start, segments.ctrl, segments.measured))
  prior, scale, spread = map(put, (prior, box.scale, spread))
  tables = problem.Tables(
    m=m,
    d=d,
    start=start,
    ctrl=ctrl,
    measured=measured,
    weight={},  # each pass sets weight and join
    join=spread,
    prior=prior,
    scale=scale,
    spread=spread,
  )
  return tables, put(low), put(high)


def _noise(p, segments, noise):
  """Return standard deviations (n,) by channel; first guess 1/20 of the spread of the measurements if none are given."""
  out = {}
  for c in p.channels:
    if isinstance(noise, Mapping) and c.name not in noise:
      raise ValueError(f"noise has no entry for the measurement {c.name!r}: give one standard deviation per measurement.")
    given = noise[c.name] if isinstance(noise, Mapping) else noise
    if given is not None and not np.all(np.asarray(given, float) > 0):
      raise ValueError(f"noise[{c.name!r}] = {given} is not possible: a standard deviation must be positive.")
    n = len(c.columns)
    out[c.name] = _spread(c, segments) / 20 if given is None else np.broadcast_to(np.asarray(given, float), n)
  return out


def _spread(c, segments):
  """Return the standard deviation of each measured number of a channel; 1 if it does not vary, and for tangent channels."""
  if c.tangent:
    return np.ones(len(c.columns))
  x = np.where(segments.mask[c.name], segments.measured[c.name], np.nan).reshape(-1, len(c.columns))
  is_measured = np.isfinite(x).any(axis=0)
  out = np.zeros(x.shape[1])
  out[is_measured] = np.nanstd(x[:, is_measured], axis=0)
  return np.where(out > 0, out, 1)


def _residual_noise(p, segments, found, sigma):
  """Estimate the noise: standard deviations of the residuals."""
  residuals = problem.channel_residuals(p, segments.ctrl.shape[1], np.asarray(found.residual, float), sigma)
  count = sum(x.sum() for x in segments.mask.values())
  correction = count / max(count - sum(p.sizes), 1)  # for the fitted parameters
  out = {}
  for c in p.channels:
    number = np.maximum(segments.mask[c.name].sum(axis=(0, 1)), 1)
    deviation = np.sqrt(correction * (residuals[c.name] ** 2).sum(axis=(0, 1)) / number)
    out[c.name] = np.maximum(deviation, _FLOOR * _spread(c, segments))
  return out
