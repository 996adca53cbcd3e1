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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.compiler import liveness, workarounds
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
  QueueSlots,
)  # fmt: skip
from mjx_lite.compiler.backends.llvm_entry import entry
from mjx_lite.compiler.backends.llvm_function import Function
from mjx_lite.compiler.backends.llvm_memory import Memory, ShortLoop, block
from mjx_lite.compiler.backends.llvm_state import SharedStates, State, parts_of_state
from mjx_lite.compiler.kernels import probe, wide
from mjx_lite.compiler.operations import Loop, Queue
from mjx_lite.compiler.scalars import MAX_COMPARED, Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"

LOOP = 30_000  # numbers of a loop in all its iterations, above which it is not unrolled
DERIVATIVES = 250_000  # numbers of a program, with one iteration of each loop, above which its derivatives are no kernels
_MAX_OPERATIONS = 500_000  # operations of a kernel: about 35 seconds of one core to write and to compile
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
  w = _Writer(p, memory, liveness.alive(p, (k for x in outs for k in x.ravel().tolist())))
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
    self.p, self.memory, self._alive = p, memory, alive
    self._read_after = {(p.args[k][0], p.payload[k]) for k in alive if p.op[k] == "after"}  # loop, index in its state
    self.functions: list[str] = []
    self.calls: list[str] = []
    self._readers = liveness.readers(p, alive)
    self._loops = self._flags = self._operations = self._zeros = 0
    self._shorts: dict[int, ShortLoop | None] = {}
    self._states = SharedStates(p, alive)
    self._shared: dict[int, dict[int, int]] = {}  # loop -> slots of the numbers of its state that belong to the loop around it

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
      arrays, changed, written = parts_of_state(p, loop, self._alive)
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
      read = [i for i, a in enumerate(loop.params) if a in self._alive]
      self._shorts[k] = ShortLoop(0, condition, body, outside, arrays, changed, read, set()) if is_short else None
    return self._shorts[k]

  def _place_short(self, k: int) -> None:
    """Give a loop within a function its slots."""
    short, loop = self._shorts[k], self.p.payload[k]
    assert short is not None
    first = self.memory.slot[k] = self.memory.new_slots(len(loop.params))
    self.memory.slot.update((a, first + i) for i, a in enumerate(loop.params))
    self.memory.slot.update((loop.params[i], slot) for i, slot in self._shared.get(k, {}).items())
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
          stack.extend((a, False) for a in self._operands(k) if a not in seen)
      steps.append(_Step(root, destination))
    return steps

  def _read(self, step: _Step) -> list[int]:
    """Return what a step reads: its operands; in place of a table that needs no copy, the table's numbers; and their loops."""
    p, read = self.p, []
    for a in self._operands(step.number) if step.destination is None else (step.number,):
      read += p.args[a] if p.op[a] == "table" and not self._is_copied(a) else [a]
    return read + [p.args[a][0] for a in read if p.op[a] == "after"]

  def _operands(self, k: int) -> Sequence[int]:
    """Return the operands of a number; those of a loop and of a queue only as far as something reads what they become."""
    operands = self.p.args[k]
    return [a for a in operands if a in self._alive] if self.p.op[k] in ("loop", "queue") else operands

  def _is_copied(self, table: int) -> bool:
    """Return whether a table's numbers are stored in slots of its own."""
    return len(self.p.args[table]) > MAX_COMPARED and self.p.payload.get(table) is None

  def _loop(self, k: int) -> None:
    """Write a loop that runs as long as a lane proceeds; the numbers of the other lanes stay unchanged.

    Numbers that are the same in all lanes go on in all lanes. Arrays that are written at an index are written in place.
    """
    loop: Loop = self.p.payload[k]
    self.memory.slot[k] = first = self.memory.new_slots(len(loop.params))
    with self.memory.loop():
      state, shared = self._state(loop, first), self._shared.get(k, {})
      self.memory.slot.update((loop.params[i], slot) for i, slot in shared.items())
      uniform = self._find_uniform(k, state.changed)
      self._loops += 1
      n = self._loops
      own = [i for i, a in enumerate(loop.params) if a in self._alive and i not in shared]
      self._start([(first + i, loop.first[i]) for i in own])
      self._turn(n, loop, state, uniform)

  def _state(self, loop: Loop, first: int) -> State:
    """Give the state of a loop its slots, from the slot `first` on, and slots to its new numbers."""
    parts = parts_of_state(self.p, loop, self._alive)
    self.memory.slot.update((a, first + i) for i, a in enumerate(loop.params))
    new, proceeds = map(self.memory.new_slots, (len(parts[1]) + len(parts[2]), 1))
    return State(first, *parts, new, proceeds)

  def _turn(self, n: int, loop: Loop, s: State, uniform: set[int], queue: QueueSlots | None = None) -> None:
    """Write the code of a loop whose state has its first numbers.

    Args:
      n: number for labels.
      loop: the loop.
      s: slots of its state.
      uniform: indices of the numbers of its state that are the same in all lanes.
      queue: the queue of which the loop is the search.
    """
    self.calls += [f"br label %loop{n}", f"loop{n}:"]
    self.run([(loop.proceeds, InCondition(s.proceeds, queue))], loop.depth)
    self._branch(f"turn{n}", f"done{n}")
    shared = self._share(loop, s)
    roots, steps = self._new_state(loop, s, uniform, {i for pairs in shared.values() for i in pairs.values()})
    with self.memory.only(s.proceeds):
      self.run([*roots, *self._shared_roots(loop, shared)], loop.depth)
    waiting = self._waiting(s)
    for a in s.arrays:
      for index, x in a.writes:
        is_uniform = self.memory.is_uniform(index)
        first = self.memory.slot[loop.params[a.first]]
        to = InArray(first, a.step, a.size, waiting[index], waiting[x], s.proceeds, is_uniform)
        steps.append(_Step(loop.params[a.first], to))
    self._in_functions(steps)
    self.calls += [f"br label %loop{n}", f"done{n}:"]
    for k, pairs in shared.items():
      del self._shared[k]
      for i in pairs.values():
        del self.memory.slot[loop.last[i]]

  def _waiting(self, s: State) -> dict[int, int]:
    """Return the slots in which what is written into arrays of a loop's state waits."""
    return {x: s.new + len(s.changed) + j for j, x in enumerate(s.written)}

  def _new_state(
    self, loop: Loop, s: State, uniform: set[int], shared: set[int]
  ) -> tuple[list[tuple[int, Destination]], list[_Step]]:
    """Return the new numbers of a loop's state with their destinations, and the steps that follow when all are computed.

    The new state waits in other slots until all of it is computed, unless nothing else reads the old one.
    """
    roots: list[tuple[int, Destination]] = []
    steps = []
    for j, i in enumerate(s.changed):
      param, last, proceeds = loop.params[i], loop.last[i], None if i in uniform else s.proceeds
      if i in shared:
        continue
      if self._readers[param] == 1 and param in self.p.args[last]:
        roots.append((last, InState(s.first + i, None, proceeds)))
      else:
        roots.append((last, InSlot(s.new + j)))
        steps.append(_Step(param, InState(s.first + i, s.new + j, proceeds)))
    return [*roots, *((x, InSlot(at)) for x, at in self._waiting(s).items())], steps

  def _share(self, loop: Loop, s: State) -> dict[int, dict[int, int]]:
    """Choose the inner loops whose arrays are those of a loop: for each the indices in both states. See `SharedStates`."""
    condition = {x.number for x in self._steps([(loop.proceeds, InSlot(0))], loop.depth)}

    def steps(shared):
      roots, _ = self._new_state(loop, s, set(), {i for pairs in shared.values() for i in pairs.values()})
      return self._steps([*roots, *self._shared_roots(loop, shared)], loop.depth)

    found = self._states.choose(loop, condition, steps, self._read)
    for k, pairs in found.items():
      self._shared[k] = {j: self.memory.slot[loop.params[i]] for j, i in pairs.items()}
      self.memory.slot.update((loop.last[i], self.memory.slot[loop.params[i]]) for i in pairs.values())
    return found

  def _shared_roots(self, loop: Loop, shared: dict[int, dict[int, int]]) -> list[tuple[int, Destination]]:
    """Return a number of each inner loop that shares its arrays, to be stored where it is."""
    some = [next(iter(pairs.values())) for pairs in shared.values()]
    return [(loop.last[i], InSlot(self.memory.slot[loop.params[i]])) for i in some]

  def _branch(self, yes: str, no: str) -> None:
    """Write a branch by `%flag` to two labels, of which the first one follows."""
    self._flags += 1
    k = self._flags
    self.calls += [f"%any{k} = load i32, ptr %flag", f"%is{k} = icmp ne i32 %any{k}, 0",
                   f"br i1 %is{k}, label %{yes}, label %{no}", f"{yes}:"]  # fmt: skip

  def _queue(self, k: int) -> None:
    """Write a queue: the list of wanted items of all worlds, and a loop over as many of them as lanes at a time.

    Lanes take their items from the list. If each item has a search, a lane whose search has ended takes the next item.
    """
    p, memory = self.p, self.memory
    queue: Queue = p.payload[k]
    number, width = len(queue.wanted), len(queue.last)
    memory.slot[k] = first = memory.new_slots(number * width)
    with memory.loop():
      q = QueueSlots(memory.new_slots(number + 1), *(memory.new_slots(1) for _ in QueueSlots._fields[1:]))
      memory.slot[queue.item] = q.item
      self._loops += 1
      n = self._loops
      read = [i for i in range(number * width) if (k, i) in self._read_after]
      self._start([(first + i, queue.first[i]) for i in read])
      self._start([(x, p.const(0, "i")) for x in (q.total, q.begun, q.active)])
      self._in_functions([_Step(a, InQueue(q, i)) for i, a in enumerate(queue.wanted)])
      self._short_function(lambda f: f.end_list(q))
      self._branch(f"queue{n}", f"empty{n}")
      self._short_function(lambda f: f.refill(q))
      around, memory.queue = memory.queue, (queue.depth, q.lane)
      with memory.only(q.active):
        ended = q.active if queue.search is None else self._search(queue.search, q, n)
      columns = [j for j in range(width) if any(i % width == j for i in read)]
      new = memory.new_slots(len(columns))
      with memory.only(ended):
        self.run([(queue.last[j], InSlot(new + i)) for i, j in enumerate(columns)], queue.depth)
      self._in_functions([_Step(queue.last[j], InRow(first + j, width, q.item, new + i, ended)) for i, j in enumerate(columns)])
      memory.queue = around
      self._short_function(lambda f: f.leave(q, ended))
      self._branch(f"more{n}", f"empty{n}")
      self.calls += [f"br label %queue{n}", f"empty{n}:"]

  def _search(self, loop: Loop, q: QueueSlots, n: int) -> int:
    """Write the searches of a queue until some of them have ended; return the slot of the mask of those."""
    memory = self.memory
    s = self._state(loop, memory.new_slots(len(loop.params)))
    used = [i for i, a in enumerate(loop.params) if a in self._alive and loop.first[i] not in self.p.unset]
    numbers = list(dict.fromkeys(loop.first[i] for i in used))
    new, ended = memory.new_slots(len(numbers)), memory.new_slots(1)
    at = {a: new + j for j, a in enumerate(numbers)}
    self.run([(a, InSlot(x)) for a, x in at.items()], loop.depth)
    self._in_functions([_Step(loop.params[i], InState(s.first + i, at[loop.first[i]], q.free)) for i in used])
    self._turn(n, loop, s, set(), q)
    self._short_function(lambda f: f.end_of_search(q, s.proceeds, ended))
    return ended

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

  def _start(self, numbers: Sequence[tuple[int, int]]) -> None:
    """Write code that stores numbers in slots, given as pairs (slot, number). Long runs of zeros are set together."""
    p, steps, k = self.p, [], 0
    numbers = [(at, a) for at, a in numbers if a not in p.unset]
    while k < len(numbers):
      (slot, a), end = numbers[k], k + 1
      is_zero = p.op[a] == "const" and not any(np.float64(p.payload[a]).tobytes())
      while is_zero and end < len(numbers) and numbers[end] == (slot + end - k, a):
        end += 1
      if end - k >= _RUN:
        size = self.memory.word * self.memory.lanes
        self._zeros += 1
        self.calls += [
          f"%zeros{self._zeros} = getelementptr i8, ptr %own, i64 {size * slot}",
          f"call void @llvm.memset.p0.i64(ptr %zeros{self._zeros}, i8 0, i64 {size * (end - k)}, i1 false)",
        ]
      else:
        steps += [_Step(x, InSlot(at)) for at, x in numbers[k:end]]
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

  def _short_function(self, write: Callable[[Function], None]) -> None:
    """Write a function of its own for what `write` writes."""
    function = Function(self.p, self.memory)
    write(function)
    self._add(function)

  def _add(self, function: Function) -> None:
    """Add a function, and its call."""
    definition, line = function.text(f"part{len(self.functions)}")
    self.functions.append(definition)
    self.calls.append(line)
