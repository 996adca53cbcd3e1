"""Scalar rules of elementwise operations.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_ptx.py.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from mjx_lite.compiler.operations import COMPARES, TYPES
from mjx_lite.compiler.scalars import RULES, Program, Unsupported, kind_of, rule


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


for _name in ("sub", "mul", "div", "neg", "abs", "min", "max", "floor", "ceil", "sqrt", "and", "or", "xor", "not", "rem",
              "eq", "ne", "lt", "le", "gt", "ge"):  # fmt: skip
  _elementwise(_name, _name)


for _name, _op in (("le_to", "le"), ("lt_to", "lt"), ("shift_left", "shl"), ("shift_right_logical", "shr"),
                   ("shift_right_arithmetic", "shr")):  # fmt: skip
  _elementwise(_name, _op)


for _name in ("copy", "copy_p", "name", "stop_gradient", "optimization_barrier"):
  RULES[_name] = lambda p, eqn, *xs: list(xs[: len(eqn.outvars)])


@rule("round")
def _round(p, eqn, x):
  if int(eqn.params["rounding_method"]) != 1:
    raise Unsupported("operation round has a rule only for rounding to the nearest even number")
  return p.map("round", kind_of(eqn.outvars[0].aval.dtype), x)


@rule("reduce_precision")
def _reduce_precision(p, eqn, x):
  info = np.finfo(TYPES[kind_of(eqn.outvars[0].aval.dtype)])
  if eqn.params["exponent_bits"] < info.nexp or eqn.params["mantissa_bits"] < info.nmant:
    raise Unsupported(f"operation reduce_precision has no rule for fewer bits than {info.dtype} has")
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
  kind = kind_of(eqn.outvars[0].aval.dtype)
  return p.map("div", kind, _one(p, 1, kind), p.map("sqrt", kind, x))


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
  kind = kind_of(eqn.invars[0].aval.dtype)
  return p.map("lt", "p", p.map("abs", kind, x), _one(p, np.inf, kind))


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


def _one(p: Program, value: Any, kind: str) -> np.ndarray:
  return p.constant(np.array(value, TYPES[kind]))


class _Format(NamedTuple):
  """The format of a kind of floats, for `exp` and `log`.

  Attributes:
    integer: kind of the integers with as many bits.
    nmant: bits of the mantissa.
    bias: exponent of the number 1.
    least, greatest: arguments between which `exp` is neither 0 nor infinite.
    ln2: the logarithm of 2 in two parts; few bits of the first part are used, so its multiples are exact.
    far: from here on, `expm1` of a positive number is `exp` of the number.
    log: coefficients P and Q of log (1 + f) = f - f^2 / 2 + f^3 P(f) / Q(f), from the highest power on.
  """

  integer: str
  nmant: int
  bias: int
  least: float
  greatest: float
  ln2: tuple[float, float]
  far: float
  log: tuple[tuple[float, ...], tuple[float, ...]]


_LOG2E = 1.44269504088896341  # 1 / ln 2
# Source of the coefficients and of ln 2 in two parts: Cephes Mathematical Library, `logf` and `log` (Moshier)
_FORMATS = {
  "f": _Format(
    "i", 23, 127, -87.3365, 88.7228, (0.693359375, -2.12194440e-4), 17,
    ((7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
      2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1), ()),
  ),
  "d": _Format(
    "l", 52, 1023, -708.396418532264, 709.782712893384, (0.693359375, -2.121944400546905827679e-4), 40,
    ((1.01875663804580931796e-4, 4.97494994976747001425e-1, 4.70579119878881725854, 1.44989225341610930846e1,
      1.79368678507819816313e1, 7.70838733755885391666),
     (1.0, 1.12873587189167450590e1, 4.52279145837532221105e1, 8.29875266912776603211e1, 7.11544750618563894466e1,
      2.31251620126765340583e1)),
  ),
}  # fmt: skip


@rule("exp")
def _exp(p, eqn, x):
  """Compute exp as 2 to an integer power times 2 to the remainder; the error is a few units in the last place."""
  kind = kind_of(eqn.outvars[0].aval.dtype)
  form = _FORMATS[kind]
  const = functools.partial(_one, p, kind=kind)
  mul, sub = (functools.partial(p.map, op, kind) for op in ("mul", "sub"))
  inside = p.map("max", kind, p.map("min", kind, x, const(form.greatest)), const(form.least))
  n = p.map("round", kind, mul(inside, const(_LOG2E)))
  rest = sub(inside, mul(n, const(form.ln2[0])))
  rest = sub(rest, mul(n, const(form.ln2[1])))
  # half of 2**n, which is less than the greatest number: n may be one more than the greatest exponent
  whole = p.map("add", "i", p.map("convert", "i", n), _one(p, form.bias - 1, "i"))
  whole = whole if form.integer == "i" else p.map("convert", form.integer, whole)
  whole = p.map("bits", kind, p.map("shl", form.integer, whole, _one(p, form.nmant, form.integer)))
  out = mul(mul(p.map("exp2", kind, mul(rest, const(_LOG2E))), whole), const(2))
  out = p.map("select", kind, p.map("gt", "p", x, const(form.greatest)), const(np.inf), out)
  out = p.map("select", kind, p.map("lt", "p", x, const(form.least)), const(0), out)
  return p.map("select", kind, p.map("ne", "p", x, x), x, out)


@rule("log")
def _log(p, eqn, x):
  """Compute log by a polynomial, or a quotient of polynomials, for the mantissa."""
  kind = kind_of(eqn.outvars[0].aval.dtype)
  form = _FORMATS[kind]
  integer, const = form.integer, functools.partial(_one, p, kind=kind)
  whole = functools.partial(_one, p, kind=integer)
  add, mul, sub = (functools.partial(p.map, op, kind) for op in ("add", "mul", "sub"))

  def polynomial(coefficients, f):
    return functools.reduce(lambda s, c: add(mul(s, f), const(c)), coefficients[1:], const(coefficients[0]))

  bits = p.map("bits", integer, x)
  power = p.map("sub", integer, p.map("shr", integer, bits, whole(form.nmant)), whole(form.bias - 1))
  m = p.map("and", integer, bits, whole((1 << form.nmant) - 1))
  m = p.map("bits", kind, p.map("or", integer, m, whole((form.bias - 1) << form.nmant)))  # from 1/2 to 1
  small = p.map("lt", "p", m, const(math.sqrt(0.5)))
  e = p.map("convert", kind, p.map("sub", integer, power, p.map("select", integer, small, whole(1), whole(0))))
  f = sub(p.map("select", kind, small, add(m, m), m), const(1))
  z = mul(f, f)
  over, under = form.log
  y = polynomial(over, f)
  y = p.map("div", kind, y, polynomial(under, f)) if under else y
  y = mul(mul(y, f), z)
  y = sub(add(y, mul(e, const(form.ln2[1]))), mul(const(0.5), z))
  out = add(add(f, y), mul(e, const(form.ln2[0])))
  out = p.map("select", kind, p.map("eq", "p", x, const(np.inf)), x, out)
  out = p.map("select", kind, p.map("lt", "p", x, const(np.finfo(TYPES[kind]).tiny)), const(-np.inf), out)
  return p.map("select", kind, p.map("ge", "p", x, const(0)), out, const(np.nan))


@rule("pow")
def _pow(p, eqn, x, y):
  """Compute x to the power y as exp (y log |x|); the error is some |y log x| units in the last place."""
  kind = kind_of(eqn.outvars[0].aval.dtype)
  if any(kind_of(v.aval.dtype) != kind for v in eqn.invars):
    raise Unsupported("operation pow has a rule only for two numbers of one type")
  zero, one, half = (_one(p, v, kind) for v in (0, 1, 0.5))
  out = _exp(p, eqn, p.map("mul", kind, y, _log(p, eqn, p.map("abs", kind, x))))
  halves = p.map("mul", kind, y, half)
  is_odd = p.map("ne", "p", halves, p.map("floor", kind, halves))
  negative = p.map("select", kind, is_odd, p.map("neg", kind, out), out)
  negative = p.map("select", kind, p.map("eq", "p", y, p.map("floor", kind, y)), negative, _one(p, np.nan, kind))
  out = p.map("select", kind, p.map("lt", "p", x, zero), negative, out)
  is_one = p.map("or", "p", p.map("eq", "p", y, zero), p.map("eq", "p", x, one))
  return p.map("select", kind, is_one, one, out)


@rule("expm1")
def _expm1(p, eqn, x):
  """Compute expm1 by Kahan's formula (u - 1) x / log u with u = exp x, in which the errors cancel.

  Source: Higham, Accuracy and Stability of Numerical Algorithms.
  """
  kind = kind_of(eqn.outvars[0].aval.dtype)
  one = _one(p, 1, kind)
  u = _exp(p, eqn, x)
  less = p.map("sub", kind, u, one)
  out = p.map("mul", kind, less, p.map("div", kind, x, _log(p, eqn, u)))
  out = p.map("select", kind, p.map("eq", "p", u, one), x, out)
  is_far = p.map("gt", "p", p.map("abs", kind, x), _one(p, _FORMATS[kind].far, kind))
  return p.map("select", kind, is_far, less, out)
