"""Programs of a fit: compiled ahead, side by side, and run on all cores."""

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import mjx_lite as mjx
from mjx_lite.core import workarounds
from mjx_lite.sysid import problem

_WIDEST = 64  # segments in a part: from 16 on a segment takes hardly less time in a wider one


class Ahead:
  """A function that is traced here and compiled in the background, once for each shape of its arguments."""

  def __init__(self, function: Callable[..., Any], **options: Any):
    self._jit, self._made = mjx.jit(function, **options), {}

  def prepare(self, *args: Any) -> concurrent.futures.Future:
    """Begin to compile for arguments like these: arrays, or their shapes."""
    leaves, form = jax.tree.flatten(args)
    key = form, tuple((np.shape(x), np.dtype(x.dtype)) for x in leaves)
    if key not in self._made:
      like = [jax.ShapeDtypeStruct(*k) for k in key[1]]
      lower = workarounds.eased(self._jit.lower)
      lowered = lower(*jax.tree.unflatten(form, like))  # here: other threads have other settings of JAX
      self._made[key] = _pool().submit(lowered.compile)
    return self._made[key]

  def shapes(self, *args: Any) -> Any:
    """Shapes of the value."""
    return workarounds.eased(jax.eval_shape)(self._jit, *args)

  def __call__(self, *args: Any) -> Any:
    """The function's value."""
    return self.prepare(*args).result()(*args)


_POOL: list[concurrent.futures.ThreadPoolExecutor] = []


def _pool() -> concurrent.futures.ThreadPoolExecutor:
  """Threads, made when they are needed first."""
  if not _POOL:
    _POOL.append(concurrent.futures.ThreadPoolExecutor(max(2, cores()), "mjx_lite.sysid"))
  return _POOL[0]


def cores() -> int:
  """Cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def width(segments: int) -> int:
  """Segments in a part, so that all parts are of one size and every core has one: on accelerators all of them."""
  if jax.default_backend() != "cpu":
    return segments
  rounds = -(-segments // (_WIDEST * cores()))
  return -(-segments // (rounds * cores()))


def parts(t: problem.Tables, segments: int) -> list[problem.Tables]:
  """Tables of so many segments each; the last one is filled up with its last segment."""
  count = len(t.ctrl)
  rows = [np.minimum(np.arange(a, a + segments), count - 1) for a in range(0, count, segments)]
  own = ("start", "ctrl", "measured", "weight", "prior")

  def take(k, i):
    return jax.tree.map(lambda x: np.asarray(x)[i], getattr(t, k))

  return [jax.device_put(t._replace(**{k: take(k, i) for k in own})) for i in rows]


def together(found: Sequence[problem.Pushed], segments: int) -> problem.Pushed:
  """One of all parts."""

  def whole(axis):
    return lambda *x: jax.numpy.concatenate(x, axis)[(slice(None),) * axis + (slice(segments),)]

  if len(found) == 1 and len(found[0].misses) == segments:
    return found[0]
  misses, slope, end = (jax.tree.map(whole(0), *(getattr(x, k) for x in found)) for k in ("misses", "slope", "end"))
  return problem.Pushed(misses, slope, end, jax.tree.map(whole(1), *(x.end_slope for x in found)))


def on_all_cores(program: Ahead, each: Sequence[tuple]) -> list:
  """The program's values at each of several arguments."""
  program.prepare(*each[0]).result()
  if len(each) == 1:
    return [program(*each[0])]
  return list(_pool().map(lambda args: jax.block_until_ready(program(*args)), each))
