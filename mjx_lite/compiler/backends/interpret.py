"""Interpreter in NumPy of the PTX that `ptx.py` writes, for all threads at once: a test of the PTX needs no GPU."""

import re
from typing import Any

import numpy as np

_TYPES = {"f32": np.float32, "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "u8": np.uint8, "b64": np.int64,
          "u64": np.int64}  # fmt: skip
_LINE: Any = re.compile(r"(?:@(%\w+) )?([\w.]+)(?: (.*))?;")


def run(text: str, inputs: list[np.ndarray], results: list[np.ndarray], worlds: int) -> None:
  """Run a kernel for a number of worlds, and write its results.

  One long loop over the lines: each line is one case of what a thread does.

  Args:
    text: the kernel's PTX.
    inputs: the arrays that the kernel's first parameters are the addresses of.
    results: the arrays of the other parameters, which are written.
    worlds: number of worlds; threads come in groups of 32.
  """
  lines = text.splitlines()
  code = lines[lines.index("{") + 1 :]
  parameters = re.findall(r"\.param \.u64 (\w+)", text)
  labels = {line[:-1]: k for k, line in enumerate(code) if line.endswith(":")}
  (size,) = (int(x) // 4 for x in re.findall(r"own\[(\d+)\]", text))
  threads = -(-worlds // 32) * 32
  own = np.full((size, threads), 0x7FC12345, np.uint32)  # what was not written is not a number
  flat = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (*inputs, *results)]
  bases = np.cumsum([0, *(len(x) + 4096 for x in flat)])
  memory = np.zeros(bases[-1], np.uint8)
  for base, x in zip(bases, flat, strict=False):
    memory[base : base + len(x)] = x
  registers = {"%tid.x": np.arange(threads, dtype=np.uint32) % 32, "%ctaid.x": np.arange(threads, dtype=np.uint32) // 32,
               "%ctaid.y": np.zeros(threads, np.uint32), "own": np.zeros(threads, np.int64)}  # fmt: skip
  active = np.ones(threads, bool)
  outer: dict[str, np.ndarray] = {}

  def read(name, kind):
    if name.startswith("0f"):
      return np.full(threads, np.array(int(name[2:], 16), np.uint32).view(np.float32))
    if re.fullmatch(r"-?\d+", name):
      return np.full(threads, int(name), np.int64).astype(_TYPES[kind])
    x = registers[name]
    if kind == "pred" or x.dtype == _TYPES[kind]:
      return x
    return x.view(_TYPES[kind]) if x.itemsize == 4 else x.astype(_TYPES[kind])

  def write(name, x):
    old = registers.get(name)
    x = np.broadcast_to(x, (threads,))
    registers[name] = x.copy() if old is None or active.all() else np.where(active, x, old.view(x.dtype))

  def address(place):
    base, _, offset = place.strip("[]").partition("+")
    return registers[base] + int(offset or 0)

  at = 0
  while True:
    line = code[at]
    at += 1
    if line.endswith(":"):
      outer.setdefault(line[:-1], active.copy())
      continue
    if line == "}" or line.startswith("."):
      continue
    guard, name, rest = _LINE.fullmatch(line).groups()
    x = [y.strip() for y in (rest or "").split(",")]
    part = name.split(".")
    if name == "ret":
      break
    if name == "bra":
      if guard is None:
        if active.any():
          at = labels[x[0]]
        else:
          begin = x[0]
          active = outer.pop(begin)
        continue
      active = active & ~registers[guard]
      if x[0].startswith("DONE") and not active.any():
        active = outer.pop("LOOP" + x[0][4:])
        at = labels[x[0]] + 1
      continue
    kind = part[-1]
    with np.errstate(all="ignore"):
      if part[0] == "ld" and part[1] == "param":
        write(x[0], np.full(threads, bases[parameters.index(x[1].strip("[]"))], np.int64))
      elif part[0] == "ld":
        where = address(x[1])
        if part[1] == "local":
          value = own[np.where(active, where // 4, 0), np.arange(threads)].view(_TYPES[kind])
        else:
          n = np.dtype(_TYPES[kind]).itemsize
          where = np.where(active, where, 0)
          value = np.stack([memory[where + i] for i in range(n)], axis=1).view(_TYPES[kind])[:, 0]
        write(x[0], value.astype(np.uint32) if kind == "u8" else value)
      elif part[0] == "st":
        where, value = address(x[0]), read(x[1], "u32" if kind == "u8" else kind)
        if part[1] == "local":
          own[(where // 4)[active], np.flatnonzero(active)] = value.view(np.uint32)[active]
        else:
          n = np.dtype(_TYPES[kind]).itemsize
          parts = value.astype(_TYPES[kind])[:, None].view(np.uint8)
          for i in range(n):
            memory[where[active] + i] = parts[active, i]
      else:
        write(x[0], _compute(part, x[1:], read, kind))
  for base, x in zip(bases[len(inputs) :], results, strict=False):
    x[...] = memory[base : base + x.nbytes].view(x.dtype).reshape(x.shape)


def _compute(part, names, read, kind):
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
