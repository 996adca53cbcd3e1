"""Loops that end when no work is left, and that reverse mode can differentiate."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core

from mjx_lite.compiler import linear_map
from mjx_lite.compiler import saved as marks


def saved(x: jax.Array) -> jax.Array:
  """Return an array, as the solution of a loop, which derivatives of the engine's call then do not compute again."""
  return marks.mark(x)


def repeat(
  body: Callable[[jax.Array, Any], Any], number: jax.Array | Callable[[Any], jax.Array], most: int, state: Any,
  before: jax.Array | None = None,
) -> Any:  # fmt: skip
  """Return the state after `state = body(k, state)` for each k below a number of iterations.

  A condition around each iteration would give the same result, but XLA on CPU copies state that a condition leaves unchanged.

  Args:
    body: function of the iteration number () int32 and the state. It returns the next state, and may close over arrays.
    number: () int32 number of iterations, the same in all worlds; or a function that computes this number from the state.
      Iterations from 0 on must not change the number.
    most: upper bound of the number.
    state: tree of arrays.
    before: () int32 number of iterations that come first, numbered up to -1. The state after them counts as constant.

  Gradient: that of `most` iterations with a condition around each, as reverse mode cannot differentiate a loop whose number of
  iterations is not known beforehand. It includes the arrays that `body` closes over.
  """
  body_of_arrays, consts = _hoisted(body, jnp.int32(0), state)
  first = jnp.int32(0) if before is None else -before
  number_of, number = (number, jnp.int32(0)) if callable(number) else (None, number)
  return _repeat(body_of_arrays, number_of, most, before is None, (first, number), state, consts)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _repeat(
  body: Callable, number_of: Callable | None, most: int, from_zero: bool, bounds: Any, state: Any, closed_over: Any
) -> Any:
  """Repeat the body, with the arrays that it closes over as an argument: reverse mode differentiates only arguments.

  Args:
    body: function of the iteration number, the state and `closed_over`.
    number_of: function that computes the number of iterations from the state, or None.
    most: upper bound of the number.
    from_zero: whether the first iteration is 0, so that none comes before it.
    bounds: number of the first iteration, and the number of iterations from 0 on, which `number_of` replaces.
    state: tree of arrays.
    closed_over: arrays.
  """
  del most, from_zero
  first, number = bounds

  def continues(s):
    return (s[0] < number) if number_of is None else (s[0] < 0) | (s[0] < number_of(s[1]))

  return jax.lax.while_loop(continues, lambda s: (s[0] + 1, body(*s, closed_over)), (first, state))[1]


@functools.partial(_repeat.defjvp, symbolic_zeros=True)
def _repeat_jvp(body: Callable, number_of: Callable | None, most: int, from_zero: bool, primals: Any, tangents: Any) -> Any:
  """Differentiate `most` iterations with a condition around each; iterations before 0 are constant."""

  def with_conditions(bounds, state, closed_over):
    first, number = bounds
    if not from_zero:
      state = _repeat(body, None, most, True, (first, jnp.int32(0)), *jax.lax.stop_gradient((state, closed_over)))
    number = number if number_of is None else number_of(state)

    def advance(state, k):
      return jax.lax.cond(k < number, lambda s: body(k, s, closed_over), lambda s: s, state), None

    return advance(state, jnp.int32(0))[0] if most == 1 else jax.lax.scan(advance, state, np.arange(most, dtype=np.int32))[0]

  return jvp_of_varied(with_conditions, primals, tangents)


def jvp_of_varied(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
  """Return values and tangents of a function for a rule with symbolic zeros; arguments without tangents are constant."""
  leaves, tree = jax.tree.flatten(primals)
  varied = {k: t for k, t in enumerate(tree.flatten_up_to(tangents)) if not isinstance(t, SymbolicZero)}

  def function_of_varied(values):
    return function(*tree.unflatten([values.get(k, x) for k, x in enumerate(leaves)]))

  return jax.jvp(function_of_varied, ({k: leaves[k] for k in varied},), (varied,))


def _hoisted(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list[Any]]:
  """Return a function with one more argument, the arrays that it closes over, and these arrays."""
  jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

  def of_arrays(*args_and_consts):
    *args, consts = args_and_consts
    out = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(jaxpr.jaxpr, consts))(*jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shapes), out)

  return of_arrays, jaxpr.consts


