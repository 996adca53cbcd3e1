"""Operations on the numbers of a scalar program (`scalars.py`): kinds of numbers, what an operation needs beside its operands,
and algebra that simplifies operations.

Tests: tests/compiler/test_scalars.py.
"""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
  from mjx_lite.compiler.scalars import Program

KINDS = {"float32": "f", "float64": "d", "int32": "i", "int64": "l", "uint32": "u", "uint64": "v", "bool": "p"}
TYPES = {"f": np.float32, "d": np.float64, "i": np.int32, "l": np.int64, "u": np.uint32, "v": np.uint64, "p": np.bool_}
FLOATS, SIGNED, WIDE = frozenset("fd"), frozenset("il"), frozenset("dlv")  # kinds: floats, signed integers, numbers of 64 bits
COMMUTES = frozenset(("add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"))
COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


class Load(NamedTuple):
  """A number of an input.

  Attributes:
    buffer: index of the input; `-1 - k` for the program's table k.
    row: position of the number in the input.
    per_world: whether each world has its own number; otherwise all worlds share it.
  """

  buffer: int
  row: int
  per_world: bool


class Block(NamedTuple):
  """Consecutive numbers of an input.

  Attributes:
    first: first number.
    size: how many there are.
    load: the `Load` of the first number; the next ones are in the next rows.
  """

  first: int
  size: int
  load: Load


class Place(NamedTuple):
  """Where the numbers of a table are in memory already, at equal distances.

  Attributes:
    first: the `Load` of the table's first number, or that number, if the table is part of a loop's state or of its results.
    step: distance, in numbers of the input or of the loop's state.
  """

  first: Load | int
  step: int


class Loop(NamedTuple):
  """A loop: the numbers `params` start as `first`, and are replaced by the numbers `last` as long as `proceeds` holds.

  Attributes:
    depth: depth of the numbers inside, which is the number of loops around them.
    params: the loop's state, as numbers that the operations inside read.
    first: values of the state before the loop.
    proceeds: number of the condition, which is computed before each iteration.
    last: values of the state after an iteration.
  """

  depth: int
  params: tuple[int, ...]
  first: tuple[int, ...]
  proceeds: int
  last: tuple[int, ...]


class Queue(NamedTuple):
  """Work on the wanted items of all worlds, in any order: rows `first` of the items are replaced by computed rows.

  Attributes:
    depth: as in `Loop`.
    wanted: for each item, whether its row is computed.
    item: the number of the item, which the operations inside read.
    first: (n rows,) rows of all items before.
    last: (rows,) the computed row of an item.
    search: a loop for each item, of the same depth, if there is one: its state starts from the item, and the row is computed
      from its last state.
  """

  depth: int
  wanted: tuple[int, ...]
  item: int
  first: tuple[int, ...]
  last: tuple[int, ...]
  search: Loop | None


# types of further data, by operation
PAYLOADS: dict[str, Any] = {
  "const": (bool, int, float), "loop": Loop, "after": int, "put": int, "table": (Place, type(None)),
  "queue": Queue,
}  # fmt: skip


def simplified(p: "Program", op: str, kind: str, args: tuple[int, ...]) -> int | None:
  """Return a simpler number that equals the result of an operation: a constant, an operand, or another operation; or None."""
  values = [p.payload[a] if p.op[a] == "const" else None for a in args]
  known = [v is not None for v in values]
  if op == "select":
    if known[0]:
      return args[1] if values[0] else args[2]
    if args[1] == args[2]:
      return args[1]
    for new, old in (args[1:], args[:0:-1]):  # a write on a condition: elsewhere at no position
      if p.op[new] == "put" and p.args[new][0] == old:
        _, index, value = p.args[new]
        nowhere = p.const(-1, p.kind[index])
        where = p.make("select", p.kind[index], args[0], *((index, nowhere) if new == args[1] else (nowhere, index)))
        return p.put(kind, old, where, value, p.payload[new])
    if kind == "p" and any(known[1:]):
      which, a, b = args
      if known[1]:
        return p.make("or", "p", which, b) if values[1] else p.make("and", "p", p.make("not", "p", which), b)
      return p.make("or", "p", p.make("not", "p", which), a) if values[2] else p.make("and", "p", which, a)
    return None
  if not any(known):
    return args[0] if op in ("and", "or", "min", "max") and args[0] == args[1] else None
  if all(known):
    folded = _FOLDED.get(op)
    if folded is None:
      return None
    with np.errstate(all="ignore"):
      return p.const(folded(*(TYPES[p.kind[a]](v) for a, v in zip(args, values, strict=True))), kind)
  if len(args) != 2:
    return None
  at = 0 if known[0] else 1
  v, unknown = values[at], args[1 - at]
  if kind == "p" and op in ("and", "or", "xor"):
    return _choice(op, v, unknown, args[at], lambda: p.make("not", "p", unknown))
  if kind == "p":
    return None
  if (op == "add" and v == 0) or (op == "sub" and at == 1 and v == 0) or (op == "div" and at == 1 and v == 1):
    return unknown
  if op == "sub" and v == 0:
    return p.make("neg", kind, unknown)
  if op == "mul":
    return args[at] if v == 0 else unknown if v == 1 else p.make("neg", kind, unknown) if v == -1 else None
  return None


def _choice(op: str, value: Any, unknown: int, known: int, negated: Callable[[], int]) -> int:
  """Return the result of `and`, `or` or `xor` of a number `unknown` and a constant, the number `known` with this value."""
  if op == "xor":
    return negated() if value else unknown
  return unknown if value == (op == "and") else known


_FOLDED: dict[str, Callable[..., Any]] = {
  "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": lambda x: -x, "abs": abs, "min": np.minimum,
  "max": np.maximum, "floor": np.floor, "ceil": np.ceil, "round": np.round, "sqrt": np.sqrt, "not": np.invert,
  "and": operator.and_, "or": operator.or_, "xor": operator.xor, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
  "le": operator.le, "gt": operator.gt, "ge": operator.ge, "convert": lambda x: x,
  "div": lambda a, b: a / b if isinstance(a, np.floating) else (a - np.fmod(a, b)) // b if b else type(a)(-1),
  "rem": lambda a, b: np.fmod(a, b), "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
