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
from mjx_lite.compiler.backends.llvm_destination import (
  Destination,
  InArray,
  InCondition,
  InQueue,
  InResult,
  InResults,
  InRow,
  InSlot,
  InState,
)  # fmt: skip
from mjx_lite.compiler.backends.llvm_entry import entry
from mjx_lite.compiler.backends.llvm_function import Function
from mjx_lite.compiler.backends.llvm_memory import Array, Memory, ShortLoop, block
from mjx_lite.compiler.kernels import probe, wide
from mjx_lite.compiler.operations import Loop, Queue
from mjx_lite.compiler.scalars import MAX_COMPARED, Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"

LOOP = 30_000  # numbers of a loop in all its iterations, above which it is not unrolled
DERIVATIVES = 140_000  # numbers of a program, with one iteration of each loop, above which its derivatives are no kernels
_MAX_OPERATIONS = 250_000  # operations of a kernel: about 17 seconds of one core to write and to compile
_PART = 500  # operations of a function
_RUN = 32  # numbers that are set or copied together
_SHORT, _STATE = 250, 24  # operations of a loop within a function, and numbers of its state that change


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
  roots = [root for b, x in enumerate(outs) for root in _results(p, b, x.ravel().tolist())]
  w = _Writer(p, memory, p.alive(k for k, _ in roots))
  w.run(roots, 0)
  return w.functions, entry(memory, w.calls), memory.size, memory.used


def _results(p: Program, result: int, numbers: Sequence[int]) -> list[tuple[int, Destination]]:
  """Return the numbers of a result with their destinations; of consecutive numbers after a loop only the first number."""

  def place(k):
    """Return a number's loop, its index in the loop's state, and its kind."""
    return (p.args[k][0], p.payload[k], p.kind[k]) if p.op[k] == "after" else (-1, k, "")

  roots: list[tuple[int, Destination]] = []
  k = 0
  while k < len(numbers):
    loop, at, kind = place(numbers[k])
    end = k + 1
    while loop >= 0 and end < len(numbers) and place(numbers[end]) == (loop, at + end - k, kind):
      end += 1
    is_run = end - k >= _RUN
    roots.append((numbers[k], InResults(result, k, end - k) if is_run else InResult(result, k)))
    k = end if is_run else k + 1
  return roots


def _key(p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int) -> str:
  """Return a text that determines what `kernel` returns: the program, and the numbers that go into the assembly."""
  return repr((p.key(), list(sizes), [x.tolist() for x in outs], lanes, block(p), _PART, _MAX_OPERATIONS))


def _arrays(p: Program, loop: Loop) -> list[Array]:
  """Return the arrays in a loop's state that are written in place."""
  columns: dict[Any, dict[int, list[int]]] = {}  # by writes: the numbers of the state that have a position
  for i, (k, param) in enumerate(zip(loop.last, loop.params, strict=True)):
    writes: list[Any] = []
    position: Any = p.payload.get(k)
    while p.op[k] == "put" and p.payload[k] == position:
      writes.append(p.args[k][1:])
      k = p.args[k][0]
    if k == param and writes:
      columns.setdefault((tuple(writes[::-1]), p.kind[param]), {}).setdefault(position, []).append(i)
  found = []
  for (writes, _), positions in columns.items():
    count = len(positions.get(0, ()))
    if not count or any(len(positions.get(j, ())) != count for j in range(max(positions) + 1)):
      continue
    for column in zip(*(positions[j] for j in range(len(positions))), strict=True):
      numbers = [int(i) for i in column]
      step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
      if step > 0 and numbers == list(range(numbers[0], numbers[0] + step * len(numbers), step)):
        found.append(Array(numbers[0], step, len(numbers), tuple(writes)))
  return found


