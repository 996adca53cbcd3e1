"""Steps as kernels: what belongs to one world is written as numbers (`scalars.py`), for all worlds by the same straight code.

A thread of a GPU runs it for its world (`ptx.py`), a lane of a CPU's vectors for its own (`vectors.py`). What all worlds share,
and what moves arrays between kernels, XLA computes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from mjx_lite.core import regions
from mjx_lite.core.scalars import Program, Unsupported, loop_arguments

_MAX_CONSTANT = 1024  # numbers that are written into a kernel


class Kernels(NamedTuple):
  """How kernels are made for some worlds.

  Attributes:
    call: a kernel's results (..., worlds): of a program, its inputs, numbers of each result, dtypes of these and worlds.
    worlds: how many there are; of a single one everything is computed in kernels.
    loop: numbers that a loop makes, all turns together, above which a turn is a kernel of its own.
  """

  call: Callable[[Program, Sequence[jax.Array], Sequence[np.ndarray], Sequence[Any], int], list[Any]]
  worlds: int
  loop: int

  def evaluate(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results (..., worlds) of a program of one world, of inputs (..., worlds) or, for all worlds, (..., 1).

    Raises:
      Unsupported: an operation is not written as numbers, or there are too many.
    """
    return self._begun(closed, dict(zip(closed.jaxpr.invars, inputs, strict=True)))({})

  def _begun(self, closed: Any, known: dict[Any, Any]) -> Callable[[dict[Any, Any]], list[Any]]:
    """Computes what all worlds share of a program, some of whose arguments are known; returns what computes the rest."""
    eqns, outvars = regions.inlined(closed, closed.jaxpr.invars, known)
    last = regions.last_reads(eqns, outvars)
    shared = {v for v, x in known.items() if self._is_shared(x, v.aval)}

    ahead = []
    for k, e in enumerate(eqns):
      if shared.issuperset(regions.variables([e])):
        outs = [v for v in e.outvars if v in last]
        regions.run_part(closed, known, _of_all, [e], outs)
        shared.update(outs)
      else:
        ahead.append((k, e))

    def rest(others):
      now, part = {**known, **others}, []

      def run_part(end):
        if part:
          outs = [v for e in part for v in e.outvars if last.get(v, -1) >= end]
          regions.run_part(closed, now, self._together, list(part), outs)
          part.clear()

      for k, e in ahead:
        if e.primitive.name == "scan" and numbers(e) > self.loop:
          run_part(k)
          now.update(zip(e.outvars, self._stepped(e, now), strict=True))
        else:
          part.append(e)
      run_part(len(eqns))
      return [self._wide(v.val if isinstance(v, jex_core.Literal) else now[v]) for v in outvars]

    return rest

  def _is_shared(self, x: Any, aval: Any) -> bool:
    return np.shape(x) == aval.shape and (self.worlds > 1 or not isinstance(x, jax.core.Tracer))

  def _stepped(self, eqn: Any, known: dict[Any, Any]) -> list[jax.Array]:
    """Results of a loop of steps."""
    inside = eqn.params["jaxpr"]
    nconst, ncarry = loop_arguments(eqn)
    given = [v.val if isinstance(v, jex_core.Literal) else known[v] for v in eqn.invars]
    consts, others = (part(inside.jaxpr.invars) for part in (lambda x: x[:nconst], lambda x: x[nconst:]))
    rest = self._begun(inside, dict(zip(consts, given, strict=False)))

    def step(carry, row):
      out = rest(dict(zip(others, (*carry, *row), strict=True)))
      return out[:ncarry], out[ncarry:]

    first = [self._wide(x) for x in given[nconst : nconst + ncarry]]
    carry, made = jax.lax.scan(step, first, given[nconst + ncarry :], eqn.params["length"], eqn.params["reverse"])
    return [*carry, *made]

  def _wide(self, x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return jnp.broadcast_to(x, (*x.shape[:-1], self.worlds)) if x.ndim else x

  def _together(self, closed: Any, inputs: Sequence[jax.Array]) -> list[Any]:
    """Results of one kernel."""
    p = Program()
    given = [
      p.constant(x)
      if x.shape == a.shape and a.size <= _MAX_CONSTANT and not isinstance(x, jax.core.Tracer)
      else p.inputs(k, a.shape, a.dtype, x.shape != a.shape)
      for k, (x, a) in enumerate(zip(inputs, closed.in_avals, strict=True))
    ]
    outs = p.run(closed, given)
    passed = {k: i for k, out in enumerate(outs) for i in _whole(p, out, inputs, self.worlds)}
    made = [k for k in range(len(outs)) if k not in passed]
    dtypes = [closed.out_avals[k].dtype for k in made]
    new = iter(self.call(p, inputs, [outs[k] for k in made], dtypes, self.worlds) if made else [])
    return [inputs[passed[k]] if k in passed else next(new) for k in range(len(outs))]


def numbers(eqn: Any) -> int:
  """About how many numbers an equation makes."""
  inside = sum(numbers(e) for j in jex_core.jaxprs_in_params(eqn.params) for e in j.eqns)
  return inside * eqn.params.get("length", 1) + sum(v.aval.size for v in eqn.outvars)


def _of_all(closed: Any, inputs: Sequence[Any]) -> list[Any]:
  """What is the same for all worlds: constants where they can be known."""
  if not any(isinstance(x, jax.core.Tracer) for x in inputs) and sum(map(numbers, closed.jaxpr.eqns)) <= _MAX_CONSTANT:
    p = Program()
    try:
      outs = p.run(closed, list(map(p.constant, inputs)))
    except Unsupported:
      outs = []
    values = [[p.value(k) for k in x.ravel().tolist()] for x in outs]
    if outs and not any(None in x for x in values):
      return [np.array(x, a.dtype).reshape(a.shape) for x, a in zip(values, closed.out_avals, strict=True)]
  return jex_core.jaxpr_as_fun(closed)(*inputs)


def _whole(p: Program, out: np.ndarray, inputs: Sequence[jax.Array], worlds: int) -> list[int]:
  """The input that numbers are, if they are one."""
  order = out.ravel().tolist()
  if not order or p.op[order[0]] != "load":
    return []
  k = p.of[order[0]].buffer
  shape = (*out.shape[:-1], worlds)
  same = k >= 0 and inputs[k].shape == shape and all(p.of.get(n) == (k, i, worlds > 1) for i, n in enumerate(order))
  return [k] if same else []
