"""What the engine borrows from JAX, XLA, LLVM and CPython beyond their documented interfaces.

Every access of that kind stands in this module. `BORROWED` lists the accesses: what each one is, what the engine does without
it, and when it can go. A probe is a small program that shows whether the access works; it runs once, when the access is first
needed. No version number is compared anywhere. Where a probe fails, `works` warns once (`SlowPathWarning`) and the engine
takes the other way, with the same results. `mjx_lite.explain` prints the table.
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

from mjx_lite.core.errors import SlowPathWarning


class Borrowed(NamedTuple):
  """Something that no documented interface promises.

  Attributes:
    name: what it is called in warnings and in `mjx_lite.explain`.
    what: what is borrowed, and from whom.
    without: what the engine does where the probe fails, and what that costs.
    until: when the access can go.
    probe: a function that raises an exception where the access does not work.
  """

  name: str
  what: str
  without: str
  until: str
  probe: Callable[[], None]


_failures: dict[str, str] = {}  # traceback of each probe that ran and failed, "" of one that passed


def works(borrowed: Borrowed) -> bool:
  """Whether the probe of a borrowed thing passes. The probe runs once; the first failure is a `SlowPathWarning`."""
  is_first = borrowed.name not in _failures
  found = failure(borrowed)
  if is_first and found:
    reason = found.strip().splitlines()[-1]
    warnings.warn(SlowPathWarning(f"{borrowed.name}: {borrowed.without} The probe failed: {reason}"), stacklevel=2)
  return not found


def failure(borrowed: Borrowed) -> str:
  """Traceback of a probe that failed, "" where it passed."""
  if borrowed.name not in _failures:
    _failures[borrowed.name] = _run(borrowed.probe)
  return _failures[borrowed.name]


def _run(probe: Callable[[], None]) -> str:
  """The traceback of a probe, "" where it passes. It runs in a thread of its own, which no trace of the caller reaches."""
  try:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      pool.submit(probe).result()
  except Exception:
    return traceback.format_exc()
  return ""


def _expect(found: Any, wanted: Any, what: str) -> None:
  if not np.array_equal(np.asarray(found), np.asarray(wanted)):
    raise RuntimeError(f"{what}: {found}, not {wanted}")


# ------------------------------------------------------------------------------------------------ compiler options of XLA

_OPTIONS = {
  # XLA's newer code generator takes two to three times as long for the many small kernels of a step, which run no faster
  "xla_cpu_use_fusion_emitters": False,
  "xla_cpu_prefer_vector_width": 512,  # as XLA's library for products: changing between the two costs more than either
  # small loops are compiled as one function, in which what is written to memory (`linear.materialized`) is not; and a
  # transposition that moves nothing becomes a kernel that copies, where it is wrapped as a fusion before it is simplified
  "xla_disable_hlo_passes": "small-while-loop-hoisting,fusion-wrapper",
}


@functools.cache
def compiler_options() -> dict[str, Any]:
  """Those of the options above that this XLA takes.

  An option that XLA has dropped is left out without a warning: XLA then has one code path, and there is no better one.
  """

  def is_known(name: str) -> bool:
    def compile_nothing() -> None:
      jax.jit(lambda: 0, compiler_options={name: _OPTIONS[name]}).lower().compile()

    return not _run(compile_nothing)

  return {name: value for name, value in _OPTIONS.items() if is_known(name)}


def _probe_options() -> None:
  missing = [name for name in _OPTIONS if name not in compiler_options()]
  if missing:
    raise RuntimeError(f"XLA does not know {', '.join(missing)}")


def has_flag(text: str) -> bool:
  """Whether XLA was started with flags (`XLA_FLAGS`) that contain a text."""
  options = backend.get_compile_options(num_replicas=1, num_partitions=1)
  return text.encode() in options.SerializeAsString()


# ---------------------------------------------------------------------------------------------------- calls inside XLA


@functools.cache
def _call_like() -> Any:
  """An equation that calls `_same` as `jax.jit` does, a pattern for others."""
  (like,) = jax.make_jaxpr(_same)(0.0).eqns
  return like


def call(closed: jex_core.ClosedJaxpr, args: Sequence[jax.Array], name: str) -> list[jax.Array]:
  """A call of a program, as `jax.jit` makes calls, without tracing the program again."""
  like = _call_like()
  ins, outs = len(closed.in_avals), len(closed.out_avals)
  lengths = dict(in_shardings=ins, in_layouts=ins, donated_invars=ins, out_shardings=outs, out_layouts=outs)
  each = {k: like.params[k] * n for k, n in lengths.items()}
  return like.primitive.bind(*args, **{**like.params, **each, "jaxpr": closed, "name": name})


def call_with(eqn: Any, jaxpr: jex_core.Jaxpr, outs: Sequence[int]) -> Any:
  """The equation of a call, with another program and some of its results."""
  some = {name: tuple(eqn.params[name][k] for k in outs) for name in ("out_shardings", "out_layouts")}
  params = {**eqn.params, **some, "jaxpr": eqn.params["jaxpr"].replace(jaxpr=jaxpr)}
  return eqn.replace(params=params, outvars=[eqn.outvars[k] for k in outs])


def unnamed(jaxpr: jex_core.Jaxpr) -> Any:
  """Debugging information of a program whose arguments and results change: JAX checks that their names are as many."""
  return jaxpr.debug_info.with_unknown_names()


# JAX's primitives that call a program, by name, and the parameter that has it. JAX 0.11 renamed `closed_call` to `eval_jaxpr`
CALLS = {
  "jit": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
  "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip

_same = jax.jit(lambda *x: x)


def barrier_call(*x: jax.Array) -> tuple[jax.Array, ...]:
  """The arguments, through a call of nothing that XLA must not inline.

  XLA fuses nothing across the call, and copies nothing. It takes optimisation barriers out on CPU before it fuses.
  """
  with set_xla_metadata(inlineable="false"):
    return _same(*x)


def region(part: jex_core.ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
  """The results of a program that XLA on CPU compiles to one function of machine code, all loops and calls inside.

  Source: XLA's `SmallWhileLoopHoistingPass` and `ComputationKernelEmitter`.
  """
  # XLA aborts where a region does not use one of its operands. So all are results too, and none is a constant, which XLA would
  # write into the region instead: not one at the call, nor one that comes out of the call before, if that had only constants.
  # The first goes twice through the barrier: for several devices XLA aborts where that takes just what `top_k` returns
  whole = part.replace(jaxpr=part.jaxpr.replace(outvars=[*part.jaxpr.outvars, *part.jaxpr.invars]))
  out: list[Any] = call(whole, barrier_call(*jax.lax.optimization_barrier((*args, *args[:1]))[: len(args)]), "region")
  out[0] = set_xla_metadata(out[0], inlineable="false", xla_cpu_small_call="true")
  # through a barrier all results are read: JAX drops those of a call in a loop that nobody reads
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
  """The results of a kernel in PTX on an NVIDIA GPU, whose parameters are the addresses of arguments and results."""
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
  """The program without equations that make nothing of the used results; all arguments stay."""
  return pe.dce_jaxpr(jaxpr, list(used), instantiate=True)[0]


def register_dead_code(primitive: Any, rule: Callable[[Sequence[bool], Any], tuple[list[bool], Any]]) -> None:
  """Have JAX ask a rule of a primitive what remains of an equation, of whose results some are used.

  JAX calls it with (used results, equation), from 0.12 on with (used results, live inputs, equation).
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
  left = alive(closed.jaxpr, [True, False])
  if asked != [primitive] or len(left.eqns) != 1:
    raise RuntimeError("JAX did not ask the rule")


