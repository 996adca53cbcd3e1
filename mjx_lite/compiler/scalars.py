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

MAX_NODES = 400_000  # numbers of a program
MAX_ITERATIONS = 64  # iterations of a loop that is unrolled in a kernel
MAX_CONSTANT = 1024  # numbers of an array whose values are known

KINDS = {"float32": "f", "float64": "d", "int32": "i", "int64": "l", "uint32": "u", "uint64": "v", "bool": "p"}
TYPES = {"f": np.float32, "d": np.float64, "i": np.int32, "l": np.int64, "u": np.uint32, "v": np.uint64, "p": np.bool_}
FLOATS, SIGNED, WIDE = frozenset("fd"), frozenset("il"), frozenset("dlv")  # kinds: floats, signed integers, numbers of 64 bits
_COMMUTES = frozenset(("add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"))
COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


class Unsupported(NotImplementedError):
  """An operation that has no scalar form, or a program that is too large."""


class Load(NamedTuple):
  """A number of an input.

  Attributes:
    buffer: index of the input; `-1 - k` for the program's table k.
    row: position of the number in the input.
    per_world: whether each world has its own number; otherwise all worlds share it.
  """

  buffer: int
  row: int
  per_world: bool


class Loop(NamedTuple):
  """A loop: the numbers `params` start as `first`, and are replaced by the numbers `last` as long as `proceeds` holds.

  Attributes:
    depth: depth of the numbers inside, which is the number of loops around them.
    params: the loop's state, as numbers that the operations inside read.
    first: values of the state before the loop.
    proceeds: number of the condition, which is computed before each iteration.
    last: values of the state after an iteration.
  """

  depth: int
  params: tuple[int, ...]
  first: tuple[int, ...]
  proceeds: int
  last: tuple[int, ...]


# types of further data, by operation
_PAYLOADS: dict[str, Any] = {"const": (bool, int, float), "load": Load, "loop": Loop, "after": int}


