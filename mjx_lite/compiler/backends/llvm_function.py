"""Functions of a kernel on CPU: straight-line LLVM assembly, in which each number is one vector of as many worlds as lanes.

Tests: tests/compiler/test_llvm.py.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mjx_lite.compiler.backends.llvm_memory import TYPES, Memory, Rows, nbytes
from mjx_lite.compiler.scalars import FLOATS, SIGNED, Load, Program, Unsupported

_MAX_COMPARED = 8  # largest table that is indexed by comparisons

_COMPARES = {
  "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"), "le": ("ole", "sle", "ule"),
  "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip
_FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv", "neg": "fneg"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_CALLS = {"abs": "fabs", "floor": "floor", "ceil": "ceil", "sqrt": "sqrt", "round": "rint"}
# Taylor coefficients of 2**x, for x from -1/2 to 1/2, from the highest power on
_EXP2 = {
  kind: tuple(number(np.log(2) ** k / float(np.prod(range(1, k + 1), dtype=float))) for k in range(n, -1, -1))
  for kind, number, n in (("f", np.float32, 7), ("d", np.float64, 13))
}


class InSlot(NamedTuple):
  """A destination: a slot."""

  slot: int


class InState(NamedTuple):
  """A destination: the slot of a loop's state, from the slot `new`, in the lanes in which the slot `proceeds` is true."""

  slot: int
  new: int
  proceeds: int


class InCondition(NamedTuple):
  """A destination: a slot for a loop's condition, and `%flag`, whether the condition holds in some lane."""

  slot: int


class InResult(NamedTuple):
  """A destination: a row of a result."""

  result: int
  row: int


Destination = InSlot | InState | InCondition | InResult


