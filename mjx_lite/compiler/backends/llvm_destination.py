"""Destinations of the numbers that a kernel on CPU computes: where `llvm_function.Function.store` puts a number.

Tests: tests/compiler/test_arrays.py, tests/compiler/test_llvm.py.
"""

from typing import NamedTuple


class InSlot(NamedTuple):
  """A destination: a slot."""

  slot: int


class InState(NamedTuple):
  """A destination: the slot of a loop's state, from the slot `new`, in the lanes in which the slot `proceeds` is true.

  If `proceeds` is None, in all lanes.
  """

  slot: int
  new: int
  proceeds: int | None


class InCondition(NamedTuple):
  """A destination: a slot for a loop's condition, and `%flag`, whether the condition holds in some lane."""

  slot: int


class InResult(NamedTuple):
  """A destination: a row of a result."""

  result: int
  row: int


class InResults(NamedTuple):
  """A destination of consecutive numbers of a loop's state: consecutive rows of a result, from `row` on."""

  result: int
  row: int
  size: int


class InArray(NamedTuple):
  """A destination: an array in a loop's state, at an index, in the lanes in which the slot `proceeds` is true.

  Attributes:
    first: slot of the array's first number.
    step: distance of its numbers, in slots.
    size: number of its numbers; an index beyond is no position.
    at: slot of the index.
    new: slot of the number to store.
    proceeds: slot.
    is_uniform: whether all lanes have the same index.
  """

  first: int
  step: int
  size: int
  at: int
  new: int
  proceeds: int
  is_uniform: bool


class InQueue(NamedTuple):
  """A destination of a mask: the list of items of a queue, for one item of each world.

  Attributes:
    items: slot of the list.
    length: slot of the number of entries.
    item: number of the item.
  """

  items: int
  length: int
  item: int


class InRow(NamedTuple):
  """A destination: a number in the rows that a queue computes.

  Attributes:
    first: slot of the number in the row of item 0.
    step: distance of rows, in slots.
    item: slot of the item.
    new: slot of the number to store.
    active: slot of the mask of lanes that have an item.
  """

  first: int
  step: int
  item: int
  new: int
  active: int


Destination = InSlot | InState | InCondition | InResult | InResults | InArray | InQueue | InRow
