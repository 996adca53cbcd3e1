"""Scalar rules of elementwise operations.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_ptx.py.
"""

import functools
import math
from typing import Any

import numpy as np

from mjx_lite.compiler.scalars import COMPARES, RULES, TYPES, Program, Unsupported, kind_of, rule


def _elementwise(name: str, op: str) -> None:
  def apply(p, eqn, *xs):
    if op in COMPARES:
      if kind_of(eqn.invars[0].aval.dtype) == "p":
        if op not in ("eq", "ne"):
          raise Unsupported(f"operation {name} of bool has no rule")
        out = p.map("xor", "p", *xs)
        return out if op == "ne" else p.map("not", "p", out)
      return p.map(op, "p", *xs)
    return p.map(op, kind_of(eqn.outvars[0].aval.dtype), *xs)

  RULES[name] = apply


for _name in ("add", "sub", "mul", "div", "neg", "abs", "min", "max", "floor", "ceil", "sqrt", "and", "or", "xor", "not", "rem",
              "eq", "ne", "lt", "le", "gt", "ge"):  # fmt: skip
  _elementwise(_name, _name)


for _name, _op in (("add_any", "add"), ("le_to", "le"), ("lt_to", "lt"), ("shift_left", "shl"), ("shift_right_logical", "shr"),
                   ("shift_right_arithmetic", "shr")):  # fmt: skip
  _elementwise(_name, _op)


for _name in ("copy", "copy_p", "name", "stop_gradient", "optimization_barrier"):
  RULES[_name] = lambda p, eqn, *xs: list(xs[: len(eqn.outvars)])


@rule("round")
def _round(p, eqn, x):
  if int(eqn.params["rounding_method"]) != 1:
    raise Unsupported("operation round has a rule only for rounding to the nearest even number")
  return p.map("round", "f", x)


@rule("reduce_precision")
def _reduce_precision(p, eqn, x):
  if eqn.params["exponent_bits"] < 8 or eqn.params["mantissa_bits"] < 23:
    raise Unsupported("operation reduce_precision has no rule for fewer bits than float32 has")
  return x


@rule("sign")
def _sign(p, eqn, x):
  kind = kind_of(eqn.invars[0].aval.dtype)
  zero, one, less = (p.constant(np.array(v, TYPES[kind])) for v in (0, 1, -1))
  negative = p.map("select", kind, p.map("lt", "p", x, zero), less, x)
  return p.map("select", kind, p.map("gt", "p", x, zero), one, negative)


@rule("square")
def _square(p, eqn, x):
  return p.map("mul", kind_of(eqn.outvars[0].aval.dtype), x, x)


@rule("rsqrt")
def _rsqrt(p, eqn, x):
  return p.map("div", "f", p.constant(np.float32(1)), p.map("sqrt", "f", x))


@rule("integer_pow")
def _integer_pow(p, eqn, x):
  kind, n = kind_of(eqn.outvars[0].aval.dtype), eqn.params["y"]
  out, power, k = None, x, abs(n)
  while k:
    if k & 1:
      out = power if out is None else p.map("mul", kind, out, power)
    power, k = p.map("mul", kind, power, power), k >> 1
  out = p.constant(np.ones(x.shape, TYPES[kind])) if out is None else out
  return p.map("div", kind, p.constant(np.array(1, TYPES[kind])), out) if n < 0 else out


@rule("is_finite")
def _is_finite(p, eqn, x):
  return p.map("lt", "p", p.map("abs", "f", x), p.constant(np.float32(np.inf)))


@rule("clamp")
def _clamp(p, eqn, low, x, high):
  kind = kind_of(eqn.outvars[0].aval.dtype)
  return p.map("min", kind, p.map("max", kind, x, low), high)


@rule("select_n")
def _select_n(p, eqn, which, *cases):
  kind = kind_of(eqn.outvars[0].aval.dtype)
  if kind_of(eqn.invars[0].aval.dtype) == "p":
    return p.map("select", kind, which, cases[1], cases[0])
  out = cases[-1]
  for k in range(len(cases) - 2, -1, -1):
    out = p.map("select", kind, p.map("le", "p", which, p.constant(np.int32(k))), cases[k], out)
  return out


