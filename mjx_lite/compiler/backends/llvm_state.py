"""The state of a loop of a kernel on CPU: which parts of it change, which parts are written in place, and where they are.

Tests: tests/compiler/test_arrays.py.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mjx_lite.compiler.backends.llvm_memory import Array
from mjx_lite.compiler.operations import Load, Loop, Place
from mjx_lite.compiler.scalars import Program


class State(NamedTuple):
  """The state of a loop with functions of its own.

  Attributes:
    first: slot of the first number.
    arrays, changed, written: see `parts_of_state`.
    new: slot of the first of the new numbers: those that change, and then what is written into arrays.
    proceeds: slot of the condition.
  """

  first: int
  arrays: list[Array]
  changed: list[int]
  written: list[int]
  new: int
  proceeds: int


def _written_arrays(p: Program, loop: Loop) -> list[Array]:
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


def parts_of_state(p: Program, loop: Loop, alive: set[int]) -> tuple[list[Array], list[int], list[int]]:
  """Return the parts of a loop's state that something reads: the arrays that are written in place, the indices of the other
  numbers that change, and what is written: indices into arrays, and new numbers."""
  arrays = [a for a in _written_arrays(p, loop) if any(loop.params[i] in alive for i in a.indices)]
  in_place = {i for a in arrays for i in a.indices}
  changed = [i for i, a in enumerate(loop.last) if a != (x := loop.params[i]) and x in alive and i not in in_place]
  return arrays, changed, list(dict.fromkeys(x for a in arrays for pair in a.writes for x in pair))


class SharedStates:
  """Arrays in the state of an inner loop that are arrays in the state of the loop around it.

  Such an array starts as the outer loop's array and is what that array becomes, and nothing reads the old numbers once the
  inner loop has begun. Both loops then have one array in memory, which is never copied.
  """

  def __init__(self, p: Program, alive: set[int]):
    self._p, self._alive = p, alive

  @functools.cached_property
  def _states(self) -> dict[int, tuple[int, int]]:
    """The loop, and the index in its state, of each number of a state."""
    p = self._p
    return {a: (k, j) for k in self._alive if isinstance(x := p.payload.get(k), Loop) for j, a in enumerate(x.params)}

  @functools.cached_property
  def _tables(self) -> dict[int, list[list[int]]]:
    """The tables whose numbers are in the state or in the results of a loop, by loop: the indices in the state."""
    p, found = self._p, {}
    for k in self._alive:
      if p.op[k] == "table" and isinstance(x := p.payload.get(k), Place) and not isinstance(x.first, Load):
        at = [(p.args[a][0], p.payload[a]) if p.op[a] == "after" else self._states.get(a, (-1, 0)) for a in p.args[k]]
        found.setdefault(at[0][0], []).append([j for _, j in at])
    return found

  def choose(
    self, loop: Loop, condition: set[int], steps: Callable[[Any], Sequence[Any]], reads: Callable[[Any], Sequence[int]]
  ) -> dict[int, dict[int, int]]:
    """Return for each inner loop which numbers of its state are which numbers of the loop's state, by their indices.

    Args:
      loop: the outer loop.
      condition: numbers that its condition computes.
      steps: function of a result that returns the steps of an iteration, in order.
      reads: function of a step that returns the numbers that it reads.
    """
    found = {k: pairs for k, pairs in self._candidates(loop).items() if k not in condition}
    while found:
      order = steps(found)
      wrong = [
        k for k, pairs in found.items() if not self._are_read_before(k, {loop.params[i] for i in pairs.values()}, order, reads)
      ]
      if not wrong:
        break
      for k in wrong:
        del found[k]
    return found

  def _candidates(self, loop: Loop) -> dict[int, dict[int, int]]:
    p = self._p
    found: dict[int, dict[int, int]] = {}
    for i, (param, last) in enumerate(zip(loop.params, loop.last, strict=True)):
      if p.op[last] == "after":
        k, j = p.args[last][0], p.payload[last]
        inner = p.payload[k]
        if isinstance(inner, Loop) and inner.depth == loop.depth + 1 and inner.first[j] == param:
          found.setdefault(k, {})[j] = i
    return {k: x for k, pairs in found.items() if (x := self._whole_arrays(k, pairs))}

  def _whole_arrays(self, k: int, pairs: dict[int, int]) -> dict[int, int]:
    """Return the pairs of arrays that the inner loop k writes in place, and that have equal distances in both states."""

    def offsets(indices):
      return {pairs[j] - j if j in pairs else None for j in indices}

    arrays = parts_of_state(self._p, self._p.payload[k], self._alive)[0]
    pairs = {j: pairs[j] for a in arrays if None not in offsets(a.indices) and len(offsets(a.indices)) == 1 for j in a.indices}
    return pairs if all(len(offsets(table)) <= 1 for table in self._tables.get(k, [])) else {}

  def _are_read_before(self, k: int, olds: set[int], steps: Sequence[Any], reads: Callable[[Any], Sequence[int]]) -> bool:
    """Return whether no step reads old numbers after the inner loop k has begun, and whether k starts from them alone."""
    at = next((i for i, step in enumerate(steps) if step.number == k and step.destination is None), len(steps))
    outside = self._p.args[k][len(self._p.payload[k].first) :]
    tables = (x for a in outside if self._p.op[a] == "table" for x in self._p.args[a])
    return olds.isdisjoint(outside) and olds.isdisjoint(tables) and all(olds.isdisjoint(reads(x)) for x in steps[at + 1 :])
