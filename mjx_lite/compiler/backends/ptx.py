"""PTX back end: a scalar program becomes one kernel of an NVIDIA GPU, with one thread for each world.

XLA compiles a step to hundreds of kernels, each of which reads the results of others from memory. Here a step is one kernel. A
thread keeps some numbers in registers and all other numbers in its local memory (`ptx_registers.py`). So the assembler need not
choose the spills, for which it takes three times as long. Straight-line code is too long for the instruction cache, and takes
at least six cycles an operation, whether a multiprocessor has one warp or eight.

XLA computes a program that has too many operations, or one without a scalar form, as on other devices, with the same results.
XLA also computes derivatives. The environment variable MJX_LITE_KERNELS=0, when mjx_lite is imported, leaves everything to XLA.

Source: NVIDIA, PTX ISA 8.0. XLA's custom call that takes PTX is no stable interface (`workarounds.ptx_call`).
"""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mjx_lite.compiler import workarounds
from mjx_lite.compiler.backends.ptx_registers import Registers
from mjx_lite.compiler.kernels import probe, wide
from mjx_lite.compiler.operations import TYPES, WIDE, Load, Loop, Place
from mjx_lite.compiler.scalars import Program, Unsupported

_IS_WANTED = os.environ.get("MJX_LITE_KERNELS") != "0"
LOOP = 100_000  # numbers of a loop in all its iterations, above which each iteration is a kernel of its own
_LEAST = 8.0  # compute capability, for `min.NaN`

_DISTANCE = 200  # lines by which a load precedes the use of its number
_ADDRESSES = 6  # addresses of inputs and outputs that a thread keeps in registers
_MAX_LINES = 250_000  # lines of a kernel: about a minute for the driver
_THREADS = 32  # threads of a block

_MAX_BYTES = 1 << 31  # bytes of an input or a result

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
_ROWS = frozenset(("param", "after", "table", "loop"))  # operations with consecutive slots, which are not freed one by one
_COMPARES = {"eq": "eq", "ne": "neu", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}

_Finish = Callable[[str, str], None]  # function of a root's register and kind
_Root = tuple[int, _Finish]
_Step = tuple[int, _Finish | None]  # a number to compute, or a root to finish


def why_off(dtype: str = "float32") -> str:
  """Return the first reason why steps of a dtype do not run as such kernels on the local GPU, "" if they do.

  Without a local GPU a program can only be lowered for one, so nothing is probed.
  """
  if not _IS_WANTED:
    return "the environment variable MJX_LITE_KERNELS is 0"
  if dtype != "float32":
    return f"the model is {dtype}, and kernels of a GPU are float32"
  if jax.default_backend() != "gpu":
    return ""
  if any(float(getattr(x, "compute_capability", 0) or 0) < _LEAST for x in jax.local_devices()):
    return (
      f"the GPU has no compute capability, or one below {_LEAST}: kernels are for NVIDIA GPUs of capability {_LEAST} and above"
    )
  return "" if workarounds.works(KERNELS) else "the probe of the GPU's kernels failed"


