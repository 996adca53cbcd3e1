"""Loops that end when no work is left, and that reverse mode can differentiate."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core


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
  jaxpr, shapes = jax.make_jaxpr(body, return_shape=True)(jnp.int32(0), state)

  def body_of_arrays(k, state, closed_over):
    out = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(jaxpr.jaxpr, closed_over))(k, *jax.tree.leaves(state))
    return jax.tree.unflatten(jax.tree.structure(shapes), out)

  first = jnp.int32(0) if before is None else -before
  number_of, number = (number, jnp.int32(0)) if callable(number) else (None, number)
  return _repeat(body_of_arrays, number_of, most, before is None, (first, number), state, jaxpr.consts)


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

  leaves, tree = jax.tree.flatten(primals)
  varied = {k: t for k, t in enumerate(tree.flatten_up_to(tangents)) if not isinstance(t, SymbolicZero)}

  def function_of_varied(values):
    return with_conditions(*tree.unflatten([values.get(k, x) for k, x in enumerate(leaves)]))

  return jax.jvp(function_of_varied, ({k: leaves[k] for k in varied},), (varied,))
