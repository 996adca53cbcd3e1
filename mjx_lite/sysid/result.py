"""Result of a fit: values, covariance, and the parameters that the data do not determine.

Tests: tests/sysid/test_fit.py.
"""

import dataclasses
import math
import os
import statistics
import warnings
from typing import Any

import numpy as np

import mjx_lite as mjx
from mjx_lite.sysid import problem
from mjx_lite.sysid.segments import Segments

_NEGLIGIBLE = 1e-7  # singular values below this fraction of the largest are rounding errors
_PART = 0.05  # smallest component with which a parameter is listed as part of an undetermined direction


class NotIdentified(UserWarning):
  """Warning that the data do not determine a parameter."""


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
  """Result of `fit` for P parameters; flat arrays in the order of `labels`."""

  model: mjx.Model  # with the fitted values
  labels: list[str]
  values: np.ndarray  # (P,)
  std: np.ndarray  # (P,) standard deviation; inf if not determined, nan at a bound
  cov: np.ndarray  # (P, P) covariance
  first: np.ndarray  # (P,) initial values of the search
  at_bound: np.ndarray  # (P,) whether the value is at a bound
  unidentified: list[str]  # labels of the parameters that the data do not determine
  noise: dict[str, np.ndarray]  # (n,) by name of the measurement, as given or estimated
  chi2: float  # mean square of the residuals in units of the noise; above 1: the model or the noise is wrong
  measured: dict[str, list[np.ndarray]]  # (T, n) by name and trajectory, nan where not measured
  misses: dict[str, list[np.ndarray]]  # (T, n) simulated minus measured
  jump: float  # largest jump between segments, relative to the spread of the states
  iterations: int
  converged: bool

  def __getitem__(self, label: str) -> float:
    """Return the fitted value with this label."""
    return float(self.values[self.labels.index(label)])

  def interval(self, label: str, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of one parameter."""
    i = self.labels.index(label)
    half = statistics.NormalDist().inv_cdf(0.5 + level / 2) * self.std[i]
    return float(self.values[i] - half), float(self.values[i] + half)

  def ellipse(self, a: str, b: str, level: float = 0.95, points: int = 100) -> np.ndarray:
    """Return points (points, 2) on the boundary of the confidence ellipse of two parameters."""
    at = [self.labels.index(a), self.labels.index(b)]
    value, axes = np.linalg.eigh(self.cov[np.ix_(at, at)])
    angle = np.linspace(0, 2 * np.pi, points)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.sqrt(-2 * math.log(1 - level) * np.maximum(value, 0))
    return self.values[at] + circle @ axes.T

  def report(self, path: str | os.PathLike) -> None:
    """Write an HTML page with the values, measured and simulated signals, and confidence ellipses."""
    from mjx_lite.sysid import report

    report.write(self, path)

  def _repr_html_(self) -> str:
    from mjx_lite.sysid import report

    return report.table(self)

  def __repr__(self) -> str:
    width = max(map(len, self.labels))
    lines = [f"{'':{width}}  {'found':>11} {'+-':>9} {'first':>11}"]
    for i, label in enumerate(self.labels):
      note = "  says nothing" if label in self.unidentified else "  at its bound" if self.at_bound[i] else ""
      lines.append(f"{label:{width}}  {self.values[i]:11.5g} {self.std[i]:9.2g} {self.first[i]:11.5g}{note}")
    state = "converged" if self.converged else "NOT converged"
    return "\n".join([*lines, f"misses / noise {math.sqrt(self.chi2):.3g}, {self.iterations} iterations, {state}"])


def summarise(m, fitted, p: problem.Structure, segments: Segments, box: Any, found: Any, sigma: dict, iterations: int) -> Fit:
  """Make the Fit: compute covariance and residuals, and warn of undetermined parameters. `found` is the scaled solution."""
  count = len(box.first)
  z, J = np.asarray(found.z, float), np.asarray(found.jacobian, float)
  values = z[:count] * box.scale
  near = 1e-9 * np.maximum(np.abs(values), box.scale)
  at_bound = (values - box.low < near) | (box.high - values < near)
  cov, unidentified = _covariance(J, count, at_bound, box)
  variance = np.diagonal(cov)
  std = np.where(at_bound, np.nan, np.sqrt(variance))
  r = np.asarray(found.residual, float)
  residuals = problem.channel_residuals(p, segments.ctrl.shape[1], r, sigma)
  number = sum(x.sum() for x in segments.mask.values())
  chi2 = sum((residuals[k] ** 2 / sigma[k] ** 2).sum() for k in sigma) / max(number - count, 1)
  first_jump = p.segments * segments.ctrl.shape[1] * sum(len(c.columns) for c in p.channels)
  jumps = r[first_jump : first_jump + len(p.link) * (2 * m.nv + m.na)]
  measured, misses = {}, {}
  for c in p.channels:
    mask = segments.mask[c.name]
    observed = -residuals[c.name] if c.tangent else segments.measured[c.name]
    measured[c.name] = _join(np.where(mask, observed, np.nan), segments)
    misses[c.name] = _join(np.where(mask, residuals[c.name], np.nan), segments)
  for text in _warnings(box, at_bound, unidentified):
    warnings.warn(text, NotIdentified, stacklevel=3)
  return Fit(
    model=fitted,
    labels=box.labels,
    values=values,
    std=std,
    cov=cov,
    first=box.first,
    at_bound=at_bound,
    unidentified=list(unidentified),
    noise=sigma,
    chi2=float(chi2),
    measured=measured,
    misses=misses,
    jump=float(np.abs(jumps).max(initial=0)) * problem.JUMPS[-1],
    iterations=iterations,
    converged=bool(found.converged),
  )


def _covariance(J, count, at_bound, box):
  """Compute the covariance (P, P), inf where nothing is known, and a dict of the undetermined parameters.

  The dict maps each label to the labels that the data cannot separate from it; '' if the data depend too little on it.
  """
  free = ~at_bound
  theta, starts = J[:, :count][:, free], J[:, count:]
  starts = starts[:, np.any(starts != 0, axis=0)]
  if starts.shape[1]:  # project out the directions that the starts of segments explain as well
    q, _ = np.linalg.qr(starts)
    theta = theta - q @ (q.T @ theta)
  labels = [x for x, f in zip(box.labels, free, strict=True) if f]
  norms = np.sqrt((theta**2).sum(axis=0))
  unidentified = {x: "" for x, a in zip(labels, norms, strict=True) if a < max(1, _NEGLIGIBLE * norms.max(initial=0))}
  # undetermined directions: over the whole scale, the data change by less than their noise
  _, size, axes = np.linalg.svd(theta, full_matrices=False) if theta.size else (0, np.zeros(0), np.zeros((0, 0)))
  undetermined = (size <= 0) | (size < _NEGLIGIBLE * size.max(initial=0))
  inverse = np.where(undetermined, 0, 1 / np.where(undetermined, 1, size))
  root = axes.T * inverse
  free_cov = root @ root.T
  infinite = (axes[undetermined] ** 2).sum(axis=0) > 1e-6
  free_cov[infinite, infinite] = np.inf
  for axis in axes[size < max(1, _NEGLIGIBLE * size.max(initial=0))]:
    group = [x for x, a in zip(labels, axis, strict=True) if abs(a) > _PART and x not in unidentified]
    if len(group) > 1:
      unidentified.update({x: ", ".join(y for y in group if y != x) for x in group})
  cov = np.zeros((count, count))
  cov[np.ix_(free, free)] = free_cov
  with np.errstate(invalid="ignore"):
    cov = cov * box.scale[:, None] * box.scale
  return np.nan_to_num(cov, nan=0.0, posinf=np.inf), unidentified


def _warnings(box, at_bound, unidentified):
  """Yield messages about undetermined parameters and parameters at a bound."""
  for label, inseparable in unidentified.items():
    if inseparable:
      yield f"the data do not tell {label} from {inseparable}: only a combination of them is determined."
    else:
      yield f"the data say nothing about {label}: over its whole scale they change by less than their noise."
  for label in np.array(box.labels)[at_bound]:
    yield f"{label} ends at its bound."


def _join(x, segments):
  """Concatenate segments (S, K, n) to trajectories (T, n), without the padding."""
  trajectory = np.array([i for i, _ in segments.rows])
  return [np.concatenate(x[trajectory == i])[: segments.length[i]] for i in range(trajectory[-1] + 1)]
