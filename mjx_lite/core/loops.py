"""Loops that end when nothing is left to do, and that reverse mode can go through."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core


def repeat(turn: Callable[[jax.Array, Any], Any], number: jax.Array, most: int, state: Any) -> Any:
  """State after `state = turn(k, state)` for k below a number of turns.

  A condition around each of the turns would do the same, but XLA on CPU copies what a condition leaves as it is.

  Args:
    turn: function of the number of the turn () and the state, which may close over arrays.
    number: () int32 of turns, the same in all worlds.
    most: no number is larger.
    state: tree of arrays.

  Gradient: that of these conditions, as reverse mode goes through no loop whose turns it cannot count beforehand; also by
  what `turn` closes over.
  """
  jaxpr, shapes = jax.make_jaxpr(turn, return_shape=True)(jnp.int32(0), state)

  def with_others(k, state, others):
    out = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(jaxpr.jaxpr, others))(k, *jax.tree.leaves(state))
    return jax.tree.unflatten(jax.tree.structure(shapes), out)

  return _repeat(with_others, most, number, state, jaxpr.consts)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _repeat(turn: Callable, most: int, number: jax.Array, state: Any, others: Any) -> Any:
  del most
  return jax.lax.while_loop(lambda s: s[0] < number, lambda s: (s[0] + 1, turn(*s, others)), (jnp.int32(0), state))[1]


@functools.partial(_repeat.defjvp, symbolic_zeros=True)
def _repeat_jvp(turn: Callable, most: int, primals: Any, tangents: Any) -> Any:
  def conditions(number, state, others):
    def some(state, k):
      return jax.lax.cond(k < number, lambda s: turn(k, s, others), lambda s: s, state), None

    return some(state, jnp.int32(0))[0] if most == 1 else jax.lax.scan(some, state, np.arange(most, dtype=np.int32))[0]

  given, tree = jax.tree.flatten(primals)
  moving = {k: t for k, t in enumerate(tree.flatten_up_to(tangents)) if not isinstance(t, SymbolicZero)}

  def of_moving(values):
    return conditions(*tree.unflatten([values.get(k, x) for k, x in enumerate(given)]))

  return jax.jvp(of_moving, ({k: given[k] for k in moving},), (moving,))
