"""HTML page of a fit: values, measured and simulated signals, root mean square residual, confidence ellipses.

Tests: tests/sysid/test_fit.py.
"""

import base64
import html
import io
import math
import os
import pathlib
from typing import Any

import numpy as np

_SIGNALS = 12  # maximum number of measured signals in the figure
_ELLIPSES = 6  # maximum number of pairs of parameters in the figure; the most correlated pairs are drawn

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Identification</title><style>
body {{font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222}}
table {{border-collapse: collapse}} td, th {{padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #ddd}}
td:first-child, th:first-child {{text-align: left}} .bad {{color: #a40000}} img {{max-width: 100%}}
</style></head><body><h1>Identification</h1>{body}</body></html>
"""


def table(fit: Any) -> str:
  """Format the values as an HTML table."""
  rows = []
  for i, label in enumerate(fit.labels):
    note = "the data say nothing" if label in fit.unidentified else "at its bound" if fit.at_bound[i] else ""
    low, high = fit.interval(label)
    cells = [f"{fit.values[i]:.5g}", f"{fit.std[i]:.2g}", f"{low:.5g} to {high:.5g}", f"{fit.first[i]:.5g}"]
    row = "".join(f"<td>{html.escape(x)}</td>" for x in cells)
    rows.append(f"<tr><td>{html.escape(label)}</td>{row}<td class=bad>{note}</td></tr>")
  head = "".join(f"<th>{x}</th>" for x in ("", "found", "standard deviation", "95 % interval", "first", ""))
  state = "converged" if fit.converged else "<span class=bad>not converged</span>"
  summary = f"Root mean square of the misses over the noise: {math.sqrt(fit.chi2):.3g}. {fit.iterations} iterations, {state}."
  return f"<table><tr>{head}</tr>{''.join(rows)}</table><p>{summary}</p>"


def write(fit: Any, path: str | os.PathLike) -> None:
  """Write the HTML page to a file."""
  figures = (("Measured and simulated", signals(fit)), ("Confidence, 95 %", ellipses(fit)))
  body = table(fit) + "".join(f"<h2>{title}</h2>{_image(figure)}" for title, figure in figures if figure is not None)
  pathlib.Path(path).write_text(_PAGE.format(body=body), encoding="utf-8")


def signals(fit: Any, trajectory: int = 0) -> Any:
  """Plot measured signals of one trajectory and the signals of the fitted model."""
  which = [(k, j) for k, x in fit.measured.items() for j in range(x[trajectory].shape[1])][:_SIGNALS]
  figure, axes = _axes(len(which), 2.0)
  h = float(fit.model.opt.timestep)
  for ax, (name, j) in zip(axes, which, strict=False):
    seen = fit.measured[name][trajectory][:, j]
    time = h * np.arange(1, len(seen) + 1)
    ax.plot(time, seen, ".", ms=2, color="tab:gray", label="measured")
    ax.plot(time, seen + fit.misses[name][trajectory][:, j], color="tab:blue", lw=1, label="model")
    ax.set_title(name if fit.measured[name][trajectory].shape[1] == 1 else f"{name}[{j}]", fontsize=9)
  if which:
    axes[0].legend(fontsize=7)
  figure.supxlabel("time [s]", fontsize=9)
  return figure


def ellipses(fit: Any) -> Any:
  """Plot confidence ellipses of the most correlated pairs of parameters; return None if there is no pair."""
  good = [i for i in range(len(fit.labels)) if np.isfinite(fit.std[i]) and fit.std[i] > 0]
  pairs = [(i, j) for a, i in enumerate(good) for j in good[a + 1 :]]
  pairs.sort(key=lambda p: -abs(fit.cov[p]) / (fit.std[p[0]] * fit.std[p[1]]))
  if not pairs:
    return None
  figure, axes = _axes(len(pairs[:_ELLIPSES]), 2.6)
  for ax, (i, j) in zip(axes, pairs[:_ELLIPSES], strict=False):
    ax.plot(*fit.ellipse(fit.labels[i], fit.labels[j]).T, color="tab:blue")
    ax.plot(fit.values[i], fit.values[j], "+", color="tab:blue")
    ax.set_xlabel(fit.labels[i], fontsize=8)
    ax.set_ylabel(fit.labels[j], fontsize=8)
    ax.locator_params(nbins=4)
  return figure


def _axes(count, height):
  """Make a figure with `count` axes, three in a row, without pyplot and so without a window."""
  from matplotlib import figure

  columns, rows = min(3, max(count, 1)), max(1, -(-count // 3))
  fig = figure.Figure(figsize=(3 * columns, height * rows), layout="constrained")
  axes = fig.subplots(rows, columns, squeeze=False).ravel()
  for ax in axes:
    ax.tick_params(labelsize=7)
  for ax in axes[count:]:
    ax.remove()
  return fig, list(axes[:count])


def _image(figure):
  """Encode a figure as an HTML image."""
  out = io.BytesIO()
  figure.savefig(out, format="png", dpi=110)
  return f'<img alt="" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
