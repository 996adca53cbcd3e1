"""Scalar programs: one world's program of arrays as operations on numbers, for a thread of a GPU or a lane of a CPU's vectors.

`Program.run` goes through the operations of one world, as JAX traces them, and writes an operation for each number of their
results. Then reshapes, slices and concatenations cost nothing. Loops of known length are unrolled. A product with a constant
zero is zero, even if the other factor is not finite. Equal operations are computed once. Loops that end by a condition stay
loops, and end for each world by itself. `backends/` compiles the program to kernels.
"""

import functools
import itertools
import math
import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler.workarounds import CALLS

MAX_NODES = 400_000  # numbers of a program
MAX_CONSTANT = 1024  # numbers of an array whose values are known
_MAX_TURNS = 64  # iterations of a loop that is unrolled
_MAX_CHOICES = 64  # positions for a write at a computed index, which is compared with each position
_MAX_SORTED = 32

KINDS = {"float32": "f", "int32": "i", "uint32": "u", "bool": "p"}
_TYPES = {"f": np.float32, "i": np.int32, "u": np.uint32, "p": np.bool_}
_COMMUTES = frozenset(("add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"))
_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


class Unsupported(NotImplementedError):
  """An operation that has no scalar form, or a program that is too large."""


class Load(NamedTuple):
  """A number of an input, per-world or shared by all worlds; a negative `buffer` is a table of the program."""

  buffer: int
  row: int
  per_world: bool


class Loop(NamedTuple):
  """A loop: the numbers `params` start as `first`, and are replaced by the numbers `last` as long as `proceeds` holds."""

  depth: int
  params: tuple[int, ...]
  first: tuple[int, ...]
  proceeds: int
  last: tuple[int, ...]


