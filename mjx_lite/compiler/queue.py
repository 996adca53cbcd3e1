"""Work on the wanted items of all worlds, as one operation of a program of arrays, which only kernels have.

Tests: tests/compiler/test_arrays.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler import workarounds
from mjx_lite.compiler.scalars import Program, array, kind_of, rule

queue_p = jex_core.Primitive("mjx_queue")
queue_p.multiple_results = True
empty_p = jex_core.Primitive("mjx_empty")


class Parts(NamedTuple):
  """The functions of a queue, each a program of arrays.

  Attributes:
    row: from an item () int32, or from the last state of a search, to the item's rows, each (1, ...).
    start: from an item to the first state of its search; None if there is no search.
    continues: from a state to whether the search continues, ().
    advance: from a state to the next state.
  """

  row: Any
  start: Any = None
  continues: Any = None
  advance: Any = None


def rows(parts: Parts, wanted: jax.Array, first: Sequence[jax.Array]) -> list[jax.Array]:
  """Return rows of one world, in which the rows of the wanted items are replaced.

  Args:
    parts: closed programs; what they read of the world are their constants.
    wanted: (n, 1) mask of the items.
    first: rows (n, ...) of all items.
  """
  constants = [x for part in parts if part is not None for x in part.consts]
  return queue_p.bind(
    wanted, *constants, *first, parts=tuple(None if part is None else workarounds.all_alive(part) for part in parts)
  )


def empty(shape: Sequence[int], dtype: Any) -> jax.Array:
  """Return an array of any values, which a kernel need not store; in kernels only."""
  return empty_p.bind(shape=tuple(shape), dtype=np.dtype(dtype))


@queue_p.def_abstract_eval
def _shapes(wanted, *args, parts):
  return [jax.core.ShapedArray((*wanted.shape[:1], *v.aval.shape[1:]), v.aval.dtype) for v in parts[0].outvars]


@empty_p.def_abstract_eval
def _shape(*, shape, dtype):
  return jax.core.ShapedArray(shape, dtype)


@rule(queue_p.name)
def _queue(p: Program, eqn: Any, wanted: np.ndarray, *args: np.ndarray) -> list[np.ndarray]:
  rest = list(args)
  functions: list[Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = []
  for jaxpr in eqn.params["parts"]:
    if jaxpr is not None:
      constants, rest = rest[: len(jaxpr.constvars)], rest[len(jaxpr.constvars) :]
      inputs = {"constvars": [], "invars": [*jaxpr.constvars, *jaxpr.invars]}
      closed = jex_core.ClosedJaxpr(jaxpr.replace(**inputs), ())
      functions.append(lambda xs, closed=closed, constants=constants: p.run(closed, [*constants, *xs]))
  row, *search = functions
  if not search:
    return p.queue(wanted.ravel(), lambda item: row([np.array(item)]), rest)
  start, continues, advance = search
  loop = (lambda item: start([np.array(item)]), lambda state: continues(state)[0], advance)
  return p.queue(wanted.ravel(), row, rest, loop)


@rule(empty_p.name)
def _empty(p: Program, eqn: Any) -> np.ndarray:
  shape = eqn.params["shape"]
  return array([p.any_value(kind_of(eqn.params["dtype"]))] * int(np.prod(shape, dtype=int)), shape)
