"""Scalar programs: one world's program of arrays as operations on numbers, for a thread of a GPU or a lane of a CPU's vectors.

`Program.run` goes through the operations of one world, as JAX traces them, and writes an operation for each number of their
results. Then reshapes, slices and concatenations cost nothing. Loops of known length are unrolled. A product with a constant
zero is zero, even if the other factor is not finite. Equal operations are computed once. Loops that end by a condition stay
loops, and end for each world by itself. `backends/` compiles the program to kernels.
"""

import bisect
import functools
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler.operations import (
  COMMUTES,
  COMPARES,
  FLOATS,
  KINDS,
  PAYLOADS,
  TYPES,
  Block,
  Load,
  Loop,
  Place,
  Queue,
  simplified,
)  # fmt: skip

MAX_NODES, MAX_LOADS = 800_000, 32_000_000  # numbers that a program computes, and those that it reads
MAX_ITERATIONS = 64  # iterations of a loop that is unrolled in a kernel
UNROLLED = 300  # numbers of an iteration of a loop that is unrolled in a kernel with loops
MAX_CONSTANT = 1024  # numbers of an array whose values are known
MAX_INDEX = 16_384  # numbers of an array of whole numbers whose values are known, if at most half of them are different
ONLY_KERNELS = frozenset(("mjx_queue", "mjx_empty"))  # names of the primitives of `queue.py`
MAX_COMPARED = 8  # numbers of a table whose entry is found by comparisons


class Unsupported(NotImplementedError):
  """An operation that has no scalar form, or a program that is too large."""


