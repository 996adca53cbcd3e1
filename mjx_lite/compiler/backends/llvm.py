"""LLVM back end: a scalar program becomes machine code of a CPU, with one world in each lane of its vectors.

XLA compiles each operation to a loop over worlds. LLVM has to analyze the loop before it can vectorise it, and each loop reads
from memory what an earlier loop wrote there. Here each number has one vector operation, in straight-line code, so that LLVM
only has to choose registers. The code is cut into functions of a few hundred operations, as LLVM's time for a function grows
faster than the function's length. The functions exchange numbers through memory of the kernel, which stays in the cache. A
kernel processes blocks of as many worlds as a cache line has floats: 16, or 8 in double precision, with half as many lanes.
Inputs are (worlds, n), as users' arrays are. A kernel transposes the inputs of a block, so that the lanes of a number are
consecutive, and transposes its results back. A single world takes one lane.

This module cuts a program into functions. `llvm_function.py` writes a function, `llvm_entry.py` writes the entry that XLA
calls, `llvm_memory.py` is the layout of the memory, and `llvm_machine.py` compiles the assembly.

XLA computes a program that has too many operations, or one without a scalar form, with the same results. XLA also computes
worlds that may be divided among devices, and derivatives, except derivatives of many worlds together in a function that
`mjx.jit` compiles (`worlds.py`). The environment variable MJX_LITE_KERNELS=0, when mjx_lite is imported, leaves everything to
XLA.

Source: LLVM Language Reference Manual; XLA's FFI, whose binary interface XLA promises to keep (`xla/ffi/api/c_api.h`).
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.compiler import workarounds
from mjx_lite.compiler.backends import llvm_machine
from mjx_lite.compiler.backends.llvm_entry import entry
from mjx_lite.compiler.backends.llvm_function import Destination, Function, InCondition, InResult, InSlot, InState
from mjx_lite.compiler.backends.llvm_memory import Memory, block
from mjx_lite.compiler.kernels import probe, wide
from mjx_lite.compiler.scalars import Loop, Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"

LOOP = 30_000  # numbers of a loop in all its iterations, above which each iteration is a kernel of its own
DERIVATIVES = 140_000  # numbers of a program, with one iteration of each loop, above which its derivatives are no kernels
_MAX_OPERATIONS = 150_000  # operations of a kernel: about ten seconds to write and to compile
_PART = 500  # operations of a function


def is_on() -> bool:
  """Return whether steps run as such kernels, on CPU."""
  return not why_off()


def why_off() -> str:
  """Return the first reason why steps do not run as such kernels, "" if they do."""
  if not _IS_WANTED:
    return "the environment variable MJX_LITE_KERNELS is 0"
  if jax.default_backend() != "cpu":
    return "JAX's default device is not the CPU"
  return "" if workarounds.works(KERNELS) else "the probe of machine code failed"


def call(
  p: Program,
  inputs: Sequence[jax.Array],
  outs: Sequence[np.ndarray],
  dtypes: Sequence[Any],
  worlds: int,
  name: str = "mjx_lite",
) -> list[Any]:
  """Return the results of a scalar program, computed by its kernel on CPU. XLA's name of the kernel begins with `name`.

  Arrays of many worlds are (worlds, ...), as users' arrays are, so that XLA moves nothing. Arrays of one world are (..., 1).
  """
  sizes = [x.size // worlds for x in inputs]
  lanes = 1 if worlds == 1 else llvm_machine.lanes() // (2 if "d" in p.computed else 1)
  made = llvm_machine.target(name, _key(p, sizes, outs, lanes), lambda: kernel(p, sizes, outs, lanes))
  axis = 0 if worlds > 1 else -1
  shapes = [jax.ShapeDtypeStruct(wide(x.shape, worlds, axis), dtype) for x, dtype in zip(outs, dtypes, strict=True)]
  threads = min(os.cpu_count() or 1, -(-worlds // block(p)))
  arrays, memory = [*inputs, *p.tables], jax.ShapeDtypeStruct((made.size * threads,), np.uint8)
  return list(jax.ffi.ffi_call(made.name, [*shapes, memory])(*(arrays[k] for k in made.used)))[:-1]


KERNELS = workarounds.Borrowed(
  "machine code of the engine's own on CPU",
  "llvmlite, and `jax.ffi` with the binary interface of XLA's handlers: documented, and probed as a whole.",
  "XLA compiles every step: steps of batches take two to five times as long, and to compile them takes twice as long.",
  "It stays: both interfaces are documented.",
  lambda: probe(call, (1, 21), 0, 1e-6),
)


def kernel(p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int) -> tuple[list[str], str, int, list[int]]:
  """Return the LLVM assembly of a kernel, the bytes of memory that a thread needs, and the indices of the inputs that it reads.

  The assembly is a list of functions and the entry `@step`, a handler of XLA's FFI. The entry's arguments are the arrays that
  it reads, out of the inputs (worlds, n) and the program's tables. Its results are the arrays (worlds, n) in order, and then
  the memory of its threads. `sizes` are the numbers of one world in each input. `lanes` worlds go through the code at a time.
  """
  memory = Memory(p, sizes, outs, lanes)
  w = _Writer(p, memory)
  w.run([(int(k), InResult(b, row)) for b, x in enumerate(outs) for row, k in enumerate(x.ravel())], 0)
  return w.functions, entry(memory, w.calls), memory.size, memory.used


def _key(p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int) -> str:
  """Return a text that determines what `kernel` returns: the program, and the numbers that go into the assembly."""
  program = p.op, p.kind, p.args, p.depth, p.payload, [x.shape for x in p.tables]
  return repr((program, list(sizes), [x.tolist() for x in outs], lanes, block(p), _PART, _MAX_OPERATIONS))


class _Step(NamedTuple):
  """The computation of a number, or, with a destination, the storing of a number that is computed already."""

  number: int
  destination: Destination | None = None


class _Writer:
  """Writer of straight-line functions and the calls of these.

  Attributes:
    functions: definitions of the functions.
    calls: lines of the entry: calls of the functions, with labels and branches of loops between them.
  """

  def __init__(self, p: Program, memory: Memory):
    self.p, self.memory = p, memory
    self.functions: list[str] = []
    self.calls: list[str] = []
    self._loops = self._operations = 0

  def run(self, roots: Sequence[tuple[int, Destination]], depth: int) -> None:
    """Write code that computes the roots in a loop of a depth, and that stores each root at its destination."""
    p, memory = self.p, self.memory
    parts = self._parts(self._steps(roots, depth))
    self._operations += sum(map(len, parts))
    if self._operations > _MAX_OPERATIONS:
      raise Unsupported(f"a kernel of {self._operations} operations is too large; the limit is {_MAX_OPERATIONS} operations")
    last = {a: i for i, part in enumerate(parts) for step in part for a in self._read(step)}
    stored: list[int] = []  # numbers that have a slot until the last part that reads them
    for i, part in enumerate(parts):
      if part and self._is_loop(part[0]):
        self._loop(part[0].number)
      elif part:
        computed = [step.number for step in part if step.destination is None]
        kept = [k for k in computed if p.op[k] not in ("after", "table") and last.get(k, -1) > i]
        for k in kept:
          memory.keep(k)
        stored += kept
        self._function(part)
      done = {k for k in stored if last[k] <= i}
      memory.release(done)
      stored = [k for k in stored if k not in done]

  def _parts(self, steps: Sequence[_Step]) -> list[list[_Step]]:
    """Cut steps into parts: each loop is a part, and the other parts have up to `_PART` steps."""
    parts: list[list[_Step]] = [[]]
    for step in steps:
      if parts[-1] and (self._is_loop(step) or self._is_loop(parts[-1][0]) or len(parts[-1]) >= _PART):
        parts.append([])
      parts[-1].append(step)
    return parts

  def _is_loop(self, step: _Step) -> bool:
    return step.destination is None and self.p.op[step.number] == "loop"

  def _steps(self, roots: Sequence[tuple[int, Destination]], depth: int) -> list[_Step]:
    """Return the numbers to compute, each after its operands, and each root with its destination."""
    p, steps, seen = self.p, [], set()
    for root, destination in roots:
      stack = [(root, False)]
      while stack:
        k, is_ready = stack.pop()
        if is_ready:
          steps.append(_Step(k))
        elif k not in seen and p.depth[k] >= depth and p.op[k] not in ("const", "load", "param"):
          seen.add(k)
          stack.append((k, True))
          stack.extend((a, False) for a in p.args[k] if a not in seen)
      steps.append(_Step(root, destination))
    return steps

  def _read(self, step: _Step) -> list[int]:
    """Return the operands of a step; in place of a table that has no slot, the table's numbers."""
    if step.destination is not None:
      return [step.number]
    read = []
    for a in self.p.args[step.number]:
      read += self.p.args[a] if self.p.op[a] == "table" and a not in self.memory.slot else [a]
    return read

  def _loop(self, k: int) -> None:
    """Write a loop that runs as long as a lane proceeds; the numbers of the other lanes stay unchanged."""
    loop: Loop = self.p.payload[k]
    slot = self.memory.slot
    changed = [i for i, a in enumerate(loop.last) if a != loop.params[i]]
    first, new, proceeds = map(self.memory.new_slots, (len(loop.params), len(changed), 1))
    slot[k] = first
    slot.update((a, first + i) for i, a in enumerate(loop.params))
    self._in_functions([_Step(a, InSlot(first + i)) for i, a in enumerate(loop.first)])
    self._loops += 1
    n = self._loops
    self.calls += [f"br label %loop{n}", f"loop{n}:"]
    self.run([(loop.proceeds, InCondition(proceeds))], loop.depth)
    self.calls += [
      f"%any{n} = load i32, ptr %flag", f"%is{n} = icmp ne i32 %any{n}, 0",
      f"br i1 %is{n}, label %turn{n}, label %done{n}", f"turn{n}:",
    ]  # fmt: skip
    # the new state waits in other slots until all of it is computed
    self.run([(loop.last[i], InSlot(new + j)) for j, i in enumerate(changed)], loop.depth)
    self._in_functions([_Step(loop.params[i], InState(first + i, new + j, proceeds)) for j, i in enumerate(changed)])
    self.calls += [f"br label %loop{n}", f"done{n}:"]

  def _in_functions(self, steps: Sequence[_Step]) -> None:
    for k in range(0, len(steps), _PART):
      self._function(steps[k : k + _PART])

  def _function(self, steps: Sequence[_Step]) -> None:
    function = Function(self.p, self.memory)
    for k, destination in steps:
      if destination is None:
        function.make(k)
      else:
        function.store(k, destination)
    definition, line = function.text(f"part{len(self.functions)}")
    self.functions.append(definition)
    self.calls.append(line)
