"""A program of numbers as a kernel of a GPU by NVIDIA, in PTX: a thread for each world.

XLA makes hundreds of kernels of a step, each of which reads what others wrote. Here a step is one. What a thread needs again it
keeps in registers, up to `_REGISTERS`; what is needed last goes to its own memory and comes back when its turn is there (Belady
1966), so that the assembler finds all in its place: where it has to decide that, it takes three times as long. Straight code,
which no cache of instructions holds, takes at least six cycles an operation, whether a multiprocessor has one warp or eight.

What has an operation that is not written as numbers, or too many, XLA computes as on other devices, with the same results; and
so does it derivatives. The environment variable MJX_LITE_KERNELS=0, when mjx_lite is imported, leaves all to it.

Source: NVIDIA, PTX ISA 8.0. The call with PTX in it is XLA's, which it promises to nobody (`workarounds.ptx_call`).
"""

import heapq
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mjx_lite.core import workarounds
from mjx_lite.core.kernels import probe, wide
from mjx_lite.core.scalars import Load, Loop, Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"
LOOP = 100_000  # numbers of a loop, all turns together, above which a turn is a kernel of its own
_LEAST = 8.0  # compute capability, for `min.NaN`

_REGISTERS = 170  # numbers that a thread keeps at hand, of 255 registers
_AHEAD = 200  # lines that a number from its own memory is asked for before it is used
_ADDRESSES = 6  # of inputs and outputs, likewise
_MAX_LINES = 250_000  # which the driver takes about a minute for
_THREADS = 32  # of a block

_MAX_BYTES = 1 << 31  # of an input or a result

