"""Destinations of the numbers that a kernel on CPU computes: where `llvm_function.Function.store` puts a number.

Tests: tests/compiler/test_arrays.py, tests/compiler/test_llvm.py.
"""

from typing import NamedTuple


class InSlot(NamedTuple):
  """A destination: a slot."""

  slot: int


class InState(NamedTuple):
  """A destination: the slot of a loop's state, in the lanes in which the slot `proceeds` is true; None for all lanes.

  The new number waits in the slot `new`; None for the number that is stored.
  """

  slot: int
  new: int | None
  proceeds: int | None


class InCondition(NamedTuple):
  """A destination: a slot for a loop's condition, and `%flag`, whether the condition holds in some lane.

  For a search: whether it holds in more lanes with an item than those at which new searches start.
  """

  slot: int
  queue: "QueueSlots | None" = None


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


class QueueSlots(NamedTuple):
  """Slots of a queue.

  Attributes:
    items: list of the wanted items of all lanes, followed by a slot of -1.
    total, begun: number of entries of the list, and number of entries that lanes have taken.
    item, lane: the item that each lane has, and the lane to which this item belongs.
    active: mask of the lanes that have an item whose row is not computed yet.
    free: mask of the lanes that had none before items were taken.
  """

  items: int
  total: int
  begun: int
  item: int
  lane: int
  active: int
  free: int


class InQueue(NamedTuple):
  """A destination of a mask: the list of items of a queue, for one item of each world.

  Attributes:
    queue: slots of the queue.
    item: number of the item.
  """

  queue: QueueSlots
  item: int


class InRow(NamedTuple):
  """A destination: a number in the rows that a queue computes.

  Attributes:
    first: slot of the number in the row of item 0.
    step: distance of rows, in slots.
    item: slot of the item.
    new: slot of the number to store.
    active: slot of the mask of lanes whose rows are stored.
  """

  first: int
  step: int
  item: int
  new: int
  active: int


Destination = InSlot | InState | InCondition | InResult | InResults | InArray | InQueue | InRow
