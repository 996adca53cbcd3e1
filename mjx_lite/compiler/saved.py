"""Marks for values that take long to compute, as the solutions of loops: derivatives read them instead of computing them again.

Tests: tests/gradients/test_derivatives.py.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core

from mjx_lite.compiler import regions

NAME = "mjx_saved"  # also a checkpoint name, for `jax.checkpoint` around calls of the engine


def mark(x: jax.Array) -> jax.Array:
  """Return the array with a mark."""
  return checkpoint_name(x, NAME)


def count(jaxpr: jex_core.Jaxpr) -> int:
  """Return the number of marks in a program, without those inside of loops and branches."""
  return sum(1 for _ in _marks(jaxpr))


def evaluate(closed: jex_core.ClosedJaxpr, args: Sequence[Any], exchange: Callable[[Any], Any]) -> list[Any]:
  """Evaluate a program without marks; each value that had a mark is replaced by the result of a function of that value.

  The function is called in the order of `count`. Marks inside of loops and branches stay.
  """
  jaxpr = closed.jaxpr
  known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
  marked = {e.invars[0] for e in jaxpr.eqns if _is_mark(e)}
  known.update((v, exchange(known[v])) for v in marked & known.keys())
  for e in jaxpr.eqns:
    inside = e.params["jaxpr"] if e.primitive.name == "jit" else None
    if _is_mark(e):
      known[e.outvars[0]] = known[e.invars[0]]
      continue
    if inside is not None and any(_marks(inside.jaxpr)):
      known.update(zip(e.outvars, evaluate(inside, regions.read(e.invars, known), exchange), strict=True))
    else:
      regions.run_part(closed, known, lambda part, x: jex_core.jaxpr_as_fun(part)(*x), [e], e.outvars)
    known.update((v, exchange(known[v])) for v in e.outvars if v in marked)
  return regions.read(jaxpr.outvars, known)


def _is_mark(eqn: Any) -> bool:
  return eqn.primitive.name == "name" and eqn.params["name"] == NAME


def _marks(jaxpr: jex_core.Jaxpr) -> Iterator[Any]:
  for e in jaxpr.eqns:
    if _is_mark(e):
      yield e
    elif e.primitive.name == "jit":
      yield from _marks(e.params["jaxpr"].jaxpr)
