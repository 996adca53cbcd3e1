"""Undocumented features of JAX, XLA, LLVM and CPython that the engine uses.

Every access to an undocumented feature is in this module. `BORROWED` lists the accesses: what is accessed, what the engine
does without it, and when the access can be removed. A probe is a small program that shows whether an access works; the probe
runs once, when the access is first needed. Version numbers are never compared. If a probe fails, `works` warns once
(`SlowPathWarning`), and the engine takes a slower path with the same results. `mjx_lite.explain` prints the table.

Tests: tests/compiler/test_paths.py.
"""

import concurrent.futures
import ctypes
import functools
import gc
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import backend
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from mjx_lite.errors import SlowPathWarning


class Borrowed(NamedTuple):
  """Access to an undocumented feature.

  Attributes:
    name: name of the access in warnings and in `mjx_lite.explain`.
    what: the feature, and the software that has it.
    without: what the engine does if the probe fails, and the cost.
    until: when the access can be removed.
    probe: a function that raises an exception if the access does not work.
  """

  name: str
  what: str
  without: str
  until: str
  probe: Callable[[], None]


_failures: dict[str, str] = {}  # probe -> traceback, "" if the probe passed


def works(borrowed: Borrowed) -> bool:
  """Return whether the probe of an access passes. The probe runs once, and its failure gives one `SlowPathWarning`."""
  is_first = borrowed.name not in _failures
  found = failure(borrowed)
  if is_first and found:
    reason = found.strip().splitlines()[-1]
    warnings.warn(SlowPathWarning(f"{borrowed.name}: {borrowed.without} The probe failed: {reason}"), stacklevel=2)
  return not found


def failure(borrowed: Borrowed) -> str:
  """Return the traceback of a probe that failed, "" if the probe passed."""
  if borrowed.name not in _failures:
    _failures[borrowed.name] = _run(borrowed.probe)
  return _failures[borrowed.name]


def _run(probe: Callable[[], None]) -> str:
  """Return the traceback of a probe, "" if it passes. The probe runs in its own thread, outside of traces of the caller."""
  try:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      pool.submit(probe).result()
  except Exception:
    return traceback.format_exc()
  return ""


def _expect(found: Any, expected: Any, name: str) -> None:
  if not np.array_equal(np.asarray(found), np.asarray(expected)):
    raise RuntimeError(f"{name}: the result is {found}, not {expected}")


# ------------------------------------------------------------------------------------------------ compiler options of XLA

_OPTIONS = {
  # XLA's newer code generator compiles the small kernels of a step two to three times slower, and they run no faster
  "xla_cpu_use_fusion_emitters": False,
  "xla_cpu_prefer_vector_width": 512,  # as in XLA's matrix library: switching widths costs more than either
  # the pass compiles a small loop as one function, without the buffers of `linear.materialize`
  "xla_disable_hlo_passes": "small-while-loop-hoisting",
}


@functools.cache
def compiler_options() -> dict[str, Any]:
  """Return the options above that this XLA accepts.

  An option that XLA has dropped is left out without a warning, because XLA then has one code path and nothing better to choose.
  """

  def is_known(name: str) -> bool:
    def compile_nothing() -> None:
      jax.jit(lambda: 0, compiler_options={name: _OPTIONS[name]}).lower().compile()

    return not _run(compile_nothing)

  return {name: value for name, value in _OPTIONS.items() if is_known(name)}


def _probe_options() -> None:
  missing = [name for name in _OPTIONS if name not in compiler_options()]
  if missing:
    raise RuntimeError(f"XLA does not know the options {', '.join(missing)}")


def has_flag(text: str) -> bool:
  """Return whether XLA was started with flags (`XLA_FLAGS`) that contain a text."""
  options = backend.get_compile_options(num_replicas=1, num_partitions=1)
  return text.encode() in options.SerializeAsString()


# ---------------------------------------------------------------------------------------------------- calls inside XLA


@functools.cache
def _call_like() -> Any:
  """Return an equation that calls `_same` as `jax.jit` does. It is the template of other calls."""
  (like,) = jax.make_jaxpr(_same)(0.0).eqns
  return like


def call(closed: jex_core.ClosedJaxpr, args: Sequence[jax.Array], name: str) -> list[jax.Array]:
  """Bind a call of a jaxpr, as `jax.jit` makes calls, without tracing the jaxpr again."""
  like = _call_like()
  ins, outs = len(closed.in_avals), len(closed.out_avals)
  lengths = dict(in_shardings=ins, in_layouts=ins, donated_invars=ins, out_shardings=outs, out_layouts=outs)
  each = {k: like.params[k] * n for k, n in lengths.items()}
  return like.primitive.bind(*args, **{**like.params, **each, "jaxpr": closed, "name": name})


