"""LLVM back end: a scalar program becomes machine code of a CPU, with one world in each lane of its vectors.

XLA compiles each operation to a loop over worlds. LLVM has to analyze the loop before it can vectorise it, and each loop reads
from memory what an earlier loop wrote there. Here each number has one vector operation, in straight-line code, so that LLVM
only has to choose registers. The code is cut into functions of a few hundred operations, as LLVM's time for a function grows
faster than the function's length. The functions exchange numbers through memory of the kernel, which stays in the cache. A
kernel processes blocks of as many worlds as a cache line has float32 numbers. Inputs are (worlds, n), as users' arrays are. A
kernel transposes the inputs of a block, so that the lanes of a number are consecutive, and transposes its results back. A
single world takes one lane.

XLA computes a program that has too many operations, or one without a scalar form, with the same results. XLA also computes
numbers of double precision, worlds that may be divided among devices, and derivatives, except derivatives of many worlds
together in a function that `mjx.jit` compiles (`worlds.py`). The environment variable MJX_LITE_KERNELS=0, when mjx_lite is
imported, leaves everything to XLA.

Source: LLVM Language Reference Manual; XLA's FFI, whose binary interface XLA promises to keep (`xla/ffi/api/c_api.h`).
"""

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import pathlib
import re
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.compiler import workarounds
from mjx_lite.compiler.kernels import probe, wide
from mjx_lite.compiler.scalars import Load, Loop, Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"

LOOP = 30_000  # numbers of a loop in all its iterations, above which each iteration is a kernel of its own
DERIVATIVES = 140_000  # numbers of a program, with one iteration of each loop, above which its derivatives are no kernels
_MAX_OPERATIONS = 150_000  # operations of a kernel: about ten seconds to write and to compile
_BLOCK = 16  # worlds whose inputs are transposed together: float32 numbers of a cache line
_PART = 500  # operations of a function
_FFI = 0, 3  # version of XLA's FFI, major and minor
_CHUNK = 4  # rows that are transposed together
_FEW = 8  # largest table that is indexed by comparisons

_TYPES = {"f": "float", "i": "i32", "u": "i32", "p": "i1"}
_COMPARES = {
  "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"), "le": ("ole", "sle", "ule"),
  "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip
_FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv", "neg": "fneg"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_CALLS = {"abs": "fabs", "floor": "floor", "ceil": "ceil", "sqrt": "sqrt", "round": "rint"}
_CONVERT = {"fi": "fptosi", "fu": "fptoui", "if": "sitofp", "uf": "uitofp"}
# Taylor coefficients of 2**x, for x from -1/2 to 1/2
_EXP2 = tuple(np.log(2) ** k / float(np.prod(range(1, k + 1), dtype=float)) for k in range(7, -1, -1))


def is_on() -> bool:
  """Return whether steps run as such kernels: on CPU, if JAX has no numbers of double precision."""
  return not why_off()


def why_off() -> str:
  """Return the first reason why steps do not run as such kernels, "" if they do."""
  if not _IS_WANTED:
    return "the environment variable MJX_LITE_KERNELS is 0"
  if jax.default_backend() != "cpu":
    return "JAX's default device is not the CPU"
  if jax.dtypes.canonicalize_dtype(np.float64) != np.float32:
    return "JAX has 64-bit numbers (jax_enable_x64), and machine code has 32"
  return "" if workarounds.works(KERNELS) else "the probe of machine code failed"


@functools.cache
def _llvm() -> Any:
  """Return LLVM, loaded at the first call."""
  from llvmlite import binding

  binding.initialize_native_target()
  binding.initialize_native_asmprinter()
  return binding


class _Rows(NamedTuple):
  """Rows of a kernel's memory that hold the numbers of one array for the worlds of a block."""

  buffer: int
  kind: str
  first: int  # offset of the first row, in bytes
  count: int
  stride: int  # numbers of one world in the array


def kernel(p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int) -> tuple[list[str], str, int, list[int]]:
  """Return the LLVM assembly of a kernel, the bytes of memory that it needs, and the indices of the inputs that it reads.

  The assembly is a list of functions and the entry `@step`, a handler of XLA's FFI. The entry's arguments are the arrays that
  it reads, out of the inputs (worlds, n) and the program's tables. Its results are the arrays (worlds, n) in order, and then
  its memory. `sizes` are the numbers of one world in each input. `lanes` worlds go through the code at a time.
  """
  w = _Writer(p, sizes, outs, lanes)
  w.run([(int(k), ("row", b, row)) for b, x in enumerate(outs) for row, k in enumerate(x.ravel())], 0)
  return w.functions, w.entry(), w.bytes, w.used