@rule("convert_element_type")
def _convert_element_type(p, eqn, x):
  before, after = (kind_of(v.aval.dtype) for v in (eqn.invars[0], eqn.outvars[0]))
  if before == after:
    return x
  if after == "p":
    return p.map("ne", "p", x, p.constant(np.array(0, TYPES[before])))
  if before == "p":
    return p.map("select", after, x, *(p.constant(np.array(v, TYPES[after])) for v in (1, 0)))
  return p.map("convert", after, x)


@rule("bitcast_convert_type")
def _bitcast_convert_type(p, eqn, x):
  return p.map("bits", kind_of(eqn.outvars[0].aval.dtype), x)


def _one(p: Program, value: Any, kind: str = "f") -> np.ndarray:
  return p.constant(np.array(value, TYPES[kind]))


_LOG2E, _LN2 = 1.44269504088896341, (0.693359375, -2.12194440e-4)  # 1 / ln 2, and ln 2 in two parts


@rule("exp")
def _exp(p, eqn, x):
  """Compute exp as 2 to an integer power times 2 to the remainder; the error is a few units in the last place."""
  const = functools.partial(_one, p)
  inside = p.map("max", "f", p.map("min", "f", x, const(88.7228)), const(-87.3365))
  n = p.map("round", "f", p.map("mul", "f", inside, const(_LOG2E)))
  rest = p.map("sub", "f", inside, p.map("mul", "f", n, const(_LN2[0])))
  rest = p.map("sub", "f", rest, p.map("mul", "f", n, const(_LN2[1])))
  whole = p.map("add", "i", p.map("convert", "i", n), const(126, "i"))
  whole = p.map("bits", "f", p.map("shl", "i", whole, const(23, "i")))
  out = p.map("mul", "f", p.map("mul", "f", p.map("exp2", "f", p.map("mul", "f", rest, const(_LOG2E))), whole), const(2))
  out = p.map("select", "f", p.map("gt", "p", x, const(88.7228)), const(np.inf), out)
  out = p.map("select", "f", p.map("lt", "p", x, const(-87.3365)), const(0), out)
  return p.map("select", "f", p.map("ne", "p", x, x), x, out)


_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


@rule("log")
def _log(p, eqn, x):
  """Compute log by a polynomial for the mantissa.

  Source: Cephes Mathematical Library, `logf` (Moshier).
  """
  const = functools.partial(_one, p)
  add, mul, sub = (functools.partial(p.map, op, "f") for op in ("add", "mul", "sub"))
  bits = p.map("bits", "i", x)
  power = p.map("sub", "i", p.map("shr", "i", bits, const(23, "i")), const(126, "i"))
  m = p.map("or", "i", p.map("and", "i", bits, const(0x7FFFFF, "i")), const(0x3F000000, "i"))
  m = p.map("bits", "f", m)  # from 1/2 to 1
  small = p.map("lt", "p", m, const(math.sqrt(0.5)))
  e = p.map("convert", "f", p.map("sub", "i", power, p.map("select", "i", small, const(1, "i"), const(0, "i"))))
  f = sub(p.map("select", "f", small, add(m, m), m), const(1))
  z = mul(f, f)
  y = mul(mul(functools.reduce(lambda s, c: add(mul(s, f), const(c)), _LOG[1:], const(_LOG[0])), f), z)
  y = sub(add(y, mul(e, const(_LN2[1]))), mul(const(0.5), z))
  out = add(add(f, y), mul(e, const(_LN2[0])))
  out = p.map("select", "f", p.map("eq", "p", x, const(np.inf)), x, out)
  out = p.map("select", "f", p.map("lt", "p", x, const(np.finfo(np.float32).tiny)), const(-np.inf), out)
  return p.map("select", "f", p.map("ge", "p", x, const(0)), out, const(np.nan))


@rule("expm1")
def _expm1(p, eqn, x):
  """Compute expm1 by Kahan's formula (u - 1) x / log u with u = exp x, in which the errors cancel.

  Source: Higham, Accuracy and Stability of Numerical Algorithms.
  """
  one = p.constant(np.float32(1))
  u = _exp(p, eqn, x)
  less = p.map("sub", "f", u, one)
  out = p.map("mul", "f", less, p.map("div", "f", x, _log(p, eqn, u)))
  out = p.map("select", "f", p.map("eq", "p", u, one), x, out)
  is_far = p.map("gt", "p", p.map("abs", "f", x), p.constant(np.float32(17)))
  return p.map("select", "f", is_far, less, out)
