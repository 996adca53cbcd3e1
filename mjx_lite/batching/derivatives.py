"""Derivatives of the engine's calls. They are calls too, so they are compiled, batched and differentiated again as all calls.

* Forward mode: the `jvp` rule binds the call, and another call that computes tangents of the results.
* Reverse mode: the transpose of that other call is a call that computes cotangents of the leaves.

Both compute the values of the first call again. Between the calls nothing is stored but the leaves, and what the first call has
saved (`compiler/saved.py`).

Tests: tests/gradients/test_derivatives.py.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad

from mjx_lite.batching import worlds
from mjx_lite.batching.worlds import Call, native_p
from mjx_lite.compiler import paths, regions, saved, scalars, workarounds
from mjx_lite.compiler.backends import llvm
from mjx_lite.ops import lanes


@dataclasses.dataclass(frozen=True)
class Derivative:
  """The derivative of a call: a native function of flat operands.

  The operands are the leaves that the call reads, the values that the call has saved, and tangents of some leaves; the results
  are tangents of some of the call's results. In reverse mode the last operands are cotangents of these results, and the results
  are cotangents of these leaves, separate for each world.

  Attributes:
    call: the call.
    shapes: shape of one world, and dtype, of each leaf of the call.
    read: indices of the leaves that the call reads.
    nsaved: number of values that the call saves.
    varied: indices of the leaves that have tangents.
    results: indices of the results that have tangents.
    is_reverse: whether the derivative is that of reverse mode.
  """

  call: Call
  shapes: tuple[tuple[tuple[int, ...], Any], ...]
  read: tuple[int, ...]
  nsaved: int
  varied: tuple[int, ...]
  results: tuple[int, ...]
  is_reverse: bool = False

  @property
  def __name__(self) -> str:
    return f"derivative of {self.call.name}"

  @property
  def nprimals(self) -> int:
    """Number of operands before the tangents or cotangents."""
    return len(self.read) + self.nsaved

  def __call__(self, *operands: jax.Array) -> list[jax.Array]:
    """Return the tangents, in reverse mode the cotangents."""
    width = max((x.shape[-1] for x in operands), default=1)
    leaves = [jnp.zeros((*s, 1 if i < self.call.nshared else width), t) for i, (s, t) in enumerate(self.shapes)]
    leaves = regions.put(leaves, self.read, operands[: len(self.read)])
    kept = iter(operands[len(self.read) : self.nprimals])
    moved, varied = [
      [jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in part]
      for part in (operands[self.nprimals :], [leaves[i] for i in self.varied])
    ]
    call = self.call if lanes.packs() else self.call.plain
    closed = worlds.trace_all(call, True, worlds.shapes_of(regions.put(leaves, self.varied, varied)))

    def results(*varied):
      out = jex_core.jaxpr_as_fun(closed)(*regions.put(leaves, self.varied, varied))
      return [out[k] for k in self.results]

    def derivative(varied, moved):
      return list(jax.vjp(results, *varied)[1](moved)) if self.is_reverse else jax.jvp(results, varied, moved)[1]

    program = jax.make_jaxpr(derivative)(varied, moved)
    return saved.evaluate(program, [*varied, *moved], lambda x: next(kept, x))


def _jvp(primals, tangents, *, call, batched):
  primals = [jnp.asarray(x) for x in primals]  # a primal may be a literal
  if call.opened is not None:
    return regions.jvp_of(_opened(call, batched, primals), primals, tangents)
  full = call._replace(outs=None, is_differentiated=bool(call.why_loops))
  inner = worlds.program(full, batched, primals)
  outs = range(len(inner.outvars)) if call.outs is None else call.outs
  nsaved = saved.count(inner)
  first = len(inner.outvars) - nsaved * call.saves  # of the results that are saved values
  ends = tuple(sorted({*outs, *range(first, first + nsaved)}))
  made = dict(zip(ends, native_p.bind(*primals, call=call._replace(outs=ends, saves=True), batched=batched), strict=True))
  kept = [_kept(made[first + k], batched) for k in range(nsaved)]
  out = [made[k] for k in outs]

  varied = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero and t.dtype != jax.dtypes.float0]
  passed = {k: i for k in outs if (i := _index(inner.invars, inner.outvars[k])) is not None}
  found = {k: tangents[i] for k, i in passed.items() if i in varied}
  reached = _reached(inner, varied)
  results = [k for k in dict.fromkeys(outs) if k in reached and k not in passed]
  read = workarounds.read(inner, [k in set(results) for k in range(len(inner.outvars))])
  varied = [i for i in varied if read[i]]
  if varied and results:
    at = tuple(i for i, is_read in enumerate(read) if is_read)
    shapes = tuple((v.aval.shape[:-1], v.aval.dtype) for v in inner.invars)
    native = Derivative(full, shapes, at, nsaved, tuple(varied), tuple(results))
    slow = _why_no_kernels(full, inner, results)
    if slow:
      paths.record(paths.Path(f"derivative of {call.name}", worlds.width_of(primals, batched), paths.KERNELS, slow))
    derived = _call_of(native, full, len(varied))._replace(slow=slow)
    operands = [*(primals[i] for i in at), *kept, *(tangents[i] for i in varied)]
    found |= zip(results, native_p.bind(*operands, call=derived, batched=batched), strict=True)
  return out, [_tangent(found.get(k), x) for k, x in zip(outs, out, strict=True)]


def _kept(x: jax.Array, batched: bool) -> jax.Array:
  """Return a value that the first call saves, marked with its world axis where kernels have it: then nothing is moved."""
  return jnp.moveaxis(saved.mark(jnp.moveaxis(x, -1, _axis())), _axis(), -1) if batched else saved.mark(x)


def _axis() -> int:
  """Return the world axis of arrays between calls. On a CPU kernels have it first, as users do."""
  return 0 if jax.default_backend() == "cpu" else -1


def _call_of(native: Derivative, call: Call, nmoved: int) -> Call:
  """Return the call of a derivative, with `nmoved` operands after the primals."""
  tree = jax.tree.structure([0] * (native.nprimals + nmoved))
  nshared = sum(i < native.call.nshared for i in native.read)
  return call._replace(native=native, static=(), in_tree=tree, nshared=nshared, outs=None, saves=False)


def _index(variables: Sequence[Any], v: Any) -> int | None:
  return next((i for i, x in enumerate(variables) if x is v), None)


def _reached(jaxpr: jex_core.Jaxpr, varied: Sequence[int]) -> set[int]:
  """Return the indices of the results of dtype float that depend on some arguments."""
  depends = {jaxpr.invars[i] for i in varied}
  for e in jaxpr.eqns:
    if not depends.isdisjoint(regions.variables([e])):
      depends.update(e.outvars)
  outs = {k: v for k, v in enumerate(jaxpr.outvars) if not isinstance(v, jex_core.Literal)}
  is_float = lambda v: jnp.issubdtype(v.aval.dtype, jnp.floating)  # noqa: E731  # pyright: ignore[reportAttributeAccessIssue]
  return {k for k, v in outs.items() if v in depends and is_float(v)}


def _tangent(t: Any, out: Any) -> Any:
  """Return a tangent with the shape of its result, or a symbolic zero if there is none."""
  if t is not None:
    return jnp.broadcast_to(t, out.shape)
  is_float = jnp.issubdtype(out.dtype, jnp.floating)
  return ad.Zero(jax.core.ShapedArray(out.shape, out.dtype if is_float else jax.dtypes.float0))


def _why_no_kernels(call: Call, jaxpr: jex_core.Jaxpr, results: Sequence[int]) -> str:
  """Return the first reason why derivatives of some results of a call are not tried as kernels, "" if they are tried."""
  if call.slow:
    return call.slow
  if jax.default_backend() != "cpu":
    return "derivatives have machine code on a CPU only"
  if call.why_loops:
    return ""
  jaxpr = workarounds.alive(jaxpr, [k in set(results) for k in range(len(jaxpr.outvars))])
  size = sum(scalars.numbers(e, once=True) for e in jaxpr.eqns)
  if size > llvm.DERIVATIVES:
    return f"a step of {size} numbers is too large for derivatives in machine code; the limit is {llvm.DERIVATIVES}"
  return ""


def _opened(call: Call, batched: bool, primals: Sequence[Any]) -> Callable[..., list[Any]]:
  """Return the function of a call's flat operands that binds calls of its parts instead of itself."""
  assert call.opened is not None
  opened = call.opened

  def flat(*leaves):
    out = opened(*jax.tree.unflatten(call.in_tree, leaves), **dict(call.static))
    out, worlds.OUT_TREE[call.plain] = jax.tree.flatten(out)
    return out if call.outs is None else [out[k] for k in call.outs]

  if not batched:
    return flat
  width, axis = worlds.width_of(primals, True), _axis()
  is_shared = [i < call.nshared and x.shape[-1] == 1 for i, x in enumerate(primals)]

  def in_batch(*leaves):
    leaves = [x[..., 0] if s else jnp.moveaxis(x, -1, axis) for x, s in zip(leaves, is_shared, strict=True)]
    return jax.vmap(flat, [None if s else axis for s in is_shared], -1, axis_size=width)(*leaves)

  return in_batch