class _Writer:
  """Writer of straight-line functions and the calls of these; it keeps the slots of numbers that several functions use."""

  def __init__(self, p: Program, sizes: Sequence[int], outs: Sequence[np.ndarray], lanes: int):
    self.p, self.inputs, self.lanes = p, len(sizes), lanes
    self.block = _BLOCK if lanes > 1 else 1
    self.vector = {kind: f"<{lanes} x {t}>" for kind, t in _TYPES.items()}
    self.functions: list[str] = []
    self.calls: list[str] = []
    self.slot: dict[int, int] = {}
    self.free: list[int] = []
    self.slots = self.loops = self.operations = 0
    loads = [(p.of[k], p.kind[k]) for k in range(len(p.op)) if p.op[k] == "load"]
    self.used = sorted({self._parameter(where) for where, _ in loads})
    self.at = {k: i for i, k in enumerate(self.used)}  # position among the entry's arguments, by index
    rows: dict[int, tuple[str, int]] = {}
    for where, kind in loads:
      if where.per_world:
        rows[where.buffer] = kind, max(where.row + 1, rows.get(where.buffer, (kind, 0))[1])
    self.bytes = 0
    self.read = {b: self._rows(self.at[b], kind, count, sizes[b]) for b, (kind, count) in rows.items()}
    kinds = [(p.kind[int(x.flat[0])], x.size) if x.size else ("f", 0) for x in outs]
    self.written = [self._rows(k, kind, size, size) for k, (kind, size) in enumerate(kinds)]
    self.own = self.bytes  # offset of the slots, in bytes

  def _rows(self, buffer: int, kind: str, count: int, stride: int) -> _Rows:
    self.bytes += -self.bytes % 64
    found = _Rows(buffer, kind, self.bytes, count, stride)
    self.bytes += _bytes(kind) * self.block * count
    return found

  def _parameter(self, where: Load) -> int:
    """Return the index of an input, or of a table, whose `buffer` is negative; tables follow the inputs."""
    return where.buffer if where.buffer >= 0 else self.inputs - where.buffer - 1

  def _slots(self, n: int) -> int:
    """Return the first of n new consecutive slots."""
    self.slots += n
    return self.slots - n

  # ------------------------------------------------------------------------------------------------------ order and parts

  def run(self, roots: Sequence[tuple[int, tuple]], depth: int) -> None:
    """Write code that computes the roots in a loop of a depth, and that stores each root as its `end` says (`_Code.finish`)."""
    p = self.p
    parts: list[list[tuple[int, tuple | None]]] = [[]]
    for step in self._steps(roots, depth):
      if parts[-1] and (self._is_loop(step) or self._is_loop(parts[-1][0]) or len(parts[-1]) >= _PART):
        parts.append([])
      parts[-1].append(step)
    self.operations += sum(map(len, parts))
    if self.operations > _MAX_OPERATIONS:
      raise Unsupported(f"a kernel of {self.operations} operations")
    last = {a: i for i, part in enumerate(parts) for step in part for a in self._read(step)}
    mine: list[int] = []
    for i, part in enumerate(parts):
      if part and self._is_loop(part[0]):
        self._loop(part[0][0])
      elif part:
        kept = [k for k, end in part if end is None and p.op[k] not in ("after", "table") and last.get(k, -1) > i]
        for k in kept:
          self.slot[k] = self.free.pop() if self.free else self._slots(1)
        mine += kept
        self._function(part)
      done = {k for k in mine if last[k] <= i}
      self.free += [self.slot.pop(k) for k in done]
      mine = [k for k in mine if k not in done]

  def _is_loop(self, step: tuple[int, tuple | None]) -> bool:
    return step[1] is None and self.p.op[step[0]] == "loop"

  def _steps(self, roots: Sequence[tuple[int, tuple]], depth: int) -> list[tuple[int, tuple | None]]:
    """Return the numbers to compute, each after its operands, and each root with its `end`."""
    p, steps, seen = self.p, [], set()
    for root, end in roots:
      stack = [(root, False)]
      while stack:
        k, is_ready = stack.pop()
        if is_ready:
          steps.append((k, None))
        elif k not in seen and p.depth[k] >= depth and p.op[k] not in ("const", "load", "param"):
          seen.add(k)
          stack.append((k, True))
          stack.extend((a, False) for a in p.args[k] if a not in seen)
      steps.append((root, end))
    return steps

  def _read(self, step: tuple[int, tuple | None]) -> list[int]:
    """Return the operands of a step; in place of a table that has no slot, the table's numbers."""
    k, end = step
    if end is not None:
      return [k]
    read = []
    for a in self.p.args[k]:
      read += self.p.args[a] if self.p.op[a] == "table" and a not in self.slot else [a]
    return read

  def _loop(self, k: int) -> None:
    """Write a loop that runs as long as a lane proceeds; the numbers of the other lanes stay unchanged."""
    loop: Loop = self.p.of[k]
    changed = [i for i, a in enumerate(loop.last) if a != loop.params[i]]
    first, then, going = self._slots(len(loop.params)), self._slots(len(changed)), self._slots(1)
    self.slot[k] = first
    self.slot.update((a, first + i) for i, a in enumerate(loop.params))
    starts = [(a, ("slot", first + i)) for i, a in enumerate(loop.first)]
    self._in_parts(starts)
    self.loops += 1
    n = self.loops
    self.calls += [f"br label %loop{n}", f"loop{n}:"]
    self.run([(loop.proceeds, ("any", going))], loop.depth)
    self.calls += [
      f"%any{n} = load i32, ptr %flag", f"%is{n} = icmp ne i32 %any{n}, 0",
      f"br i1 %is{n}, label %turn{n}, label %done{n}", f"turn{n}:",
    ]  # fmt: skip
    self.run([(loop.last[i], ("slot", then + j)) for j, i in enumerate(changed)], loop.depth)
    self._in_parts([(loop.params[i], ("replace", first + i, then + j, going)) for j, i in enumerate(changed)])
    self.calls += [f"br label %loop{n}", f"done{n}:"]

  def _in_parts(self, steps: Sequence[tuple[int, tuple]]) -> None:
    for k in range(0, len(steps), _PART):
      self._function(steps[k : k + _PART])

  # -------------------------------------------------------------------------------------------------------------- functions

  def _function(self, steps: Sequence[tuple[int, tuple | None]]) -> None:
    code = _Code(self)
    for k, end in steps:
      if end is None:
        code.make(k)
      else:
        code.finish(k, end)
    name = f"part{len(self.functions)}"
    body = "\n".join(code.lines)
    # four, one: rows of 4 bytes and 1 byte a number, from the first lane on; own: slots; shared: addresses of the arguments
    head = f"void @{name}(ptr %four, ptr %one, ptr %own, ptr %shared, ptr %flag)"
    self.functions.append(f"define {head} #0 {{\n{body}\nret void\n}}")
    self.calls.append(f"call {head}")

  def entry(self) -> str:
    """Return the assembly of the handler that XLA calls."""
    outs, used = len(self.written), len(self.used)
    lines = []
    for k in range(used):  # offsets are those of the structs in c_api.h; 24 is `data` of XLA_FFI_Buffer
      lines += [f"%a{k} = getelementptr ptr, ptr %args, i64 {k}", f"%b{k} = load ptr, ptr %a{k}",
                f"%c{k} = getelementptr i8, ptr %b{k}, i64 24", f"%d{k} = load ptr, ptr %c{k}",
                f"%s{k} = getelementptr ptr, ptr %shared, i64 {k}", f"store ptr %d{k}, ptr %s{k}"]  # fmt: skip
    for k in range(outs + 1):
      lines += [f"%e{k} = getelementptr ptr, ptr %rets, i64 {k}", f"%f{k} = load ptr, ptr %e{k}",
                f"%g{k} = getelementptr i8, ptr %f{k}, i64 24", f"%h{k} = load ptr, ptr %g{k}"]  # fmt: skip
    moves = {
      name: [
        f"%{name}{x.buffer} = getelementptr i8, ptr %h{outs}, i64 {x.first}\n"
        f"call void @{name}{_bytes(x.kind)}(ptr %{name}{x.buffer}, ptr %{data}{x.buffer}, i64 {x.count}, "
        f"i64 %w, i64 %n, i64 {x.stride})"
        for x in rows
        if x.count
      ]
      for name, data, rows in (("take", "d", self.read.values()), ("give", "h", self.written))
    }
    line = "\n".join
    own = self.own + -self.own % 64
    self.bytes = own + 4 * self.lanes * self.slots + 64
    movers = [_move(name, size, self.block) for name in ("take", "give") for size in (1, 4)]
    return f"""{line(movers)}
define ptr @step(ptr %frame) {{
%ahead = getelementptr i8, ptr %frame, i64 8
%extension = load ptr, ptr %ahead
%is_asked = icmp ne ptr %extension, null
br i1 %is_asked, label %version, label %begin
version:
%what = getelementptr i8, ptr %extension, i64 24
%meta = load ptr, ptr %what
%major = getelementptr i8, ptr %meta, i64 24
%minor = getelementptr i8, ptr %meta, i64 28
store i32 {_FFI[0]}, ptr %major
store i32 {_FFI[1]}, ptr %minor
ret ptr null
begin:
%flag = alloca i32
%shared = alloca [{used + 1} x ptr]
%args_at = getelementptr i8, ptr %frame, i64 72
%args = load ptr, ptr %args_at
%rets_at = getelementptr i8, ptr %frame, i64 112
%rets = load ptr, ptr %rets_at
{line(lines)}
%dims_at = getelementptr i8, ptr %f0, i64 40
%dims = load ptr, ptr %dims_at
%worlds = {"load i64, ptr %dims" if self.lanes > 1 else "add i64 0, 1"}
%own = getelementptr i8, ptr %h{outs}, i64 {own}
br label %block
block:
%w = phi i64 [0, %begin], [%next, %end]
%next = add i64 %w, {self.block}
%ahead_of = sub i64 %worlds, %w
%n = call i64 @llvm.umin.i64(i64 %ahead_of, i64 {self.block})
{line(moves["take"])}
br label %group
group:
%g = phi i64 [0, %block], [%g_next, %grouped]
%g_next = add i64 %g, {self.lanes}
%g_bytes = mul i64 %g, 4
%four = getelementptr i8, ptr %h{outs}, i64 %g_bytes
%one = getelementptr i8, ptr %h{outs}, i64 %g
{line(self.calls)}
br label %grouped
grouped:
%is_group = icmp ult i64 %g_next, %n
br i1 %is_group, label %group, label %give
give:
{line(moves["give"])}
br label %end
end:
%is_block = icmp ult i64 %next, %worlds
br i1 %is_block, label %block, label %return
return:
ret ptr null
}}
"""