class Function:
  """Writer of one function.

  Attributes:
    p: the program whose numbers the function computes.
    memory: layout of the kernel's memory. The slots of tables that the function stores are added to it.
    lines: the code.
  """

  def __init__(self, p: Program, memory: Memory):
    self.p, self.memory, self.lanes = p, memory, memory.lanes
    self.lines: list[str] = []
    self._values: dict[int, str] = {}  # name of the value of each number that is computed or loaded
    self._address: dict[int, str] = {}  # name of the address of each array that all worlds share
    self._count = 0

  def text(self, name: str) -> tuple[str, str]:
    """Return the function's definition and a call of the function.

    The arguments are: the rows of the first lane, for numbers of 8 bytes if there are any (`%eight`), of 4 bytes (`%four`) and
    of 1 byte (`%one`); the slots (`%own`); the addresses of the entry's arguments (`%shared`); and `%flag`, whether a loop goes
    on.
    """
    arguments = ", ".join(f"ptr {x}" for x in (*self.memory.bases.values(), "%own", "%shared", "%flag"))
    head = f"void @{name}({arguments})"
    body = "\n".join(self.lines)
    return f"define {head} #0 {{\n{body}\nret void\n}}", f"call {head}"

  def new(self, text: str) -> str:
    """Add a line with a value, and return the value's name."""
    self._count += 1
    self.lines.append(f"%{self._count} = {text}")
    return f"%{self._count}"

  def _const(self, value: Any, kind: str) -> str:
    if kind in FLOATS:  # LLVM writes float, too, by the bits of a double
      text = f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"
    else:
      text = str(int(value)) if kind != "p" else "true" if value else "false"
    return f"splat ({TYPES[kind]} {text})"

  # ----------------------------------------------------------------------------------------------------------- memory

  def _slot_address(self, slot: int) -> str:
    return self.new(f"getelementptr i8, ptr %own, i64 {self.memory.word * self.lanes * slot}")

  def _load_slot(self, slot: int, kind: str) -> str:
    v = self.memory.vector
    x = self.new(f"load {v['i' if kind == 'p' else kind]}, ptr {self._slot_address(slot)}, align {self.memory.word}")
    return self.new(f"icmp ne {v['i']} {x}, zeroinitializer") if kind == "p" else x

  def _store_slot(self, slot: int, x: str, kind: str) -> None:
    v = self.memory.vector
    if kind == "p":
      x, kind = self.new(f"sext {v['p']} {x} to {v['i']}"), "i"
    address = self._slot_address(slot)
    self.lines.append(f"store {v[kind]} {x}, ptr {address}, align {self.memory.word}")

  def _array(self, load: Load) -> str:
    """Return the address of an array that all worlds share."""
    k = self.memory.argument[self.memory.parameter(load)]
    if k not in self._address:
      self._address[k] = self.new(f"load ptr, ptr {self.new(f'getelementptr ptr, ptr %shared, i64 {k}')}")
    return self._address[k]

  def _row(self, rows: Rows, row: int) -> str:
    size = nbytes(rows.kind)
    return self.new(f"getelementptr i8, ptr {self.memory.bases[size]}, i64 {rows.first + size * self.memory.block * row}")

  def _load_input(self, load: Load, kind: str) -> str:
    size = nbytes(kind)
    t = "i8" if kind == "p" else TYPES[kind]
    rows = f"<{self.lanes} x {t}>"
    if load.per_world:
      x = self.new(f"load {rows}, ptr {self._row(self.memory.read[load.buffer], load.row)}, align {size}")
    else:
      array = self._array(load)
      x = self._spread(self.new(f"load {t}, ptr {self.new(f'getelementptr i8, ptr {array}, i64 {size * load.row}')}"), t)
    return self.new(f"icmp ne {rows} {x}, zeroinitializer") if kind == "p" else x

  def _spread(self, x: str, t: str) -> str:
    """Return a vector that has the number x of type t in all lanes."""
    one = self.new(f"insertelement <{self.lanes} x {t}> poison, {t} {x}, i32 0")
    rows = f"<{self.lanes} x {t}>"
    return self.new(f"shufflevector {rows} {one}, {rows} poison, <{self.lanes} x i32> zeroinitializer")

  def get(self, k: int) -> str:
    """Return the value of a number: a constant, a value in a register, or a load from memory."""
    p = self.p
    if k in self._values:
      return self._values[k]
    op, kind = p.op[k], p.kind[k]
    if op == "const":
      return self._const(p.payload[k], kind)
    if op == "load":
      x = self._load_input(p.payload[k], kind)
    else:
      x = self._load_slot(self.memory.slot[p.args[k][0]] + p.payload[k] if op == "after" else self.memory.slot[k], kind)
    self._values[k] = x
    return x

  def store(self, k: int, destination: Destination) -> None:
    """Store a number at a destination."""
    v, kind = self.memory.vector, self.p.kind[k]
    match destination:
      case InSlot(slot):
        self._store_slot(slot, self.get(k), kind)
      case InState(slot, new_slot, proceeds):
        kind = "i" if kind == "p" else kind
        is_on, old, new = self._load_slot(proceeds, "p"), self._load_slot(slot, kind), self._load_slot(new_slot, kind)
        self._store_slot(slot, self.new(f"select {v['p']} {is_on}, {v[kind]} {new}, {v[kind]} {old}"), kind)
      case InCondition(slot):
        self._store_slot(slot, self.get(k), "p")
        holds = self.new(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({v['p']} {self.get(k)})")
        self.lines.append(f"store i32 {self.new(f'zext i1 {holds} to i32')}, ptr %flag")
      case InResult(result, row):
        x, t = self.get(k), v[kind]
        if kind == "p":
          t = f"<{self.lanes} x i8>"
          x = self.new(f"zext {v['p']} {x} to {t}")
        address = self._row(self.memory.written[result], row)
        self.lines.append(f"store {t} {x}, ptr {address}, align {nbytes(kind)}")

  # ------------------------------------------------------------------------------------------------------- operations

  def make(self, k: int) -> None:
    """Write the operation of a number."""
    p = self.p
    op = p.op[k]
    if op == "after":
      return
    if op == "table":
      self._table(k)
      return
    out = self._fetch(k) if op == "fetch" else self._operation(op, p.kind[k], p.kind[p.args[k][0]], [*map(self.get, p.args[k])])
    self._values[k] = out
    if k in self.memory.slot:
      self._store_slot(self.memory.slot[k], out, p.kind[k])

  def _operation(self, op: str, kind: str, source: str, x: list[str]) -> str:
    """Write an operation with a result of a kind, on operands x of the kind `source`; return the result's name."""
    new, t, v = self.new, self.memory.vector[kind], self.memory.vector
    if op in _COMPARES:
      name = f"fcmp {_COMPARES[op][0]}" if source in FLOATS else f"icmp {_COMPARES[op][1 if source in SIGNED else 2]}"
      return new(f"{name} {v[source]} {x[0]}, {x[1]}")
    if op == "select":
      return new(f"select {v['p']} {x[0]}, {t} {x[1]}, {t} {x[2]}")
    if op in ("min", "max"):
      return self._extreme(op, kind, x)
    if op in ("bits", "convert"):
      name = "bitcast" if op == "bits" else _conversion(source, kind)
      return x[0] if v[source] == t else new(f"{name} {v[source]} {x[0]} to {t}")
    if op == "not":
      return new(f"xor {t} {x[0]}, {self._const(True if kind == 'p' else -1, kind)}")
    if kind in FLOATS and op in _FLOAT:
      return new(f"{_FLOAT[op]} {t} {', '.join(x)}")
    if kind in FLOATS and op == "rem":
      return new(f"frem {t} {', '.join(x)}")
    if kind not in (*FLOATS, "p") and op in ("rem", "div"):
      return new(f"{'s' if kind in SIGNED else 'u'}{op} {t} {', '.join(x)}")
    if kind in FLOATS and op in _CALLS:
      name = f"@llvm.{_CALLS[op]}.v{self.lanes}f{8 * nbytes(kind)}"
      return new(f"call {t} {name}({t} {x[0]})")
    if kind in FLOATS and op == "exp2":
      first, *rest = _EXP2[kind]
      out = self._const(first, kind)
      for c in rest:
        out = new(f"fadd contract {t} {new(f'fmul contract {t} {out}, {x[0]}')}, {self._const(c, kind)}")
      return out
    if kind not in FLOATS and op in _INTEGER:
      return new(f"{_INTEGER[op]} {t} {', '.join(x)}")
    if kind not in (*FLOATS, "p"):
      if op == "neg":
        return new(f"sub {t} zeroinitializer, {x[0]}")
      if op == "abs":
        less = new(f"icmp slt {t} {x[0]}, zeroinitializer")
        return new(f"select {v['p']} {less}, {t} {new(f'sub {t} zeroinitializer, {x[0]}')}, {t} {x[0]}")
      if op == "shr":
        return new(f"{'ashr' if kind in SIGNED else 'lshr'} {t} {', '.join(x)}")
    raise Unsupported(f"machine code has no operation {op} of {TYPES[kind]}")

  def _extreme(self, op: str, kind: str, x: list[str]) -> str:
    """Write the minimum or maximum of two numbers; for floats the result is NaN if either operand is NaN."""
    new, t, p = self.new, self.memory.vector[kind], self.memory.vector["p"]
    if kind == "p":
      return new(f"{'and' if op == 'min' else 'or'} {t} {x[0]}, {x[1]}")
    if kind not in FLOATS:
      is_first = new(f"icmp {'s' if kind in SIGNED else 'u'}{'lt' if op == 'min' else 'gt'} {t} {x[0]}, {x[1]}")
      return new(f"select {p} {is_first}, {t} {x[0]}, {t} {x[1]}")
    a, b = x if x[0].startswith("splat") else x[::-1]
    # an ordered comparison with NaN is false, so a NaN in b is selected
    is_first = new(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {a}, {b}")
    out = new(f"select {p} {is_first}, {t} {a}, {t} {b}")
    if a.startswith("splat"):
      return out
    return new(f"select {p} {new(f'fcmp uno {t} {a}, {a}')}, {t} {a}, {t} {out}")

  # ----------------------------------------------------------------------------------------------------------- tables

  def _table(self, k: int) -> None:
    """Store a table's numbers in consecutive slots, unless they are consecutive already or the table is short."""
    order = self.p.args[k]
    if len(order) > _MAX_COMPARED and self.p.in_place(k) is None:
      self.memory.slot[k] = self.memory.new_slots(len(order))
      for i, a in enumerate(order):
        self._store_slot(self.memory.slot[k] + i, self.get(a), self.p.kind[a])

  def _fetch(self, k: int) -> str:
    """Write the load of a table's entry at an index, which may differ by lane."""
    table, kind = self.p.args[k][0], self.p.kind[k]
    index = self.get(self.p.args[k][-1])
    if len(self.p.args[table]) <= _MAX_COMPARED:
      return self._fetch_short(self.p.args[table], index, kind)
    source = self.p.in_place(table)
    size = nbytes("i" if kind == "p" else kind)
    step, lane = self.memory.word * self.lanes, size  # bytes between numbers of the table, and between lanes
    if isinstance(source, Load):
      size = nbytes(kind)
      if source.per_world:
        base, step, lane = self._row(self.memory.read[source.buffer], source.row), size * self.memory.block, size
      else:
        base, step, lane = self.new(f"getelementptr i8, ptr {self._array(source)}, i64 {size * source.row}"), size, 0
    else:
      base = self._slot_address(self.memory.slot[table] if source is None else self.memory.slot[source])
    integers, t = self.memory.vector["i"], TYPES[kind] if kind != "p" else "i8" if size == 1 else "i32"
    out = "poison"
    for i in range(self.lanes):
      at = self.new(f"sext i32 {self.new(f'extractelement {integers} {index}, i32 {i}')} to i64")
      offset = self.new(f"add i64 {self.new(f'mul i64 {at}, {step}')}, {lane * i}")
      x = self.new(f"load {t}, ptr {self.new(f'getelementptr i8, ptr {base}, i64 {offset}')}")
      out = self.new(f"insertelement <{self.lanes} x {t}> {out}, {t} {x}, i32 {i}")
    return self.new(f"icmp ne <{self.lanes} x {t}> {out}, zeroinitializer") if kind == "p" else out

  def _fetch_short(self, numbers: Sequence[int], index: str, kind: str) -> str:
    """Write the choice of a short table's entry by comparisons, which are faster than a load for each lane."""
    v = self.memory.vector
    out = self.get(numbers[0])
    for i, a in enumerate(numbers[1:], 1):
      is_reached = self.new(f"icmp sge {v['i']} {index}, {self._const(i, 'i')}")
      out = self.new(f"select {v['p']} {is_reached}, {v[kind]} {self.get(a)}, {v[kind]} {out}")
    return out


def _conversion(source: str, kind: str) -> str:
  """Return LLVM's instruction that converts numbers of a kind to another kind."""
  if source in FLOATS and kind in FLOATS:
    return "fpext" if kind == "d" else "fptrunc"
  if source in FLOATS:
    return "fptosi" if kind in SIGNED else "fptoui"
  if kind in FLOATS:
    return "sitofp" if source in SIGNED else "uitofp"
  return "trunc" if nbytes(kind) < nbytes(source) else "sext" if source in SIGNED else "zext"
