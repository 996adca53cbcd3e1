"""Memory of a kernel on CPU: rows for the inputs and results of a block of worlds, and slots for numbers.

XLA allocates the memory as one more result of the kernel. A row has one number of an array for each world of a block, so that
the lanes of a number are consecutive. A slot has one number for each lane; the functions of a kernel exchange numbers through
slots. In programs with numbers of 64 bits, a slot has 8 bytes for each lane, otherwise 4.

Tests: tests/compiler/test_llvm.py.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mjx_lite.compiler.operations import WIDE, Load
from mjx_lite.compiler.scalars import Program

# LLVM's type of a number, by kind
TYPES = {"f": "float", "d": "double", "i": "i32", "l": "i64", "u": "i32", "v": "i64", "p": "i1"}
_ALIGNMENT = 64  # bytes of a cache line
_SINGLE = 64  # slots for numbers that are made at a time


def nbytes(kind: str) -> int:
  """Return the bytes of a number in an array: a truth value has one byte."""
  return 1 if kind == "p" else 8 if kind in WIDE else 4


def block(p: Program) -> int:
  """Return the number of worlds whose inputs are transposed together: the floats of a cache line."""
  return _ALIGNMENT // nbytes("d" if "d" in p.computed else "f")


class Rows(NamedTuple):
  """Rows of a kernel's memory that hold the numbers of one array for the worlds of a block."""

  buffer: int  # position of the array among the entry's arguments, or among its results
  kind: str
  first: int  # offset of the first row, in bytes
  nrow: int
  stride: int  # numbers of one world in the array


class Array(NamedTuple):
  """An array in a loop's state that an iteration only writes at computed indices.

  Attributes:
    first: index of its first number in the state.
    step: distance of its numbers.
    size: number of its numbers.
    writes: index and new number of each write, in order.
  """

  first: int
  step: int
  size: int
  writes: tuple[tuple[int, int], ...]

  @property
  def indices(self) -> range:
    """Indices of its numbers in the state."""
    return range(self.first, self.first + self.step * self.size, self.step)


class ShortLoop(NamedTuple):
  """A loop whose code is in one function, with its state in registers.

  Attributes:
    first: slot of the state after the loop, and of arrays in the loop.
    condition: numbers to compute for the condition, in order.
    body: further numbers to compute in an iteration.
    outside: numbers from outside that are read.
    arrays: arrays that are written in place.
    changed: indices of the other numbers of the state that change.
    read: indices of the numbers of the state that something reads.
    uniform: indices, out of `changed`, of the numbers that are the same in all lanes.
  """

  first: int
  condition: list[int]
  body: list[int]
  outside: list[int]
  arrays: list[Array]
  changed: list[int]
  read: list[int]
  uniform: set[int]