def _move(name: str, size: int, block: int) -> str:
  """Return a function that transposes a block's worlds from an array (worlds, n) to rows of the kernel's memory, or back.

  It moves the first `%rows` of the `%stride` numbers of each world. Lanes without a world get the last world's numbers.
  """
  is_take, t = name == "take", f"i{8 * size}"
  here, there = ("there", "here") if is_take else ("here", "there")
  is_chunked = size == 4 and block % _CHUNK == 0
  return f"""define internal void @{name}{size}(ptr %block, ptr %array, i64 %rows, i64 %w, i64 %n, i64 %stride) #0 {{
%before = mul i64 %w, %stride
%begin = getelementptr {t}, ptr %array, i64 %before
%most = sub i64 %n, 1
{_moved_in_chunks(is_take, block) if is_chunked else "br label %world"}
world:
%j = phi i64 [0, {"%choice" if is_chunked else "%0"}], [%j_next, %world_end]
%j_next = add i64 %j, 1
%k = call i64 @llvm.umin.i64(i64 %j, i64 %most)
%k_before = mul i64 %k, %stride
%world_there = getelementptr {t}, ptr %begin, i64 %k_before
%world_here = getelementptr {t}, ptr %block, i64 %j
br label %row
row:
%r = phi i64 [0, %world], [%r_next, %row]
%r_next = add i64 %r, 1
%r_here = mul i64 %r, {block}
%here = getelementptr {t}, ptr %world_here, i64 %r_here
%there = getelementptr {t}, ptr %world_there, i64 %r
%x = load {t}, ptr %{here}
store {t} %x, ptr %{there}
%is_row = icmp ult i64 %r_next, %rows
br i1 %is_row, label %row, label %world_end
world_end:
%is_world = icmp ult i64 %j_next, {block if is_take else "%n"}
br i1 %is_world, label %world, label %return
return:
ret void
}}"""


