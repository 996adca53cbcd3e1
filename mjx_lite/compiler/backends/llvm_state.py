"""The state of a loop of a kernel on CPU: which parts of it change, which parts are written in place, and where they are.

Tests: tests/compiler/test_arrays.py.
"""

from typing import Any, NamedTuple

from mjx_lite.compiler.backends.llvm_memory import Array
from mjx_lite.compiler.operations import Loop
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
