"""Functions of a kernel on CPU: straight-line LLVM assembly, in which each number is one vector of as many worlds as lanes.

Tests: tests/compiler/test_llvm.py.
"""

from collections.abc import Sequence

import numpy as np

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
from mjx_lite.compiler.backends.llvm_memory import TYPES, Array, Memory, Rows, nbytes
from mjx_lite.compiler.backends.llvm_operation import Code
from mjx_lite.compiler.operations import FLOATS, Load
from mjx_lite.compiler.scalars import MAX_COMPARED, Program

_REGISTERS = 32  # numbers from outside of a loop that the loop reads from registers


class Function(Code):
  """Writer of one function.

  Attributes:
    p: the program whose numbers the function computes.
    memory: layout of the kernel's memory. The slots of tables that the function stores are added to it.
  """

  def __init__(self, p: Program, memory: Memory):
    super().__init__(memory.lanes, memory.vector)
    self.p, self.memory = p, memory
    self._values: dict[int, str] = {}  # name of the value of each number that is computed or loaded
    self._address: dict[int, str] = {}  # name of the address of each array that all worlds share
    self._labels = 0
    self._block = "0"  # label of the current block

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

  # ----------------------------------------------------------------------------------------------------------- memory

  def _slot(self, k: int) -> int:
    """Return the slot of a number."""
    p, slot = self.p, self.memory.slot
    return slot[p.args[k][0]] + p.payload[k] if p.op[k] == "after" and k not in slot else slot[k]

  def _slot_address(self, slot: int) -> str:
    return self.new(f"getelementptr i8, ptr %own, i64 {self.memory.word * self.lanes * slot}")

  def _load_slot(self, slot: int, kind: str) -> str:
    v = self.vector
    x = self.new(f"load {v['i' if kind == 'p' else kind]}, ptr {self._slot_address(slot)}, align {self.memory.word}")
    return self.new(f"icmp ne {v['i']} {x}, zeroinitializer") if kind == "p" else x

  def _store_slot(self, slot: int, x: str, kind: str) -> None:
    v = self.vector
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
    if load.per_world and self.memory.queue is not None:
      return self._gathered(self._row(self.memory.read[load.buffer], load.row), self._lane(kind), kind, size)
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
      return self.constant(p.payload[k], kind)
    if op == "load":
      x = self._load_input(p.load(k), kind)
    elif self._is_elsewhere(k) and not self.memory.is_uniform(k):
      stored = "i" if kind == "p" else kind
      x = self._gathered(self._slot_address(self._slot(k)), self._lane(stored), kind, nbytes(stored))
    else:
      x = self._load_slot(self._slot(k), kind)
    self._values[k] = x
    return x

  def store(self, k: int, destination: Destination) -> None:
    """Store a number at a destination."""
    v, kind = self.vector, self.p.kind[k]
    match destination:
      case InSlot(slot):
        self._store_slot(slot, self.get(k), kind)
      case InState(slot, new, proceeds):
        self._store_state(slot, self.get(k) if new is None else self._load_slot(new, kind), proceeds, kind)
      case InArray():
        self._store_in_array(destination, kind)
      case InResults():
        self._copy(self._slot(k), destination, kind)
      case InQueue():
        self._append(self.get(k), destination)
      case InRow(first, step, item, new, active):
        kind = "i" if kind == "p" else kind
        address = self._slot_address(first)
        number, mask = self._load_slot(new, kind), self._load_slot(active, "p")
        self._scatter(address, step, self._load_slot(item, "i"), number, kind, mask, self._lane(kind))
      case InCondition(slot, queue):
        holds = self._masked(self.get(k), self.memory.mask if queue is None else queue.active)
        self._store_slot(slot, holds, "p")
        self._store_flag(self._any(holds) if queue is None else self._is_full(holds, queue))
      case InResult(result, row):
        x, t = self.get(k), v[kind]
        if kind == "p":
          t = f"<{self.lanes} x i8>"
          x = self.new(f"zext {v['p']} {x} to {t}")
        address = self._row(self.memory.written[result], row)
        self.lines.append(f"store {t} {x}, ptr {address}, align {nbytes(kind)}")

  def _store_state(self, slot: int, new: str, proceeds: int | None, kind: str) -> None:
    """Write a store of a loop's state in the lanes that proceed."""
    if proceeds is not None:
      v, old = self.vector, self._load_slot(slot, kind)
      new = self.new(f"select {v['p']} {self._load_slot(proceeds, 'p')}, {v[kind]} {new}, {v[kind]} {old}")
    self._store_slot(slot, new, kind)

  def _copy(self, slot: int, to: InResults, kind: str) -> None:
    """Write a loop that copies consecutive slots to consecutive rows of a result."""
    v, size = self.vector, nbytes(kind)
    source, target = self._slot_address(slot), self._row(self.memory.written[to.result], to.row)
    self._labels += 1
    head, done = (f"{name}{self._labels}" for name in ("copy", "copied"))
    before, self._block = self._block, done
    self.lines += [f"br label %{head}", f"{head}:"]
    line, at = len(self.lines), self.new("phi")
    offset = self.new(f"mul i64 {at}, {self.memory.word * self.lanes}")
    x = self.new(f"load {v['i' if kind == 'p' else kind]}, ptr {self.new(f'getelementptr i8, ptr {source}, i64 {offset}')}, "
                 f"align {self.memory.word}")  # fmt: skip
    t = v[kind]
    if kind == "p":
      t = f"<{self.lanes} x i8>"
      x = self.new(f"trunc {v['i']} {x} to {t}")
      x = self.new(f"and {t} {x}, splat (i8 1)")
    offset = self.new(f"mul i64 {at}, {size * self.memory.block}")
    self.lines.append(f"store {t} {x}, ptr {self.new(f'getelementptr i8, ptr {target}, i64 {offset}')}, align {size}")
    after = self.new(f"add i64 {at}, 1")
    self.lines[line] = f"{at} = phi i64 [ 0, %{before} ], [ {after}, %{head} ]"
    self.lines += [f"br i1 {self.new(f'icmp ult i64 {after}, {to.size}')}, label %{head}, label %{done}", f"{done}:"]

  def _store_in_array(self, to: InArray, kind: str) -> None:
    """Write a store at an index, which may differ by lane."""
    index, new = self._load_slot(to.at, "i"), self._load_slot(to.new, kind)
    self._write(to.first, to, index, new, kind, self._load_slot(to.proceeds, "p"), to.is_uniform)

  def _write(self, first: int, array: Array | InArray, index: str, new: str, kind: str, mask: str, is_uniform: bool) -> None:
    """Write a store in an array whose first number has the slot `first`, in the lanes of a mask."""
    v, integers = self.vector, self.vector["i"]
    if kind == "p":
      new, kind = self.new(f"sext {v['p']} {new} to {v['i']}"), "i"
    step = array.step * self.memory.word * self.lanes  # bytes
    inside = self.new(f"icmp ult {integers} {index}, {self.constant(array.size, 'i')}")
    is_on = self.new(f"and {v['p']} {inside}, {mask}")
    if is_uniform:
      at = self.new(f"extractelement {integers} {index}, i32 0")
      is_in = self.new(f"icmp ult i32 {at}, {array.size}")
      at = self.new(f"select i1 {is_in}, i32 {at}, i32 0")
      offset = self.new(f"mul i64 {self.new(f'zext i32 {at} to i64')}, {step}")
      address = self.new(f"getelementptr i8, ptr {self._slot_address(first)}, i64 {offset}")
      old = self.new(f"load {v[kind]}, ptr {address}, align {self.memory.word}")
      out = self.new(f"select {v['p']} {is_on}, {v[kind]} {new}, {v[kind]} {old}")
      self.lines.append(f"store {v[kind]} {out}, ptr {address}, align {self.memory.word}")
      return
    self._scatter(self._slot_address(first), array.step, index, new, kind, is_on, self._own_lane(nbytes(kind)))

  def _own_lane(self, size: int) -> str:
    """Return the offset of each lane's own number, for numbers of some bytes."""
    return f"<{', '.join(f'i32 {size * i}' for i in range(self.lanes))}>"

  def _lane(self, kind: str) -> str:
    """Return the offset of a number of a kind in the lane to which the item of a queue belongs."""
    assert self.memory.queue is not None
    lane = self._load_slot(self.memory.queue[1], "i")
    return self.new(f"mul {self.vector['i']} {lane}, {self.constant(nbytes(kind), 'i')}")

  def _is_elsewhere(self, k: int) -> bool:
    """Return whether a number stands in the lane to which the item of a queue belongs: it is from outside of the queue."""
    return self.memory.queue is not None and self.p.depth[k] < self.memory.queue[0]

  def _scatter(self, base: str, step: int, index: str, new: str, kind: str, is_on: str, lane: str) -> None:
    """Write stores of the number `new` at an index, for rows at a distance in slots, in the lanes of a mask."""
    v, integers = self.vector, self.vector["i"]
    distance = self.constant(step * self.memory.word * self.lanes, "i")
    offset = self.new(f"mul {integers} {index}, {distance}")
    address = self.new(f"getelementptr i8, ptr {base}, {integers} {self.new(f'add {integers} {offset}, {lane}')}")
    suffix = f"v{self.lanes}{'f' if kind in FLOATS else 'i'}{8 * nbytes(kind)}.v{self.lanes}p0"
    pointers = f"<{self.lanes} x ptr>"
    self.lines.append(
      f"call void @llvm.masked.scatter.{suffix}({v[kind]} {new}, {pointers} {address}, i32 {nbytes(kind)}, {v['p']} {is_on})"
    )

  def _gathered(self, base: str, offset: str, kind: str, size: int) -> str:
    """Write loads of numbers of a kind, of some bytes, at offsets that differ by lane."""
    t = TYPES[kind] if kind != "p" else f"i{8 * size}"
    address, pointers = self.new(f"getelementptr i8, ptr {base}, {self.vector['i']} {offset}"), f"<{self.lanes} x ptr>"
    rows, number = f"<{self.lanes} x {t}>", f"f{8 * size}" if kind in FLOATS else t
    name, where, elsewhere = f"@llvm.masked.gather.v{self.lanes}{number}.v{self.lanes}p0", "splat (i1 true)", "poison"
    if self.memory.mask is not None:  # an index of another lane may be any number
      where, elsewhere = self._load_slot(self.memory.mask, "p"), "zeroinitializer"
    out = self.new(f"call {rows} {name}({pointers} {address}, i32 {size}, <{self.lanes} x i1> {where}, {rows} {elsewhere})")
    return self.new(f"icmp ne {rows} {out}, zeroinitializer") if kind == "p" else out

  def _masked(self, holds: str, mask: int | None) -> str:
    """Return the truth values `holds` in the lanes of a mask, false elsewhere."""
    return holds if mask is None else self.new(f"and {self.vector['p']} {holds}, {self._load_slot(mask, 'p')}")

  def _any(self, mask: str) -> str:
    """Return whether a mask holds in some lane."""
    return self.new(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.vector['p']} {mask})")

  def _counted(self, mask: str) -> str:
    """Return the number of lanes in which a mask holds."""
    v, integers = self.vector, self.vector["i"]
    ones = self.new(f"zext {v['p']} {mask} to {integers}")
    return self.new(f"call i32 @llvm.vector.reduce.add.v{self.lanes}i32({integers} {ones})")

  def _store_flag(self, holds: str) -> None:
    self.lines.append(f"store i32 {self.new(f'zext i1 {holds} to i32')}, ptr %flag")

  # ----------------------------------------------------------------------------------------------------------- queues

  def _append(self, mask: str, to: InQueue) -> None:
    """Write code that appends an item of the worlds of a mask to a queue's list."""
    v, n, integers, mask = self.vector, self.lanes, self.vector["i"], self._masked(mask, self.memory.mask)
    count_at = self._slot_address(to.queue.total)
    count = self.new(f"load i32, ptr {count_at}")
    end = self.new(f"getelementptr i32, ptr {self._slot_address(to.queue.items)}, i32 {count}")
    items = ", ".join(f"i32 {to.item * n + i}" for i in range(n))
    self.lines.append(f"call void @llvm.masked.compressstore.v{n}i32({integers} <{items}>, ptr {end}, {v['p']} {mask})")
    self.lines.append(f"store i32 {self.new(f'add i32 {count}, {self._counted(mask)}')}, ptr {count_at}")

  def _set_items(self, q: QueueSlots, entries: str, where: str) -> None:
    """Store the items, and their lanes, of entries of a queue's list in the lanes of a mask."""
    n, integers, mask = self.lanes, self.vector["i"], self.vector["p"]
    parts = (f"lshr {integers} {entries}, {self.constant(n.bit_length() - 1, 'i')}",
             f"and {integers} {entries}, {self.constant(n - 1, 'i')}")  # fmt: skip
    for slot, part in zip((q.item, q.lane), parts, strict=True):
      x = self.new(f"select {mask} {where}, {integers} {self.new(part)}, {integers} {self._load_slot(slot, 'i')}")
      self._store_slot(slot, x, "i")

  def end_list(self, q: QueueSlots) -> None:
    """Write the end of a queue's list. All lanes get the first item, so that a lane without an item of its own has numbers to
    compute with."""
    count = self.new(f"load i32, ptr {self._slot_address(q.total)}")
    end = self.new(f"getelementptr i32, ptr {self._slot_address(q.items)}, i32 {count}")
    self.lines.append(f"store {self.vector['i']} {self.constant(-1, 'i')}, ptr {end}, align 4")
    first = self._spread(self.new(f"load i32, ptr {self._slot_address(q.items)}"), "i32")
    self._set_items(q, first, self.constant(True, "p"))
    self._store_flag(self.new(f"icmp ne i32 {count}, 0"))

  def refill(self, q: QueueSlots) -> None:
    """Write code that takes the next items of a queue into the lanes that have none."""
    v, n, integers = self.vector, self.lanes, self.vector["i"]
    active = self._load_slot(q.active, "p")
    free = self.new(f"xor {v['p']} {active}, {self.constant(True, 'p')}")
    begun_at = self._slot_address(q.begun)
    begun = self.new(f"load i32, ptr {begun_at}")
    at = self.new(f"getelementptr i32, ptr {self._slot_address(q.items)}, i32 {begun}")
    none = self.constant(-1, "i")
    entries = self.new(f"call {integers} @llvm.masked.expandload.v{n}i32(ptr {at}, {v['p']} {free}, {integers} {none})")
    is_new = self.new(f"icmp sge {integers} {entries}, zeroinitializer")
    self._set_items(q, entries, is_new)
    self._store_slot(q.free, free, "p")
    self._store_slot(q.active, self.new(f"or {v['p']} {active}, {is_new}"), "p")
    self.lines.append(f"store i32 {self.new(f'add i32 {begun}, {self._counted(is_new)}')}, ptr {begun_at}")

  def _is_full(self, proceeds: str, q: QueueSlots) -> str:
    """Return whether searches go on as they are: new ones start as soon as a quarter of the lanes have none."""
    begun, count = (self.new(f"load i32, ptr {self._slot_address(x)}") for x in (q.begun, q.total))
    are_left = self.new(f"icmp slt i32 {begun}, {count}")
    least = self.new(f"select i1 {are_left}, i32 {self.lanes - max(1, self.lanes // 4)}, i32 0")
    return self.new(f"icmp sgt i32 {self._counted(proceeds)}, {least}")

  def end_of_search(self, q: QueueSlots, proceeds: int, ended: int) -> None:
    """Write the mask of lanes whose search has ended to the slot `ended`; the slot `proceeds` has those where it goes on."""
    v = self.vector
    active, on = self._load_slot(q.active, "p"), self._load_slot(proceeds, "p")
    self._store_slot(ended, self.new(f"xor {v['p']} {active}, {on}"), "p")

  def leave(self, q: QueueSlots, ended: int) -> None:
    """Write code that frees the lanes whose rows were stored, and `%flag`, whether there are items left."""
    v = self.vector
    active = self.new(f"xor {v['p']} {self._load_slot(q.active, 'p')}, {self._load_slot(ended, 'p')}")
    self._store_slot(q.active, active, "p")
    begun, count = (self.new(f"load i32, ptr {self._slot_address(x)}") for x in (q.begun, q.total))
    self._store_flag(self.new(f"or i1 {self.new(f'icmp slt i32 {begun}, {count}')}, {self._any(active)}"))

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
    if op == "loop":
      self._loop(k)
      return
    self._values[k] = out = self._fetch(k) if op == "fetch" else self._put(k) if op == "put" else self._computed(k)
    if k in self.memory.slot:
      self._store_slot(self.memory.slot[k], out, p.kind[k])

  def _loop(self, k: int) -> None:
    """Write a loop with its state in registers, which runs as long as a lane proceeds."""
    p, v = self.p, self.vector
    loop, short = p.payload[k], self.memory.short[k]
    in_place = {i for a in short.arrays for i in a.indices}
    first = [(i, loop.first[i]) for i in short.read]
    own = {i for i in in_place if self.memory.slot[loop.params[i]] == short.first + i}
    self._store_first([(i, a) for i, a in first if i in own and a not in p.unset], short.first)
    starts = {i: self.get(a) for i, a in first if i not in in_place}
    for a in short.outside[:_REGISTERS]:
      if p.op[a] not in ("table", "loop", "queue"):
        self.get(a)
    values, addresses = dict(self._values), dict(self._address)
    self._labels += 1
    head, body, done = (f"{name}{self._labels}" for name in ("head", "body", "done"))
    before, self._block = self._block, head
    self.lines += [f"br label %{head}", f"{head}:"]
    self._values.update((loop.params[i], x) for i, x in starts.items())
    phi = {i: (len(self.lines), self.new("phi")) for i in short.changed}
    self._values.update((loop.params[i], x) for i, (_, x) in phi.items())
    for x in short.condition:
      self.make(x)
    holds = self._masked(self.get(loop.proceeds), self.memory.mask)
    is_any = self._any(holds)
    self.lines += [f"br i1 {is_any}, label %{body}, label %{done}", f"{body}:"]
    for x in short.body:
      self.make(x)
    for i, (line, name) in phi.items():
      new, t = self.get(loop.last[i]), v[p.kind[loop.params[i]]]
      new = new if i in short.uniform else self.new(f"select {v['p']} {holds}, {t} {new}, {t} {name}")
      self.lines[line] = f"{name} = phi {t} [ {starts[i]}, %{before} ], [ {new}, %{body} ]"
    for a in short.arrays:
      for index, x in a.writes:
        param = loop.params[a.first]
        self._write(self.memory.slot[param], a, self.get(index), self.get(x), p.kind[param], holds,
                    self.memory.is_uniform(index))  # fmt: skip
    self.lines += [f"br label %{head}", f"{done}:"]
    self._block, self._values, self._address = done, values, addresses
    for i, x in starts.items():
      self._store_slot(short.first + i, phi[i][1] if i in phi else x, p.kind[loop.params[i]])

  def _store_first(self, numbers: Sequence[tuple[int, int]], slot: int) -> None:
    """Store the first numbers of arrays, given with their slots from `slot` on; long runs of zeros are set together."""
    p, size, k = self.p, self.memory.word * self.lanes, 0
    while k < len(numbers):
      (i, a), end = numbers[k], k + 1
      while end < len(numbers) and numbers[end] == (i + end - k, a):
        end += 1
      if end - k > 8 and p.op[a] == "const" and not any(np.float64(p.payload[a]).tobytes()):
        address = self._slot_address(slot + i)
        self.lines.append(f"call void @llvm.memset.p0.i64(ptr {address}, i8 0, i64 {size * (end - k)}, i1 false)")
      else:
        for j, x in numbers[k:end]:
          self._store_slot(slot + j, self.get(x), p.kind[x])
      k = end

  def _computed(self, k: int) -> str:
    """Write the operation of a number that depends on its operands alone."""
    p = self.p
    return self.operation(p.op[k], p.kind[k], p.kind[p.args[k][0]], [*map(self.get, p.args[k])])

  def _put(self, k: int) -> str:
    """Write the choice between an array's number and a number that may be written there."""
    p, v = self.p, self.vector
    old, index, new = map(self.get, p.args[k])
    integer, t = p.kind[p.args[k][1]], v[p.kind[k]]
    is_here = self.new(f"icmp eq {v[integer]} {index}, {self.constant(p.payload[k], integer)}")
    return self.new(f"select {v['p']} {is_here}, {t} {new}, {t} {old}")

  # ----------------------------------------------------------------------------------------------------------- tables

  def _table(self, k: int) -> None:
    """Store a table's numbers in consecutive slots, unless they are consecutive already or the table is short."""
    order = self.p.args[k]
    if len(order) > MAX_COMPARED and self.p.payload.get(k) is None:
      self.memory.slot[k] = self.memory.new_slots(len(order))
      for i, a in enumerate(order):
        self._store_slot(self.memory.slot[k] + i, self.get(a), self.p.kind[a])

  def _fetch(self, k: int) -> str:
    """Write the load of a table's entry at an index, which may differ by lane."""
    table, kind = self.p.args[k][0], self.p.kind[k]
    index = self.get(self.p.args[k][-1])
    source = self.p.payload.get(table)
    if source is None or len(self.p.args[table]) > 1:
      if len(self.p.args[table]) <= MAX_COMPARED:
        return self._fetch_short(self.p.args[table], index, kind)
    size = nbytes("i" if kind == "p" else kind)
    step, lane = self.memory.word * self.lanes, size  # bytes between numbers of the table, and between lanes
    if source is not None and isinstance(load := source.first, Load):
      size = nbytes(kind)
      if load.per_world:
        base, step, lane = self._row(self.memory.read[load.buffer], load.row), size * self.memory.block, size
      else:
        base, step, lane = self.new(f"getelementptr i8, ptr {self._array(load)}, i64 {size * load.row}"), size, 0
    else:
      base = self._slot_address(self.memory.slot[table] if source is None else self._slot(source.first))
    step *= 1 if source is None else source.step
    integers, t = self.vector["i"], TYPES[kind] if kind != "p" else f"i{8 * size}"
    is_elsewhere = lane > 0 and self._is_elsewhere(table)
    if self.memory.is_uniform(self.p.args[k][-1]) and not is_elsewhere:
      at = self.new(f"sext i32 {self.new(f'extractelement {integers} {index}, i32 0')} to i64")
      address = self.new(f"getelementptr i8, ptr {base}, i64 {self.new(f'mul i64 {at}, {step}')}")
      rows = f"<{self.lanes} x {t}>"
      x = self._spread(self.new(f"load {t}, ptr {address}"), t) if lane == 0 else self.new(
        f"load {rows}, ptr {address}, align {size}")  # fmt: skip
      return self.new(f"icmp ne {rows} {x}, zeroinitializer") if kind == "p" else x
    offset = self.new(f"mul {integers} {index}, {self.constant(step, 'i')}")
    if is_elsewhere:
      offset = self.new(f"add {integers} {offset}, {self._lane('i' if size == 4 else 'l' if size == 8 else 'p')}")
    elif lane:
      offset = self.new(f"add {integers} {offset}, {self._own_lane(size)}")
    return self._gathered(base, offset, kind, size)

  def _fetch_short(self, numbers: Sequence[int], index: str, kind: str) -> str:
    """Write the choice of a short table's entry by comparisons, which are faster than a load for each lane."""
    v = self.vector
    out = self.get(numbers[0])
    for i, a in enumerate(numbers[1:], 1):
      is_reached = self.new(f"icmp sge {v['i']} {index}, {self.constant(i, 'i')}")
      out = self.new(f"select {v['p']} {is_reached}, {v[kind]} {self.get(a)}, {v[kind]} {out}")
    return out