class Program:
  """A list of numbers, each the result of an operation on earlier numbers.

  Attributes:
    op: name of the operation that computes each number.
    kind: type of each number, a key of `TYPES`.
    args: operands of each number, as indices into the list.
    depth: number of loops around each number, 0 outside of loops.
    payload: further data of some operations, by number: the value of a constant, a `Loop`; for a number after a loop the index
      of that number in the loop's state; for `put` a position; for a table its `Place`, if it needs no copy.
    blocks: the numbers of the inputs, in order.
    tables: constants (n,) that are indexed by a number of the program; further inputs, which all worlds share.
    unset: constants of any value: nothing depends on them, and a kernel need not store them.
    rows_of_zeros: what `rules/index.py` knows of arrays, by their numbers: the rows that were added to zeros to make them.
    iteration, total: numbers that a loop of known length may compute in one iteration and in all of them, if it is unrolled.
      With an infinite total there are no such loops: all of them are unrolled.
  """

  def __init__(self, iteration: float = math.inf, total: float = math.inf):
    self.iteration, self.total = iteration, total
    self.op: list[str] = []
    self.kind: list[str] = []
    self.args: list[tuple[int, ...]] = []
    self.depth: list[int] = []
    self.payload: dict[int, Any] = {}
    self.tables: list[np.ndarray] = []
    self.blocks: list[Block] = []
    self.unset: set[int] = set()
    self.rows_of_zeros: dict[Any, Any] = {}
    self._known: dict[Any, int] = {}
    self._inside = 0  # loops around the current operation
    self._loads = 0  # numbers of all blocks

  def __str__(self) -> str:
    """Return one line for each number: its kind, its operation, its operands and further data."""
    lines = []
    for k, (op, kind, args) in enumerate(zip(self.op, self.kind, self.args, strict=True)):
      words = [op, *(f"%{a}" for a in args)]
      if k in self.payload or op == "load":
        x = self.load(k) if op == "load" else self.payload[k]
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
      kinds, data = [self.kind[a] for a in args if 0 <= a < k], PAYLOADS.get(op)
      allowed = ("",) if op in ("table", "loop", "queue") else "p" if op in COMPARES else TYPES
      wrong = (
        "an operand that comes later" if len(kinds) < len(args)
        else f"further data {self.payload.get(k)!r}" if data is not None and not isinstance(self.payload.get(k), data)
        else f"the kind {kind!r}" if kind not in allowed
        else f"operands of the kinds {kinds}" if (op == "select" and kinds != ["p", kind, kind])
        or (op in COMMUTES | {"sub", "div"} and len(set(kinds)) > 1)
        else ""
      )  # fmt: skip
      if wrong:
        raise ValueError(f"number {k}, {op}, has {wrong}")

  # ------------------------------------------------------------------------------------------------------------ numbers

  def _new(self, key: Any, op: str, kind: str, args: tuple[int, ...], depth: int, payload: Any = None) -> int:
    k = len(self.op)
    if k - self._loads >= MAX_NODES:
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

  def any_value(self, kind: str) -> int:
    """Return a number of any value, on which nothing depends."""
    found = self._known.get(("unset", kind))
    if found is None:
      found = self._new(("unset", kind), "const", kind, (), 0, TYPES[kind](0).item())
      self.unset.add(found)
    return found

  def value(self, k: int) -> Any:
    """Return the value of number k if it is a constant, else None."""
    return self.payload[k] if self.op[k] == "const" else None

  def loads(self, load: Load, number: int, kind: str) -> np.ndarray:
    """Return the numbers (n,) at consecutive positions of an input, from a position on."""
    first = len(self.op)
    self._loads += number
    if self._loads > MAX_LOADS:
      raise Unsupported(f"the program reads more than {MAX_LOADS} numbers, which is too large for machine code")
    self.blocks.append(Block(first, number, load))
    self.op.extend(["load"] * number)
    self.kind.extend([kind] * number)
    self.args.extend([()] * number)
    self.depth.extend([0] * number)
    return np.arange(first, first + number)

  def load(self, k: int) -> Load:
    """Return where number k of an input is."""
    first, _, (buffer, row, per_world) = self.blocks[bisect.bisect_right(self.blocks, k, key=lambda x: x.first) - 1]
    return Load(buffer, row + k - first, per_world)

  def key(self) -> Any:
    """Return what determines the program, except for the values in its tables."""
    numbers = zip(range(len(self.op)), self.op, self.kind, self.args, self.depth, strict=True)
    computed = [(op, kind, args, depth, self.payload.get(k)) for k, op, kind, args, depth in numbers if op != "load"]
    kinds = [self.kind[x.first] if x.size else "" for x in self.blocks]
    return computed, self.blocks, kinds, [x.shape for x in self.tables], sorted(self.unset)

  def table(self, numbers: np.ndarray, kind: str) -> int:
    """Return a table of numbers (n,), which operation `fetch` indexes; a table of constants becomes a further input."""
    key = "table", kind, numbers.tobytes()
    found = self._known.get(key)
    if found is None:
      if all(self.op[k] == "const" for k in numbers.tolist()):
        self.tables.append(np.array([self.payload[k] for k in numbers.tolist()], TYPES[kind]))
        numbers = self.loads(Load(-len(self.tables), 0, False), len(numbers), kind)
      place, order = self._place(numbers), numbers.tolist()
      if place is not None and isinstance(place.first, Load) and len(order) > MAX_COMPARED:
        order = order[:1]  # nothing has to be computed before
      found = self._new(key, "table", "", tuple(order), max(self.depth[k] for k in order), place)
    return found

  def _place(self, numbers: np.ndarray) -> Place | None:
    """Return where numbers are at equal distances in memory already; None if nowhere.

    The numbers of an input, of a loop's state and of its results are consecutive.
    """
    first, last = int(numbers[0]), int(numbers[-1])
    step = int(numbers[1]) - first if len(numbers) > 1 else 1
    if step < 1 or self._owner(first) is None or self._owner(first) != self._owner(last) or (np.diff(numbers) != step).any():
      return None
    return Place(self.load(first) if self.op[first] == "load" else first, step)

  def _owner(self, k: int) -> Any:
    """Return the input, the state or the results of a loop that a number is part of; None if it is computed."""
    match self.op[k]:
      case "load":
        return "load", self.load(k)[::2]
      case "after":
        return "after", self.args[k]
      case "param":
        return "param", self.depth[k]

  def put(self, kind: str, old: int, index: int, new: int, position: int) -> int:
    """Return the number at a position of an array after a write at a computed index: `new` there, `old` elsewhere."""
    known = self.value(index)
    if known is not None or old == new:
      return new if known == position else old
    key = "put", kind, (old, index, new), position
    found = self._known.get(key)
    return self._new(key, *key[:3], max(self.depth[a] for a in key[2]), position) if found is None else found

  def make(self, op: str, kind: str, *args: int) -> int:
    """Return the result of an operation on numbers: simplified where possible, or an equal number that exists already."""
    simple = simplified(self, op, kind, args)
    if simple is not None:
      return simple
    if op in COMMUTES and args[0] > args[1]:
      args = args[::-1]
    key = op, kind, args
    found = self._known.get(key)
    if found is not None:
      return found
    return self._new(key, op, kind, args, max(self.depth[a] for a in args))

  # ------------------------------------------------------------------------------------------------------------- arrays

  def constant(self, x: Any) -> np.ndarray:
    """Return the numbers of a constant array."""
    kind = kind_of(np.asarray(x).dtype)
    x = np.asarray(x, TYPES[kind])
    if x.size <= MAX_CONSTANT:
      return array([self.const(v, kind) for v in x.ravel().tolist()], x.shape)
    # by bits, as -0 is not 0
    values, position = np.unique(x.ravel().view(f"u{x.itemsize}") if kind in FLOATS else x, return_inverse=True)
    values = values.view(x.dtype)
    if 2 * len(values) > x.size:  # no structure: such a constant is read, not known
      self.tables.append(x.ravel())
      return self.loads(Load(-len(self.tables), 0, False), x.size, kind).reshape(x.shape)
    return np.array([self.const(v, kind) for v in values.tolist()], np.int64)[position].reshape(x.shape)

  def inputs(self, buffer: int, shape: Sequence[int], dtype: Any, per_world: bool) -> np.ndarray:
    """Return the numbers of an input (..., 1)."""
    kind = kind_of(dtype)
    return self.loads(Load(buffer, 0, per_world), math.prod(shape), kind).reshape(shape)

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
      if v.aval.dtype == jax.dtypes.float0:  # tangents of whole numbers, which are read by tangents of whole numbers only
        return np.zeros(v.aval.shape, np.int64)
      if not isinstance(v, jex_core.Literal):
        return env[v]
      return self.constant(np.asarray(v.val, v.aval.dtype))  # pyright: ignore[reportAttributeAccessIssue]

    for eqn in jaxpr.eqns:
      if eqn.outvars and all(v.aval.dtype == jax.dtypes.float0 for v in eqn.outvars):
        continue
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
    self._inside += 1
    loop, inside = self._loop(proceeds, body, state)
    self._inside -= 1
    args = (*loop.first, *self.reached((loop.proceeds, *loop.last), loop.depth)[1])
    around = max((self.depth[a] for a in args), default=0)
    k = self._new(None, "loop", "", args, around, loop)
    after = [self._new(None, "after", self.kind[a], (k,), around, i) for i, a in enumerate(loop.first)]
    return cut(after, inside)

  def _loop(self, proceeds: Callable[[list], np.ndarray], body: Callable[[list], list], state: list) -> tuple[Loop, list]:
    """Write the inside of a loop; return the loop, and its state as arrays."""
    depth, first = self._inside, flat(state)
    inside = cut([self._new(None, "param", self.kind[a], (), depth) for a in first], state)
    condition = int(proceeds(inside).item())
    return Loop(depth, flat(inside), first, condition, flat(body(inside))), inside

  def queue(
    self, wanted: np.ndarray, body: Callable[[Any], list], rows: list,
    search: tuple[Callable[[int], list], Callable[[list], np.ndarray], Callable[[list], list]] | None = None,
  ) -> list:  # fmt: skip
    """Write a queue of the wanted items (n,); return the rows (n, ...) with those of wanted items replaced by computed rows.

    Args:
      wanted: the mask.
      body: function of an item that returns the item's rows; with a search, of the last state.
      rows: the rows of all items before.
      search: functions of a loop for each item: the first state of an item; whether a state proceeds; and the next state.
    """
    self._inside += 1
    depth = self._inside
    item = self._new(None, "param", "i", (), depth)
    loop, at = (None, item) if search is None else self._loop(*search[1:], search[0](item))
    last = flat(body(at))
    self._inside -= 1
    first = tuple(np.concatenate([x.reshape(len(wanted), -1) for x in rows], axis=1).ravel().tolist())
    inside = (*last, *(() if loop is None else (*loop.first, loop.proceeds, *loop.last)))
    args = (*wanted.tolist(), *first, *self.reached(inside, depth)[1])
    around = max((self.depth[a] for a in args), default=0)
    k = self._new(None, "queue", "", args, around, Queue(depth, tuple(wanted.tolist()), item, first, last, loop))
    after = array([self._new(None, "after", self.kind[a], (k,), around, i) for i, a in enumerate(first)], (len(wanted), -1))
    bounds = np.cumsum([0, *(x[0].size for x in rows)])
    return [after[:, a:b].reshape(x.shape) for a, b, x in zip(bounds, bounds[1:], rows, strict=False)]

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


