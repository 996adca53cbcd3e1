"""Operations of a kernel on CPU as lines of LLVM assembly, on vectors of as many worlds as lanes.

Tests: tests/compiler/test_llvm.py.
"""

import struct
from typing import Any

import numpy as np

from mjx_lite.compiler.backends.llvm_memory import TYPES, nbytes
from mjx_lite.compiler.operations import FLOATS, SIGNED
from mjx_lite.compiler.scalars import Unsupported

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


class Code:
  """Writer of lines of assembly.

  Attributes:
    lanes: numbers of a vector.
    vector: LLVM's type of a vector, by the kind of its numbers.
    lines: the code.
  """

  def __init__(self, lanes: int, vector: dict[str, str]):
    self.lanes, self.vector = lanes, vector
    self.lines: list[str] = []
    self._count = 0

  def new(self, text: str) -> str:
    """Add a line with a value, and return the value's name."""
    self._count += 1
    self.lines.append(f"%{self._count} = {text}")
    return f"%{self._count}"

  def constant(self, value: Any, kind: str) -> str:
    """Return a vector of a constant."""
    if kind in FLOATS:  # LLVM writes float, too, by the bits of a double
      text = f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"
    else:
      text = str(int(value)) if kind != "p" else "true" if value else "false"
    return f"splat ({TYPES[kind]} {text})"

  def operation(self, op: str, kind: str, source: str, x: list[str]) -> str:
    """Write an operation with a result of a kind, on operands x of the kind `source`; return the result's name."""
    new, t, v = self.new, self.vector[kind], self.vector
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
      return new(f"xor {t} {x[0]}, {self.constant(True if kind == 'p' else -1, kind)}")
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
      out = self.constant(first, kind)
      for c in rest:
        out = new(f"fadd contract {t} {new(f'fmul contract {t} {out}, {x[0]}')}, {self.constant(c, kind)}")
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
    new, t, p = self.new, self.vector[kind], self.vector["p"]
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


def _conversion(source: str, kind: str) -> str:
  """Return LLVM's instruction that converts numbers of a kind to another kind."""
  if source in FLOATS and kind in FLOATS:
    return "fpext" if kind == "d" else "fptrunc"
  if source in FLOATS:
    return "fptosi" if kind in SIGNED else "fptoui"
  if kind in FLOATS:
    return "sitofp" if source in SIGNED else "uitofp"
  return "trunc" if nbytes(kind) < nbytes(source) else "sext" if source in SIGNED else "zext"
