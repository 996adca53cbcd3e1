"""Scalar rules of operations that only move numbers: they cost nothing.

Tests: tests/compiler/test_paths.py, tests/compiler/test_llvm.py.
"""

import numpy as np

from mjx_lite.compiler.scalars import Unsupported, rule


@rule("broadcast_in_dim")
def _broadcast_in_dim(p, eqn, x):
  shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
  full = [1] * len(shape)
  for k, d in enumerate(dims):
    full[d] = x.shape[k]
  return np.broadcast_to(x.reshape(full), shape)


@rule("tile")
def _tile(p, eqn, x):
  return np.tile(x, eqn.params["reps"])


@rule("reshape")
def _reshape(p, eqn, x):
  return x.reshape(eqn.params["new_sizes"])


@rule("squeeze")
def _squeeze(p, eqn, x):
  return x.reshape(eqn.outvars[0].aval.shape)


@rule("transpose")
def _transpose(p, eqn, x):
  return x.transpose(eqn.params["permutation"])


@rule("rev")
def _rev(p, eqn, x):
  return np.flip(x, eqn.params["dimensions"])


@rule("concatenate")
def _concatenate(p, eqn, *xs):
  return np.concatenate(xs, eqn.params["dimension"])


@rule("stack")
def _stack(p, eqn, *xs):
  return np.stack(xs, eqn.params["axis"])


@rule("unstack")
def _unstack(p, eqn, x):
  return list(np.moveaxis(x, eqn.params["axis"], 0))


@rule("split")
def _split(p, eqn, x):
  return np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])


@rule("slice")
def _slice(p, eqn, x):
  params = eqn.params
  steps = params["strides"] or (1,) * x.ndim
  return x[tuple(slice(a, b, s) for a, b, s in zip(params["start_indices"], params["limit_indices"], steps, strict=True))]


@rule("pad")
def _pad(p, eqn, x, filling):
  config = eqn.params["padding_config"]
  if any(low < 0 or high < 0 for low, high, _ in config):
    raise Unsupported("operation pad with a negative width has no rule")
  out = np.broadcast_to(filling, eqn.outvars[0].aval.shape).copy()
  out[tuple(slice(low, low + (n - 1) * (inner + 1) + 1 if n else low, inner + 1)
            for (low, _, inner), n in zip(config, x.shape, strict=True))] = x  # fmt: skip
  return out


@rule("empty", "empty2")
def _empty(p, eqn):
  return p.constant(np.zeros(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype))


@rule("iota")
def _iota(p, eqn):
  shape, dimension = eqn.params["shape"], eqn.params["dimension"]
  line = np.arange(shape[dimension], dtype=eqn.params["dtype"])
  line = line.reshape([-1 if k == dimension else 1 for k in range(len(shape))])
  return np.broadcast_to(p.constant(line), shape)
