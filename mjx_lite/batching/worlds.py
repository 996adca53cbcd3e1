"""The world axis: one-world functions outside, the world axis last inside.

The engine computes on arrays with one trailing world axis (`native` functions). The user calls `one_world(native)`, whose
shapes are those of a single world and which `jax.vmap` batches. One primitive connects the two, `native_p`, with a parameter
`batched`:

* `batched=False`: the operands are one world's. Lowering gives them a world axis of size 1.
* The batching rule moves the batch axis last and binds the primitive again with `batched=True`. It merges a further `vmap`
  into the same axis. So `vmap`, `vmap(scan)`, `vmap(jit)`, `scan(vmap)`, `grad(vmap)` and `vmap(vmap)` all reach the native
  layout.
* Derivatives are further calls of the primitive (`derivatives.py`). So `vmap(grad(f))` and `grad` of a sum over `vmap` reach
  the native layout too.

This module also cuts worlds into tiles for CPU caches (`_in_tiles`), and chooses how operations are compiled: those of one
world or of a tile as regions (`regions.py`), or a call as machine code for each world (`kernels.py`). Only compiler/, ops/ and
batching/ touch jax's extension interfaces.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import batching, mlir

from mjx_lite.batching import compiling
from mjx_lite.compiler import kernels, paths, regions, saved, scalars, workarounds
from mjx_lite.compiler.backends import llvm, ptx
from mjx_lite.ops.lanes import packed


class Call(NamedTuple):
  """Description of a call of a native function, without its operands; hashable."""

  native: Callable[..., Any]
  static: tuple[tuple[str, Any], ...]  # keyword arguments
  in_tree: Any
  nshared: int  # number of leaves of the first argument, the Model
  tile: int  # worlds per tile, 0 for all worlds at once
  groups: int  # devices among which XLA may divide the worlds, see `Tiling`
  slow: str  # why machine code (`kernels.py`) is not tried, "" if it is
  why_loops: str = ""  # why a kernel has loops, and packs items of its worlds (`ops/lanes.py`); "" if its code is straight
  outs: tuple[int, ...] | None = None  # indices of result leaves that are read, None for all
  is_differentiated: bool = False  # whether only a derivative reads the trace, or the call is that derivative
  saves: bool = False  # whether values with a mark (`compiler/saved.py`) are further results
  opened: Callable[..., Any] | None = None  # function of one world that derivatives take instead: it binds calls of its parts

  @property
  def plain(self) -> "Call":
    """The call as XLA compiles it: without operations that only kernels have."""
    return self._replace(why_loops="", is_differentiated=False)

  @property
  def name(self) -> str:
    """Name of the function."""
    return self.native.__name__


native_p = jex_core.Primitive("mjx_native")
native_p.multiple_results = True


_NO_MESH = jax.sharding.AbstractMesh((), ())
OUT_TREE: dict[Call, Any] = {}  # output tree of every call that has been traced, by its plain form


def one_world(
  native: Callable[..., Any], check: Callable[..., None] | None = None, opened: Callable[..., Any] | None = None
) -> Callable[..., Any]:
  """Wrap a native function for the user: one-world shapes, batched by `jax.vmap`.

  Args:
    native: function of pytrees whose leaves carry a trailing world axis. The first argument is the Model; its leaves
      may keep a world axis of size 1 (shared by all worlds). Keyword arguments are static and hashable.
    check: called with the user's arguments first; raises an error if they do not fit.
    opened: the same function for the shapes of one world, made of functions that `one_world` returned. Derivatives are those
      of this function, each part's by itself.

  Returns:
    the same function on leaves without the world axis.
  """

  @functools.wraps(native)
  def public(*args, **static):
    if check is not None:
      check(*args)
    _register_dead_code()
    leaves, in_tree = jax.tree.flatten(args)
    dtype = args[0].layout.dtype if hasattr(args[0], "layout") else None
    leaves = [operand(x, dtype) for x in leaves]
    shared, tile = len(jax.tree.leaves(args[0])), getattr(args[0], "tile", 0)
    groups = _devices()
    slow = _why_no_kernels(args[0], groups)
    loops = "" if slow else args[0].why_not_straight
    keywords = tuple(sorted(static.items()))
    call = Call(native, keywords, in_tree, shared, tile=tile, groups=groups, slow=slow, why_loops=loops, opened=opened)
    out = native_p.bind(*leaves, call=call, batched=False)
    return jax.tree.unflatten(OUT_TREE[call.plain], out)

  return public


def operand(x: Any, dtype: str | None) -> jax.Array:
  """Convert an argument to an array: floats to the model's dtype, and short integers to int32, as kernels have none of them."""
  x = jnp.asarray(x)
  if dtype is not None and jnp.issubdtype(x.dtype, jnp.floating):
    return x.astype(dtype)
  return x.astype(np.int32) if jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize < 4 else x


