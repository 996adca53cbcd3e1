"""Steps as kernels: the operations of one world become a program of scalars (`scalars.py`), which is the same for all worlds.

A thread of a GPU runs this program for one world (`backends/ptx.py`); on a CPU a lane of a vector runs the program
(`backends/llvm.py`). XLA computes the values that all worlds share, and moves arrays between kernels.

Tests: tests/compiler/test_llvm.py.
"""

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler import regions, scalars
from mjx_lite.compiler.scalars import Program, Unsupported, loop_arguments

_ROWS = 8192  # numbers of one world in rows of a loop that one kernel computes
_SHARED = 50_000  # numbers of the operations that all worlds share, above which XLA computes them


class Kernels(NamedTuple):
  """Builder of kernels for a given number of worlds.

  Attributes:
    call: function that compiles and calls a kernel. Its arguments are a program, the input arrays, the scalars of each result
      (indices into the program), the dtypes of the results, and the number of worlds; on CPU also the first part of its name.
      It returns the result arrays.
    worlds: number of worlds. With a single world, kernels compute everything that is not constant.
    loop: numbers that a loop of known length may compute in all its iterations, if it is unrolled. A larger loop, and a loop of
      more than `scalars.MAX_ITERATIONS` iterations, is a loop of the kernel on a CPU; on a GPU each iteration is a kernel.
    on_cpu: whether the device is a CPU.
    has_loops: whether loops are unrolled only if an iteration is small.
  """

  call: Callable[..., list[Any]]
  worlds: int
  loop: int
  on_cpu: bool
  has_loops: bool = False

  @property
  def axis(self) -> int:
    """The world axis: on a CPU the first axis, as in users' arrays; on a GPU the last axis, in the order of the threads."""
    return 0 if self.on_cpu and self.worlds > 1 else -1

  def evaluate(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the per-world results of a program of one world.

    Args:
      closed: the program.
      inputs: per-world arrays with their world axis at `axis`, or arrays (..., 1) that all worlds share.

    Raises:
      Unsupported: an operation has no scalar form, or the program is too large.
    """
    return self._prepared(closed, dict(zip(closed.jaxpr.invars, inputs, strict=True)))({})

  def _prepared(self, closed: Any, known: dict[Any, Any]) -> Callable[[dict[Any, Any]], list[Any]]:
    """Compute the shared values of a program from the arguments in `known`; return a function that computes the results.

    That function takes the remaining arguments, as a dict from variable to array. In a loop that is too large for one kernel
    it is called in each iteration, and the shared values are computed once, before the loop.
    """
    eqns, outvars = regions.inlined(closed, closed.jaxpr.invars, known)
    last = regions.last_reads(eqns, outvars)
    shared = {v for v, x in known.items() if self._is_shared(x, v.aval)}

    per_world, common = [], []
    for k, e in enumerate(eqns):
      if not shared.issuperset(regions.variables([e])) or (self.has_loops and scalars.is_for_kernels(e)):
        per_world.append((k, e))
        continue
      outs = [v for v in e.outvars if v in last]
      shared.update(outs)
      if not _become_constants(closed, known, e, outs):
        common.append(e)
        if _is_one_number(e, known):  # a kernel sets it, which takes less than to read it
          per_world.append((k, e))
    read = {*regions.variables([e for _, e in per_world]), *(v for v in outvars if not isinstance(v, jex_core.Literal))}
    if common:
      outs = [v for e in common for v in e.outvars if v in read]
      regions.run_part(closed, known, self._shared, common, outs)

    def rest(arguments):
      values, part = {**known, **arguments}, []

      def run_part(end):
        if part:
          made = dict.fromkeys(v for e in part for v in e.outvars)
          inputs = {v: x for v, x in values.items() if v not in made}
          outs = [v for v in made if last.get(v, -1) >= end and v not in values]
          regions.run_part(closed, inputs, self._together, list(part), outs)
          values.update((v, inputs[v]) for v in outs)
          part.clear()

      for k, e in per_world:
        is_loop = e.primitive.name == "scan" and e.params["length"] > 1
        is_large = is_loop and (scalars.numbers(e) > self.loop or scalars.is_long(e))
        if is_large and (count := self._at_once(e)) < e.params["length"]:
          run_part(k)
          values.update(zip(e.outvars, self._stepped(e, values, count), strict=True))
        else:
          part.append(e)
      run_part(len(eqns))
      return [self._wide(x, v.aval) for x, v in zip(regions.read(outvars, values), outvars, strict=True)]

    return rest

  def _shared(self, closed: Any, inputs: Sequence[jax.Array]) -> list[Any]:
    """Return the results of shared operations: on CPU by a kernel of one world, which compiles faster than what XLA makes.

    Operations without a scalar form, or of too many numbers, become regions.
    """
    if not self.on_cpu:
      return regions.evaluate_plainly(closed, *inputs)
    one = self._replace(worlds=1, call=functools.partial(self.call, name="mjx_shared"))
    if sum(map(scalars.numbers, closed.jaxpr.eqns)) <= _SHARED:
      with contextlib.suppress(Unsupported):
        return [x.reshape(a.shape) for x, a in zip(one._together(closed, inputs), closed.out_avals, strict=True)]
    return regions.evaluate(closed, *inputs)

  def _is_shared(self, x: Any, aval: Any) -> bool:
    return np.shape(x) == aval.shape and (self.worlds > 1 or not isinstance(x, jax.core.Tracer))

  def _at_once(self, eqn: Any) -> int:
    """Return the iterations of a loop that one kernel computes: its rows have to fit into memory that stays in the cache."""
    length, (nconst, ncarry) = eqn.params["length"], loop_arguments(eqn)
    size = sum(v.aval.size for v in (*eqn.invars[nconst + ncarry :], *eqn.outvars[ncarry:]))
    most = _ROWS * length // max(size, 1) if self.on_cpu else 1
    return max(k for k in range(1, length + 1) if length % k == 0 and k <= max(1, most))

  def _stepped(self, eqn: Any, known: dict[Any, Any], count: int) -> list[jax.Array]:
    """Return the results of a loop that is too large for one kernel: `count` iterations at once call kernels."""
    (nconst, ncarry), length = loop_arguments(eqn), eqn.params["length"]
    inside = _shorter(eqn, count, nconst + ncarry)
    operands = regions.read(eqn.invars, known)
    consts, changing = inside.jaxpr.invars[:nconst], inside.jaxpr.invars[nconst:]
    rest = self._prepared(inside, dict(zip(consts, operands, strict=False)))

    def step(*args):
      return rest(dict(zip(changing, args, strict=True)))

    first = [self._wide(x, a) for x, a in zip(operands[nconst:], inside.in_avals[nconst : nconst + ncarry], strict=False)]
    # a loop needs its iteration axis first; per-world arrays on CPU have their world axis first
    own = [(x, v.aval.shape) for x, v in zip(operands, eqn.invars, strict=True)][nconst + ncarry :]
    is_shared = [x.shape == shape for x, shape in own]
    xs = [jnp.reshape(x, self._cut(x.shape, shared, count)) for (x, _), shared in zip(own, is_shared, strict=True)]
    xs = [x if shared else self._swapped(x) for x, shared in zip(xs, is_shared, strict=True)]

    def trace(step):
      def advance(carry, row):
        out = step(*carry, *row)
        return out[:ncarry], out[ncarry:]

      carry, made = jax.lax.scan(advance, first, xs, length // count, eqn.params["reverse"])
      made = map(self._swapped, made)
      return [*carry, *(x.reshape(self._shape(v.aval)) for x, v in zip(made, eqn.outvars[ncarry:], strict=True))]

    return _ended(trace, step, [jax.ShapeDtypeStruct(self._shape(a), a.dtype) for a in inside.out_avals])

  def _cut(self, shape: tuple[int, ...], is_shared: bool, count: int) -> tuple[int, ...]:
    """Return the shape of rows of a loop with the iteration axis cut into parts of `count` iterations."""
    axis = 1 if self.axis == 0 and not is_shared else 0
    return (*shape[:axis], shape[axis] // count, count, *shape[axis + 1 :])

  def _swapped(self, x: jax.Array) -> jax.Array:
    """Return the array with the world axis and the iteration axis swapped, if the world axis is the first axis."""
    return jnp.swapaxes(x, 0, 1) if self.axis == 0 else x

  def _wide(self, x: Any, aval: Any) -> jax.Array:
    x, shape = jnp.asarray(x), self._shape(aval)
    if x.shape == shape:
      return x
    return jnp.broadcast_to(jnp.expand_dims(x.reshape(_inner(aval.shape)), self.axis), shape)

  def _shape(self, aval: Any) -> tuple[int, ...]:
    return wide(aval.shape, self.worlds, self.axis)

  def _together(self, closed: Any, inputs: Sequence[jax.Array]) -> list[Any]:
    """Return the results of one kernel."""
    p = Program(scalars.UNROLLED if self.has_loops else math.inf, self.loop if self.on_cpu else math.inf)
    arguments: list[np.ndarray] = []
    read: dict[Any, int] = {}  # large constants, which may come several times
    for k, (x, a) in enumerate(zip(inputs, closed.in_avals, strict=True)):
      contents = _contents(x)
      first = k if contents is None else read.setdefault((a.shape, contents), k)
      arguments.append(
        p.constant(np.asarray(x, a.dtype))  # a literal of Python's has no dtype of its own
        if x.shape == a.shape and scalars.is_constant(x)
        else arguments[first]
        if first < k
        else p.inputs(k, a.shape, a.dtype, x.shape != a.shape)
      )
    outs = p.run(closed, arguments)
    passed = {k: i for k, out in enumerate(outs) for i in self._whole(p, out, inputs)}
    made = [k for k in range(len(outs)) if k not in passed]
    dtypes = [closed.out_avals[k].dtype for k in made]
    new = iter(self._built(p, inputs, [outs[k] for k in made], dtypes) if made else [])
    return [inputs[passed[k]] if k in passed else next(new) for k in range(len(outs))]

  def _whole(self, p: Program, out: np.ndarray, inputs: Sequence[jax.Array]) -> list[int]:
    """Return, as a list, the index of the input that equals the result `out`; an empty list if no input does."""
    order = out.ravel().tolist()
    if not order or p.op[order[0]] != "load":
      return []
    k = p.load(order[0]).buffer
    is_whole = k >= 0 and inputs[k].shape == wide(out.shape, self.worlds, self.axis)
    return [k] if is_whole and all(
      p.op[n] == "load" and p.load(n) == (k, i, self.worlds > 1) for i, n in enumerate(order)
    ) else []  # fmt: skip

  def _built(self, p: Program, inputs: Sequence[jax.Array], outs: Sequence[np.ndarray], dtypes: Sequence[Any]) -> list[Any]:
    """Return the results of `call`; raise any exception in it, except MemoryError, as `Unsupported`."""
    try:
      return self.call(p, inputs, outs, dtypes, self.worlds)
    except (Unsupported, MemoryError):
      raise
    except Exception as error:
      raise Unsupported(f"building the kernel failed: {type(error).__name__}: {error}") from error


def _contents(x: Any) -> Any:
  """Return a key that equal large constants share; None for other arrays."""
  if isinstance(x, jax.core.Tracer) or np.size(x) <= scalars.MAX_CONSTANT or not getattr(x, "is_fully_addressable", True):
    return None
  numbers = np.asarray(x)
  return numbers.shape, numbers.dtype.name, hashlib.sha256(numbers.tobytes()).digest()


def _shorter(eqn: Any, length: int, nfirst: int) -> Any:
  """Return a program of a loop with fewer iterations; `nfirst` of its operands are constants and the carry."""
  avals = [v.aval for v in eqn.invars]
  rows = [jax.core.ShapedArray((length, *a.shape[1:]), a.dtype) for a in avals[nfirst:]]
  return jax.make_jaxpr(lambda *args: eqn.primitive.bind(*args, **{**eqn.params, "length": length}))(*avals[:nfirst], *rows)


def probe(call: Any, widths: Sequence[int], axis: int, rtol: float) -> None:
  """Compile a program of three operations for each number of worlds in `widths`, and compare its results with NumPy's.

  Raises:
    RuntimeError: the results differ.
  """
  for worlds in widths:
    x = np.linspace(-2, 2, 2 * worlds, dtype=np.float32).reshape(wide((2,), worlds, axis))
    p = Program()
    numbers = p.inputs(0, (2, 1), np.float32, per_world=worlds > 1).ravel().tolist()
    out = np.array([p.make("sqrt", "f", p.make("add", "f", p.make("mul", "f", a, a), p.const(0.25, "f"))) for a in numbers])
    (found,) = jax.jit(lambda y, p=p, out=out, worlds=worlds: call(p, [y], [out], [np.float32], worlds))(x)
    if not np.allclose(np.ravel(found), np.ravel(np.sqrt(np.float32(0.25) + np.square(x))), rtol=rtol):
      raise RuntimeError(f"the results of a kernel of three operations are wrong: {found}")


def _ended(trace: Callable[..., Any], function: Callable[..., list[Any]], results: Sequence[Any]) -> Any:
  """Trace a function to its end, and raise its `Unsupported` only after the trace.

  JAX never frees a trace that an exception ended: finalizers of constants keep all traced objects alive.
  """
  failed = []

  def function_to_the_end(*args):
    try:
      return function(*args)
    except Unsupported as e:
      failed.append(e)
      return [jnp.zeros(a.shape, a.dtype) for a in results]

  out = trace(function_to_the_end)
  if failed:
    raise failed[0]
  return out


def _inner(shape: tuple[int, ...]) -> tuple[int, ...]:
  return shape[:-1] if shape[-1:] == (1,) else shape


def wide(shape: tuple[int, ...], worlds: int, axis: int) -> tuple[int, ...]:
  """Return the shape of a per-world array, from one world's shape, with the world axis first (0) or last (-1).

  A last axis of size 1 in the given shape is the axis of one world, and is dropped.
  """
  return (worlds, *_inner(shape)) if axis == 0 else (*_inner(shape), worlds)


def _is_one_number(eqn: Any, known: dict[Any, Any]) -> bool:
  """Return whether an equation fills a large array with one constant number."""
  if eqn.primitive.name != "broadcast_in_dim" or eqn.outvars[0].aval.size <= scalars.MAX_CONSTANT:
    return False
  (x, *rest) = eqn.invars
  return not rest and x.aval.size == 1 and (isinstance(x, jex_core.Literal) or (x in known and scalars.is_constant(known[x])))


def _become_constants(closed: Any, known: dict[Any, Any], eqn: Any, outs: Sequence[Any]) -> bool:
  """Add the results of an equation to `known` if they are constants; return whether they are."""
  if not known.keys() >= set(regions.variables([eqn])):
    return False
  try:
    regions.run_part(closed, known, scalars.constants, [eqn], outs)
  except Unsupported:
    return False
  return True
