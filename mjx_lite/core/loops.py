"""Loops that end when nothing is left to do, and that reverse mode can go through."""

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
  """State after `state = turn(k, state)` for k below a number of turns.

  A condition around each of the turns would do the same, but XLA on CPU copies what a condition leaves as it is.

  Args:
    turn: function of the number of the turn () and the state, which may close over arrays.
    number: () int32 of turns, the same in all worlds; or a function that tells it of the state, which turns from 0 on do not
      change.
    most: no number is larger.
    state: tree of arrays.
    before: () int32 of turns that come first, up to -1; what they leave of the state counts as constant.

  Gradient: that of these conditions, as reverse mode goes through no loop whose turns it cannot count beforehand; also by
  what `turn` closes over.
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