_SUFFIX = {"f": "f32", "i": "s32", "u": "u32", "p": "pred"}
_REGISTER = {"f": "%f", "i": "%r", "u": "%r", "p": "%p"}
_SAME_BITS = frozenset(("and", "or", "xor", "not", "shl"))
_NAMES = {
  ("f", "div"): "div.full.f32", ("f", "sqrt"): "sqrt.approx.f32", ("f", "min"): "min.NaN.f32", ("f", "max"): "max.NaN.f32",
  ("f", "floor"): "cvt.rmi.f32.f32", ("f", "ceil"): "cvt.rpi.f32.f32", ("f", "round"): "cvt.rni.f32.f32",
  ("f", "exp2"): "ex2.approx.f32", ("i", "mul"): "mul.lo.s32", ("u", "mul"): "mul.lo.u32",
}  # fmt: skip
_CONVERT = {"fi": "cvt.rzi.s32.f32", "fu": "cvt.rzi.u32.f32", "if": "cvt.rn.f32.s32", "uf": "cvt.rn.f32.u32"}
_PLAIN = frozenset(
  ("add", "sub", "mul", "div", "neg", "abs", "min", "max", "floor", "ceil", "round", "sqrt", "exp2", "shr", "rem")
)
_ROWS = frozenset(("param", "after", "table", "loop"))  # whose places are next to each other
_COMPARES = {"eq": "eq", "ne": "neu", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def why_off() -> str:
  """The first reason why steps are no such kernels on the GPU at hand, "" where they are.

  For a GPU that is not at hand, for which a program is only lowered here, nothing is probed.
  """
  if not _IS_WANTED:
    return "the environment variable MJX_LITE_KERNELS is 0"
  if jax.default_backend() != "gpu":
    return ""
  if any(float(getattr(x, "compute_capability", 0) or 0) < _LEAST for x in jax.local_devices()):
    return f"the GPU is none by NVIDIA of compute capability {_LEAST} or above"
  return "" if workarounds.works(KERNELS) else "the probe of the GPU's kernels failed"


def kernel(p: Program, inputs: int, outs: Sequence[np.ndarray], worlds: int) -> tuple[str, list[int]]:
  """PTX of a kernel `step` that makes arrays of numbers for so many worlds, and which parameters it has.

  Of the inputs, the program's tables, and the results (n, worlds), one after the other, it has the addresses of those that it
  reads or writes.
  """
  w = _Writer(p, inputs, worlds)
  first = inputs + len(p.tables)

  def store(buffer, row):
    return lambda register, kind: w.store_global(first + buffer, row, register, kind)

  roots = [(int(k), store(b, row)) for b, x in enumerate(outs) for row, k in enumerate(x.ravel())]
  w.block(roots, 0)
  used = sorted(w.used.union(range(first, first + len(outs))))
  if len(w.lines) > _MAX_LINES:
    raise Unsupported(f"a kernel of {len(w.lines)} lines")
  names = ", ".join(f".param .u64 a{k}" for k in used)
  head = [
    ".version 8.0", ".target sm_80", ".address_size 64", f".visible .entry step({names})", f".maxntid {_THREADS}, 1, 1", "{",
    *(f".reg .{t} {r}<{w.count[r] + 1}>;" for r, t in (("%f", "f32"), ("%r", "b32"), ("%p", "pred"), ("%d", "b64"))),
    f".local .align 4 .b8 own[{4 * max(w.most, 1)}];", ".reg .b64 %own, %mine;", ".reg .b32 %world, %block, %thread, %zero;",
    # two addresses of one place, which the assembler does not know: it would keep in registers what it finds stored
    "mov.u64 %own, own;", "mov.u32 %zero, %ctaid.y;", "mad.wide.u32 %mine, %zero, 4, %own;",
    "mov.u32 %block, %ctaid.x;", "mov.u32 %thread, %tid.x;", f"mad.lo.u32 %world, %block, {_THREADS}, %thread;",
    f"setp.ge.u32 %p0, %world, {worlds};", "@%p0 bra END;",
  ]  # fmt: skip
  return "\n".join([*head, *_ahead(w.lines), "END:", "ret;", "}", ""]), used


def _ahead(lines: list[str]) -> list[str]:
  """Lines with what comes from memory asked for some lines before it is used: that is how long it takes."""
  earlier: dict[int, list[str]] = {}
  stored: dict[str, int] = {}  # where a place of a thread's own memory was last written
  there: dict[str, int] = {}  # where an address is at hand
  barrier, moved = 0, set()
  for k, line in enumerate(lines):
    name, _, operands = line.partition(" ")
    if name.startswith("st.local"):
      stored[_offset(operands)] = k + 1
    if line.endswith(":") or "bra " in line:
      barrier = k + 1
    first, ahead, result = k, _AHEAD, ""
    if name.startswith("ld.local") and "[%own+" in line:
      first = stored.get(_offset(operands), 0)
    elif name.startswith("ld.global") and (base := operands[operands.index("[") + 1 :].partition("+")[0]) in there:
      first = there[base]
    elif name == "ld.param.u64" or (name == "mad.wide.u32" and " %world," in operands):
      result, *_, base = operands.rstrip(";").split(", ")
      first, ahead = there.get(base, 0), 2 * _AHEAD
    first = max(barrier, first, k - ahead)
    if result:
      there[result] = first if first < k else k + 1
    if first < k:
      earlier.setdefault(first, []).append(line)
      moved.add(k)
  out = []
  for k, line in enumerate(lines):
    out += earlier.get(k, ())
    if k not in moved:
      out.append(line)
  return out


def _offset(operands: str) -> str:
  return operands[operands.index("+") : operands.index("]")]


class _Writer:
  """Lines, and where the numbers are that are wanted again."""

  def __init__(self, p: Program, inputs: int, worlds: int):
    self.p, self.inputs, self.worlds = p, inputs, worlds
    self.lines: list[str] = []
    self.count = {"%f": 0, "%r": 0, "%p": 0, "%d": 0}
    self.slot: dict[int, int] = {}  # of the thread's own memory
    self.free: list[int] = []
    self.size = self.most = 0
    self.label = 0
    self.used: set[int] = set()  # parameters
    self._forget()

  def _forget(self) -> None:
    self.address: dict[tuple[int, bool], str] = {}

  def _register(self, prefix: str) -> str:
    self.count[prefix] += 1
    return f"{prefix}{self.count[prefix]}"

  # ------------------------------------------------------------------------------------------------------------- memory

  def _slots(self, n: int) -> int:
    """So many in a row, which nothing had before."""
    self.size += n
    self.most = max(self.most, self.size)
    return self.size - n

  def _global(self, buffer: int, per_world: bool, kind: str) -> str:
    """Register of the address where an input or result has the thread's world."""
    key = buffer, per_world
    found = self.address.pop(key, None)
    if found is None:
      self.used.add(buffer)
      found = self._register("%d")
      self.lines.append(f"ld.param.u64 {found}, [a{buffer}];")
      if per_world:
        base, found = found, self._register("%d")
        self.lines.append(f"mad.wide.u32 {found}, %world, {_bytes(kind)}, {base};")
      if len(self.address) >= _ADDRESSES:
        del self.address[next(iter(self.address))]
    self.address[key] = found
    return found

  def _parameter(self, where: Load) -> int:
    """Of an input, or of a table."""
    return where.buffer if where.buffer >= 0 else self.inputs - where.buffer - 1

  def _place(self, where: Load, kind: str) -> str:
    row = _bytes(kind) * where.row * (self.worlds if where.per_world else 1)
    if row + 4 * self.worlds >= _MAX_BYTES:
      raise Unsupported("an input of 2 GB")
    return f"{self._global(self._parameter(where), where.per_world, kind)}+{row}"

  def load_global(self, where: Load, kind: str) -> str:
    place = self._place(where, kind)
    return self._loaded(f"ld.global.nc{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]}", place, kind)

  def _loaded(self, name: str, place: str, kind: str) -> str:
    register = self._register("%r" if kind == "p" else _REGISTER[kind])
    self.lines.append(f"{name} {register}, [{place}];")
    if kind != "p":
      return register
    flag = self._register("%p")
    self.lines.append(f"setp.ne.u32 {flag}, {register}, 0;")
    return flag

  def store_global(self, buffer: int, row: int, register: str, kind: str) -> None:
    place = self._place(Load(buffer, row, True), kind)
    self.lines.append(f"st.global{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]} [{place}], {self._number(register, kind)};")

  def _number(self, register: str, kind: str) -> str:
    """What can be stored: of a truth value 0 or 1."""
    if kind != "p":
      return register
    number = self._register("%r")
    self.lines.append(f"selp.u32 {number}, 1, 0, {register};")
    return number

  def load_own(self, slot: int, kind: str) -> str:
    return self._loaded(f"ld.local.{'u32' if kind == 'p' else _SUFFIX[kind]}", f"%own+{4 * slot}", kind)

  def store_own(self, slot: int, register: str, kind: str) -> None:
    name = "u32" if kind == "p" else _SUFFIX[kind]
    self.lines.append(f"st.local.{name} [%mine+{4 * slot}], {self._number(register, kind)};")

  # ------------------------------------------------------------------------------------------------------ straight code

  def block(self, roots: Sequence[tuple[int, Callable[[str, str], None]]], depth: int) -> None:
    """Makes numbers in a loop of a depth, each handed to a function as soon as it is there."""
    p = self.p
    steps = self._steps(roots, depth)
    uses: dict[int, list[int]] = {}
    for at in range(len(steps) - 1, -1, -1):
      for a in self._read(steps[at]):
        uses.setdefault(a, []).append(at)
    at_hand: dict[int, str] = {}
    heap: list[tuple[int, int]] = []
    mine: list[int] = []  # what this block gave a slot

    def keep(k, register, pinned=()):
      ahead = uses.get(k)
      if not ahead:
        return register
      if len(at_hand) >= _REGISTERS:
        drop(pinned)
      at_hand[k] = register
      heapq.heappush(heap, (-ahead[-1], k))
      return register

    def drop(pinned):
      aside = []
      while heap:
        when, k = heapq.heappop(heap)
        if k not in at_hand or uses[k][-1] != -when:
          continue
        if k in pinned:
          aside.append((when, k))
          continue
        put_away(k)
        break
      for x in aside:
        heapq.heappush(heap, x)

    def put_away(k):
      register = at_hand.pop(k)
      if k not in self.slot and p.op[k] != "load":
        self.slot[k] = self.free.pop() if self.free else self._slots(1)
        mine.append(k)
        self.store_own(self.slot[k], register, p.kind[k])

    def operand(k, pinned=()):
      if k in at_hand:
        return at_hand[k]
      register = self._again(k)
      return register if p.op[k] == "const" else keep(k, register, pinned)

    def used(k, at):
      ahead = uses[k]
      while ahead and ahead[-1] <= at:
        ahead.pop()
      if ahead:
        if k in at_hand:
          heapq.heappush(heap, (-ahead[-1], k))
        return
      at_hand.pop(k, None)
      if k in self.slot and p.op[k] not in _ROWS and p.depth[k] == depth:
        self.free.append(self.slot.pop(k))

    for at, step in enumerate(steps):
      k, finish = step
      reads = self._read(step)
      if finish is not None:
        finish(operand(k), p.kind[k])
      elif p.op[k] == "loop":
        for a in list(at_hand):
          if uses[a][-1] >= at:
            put_away(a)
        at_hand.clear()
        self._loop(k)
      elif p.op[k] == "table":
        if reads:
          first = self.slot[k] = self._slots(len(p.args[k]))
          for i, a in enumerate(p.args[k]):
            self.store_own(first + i, operand(a), p.kind[a])
      elif p.op[k] == "after":
        self.slot[k] = self.slot[p.args[k][0]] + p.of[k]
      else:
        pinned = set(reads)
        registers = [operand(a, pinned) for a in reads if p.op[a] != "table"]
        keep(k, self._instruction(k, registers), pinned)
      for a in set(reads):
        used(a, at)
    for k in mine:
      if k in self.slot:
        self.free.append(self.slot.pop(k))

  def _steps(self, roots: Any, depth: int) -> list[tuple[int, Any]]:
    """Numbers to make, each behind those that it is made of, and what is done with the roots."""
    p, steps, seen = self.p, [], set()
    for root, finish in roots:
      stack = [(root, False)]
      while stack:
        k, is_ready = stack.pop()
        if is_ready:
          steps.append((k, None))
        elif k not in seen and p.depth[k] >= depth and p.op[k] not in ("const", "load", "param"):
          seen.add(k)
          stack.append((k, True))
          stack.extend((a, False) for a in sorted(self._read((k, None))) if a not in seen)
      steps.append((root, finish))
    return steps

  def _read(self, step: tuple[int, Any]) -> tuple[int, ...]:
    """Numbers that a step wants at hand."""
    k, finish = step
    p = self.p
    if finish is not None:
      return (k,)
    if p.op[k] == "table" and self.p.in_place(k) is not None:
      return ()
    return p.args[k]

  def _constant(self, k: int) -> str:
    p = self.p
    kind, value = p.kind[k], p.of[k]
    if kind == "f":
      return f"0f{struct.unpack('I', struct.pack('f', value))[0]:08X}"
    if kind != "p":
      return str(value)
    flag = self._register("%p")
    self.lines.append(f"setp.eq.u32 {flag}, {int(not value)}, 0;")
    return flag

  def _instruction(self, k: int, x: list[str]) -> str:
    """Writes down an operation; returns the register of its result."""
    p = self.p
    op, kind = p.op[k], p.kind[k]
    of = p.kind[p.args[k][0]]
    if op == "fetch":
      return self._fetch(p.args[k][0], x[-1], kind)
    out = self._register(_REGISTER[kind])
    if op in _COMPARES:
      name = f"setp.{_COMPARES[op] if of == 'f' or op != 'ne' else 'ne'}.{_SUFFIX[of]}"
    elif op == "select" and kind == "p":
      no, a, b = (self._register("%p") for _ in range(3))
      self.lines += [f"not.pred {no}, {x[0]};", f"and.pred {a}, {x[0]}, {x[1]};", f"and.pred {b}, {no}, {x[2]};"]
      name, x = "or.pred", [a, b]
    elif op == "select":
      name, x = f"selp.{_SUFFIX[kind]}", [x[1], x[2], x[0]]
    elif op == "convert":
      name = _CONVERT.get(of + kind, "mov.b32")
    elif op == "bits":
      name = "mov.b32"
    elif op in _SAME_BITS:
      name = f"{op}.{'pred' if kind == 'p' else 'b32'}"
    elif op in _PLAIN and (kind, op) != ("f", "rem"):
      name = _NAMES.get((kind, op), f"{op}.{_SUFFIX[kind]}")
    else:
      raise Unsupported(f"{op} of {_SUFFIX[kind]}")
    self.lines.append(f"{name} {out}, {', '.join(x)};")
    return out

  def _fetch(self, table: int, index: str, kind: str) -> str:
    """What a table has at an index."""
    where = self.p.in_place(table)
    place = self._register("%d")
    if isinstance(where, Load):
      base = self._global(self._parameter(where), where.per_world, kind)
      step = _bytes(kind) * (self.worlds if where.per_world else 1)
      self.lines.append(f"mad.wide.u32 {place}, {index}, {step}, {base};")
      return self._loaded(f"ld.global.nc{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]}", f"{place}+{step * where.row}", kind)
    first = self.slot[table] if where is None else self.slot[where]
    self.lines.append(f"mad.wide.u32 {place}, {index}, 4, %own;")
    return self._loaded(f"ld.local.{'u32' if kind == 'p' else _SUFFIX[kind]}", f"{place}+{4 * first}", kind)

  # --------------------------------------------------------------------------------------------------------------- loops

  def _loop(self, k: int) -> None:
    p = self.p
    loop: Loop = p.of[k]
    n = len(loop.params)
    changed = [i for i, a in enumerate(loop.last) if a != loop.params[i]]
    first, then = self._slots(n), self._slots(len(changed))
    self._forget()
    self.slot[k] = first
    for i, (param, start) in enumerate(zip(loop.params, loop.first, strict=True)):
      self.slot[param] = first + i
      self.store_own(first + i, self._again(start), p.kind[start])
    self.label += 1
    begin, end = f"LOOP{self.label}", f"DONE{self.label}"
    self.lines.append(f"{begin}:")
    self._forget()

    def leave(register, kind):
      no = self._register("%p")
      self.lines.extend([f"not.pred {no}, {register};", f"@{no} bra {end};"])

    self.block([(loop.proceeds, leave)], loop.depth)

    def put(slot):
      return lambda register, kind: self.store_own(slot, register, kind)

    self.block([(loop.last[i], put(then + j)) for j, i in enumerate(changed)], loop.depth)
    for j, i in enumerate(changed):
      self.store_own(first + i, self.load_own(then + j, p.kind[loop.params[i]]), p.kind[loop.params[i]])
    self.lines += [f"bra {begin};", f"{end}:"]
    self._forget()

  def _again(self, k: int) -> str:
    """A number from where it is kept."""
    p = self.p
    if p.op[k] == "const":
      return self._constant(k)
    return self.load_global(p.of[k], p.kind[k]) if p.op[k] == "load" else self.load_own(self.slot[k], p.kind[k])


def _bytes(kind: str) -> int:
  return 1 if kind == "p" else 4


def call(p: Program, inputs: Sequence[jax.Array], outs: Sequence[np.ndarray], dtypes: Sequence[Any], worlds: int) -> list[Any]:
  """The results (..., worlds) of a program of numbers, by its kernel, on an NVIDIA GPU.

  The axis of worlds is the last one, so that neighbouring threads read neighbouring numbers.
  """
  text, used = kernel(p, len(inputs), outs, worlds)
  shapes = [jax.ShapeDtypeStruct(wide(x.shape, worlds, -1), dtype) for x, dtype in zip(outs, dtypes, strict=True)]
  given = [*inputs, *p.tables]
  read = [given[k] for k in used if k < len(given)]
  return workarounds.ptx_call(text, "step", read, shapes, -(-worlds // _THREADS), _THREADS)


KERNELS = workarounds.Borrowed(
  "one kernel of a step on NVIDIA GPUs",
  "XLA's custom call `__gpu$xla.gpu.ptx`, which takes a kernel's text.",
  "XLA makes hundreds of kernels of a step, which take several times as long.",
  "The custom call can go once `jax.ffi` takes a kernel as text, or the engine brings a handler of its own that launches it.",
  lambda: probe(call, (21,), -1, 1e-5),
)
