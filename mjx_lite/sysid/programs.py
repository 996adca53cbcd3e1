"""Programs of a fit: compiled ahead of time, in parallel, and run on all cores.

Tests: tests/sysid/test_fit.py.
"""

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import mjx_lite as mjx
from mjx_lite.compiler import workarounds
from mjx_lite.sysid import problem

_WIDEST = 64  # maximum segments in a part: above 16 segments, the time per segment hardly falls


class CompiledAhead:
  """A function that is traced by the caller and compiled in a background thread, once per shape of its arguments."""

  def __init__(self, function: Callable[..., Any], **options: Any):
    self._jit: Any = mjx.jit(function, **options)  # has `lower`, as a function of `jax.jit`
    self._programs = {}

  def prepare(self, *args: Any) -> concurrent.futures.Future:
    """Start to compile for arguments of the given shapes and dtypes; `args` are arrays or ShapeDtypeStructs."""
    leaves, form = jax.tree.flatten(args)
    key = form, tuple((np.shape(x), np.dtype(x.dtype)) for x in leaves)
    if key not in self._programs:
      shapes = [jax.ShapeDtypeStruct(*k) for k in key[1]]
      lower = workarounds.eased(self._jit.lower)
      lowered = lower(*jax.tree.unflatten(form, shapes))  # in this thread: JAX's settings are thread-local
      self._programs[key] = _pool().submit(lowered.compile)
    return self._programs[key]

  def shapes(self, *args: Any) -> Any:
    """Return the shapes and dtypes of the result."""
    return workarounds.eased(jax.eval_shape)(self._jit, *args)

  def __call__(self, *args: Any) -> Any:
    """Return the function's value; wait for the compilation if needed."""
    return self.prepare(*args).result()(*args)


_POOL: list[concurrent.futures.ThreadPoolExecutor] = []


def _pool() -> concurrent.futures.ThreadPoolExecutor:
  """Return the pool of threads; the first call makes the pool."""
  if not _POOL:
    _POOL.append(concurrent.futures.ThreadPoolExecutor(max(2, cores()), "mjx_lite.sysid"))
  return _POOL[0]


def cores() -> int:
  """Return the number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def part_size(segments: int) -> int:
  """Choose the number of segments per part: at most `_WIDEST`, with parts spread evenly over the cores; all on accelerators."""
  if jax.default_backend() != "cpu":
    return segments
  rounds = -(-segments // (_WIDEST * cores()))
  return -(-segments // (rounds * cores()))


def split_tables(t: problem.Tables, segments: int) -> list[problem.Tables]:
  """Split the tables into parts of `segments` segments; the last part is padded with copies of the last segment."""
  count = len(t.ctrl)
  rows = [np.minimum(np.arange(a, a + segments), count - 1) for a in range(0, count, segments)]
  by_segment = ("start", "ctrl", "measured", "weight", "prior")

  def select(k, i):
    return jax.tree.map(lambda x: np.asarray(x)[i], getattr(t, k))

  return [jax.device_put(t._replace(**{k: select(k, i) for k in by_segment})) for i in rows]


def concatenate(found: Sequence[problem.Linearised], segments: int) -> problem.Linearised:
  """Concatenate the results of all parts and remove the padding."""

  def join(axis):
    return lambda *x: jax.numpy.concatenate(x, axis)[(slice(None),) * axis + (slice(segments),)]

  if len(found) == 1 and len(found[0].residual) == segments:
    return found[0]
  residual, jacobian, end = (jax.tree.map(join(0), *(getattr(x, k) for x in found)) for k in ("residual", "jacobian", "end"))
  return problem.Linearised(residual, jacobian, end, jax.tree.map(join(1), *(x.end_tangent for x in found)))


def run_parallel(program: CompiledAhead, arguments: Sequence[tuple]) -> list:
  """Run the program for each tuple of arguments, in parallel threads; return the list of results."""
  program.prepare(*arguments[0]).result()
  if len(arguments) == 1:
    return [program(*arguments[0])]
  return list(_pool().map(lambda args: jax.block_until_ready(program(*args)), arguments))
