"""Scalar rules of products, sums and other reductions.

Tests: tests/compiler/test_paths.py, tests/compiler/test_llvm.py.
"""

import itertools
import math
from typing import Any

import numpy as np

from mjx_lite.compiler.operations import FLOATS, SIGNED, TYPES
from mjx_lite.compiler.scalars import RULES, kind_of, rule


@rule("dot_general")
def _dot_general(p, eqn, a, b):
  (ca, cb), (ba, bb) = eqn.params["dimension_numbers"]
  kind = kind_of(eqn.outvars[0].aval.dtype)
  fa, fb = ([k for k in range(x.ndim) if k not in (*c, *m)] for x, c, m in ((a, ca, ba), (b, cb, bb)))
  shape = [a.shape[k] for k in (*ba, *fa)] + [b.shape[k] for k in fb]
  nbatch = math.prod(a.shape[k] for k in ba)
  sizes = [math.prod(x.shape[k] for k in f) for x, f in ((a, fa), (b, fb))]
  n = math.prod(a.shape[k] for k in ca)
  a = a.transpose(*ba, *fa, *ca).reshape(nbatch, sizes[0], 1, n)
  b = b.transpose(*bb, *fb, *cb).reshape(nbatch, 1, sizes[1], n)
  if not n:
    return p.constant(np.zeros(shape, TYPES[kind]))
  return p.sum([p.map("mul", kind, a[..., k], b[..., k]) for k in range(n)], kind).reshape(shape)


def _of_no_numbers(op: str, kind: str) -> Any:
  """Return the result of a reduction of no numbers."""
  if op in ("max", "min"):
    if kind == "p":
      return op == "min"
    t = TYPES[kind]
    lowest, highest = (-np.inf, np.inf) if kind in FLOATS else (np.iinfo(t).min, np.iinfo(t).max)
    return lowest if op == "max" else highest
  return {"add": 0, "mul": 1, "and": -1 if kind in SIGNED else True, "or": 0}[op]


def _reduction(op):
  """Return the scalar rule of a reduction by an operation."""

  def reduce(p, eqn, x):
    kind, axes = kind_of(eqn.outvars[0].aval.dtype), eqn.params["axes"]
    if not all(x.shape[k] for k in axes):
      return p.constant(np.full(eqn.outvars[0].aval.shape, _of_no_numbers(op, kind), TYPES[kind]))
    return p.fold(op, kind, x, axes)

  return reduce


for _name, _op in (("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min"), ("and", "and"), ("or", "or")):
  RULES[f"reduce_{_name}"] = _reduction(_op)


def _accumulation(op):
  """Return the scalar rule of the reductions of all first parts of an axis."""

  def accumulate(p, eqn, x):
    kind, axis = kind_of(eqn.outvars[0].aval.dtype), eqn.params["axis"]
    rows = list(np.moveaxis(x, axis, 0))
    rows = rows[::-1] if eqn.params["reverse"] else rows
    parts = list(itertools.accumulate(rows, lambda a, b: p.map(op, kind, a, b)))
    return np.moveaxis(np.stack(parts[::-1] if eqn.params["reverse"] else parts), 0, axis) if parts else x

  return accumulate


for _name, _op in (("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min")):
  RULES[f"cum{_name}"] = _accumulation(_op)


def _furthest(op):
  """Return the scalar rule of argmax (`op` is "gt") or argmin ("lt")."""

  def rule(p, eqn, x):
    (axis,) = eqn.params["axes"]
    kind, out_kind = (kind_of(v.aval.dtype) for v in (eqn.invars[0], eqn.outvars[0]))
    if kind == "p":
      x, kind = p.map("select", "i", x, p.constant(np.int32(1)), p.constant(np.int32(0))), "i"
    rows = np.moveaxis(x, axis, 0)
    best, index = rows[0], p.constant(np.zeros(rows.shape[1:], TYPES[out_kind]))
    for k in range(1, len(rows)):
      better = p.map(op, "p", rows[k], best)
      best = p.map("select", kind, better, rows[k], best)
      index = p.map("select", out_kind, better, p.constant(np.array(k, TYPES[out_kind])), index)
    return index

  return rule


RULES["argmax"], RULES["argmin"] = _furthest("gt"), _furthest("lt")
