"""Registers of a thread in a straight-line block: which numbers stay in a register, and which are spilled to memory.

If all registers are occupied, the number with the farthest next use is spilled (Belady 1966).

Tests: tests/compiler/test_ptx.py.
"""

import heapq
from collections.abc import Callable, Collection

from mjx_lite.compiler.scalars import Program

_REGISTERS = 170  # numbers that a thread keeps in its 255 registers


class Registers:
  """The numbers that are in registers, at a position in a list of steps.

  Args:
    p: the program.
    uses: the steps that read each number, as indices in descending order. Uses that are over are removed.
    load: function of a number that is in no register. It writes a load, and returns the register.
    spill: function of a number and its register. It writes a store, unless the number is in memory already.
  """

  def __init__(self, p: Program, uses: dict[int, list[int]], load: Callable[[int], str], spill: Callable[[int, str], None]):
    self._p, self._uses, self._load, self._spill = p, uses, load, spill
    self._register: dict[int, str] = {}  # by number
    self._heap: list[tuple[int, int]] = []  # (minus the next use, number); entries that `uses` contradicts are out of date

  def operand(self, k: int, pinned: Collection[int] = ()) -> str:
    """Return the register of a number, or the text of a constant. Numbers in `pinned` are not spilled for it."""
    if k in self._register:
      return self._register[k]
    register = self._load(k)
    return register if self._p.op[k] == "const" else self.keep(k, register, pinned)

  def keep(self, k: int, register: str, pinned: Collection[int] = ()) -> str:
    """Keep a number in a register if it has later uses; return the register. Numbers in `pinned` are not spilled for it."""
    uses = self._uses.get(k)
    if not uses:
      return register
    if len(self._register) >= _REGISTERS:
      self._spill_farthest(pinned)
    self._register[k] = register
    heapq.heappush(self._heap, (-uses[-1], k))
    return register

  def used(self, k: int, step: int) -> bool:
    """Remove the uses of a number up to a step; return whether there are no later uses. Then its register is free."""
    uses = self._uses[k]
    while uses and uses[-1] <= step:
      uses.pop()
    if not uses:
      self._register.pop(k, None)
    elif k in self._register:
      heapq.heappush(self._heap, (-uses[-1], k))
    return not uses

  def clear(self, step: int) -> None:
    """Spill the numbers that are used in a step or later, and free all registers."""
    for k in list(self._register):
      if self._uses[k][-1] >= step:
        self._spill(k, self._register.pop(k))
    self._register.clear()

  def _spill_farthest(self, pinned: Collection[int]) -> None:
    """Spill the number with the farthest next use, except numbers in `pinned`."""
    skipped = []
    while self._heap:
      use, k = heapq.heappop(self._heap)
      if k not in self._register or self._uses[k][-1] != -use:
        continue
      if k in pinned:
        skipped.append((use, k))
        continue
      self._spill(k, self._register.pop(k))
      break
    for entry in skipped:
      heapq.heappush(self._heap, entry)