class Program:
  """A list of numbers, each the result of an operation on earlier numbers.

  Attributes:
    op: name of the operation that computes each number.
    kind: type of each number, a key of `TYPES`.
    args: operands of each number, as indices into the list.
    depth: number of loops around each number, 0 outside of loops.
    payload: further data of some operations, by number: the value of a constant, a `Load`, a `Loop`, or, for a number after a
      loop, the index of that number in the loop's state.
    tables: constants (n,) that are indexed by a number of the program; further inputs, which all worlds share.
  """

  def __init__(self):
    self.op: list[str] = []
    self.kind: list[str] = []
    self.args: list[tuple[int, ...]] = []
    self.depth: list[int] = []
    self.payload: dict[int, Any] = {}
    self.tables: list[np.ndarray] = []
    self._known: dict[Any, int] = {}
    self._inside = 0  # loops around the current operation

  def __str__(self) -> str:
    """Return one line for each number: its kind, its operation, its operands and further data."""
    lines = []
    for k, (op, kind, args) in enumerate(zip(self.op, self.kind, self.args, strict=True)):
      words = [op, *(f"%{a}" for a in args)]
      if k in self.payload:
        x = self.payload[k]
        shown = f"params %{x.params[0]}... proceeds %{x.proceeds} last {list(x.last)}" if isinstance(x, Loop) else x
        words.append(f"[{shown}]")
      lines.append(f"{'  ' * self.depth[k]}%{k}: {kind or '-'} = {' '.join(words)}")
    return "\n".join(lines)

  @property
  def computed(self) -> frozenset[str]:
    """Kinds of the numbers that are loaded or computed: a constant of another kind may remain from a conversion."""
    return frozenset(kind for kind, op in zip(self.kind, self.op, strict=True) if op != "const")

  def verify(self) -> None:
    """Check that operands precede results, and that kinds and further data are those that the operations need.

    Raises:
      ValueError: they are not; the message has the number and its operation.
    """
    for k, (op, kind, args) in enumerate(zip(self.op, self.kind, self.args, strict=True)):
      kinds, data = [self.kind[a] for a in args if 0 <= a < k], _PAYLOADS.get(op)
      allowed = ("",) if op in ("table", "loop") else "p" if op in COMPARES else TYPES
      wrong = (
        "an operand that comes later" if len(kinds) < len(args)
        else f"further data {self.payload.get(k)!r}" if data is not None and not isinstance(self.payload.get(k), data)
        else f"the kind {kind!r}" if kind not in allowed
        else f"operands of the kinds {kinds}" if (op == "select" and kinds != ["p", kind, kind])
        or (op in _COMMUTES | {"sub", "div"} and len(set(kinds)) > 1)
        else ""
      )  # fmt: skip
      if wrong:
        raise ValueError(f"number {k}, {op}, has {wrong}")

  # ------------------------------------------------------------------------------------------------------------ numbers

  def _new(self, key: Any, op: str, kind: str, args: tuple[int, ...], depth: int, payload: Any = None) -> int:
    k = len(self.op)
    if k >= MAX_NODES:
      raise Unsupported(f"the program has more than {MAX_NODES} numbers, which is too large for machine code")
    self.op.append(op)
    self.kind.append(kind)
    self.args.append(args)
    self.depth.append(depth)
    if payload is not None:
      self.payload[k] = payload
    if key is not None:
      self._known[key] = k
    return k

  def const(self, value: Any, kind: str) -> int:
    """Return the number of a constant."""
    value = TYPES[kind](value).item()
    key = ("const", kind, struct.pack(kind, value) if kind in FLOATS else value)
    found = self._known.get(key)
    return self._new(key, "const", kind, (), 0, value) if found is None else found

  def value(self, k: int) -> Any:
    """Return the value of number k if it is a constant, else None."""
    return self.payload[k] if self.op[k] == "const" else None

  def load(self, load: Load, kind: str) -> int:
    """Return the number at a position of an input."""
    found = self._known.get(load)
    return self._new(load, "load", kind, (), 0, load) if found is None else found

  def table(self, numbers: tuple[int, ...], kind: str) -> int:
    """Return a table of numbers, which operation `fetch` indexes by a number; a table of constants becomes a further input."""
    key = "table", kind, numbers
    found = self._known.get(key)
    if found is None:
      values = [self.value(k) for k in numbers]
      if None not in values:
        self.tables.append(np.array(values, TYPES[kind]))
        numbers = tuple(self.load(Load(-len(self.tables), k, False), kind) for k in range(len(values)))
      found = self._new(key, "table", "", numbers, max(self.depth[k] for k in numbers))
    return found

  def in_place(self, table: int) -> Load | int | None:
    """Return where a table's numbers are consecutive in memory already, so that the table needs no copy; None if nowhere.

    The result is the `Load` of the table's first number, or, if the table is part of a loop's state, the first number.
    """
    order = self.args[table]
    if self.op[order[0]] == "load":
      a = self.payload[order[0]]
      same = all(self.op[k] == "load" and self.payload[k] == (a.buffer, a.row + i, a.per_world) for i, k in enumerate(order))
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
    """Return a simpler number that equals the result of an operation: a constant, an operand, or another operation; or None."""
    values = [self.payload[a] if self.op[a] == "const" else None for a in args]
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
        return self.const(folded(*(TYPES[self.kind[a]](v) for a, v in zip(args, values, strict=True))), kind)
    if len(args) != 2:
      return None
    at = 0 if known[0] else 1
    v, unknown = values[at], args[1 - at]
    if kind == "p" and op in ("and", "or", "xor"):
      return _choice(op, v, unknown, args[at], lambda: self.make("not", "p", unknown))
    if kind == "p":
      return None
    if (op == "add" and v == 0) or (op == "sub" and at == 1 and v == 0) or (op == "div" and at == 1 and v == 1):
      return unknown
    if op == "sub" and v == 0:
      return self.make("neg", kind, unknown)
    if op == "mul":
      return args[at] if v == 0 else unknown if v == 1 else self.make("neg", kind, unknown) if v == -1 else None
    return None

  # ------------------------------------------------------------------------------------------------------------- arrays

  def constant(self, x: Any) -> np.ndarray:
    """Return the numbers of a constant array."""
    x = np.asarray(x)
    kind = kind_of(x.dtype)
    return array([self.const(v, kind) for v in x.ravel().tolist()], x.shape)

  def inputs(self, buffer: int, shape: Sequence[int], dtype: Any, per_world: bool) -> np.ndarray:
    """Return the numbers of an input (..., 1)."""
    kind = kind_of(dtype)
    return array([self.load(Load(buffer, k, per_world), kind) for k in range(math.prod(shape))], shape)

  def map(self, op: str, kind: str, *xs: np.ndarray) -> np.ndarray:
    """Apply an operation elementwise to arrays of numbers, with broadcasting."""
    xs = tuple(np.broadcast_arrays(*xs)) if len({x.shape for x in xs}) > 1 else xs
    make = self.make
    return array([make(op, kind, *a) for a in zip(*(x.ravel().tolist() for x in xs), strict=True)], xs[0].shape)

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
      if not isinstance(v, jex_core.Literal):
        return env[v]
      return self.constant(np.asarray(v.val, v.aval.dtype))  # pyright: ignore[reportAttributeAccessIssue]

    for eqn in jaxpr.eqns:
      rule = RULES.get(eqn.primitive.name)
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

  def loop(self, proceeds: Callable[[list], np.ndarray], body: Callable[[list], list], state: list) -> list:
    """Write a loop that repeats `body` while `proceeds` holds; return the state after the loop."""
    first = tuple(itertools.chain.from_iterable(x.ravel().tolist() for x in state))
    self._inside += 1
    depth = self._inside
    params = tuple(self._new(None, "param", self.kind[a], (), depth) for a in first)
    bounds = np.cumsum([0, *(x.size for x in state)])
    inside = [array(params[a:b], x.shape) for a, b, x in zip(bounds, bounds[1:], state, strict=False)]
    condition = int(proceeds(inside).item())
    last = tuple(itertools.chain.from_iterable(x.ravel().tolist() for x in body(inside)))
    self._inside -= 1
    free = self.reached((condition, *last), depth)[1]
    args = (*first, *free)
    around = max((self.depth[a] for a in args), default=0)
    k = self._new(None, "loop", "", args, around, Loop(depth, params, first, condition, last))
    after = [self._new(None, "after", self.kind[a], (k,), around, i) for i, a in enumerate(first)]
    return [array(after[a:b], x.shape) for a, b, x in zip(bounds, bounds[1:], state, strict=False)]

  def reached(self, roots: Iterable[int], depth: int) -> tuple[list[int], list[int]]:
    """Return the numbers that `roots` depend on: those to compute in a loop of this depth, in order, and those from outside."""
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