def over(body: Callable[[jax.Array, Any], Any], rows: jax.Array, state: Any) -> Any:
  """Return the state after `state = body(k, state)` for some rows k, one after the other; without a derivative in reverse mode.

  Args:
    body: function of the number of a row () int32, and of the state.
    rows: number () of the rows, from the first on, or a mask (n,) of the rows.
    state: tree of arrays.
  """
  if not rows.ndim:
    return jax.lax.while_loop(lambda s: s[0] < rows, lambda s: (s[0] + 1, body(*s)), (jnp.int32(0), state))[1]
  number = len(rows)
  following = [jnp.full_like(rows[0], number, jnp.int32)]
  for k in range(number - 1, -1, -1):  # the first row of the mask from each row on
    following.append(jnp.where(rows[k], k, following[-1]))
  table = jnp.stack(following[::-1])

  def advance(s):
    return table[s[0] + 1], body(*s)

  return jax.lax.while_loop(lambda s: s[0] < number, advance, (table[0], state))[1]


def added(body: Callable[[jax.Array, Any], Any], rows: jax.Array, state: Any) -> Any:
  """Return what `over` returns, for a body that only adds to the state; with a derivative.

  The derivative includes the arrays that `body` closes over, and reverse mode goes over the same rows.
  """
  body, consts = _hoisted(body, jnp.int32(0), state)
  return _differentiable(_Added(body), rows, state, consts)


def stacked(run: Callable[..., Any], make: Callable[[jax.Array], Any], rows: jax.Array, default: Any) -> Any:
  """Return arrays (n, ...), `make(k)` for some rows k and those of `default` elsewhere; with a derivative.

  Args:
    run: function of `make`, `rows` and `default` that returns the arrays.
    make: function of the number of a row () int32, which may close over arrays.
    rows: as in `over`.
    default: tree of arrays.
  """
  make, consts = _hoisted(make, jnp.int32(0))
  return _differentiable(_Stacked(run, make), rows, default, consts)