class Memory:
  """Layout of a kernel's memory, and the slots of numbers.

  Attributes:
    lanes: worlds that go through the code at a time.
    block: worlds whose inputs are transposed together.
    word: bytes of a slot for each lane.
    bases: names of the addresses of the first lane's numbers in the rows, by the bytes of a number.
    vector: LLVM's type of a number for all lanes, by kind.
    used: indices of the inputs and tables that the kernel reads. They are the entry's arguments.
    argument: position among the entry's arguments, by index.
    read: rows of each input that differs by world, by its index.
    written: rows of each result.
    slot: slot of each number that has one.
    nslots: number of slots.
    uniform: for numbers of loops' states, whether all lanes have the same number.
    short: the loops that are written within a function.
    queue: the depth of the queue that is written, and the slot of the lane that each item belongs to; None outside of queues.
    mask: slot of the mask of the lanes whose numbers something reads; None for all lanes. The other lanes belong to worlds
      whose loops have ended.
  """

  def __init__(self, p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int):
    self.lanes, self.block, self._inputs = lanes, block(p) if lanes > 1 else 1, len(sizes)
    self.word = 8 if WIDE & {*p.computed, *(p.kind[int(x.flat[0])] for x in outs if x.size)} else 4
    self.bases = {size: name for size, name in ((8, "%eight"), (4, "%four"), (1, "%one")) if size <= self.word}
    self.vector = {kind: f"<{lanes} x {t}>" for kind, t in TYPES.items()}
    self.slot: dict[int, int] = {}
    self.nslots = 0
    self.uniform: dict[int, bool] = {}
    self.short: dict[int, ShortLoop] = {}
    self.queue: tuple[int, int] | None = None
    self.mask: int | None = None
    self._p = p
    self._single: list[int] = []  # free slots for numbers
    self._ranges: list[tuple[int, int]] = []  # free consecutive slots: the first one, and how many
    self._frames: list[dict[int, int]] = [{}]  # consecutive slots that are in use, by loops around them
    loads = [(x.load._replace(row=x.load.row + x.size - 1), p.kind[x.first]) for x in p.blocks if x.size]  # the last ones
    self.used = sorted({self.parameter(load) for load, _ in loads})
    self.argument = {k: i for i, k in enumerate(self.used)}
    rows: dict[int, tuple[str, int]] = {}
    for load, kind in loads:
      if load.per_world:
        rows[load.buffer] = kind, max(load.row + 1, rows.get(load.buffer, (kind, 0))[1])
    self._end = 0  # offset behind the last row, in bytes
    self.read = {b: self._rows(self.argument[b], kind, count, sizes[b]) for b, (kind, count) in rows.items()}
    kinds = [(p.kind[int(x.flat[0])], x.size) if x.size else ("f", 0) for x in outs]
    self.written = [self._rows(k, kind, size, size) for k, (kind, size) in enumerate(kinds)]

  def _rows(self, buffer: int, kind: str, count: int, stride: int) -> Rows:
    self._end += -self._end % _ALIGNMENT
    rows = Rows(buffer, kind, self._end, count, stride)
    self._end += nbytes(kind) * self.block * count
    return rows

  def parameter(self, load: Load) -> int:
    """Return the index of an input, or of a table, whose `buffer` is negative; tables follow the inputs."""
    return load.buffer if load.buffer >= 0 else self._inputs - load.buffer - 1

  @property
  def first_slot(self) -> int:
    """Offset of the slots, in bytes."""
    return self._end + -self._end % _ALIGNMENT

  @property
  def size(self) -> int:
    """Bytes of the memory of one thread."""
    end = self.first_slot + self.word * self.lanes * self.nslots
    return end + -end % _ALIGNMENT + _ALIGNMENT

  def is_uniform(self, k: int) -> bool:
    """Return whether a number is the same in all lanes."""
    p, stack, seen = self._p, [k], set()
    while stack:
      k = stack.pop()
      if k in seen or p.op[k] == "const":
        continue
      seen.add(k)
      if p.op[k] in ("after", "loop", "table") or not self.uniform.get(k, p.op[k] != "param"):
        return False
      if p.op[k] == "load" and p.load(k).per_world:
        return False
      stack += p.args[k][1:] if p.op[k] == "fetch" and self._is_shared(p.args[k][0]) else p.args[k]
    return True

  def _is_shared(self, table: int) -> bool:
    """Return whether a table has only numbers that all worlds share."""
    return all(self._p.op[a] == "load" and not self._p.load(a).per_world for a in self._p.args[table])

  def new_slots(self, n: int) -> int:
    """Return the first of n consecutive slots, which are in use until they are freed, or the loop around them ends."""
    n = max(n, 1)
    first = self._found(n)
    self._frames[-1][first] = n
    return first

  def _found(self, n: int) -> int:
    """Return the first of n consecutive slots: free ones, or new ones."""
    for i, (first, size) in enumerate(self._ranges):
      if size >= n:
        self._ranges[i : i + 1] = [(first + n, size - n)] if size > n else []
        return first
    self.nslots += n
    return self.nslots - n

  def free(self, first: int) -> None:
    """Free the consecutive slots from a slot on, which `new_slots` returned in the same loop."""
    n = self._frames[-1].pop(first)
    ranges = sorted([*self._ranges, (first, n)])
    self._ranges = ranges[:1]
    for first, n in ranges[1:]:
      before, size = self._ranges[-1]
      if before + size == first:
        self._ranges[-1] = before, size + n
      else:
        self._ranges.append((first, n))

  @contextlib.contextmanager
  def loop(self) -> Iterator[None]:
    """Free all consecutive slots at the end that come into use inside."""
    self._frames.append({})
    yield
    for first in list(self._frames[-1]):
      self.free(first)
    self._frames.pop()

  @contextlib.contextmanager
  def only(self, mask: int) -> Iterator[None]:
    """Set `mask` for what is written inside."""
    around, self.mask = self.mask, mask
    yield
    self.mask = around

  def keep(self, k: int) -> None:
    """Give a number a slot."""
    if not self._single:
      first = self._found(_SINGLE)
      self._single += range(first + _SINGLE - 1, first - 1, -1)
    self.slot[k] = self._single.pop()

  def release(self, numbers: Iterable[int]) -> None:
    """Free the slots of numbers."""
    self._single += [self.slot.pop(k) for k in numbers]