def kernel(p: Program, inputs: int, outs: Sequence[np.ndarray], worlds: int) -> tuple[str, list[int]]:
  """Return the PTX of a kernel `step` that computes arrays of numbers for all worlds, and the indices of its parameters.

  The indices count the inputs, the program's tables, and the results (n, worlds), in this order. The kernel's parameters are
  the addresses of the arrays that it reads or writes.
  """
  if found := WIDE & p.computed:
    names = ", ".join(sorted(TYPES[kind].__name__ for kind in found))
    raise Unsupported(f"kernels of a GPU have no numbers of 64 bits ({names})")
  w = _Writer(p, inputs, worlds)
  first = inputs + len(p.tables)

  def store(buffer, row):
    return lambda register, kind: w.store_global(first + buffer, row, register, kind)

  roots = [(int(k), store(b, row)) for b, x in enumerate(outs) for row, k in enumerate(x.ravel())]
  w.block(roots, 0)
  used = sorted(w.used.union(range(first, first + len(outs))))
  if len(w.lines) > _MAX_LINES:
    raise Unsupported(f"a kernel of {len(w.lines)} lines is too large; the limit is {_MAX_LINES} lines")
  names = ", ".join(f".param .u64 a{k}" for k in used)
  head = [
    ".version 8.0", ".target sm_80", ".address_size 64", f".visible .entry step({names})", f".maxntid {_THREADS}, 1, 1", "{",
    *(f".reg .{t} {r}<{w.count[r] + 1}>;" for r, t in (("%f", "f32"), ("%r", "b32"), ("%p", "pred"), ("%d", "b64"))),
    f".local .align 4 .b8 own[{4 * max(w.most, 1)}];", ".reg .b64 %own, %mine;", ".reg .b32 %world, %block, %thread, %zero;",
    # %own and %mine are one address; if the assembler knew, it would keep the stored numbers in registers
    "mov.u64 %own, own;", "mov.u32 %zero, %ctaid.y;", "mad.wide.u32 %mine, %zero, 4, %own;",
    "mov.u32 %block, %ctaid.x;", "mov.u32 %thread, %tid.x;", f"mad.lo.u32 %world, %block, {_THREADS}, %thread;",
    f"setp.ge.u32 %p0, %world, {worlds};", "@%p0 bra END;",
  ]  # fmt: skip
  return "\n".join([*head, *_loads_ahead(w.lines), "END:", "ret;", "}", ""]), used


