"""Interpreter in NumPy of the PTX that `ptx.py` writes, for all threads at once: a test of the PTX needs no GPU.

Tests: tests/compiler/test_ptx.py.
"""

import re
from typing import Any

import numpy as np

_TYPES = {"f32": np.float32, "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "u8": np.uint8, "b64": np.int64,
          "u64": np.int64}  # fmt: skip
_LINE: Any = re.compile(r"(?:@(%\w+) )?([\w.]+)(?: (.*))?;")


_UNWRITTEN = 0x7FC12345  # bits of local memory before the first store: not a number
_GAP = 4096  # bytes between arrays, so that a wrong address reads zeros instead of another array


def run(text: str, inputs: list[np.ndarray], results: list[np.ndarray], worlds: int) -> None:
  """Run a kernel for a number of worlds, and write its results.

  Args:
    text: the kernel's PTX.
    inputs: the arrays that the kernel's first parameters are the addresses of.
    results: the arrays of the other parameters, which are written.
    worlds: number of worlds; threads come in groups of 32.
  """
  threads = _Threads(text, [*inputs, *results], worlds)
  threads.run()
  for k, x in enumerate(results, len(inputs)):
    x[...] = threads.array(k, x)


class _Threads:
  """All threads of a kernel, with their registers and memory. Each register is an array with a number for each thread."""

  def __init__(self, text: str, arrays: list[np.ndarray], worlds: int):
    lines = text.splitlines()
    self.code = lines[lines.index("{") + 1 :]
    self.labels = {line[:-1]: k for k, line in enumerate(self.code) if line.endswith(":")}
    self.parameters = re.findall(r"\.param \.u64 (\w+)", text)
    self.threads = n = -(-worlds // 32) * 32
    (size,) = (int(x) // 4 for x in re.findall(r"own\[(\d+)\]", text))
    self.own = np.full((size, n), _UNWRITTEN, np.uint32)  # local memory, a column for each thread
    flat = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays]
    self.bases = np.cumsum([0, *(len(x) + _GAP for x in flat)])  # addresses of the arrays
    self.memory = np.zeros(self.bases[-1], np.uint8)
    for base, x in zip(self.bases, flat, strict=False):
      self.memory[base : base + len(x)] = x
    self.registers = {"%tid.x": np.arange(n, dtype=np.uint32) % 32, "%ctaid.x": np.arange(n, dtype=np.uint32) // 32,
                      "%ctaid.y": np.zeros(n, np.uint32), "own": np.zeros(n, np.int64)}  # fmt: skip
    self.active = np.ones(n, bool)  # threads that run the current line
    self.entered: dict[str, np.ndarray] = {}  # threads that were active where a loop began, by the loop's label

  def array(self, k: int, like: np.ndarray) -> np.ndarray:
    """Return the array of parameter k, with the shape and dtype of another array."""
    return self.memory[self.bases[k] : self.bases[k] + like.nbytes].view(like.dtype).reshape(like.shape)

  def run(self) -> None:
    """Run the code until it returns."""
    at = 0
    while True:
      line = self.code[at]
      at += 1
      if line.endswith(":"):
        self.entered.setdefault(line[:-1], self.active.copy())
      elif line != "}" and not line.startswith("."):
        guard, name, rest = _LINE.fullmatch(line).groups()
        operands = [x.strip() for x in (rest or "").split(",")]
        if name == "ret":
          return
        if name == "bra":
          at = self._branch(guard, operands[0], at)
        else:
          with np.errstate(all="ignore"):
            self._execute(name.split("."), operands)

  def _branch(self, guard: str | None, label: str, following: int) -> int:
    """Return the next line after a branch: the label's, or the following line. Threads that leave a loop become inactive."""
    if guard is None:  # to the begin of a loop
      if self.active.any():
        return self.labels[label]
      self.active = self.entered.pop(label)
      return following
    self.active = self.active & ~self.registers[guard]
    if label.startswith("DONE") and not self.active.any():
      self.active = self.entered.pop("LOOP" + label[4:])
      return self.labels[label] + 1
    return following

  def _execute(self, part: list[str], operands: list[str]) -> None:
    """Execute an instruction, whose name is given in the parts between its dots."""
    kind = part[-1]
    if part[0] == "ld":
      self.write(operands[0], self._loaded(part[1], operands[1], kind))
    elif part[0] == "st":
      self._store(part[1], operands, kind)
    else:
      self.write(operands[0], _compute(part, operands[1:], self.read, kind))

  def _loaded(self, space: str, operand: str, kind: str) -> np.ndarray:
    """Return what a load reads from a state space: `param`, `local` or `global`."""
    if space == "param":
      return np.full(self.threads, self.bases[self.parameters.index(operand.strip("[]"))], np.int64)
    address = np.where(self.active, self._address(operand), 0)
    if space == "local":
      value = self.own[address // 4, np.arange(self.threads)].view(_TYPES[kind])
    else:
      n = np.dtype(_TYPES[kind]).itemsize
      value = np.stack([self.memory[address + i] for i in range(n)], axis=1).view(_TYPES[kind])[:, 0]
    return value.astype(np.uint32) if kind == "u8" else value

  def _store(self, space: str, operands: list[str], kind: str) -> None:
    address, value = self._address(operands[0]), self.read(operands[1], "u32" if kind == "u8" else kind)
    if space == "local":
      self.own[(address // 4)[self.active], np.flatnonzero(self.active)] = value.view(np.uint32)[self.active]
    else:
      parts = value.astype(_TYPES[kind])[:, None].view(np.uint8)
      for i in range(np.dtype(_TYPES[kind]).itemsize):
        self.memory[address[self.active] + i] = parts[self.active, i]

  def _address(self, operand: str) -> np.ndarray:
    base, _, offset = operand.strip("[]").partition("+")
    return self.registers[base] + int(offset or 0)

  def read(self, name: str, kind: str) -> np.ndarray:
    """Return a register or a constant, as numbers of a kind."""
    if name.startswith("0f"):
      return np.full(self.threads, np.array(int(name[2:], 16), np.uint32).view(np.float32))
    if re.fullmatch(r"-?\d+", name):
      return np.full(self.threads, int(name), np.int64).astype(_TYPES[kind])
    x = self.registers[name]
    if kind == "pred" or x.dtype == _TYPES[kind]:
      return x
    return x.view(_TYPES[kind]) if x.itemsize == 4 else x.astype(_TYPES[kind])

  def write(self, name: str, x: np.ndarray) -> None:
    """Write a register of the active threads."""
    old = self.registers.get(name)
    x = np.broadcast_to(x, (self.threads,))
    self.registers[name] = x.copy() if old is None or self.active.all() else np.where(self.active, x, old.view(x.dtype))


def _compute(part, names, read, kind):
  """Return the result of an arithmetic instruction."""
  op = part[0]
  if op == "selp":
    return np.where(read(names[2], "pred"), read(names[0], kind), read(names[1], kind))
  if op == "cvt":
    x = read(names[0], part[-1])
    rounded = {"rmi": np.floor, "rpi": np.ceil, "rni": np.round, "rzi": np.trunc, "rn": lambda v: v}[part[1]](x)
    return rounded.astype(_TYPES[part[2]])
  if op == "mad":
    wide = part[1] == "wide"
    a, b = (read(n, kind).astype(np.int64) for n in names[:2])
    c = read(names[2], "b64" if wide else kind)
    return a * b + c if wide else (a * b + c).astype(_TYPES[kind])
  if op == "mov":
    return read(names[0], kind)
  a = [read(n, kind) for n in names]
  return {
    "add": lambda: a[0] + a[1], "sub": lambda: a[0] - a[1], "mul": lambda: a[0] * a[1], "neg": lambda: -a[0],
    "abs": lambda: abs(a[0]), "min": lambda: np.minimum(*a), "max": lambda: np.maximum(*a), "sqrt": lambda: np.sqrt(a[0]),
    "ex2": lambda: np.exp2(a[0]), "and": lambda: a[0] & a[1], "or": lambda: a[0] | a[1], "xor": lambda: a[0] ^ a[1],
    "not": lambda: ~a[0], "shl": lambda: a[0] << a[1], "shr": lambda: a[0] >> a[1], "rem": lambda: np.fmod(*a),
    "div": lambda: a[0] / a[1] if kind == "f32" else np.trunc(a[0] / a[1]).astype(a[0].dtype),
    "setp": lambda: {"eq": np.equal, "ne": np.not_equal, "neu": np.not_equal, "lt": np.less, "le": np.less_equal,
                     "gt": np.greater, "ge": np.greater_equal}[part[1]](*a),
  }[op]()  # fmt: skip