def is_batched(x: Any) -> bool:
  """Whether a number of the trace is one of `jax.vmap`'s. JAX has no public name for these."""
  return type(x).__name__ == "BatchTracer"


def _probe_batched() -> None:
  found = []
  jax.vmap(lambda x: found.append(is_batched(x)) or x)(jnp.zeros(2))
  _expect(found, [True], "a number of jax.vmap's trace")


def is_export(ctx: Any) -> bool:
  """Whether a lowering rule is asked for a program that `jax.export` writes, which other processes load."""
  return ctx.module_context.lowering_parameters.for_export


def compilations(function: Any) -> int:
  """How many programs a function of `jax.jit` has compiled."""
  return function._cache_size()


# ------------------------------------------------------------------------------------------------------------- CPython

_WORDS = 1 << 16  # of the interpreter's stack: half a megabyte, of which only what is used takes memory


def eased(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, to trace or to lower a program: called without the garbage collector, and with room for the calls inside.

  JAX makes a million objects that are no garbage, and in a large process each collection visits all other objects too. And
  CPython keeps its frames in chunks of 16 KiB that it asks the operating system for and gives back: what is called again and
  again just where one ends, does so in each call, which takes longer than all that it does. A frame that needs much gets a
  chunk of its own, with as much behind it for what it calls.
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
  """LLVM without its scheduler of machine instructions, which takes a third of the time, for nothing.

  The option is one for all who use LLVM in this process, so it is set back.
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
  """The object file of a module. Several threads can do so side by side, for modules in contexts of their own.

  llvmlite lets one thread at a time into LLVM; the call without its lock is not a public one.
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
    raise RuntimeError("llvmlite has no call without its lock")


# --------------------------------------------------------------------------------------------------------------- table

REGIONS = Borrowed(
  "regions on CPU",
  "XLA's attribute `xla_cpu_small_call`, and calls that XLA does not inline (`inlineable`).",
  "XLA starts each operation of a few worlds by itself: a step of one world takes two to five times as long.",
  "The attribute can go once every model's step is machine code of the engine's own (`vectors.py`).",
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
  "The name of JAX's class `BatchTracer`.",
  "Jacobians of a batch try a kernel first, in vain.",
  "The name can go once kernels take Jacobians of batches too.",
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