def _loads_ahead(lines: list[str]) -> list[str]:
  """Return the lines with each load moved ahead of the use of its number, to hide the latency of the memory."""
  earlier: dict[int, list[str]] = {}
  stored: dict[str, int] = {}  # line after the last store, by offset in local memory
  available: dict[str, int] = {}  # line from which an address is available, by register
  barrier, moved = 0, set()
  for k, line in enumerate(lines):
    name, _, operands = line.partition(" ")
    if name.startswith("st.local"):
      stored[_offset(operands)] = k + 1
    if line.endswith(":") or "bra " in line:
      barrier = k + 1
    first, distance, result = k, _DISTANCE, ""
    if name.startswith("ld.local") and "[%own+" in line:
      first = stored.get(_offset(operands), 0)
    elif name.startswith("ld.global") and (base := operands[operands.index("[") + 1 :].partition("+")[0]) in available:
      first = available[base]
    elif name == "ld.param.u64" or (name == "mad.wide.u32" and " %world," in operands):
      result, *_, base = operands.rstrip(";").split(", ")
      first, distance = available.get(base, 0), 2 * _DISTANCE
    first = max(barrier, first, k - distance)
    if result:
      available[result] = first if first < k else k + 1
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
  """Writer of PTX lines; it keeps the locations of numbers that later lines use."""

  def __init__(self, p: Program, inputs: int, worlds: int):
    self.p, self.inputs, self.worlds = p, inputs, worlds
    self.lines: list[str] = []
    self.count = {"%f": 0, "%r": 0, "%p": 0, "%d": 0}
    self.slot: dict[int, int] = {}  # position in local memory, by number
    self.free: list[int] = []
    self.size = self.most = 0
    self.label = 0
    self.used: set[int] = set()  # indices of the kernel's parameters
    self._forget()

  def _forget(self) -> None:
    self.addresses: dict[tuple[int, bool], str] = {}

  def _register(self, prefix: str) -> str:
    self.count[prefix] += 1
    return f"{prefix}{self.count[prefix]}"

  # ------------------------------------------------------------------------------------------------------------- memory

  def _slots(self, n: int) -> int:
    """Return the first of n new consecutive slots."""
    self.size += n
    self.most = max(self.most, self.size)
    return self.size - n

  def _global(self, buffer: int, per_world: bool, kind: str) -> str:
    """Return a register with the address of an input or result; the address of the thread's world if `per_world`."""
    key = buffer, per_world
    found = self.addresses.pop(key, None)
    if found is None:
      self.used.add(buffer)
      found = self._register("%d")
      self.lines.append(f"ld.param.u64 {found}, [a{buffer}];")
      if per_world:
        base, found = found, self._register("%d")
        self.lines.append(f"mad.wide.u32 {found}, %world, {_bytes(kind)}, {base};")
      if len(self.addresses) >= _ADDRESSES:
        del self.addresses[next(iter(self.addresses))]
    self.addresses[key] = found
    return found

  def _parameter(self, load: Load) -> int:
    """Return the index of the parameter of an input, or of a table, whose `buffer` is negative."""
    return load.buffer if load.buffer >= 0 else self.inputs - load.buffer - 1

  def _address(self, load: Load, kind: str) -> str:
    """Return the address of a number, as a register and an offset in bytes."""
    row = _bytes(kind) * load.row * (self.worlds if load.per_world else 1)
    if row + 4 * self.worlds >= _MAX_BYTES:
      raise Unsupported(f"an array of the kernel exceeds the limit of {_MAX_BYTES >> 30} GB")
    return f"{self._global(self._parameter(load), load.per_world, kind)}+{row}"

  def load_global(self, load: Load, kind: str) -> str:
    """Write the load of an input's number; return the register."""
    address = self._address(load, kind)
    return self._loaded(f"ld.global.nc{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]}", address, kind)

  def _loaded(self, name: str, address: str, kind: str) -> str:
    """Write the load `name` from an address; return the register."""
    register = self._register("%r" if kind == "p" else _REGISTER[kind])
    self.lines.append(f"{name} {register}, [{address}];")
    if kind != "p":
      return register
    flag = self._register("%p")
    self.lines.append(f"setp.ne.u32 {flag}, {register}, 0;")
    return flag

  def store_global(self, buffer: int, row: int, register: str, kind: str) -> None:
    """Write the store of a register in a row of a result."""
    address = self._address(Load(buffer, row, True), kind)
    self.lines.append(f"st.global{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]} [{address}], {self._number(register, kind)};")

  def _number(self, register: str, kind: str) -> str:
    """Return a register that can be stored; for a truth value it holds 0 or 1."""
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

  # ------------------------------------------------------------------------------------------------- straight-line code

  def block(self, roots: Sequence[_Root], depth: int) -> None:
    """Write code that computes the roots in a loop of a depth, and pass each root's register to its function at once."""
    p = self.p
    steps = self._steps(roots, depth)
    stored: list[int] = []  # numbers to which this block gave a slot

    def spill(k, register):
      if k not in self.slot and p.op[k] != "load":
        self.slot[k] = self.free.pop() if self.free else self._slots(1)
        stored.append(k)
        self.store_own(self.slot[k], register, p.kind[k])

    registers = Registers(p, self._uses(steps), self._operand, spill)
    for at, step in enumerate(steps):
      reads = self._read(step)
      self._step(at, step, reads, registers)
      for a in set(reads):
        if registers.used(a, at) and a in self.slot and p.op[a] not in _ROWS and p.depth[a] == depth:
          self.free.append(self.slot.pop(a))
    for k in stored:
      if k in self.slot:
        self.free.append(self.slot.pop(k))

  def _step(self, at: int, step: _Step, reads: Sequence[int], registers: Registers) -> None:
    """Write the code of the step at an index, which reads the numbers `reads`."""
    p = self.p
    k, finish = step
    if finish is not None:
      finish(registers.operand(k), p.kind[k])
    elif p.op[k] == "loop":
      registers.clear(at)
      self._loop(k)
    elif p.op[k] == "table":
      if reads:
        first = self.slot[k] = self._slots(len(p.args[k]))
        for i, a in enumerate(p.args[k]):
          self.store_own(first + i, registers.operand(a), p.kind[a])
    elif p.op[k] == "after":
      self.slot[k] = self.slot[p.args[k][0]] + p.payload[k]
    else:
      pinned = set(reads)
      operands = [registers.operand(a, pinned) for a in reads if p.op[a] != "table"]
      registers.keep(k, self._instruction(k, operands), pinned)

  def _uses(self, steps: Sequence[_Step]) -> dict[int, list[int]]:
    """Return the steps that read each number, as indices in descending order."""
    uses: dict[int, list[int]] = {}
    for at in range(len(steps) - 1, -1, -1):
      for a in self._read(steps[at]):
        uses.setdefault(a, []).append(at)
    return uses

  def _steps(self, roots: Sequence[_Root], depth: int) -> list[_Step]:
    """Return the numbers to compute, each after its operands, and each root with the function that takes its register."""
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

  def _read(self, step: _Step) -> tuple[int, ...]:
    """Return the numbers that a step reads from registers."""
    k, finish = step
    p = self.p
    if finish is not None:
      return (k,)
    if p.op[k] == "table" and self._in_place(k) is not None:
      return ()
    return p.args[k]

  def _in_place(self, table: int) -> Place | None:
    """Return where a table is in memory already; None for results of a loop, which have to be computed first."""
    found = self.p.payload.get(table)
    return None if found is None or (not isinstance(found.first, Load) and self.p.op[found.first] == "after") else found

  def _constant(self, k: int) -> str:
    p = self.p
    kind, value = p.kind[k], p.payload[k]
    if kind == "f":
      return f"0f{struct.unpack('I', struct.pack('f', value))[0]:08X}"
    if kind != "p":
      return str(value)
    flag = self._register("%p")
    self.lines.append(f"setp.eq.u32 {flag}, {int(not value)}, 0;")
    return flag

  def _instruction(self, k: int, x: list[str]) -> str:
    """Write an operation; return the register of its result."""
    p = self.p
    op, kind = p.op[k], p.kind[k]
    source = p.kind[p.args[k][0]]  # kind of the operands
    if op == "fetch":
      return self._fetch(p.args[k][0], x[-1], kind)
    if op == "put":
      op, is_here = "select", self._register("%p")
      self.lines.append(f"setp.eq.s32 {is_here}, {x[1]}, {p.payload[k]};")
      x = [is_here, x[2], x[0]]
    out = self._register(_REGISTER[kind])
    if op in _COMPARES:
      name = f"setp.{_COMPARES[op] if source == 'f' or op != 'ne' else 'ne'}.{_SUFFIX[source]}"
    elif op == "select" and kind == "p":
      no, a, b = (self._register("%p") for _ in range(3))
      self.lines += [f"not.pred {no}, {x[0]};", f"and.pred {a}, {x[0]}, {x[1]};", f"and.pred {b}, {no}, {x[2]};"]
      name, x = "or.pred", [a, b]
    elif op == "select":
      name, x = f"selp.{_SUFFIX[kind]}", [x[1], x[2], x[0]]
    elif op == "convert":
      name = _CONVERT.get(source + kind, "mov.b32")
    elif op == "bits":
      name = "mov.b32"
    elif op in _SAME_BITS:
      name = f"{op}.{'pred' if kind == 'p' else 'b32'}"
    elif op in _PLAIN and (kind, op) != ("f", "rem"):
      name = _NAMES.get((kind, op), f"{op}.{_SUFFIX[kind]}")
    else:
      raise Unsupported(f"PTX code has no operation {op} of {_SUFFIX[kind]}")
    self.lines.append(f"{name} {out}, {', '.join(x)};")
    return out

  def _fetch(self, table: int, index: str, kind: str) -> str:
    """Load the entry of a table at an index; return its register."""
    source = self._in_place(table)
    entry = self._register("%d")  # address of the entry
    load = None if source is None else source.first
    if source is not None and isinstance(load, Load):
      base = self._global(self._parameter(load), load.per_world, kind)
      size = _bytes(kind) * (self.worlds if load.per_world else 1)
      self.lines.append(f"mad.wide.u32 {entry}, {index}, {size * source.step}, {base};")
      return self._loaded(f"ld.global.nc{'.u8' if kind == 'p' else '.' + _SUFFIX[kind]}", f"{entry}+{size * load.row}", kind)
    assert not isinstance(load, Load)
    first = self.slot[table if load is None else load]
    self.lines.append(f"mad.wide.u32 {entry}, {index}, {4 * (1 if source is None else source.step)}, %own;")
    return self._loaded(f"ld.local.{'u32' if kind == 'p' else _SUFFIX[kind]}", f"{entry}+{4 * first}", kind)

  # --------------------------------------------------------------------------------------------------------------- loops

  def _loop(self, k: int) -> None:
    """Write a loop. Threads whose worlds do not proceed leave the loop."""
    p = self.p
    loop: Loop = p.payload[k]
    n = len(loop.params)
    changed = [i for i, a in enumerate(loop.last) if a != loop.params[i]]
    first, new = self._slots(n), self._slots(len(changed))
    self._forget()
    self.slot[k] = first
    for i, (param, start) in enumerate(zip(loop.params, loop.first, strict=True)):
      self.slot[param] = first + i
      self.store_own(first + i, self._operand(start), p.kind[start])
    self.label += 1
    begin, end = f"LOOP{self.label}", f"DONE{self.label}"
    self.lines.append(f"{begin}:")
    self._forget()

    def leave(register, kind):
      no = self._register("%p")
      self.lines.extend([f"not.pred {no}, {register};", f"@{no} bra {end};"])

    self.block([(loop.proceeds, leave)], loop.depth)

    def store(slot):
      return lambda register, kind: self.store_own(slot, register, kind)

    self.block([(loop.last[i], store(new + j)) for j, i in enumerate(changed)], loop.depth)
    for j, i in enumerate(changed):
      self.store_own(first + i, self.load_own(new + j, p.kind[loop.params[i]]), p.kind[loop.params[i]])
    self.lines += [f"bra {begin};", f"{end}:"]
    self._forget()

  def _operand(self, k: int) -> str:
    """Return an operand for a number that is in no register: a constant, or a register after a load."""
    p = self.p
    if p.op[k] == "const":
      return self._constant(k)
    return self.load_global(p.load(k), p.kind[k]) if p.op[k] == "load" else self.load_own(self.slot[k], p.kind[k])