def _transpose(cotangents, *operands, call, batched):
  native = call.native
  if not isinstance(native, Derivative) or native.is_reverse:
    raise NotImplementedError(f"{call.name} is not linear; it has no transpose")
  outs = range(len(native.results)) if call.outs is None else call.outs
  moved = {native.results[k]: c for k, c in zip(outs, cotangents, strict=True) if type(c) is not ad.Zero}
  back = dataclasses.replace(native, results=tuple(moved), is_reverse=True)
  n = native.nprimals
  call = _call_of(back, call, len(moved))
  found = native_p.bind(*operands[:n], *moved.values(), call=call, batched=batched) if moved else []
  wanted = [x.aval if ad.is_undefined_primal(x) else None for x in operands[n:]]
  made = found or [None] * len(wanted)
  return [*[None] * n, *(None if a is None or x is None else _summed(x, a) for x, a in zip(made, wanted, strict=True))]


def _summed(x: jax.Array, aval: Any) -> jax.Array:
  """Sum the cotangents of all worlds where the worlds share a leaf."""
  return x if x.shape == aval.shape else jnp.sum(x, axis=-1, keepdims=True)


ad.primitive_jvps[native_p] = workarounds.eased(_jvp)
ad.primitive_transposes[native_p] = workarounds.eased(_transpose)