def call_with(eqn: Any, jaxpr: jex_core.Jaxpr, outs: Sequence[int]) -> Any:
  """Return the equation of a call with another jaxpr, and with only the results at the indices `outs`."""
  chosen = {name: tuple(eqn.params[name][k] for k in outs) for name in ("out_shardings", "out_layouts")}
  params = {**eqn.params, **chosen, "jaxpr": eqn.params["jaxpr"].replace(jaxpr=jaxpr)}
  return eqn.replace(params=params, outvars=[eqn.outvars[k] for k in outs])


def unnamed(jaxpr: jex_core.Jaxpr) -> Any:
  """Return debug info without names, for a jaxpr whose arguments and results change: JAX checks the number of names."""
  return jaxpr.debug_info.with_unknown_names()


# JAX's primitives that call a jaxpr -> the parameter that has the jaxpr. JAX 0.11 renamed `closed_call` to `eval_jaxpr`
CALLS = {
  "jit": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
  "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip

_same = jax.jit(lambda *x: x)


def barrier_call(*x: jax.Array) -> tuple[jax.Array, ...]:
  """Return the arguments through an empty call that XLA must not inline.

  XLA fuses nothing across the call, and copies nothing. An optimization barrier has no such effect on CPU, because XLA removes
  the barrier before it fuses.
  """
  with set_xla_metadata(inlineable="false"):
    return _same(*x)


def region(part: jex_core.ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
  """Return the results of a jaxpr that XLA on CPU compiles to one function of machine code, with all loops and calls inside.

  Source: XLA's `SmallWhileLoopHoistingPass` and `ComputationKernelEmitter`.
  """
  # XLA aborts if a region does not use one of its operands, so all operands are results too. No operand may be a constant,
  # because XLA would move it into the region: neither a constant of the call, nor the result of a barrier call of constants.
  # The barrier takes the first operand twice: on several devices XLA aborts if its operands are just the results of `top_k`
  whole = part.replace(jaxpr=part.jaxpr.replace(outvars=[*part.jaxpr.outvars, *part.jaxpr.invars]))
  out: list[Any] = call(whole, barrier_call(*jax.lax.optimization_barrier((*args, *args[:1]))[: len(args)]), "region")
  out[0] = set_xla_metadata(out[0], inlineable="false", xla_cpu_small_call="true")
  # the barrier reads all results: JAX drops unread results of a call in a loop
  return list(jax.lax.optimization_barrier(tuple(out)))[: len(part.out_avals)]


def _probe_region() -> None:
  x = np.arange(3, dtype=np.float32)
  closed = jax.make_jaxpr(lambda x: jnp.abs(x * 2 - 1))(x)
  program = jax.jit(lambda x: region(closed, [x])[0]).lower(jnp.asarray(x)).compile()
  _expect(program(jnp.asarray(x)), np.abs(x * 2 - 1), "a region of three operations")
  if "small_call" not in (program.as_text() or ""):
    raise RuntimeError("XLA drops the attribute xla_cpu_small_call")


def ptx_call(
  text: str, name: str, args: Sequence[jax.Array], shapes: Sequence[jax.ShapeDtypeStruct], blocks: int, threads: int
) -> list[jax.Array]:
  """Return the results of a PTX kernel on an NVIDIA GPU. Its parameters are the addresses of arguments and results."""
  one = np.int32(1)
  run = jax.ffi.ffi_call("__gpu$xla.gpu.ptx", list(shapes))
  return list(
    run(
      *args, name=name, kernel_type="ptx", kernel_data=text, grid_x=np.int32(blocks), grid_y=one,
      grid_z=one, block_x=np.int32(threads), block_y=one, block_z=one, shared_mem_bytes=np.int32(0),
      output_indices=tuple(np.int32(k) for k in range(len(args), len(args) + len(shapes))),
    )
  )  # fmt: skip


# ------------------------------------------------------------------------------------------------- rules and traces of JAX


def alive(jaxpr: jex_core.Jaxpr, used: Sequence[bool]) -> jex_core.Jaxpr:
  """Return the jaxpr without equations on which no used result depends. All arguments stay."""
  return pe.dce_jaxpr(jaxpr, list(used), instantiate=True)[0]


def all_alive(closed: jex_core.ClosedJaxpr) -> jex_core.Jaxpr:
  """Return the jaxpr of a program without dead code, of which derivatives have much."""
  return alive(closed.jaxpr, [True] * len(closed.out_avals)) if works(DEAD_CODE) else closed.jaxpr


def read(jaxpr: jex_core.Jaxpr, used: Sequence[bool]) -> list[bool]:
  """Return which arguments the used results depend on; without the rules for dead code, all of them."""
  return pe.dce_jaxpr(jaxpr, list(used))[1] if works(DEAD_CODE) else [True] * len(jaxpr.invars)


def register_dead_code(primitive: Any, rule: Callable[[Sequence[bool], Any], tuple[list[bool], Any]]) -> None:
  """Register a primitive's rule for dead code: it gets (used results, equation) and returns the remaining equation.

  JAX calls the rule with (used results, equation), from 0.12 on with (used results, live inputs, equation).
  """
  pe.dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def _probe_dead_code() -> None:
  primitive = jex_core.Primitive("mjx_probe")
  primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
  asked = []

  def rule(used, eqn):
    asked.append(eqn.primitive)
    return [True] * len(eqn.invars), eqn

  register_dead_code(primitive, rule)
  closed = jax.make_jaxpr(lambda x: (primitive.bind(x), jnp.sin(x)))(0.0)
  remaining = alive(closed.jaxpr, [True, False])
  if asked != [primitive] or len(remaining.eqns) != 1:
    raise RuntimeError("JAX did not call the rule for dead code")


def is_batched(x: Any) -> bool:
  """Return whether a value is a tracer of `jax.vmap`. JAX has no public name for this class."""
  return type(x).__name__ == "BatchTracer"


def concrete(x: Any) -> Any:
  """Return the values of an array, with a leading axis for each `jax.vmap` around that runs eagerly; None in other traces."""
  if not isinstance(x, jax.core.Tracer):
    return x
  if not works(BATCHED) or not is_batched(x):
    return None
  inner, axis = (getattr(x, name) for name in ("val", "batch_dim"))
  if (values := concrete(inner)) is None or axis is None:
    return values
  return jnp.moveaxis(values, values.ndim - inner.ndim + axis, 0)  # the axes of outer vmaps come first


def _probe_batched() -> None:
  found = []
  jax.vmap(lambda x: found.append((is_batched(x), x.val, x.batch_dim)) or x, in_axes=1)(jnp.zeros((3, 2)))
  ((yes, value, axis),) = found
  _expect([yes, *np.shape(value), axis], [True, 3, 2, 1], "a number of jax.vmap's trace")


def is_export(ctx: Any) -> bool:
  """Return whether a lowering rule runs for `jax.export`, whose programs are loaded by other processes."""
  return ctx.module_context.lowering_parameters.for_export


def compilations(function: Any) -> int:
  """Return the number of programs that a function of `jax.jit` has compiled."""
  return function._cache_size()


# ------------------------------------------------------------------------------------------------------------- CPython

_WORDS = 1 << 16  # words of a frame on CPython's stack: half a megabyte, of which only the used part takes memory


def eased(function: Callable[..., Any]) -> Callable[..., Any]:
  """Wrap a function that traces or lowers: it runs without the garbage collector, and with stack space for the calls inside.

  JAX makes a million objects that are not garbage, and in a large process each collection visits all other objects too.
  CPython keeps its frames in chunks of 16 KiB, which it allocates from the operating system and frees. If a repeated call
  starts at the end of a chunk, every call allocates and frees a chunk, which takes longer than the call's own work. A frame of
  large size gets its own chunk, with as much free space behind the frame for the calls that it makes.
  """

  @functools.wraps(function)
  def call(*args, **kwargs):
    was_on = gc.isenabled()
    gc.disable()
    try:
      return (_roomy_call if works(STACK) else _plain_call)(function, args, kwargs)
    finally:
      if was_on:
        gc.enable()

  return call


def _plain_call(function, args, kwargs):
  return function(*args, **kwargs)


def _roomy_call(function, args, kwargs):
  return function(*args, **kwargs)


def _probe_stack() -> None:
  """Give `_roomy_call` its large frame, which it keeps, and call it."""
  _roomy_call.__code__ = _roomy_call.__code__.replace(co_stacksize=_WORDS)
  _expect(_roomy_call(lambda: 1, (), {}), 1, "a call with a large frame")


# ---------------------------------------------------------------------------------------------------------------- LLVM


@contextmanager
def no_scheduler(llvm: Any) -> Iterator[None]:
  """Run LLVM without its scheduler of machine instructions, which takes a third of the time without a benefit.

  The option applies to all users of LLVM in this process, so it is set back at the end.
  """
  try:
    llvm.set_option("mjx_lite", "-enable-misched=0")
  except Exception:  # an LLVM without the option compiles more slowly
    yield
    return
  try:
    yield
  finally:
    llvm.set_option("mjx_lite", "-enable-misched=1")


def emit_object(llvm: Any, machine: Any, module: Any) -> bytes:
  """Return the object file of a module. Several threads can emit in parallel, for modules in separate contexts.

  llvmlite's public call holds a lock, which allows one thread at a time; the call without the lock is not public.
  """
  if not works(EMIT):
    return machine.emit_object(module)
  lib = llvm.ffi.lib
  emit = lib.LLVMPY_TargetMachineEmitToMemory._cfn
  with llvm.ffi.OutputString() as error:
    buffer = emit(machine, module, 1, error)
    if not buffer:
      raise RuntimeError(str(error))
  try:
    return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
  finally:
    lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _probe_emit() -> None:
  from llvmlite import binding

  if not callable(binding.ffi.lib.LLVMPY_TargetMachineEmitToMemory._cfn):
    raise RuntimeError("llvmlite has no function that emits object files without its lock")


# --------------------------------------------------------------------------------------------------------------- table

REGIONS = Borrowed(
  "regions on CPU",
  "XLA's attribute `xla_cpu_small_call`, and calls that XLA does not inline (`inlineable`).",
  "XLA starts each operation of a few worlds by itself: a step of one world takes two to five times as long.",
  "The attribute can go once every model's step is machine code of the engine's own (`llvm.py`).",
  _probe_region,
)
DEAD_CODE = Borrowed(
  "dead code of the engine's calls",
  "JAX's table of rules for dead code, `jax.interpreters.partial_eval.dce_rules`, and `dce_jaxpr`.",
  "A loop over steps computes and carries fields that nobody reads.",
  "The rules can be registered by a documented function once JAX has one (`jax.extend`).",
  _probe_dead_code,
)
BATCHED = Borrowed(
  "numbers of jax.vmap's trace",
  "The name of JAX's class `BatchTracer`, and its attributes `val` and `batch_dim`.",
  "A rollout in an eager `jax.vmap` gives no CapacityWarning.",
  "The name can go once JAX has a function for the values.",
  _probe_batched,
)
STACK = Borrowed(
  "room on CPython's stack",
  "`co_stacksize` of a code object, which CPython 3.11 and later take as the size of a frame.",
  "To trace and to lower a program may take twice as long, by chance.",
  "The change can go once CPython keeps a chunk of its stack when the frame that began it returns.",
  _probe_stack,
)
OPTIONS = Borrowed(
  "compiler options of XLA",
  f"Options whose names XLA promises to nobody: {', '.join(_OPTIONS)}.",
  "Steps that XLA compiles take up to twice as long to compile.",
  "An option can go once no version of XLA that is supported has it.",
  _probe_options,
)
EMIT = Borrowed(
  "LLVM on all cores",
  "llvmlite's function pointer without its lock (`_cfn`), and LLVM's option `-enable-misched`, one for the process.",
  "Machine code of a step is compiled on one core.",
  "Both can go once llvmlite emits object files without its lock.",
  _probe_emit,
)

BORROWED = (REGIONS, DEAD_CODE, BATCHED, STACK, OPTIONS, EMIT)


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Sequence[Any], out_spec: Any) -> Callable[..., Any]:
  """Divide a function of trees of arrays among devices, as `jax.shard_map` does, with one spec for each argument.

  Every result has its first axis divided. Arrays without numbers stay outside of the division, and the function gets new ones:
  XLA's partitioner in JAX 0.11.2 ends the process with a segmentation fault if there are such arrays. This function can go once
  0.11 is not supported any more.
  """

  def run(*args: Any) -> Any:
    flat = [jax.tree.flatten(x) for x in args]
    full = [[x for x in leaves if x.size] for leaves, _ in flat]
    structure: list[Any] = []

    def empty(x: Any, spec: Any) -> jax.Array:
      return jnp.zeros((x.shape[0] // mesh.size, *x.shape[1:]) if len(spec) else x.shape, x.dtype)

    def part(*full: Any) -> list[jax.Array]:
      trees = []
      for (leaves, form), spec, given in zip(flat, in_specs, map(iter, full), strict=True):
        trees.append(jax.tree.unflatten(form, [next(given) if x.size else empty(x, spec) for x in leaves]))
      leaves, form = jax.tree.flatten(function(*trees))
      structure[:] = form, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
      return [x for x in leaves if x.size]

    divided = jax.shard_map(part, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_spec, check_vma=False)
    made = iter(divided(*full))
    form, shapes = structure
    leaves = [next(made) if x.size else jnp.zeros((x.shape[0] * mesh.size, *x.shape[1:]), x.dtype) for x in shapes]
    return jax.tree.unflatten(form, leaves)

  return run