def _parts_of_state(p: Program, loop: Loop) -> tuple[list[Array], list[int], list[int]]:
  """Return the arrays in a loop's state that are written in place, the indices of its other numbers that change, and what is
  written: indices into arrays, and new numbers."""
  arrays = _arrays(p, loop)
  in_place = {i for a in arrays for i in a.indices}
  changed = [i for i, a in enumerate(loop.last) if a != loop.params[i] and i not in in_place]
  return arrays, changed, list(dict.fromkeys(x for a in arrays for pair in a.writes for x in pair))


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

  def __init__(self, p: Program, memory: Memory, alive: set[int]):
    self.p, self.memory = p, memory
    self._read_after = {(p.args[k][0], p.payload[k]) for k in alive if p.op[k] == "after"}  # loop, index in its state
    self.functions: list[str] = []
    self.calls: list[str] = []
    self._loops = self._operations = self._zeros = 0
    self._shorts: dict[int, ShortLoop | None] = {}

  def run(self, roots: Sequence[tuple[int, Destination]], depth: int) -> None:
    """Write code that computes the roots in a loop of a depth, and that stores each root at its destination."""
    p, memory = self.p, self.memory
    parts = self._parts(self._steps(roots, depth))
    self._operations += sum(map(len, parts))
    if self._operations > _MAX_OPERATIONS:
      raise Unsupported(f"a kernel of {self._operations} operations is too large; the limit is {_MAX_OPERATIONS} operations")
    last = {a: i for i, part in enumerate(parts) for step in part for a in self._read(step)}
    stored: list[int] = []  # numbers that have a slot until the last part that reads them
    long: list[int] = []  # loops and tables, likewise
    for i, part in enumerate(parts):
      if part and self._is_loop(part[0]):
        (self._loop if p.op[part[0].number] == "loop" else self._queue)(part[0].number)
        long.append(part[0].number)
      elif part:
        computed = [step.number for step in part if step.destination is None]
        long += [k for k in computed if p.op[k] == "loop" or (p.op[k] == "table" and self._is_copied(k))]
        for k in computed:
          if p.op[k] == "loop":
            self._place_short(k)
        kept = [k for k in computed if p.op[k] not in ("after", "table", "loop") and last.get(k, -1) > i]
        for k in kept:
          memory.keep(k)
        stored += kept
        self._function(part)
      done = {k for k in stored if last[k] <= i}
      memory.release(done)
      stored = [k for k in stored if k not in done]
      for k in [k for k in long if last.get(k, -1) <= i]:
        long.remove(k)
        memory.free(memory.slot.pop(k))

  def _parts(self, steps: Sequence[_Step]) -> list[list[_Step]]:
    """Cut steps into parts: each loop is a part, and the other parts have up to `_PART` steps."""
    parts: list[list[_Step]] = [[]]
    size = 0
    for step in steps:
      if parts[-1] and (self._is_loop(step) or self._is_loop(parts[-1][0]) or size >= _PART):
        parts.append([])
        size = 0
      parts[-1].append(step)
      short = self._short(step.number) if step.destination is None and self.p.op[step.number] == "loop" else None
      size += 1 if short is None else len(short.condition) + len(short.body)
    return parts

  def _is_loop(self, step: _Step) -> bool:
    """Return whether a step is a loop with functions of its own, or a queue."""
    op = self.p.op[step.number] if step.destination is None else ""
    return op == "queue" or (op == "loop" and self._short(step.number) is None)

  def _short(self, k: int) -> ShortLoop | None:
    """Return a loop as one within a function, None if it is too long; its slots have no meaning yet."""
    if k not in self._shorts:
      p, loop = self.p, self.p.payload[k]
      arrays, changed, written = _parts_of_state(p, loop)
      last = [*(loop.last[i] for i in changed), *written]
      condition, body = (
        [x.number for x in self._steps([(y, InSlot(0)) for y in roots], loop.depth) if x.destination is None]
        for roots in ([loop.proceeds], last)
      )
      body = [x for x in body if x not in set(condition)]
      inside = [*condition, *body]
      is_short = len(inside) <= _SHORT and len(changed) <= _STATE and not any(
        p.op[x] in ("loop", "queue") or (p.op[x] == "table" and self._is_copied(x)) for x in inside
      )  # fmt: skip
      outside = p.reached((loop.proceeds, *last), loop.depth)[1]
      self._shorts[k] = ShortLoop(0, condition, body, outside, arrays, changed, set()) if is_short else None
    return self._shorts[k]

  def _place_short(self, k: int) -> None:
    """Give a loop within a function its slots."""
    short, loop = self._shorts[k], self.p.payload[k]
    assert short is not None
    first = self.memory.slot[k] = self.memory.new_slots(len(loop.params))
    self.memory.slot.update((a, first + i) for i, a in enumerate(loop.params))
    self.memory.short[k] = short._replace(first=first, uniform=self._find_uniform(k, short.changed))

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
    """Return what a step reads: its operands; in place of a table that needs no copy, the table's numbers; and their loops."""
    p, read = self.p, []
    for a in p.args[step.number] if step.destination is None else (step.number,):
      read += p.args[a] if p.op[a] == "table" and not self._is_copied(a) else [a]
    return read + [p.args[a][0] for a in read if p.op[a] == "after"]

  def _is_copied(self, table: int) -> bool:
    """Return whether a table's numbers are stored in slots of its own."""
    return len(self.p.args[table]) > MAX_COMPARED and self.p.payload.get(table) is None

  def _loop(self, k: int) -> None:
    """Write a loop that runs as long as a lane proceeds; the numbers of the other lanes stay unchanged.

    Numbers that are the same in all lanes go on in all lanes. Arrays that are written at an index are written in place.
    """
    loop: Loop = self.p.payload[k]
    slot = self.memory.slot
    arrays, changed, written = _parts_of_state(self.p, loop)
    slot[k] = first = self.memory.new_slots(len(loop.params))
    with self.memory.loop():
      self._iterations(k, loop, first, arrays, changed, written)

  def _iterations(
    self, k: int, loop: Loop, first: int, arrays: Sequence[Array], changed: Sequence[int], written: Sequence[int]
  ) -> None:
    """Write the code of a loop.

    Args:
      k: number of the loop.
      loop: the loop.
      first: slot of its state.
      arrays: arrays in its state that are written in place.
      changed: indices of the other numbers of its state that change.
      written: indices into arrays, and numbers that are written there.
    """
    slot = self.memory.slot
    new, proceeds = map(self.memory.new_slots, (len(changed) + len(written), 1))
    slot.update((a, first + i) for i, a in enumerate(loop.params))
    uniform = self._find_uniform(k, changed)
    self._loops += 1
    n = self._loops
    self._start(loop.first, first)
    self.calls += [f"br label %loop{n}", f"loop{n}:"]
    self.run([(loop.proceeds, InCondition(proceeds))], loop.depth)
    self.calls += [
      f"%any{n} = load i32, ptr %flag", f"%is{n} = icmp ne i32 %any{n}, 0",
      f"br i1 %is{n}, label %turn{n}, label %done{n}", f"turn{n}:",
    ]  # fmt: skip
    # the new state waits in other slots until all of it is computed
    waiting = {x: new + len(changed) + j for j, x in enumerate(written)}
    roots = [(loop.last[i], InSlot(new + j)) for j, i in enumerate(changed)]
    self.run([*roots, *((x, InSlot(at)) for x, at in waiting.items())], loop.depth)
    steps = [
      _Step(loop.params[i], InState(first + i, new + j, None if i in uniform else proceeds)) for j, i in enumerate(changed)
    ]
    for a in arrays:
      for index, x in a.writes:
        to = InArray(first + a.first, a.step, a.size, waiting[index], waiting[x], proceeds, self.memory.is_uniform(index))
        steps.append(_Step(loop.params[a.first], to))
    self._in_functions(steps)
    self.calls += [f"br label %loop{n}", f"done{n}:"]

  def _queue(self, k: int) -> None:
    """Write a queue: the list of wanted items of all worlds, and a loop that takes as many of them as lanes at a time."""
    p, memory = self.p, self.memory
    queue: Queue = p.payload[k]
    number, width = len(queue.wanted), len(queue.last)
    memory.slot[k] = first = memory.new_slots(number * width)
    with memory.loop():
      self._rounds(queue, first)

  def _rounds(self, queue: Queue, first: int) -> None:
    """Write the code of a queue, whose rows are in the slots from `first` on."""
    p, memory, number, width = self.p, self.memory, len(queue.wanted), len(queue.last)
    new, items = map(memory.new_slots, (width, number))
    count, item, lane, active = map(memory.new_slots, (2, 1, 1, 1))
    begun = count + 1
    memory.slot[queue.item] = item
    self._loops += 1
    n = self._loops
    self._start(queue.first, first)
    self._start([p.const(0, "i")] * 2, count)
    self._in_functions([_Step(a, InQueue(items, count, i)) for i, a in enumerate(queue.wanted)])
    at = [
      f"%at{n}_{i} = getelementptr i8, ptr %own, i64 {memory.word * memory.lanes * x}" for i, x in enumerate((count, begun))
    ]
    self.calls += [
      *at, f"br label %queue{n}", f"queue{n}:", f"%count{n} = load i32, ptr %at{n}_0", f"%begun{n} = load i32, ptr %at{n}_1",
      f"%is{n} = icmp slt i32 %begun{n}, %count{n}", f"br i1 %is{n}, label %turn{n}, label %done{n}", f"turn{n}:",
    ]  # fmt: skip
    function = Function(p, memory)
    function.next_items(items, count, begun, (item, lane, active))
    self._add(function)
    around, memory.queue = memory.queue, (queue.depth, lane)
    self.run([(x, InSlot(new + j)) for j, x in enumerate(queue.last)], queue.depth)
    self._in_functions([_Step(x, InRow(first + j, width, item, new + j, active)) for j, x in enumerate(queue.last)])
    memory.queue = around
    self.calls += [f"br label %queue{n}", f"done{n}:"]

  def _find_uniform(self, k: int, changed: Sequence[int]) -> set[int]:
    """Return the indices, out of `changed`, of the numbers of a loop's state that are the same in all lanes.

    Nothing reads them after the loop: a lane whose loop is over has numbers of the last iteration of any lane.
    """
    loop, uniform, is_uniform = self.p.payload[k], self.memory.uniform, self.memory.is_uniform
    kept = {i for i, a in enumerate(loop.last) if a == loop.params[i]}
    found = {i for i in (*changed, *kept) if is_uniform(loop.first[i]) and (i in kept or (k, i) not in self._read_after)}
    while True:
      uniform.update((a, i in found) for i, a in enumerate(loop.params))
      wrong = {i for i in found if not is_uniform(loop.last[i])}
      if not wrong:
        return found
      found -= wrong

  def _start(self, numbers: Sequence[int], slot: int) -> None:
    """Write code that stores numbers in consecutive slots. Long runs of zeros are set together."""
    p, steps, k = self.p, [], 0
    while k < len(numbers):
      end = k + 1
      is_zero = p.op[numbers[k]] == "const" and not any(np.float64(p.payload[numbers[k]]).tobytes())
      while is_zero and end < len(numbers) and p.op[numbers[end]] == "const" and numbers[end] == numbers[k]:
        end += 1
      if end - k >= _RUN:
        size = self.memory.word * self.memory.lanes
        self._zeros += 1
        self.calls += [
          f"%zeros{self._zeros} = getelementptr i8, ptr %own, i64 {size * (slot + k)}",
          f"call void @llvm.memset.p0.i64(ptr %zeros{self._zeros}, i8 0, i64 {size * (end - k)}, i1 false)",
        ]
      else:
        steps += [_Step(numbers[i], InSlot(slot + i)) for i in range(k, end)]
      k = end
    self._in_functions(steps)

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
    self._add(function)

  def _add(self, function: Function) -> None:
    """Add a function, and its call."""
    definition, line = function.text(f"part{len(self.functions)}")
    self.functions.append(definition)
    self.calls.append(line)
