"""Memory of a kernel on CPU: rows for the inputs and results of a block of worlds, and slots for numbers.

XLA allocates the memory as one more result of the kernel. A row has one number of an array for each world of a block, so that
the lanes of a number are consecutive. A slot has one number for each lane; the functions of a kernel exchange numbers through
slots. In programs with numbers of 64 bits, a slot has 8 bytes for each lane, otherwise 4.

Tests: tests/compiler/test_llvm.py.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mjx_lite.compiler.scalars import WIDE, Load, Program

# LLVM's type of a number, by kind
TYPES = {"f": "float", "d": "double", "i": "i32", "l": "i64", "u": "i32", "v": "i64", "p": "i1"}
_ALIGNMENT = 64  # bytes of a cache line


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
  """

  def __init__(self, p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int):
    self.lanes, self.block, self._inputs = lanes, block(p) if lanes > 1 else 1, len(sizes)
    self.word = 8 if WIDE & {*p.computed, *(p.kind[int(x.flat[0])] for x in outs if x.size)} else 4
    self.bases = {size: name for size, name in ((8, "%eight"), (4, "%four"), (1, "%one")) if size <= self.word}
    self.vector = {kind: f"<{lanes} x {t}>" for kind, t in TYPES.items()}
    self.slot: dict[int, int] = {}
    self.nslots = 0
    self._free: list[int] = []
    loads = [(p.payload[k], p.kind[k]) for k in range(len(p.op)) if p.op[k] == "load"]
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

  def new_slots(self, n: int) -> int:
    """Return the first of n new consecutive slots."""
    self.nslots += n
    return self.nslots - n

  def keep(self, k: int) -> None:
    """Give a number a slot: a free slot, or a new one."""
    self.slot[k] = self._free.pop() if self._free else self.new_slots(1)

  def release(self, numbers: Iterable[int]) -> None:
    """Free the slots of numbers."""
    self._free += [self.slot.pop(k) for k in numbers]
