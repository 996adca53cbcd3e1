"""Linear maps with a transpose of their own, as an operation of a program of arrays.

`jax.custom_derivatives.linear_call` is the same, but the arrays on which its map depends may not have tangents.

Tests: tests/ops/test_rows.py.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad, mlir

from mjx_lite.compiler import regions, scalars, workarounds

linear_p = jex_core.Primitive("mjx_linear")
linear_p.multiple_results = True


def apply(
  forward: Callable[..., list[Any]], backward: Callable[..., list[Any]], residuals: Sequence[Any], operands: Sequence[Any]
) -> list[Any]:
  """Return `forward(*residuals, *operands)`, a function that is linear in `operands` and has the transpose `backward`.

  Args:
    forward: function of flat arguments, which closes over no traced arrays.
    backward: function of the residuals, and of the cotangents of all results. It returns the cotangents of `operands`.
    residuals, operands: arrays.
  """
  closed = jax.make_jaxpr(forward)(*residuals, *operands)
  closed = closed.replace(jaxpr=workarounds.all_alive(closed))
  return linear_p.bind(*residuals, *operands, jaxpr=closed, backward=backward, nresiduals=len(residuals))


def _run(*args, jaxpr, backward, nresiduals):
  return jex_core.jaxpr_as_fun(jaxpr)(*args)


def _transpose(cts, *args, jaxpr, backward, nresiduals):
  if not any(map(ad.is_undefined_primal, args)):
    return [None] * len(args)
  cts = [jnp.zeros(a.shape, a.dtype) if type(c) is ad.Zero else c for c, a in zip(cts, jaxpr.out_avals, strict=True)]
  found = backward(args[:nresiduals], cts)
  made = zip(found, args[nresiduals:], strict=True)
  return [*[None] * nresiduals, *(x if ad.is_undefined_primal(a) else None for x, a in made)]


linear_p.def_impl(_run)
linear_p.def_abstract_eval(lambda *args, jaxpr, **_: jaxpr.out_avals)
ad.primitive_jvps[linear_p] = lambda primals, tangents, **params: regions.jvp_of(
  functools.partial(_run, **params), primals, tangents
)
ad.primitive_transposes[linear_p] = _transpose
mlir.register_lowering(linear_p, mlir.lower_fun(_run, multiple_results=True))


@scalars.rule(linear_p.name)
def _rule(p, eqn, *xs):
  return p.run(eqn.params["jaxpr"], xs)
