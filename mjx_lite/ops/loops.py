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
  turn: Callable[[jax.Array, Any], Any], number: jax.Array | Callable[[Any], jax.Array], most: int, state: Any,
  before: jax.Array | None = None,
) -> Any:  # fmt: skip
  """Return the state after `state = turn(k, state)` for each k below a number of iterations.

  A condition around each iteration would give the same result, but XLA on CPU copies state that a condition leaves unchanged.

  Args:
    turn: function of the iteration number () int32 and the state. It returns the next state, and may close over arrays.
    number: () int32 number of iterations, the same in all worlds; or a function that computes this number from the state.
      Iterations from 0 on must not change the number.
    most: upper bound of the number.
    state: tree of arrays.
    before: () int32 number of iterations that come first, numbered up to -1. The state after them counts as constant.

  Gradient: that of `most` iterations with a condition around each, as reverse mode cannot differentiate a loop whose number of
  iterations is not known beforehand. It includes the arrays that `turn` closes over.
  """
  jaxpr, shapes = jax.make_jaxpr(turn, return_shape=True)(jnp.int32(0), state)

  def with_others(k, state, others):
    out = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(jaxpr.jaxpr, others))(k, *jax.tree.leaves(state))
    return jax.tree.unflatten(jax.tree.structure(shapes), out)

  first = jnp.int32(0) if before is None else -before
  told, number = (number, jnp.int32(0)) if callable(number) else (None, number)
  return _repeat(with_others, told, most, before is None, (first, number), state, jaxpr.consts)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def _repeat(turn: Callable, told: Callable | None, most: int, at_once: bool, turns: Any, state: Any, others: Any) -> Any:
  del most, at_once
  first, number = turns

  def goes_on(s):
    return (s[0] < number) if told is None else (s[0] < 0) | (s[0] < told(s[1]))

  return jax.lax.while_loop(goes_on, lambda s: (s[0] + 1, turn(*s, others)), (first, state))[1]


@functools.partial(_repeat.defjvp, symbolic_zeros=True)
def _repeat_jvp(turn: Callable, told: Callable | None, most: int, at_once: bool, primals: Any, tangents: Any) -> Any:
  def conditions(turns, state, others):
    first, number = turns
    if not at_once:
      state = _repeat(turn, None, most, True, (first, jnp.int32(0)), *jax.lax.stop_gradient((state, others)))
    number = number if told is None else told(state)

    def some(state, k):
      return jax.lax.cond(k < number, lambda s: turn(k, s, others), lambda s: s, state), None

    return some(state, jnp.int32(0))[0] if most == 1 else jax.lax.scan(some, state, np.arange(most, dtype=np.int32))[0]

  given, tree = jax.tree.flatten(primals)
  moving = {k: t for k, t in enumerate(tree.flatten_up_to(tangents)) if not isinstance(t, SymbolicZero)}

  def of_moving(values):
    return conditions(*tree.unflatten([values.get(k, x) for k, x in enumerate(given)]))

  return jax.jvp(of_moving, ({k: given[k] for k in moving},), (moving,))