def _moved_in_chunks(is_take: bool, block: int) -> str:
  """Return the code of `_move` for a full block of 4-byte numbers: `_CHUNK` rows at a time, the last rows possibly twice."""
  lines: list[str] = []

  def new(text):
    lines.append(f"%v{len(lines)} = {text}")
    return f"%v{len(lines) - 1}"

  def picked(a, b, n, order):
    lanes = ", ".join(f"i32 {k}" for k in order)
    return new(f"shufflevector <{n} x i32> {a}, <{n} x i32> {b}, <{len(order)} x i32> <{lanes}>")

  def joined(parts, n):
    while len(parts) > 1:
      parts = [picked(a, b, n, range(2 * n)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
      n *= 2
    return parts[0]

  few, many = f"<{_CHUNK} x i32>", f"<{block} x i32>"
  places = [new("getelementptr i32, ptr %begin, i64 %chunk_row")]
  for _ in range(block - 1):
    places.append(new(f"getelementptr i32, ptr {places[-1]}, i64 %stride"))
  first = new(f"mul i64 %chunk_row, {block}")
  rows = [new(f"getelementptr i32, ptr %block, i64 {new(f'add i64 {first}, {k * block}')}") for k in range(_CHUNK)]
  if is_take:
    worlds = [new(f"load {few}, ptr {x}, align 4") for x in places]
    fours, n = [joined(worlds[k : k + _CHUNK], _CHUNK) for k in range(0, block, _CHUNK)], _CHUNK**2
    for i, row in enumerate(rows):
      pairs = [picked(a, b, n, range(i, 2 * n, _CHUNK)) for a, b in zip(fours[::2], fours[1::2], strict=True)]
      lines.append(f"store {many} {joined(pairs, 2 * _CHUNK)}, ptr {row}, align 4")
  else:
    a, b, c, d = (new(f"load {many}, ptr {x}, align 4") for x in rows)
    halves = range(block // 2), range(block // 2, block)
    pairs = [[picked(x, y, block, [i for k in half for i in (k, k + block)]) for half in halves] for x, y in ((a, b), (c, d))]
    for k, place in enumerate(places):
      half, i = divmod(2 * k, block)
      x = picked(pairs[0][half], pairs[1][half], block, (i, i + 1, i + block, i + block + 1))
      lines.append(f"store {few} {x}, ptr {place}, align 4")
  body = "\n".join(lines)
  return f"""br label %choice
choice:
%is_full = icmp eq i64 %n, {block}
%is_long = icmp uge i64 %rows, {_CHUNK}
%is_both = and i1 %is_full, %is_long
%last = sub i64 %rows, {_CHUNK}
br i1 %is_both, label %chunk, label %world
chunk:
%from = phi i64 [0, %choice], [%to, %chunk]
%to = add i64 %from, {_CHUNK}
%chunk_row = call i64 @llvm.umin.i64(i64 %from, i64 %last)
{body}
%is_chunk = icmp ult i64 %to, %rows
br i1 %is_chunk, label %chunk, label %return"""


class _Code:
  """Writer of one function; it keeps the values that the function has in registers."""

  def __init__(self, writer: _Writer):
    self.w, self.p, self.lanes = writer, writer.p, writer.lanes
    self.lines: list[str] = []
    self.at_hand: dict[int, str] = {}
    self.address: dict[int, str] = {}
    self.count = 0

  def new(self, text: str) -> str:
    self.count += 1
    self.lines.append(f"%{self.count} = {text}")
    return f"%{self.count}"

  def _const(self, value: Any, kind: str) -> str:
    if kind == "f":
      text = f"0x{struct.unpack('Q', struct.pack('d', np.float32(value)))[0]:016X}"
    else:
      text = str(int(value)) if kind != "p" else "true" if value else "false"
    return f"splat ({_TYPES[kind]} {text})"

  # memory

  def _slot(self, slot: int) -> str:
    return self.new(f"getelementptr i8, ptr %own, i64 {4 * self.lanes * slot}")

  def load_own(self, slot: int, kind: str) -> str:
    v = self.w.vector
    x = self.new(f"load {v['i' if kind == 'p' else kind]}, ptr {self._slot(slot)}, align 4")
    return self.new(f"icmp ne {v['i']} {x}, zeroinitializer") if kind == "p" else x

  def store_own(self, slot: int, x: str, kind: str) -> None:
    v = self.w.vector
    if kind == "p":
      x, kind = self.new(f"sext {v['p']} {x} to {v['i']}"), "i"
    place = self._slot(slot)
    self.lines.append(f"store {v[kind]} {x}, ptr {place}, align 4")

  def _array(self, where: Load) -> str:
    """Return the address of an array that all worlds share."""
    k = self.w.at[self.w._parameter(where)]
    if k not in self.address:
      self.address[k] = self.new(f"load ptr, ptr {self.new(f'getelementptr ptr, ptr %shared, i64 {k}')}")
    return self.address[k]

  def _row(self, rows: _Rows, row: int) -> str:
    base = "%one" if rows.kind == "p" else "%four"
    return self.new(f"getelementptr i8, ptr {base}, i64 {rows.first + _bytes(rows.kind) * self.w.block * row}")

  def load(self, where: Load, kind: str) -> str:
    size = _bytes(kind)
    t = "i8" if kind == "p" else _TYPES[kind]
    rows = f"<{self.lanes} x {t}>"
    if where.per_world:
      x = self.new(f"load {rows}, ptr {self._row(self.w.read[where.buffer], where.row)}, align {size}")
    else:
      array = self._array(where)
      x = self._spread(self.new(f"load {t}, ptr {self.new(f'getelementptr i8, ptr {array}, i64 {size * where.row}')}"), t)
    return self.new(f"icmp ne {rows} {x}, zeroinitializer") if kind == "p" else x

  def _spread(self, x: str, t: str) -> str:
    one = self.new(f"insertelement <{self.lanes} x {t}> poison, {t} {x}, i32 0")
    rows = f"<{self.lanes} x {t}>"
    return self.new(f"shufflevector {rows} {one}, {rows} poison, <{self.lanes} x i32> zeroinitializer")

  def get(self, k: int) -> str:
    """Return the value of a number: a constant, a value in a register, or a load from memory."""
    p = self.p
    if k in self.at_hand:
      return self.at_hand[k]
    op, kind = p.op[k], p.kind[k]
    if op == "const":
      return self._const(p.of[k], kind)
    if op == "load":
      x = self.load(p.of[k], kind)
    else:
      x = self.load_own(self.w.slot[p.args[k][0]] + p.of[k] if op == "after" else self.w.slot[k], kind)
    self.at_hand[k] = x
    return x

  def finish(self, k: int, end: tuple) -> None:
    """Store a number as `end` says: in a slot, in a loop's state, as a loop's condition, or in a result."""
    v, kind = self.w.vector, self.p.kind[k]
    name, *where = end
    if name == "slot":
      self.store_own(where[0], self.get(k), kind)
    elif name == "replace":
      first, then, going = where
      kind = "i" if kind == "p" else kind
      is_on, old, new = self.load_own(going, "p"), self.load_own(first, kind), self.load_own(then, kind)
      self.store_own(first, self.new(f"select {v['p']} {is_on}, {v[kind]} {new}, {v[kind]} {old}"), kind)
    elif name == "any":
      self.store_own(where[0], self.get(k), "p")
      some = self.new(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({v['p']} {self.get(k)})")
      self.lines.append(f"store i32 {self.new(f'zext i1 {some} to i32')}, ptr %flag")
    else:
      x, t = self.get(k), v[kind]
      if kind == "p":
        t = f"<{self.lanes} x i8>"
        x = self.new(f"zext {v['p']} {x} to {t}")
      rows = self.w.written[where[0]]
      place = self._row(rows, where[1])
      self.lines.append(f"store {t} {x}, ptr {place}, align {_bytes(kind)}")

  # operations

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
    self.at_hand[k] = out
    if k in self.w.slot:
      self.store_own(self.w.slot[k], out, p.kind[k])

  def _operation(self, op: str, kind: str, of: str, x: list[str]) -> str:
    new, t, v = self.new, self.w.vector[kind], self.w.vector
    if op in _COMPARES:
      name = f"fcmp {_COMPARES[op][0]}" if of == "f" else f"icmp {_COMPARES[op][1 if of == 'i' else 2]}"
      return new(f"{name} {v[of]} {x[0]}, {x[1]}")
    if op == "select":
      return new(f"select {v['p']} {x[0]}, {t} {x[1]}, {t} {x[2]}")
    if op in ("min", "max"):
      return self._extreme(op, kind, x)
    if op == "bits":
      return x[0] if "f" not in (kind, of) else new(f"bitcast {v[of]} {x[0]} to {t}")
    if op == "convert":
      return x[0] if "f" not in (kind, of) else new(f"{_CONVERT[of + kind]} {v[of]} {x[0]} to {t}")
    if op == "not":
      return new(f"xor {t} {x[0]}, {self._const(True if kind == 'p' else -1, kind)}")
    if kind == "f" and op in _FLOAT:
      return new(f"{_FLOAT[op]} {t} {', '.join(x)}")
    if (kind, op) == ("f", "rem"):
      return new(f"frem {t} {', '.join(x)}")
    if (kind, op) in (("i", "rem"), ("i", "div")):
      return new(f"s{op} {t} {', '.join(x)}")
    if kind == "f" and op in _CALLS:
      name = f"@llvm.{_CALLS[op]}.v{self.lanes}f32"
      return new(f"call {t} {name}({t} {x[0]})")
    if kind == "f" and op == "exp2":
      out = self._const(_EXP2[0], "f")
      for c in _EXP2[1:]:
        out = new(f"fadd contract {t} {new(f'fmul contract {t} {out}, {x[0]}')}, {self._const(c, 'f')}")
      return out
    if kind in "iup" and op in _INTEGER:
      return new(f"{_INTEGER[op]} {t} {', '.join(x)}")
    if kind in "iu":
      if op == "neg":
        return new(f"sub {t} zeroinitializer, {x[0]}")
      if op == "abs":
        less = new(f"icmp slt {t} {x[0]}, zeroinitializer")
        return new(f"select {v['p']} {less}, {t} {new(f'sub {t} zeroinitializer, {x[0]}')}, {t} {x[0]}")
      if op == "shr":
        return new(f"{'ashr' if kind == 'i' else 'lshr'} {t} {', '.join(x)}")
    raise Unsupported(f"{op} of {_TYPES[kind]}")

  def _extreme(self, op: str, kind: str, x: list[str]) -> str:
    """Write the minimum or maximum of two numbers; for floats the result is NaN if either operand is NaN."""
    new, t, p = self.new, self.w.vector[kind], self.w.vector["p"]
    if kind == "p":
      return new(f"{'and' if op == 'min' else 'or'} {t} {x[0]}, {x[1]}")
    if kind != "f":
      is_first = new(f"icmp {'s' if kind == 'i' else 'u'}{'lt' if op == 'min' else 'gt'} {t} {x[0]}, {x[1]}")
      return new(f"select {p} {is_first}, {t} {x[0]}, {t} {x[1]}")
    a, b = x if x[0].startswith("splat") else x[::-1]
    # an ordered comparison with NaN is false, so a NaN in b is selected
    is_first = new(f"fcmp {'olt' if op == 'min' else 'ogt'} {t} {a}, {b}")
    out = new(f"select {p} {is_first}, {t} {a}, {t} {b}")
    if a.startswith("splat"):
      return out
    return new(f"select {p} {new(f'fcmp uno {t} {a}, {a}')}, {t} {a}, {t} {out}")

  # tables

  def _table(self, k: int) -> None:
    order = self.p.args[k]
    if len(order) > _FEW and self.p.in_place(k) is None:
      self.w.slot[k] = self.w._slots(len(order))
      for i, a in enumerate(order):
        self.store_own(self.w.slot[k] + i, self.get(a), self.p.kind[a])

  def _fetch(self, k: int) -> str:
    """Write the load of a table's entry at an index, which may differ by lane."""
    p, v = self.p, self.w.vector
    table, kind = p.args[k][0], p.kind[k]
    index, order = self.get(p.args[k][-1]), p.args[table]
    where = self.p.in_place(table)
    if len(order) <= _FEW:
      out = self.get(order[0])
      for i, a in enumerate(order[1:], 1):
        is_behind = self.new(f"icmp sge {v['i']} {index}, {self._const(i, 'i')}")
        out = self.new(f"select {v['p']} {is_behind}, {v[kind]} {self.get(a)}, {v[kind]} {out}")
      return out
    size, step, lane = 4, 4 * self.lanes, 4
    if isinstance(where, Load):
      size = _bytes(kind)
      if where.per_world:
        base, step, lane = self._row(self.w.read[where.buffer], where.row), size * self.w.block, size
      else:
        base, step, lane = self.new(f"getelementptr i8, ptr {self._array(where)}, i64 {size * where.row}"), size, 0
    else:
      base = self._slot(self.w.slot[table] if where is None else self.w.slot[where])
    integers, t = v["i"], _TYPES[kind] if kind != "p" else "i8" if size == 1 else "i32"
    out = "poison"
    for i in range(self.lanes):
      at = self.new(f"sext i32 {self.new(f'extractelement {integers} {index}, i32 {i}')} to i64")
      place = self.new(f"add i64 {self.new(f'mul i64 {at}, {step}')}, {lane * i}")
      x = self.new(f"load {t}, ptr {self.new(f'getelementptr i8, ptr {base}, i64 {place}')}")
      out = self.new(f"insertelement <{self.lanes} x {t}> {out}, {t} {x}, i32 {i}")
    return self.new(f"icmp ne <{self.lanes} x {t}> {out}, zeroinitializer") if kind == "p" else out


def _bytes(kind: str) -> int:
  return 1 if kind == "p" else 4


# ------------------------------------------------------------------------------------------------------------- machine code

_ATTRIBUTES = 'attributes #0 = { noinline nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
_MOST_WORKERS = 8  # threads that compile a kernel

_made: dict[str, Any] = {}  # machine code by name; never freed, as it is not known which programs call it
_making = threading.Lock()


def call(p: Program, inputs: Sequence[jax.Array], outs: Sequence[np.ndarray], dtypes: Sequence[Any], worlds: int) -> list[Any]:
  """Return the results of a scalar program, computed by its kernel on CPU.

  Arrays of many worlds are (worlds, ...), as users' arrays are, so that XLA moves nothing. Arrays of one world are (..., 1).
  """
  sizes = [x.size // worlds for x in inputs]
  functions, entry, size, used = kernel(p, sizes, outs, 1 if worlds == 1 else lanes())
  axis = 0 if worlds > 1 else -1
  shapes = [jax.ShapeDtypeStruct(wide(x.shape, worlds, axis), dtype) for x, dtype in zip(outs, dtypes, strict=True)]
  given, memory = [*inputs, *p.tables], jax.ShapeDtypeStruct((size,), np.uint8)
  return list(jax.ffi.ffi_call(_target(functions, entry), [*shapes, memory])(*(given[k] for k in used)))[:-1]


KERNELS = workarounds.Borrowed(
  "machine code of the engine's own on CPU",
  "llvmlite, and `jax.ffi` with the binary interface of XLA's handlers: documented, and probed as a whole.",
  "XLA compiles every step: steps of batches take two to five times as long, and to compile them takes twice as long.",
  "Nothing of it is to go.",
  lambda: probe(call, (1, 21), 0, 1e-6),
)


@functools.cache
def _host() -> tuple[str, str, int]:
  """Return the processor's name, its features, and the number of float32 numbers in one of its vectors."""
  llvm = _llvm()
  name = llvm.get_host_cpu_name()
  try:
    features = llvm.get_host_cpu_features()
  except RuntimeError:  # LLVM does not know the features
    return name, "", 4
  return name, features.flatten(), 16 if features.get("avx512f") else 8 if features.get("avx") else 4


def lanes() -> int:
  """Return the number of worlds that go through a kernel's code at a time, if there are several worlds."""
  return _host()[2]


def _target(functions: Sequence[str], entry: str) -> str:
  """Return the name under which XLA finds the machine code of a kernel; compile and register the code at the first call."""
  key = hashlib.sha256(repr((functions, entry, _host(), _llvm().llvm_version_info)).encode()).hexdigest()[:32]
  name = f"mjx_lite_{key}"
  with _making:
    if name not in _made:
      engine = _linked(_stored(key, lambda: _objects(functions, entry)))
      start = ctypes.CFUNCTYPE(None)(engine.get_function_address("step"))
      jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(start), "cpu")
      _made[name] = engine
  return name


def _stored(key: str, make: Callable[[], list[bytes]]) -> list[bytes]:
  """Return object files from `make`, or from JAX's compilation cache on disk if it is on and holds them."""
  folder, is_kept = (jax.config.values[f"jax_{name}"] for name in ("compilation_cache_dir", "enable_compilation_cache"))
  if not folder or not is_kept or "://" in folder:
    return make()
  file = pathlib.Path(folder, f"mjx_lite-{key}.npz")
  if file.exists():
    with np.load(file) as parts:
      return [x.tobytes() for x in parts.values()]
  made = make()
  file.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.NamedTemporaryFile(dir=folder, delete=False) as new:
    np.savez(new, *(np.frombuffer(x, np.uint8) for x in made))
  os.replace(new.name, file)  # atomic: other processes see a complete file or none
  return made


def _objects(functions: Sequence[str], entry: str) -> list[bytes]:
  """Return the object files of a kernel, compiled in parallel threads."""
  workers = min(os.cpu_count() or 1, _MOST_WORKERS) if workarounds.works(workarounds.EMIT) else 1
  texts = modules(functions, entry, workers)
  with workarounds.no_scheduler(_llvm()), concurrent.futures.ThreadPoolExecutor(workers) as pool:
    return list(pool.map(_object, texts))


def modules(functions: Sequence[str], entry: str, workers: int) -> list[str]:
  """Return the LLVM assembly of a kernel as modules of about equal length, with the entry in the first module."""
  shares = [list(functions[k::workers]) for k in range(workers)]
  elsewhere = [k for k in range(len(functions)) if k % workers]
  shares[0] += [entry, *(f"declare void @part{k}(ptr, ptr, ptr, ptr, ptr)" for k in elsewhere)]
  called = set(re.findall(r"call (\S+|<[^>]+>) (@llvm\.[\w.]+)\((\w+|<[^>]+>)", "\n".join((*functions, entry))))
  head = [f"declare {out} {name}({of}{', ' + of if 'umin' in name else ''})" for out, name, of in sorted(called)]
  return ["\n".join((*head, *share, _ATTRIBUTES, "")) for share in shares if share]


def _machine() -> Any:
  name, features, _ = _host()
  return _llvm().Target.from_default_triple().create_target_machine(name, features, opt=1, jit=True, codemodel="jitdefault")


def _object(text: str) -> bytes:
  """Return the object file of a module."""
  llvm = _llvm()
  return workarounds.emit_object(llvm, _machine(), llvm.parse_assembly(text, llvm.create_context()))


def _linked(objects: Sequence[bytes]) -> Any:
  """Return an engine of LLVM that holds the machine code in memory."""
  llvm = _llvm()
  engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", llvm.create_context()), _machine())
  for x in objects:
    engine.add_object_file(llvm.ObjectFileRef.from_data(x))
  engine.finalize_object()
  return engine