def is_for_kernels(eqn: Any) -> bool:
  """Return whether an equation has operations that only kernels have."""
  inside = (e for j in jex_core.jaxprs_in_params(eqn.params) for e in j.eqns)
  return eqn.primitive.name in ONLY_KERNELS or any(map(is_for_kernels, inside))


def is_constant(x: Any) -> bool:
  """Return whether an array has known numbers, not too many of them, and a dtype that programs support."""
  if isinstance(x, jax.core.Tracer) or np.size(x) > MAX_INDEX or not getattr(x, "is_fully_addressable", True):
    return False
  dtype = jnp.result_type(x)
  is_index = np.size(x) > MAX_CONSTANT and jnp.issubdtype(dtype, jnp.integer) and 2 * len(np.unique(x)) <= np.size(x)
  return dtype.name in KINDS and (is_index or np.size(x) <= MAX_CONSTANT)


def constants(closed: jex_core.ClosedJaxpr, inputs: Sequence[Any]) -> list[np.ndarray]:
  """Return the results of a small program of constants.

  Raises:
    Unsupported: the results are not known before the program runs, or there are too many.
  """
  are_indices = all(jnp.issubdtype(a.dtype, jnp.integer) for a in closed.out_avals)
  most = MAX_INDEX if are_indices else MAX_CONSTANT
  if not all(map(is_constant, inputs)) or sum(map(numbers, closed.jaxpr.eqns)) > most:
    raise Unsupported("the program's inputs or results are not constants, or there are too many")
  p = Program()
  known = [p.constant(np.asarray(x, a.dtype)) for x, a in zip(inputs, closed.in_avals, strict=True)]
  values = [[p.value(k) for k in x.ravel().tolist()] for x in p.run(closed, known)]
  if any(None in x for x in values):
    raise Unsupported("a result is known only when the program runs")
  return [np.array(x, a.dtype).reshape(a.shape) for x, a in zip(values, closed.out_avals, strict=True)]


def flat(arrays: Iterable[np.ndarray]) -> tuple[int, ...]:
  """Return the numbers of all arrays, in order."""
  return tuple(itertools.chain.from_iterable(x.ravel().tolist() for x in arrays))


def cut(numbers: Sequence[int], like: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Return the numbers as arrays of the shapes of the arrays `like`, in order."""
  bounds = np.cumsum([0, *(x.size for x in like)])
  return [array(numbers[a:b], x.shape) for a, b, x in zip(bounds, bounds[1:], like, strict=False)]


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