def is_long(eqn: Any) -> bool:
  """Return whether an equation is a loop that is too long to be unrolled, or has such a loop inside."""
  is_loop = eqn.primitive.name == "scan" and eqn.params["length"] > MAX_ITERATIONS
  return is_loop or any(is_long(e) for j in jex_core.jaxprs_in_params(eqn.params) for e in j.eqns)


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
    raise Unsupported("the program's inputs or results are not constants, or there are too many")
  p = Program()
  known = [p.constant(np.asarray(x, a.dtype)) for x, a in zip(inputs, closed.in_avals, strict=True)]
  values = [[p.value(k) for k in x.ravel().tolist()] for x in p.run(closed, known)]
  if any(None in x for x in values):
    raise Unsupported("a result is known only when the program runs")
  return [np.array(x, a.dtype).reshape(a.shape) for x, a in zip(values, closed.out_avals, strict=True)]


def array(numbers: Sequence[int], shape: Sequence[int]) -> np.ndarray:
  """Return the numbers as an array of a shape."""
  return np.array(numbers, np.int64).reshape(shape)


def kind_of(dtype: Any) -> str:
  """Return the kind of a dtype.

  Raises:
    Unsupported: programs have no such numbers.
  """
  try:
    return KINDS[jax.dtypes.canonicalize_dtype(dtype).name]
  except (KeyError, TypeError):
    raise Unsupported(f"machine code has no numbers of dtype {dtype}") from None


def _choice(op: str, value: Any, unknown: int, known: int, negated: Callable[[], int]) -> int:
  """Return the result of `and`, `or` or `xor` of a number `unknown` and a constant, the number `known` with this value."""
  if op == "xor":
    return negated() if value else unknown
  return unknown if value == (op == "and") else known


_FOLDED: dict[str, Callable[..., Any]] = {
  "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": lambda x: -x, "abs": abs, "min": np.minimum,
  "max": np.maximum, "floor": np.floor, "ceil": np.ceil, "round": np.round, "sqrt": np.sqrt, "not": np.invert,
  "and": operator.and_, "or": operator.or_, "xor": operator.xor, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
  "le": operator.le, "gt": operator.gt, "ge": operator.ge, "convert": lambda x: x,
  "div": lambda a, b: a / b if isinstance(a, np.floating) else (a - np.fmod(a, b)) // b if b else type(a)(-1),
  "rem": lambda a, b: np.fmod(a, b), "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip

# rules by the name of a primitive: a function of the program, the equation and the numbers of the operands
RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Return a decorator that registers the scalar rule of primitives."""

  def register(function):
    for name in names:
      RULES[name] = function
    return function

  return register


def take_rows(p: Program, x: np.ndarray, index: np.ndarray, kind: str) -> np.ndarray:
  """Return the rows `x[index]`, zeros where the index is negative."""
  out = x[np.maximum(index, 0)] if len(x) else np.zeros((len(index), *x.shape[1:]), np.int64)
  out[index < 0] = p.const(0, kind)
  return out


def loop_arguments(eqn: Any) -> tuple[int, int]:
  """Return how many constants and how many carried arrays a scan has; from shapes, as JAX's parameters differ by version."""
  inside = eqn.params["jaxpr"]
  nrows = sum(v.aval.ndim > a.ndim for v, a in zip(eqn.invars, inside.in_avals, strict=True))
  ncarry = sum(v.aval.ndim == a.ndim for v, a in zip(eqn.outvars, inside.out_avals, strict=True))
  return len(eqn.invars) - nrows - ncarry, ncarry