class _Added(NamedTuple):
  """The loop of `added`. Tangents and cotangents are lists, of the arrays of dtype float only.

  Attributes:
    body: function of a row, the state, and the arrays that it closes over.
  """

  body: Callable[..., Any]

  def values(self, rows: jax.Array, state: Any, consts: list[Any]) -> Any:
    """Return the state after the loop."""
    return over(lambda k, s: self.body(k, s, consts), rows, state)

  def _one(self, zero: Any, consts: "_Consts") -> Callable[..., Any]:
    return lambda k: lambda *x: _floats(self.body(k, zero, consts.put(x)))

  def tangents(self, rows: jax.Array, zero: Any, consts: "_Consts", dots: Sequence[Any], state_dot: Sequence[Any]) -> Any:
    """Return the tangents of the state, from tangents of `consts` and of the state before."""
    one = self._one(zero, consts)
    return over(lambda k, s: _sum(s, jax.jvp(one(k), consts.values, list(dots))[1]), rows, list(state_dot))

  def cotangents(self, rows: jax.Array, zero: Any, consts: "_Consts", cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return cotangents of `consts` and of the state before, from those of the state."""
    one = self._one(zero, consts)
    return over(lambda k, s: _sum(s, jax.vjp(one(k), *consts.values)[1](list(cts))), rows, consts.zeros()), list(cts)


class _Stacked(NamedTuple):
  """The loop of `stacked`, with the functions of `_Added`; its state are the rows.

  Attributes:
    run: see `stacked`.
    make: function of a row, and the arrays that it closes over.
  """

  run: Callable[..., Any]
  make: Callable[..., Any]

  def values(self, rows: jax.Array, state: Any, consts: list[Any]) -> Any:
    """Return the rows."""
    return self.run(lambda k: self.make(k, consts), rows, state)

  def _one(self, consts: "_Consts") -> Callable[..., Any]:
    return lambda k: lambda *x: _floats(self.make(k, consts.put(x)))

  def tangents(self, rows: jax.Array, zero: Any, consts: "_Consts", dots: Sequence[Any], state_dot: Sequence[Any]) -> Any:
    """Return the tangents of the rows, from tangents of `consts` and of the rows before."""
    one = self._one(consts)
    return self.run(lambda k: jax.jvp(one(k), consts.values, list(dots))[1], rows, list(state_dot))

  def cotangents(self, rows: jax.Array, zero: Any, consts: "_Consts", cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return cotangents of `consts` and of the rows before, from those of the rows."""
    one = self._one(consts)
    row = lambda k: [jax.lax.dynamic_index_in_dim(x, k, keepdims=False) for x in cts]  # noqa: E731
    found = over(lambda k, s: _sum(s, jax.vjp(one(k), *consts.values)[1](row(k))), rows, consts.zeros())
    is_made = rows if rows.ndim else np.arange(len(cts[0])) < rows
    return found, [jnp.where(is_made.reshape(-1, *(1,) * (x.ndim - 1)), 0, x) for x in cts]


class _Consts(NamedTuple):
  """Arrays, some of which have tangents."""

  every: list[Any]
  varied: tuple[int, ...]

  @property
  def values(self) -> list[Any]:
    """The arrays that have tangents."""
    return [self.every[i] for i in self.varied]

  def put(self, values: Sequence[Any]) -> list[Any]:
    """Return all arrays, with those that have tangents replaced."""
    new = dict(zip(self.varied, values, strict=True))
    return [new.get(i, x) for i, x in enumerate(self.every)]

  def zeros(self) -> list[Any]:
    """Return zeros for the arrays that have tangents."""
    return [jnp.zeros_like(x) for x in self.values]


def _is_float(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, jnp.floating)


def _floats(tree: Any) -> list[Any]:
  return [x for x in jax.tree.leaves(tree) if _is_float(x)]


def _sum(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
  return [x + y for x, y in zip(a, b, strict=True)]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _differentiable(loop: _Added | _Stacked, rows: jax.Array, state: Any, consts: list[Any]) -> Any:
  return loop.values(rows, state, consts)


@functools.partial(_differentiable.defjvp, symbolic_zeros=True)
def _differentiable_jvp(loop, primals, tangents):
  rows, state, consts = primals
  out = _differentiable(loop, *primals)
  state_dot = [
    _instantiated(t, x) for t, x in zip(jax.tree.leaves(tangents[1]), jax.tree.leaves(state), strict=True) if _is_float(x)
  ]
  varied = tuple(i for i, t in enumerate(tangents[2]) if _is_float(consts[i]) and not isinstance(t, SymbolicZero))
  shapes, nconst = jax.eval_shape(lambda: state), len(consts)

  def split(residuals):
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return residuals[0], zero, _Consts(list(residuals[1:]), varied)

  def forward(*args):
    residuals, dots = args[: 1 + nconst], args[1 + nconst :]
    return loop.tangents(*split(residuals), dots[: len(varied)], dots[len(varied) :])

  def backward(residuals, cts):
    found, rest = loop.cotangents(*split(residuals), cts)
    return [*found, *rest]

  dots = iter(linear_map.apply(forward, backward, (rows, *consts), (*(tangents[2][i] for i in varied), *state_dot)))
  leaves, tree = jax.tree.flatten(out)
  none = lambda x: SymbolicZero(jax.core.ShapedArray(x.shape, jax.dtypes.float0))  # noqa: E731
  return out, jax.tree.unflatten(tree, [next(dots) if _is_float(x) else none(x) for x in leaves])


def _instantiated(t: Any, like: jax.Array) -> jax.Array:
  return jnp.zeros(t.shape, like.dtype) if isinstance(t, SymbolicZero) else t
