"""Report of the paths that a model's step, rollout and gradient take on this device, and of why no faster path is taken.

Tests: tests/compiler/test_paths.py.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mjx_lite.api import step
from mjx_lite.compiler import paths, regions, workarounds
from mjx_lite.compiler.backends import llvm, ptx
from mjx_lite.errors import SlowPathWarning
from mjx_lite.io.data import make_data
from mjx_lite.model.capacity import Capacity
from mjx_lite.model.types import Data, Model
from mjx_lite.rollout import rollout

_WORLDS = 16  # batch size that is lowered; the path does not depend on it


class Explanation(NamedTuple):
  """Result of `explain`; `print` shows it as a table.

  Attributes:
    device: JAX's default device.
    capacity: capacities of contacts, as arguments of put_model.
    paths: for each function, the paths of the engine's calls in it, in order. The first path with a reason says why it is not
      the fastest path; `details` is the traceback of the failure.
    borrowed: for each undocumented feature that the engine uses, the traceback of its probe, "" if the probe passed.
  """

  device: str
  capacity: Capacity
  paths: dict[str, tuple[paths.Path, ...]]
  borrowed: dict[str, str]

  def __str__(self) -> str:
    lines = [f"device: {self.device}", f"contacts: put_model(m, {self.capacity})"]
    for function, found in self.paths.items():
      for p in found:
        reason = f": {p.reason}" if p.reason else ""
        lines.append(f"{function}: {p.path}{reason}")
        lines += [f"    {line}" for line in p.details.splitlines()]
    for name, failure in self.borrowed.items():
      lines.append(f"{name}: {'works' if not failure else 'does not work: ' + failure.strip().splitlines()[-1]}")
    return "\n".join(lines)


def explain(m: Model) -> Explanation:
  """Report which path step, rollout and gradient of a model take on JAX's default device, and why no faster path.

  On a CPU and on an NVIDIA GPU the model is compiled up to three times, which takes up to half a minute; no step is run.
  Arguments of other types or a batch of Models raise the same errors as in `step`.

  Args:
    m: the model.

  Returns:
    The paths, and the state of every undocumented feature of JAX, XLA, LLVM and CPython that the engine uses.
  """
  one = make_data(m)
  many = jax.tree.map(lambda x: jnp.broadcast_to(x, (_WORLDS, *x.shape)), one)
  batch = jax.vmap(step, in_axes=(None, 0))

  def rolled(m: Model, d: Data) -> Any:
    return jax.vmap(lambda d: rollout(m, d, steps=2)[0].qpos)(d)

  def slope(function: Callable[[Model, Data], Data]) -> Callable[[Model, Data], Any]:
    return lambda m, d: jax.grad(lambda qvel: function(m, d.replace(qvel=qvel)).qpos.sum())(d.qvel)

  functions: dict[str, tuple[Callable[[Model, Data], Any], Data]] = {
    "step of one world": (step, one),
    "step of a batch": (batch, many),
    "rollout of a batch": (rolled, many),
    "gradient of one world": (slope(step), one),
    "gradient of a batch": (slope(batch), many),
  }
  found = {}
  for name, (function, d) in functions.items():
    with paths.recording() as calls, warnings.catch_warnings():
      warnings.simplefilter("ignore", SlowPathWarning)  # the result has the warning's text
      traced = jax.jit(lambda m, d, function=function: function(m, d)).trace(m, d)
      # derivatives record paths at tracing, engine calls at lowering; lowering for XLA takes long, so it is skipped if possible
      if not calls or any(not p.reason for p in calls):
        traced.lower()
    found[name] = tuple(calls)
  backend = jax.default_backend()
  used = (*workarounds.BORROWED, llvm.KERNELS) if backend == "cpu" else workarounds.BORROWED
  used = (*used, ptx.KERNELS) if backend == "gpu" else used
  device = f"{backend}, JAX {jax.__version__}" + (f", {regions.lanes() or 1} world(s) in a region" if backend == "cpu" else "")
  return Explanation(device, m.capacity, found, {b.name: workarounds.failure(b) for b in used})