def _bytes(kind: str) -> int:
  return 1 if kind == "p" else 4


def call(p: Program, inputs: Sequence[jax.Array], outs: Sequence[np.ndarray], dtypes: Sequence[Any], worlds: int) -> list[Any]:
  """Return the results (..., worlds) of a scalar program, computed by one kernel on an NVIDIA GPU.

  The world axis is the last one, so that neighbouring threads read neighbouring numbers.
  """
  text, used = kernel(p, len(inputs), outs, worlds)
  shapes = [jax.ShapeDtypeStruct(wide(x.shape, worlds, -1), dtype) for x, dtype in zip(outs, dtypes, strict=True)]
  arrays = [*inputs, *p.tables]
  read = [arrays[k] for k in used if k < len(arrays)]
  return workarounds.ptx_call(text, "step", read, shapes, -(-worlds // _THREADS), _THREADS)


KERNELS = workarounds.Borrowed(
  "one kernel of a step on NVIDIA GPUs",
  "XLA's custom call `__gpu$xla.gpu.ptx`, which takes a kernel's text.",
  "XLA makes hundreds of kernels of a step, which take several times as long.",
  "The custom call can go once `jax.ffi` takes a kernel as text, or the engine brings a handler of its own that launches it.",
  lambda: probe(call, (21,), -1, 1e-5),
)