class Program:
  """A list of numbers, each the result of an operation on earlier numbers.

  Attributes:
    op: name of the operation that computes each number.
    kind: type of each number: f, i, u or p, for float32, int32, uint32 or bool.
    args: operands of each number, as indices into the list.
    depth: number of loops around each number, 0 outside of loops.
    of: further data of some operations, by number: the value of a constant, a `Load`, a `Loop`, or, for a number after a loop,
      its index in the loop's state.
    tables: constants (n,) that are indexed by a number of the program; further inputs, which all worlds share.
  """

  def __init__(self):
    self.op: list[str] = []
    self.kind: list[str] = []
    self.args: list[tuple[int, ...]] = []
    self.depth: list[int] = []
    self.of: dict[int, Any] = {}
    self.tables: list[np.ndarray] = []
    self._known: dict[Any, int] = {}
    self._inside = 0  # loops around the current operation

  # ------------------------------------------------------------------------------------------------------------ numbers

  def _new(self, key: Any, op: str, kind: str, args: tuple[int, ...], depth: int, of: Any = None) -> int:
    k = len(self.op)
    if k >= MAX_NODES:
      raise Unsupported(f"more than {MAX_NODES} numbers")
    self.op.append(op)
    self.kind.append(kind)
    self.args.append(args)
    self.depth.append(depth)
    if of is not None:
      self.of[k] = of
    if key is not None:
      self._known[key] = k
    return k

  def const(self, value: Any, kind: str) -> int:
    """Return the number of a constant."""
    value = _TYPES[kind](value).item()
    key = ("const", kind, struct.pack("f", value) if kind == "f" else value)
    found = self._known.get(key)
    return self._new(key, "const", kind, (), 0, value) if found is None else found

  def value(self, k: int) -> Any:
    """Return the value of number k if it is a constant, else None."""
    return self.of[k] if self.op[k] == "const" else None

  def load(self, where: Load, kind: str) -> int:
    """Return the number at a position of an input."""
    found = self._known.get(where)
    return self._new(where, "load", kind, (), 0, where) if found is None else found

  def table(self, numbers: tuple[int, ...], kind: str) -> int:
    """Return a table of consecutive numbers, to be indexed by a number; a table of constants becomes a further input."""
    key = "table", kind, numbers
    found = self._known.get(key)
    if found is None:
      values = [self.value(k) for k in numbers]
      if None not in values:
        self.tables.append(np.array(values, _TYPES[kind]))
        numbers = tuple(self.load(Load(-len(self.tables), k, False), kind) for k in range(len(values)))
      found = self._new(key, "table", "", numbers, max(self.depth[k] for k in numbers))
    return found

  def in_place(self, table: int) -> Load | int | None:
    """Return where a table's numbers are consecutive already: the first one's `Load`, or the first parameter of a loop."""
    order = self.args[table]
    if self.op[order[0]] == "load":
      a = self.of[order[0]]
      same = all(self.op[k] == "load" and self.of[k] == (a.buffer, a.row + i, a.per_world) for i, k in enumerate(order))
      return a if same else None
    if all(self.op[k] == "param" for k in order) and order == tuple(range(order[0], order[0] + len(order))):
      return order[0]
    return None

  def make(self, op: str, kind: str, *args: int) -> int:
    """Return the result of an operation on numbers: simplified where possible, or an equal number that exists already."""
    simple = self._simplified(op, kind, args)
    if simple is not None:
      return simple
    if op in _COMMUTES and args[0] > args[1]:
      args = args[::-1]
    key = op, kind, args
    found = self._known.get(key)
    if found is not None:
      return found
    return self._new(key, op, kind, args, max(self.depth[a] for a in args))

  def _simplified(self, op: str, kind: str, args: tuple[int, ...]) -> int | None:
    values = [self.of[a] if self.op[a] == "const" else None for a in args]
    known = [v is not None for v in values]
    if op == "select":
      if known[0]:
        return args[1] if values[0] else args[2]
      if args[1] == args[2]:
        return args[1]
      if kind == "p" and any(known[1:]):
        p, a, b = args
        if known[1]:
          return self.make("or", "p", p, b) if values[1] else self.make("and", "p", self.make("not", "p", p), b)
        return self.make("or", "p", self.make("not", "p", p), a) if values[2] else self.make("and", "p", p, a)
      return None
    if not any(known):
      return args[0] if op in ("and", "or", "min", "max") and args[0] == args[1] else None
    if all(known):
      folded = _FOLDED.get(op)
      if folded is None:
        return None
      with np.errstate(all="ignore"):
        return self.const(folded(*(_TYPES[self.kind[a]](v) for a, v in zip(args, values, strict=True))), kind)
    if len(args) != 2:
      return None
    at = 0 if known[0] else 1
    v, other = values[at], args[1 - at]
    if kind == "p" and op in ("and", "or", "xor"):
      return _choice(op, v, other, args[at], lambda: self.make("not", "p", other))
    if kind == "p":
      return None
    if (op == "add" and v == 0) or (op == "sub" and at == 1 and v == 0) or (op == "div" and at == 1 and v == 1):
      return other
    if op == "sub" and v == 0:
      return self.make("neg", kind, other)
    if op == "mul":
      return args[at] if v == 0 else other if v == 1 else self.make("neg", kind, other) if v == -1 else None
    return None

  # ------------------------------------------------------------------------------------------------------------- arrays

  def constant(self, x: Any) -> np.ndarray:
    """Return the numbers of a constant array."""
    x = np.asarray(x)
    kind = _kind(x.dtype)
    return _array([self.const(v, kind) for v in x.ravel().tolist()], x.shape)

  def inputs(self, buffer: int, shape: Sequence[int], dtype: Any, per_world: bool) -> np.ndarray:
    """Return the numbers of an input (..., 1)."""
    kind = _kind(dtype)
    return _array([self.load(Load(buffer, k, per_world), kind) for k in range(math.prod(shape))], shape)

  def map(self, op: str, kind: str, *xs: np.ndarray) -> np.ndarray:
    """Apply an operation elementwise to arrays of numbers, with broadcasting."""
    xs = tuple(np.broadcast_arrays(*xs)) if len({x.shape for x in xs}) > 1 else xs
    make = self.make
    return _array([make(op, kind, *a) for a in zip(*(x.ravel().tolist() for x in xs), strict=True)], xs[0].shape)

  def sum(self, terms: Iterable[np.ndarray], kind: str) -> np.ndarray:
    """Return the sum of arrays."""
    return functools.reduce(lambda a, b: self.map("add", kind, a, b), terms)

  def fold(self, op: str, kind: str, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Reduce an array along axes, which are dropped; pairwise, so that each pass halves the array."""
    x = np.moveaxis(x, axes, range(len(axes)))
    x = x.reshape(math.prod(x.shape[: len(axes)]), *x.shape[len(axes) :])
    while len(x) > 1:
      half = len(x) // 2
      x = np.concatenate([self.map(op, kind, x[:half], x[half : 2 * half]), x[2 * half :]])
    return x[0]

  # ------------------------------------------------------------------------------------------------------------ programs

  def run(self, closed: jex_core.ClosedJaxpr, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the numbers of the results of a program of arrays.

    Raises:
      Unsupported: an operation has no scalar form, or the program is too large.
    """
    jaxpr = closed.jaxpr
    env = dict(zip(jaxpr.invars, args, strict=True))
    env.update((v, self.constant(c)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True))

    def read(v):
      return self.constant(v.val) if isinstance(v, jex_core.Literal) else env[v]

    for eqn in jaxpr.eqns:
      rule = _RULES.get(eqn.primitive.name)
      if rule is None:
        raise Unsupported(f"operation {eqn.primitive.name} has no rule")
      env.update(zip(eqn.outvars, self._applied(rule, eqn, list(map(read, eqn.invars))), strict=True))
    return [read(v) for v in jaxpr.outvars]

  def _applied(self, rule: Callable[..., Any], eqn: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the numbers of an equation's results; raise any exception in its rule, except MemoryError, as `Unsupported`."""
    name = eqn.primitive.name
    try:
      outs = rule(self, eqn, *args)
    except (Unsupported, MemoryError):
      raise
    except Exception as error:
      raise Unsupported(f"the rule of operation {name} failed: {type(error).__name__}: {error}") from error
    outs = outs if isinstance(outs, list) else [outs]
    for v, out in zip(eqn.outvars, outs, strict=True):
      if out.shape != v.aval.shape:
        raise Unsupported(f"the rule of operation {name} made the shape {out.shape}, not {v.aval.shape}")
    return outs

  def loop(self, proceeds: Callable[[list], np.ndarray], turn: Callable[[list], list], state: list) -> list:
    """Write a loop that repeats `turn` while `proceeds` holds; return the state after the loop."""
    first = tuple(itertools.chain.from_iterable(x.ravel().tolist() for x in state))
    self._inside += 1
    depth = self._inside
    params = tuple(self._new(None, "param", self.kind[a], (), depth) for a in first)
    bounds = np.cumsum([0, *(x.size for x in state)])
    inside = [_array(params[a:b], x.shape) for a, b, x in zip(bounds, bounds[1:], state, strict=False)]
    going = int(proceeds(inside).item())
    last = tuple(itertools.chain.from_iterable(x.ravel().tolist() for x in turn(inside)))
    self._inside -= 1
    free = self.reached((going, *last), depth)[1]
    args = (*first, *free)
    around = max((self.depth[a] for a in args), default=0)
    k = self._new(None, "loop", "", args, around, Loop(depth, params, first, going, last))
    after = [self._new(None, "after", self.kind[a], (k,), around, i) for i, a in enumerate(first)]
    return [_array(after[a:b], x.shape) for a, b, x in zip(bounds, bounds[1:], state, strict=False)]

  def reached(self, roots: Iterable[int], depth: int) -> tuple[list[int], list[int]]:
    """Return what `roots` need in a loop of this depth: numbers to compute inside it, in order, and numbers from outside."""
    order, outside, seen = [], [], set()
    for root in roots:
      stack = [(root, False)]
      while stack:
        k, is_done = stack.pop()
        if is_done:
          order.append(k)
        elif k not in seen:
          seen.add(k)
          if self.depth[k] < depth:
            if self.op[k] != "const":
              outside.append(k)
          else:
            stack.append((k, True))
            stack.extend((a, False) for a in reversed(self.args[k]) if a not in seen)
    return order, outside


def numbers(eqn: Any, once: bool = False) -> int:
  """Estimate how many numbers an equation computes: in all iterations of its loops, or in one iteration of each (`once`)."""
  inside = sum(numbers(e, once) for j in jex_core.jaxprs_in_params(eqn.params) for e in j.eqns)
  return inside * (1 if once else eqn.params.get("length", 1)) + sum(v.aval.size for v in eqn.outvars)


def is_constant(x: Any) -> bool:
  """Return whether an array has known numbers, at most `MAX_CONSTANT` of them, and a dtype that programs support."""
  if isinstance(x, jax.core.Tracer) or np.size(x) > MAX_CONSTANT or not getattr(x, "is_fully_addressable", True):
    return False
  return jnp.result_type(x).name in KINDS


def constants(closed: jex_core.ClosedJaxpr, inputs: Sequence[Any]) -> list[np.ndarray]:
  """Return the results of a small program of constants.

  Raises:
    Unsupported: the results are not known before the program runs, or there are too many.
  """
  if not all(map(is_constant, inputs)) or sum(map(numbers, closed.jaxpr.eqns)) > MAX_CONSTANT:
    raise Unsupported("no small constants")
  p = Program()
  values = [[p.value(k) for k in x.ravel().tolist()] for x in p.run(closed, list(map(p.constant, inputs)))]
  if any(None in x for x in values):
    raise Unsupported("what is known only when it runs")
  return [np.array(x, a.dtype).reshape(a.shape) for x, a in zip(values, closed.out_avals, strict=True)]


def _array(numbers: Sequence[int], shape: Sequence[int]) -> np.ndarray:
  return np.array(numbers, np.int64).reshape(shape)


def _kind(dtype: Any) -> str:
  try:
    return KINDS[jax.dtypes.canonicalize_dtype(dtype).name]
  except (KeyError, TypeError):
    raise Unsupported(f"dtype {dtype}") from None


def _choice(op: str, value: Any, other: int, this: int, negated: Callable[[], int]) -> int:
  if op == "xor":
    return negated() if value else other
  return other if value == (op == "and") else this


_FOLDED: dict[str, Callable[..., Any]] = {
  "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": lambda x: -x, "abs": abs, "min": np.minimum,
  "max": np.maximum, "floor": np.floor, "ceil": np.ceil, "round": np.round, "sqrt": np.sqrt, "not": lambda x: not x,
  "and": operator.and_, "or": operator.or_, "xor": operator.xor, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
  "le": operator.le, "gt": operator.gt, "ge": operator.ge, "convert": lambda x: x,
  "div": lambda a, b: a / b if isinstance(a, np.floating) else np.int32(int(a / b)) if b else np.int32(-1),
  "rem": lambda a, b: np.fmod(a, b), "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip

# ------------------------------------------------------------------------------------------------------- rules, by primitive

_RULES: dict[str, Callable[..., Any]] = {}


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  def put(function):
    for name in names:
      _RULES[name] = function
    return function

  return put


def _elementwise(name: str, op: str) -> None:
  def rule(p, eqn, *xs):
    if op in _COMPARES:
      if _kind(eqn.invars[0].aval.dtype) == "p":
        if op not in ("eq", "ne"):
          raise Unsupported(f"{name} of bool")
        out = p.map("xor", "p", *xs)
        return out if op == "ne" else p.map("not", "p", out)
      return p.map(op, "p", *xs)
    return p.map(op, _kind(eqn.outvars[0].aval.dtype), *xs)

  _RULES[name] = rule


for _name in ("add", "sub", "mul", "div", "neg", "abs", "min", "max", "floor", "ceil", "sqrt", "and", "or", "xor", "not", "rem",
              "eq", "ne", "lt", "le", "gt", "ge"):  # fmt: skip
  _elementwise(_name, _name)
for _name, _op in (("add_any", "add"), ("le_to", "le"), ("lt_to", "lt"), ("shift_left", "shl"), ("shift_right_logical", "shr"),
                   ("shift_right_arithmetic", "shr")):  # fmt: skip
  _elementwise(_name, _op)

for _name in ("copy", "copy_p", "name", "stop_gradient", "mjx_materialize", "mjx_write", "mjx_apart", "mjx_bind",
              "optimization_barrier"):  # fmt: skip
  _RULES[_name] = lambda p, eqn, *xs: list(xs[: len(eqn.outvars)])


@_rule("round")
def _(p, eqn, x):
  if int(eqn.params["rounding_method"]) != 1:
    raise Unsupported("round away from zero")
  return p.map("round", "f", x)


@_rule("reduce_precision")
def _(p, eqn, x):
  if eqn.params["exponent_bits"] < 8 or eqn.params["mantissa_bits"] < 23:
    raise Unsupported("numbers of less precision")
  return x


@_rule("sign")
def _(p, eqn, x):
  kind = _kind(eqn.invars[0].aval.dtype)
  zero, one, less = (p.constant(np.array(v, _TYPES[kind])) for v in (0, 1, -1))
  negative = p.map("select", kind, p.map("lt", "p", x, zero), less, x)
  return p.map("select", kind, p.map("gt", "p", x, zero), one, negative)


@_rule("square")
def _(p, eqn, x):
  return p.map("mul", _kind(eqn.outvars[0].aval.dtype), x, x)


@_rule("rsqrt")
def _(p, eqn, x):
  return p.map("div", "f", p.constant(np.float32(1)), p.map("sqrt", "f", x))


@_rule("integer_pow")
def _(p, eqn, x):
  kind, n = _kind(eqn.outvars[0].aval.dtype), eqn.params["y"]
  out, power, k = None, x, abs(n)
  while k:
    if k & 1:
      out = power if out is None else p.map("mul", kind, out, power)
    power, k = p.map("mul", kind, power, power), k >> 1
  out = p.constant(np.ones(x.shape, _TYPES[kind])) if out is None else out
  return p.map("div", kind, p.constant(np.array(1, _TYPES[kind])), out) if n < 0 else out


@_rule("is_finite")
def _(p, eqn, x):
  return p.map("lt", "p", p.map("abs", "f", x), p.constant(np.float32(np.inf)))


@_rule("clamp")
def _(p, eqn, low, x, high):
  kind = _kind(eqn.outvars[0].aval.dtype)
  return p.map("min", kind, p.map("max", kind, x, low), high)


@_rule("select_n")
def _(p, eqn, which, *cases):
  kind = _kind(eqn.outvars[0].aval.dtype)
  if _kind(eqn.invars[0].aval.dtype) == "p":
    return p.map("select", kind, which, cases[1], cases[0])
  out = cases[-1]
  for k in range(len(cases) - 2, -1, -1):
    out = p.map("select", kind, p.map("le", "p", which, p.constant(np.int32(k))), cases[k], out)
  return out


@_rule("convert_element_type")
def _(p, eqn, x):
  before, after = (_kind(v.aval.dtype) for v in (eqn.invars[0], eqn.outvars[0]))
  if before == after:
    return x
  if after == "p":
    return p.map("ne", "p", x, p.constant(np.array(0, _TYPES[before])))
  if before == "p":
    return p.map("select", after, x, *(p.constant(np.array(v, _TYPES[after])) for v in (1, 0)))
  return p.map("convert", after, x)


@_rule("bitcast_convert_type")
def _(p, eqn, x):
  return p.map("bits", _kind(eqn.outvars[0].aval.dtype), x)


def _one(p: Program, value: Any, kind: str = "f") -> np.ndarray:
  return p.constant(np.array(value, _TYPES[kind]))


_LOG2E, _LN2 = 1.44269504088896341, (0.693359375, -2.12194440e-4)  # 1 / ln 2, and ln 2 in two parts


@_rule("exp")
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


@_rule("log")
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


@_rule("expm1")
def _(p, eqn, x):
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


# operations that only move numbers


@_rule("broadcast_in_dim")
def _(p, eqn, x):
  shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
  full = [1] * len(shape)
  for k, d in enumerate(dims):
    full[d] = x.shape[k]
  return np.broadcast_to(x.reshape(full), shape)


@_rule("reshape")
def _(p, eqn, x):
  return x.reshape(eqn.params["new_sizes"])


@_rule("squeeze")
def _(p, eqn, x):
  return x.reshape(eqn.outvars[0].aval.shape)


@_rule("transpose")
def _(p, eqn, x):
  return x.transpose(eqn.params["permutation"])


@_rule("rev")
def _(p, eqn, x):
  return np.flip(x, eqn.params["dimensions"])


@_rule("concatenate")
def _(p, eqn, *xs):
  return np.concatenate(xs, eqn.params["dimension"])


@_rule("stack")
def _(p, eqn, *xs):
  return np.stack(xs, eqn.params["axis"])


@_rule("unstack")
def _(p, eqn, x):
  return list(np.moveaxis(x, eqn.params["axis"], 0))


@_rule("split")
def _(p, eqn, x):
  return np.split(x, np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])


@_rule("slice")
def _(p, eqn, x):
  params = eqn.params
  steps = params["strides"] or (1,) * x.ndim
  return x[tuple(slice(a, b, s) for a, b, s in zip(params["start_indices"], params["limit_indices"], steps, strict=True))]


@_rule("pad")
def _(p, eqn, x, filling):
  config = eqn.params["padding_config"]
  if any(low < 0 or high < 0 for low, high, _ in config):
    raise Unsupported("pad by less than nothing")
  out = np.broadcast_to(filling, eqn.outvars[0].aval.shape).copy()
  out[tuple(slice(low, low + (n - 1) * (inner + 1) + 1 if n else low, inner + 1)
            for (low, _, inner), n in zip(config, x.shape, strict=True))] = x  # fmt: skip
  return out


@_rule("empty", "empty2")
def _(p, eqn):
  return p.constant(np.zeros(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype))


@_rule("iota")
def _(p, eqn):
  shape, dimension = eqn.params["shape"], eqn.params["dimension"]
  line = np.arange(shape[dimension], dtype=eqn.params["dtype"])
  line = line.reshape([-1 if k == dimension else 1 for k in range(len(shape))])
  return np.broadcast_to(p.constant(line), shape)


@_rule("mjx_choose")
def _(p, eqn, x):
  return _taken(p, x, eqn.params["choice"].index, _kind(eqn.outvars[0].aval.dtype))


@_rule("mjx_collect")
def _(p, eqn, x):
  kind, choice = _kind(eqn.outvars[0].aval.dtype), eqn.params["choice"]
  zeros = p.constant(np.zeros(x.shape[1:], _TYPES[kind]))
  rows = [[x[k] for k in np.flatnonzero(choice.index == i)] for i in range(choice.size)]
  return np.stack([p.sum(r, kind) if r else zeros for r in rows]) if rows else np.zeros((0, *x.shape[1:]), np.int64)


def _taken(p, x, index, kind):
  out = x[np.maximum(index, 0)] if len(x) else np.zeros((len(index), *x.shape[1:]), np.int64)
  out[index < 0] = p.const(0, kind)
  return out


# sums and products


@_rule("mjx_add_up")
def _(p, eqn, x):
  return p.fold("add", _kind(eqn.outvars[0].aval.dtype), x, [x.ndim + eqn.params["axis"]])


@_rule("mjx_contract")
def _(p, eqn, a, b):
  kind, axis = _kind(eqn.outvars[0].aval.dtype), a.ndim + eqn.params["axis"]
  return p.sum([p.map("mul", kind, *x) for x in zip(np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0), strict=True)], kind)


@_rule("mjx_spread")
def _(p, eqn, x):
  return np.broadcast_to(np.expand_dims(x, eqn.params["axis"]), eqn.outvars[0].aval.shape)


@_rule("mjx_total")
def _(p, eqn, x):
  return p.fold("add", "f", x, [0]) if len(x) else p.constant(np.zeros(x.shape[1:], np.float32))


@_rule("mjx_repeat")
def _(p, eqn, x):
  return np.broadcast_to(x, eqn.outvars[0].aval.shape)


@_rule("mjx_combine")
def _(p, eqn, a, x):
  if a.ndim == 3:
    return np.stack([_product(p, *y) for y in zip(a, x, strict=True)])
  return _product(p, a, x)


def _product(p, a, x):
  """Return the product of a matrix (n, k) and rows (k, ...)."""
  none = p.constant(np.zeros(x.shape[1:], np.float32))
  rows = [[p.map("mul", "f", np.broadcast_to(c, row.shape), row) for c, row in zip(line, x, strict=True)] for line in a]
  return np.stack([p.sum(r, "f") if r else none for r in rows]) if rows else np.zeros((0, *x.shape[1:]), np.int64)


@_rule("dot_general")
def _(p, eqn, a, b):
  (ca, cb), (ba, bb) = eqn.params["dimension_numbers"]
  kind = _kind(eqn.outvars[0].aval.dtype)
  fa, fb = ([k for k in range(x.ndim) if k not in (*c, *m)] for x, c, m in ((a, ca, ba), (b, cb, bb)))
  shape = [a.shape[k] for k in (*ba, *fa)] + [b.shape[k] for k in fb]
  many = math.prod(a.shape[k] for k in ba)
  sizes = [math.prod(x.shape[k] for k in f) for x, f in ((a, fa), (b, fb))]
  n = math.prod(a.shape[k] for k in ca)
  a = a.transpose(*ba, *fa, *ca).reshape(many, sizes[0], 1, n)
  b = b.transpose(*bb, *fb, *cb).reshape(many, 1, sizes[1], n)
  if not n:
    return p.constant(np.zeros(shape, _TYPES[kind]))
  return p.sum([p.map("mul", kind, a[..., k], b[..., k]) for k in range(n)], kind).reshape(shape)


@_rule("mjx_sum")
def _(p, eqn, x):
  return _mask_sum(p, eqn.params["plan"], x)


@_rule("mjx_sum_of_product")
def _(p, eqn, a, b):
  return _mask_sum(p, eqn.params["plan"], p.map("mul", "f", a, b))


def _mask_sum(p, plan, x):
  zeros = p.constant(np.zeros(x.shape[1:], np.float32))
  if plan.weights is None:
    rows = [[p.map("mul", "f", p.constant(np.float32(row[k])), x[k]) for k in np.flatnonzero(row)] for row in plan.matrix]
    return np.stack([p.sum(r, "f") if r else zeros for r in rows]) if rows else x[:0]
  row, column = (w.reshape(-1, *(1,) * (x.ndim - 1)).astype(np.float32) for w in plan.weights)
  x = p.map("mul", "f", p.constant(column), x)
  if plan.fetched is not None:
    out = p.sum([_taken(p, x, index, "f") for index in plan.fetched], "f")
  else:
    out = np.concatenate([_added(p, part, x) for part in plan.additions]) if plan.additions else x[:0]
  return p.map("mul", "f", p.constant(row), out)


def _added(p, a, x):
  parts = []
  for k in range(a.count):
    rows = list(x[a.col + k * a.step : a.col + (k + 1) * a.step] if a.step else x)
    for i, j in a.pairs.tolist():
      rows.append(p.map("add", "f", rows[i], rows[j]))
    parts += [rows[i] if i >= 0 else p.constant(np.zeros(x.shape[1:], np.float32)) for i in a.out.tolist()]
  return np.stack(parts) if parts else x[:0]


def _of_nothing(op: str, kind: str) -> Any:
  """Return the result of a reduction of no numbers."""
  if op in ("max", "min"):
    if kind == "p":
      return op == "min"
    t = _TYPES[kind]
    lowest, highest = (-np.inf, np.inf) if kind == "f" else (np.iinfo(t).min, np.iinfo(t).max)
    return lowest if op == "max" else highest
  return {"add": 0, "mul": 1, "and": -1 if kind == "i" else True, "or": 0}[op]


for _name, _op in (("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min"), ("and", "and"), ("or", "or")):

  @_rule(f"reduce_{_name}")
  def _(p, eqn, x, *, _op=_op):
    kind, axes = _kind(eqn.outvars[0].aval.dtype), eqn.params["axes"]
    if not all(x.shape[k] for k in axes):
      return p.constant(np.full(eqn.outvars[0].aval.shape, _of_nothing(_op, kind), _TYPES[kind]))
    return p.fold(_op, kind, x, axes)


@_rule("cumsum")
def _(p, eqn, x):
  kind, axis = _kind(eqn.outvars[0].aval.dtype), eqn.params["axis"]
  rows = list(np.moveaxis(x, axis, 0))
  rows = rows[::-1] if eqn.params["reverse"] else rows
  sums = list(itertools.accumulate(rows, lambda a, b: p.map("add", kind, a, b)))
  return np.moveaxis(np.stack(sums[::-1] if eqn.params["reverse"] else sums), 0, axis) if sums else x


def _furthest(op):
  def rule(p, eqn, x):
    (axis,) = eqn.params["axes"]
    kind, out_kind = (_kind(v.aval.dtype) for v in (eqn.invars[0], eqn.outvars[0]))
    if kind == "p":
      x, kind = p.map("select", "i", x, p.constant(np.int32(1)), p.constant(np.int32(0))), "i"
    rows = np.moveaxis(x, axis, 0)
    best, place = rows[0], p.constant(np.zeros(rows.shape[1:], _TYPES[out_kind]))
    for k in range(1, len(rows)):
      better = p.map(op, "p", rows[k], best)
      best = p.map("select", kind, better, rows[k], best)
      place = p.map("select", out_kind, better, p.constant(np.array(k, _TYPES[out_kind])), place)
    return place

  return rule


_RULES["argmax"], _RULES["argmin"] = _furthest("gt"), _furthest("lt")

# indexing by numbers of the program


def _values(p, x):
  """Return the values of constants; None if a number is not a constant."""
  found = [p.value(k) for k in x.ravel().tolist()]
  return None if None in found else np.array(found, np.int64).reshape(x.shape)


def _fetch(p: Program, table: np.ndarray, index: int, kind: str) -> int:
  """Return table[index], for a table of numbers (n,) and an index that is a number of the program."""
  numbers = tuple(table.tolist())
  if len(set(numbers)) == 1:
    return numbers[0]
  if len(numbers) == 2:
    return p.make("select", kind, p.make("le", "p", index, p.const(0, "i")), *numbers)
  index = p.make("min", "i", p.make("max", "i", index, p.const(0, "i")), p.const(len(numbers) - 1, "i"))
  known = p.value(index)
  if known is not None:
    return numbers[known]
  return p.make("fetch", kind, p.table(numbers, kind), index)


@_rule("gather")
def _(p, eqn, x, index):
  d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
  kind, mode = _kind(eqn.outvars[0].aval.dtype), str(eqn.params["mode"])
  kept = [k for k in range(x.ndim) if k not in d.collapsed_slice_dims and k not in d.operand_batching_dims]
  batch = [k for k in range(len(eqn.outvars[0].aval.shape)) if k not in d.offset_dims]
  known, out = _values(p, index), np.empty(eqn.outvars[0].aval.shape, np.int64)
  is_filled, value = "FILL" in mode.upper(), eqn.params["fill_value"]
  filling = p.const((np.nan if kind == "f" else 0) if value is None else value, kind)
  for at in np.ndindex(*index.shape[:-1]):
    start, ahead = [0] * x.ndim, []
    for k, dim in enumerate(d.start_index_map):
      i = int(known[(*at, k)]) if known is not None else p.value(int(index[(*at, k)]))
      if i is None:
        ahead.append((dim, int(index[(*at, k)])))
      else:
        start[dim] = i
    for dim, of in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
      start[dim] = at[of]
    place: list[Any] = [slice(None)] * out.ndim
    for k, i in zip(batch, at, strict=True):
      place[k] = i
    limit = [n - s for n, s in zip(x.shape, sizes, strict=True)]
    is_out = any(not 0 <= s <= most for s, most in zip(start, limit, strict=True))
    if is_out and is_filled:
      out[tuple(place)] = filling
      continue
    start = [min(max(s, 0), most) for s, most in zip(start, limit, strict=True)]
    if any(sizes[dim] != 1 for dim, _ in ahead) or len(ahead) > 1:
      raise Unsupported("gather of slices")
    part = x[tuple(slice(None) if ahead and k == ahead[0][0] else slice(s, s + n)
                   for k, (s, n) in enumerate(zip(start, sizes, strict=True)))]  # fmt: skip
    if ahead:
      dim, i = ahead[0]
      lines = np.moveaxis(part, dim, -1)
      part = _array([_fetch(p, line, i, kind) for line in lines.reshape(-1, lines.shape[-1])], (*lines.shape[:-1], 1))
      part = np.moveaxis(part, -1, dim)
      if is_filled:
        inside = [p.make("ge", "p", i, p.const(0, "i")), p.make("le", "p", i, p.const(limit[dim], "i"))]
        part = p.map("select", kind, _array([p.make("and", "p", *inside)], ()), part, _array([filling], ()))
    out[tuple(place)] = part.reshape([part.shape[k] for k in kept])
  return out


def _starts(p, starts, shape, sizes):
  """Return where a slice begins: the known starts (0 for others), and (axis, number) of each start that is not known."""
  found, ahead = [], []
  for k, (s, n, m) in enumerate(zip(starts, shape, sizes, strict=True)):
    i = 0 if n == m else p.value(int(s.item()))
    if i is None:
      ahead.append((k, int(s.item())))
    found.append(0 if i is None else min(max(i, 0), n - m))
  return found, ahead


@_rule("dynamic_slice")
def _(p, eqn, x, *starts):
  sizes = eqn.params["slice_sizes"]
  found, ahead = _starts(p, starts, x.shape, sizes)
  if len(ahead) > 1:
    raise Unsupported("slice that begins anywhere on two axes")
  if not ahead:
    return x[tuple(slice(a, a + n) for a, n in zip(found, sizes, strict=True))]
  axis, first = ahead[0]
  kind, n = _kind(eqn.outvars[0].aval.dtype), sizes[axis]
  part = x[tuple(slice(None) if k == axis else slice(a, a + m) for k, (a, m) in enumerate(zip(found, sizes, strict=True)))]
  lines = np.moveaxis(part, axis, -1)
  most = p.const(x.shape[axis] - n, "i")
  first = p.make("min", "i", p.make("max", "i", first, p.const(0, "i")), most)
  rows = [[_fetch(p, line[k : k + x.shape[axis] - n + 1], first, kind) for k in range(n)]
          for line in lines.reshape(-1, lines.shape[-1])]  # fmt: skip
  return np.moveaxis(np.array(rows, np.int64).reshape(*lines.shape[:-1], n), -1, axis)


@_rule("dynamic_update_slice")
def _(p, eqn, x, new, *starts):
  found, ahead = _starts(p, starts, x.shape, new.shape)
  out = x.copy()
  if not ahead:
    out[tuple(slice(a, a + n) for a, n in zip(found, new.shape, strict=True))] = new
    return out
  if len(ahead) > 1 or new.shape[ahead[0][0]] != 1 or x.shape[ahead[0][0]] > _MAX_CHOICES:
    raise Unsupported("slice written anywhere")
  axis, index = ahead[0]
  kind, n = _kind(eqn.outvars[0].aval.dtype), x.shape[axis]
  index = p.make("min", "i", p.make("max", "i", index, p.const(0, "i")), p.const(n - 1, "i"))
  bounds = list(enumerate(zip(found, new.shape, strict=True)))
  for k in range(n):
    place = tuple(slice(k, k + 1) if j == axis else slice(a, a + m) for j, (a, m) in bounds)
    here = p.make("eq", "p", index, p.const(k, "i"))
    out[place] = p.map("select", kind, _array(here, ()), new, x[place])
  return out


@_rule("scatter", "scatter_add", "scatter-add")
def _(p, eqn, x, index, new):
  d, known = eqn.params["dimension_numbers"], _values(p, index)
  if known is None or d.operand_batching_dims:
    raise Unsupported("scatter to where the program says")
  kind, out = _kind(eqn.outvars[0].aval.dtype), x.copy()
  window = [k for k in range(x.ndim) if k not in d.inserted_window_dims]
  batch = [k for k in range(new.ndim) if k not in d.update_window_dims]
  sizes = [1] * x.ndim
  for k, u in zip(window, d.update_window_dims, strict=True):
    sizes[k] = new.shape[u]
  for at in np.ndindex(*index.shape[:-1]):
    start = [0] * x.ndim
    for k, dim in enumerate(d.scatter_dims_to_operand_dims):
      start[dim] = int(known[(*at, k)])
    if any(not 0 <= s <= n - m for s, n, m in zip(start, x.shape, sizes, strict=True)):
      if "CLIP" in str(eqn.params["mode"]).upper():
        raise Unsupported("scatter that clips")
      continue
    part: list[Any] = [slice(None)] * new.ndim
    for k, i in zip(batch, at, strict=True):
      part[k] = i
    place = tuple(slice(s, s + n) for s, n in zip(start, sizes, strict=True))
    what = new[tuple(part)].reshape(sizes)
    out[place] = what if eqn.primitive.name == "scatter" else p.map("add", kind, out[place], what)
  return out


@_rule("sort")
def _(p, eqn, *xs):
  """Sort by exchanges of neighbours (odd-even transposition), in as many rounds as there are numbers."""
  axis, nkeys = eqn.params["dimension"], eqn.params["num_keys"]
  kinds = [_kind(v.aval.dtype) for v in eqn.outvars]
  n = xs[0].shape[axis]
  if n > _MAX_SORTED:
    raise Unsupported(f"sort of {n} numbers")
  rows = [list(np.moveaxis(x, axis, 0)) for x in xs]
  for turn in range(n):
    for k in range(turn % 2, n - 1, 2):
      pairs = [(r[k], r[k + 1]) for r in rows]
      swap = p.map("lt", "p", *pairs[nkeys - 1][::-1])
      for low, high in pairs[: nkeys - 1][::-1]:
        same = p.map("eq", "p", low, high)
        swap = p.map("or", "p", p.map("lt", "p", high, low), p.map("and", "p", same, swap))
      for r, kind, (low, high) in zip(rows, kinds, pairs, strict=True):
        r[k], r[k + 1] = p.map("select", kind, swap, high, low), p.map("select", kind, swap, low, high)
  return [np.moveaxis(np.stack(r), 0, axis) if n else x for r, x in zip(rows, xs, strict=True)]


# calls and loops


@_rule(*CALLS)
def _(p, eqn, *xs):
  inner = eqn.params[CALLS[eqn.primitive.name]]
  return p.run(inner if isinstance(inner, jex_core.ClosedJaxpr) else jex_core.ClosedJaxpr(inner, ()), xs)


@_rule("custom_linear_solve")
def _(p, eqn, *xs):
  lengths = eqn.params["const_lengths"]
  first = lengths.matvec + lengths.vecmat
  return p.run(eqn.params["jaxprs"].solve, [*xs[first : first + lengths.solve], *xs[sum(lengths) :]])


def loop_arguments(eqn: Any) -> tuple[int, int]:
  """Return how many constants and how many carried arrays a scan has; from shapes, as JAX's parameters differ by version."""
  inside = eqn.params["jaxpr"]
  nrows = sum(v.aval.ndim > a.ndim for v, a in zip(eqn.invars, inside.in_avals, strict=True))
  ncarry = sum(v.aval.ndim == a.ndim for v, a in zip(eqn.outvars, inside.out_avals, strict=True))
  return len(eqn.invars) - nrows - ncarry, ncarry


@_rule("scan")
def _(p, eqn, *xs):
  params, length = eqn.params, eqn.params["length"]
  inside = params["jaxpr"]
  nconst, ncarry = loop_arguments(eqn)
  consts, carry, rows = xs[:nconst], list(xs[nconst : nconst + ncarry]), xs[nconst + ncarry :]
  if length > _MAX_TURNS:
    raise Unsupported(f"a loop of {length} turns")
  made = [None] * length
  for k in range(length)[:: -1 if params["reverse"] else 1]:
    out = p.run(inside, [*consts, *carry, *(x[k] for x in rows)])
    carry, made[k] = out[:ncarry], out[ncarry:]
  shapes = [v.aval.shape for v in eqn.outvars[ncarry:]]
  stacked = [np.stack(x) if length else np.zeros(s, np.int64) for x, s in zip(zip(*made, strict=True), shapes, strict=False)]
  return [*carry, *(stacked or [np.zeros(s, np.int64) for s in shapes])]


@_rule("while")
def _(p, eqn, *xs):
  params = eqn.params
  ncond, nbody = params["cond_nconsts"], params["body_nconsts"]
  cond, body, first = xs[:ncond], xs[ncond : ncond + nbody], list(xs[ncond + nbody :])

  def proceeds(state):
    return p.run(params["cond_jaxpr"], [*cond, *state])[0]

  def turn(state):
    return p.run(params["body_jaxpr"], [*body, *state])

  state = first
  for _ in range(_MAX_TURNS):
    going = p.value(int(proceeds(state).item()))
    if going is None:
      return p.loop(proceeds, turn, state)
    if not going:
      return state
    state = turn(state)
  return p.loop(proceeds, turn, first)


@_rule("cond")
def _(p, eqn, which, *xs):
  branches = eqn.params["branches"]
  known = p.value(int(which.item()))
  if known is not None:
    return p.run(branches[min(max(int(known), 0), len(branches) - 1)], xs)
  if len(branches) != 2:
    raise Unsupported("a choice among more than two branches")
  is_first = which if _kind(eqn.invars[0].aval.dtype) == "p" else p.map("ne", "p", which, p.constant(np.int32(0)))
  no, yes = (p.run(b, xs) for b in branches)
  kinds = [_kind(v.aval.dtype) for v in eqn.outvars]
  return [p.map("select", kind, is_first, a, b) for kind, a, b in zip(kinds, yes, no, strict=True)]