def _devices() -> int:
  """Return the number of devices among which XLA may divide one array: all, except inside `jax.shard_map`."""
  mesh = jax.sharding.get_abstract_mesh()
  return max(1, jax.device_count() // math.prod(mesh.shape[name] for name in mesh.manual_axes))


def _why_no_kernels(m: Any, groups: int) -> str:
  """Return the first reason why a call with a model is not tried as machine code, "" if it is tried."""
  if groups > 1:
    return "XLA may divide the worlds among devices; divide the worlds with rollout(devices=...) or jax.shard_map instead"
  if not hasattr(m, "why_not_straight"):
    return "the first argument is no Model"
  return llvm.why_off() if jax.default_backend() == "cpu" else ptx.why_off(m.layout.dtype) or m.why_not_straight


def shapes_of(leaves):
  """Return shapes and dtypes as a hashable key."""
  return tuple((x.shape, x.dtype) for x in leaves)


@functools.lru_cache(maxsize=256)
def trace(call, batched, avals):
  """Return the native function's jaxpr on these operands: one call equation, so that evaluating it does not trace again."""
  closed = trace_all(call._replace(outs=None), batched, avals)
  # a sixth of the operations are dead code, which costs as much to lower as other code
  return _alive(closed, range(len(closed.out_avals)) if call.outs is None else call.outs)


@functools.lru_cache(maxsize=256)
def trace_all(call, batched, avals):
  """Return the jaxpr as `trace` does, with dead code, and so with all marks of `compiler/saved.py`."""
  width = width_of(shapes := [jax.ShapeDtypeStruct(s, t) for s, t in avals], batched)

  def flat(*leaves):
    if not batched:
      leaves = [x[..., None] for x in leaves]
    out, OUT_TREE[call.plain] = jax.tree.flatten(call.native(*jax.tree.unflatten(call.in_tree, leaves), **dict(call.static)))
    if not batched:
      return [x[..., 0] for x in out]
    return [jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in out]  # some depend on shared values only

  def with_saved(*leaves):
    kept: list[Any] = []

    def keep(x):
      kept.append(saved.mark(x))
      return kept[-1]

    out = saved.evaluate(trace_all(call._replace(saves=False), batched, avals), leaves, keep)
    return [*out, *(x[..., 0] if not batched else jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in kept)]

  # trace without the mesh: in `jax.shard_map`, JAX would add a `reshard` to every `where`
  with jax.sharding.use_abstract_mesh(_NO_MESH), jax.disable_jit(False):
    with packed(call.is_differentiated) if call.why_loops and width == 1 else contextlib.nullcontext():
      return workarounds.eased(jax.make_jaxpr(jax.jit(with_saved if call.saves else flat)))(*shapes)


def program(call, batched, leaves):
  """Return the jaxpr of the native function with the world axis, for the number of worlds that lowering computes at a time."""
  avals = _tile_avals(call, leaves) if call.slow and batched else one_world_avals(leaves, batched)
  return trace_all(call, True, avals).jaxpr.eqns[0].params["jaxpr"].jaxpr


def _tile_avals(call, leaves):
  width = width_of(leaves, True)
  size = _tiling(call, width, _lanes(call)).worlds
  return tuple(((*x.shape[:-1], size) if x.shape[-1] == width else x.shape, x.dtype) for x in leaves)


def _alive(closed, outs):
  """Return the call's jaxpr with the results at indices `outs` only, without operations that these results do not need."""
  (eqn,) = closed.eqns
  inner = eqn.params["jaxpr"]
  read = set(outs)
  if not workarounds.works(workarounds.DEAD_CODE):
    return closed
  alive = workarounds.alive(inner.jaxpr, [k in read for k in range(len(inner.out_avals))])
  eqn = workarounds.call_with(eqn, alive, outs)
  debug = workarounds.unnamed(closed.jaxpr)
  return closed.replace(jaxpr=closed.jaxpr.replace(eqns=[eqn], outvars=eqn.outvars, debug_info=debug))


def clear_caches() -> None:
  """Clear all traces, also those of JAX (`jax.clear_caches`): the next call traces and compiles again."""
  trace.cache_clear()
  trace_all.cache_clear()
  _jitted.cache_clear()
  jax.clear_caches()


def _run(*leaves, call, batched, lanes=0):
  """Evaluate the native function as ordinary operations, in regions if at most `lanes` worlds are computed at a time."""
  call = call.plain
  width = width_of(leaves, batched)
  tiling = _tiling(call, width, lanes)
  evaluate = regions.evaluate if tiling.worlds <= lanes else regions.evaluate_plainly
  if tiling.tiles > 1:
    return _in_tiles(call, leaves, width, tiling, evaluate)
  return evaluate(trace(call, batched, shapes_of(leaves)), *leaves)


def _run_on_cpu(*leaves, call, batched):
  width = width_of(leaves, batched)
  tiling = _tiling(call, width, _lanes(call))
  slower_path = paths.REGIONS if regions.is_on() and tiling.worlds <= _lanes(call) else paths.KERNELS
  slow = call.slow or llvm.why_off()
  if slow or not width:
    paths.record(paths.Path(call.name, width, slower_path, slow))
  else:
    builder = kernels.Kernels(llvm.call, width, llvm.LOOP, on_cpu=True, has_loops=bool(call.why_loops))
    out = _by_kernels(leaves, call, batched, builder, paths.MACHINE_CODE, slower_path)
    if out is not None:
      return out
  return _run_in_regions(*leaves, call=call, batched=batched)


def _run_in_regions(*leaves, call, batched):
  return _run(*leaves, call=call, batched=batched, lanes=_lanes(call))


def _run_on_gpu(*leaves, call, batched):
  width = width_of(leaves, batched)
  if call.slow or ptx.why_off():
    paths.record(paths.Path(call.name, width, paths.KERNELS, call.slow or ptx.why_off()))
  else:
    # pad one world to two: a trailing axis of 1 means 'shared', so per-world arrays need a width above 1
    builder = kernels.Kernels(ptx.call, max(width, 2), ptx.LOOP, on_cpu=False)
    out = _by_kernels(leaves, call, batched, builder, paths.PTX, paths.KERNELS)
    if out is not None:
      return out
  return _run(*leaves, call=call, batched=batched)


def _by_kernels(leaves, call, batched, builder, path, slower_path):
  """Return the results of each world's machine code, or None if the builder of kernels fails.

  The caller then takes `slower_path`.
  """
  arrays = [x if batched else x[..., None] for x in leaves]
  width = width_of(arrays, True)
  if width < builder.worlds:
    arrays = [x if i < call.nshared else jnp.repeat(x, builder.worlds, -1) for i, x in enumerate(arrays)]
  closed = trace(call, True, one_world_avals(leaves, batched))  # errors of the user's functions are raised here
  is_shared = [x.shape == a.shape for x, a in zip(arrays, closed.in_avals, strict=True)]
  arrays = [x if same else jnp.moveaxis(x, -1, builder.axis) for x, same in zip(arrays, is_shared, strict=True)]
  try:
    out = builder.evaluate(closed, arrays)
  except scalars.Unsupported as error:
    paths.fell_back(call.name, width, slower_path, error, call.in_tree)
    return None
  paths.record(paths.Path(call.name, width, path))
  out = [jnp.moveaxis(x, builder.axis, -1) for x in out]
  return [x[..., :width] if batched else x[..., 0] for x in out]


def one_world_avals(leaves, batched):
  """Return shapes and dtypes of one world's operands, with a world axis."""
  return tuple(((*x.shape[:-1], 1) if batched else (*x.shape, 1), x.dtype) for x in leaves)


def width_of(leaves, batched):
  """Return the number of worlds of a call's operands."""
  return max((x.shape[-1] for x in leaves), default=1) if batched else 1


def _lanes(call):
  """Return the worlds per region on CPU: one if XLA may divide arrays among devices, because it cannot divide regions."""
  return max(1, regions.lanes()) if call.groups == 1 else 1


class Tiling(NamedTuple):
  """Division of the worlds into tiles: each tile holds `worlds / groups` consecutive worlds of every group.

  A group is the block of worlds that one device holds if the worlds are divided among devices. Every device then has a part of
  each tile, and the loop over tiles needs no communication. If the worlds do not fill the last tile, it repeats some worlds.
  """

  tiles: int
  groups: int
  worlds: int  # per tile


def _tiling(call, width, lanes=0):
  if 1 < lanes <= call.tile and width > lanes:
    return Tiling(-(-width // lanes), 1, lanes)
  groups = call.groups if width % call.groups == 0 else 1
  count = -(-width // call.tile) if call.tile else 1
  return Tiling(count, groups, groups * -(-width // (groups * count)))


def _in_tiles(call, leaves, width, tiling, evaluate):
  """Evaluate the native function on one tile of worlds at a time, so that its arrays stay in the cache."""
  part = tuple(((*x.shape[:-1], tiling.worlds) if x.shape[-1] == width else x.shape, x.dtype) for x in leaves)
  jaxpr = trace(call, True, part)
  inner = jaxpr.eqns[0].params["jaxpr"].jaxpr
  read = {v for eqn in inner.eqns for v in eqn.invars if isinstance(v, jex_core.Var)}
  position = {v: i for i, v in enumerate(inner.invars) if leaves[i].shape[-1] == width}
  # operands that are returned unchanged, or never read, stay out of the loop
  per_world = [i for v, i in position.items() if v in read]
  passed = {k: position[v] for k, v in enumerate(inner.outvars) if v in position}
  operands = [x if v in read else jnp.zeros(*aval) for x, v, aval in zip(leaves, inner.invars, part, strict=True)]

  def body(parts):
    out = evaluate(jaxpr, *regions.put(operands, per_world, parts))
    return [x for k, x in enumerate(out) if k not in passed]

  made = [jax.ShapeDtypeStruct((*a.shape[:-1], width), a.dtype) for k, a in enumerate(jaxpr.out_avals) if k not in passed]
  computed = iter(_placed_tiles(body, [leaves[i] for i in per_world], made, tiling))
  return [leaves[passed[k]] if k in passed else next(computed) for k in range(len(jaxpr.out_avals))]


def _grouped(x, tiling):
  return x if tiling.groups == 1 else x.reshape((*x.shape[:-1], tiling.groups, x.shape[-1] // tiling.groups))


def _merged(x, tiling):
  return x if tiling.groups == 1 else x.reshape((*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def _placed_tiles(body, leaves, made, tiling):
  """Evaluate the body on every tile, and write its results into arrays in the native layout.

  To reach the user's layout, XLA then needs one bare transposition per field, which it copies without compiling a kernel.
  """
  size = tiling.worlds // tiling.groups
  read, write = (
    functools.partial(f, allow_negative_indices=False)  # saves three operations each
    for f in (jax.lax.dynamic_slice_in_dim, jax.lax.dynamic_update_slice_in_dim)
  )

  def one(j, out):
    at = j * size
    parts = [_merged(read(x, at, size, x.ndim - 1), tiling) for x in cut]
    return [write(whole, _grouped(x, tiling), at, whole.ndim - 1) for whole, x in zip(out, body(parts), strict=True)]

  cut = [_grouped(x, tiling) for x in leaves]
  start = [_grouped(jnp.zeros(x.shape, x.dtype), tiling) for x in made]
  return [_merged(x, tiling) for x in jax.lax.fori_loop(0, tiling.tiles, one, start)]


def _abstract_eval(*avals, call, batched):
  if not call.slow:
    outs = trace(call, True, one_world_avals(avals, batched)).out_avals
    last = (width_of(avals, batched),) if batched else ()
    return [jax.core.ShapedArray((*a.shape[:-1], *last), a.dtype) for a in outs]
  if not batched:
    return [jax.core.ShapedArray(a.shape, a.dtype) for a in trace(call, batched, shapes_of(avals)).out_avals]
  # trace at the width of the tile, so that lowering reuses the trace
  outs = trace(call, batched, _tile_avals(call, avals)).out_avals
  return [jax.core.ShapedArray((*a.shape[:-1], width_of(avals, batched)), a.dtype) for a in outs]


@functools.lru_cache(maxsize=256)
def _jitted(call, batched):
  return compiling.jit(functools.partial(native_p.bind, call=call, batched=batched))


def _impl(*leaves, call, batched):
  with jax.disable_jit(False):  # users disable jit to debug their own code, not the engine
    return _jitted(call, batched)(*leaves)


def _batch(args, dims, *, call, batched):
  args = [jnp.asarray(x) for x in args]  # a traced number may come as a literal
  size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
  width = max((_world_size(x, d) for x, d in zip(args, dims, strict=True)), default=1) if batched else 1

  def merged(i, x, d):
    # (..., world, batch), merged into one trailing axis
    if d is None:
      if i < call.nshared and (not batched or x.shape[-1] == 1):
        return x if batched else x[..., None]  # a Model leaf shared by all worlds
      x = jnp.broadcast_to(x[..., None], (*x.shape, size))
    else:
      x = jnp.moveaxis(x, d, -1)
    if not batched:
      return x
    x = jnp.broadcast_to(x, (*x.shape[:-2], width, size))
    return x.reshape((*x.shape[:-2], width * size))

  operands = [merged(i, x, d) for i, (x, d) in enumerate(zip(args, dims, strict=True))]
  out = native_p.bind(*operands, call=call, batched=True)
  if batched:
    out = [x.reshape((*x.shape[:-1], width, size)) for x in out]
  return out, [x.ndim - 1 for x in out]


def _world_size(x, dim):
  return x.shape[x.ndim - 2 if dim == x.ndim - 1 else x.ndim - 1]


def _dce(used, eqn):
  """Remove unread results from a call."""
  if not any(used):
    return [False] * len(eqn.invars), None
  call = eqn.params["call"]
  outs = range(len(used)) if call.outs is None else call.outs
  call = call._replace(outs=tuple(k for k, is_used in zip(outs, used, strict=True) if is_used))
  outvars = [v for v, is_used in zip(eqn.outvars, used, strict=True) if is_used]
  return [True] * len(eqn.invars), eqn.replace(params={**eqn.params, "call": call}, outvars=outvars)


def _lowering(run, exported):
  """Return the lowering rule of a device: `run`, or `exported` for programs of `jax.export`.

  An exported program is loaded by other versions of XLA, or in processes that do not have a kernel's machine code.
  """

  @workarounds.eased
  def lower(ctx, *operands, **params):
    chosen = exported if workarounds.is_export(ctx) else run
    return mlir.lower_fun(chosen, multiple_results=True)(ctx, *operands, **params)

  return lower


native_p.def_abstract_eval(_abstract_eval)
native_p.def_impl(_impl)
batching.primitive_batchers[native_p] = _batch
mlir.register_lowering(native_p, mlir.lower_fun(_run, multiple_results=True))
mlir.register_lowering(native_p, _lowering(_run_on_cpu, _run_in_regions), platform="cpu")
mlir.register_lowering(native_p, _lowering(_run_on_gpu, _run), platform="cuda")


@functools.cache
def _register_dead_code() -> None:
  if workarounds.works(workarounds.DEAD_CODE):
    workarounds.register_dead_code(native_p, _dce)
