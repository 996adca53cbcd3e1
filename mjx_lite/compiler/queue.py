"""Work on the wanted items of all worlds, as one operation of a program of arrays, which only kernels have.

Tests: tests/compiler/test_arrays.py.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler.scalars import Program, rule

queue_p = jex_core.Primitive("mjx_queue")
queue_p.multiple_results = True


def rows(closed: jex_core.ClosedJaxpr, wanted: jax.Array, first: Sequence[jax.Array]) -> list[jax.Array]:
  """Return rows of one world, in which the rows of the wanted items are replaced.

  Args:
    closed: function of an item () int32. It returns the item's rows, each (1, ...).
    wanted: (n, 1) mask of the items.
    first: rows (n, ...) of all items.
  """
  return queue_p.bind(wanted, *closed.consts, *first, jaxpr=closed.jaxpr)


@queue_p.def_abstract_eval
def _shapes(wanted, *args, jaxpr):
  return [jax.core.ShapedArray((*wanted.shape[:1], *v.aval.shape[1:]), v.aval.dtype) for v in jaxpr.outvars]


@rule(queue_p.name)
def _queue(p: Program, eqn: Any, wanted: np.ndarray, *args: np.ndarray) -> list[np.ndarray]:
  jaxpr = eqn.params["jaxpr"]
  number = len(jaxpr.constvars)
  inputs = {"constvars": [], "invars": [*jaxpr.constvars, *jaxpr.invars]}
  closed = jex_core.ClosedJaxpr(jaxpr.replace(**inputs), ())
  return p.queue(wanted.ravel(), lambda item: p.run(closed, [*args[:number], np.array(item)]), list(args[number:]))
