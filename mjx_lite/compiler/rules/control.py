"""Scalar rules of calls and loops.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_ptx.py.
"""

import numpy as np
from jax.extend import core as jex_core

from mjx_lite.compiler.rules.index import fetch_row, put_row
from mjx_lite.compiler.scalars import MAX_ITERATIONS, Unsupported, kind_of, loop_arguments, numbers, rule
from mjx_lite.compiler.workarounds import CALLS


@rule(*CALLS)
def _call(p, eqn, *xs):
  inner = eqn.params[CALLS[eqn.primitive.name]]
  return p.run(inner if isinstance(inner, jex_core.ClosedJaxpr) else jex_core.ClosedJaxpr(inner, ()), xs)


@rule("custom_linear_solve")
def _custom_linear_solve(p, eqn, *xs):
  lengths = eqn.params["const_lengths"]
  first = lengths.matvec + lengths.vecmat
  return p.run(eqn.params["jaxprs"].solve, [*xs[first : first + lengths.solve], *xs[sum(lengths) :]])


@rule("scan")
def _scan(p, eqn, *xs):
  params, length = eqn.params, eqn.params["length"]
  inside = params["jaxpr"]
  nconst, ncarry = loop_arguments(eqn)
  consts, carry, rows = xs[:nconst], list(xs[nconst : nconst + ncarry]), xs[nconst + ncarry :]
  size = sum(map(numbers, inside.jaxpr.eqns))
  is_long = length > MAX_ITERATIONS or length * size > p.total
  if length > 1 and (is_long or size > p.iteration):
    if p.total == np.inf:
      raise Unsupported(f"a loop of {length} iterations is too long to be unrolled; the limit is {MAX_ITERATIONS}")
    return _looped(p, eqn, consts, carry, rows)
  made = [None] * length
  for k in range(length)[:: -1 if params["reverse"] else 1]:
    out = p.run(inside, [*consts, *carry, *(x[k] for x in rows)])
    carry, made[k] = out[:ncarry], out[ncarry:]
  shapes = [v.aval.shape for v in eqn.outvars[ncarry:]]
  stacked = [np.stack(x) if length else np.zeros(s, np.int64) for x, s in zip(zip(*made, strict=True), shapes, strict=False)]
  return [*carry, *(stacked or [np.zeros(s, np.int64) for s in shapes])]


def _looped(p, eqn, consts, carry, rows):
  """Return the results of a scan that stays a loop, with a counter that is the same in all worlds."""
  length, inside, ncarry = eqn.params["length"], eqn.params["jaxpr"], len(carry)
  avals = [v.aval for v in eqn.outvars[ncarry:]]
  made = [np.full(a.shape, p.const(0, kind_of(a.dtype)), np.int64) for a in avals]
  last = p.const(length - 1, "i")

  def proceeds(state):
    return p.map("le", "p", state[0], np.array(last))

  def advance(state):
    count, carry, made = state[0], state[1 : 1 + ncarry], state[1 + ncarry :]
    k = int(count.item())
    k = p.make("sub", "i", last, k) if eqn.params["reverse"] else k
    kinds = [kind_of(v.aval.dtype) for v in eqn.invars[len(consts) + ncarry :]]
    out = p.run(inside, [*consts, *carry, *(fetch_row(p, x, k, kind) for x, kind in zip(rows, kinds, strict=True))])
    made = [put_row(p, x, k, new, kind_of(a.dtype)) for x, new, a in zip(made, out[ncarry:], avals, strict=True)]
    return [p.map("add", "i", count, np.array(p.const(1, "i"))), *out[:ncarry], *made]

  return p.loop(proceeds, advance, [np.array(p.const(0, "i")), *carry, *made])[1:]


@rule("while")
def _while(p, eqn, *xs):
  params = eqn.params
  ncond, nbody = params["cond_nconsts"], params["body_nconsts"]
  cond, body, first = xs[:ncond], xs[ncond : ncond + nbody], list(xs[ncond + nbody :])

  def proceeds(state):
    return p.run(params["cond_jaxpr"], [*cond, *state])[0]

  def advance(state):
    return p.run(params["body_jaxpr"], [*body, *state])

  state = first
  for _ in range(MAX_ITERATIONS if sum(map(numbers, params["body_jaxpr"].jaxpr.eqns)) <= p.iteration else 0):
    condition = p.value(int(proceeds(state).item()))
    if condition is None:
      return p.loop(proceeds, advance, state)
    if not condition:
      return state
    state = advance(state)
  return p.loop(proceeds, advance, first)


@rule("cond")
def _cond(p, eqn, which, *xs):
  branches = eqn.params["branches"]
  known = p.value(int(which.item()))
  if known is not None:
    return p.run(branches[min(max(int(known), 0), len(branches) - 1)], xs)
  if len(branches) != 2:
    raise Unsupported("operation cond has no rule for more than two branches")
  is_first = which if kind_of(eqn.invars[0].aval.dtype) == "p" else p.map("ne", "p", which, p.constant(np.int32(0)))
  no, yes = (p.run(b, xs) for b in branches)
  kinds = [kind_of(v.aval.dtype) for v in eqn.outvars]
  return [p.map("select", kind, is_first, a, b) for kind, a, b in zip(kinds, yes, no, strict=True)]
