"""Regions: the operations of one world, or of a tile of worlds, as a few functions of machine code instead of many kernels.

XLA on CPU runs a program kernel by kernel. To start a kernel costs about 0.1 us, which is more than the work in most kernels of
a single world. For a call with the attribute `xla_cpu_small_call` XLA emits one function, with all loops and calls inside; for
small loops XLA does so without the attribute. `evaluate` cuts the operations into such calls, named regions. LLVM compiles each
region by itself: a single function with all operations takes two to four times as long to compile. Many worlds are computed in
tiles of `lanes()` worlds, one vector of the processor. The data of a tile stays in the nearest caches, and a solver's loop
waits only for the slowest world of its tile. `program` does the same with a user's whole program of one world.

An operation stays outside of regions if XLA calls a library for it, or has no code for it in such a function (`allowed`). The
attribute is not documented. There are no regions if its probe fails (`workarounds.REGIONS`), or if the environment variable
`MJX_LITE_REGIONS` is 0 when mjx_lite is imported.

LLVM fully unrolls loops of 16 iterations before it vectorises, and then finds few vectors: a region takes twice as long to run,
and to compile. XLA reads the option that prevents this only from the environment, when JAX is first used (`FLAGS`). Importing
mjx_lite does not change the environment: many worlds are computed in regions only where the user has set the option.
"""

import functools
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from mjx_lite.compiler import scalars, workarounds
from mjx_lite.compiler.memo import memoized
from mjx_lite.compiler.workarounds import CALLS

_IS_WANTED = os.environ.get("MJX_LITE_REGIONS") != "0"
_SIZE = 1000  # operations of a region, at most
_REGION = 20  # cost of one more region; the unit is one result that is written to memory
_NUMBERS = 128  # elements of a result that cost as much as one more result
_LOOP = 5000  # operations of a loop in one region; outside, XLA copies the carry and starts all parts again in each iteration
# primitives whose programs are cut into regions if they are larger than one region, and the parameters with these programs
_PARTS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
identities = {"name", "stop_gradient"}  # names of primitives whose result is their first operand
MAX_NUMBERS = 1 << 20  # elements of an operand or a result; for more, a kernel of its own pays
MAX_REDUCED = 4095  # elements of an operand of a reduction; for more, XLA calls a library
_ALLOWED = (
  "abs", "add", "add_any", "and", "argmax", "argmin", "asin", "atan2", "bitcast_convert_type", "broadcast_in_dim", "ceil",
  "clamp", "concatenate", "cond", "convert_element_type", "copy", "cos",
  "custom_linear_solve", "div", "dynamic_slice", "dynamic_update_slice", "eq", "exp", "expm1", "floor", "gather", "ge", "gt",
  "integer_pow", "iota", "is_finite", "le", "le_to", "log", "lt", "lt_to", "max", "min", "mul", "name", "ne", "neg",
  "not", "or", "pad", "pow", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision", "reduce_sum", "rem",
  "reshape", "rev", "round", "rsqrt", "scan", "select_n", "shift_left", "shift_right_arithmetic",
  "shift_right_logical", "sign", "sin", "slice", "split", "sqrt", "square", "squeeze", "stack", "stop_gradient", "sub", "tan",
  "tanh", "tile", "transpose", "unstack", "while", "xor",
)  # fmt: skip
# whether an equation may be in a region, by its primitive; equations of other primitives may not
allowed: dict[str, Callable[[Any], bool]] = dict.fromkeys((*CALLS, *_ALLOWED), lambda eqn: True)

_LANES = 16  # float32 numbers of the widest vector of any processor
_ROUNDS = "-unroll-full-max-count"  # iterations of the longest loop that LLVM unrolls fully
_CASES = "-unswitch-threshold"  # instructions that LLVM may add to write one loop for each case of a condition
# options of XLA with which many worlds go through regions, for the environment variable XLA_FLAGS before JAX is first used
FLAGS = f"--xla_backend_extra_options={_ROUNDS}={_LANES - 1},{_CASES}=1000"


def is_on() -> bool:
  """Return whether the operations of a single world become regions on CPU."""
  return _IS_WANTED and workarounds.works(workarounds.REGIONS)


@functools.cache
def lanes() -> int:
  """Return the number of worlds in a tile, whose operations become regions together; 0 if only a single world has regions."""
  return _LANES if is_on() and jax.default_backend() == "cpu" and workarounds.has_flag(_ROUNDS) else 0


def fits_region(worlds: int) -> bool:
  """Return whether the operations of this number of worlds become regions on CPU."""
  return worlds <= max(1, lanes())


def is_tile(worlds: int) -> bool:
  """Return whether this number of worlds is above one and fits a tile, whose operations become regions together on CPU."""
  return 1 < worlds <= lanes()


def evaluate(closed: jex_core.ClosedJaxpr, *args: jax.Array) -> list[jax.Array]:
  """Evaluate a program as `jaxpr_as_fun` does, with its operations in regions; for CPU."""
  if closed.jaxpr.effects or not is_on():
    return evaluate_plainly(closed, *args)
  invars = [jex_core.Var(a) for a in closed.in_avals]
  known: dict[Any, Any] = dict(zip(invars, args, strict=True))
  eqns, outvars = inlined(closed, invars, known)
  # reshapes of operands go into the regions that use them, where they cost nothing; before a region XLA may copy them. Empty
  # arrays go there too: XLA aborts if an empty array's memory is donated (`donate_argnums`) and another goes through a region
  eqns, views = _without_empty(invars, eqns)
  known = {v: x for v, x in known.items() if v not in views}
  views |= {e.outvars[0]: e for e in eqns if _is_view(e) and known.keys() >= set(variables([e]))}

  run = functools.partial(run_part, closed, known)

  def compute_views(variables):
    for v in variables:
      if v in views and v not in known:
        run(_outside, [views[v]], [v])

  for is_region, part, outs in _cut([e for e in eqns if views.keys().isdisjoint(e.outvars)], outvars):
    if is_region and outs:
      used = [v for v in dict.fromkeys(variables(part)) if v in views and v not in known]
      run(workarounds.region, [*map(views.__getitem__, used), *part], outs)
    elif outs:
      compute_views(variables(part))
      run(_outside, part, outs)
  compute_views(v for v in outvars if not isinstance(v, jex_core.Literal))
  return read(outvars, known)


def evaluate_plainly(closed: jex_core.ClosedJaxpr, *args: jax.Array) -> list[jax.Array]:
  """Evaluate a program on any device, without regions."""
  return jex_core.jaxpr_as_fun(closed)(*args)


def run_part(
  closed: jex_core.ClosedJaxpr, known: dict[Any, Any], function: Callable[..., Any], eqns: Sequence[Any], outs: Sequence[Any]
) -> None:
  """Compute the results `outs` of some equations and add them to `known`.

  `function` computes them from a closed jaxpr of these equations and from its operands.
  """
  ins = [v for v in dict.fromkeys(variables(eqns)) if v in known]
  names = workarounds.unnamed(closed.jaxpr)
  part = closed.jaxpr.replace(constvars=[], invars=ins, outvars=outs, eqns=eqns, debug_info=names)
  known.update(zip(outs, function(jex_core.ClosedJaxpr(part, ()), [known[v] for v in ins]), strict=True))


def read(variables: Sequence[Any], known: dict[Any, Any]) -> list[Any]:
  """Return the values of variables and literals."""
  return [v.val if isinstance(v, jex_core.Literal) else known[v] for v in variables]


def last_reads(eqns: Sequence[Any], outvars: Sequence[Any]) -> dict[Any, int]:
  """Return, for each variable, the index of the last equation that reads it; for a result, the number of equations."""
  last = {v: k for k, e in enumerate(eqns) for v in variables([e])}
  last.update(dict.fromkeys((v for v in outvars if not isinstance(v, jex_core.Literal)), len(eqns)))
  return last


def inlined(closed: jex_core.ClosedJaxpr, args: Sequence[Any], known: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
  """Return a program's equations and its results; add its constants to `known`.

  Calls that are larger than a region, or that have a long loop inside, are inlined.
  """
  jaxpr = closed.jaxpr
  consts = [jex_core.Var(v.aval) for v in jaxpr.constvars]
  known.update(zip(consts, closed.consts, strict=True))
  names = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
  eqns = []

  def name(v):
    return v if isinstance(v, jex_core.Literal) else names[v]

  for e in jaxpr.eqns:
    ins, call = [name(v) for v in e.invars], CALLS.get(e.primitive.name)
    if e.primitive.name in identities:
      outs = ins[:1]
    elif call and (_size(e) > _SIZE or scalars.is_long(e)):
      inner = e.params[call]
      inner = inner if isinstance(inner, jex_core.ClosedJaxpr) else jex_core.ClosedJaxpr(inner, ())
      inside, outs = inlined(inner, ins, known)
      eqns += inside
    else:
      outs = [v if isinstance(v, jex_core.DropVar) else jex_core.Var(v.aval) for v in e.outvars]
      eqns.append(e.replace(invars=ins, outvars=outs))
    names.update(zip(e.outvars, outs, strict=True))
  return eqns, [name(v) for v in jaxpr.outvars]


def _without_empty(invars: Sequence[Any], eqns: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
  """Return the equations without empty results, and an equation without operands for each empty array (result or operand)."""
  # an equation knows the mesh under which it was traced, so this cache lasts for one call only
  made = functools.cache(lambda shape, dtype: jax.make_jaxpr(lambda: jnp.zeros(shape, dtype))().eqns[0])
  arrays = (*invars, *(v for e in eqns for v in e.outvars))
  empty = {v: made(v.aval.shape, v.aval.dtype).replace(outvars=[v]) for v in arrays if not v.aval.size}

  def without_empty_results(e):  # with unused variables in place of the empty results
    if empty.keys().isdisjoint(e.outvars):
      return e
    return e.replace(outvars=[jex_core.Var(v.aval) if v in empty else v for v in e.outvars])

  return [without_empty_results(e) for e in eqns if not empty.keys() >= set(e.outvars)], empty


def _is_view(eqn: Any) -> bool:
  is_reshape = eqn.primitive.name in ("broadcast_in_dim", "reshape", "squeeze")
  return is_reshape and len(eqn.invars) == 1 and eqn.invars[0].aval.size == eqn.outvars[0].aval.size


def _cut(eqns: Sequence[Any], outvars: Sequence[Any]) -> Iterator[tuple[bool, list[Any], list[Any]]]:
  """Yield each part: whether it is a region (else one equation outside), its equations, and its results that are used later."""
  last = last_reads(eqns, outvars)
  sizes = list(map(_size_uncut, eqns))
  for first, end in _bounds(eqns, sizes, last):
    part = list(eqns[first:end])
    yield sizes[first] < math.inf, part, [v for e in part for v in e.outvars if last.get(v, -1) >= end]


def _bounds(eqns: Sequence[Any], sizes: Sequence[float], last: dict[Any, int]) -> list[tuple[int, int]]:
  """Return where parts begin and end, such that the parts write least to memory: a shortest path over the equations.

  Inside a part XLA fuses the operations between operands and results. An equation of infinite size is a part of its own.
  """
  least, begin = np.zeros(len(eqns) + 1), np.zeros(len(eqns) + 1, int)
  written = np.zeros(len(eqns))  # cost of each equation's results that are used after the current end
  unused: dict[int, list[tuple[int, float]]] = {}  # (equation, decrease of that cost), by the end from which it applies
  first, size = 0, 0.0  # first equation and size of the longest part with the current end
  for end, (e, equation_size) in enumerate(zip(eqns, sizes, strict=True), 1):
    for v in e.outvars:
      if last.get(v, -1) >= end:
        cost = 1 + v.aval.size / _NUMBERS
        written[end - 1] += cost
        unused.setdefault(last[v] + 1, []).append((end - 1, cost))
    for k, cost in unused.pop(end, ()):
      written[k] -= cost
    if equation_size == math.inf:
      least[end], begin[end] = least[end - 1], end - 1
      first, size = end, 0.0
      continue
    size += equation_size
    while size > _SIZE and first < end - 1:
      size -= sizes[first]
      first += 1
    costs = least[first:end] + written[first:end][::-1].cumsum()[::-1] + _REGION
    begin[end] = first + costs.argmin()
    least[end] = costs.min()
  ends = [len(eqns)]
  while ends[-1]:
    ends.append(int(begin[ends[-1]]))
  return list(itertools.pairwise(ends[::-1]))


def variables(eqns: Sequence[Any]) -> Iterator[Any]:
  """Return an iterator over the variables that equations read, without literals."""
  return (v for e in eqns for v in e.invars if not isinstance(v, jex_core.Literal))


def _size_uncut(eqn: Any) -> float:
  """Return the size of an equation; infinite if its inner programs are to be cut into regions."""
  size = _size(eqn)
  name = eqn.primitive.name
  return math.inf if size > (_LOOP if name == "while" else _SIZE) and name in _PARTS else size


def _size(eqn: Any) -> float:
  """Return the number of operations of an equation and its inner programs; infinite if one of them may be in no region."""
  name = eqn.primitive.name
  read = () if name == "gather" else eqn.invars  # a gather reads as many elements as it returns, however large the table
  most = MAX_REDUCED if name.startswith("reduce_") else MAX_NUMBERS
  is_small = all(v.aval.size <= most for v in (*read, *eqn.outvars))
  if not is_small or name not in allowed or not allowed[name](eqn):
    return math.inf
  return 1 + sum(map(_total, jex_core.jaxprs_in_params(eqn.params)))


def _total(jaxpr: jex_core.Jaxpr) -> float:
  if jaxpr not in _totals:
    _totals[jaxpr] = sum(map(_size, jaxpr.eqns))
  return _totals[jaxpr]


_totals: weakref.WeakKeyDictionary[jex_core.Jaxpr, float] = weakref.WeakKeyDictionary()


def _outside(part: jex_core.ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
  """Evaluate an equation that is in no region, though the operations of its inner programs may be."""
  (eqn,) = part.eqns
  params = dict(eqn.params)
  for name in _PARTS.get(eqn.primitive.name, ()):
    params[name] = jax.tree.map(_in_regions, params[name], is_leaf=lambda x: isinstance(x, jex_core.ClosedJaxpr))
  return jex_core.jaxpr_as_fun(part.replace(jaxpr=part.jaxpr.replace(eqns=[eqn.replace(params=params)])))(*args)


def _in_regions(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
  return jax.make_jaxpr(functools.partial(evaluate, closed))(*closed.in_avals)


# ------------------------------------------------------------------------------------------------------------ whole programs

program_p = jex_core.Primitive("mjx_program")
program_p.multiple_results = True


@memoized
def program(function: Callable[..., Any]) -> Callable[..., Any]:
  """Return the function with all of its operations in regions on a CPU; for functions that `jax.jit` compiles."""

  @functools.wraps(function)
  def program(*args, **kwargs):
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
      return function(*args, **kwargs)
    leaves, tree = jax.tree.flatten((args, kwargs))
    traced = [k for k, x in enumerate(leaves) if isinstance(x, jax.core.Tracer)]  # all other leaves are static

    def run(*operands):
      args, kwargs = jax.tree.unflatten(tree, put(leaves, traced, operands))
      return function(*args, **kwargs)

    operands = [leaves[k] for k in traced]
    closed, shape = workarounds.eased(jax.make_jaxpr(run, return_shape=True))(*operands)
    if closed.effects:
      out = jex_core.jaxpr_as_fun(closed)(*operands)
    else:
      # closed-over arrays may be tracers of an outer trace, or large: they become operands
      jaxpr = closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars])
      out = program_p.bind(*closed.consts, *operands, closed=jex_core.ClosedJaxpr(jaxpr, ()))
    return jax.tree.unflatten(jax.tree.structure(shape), out)

  return program


def put(values: Sequence[Any], positions: Sequence[int], new: Sequence[Any]) -> list[Any]:
  """Return the values, with `new` values at some positions."""
  full = list(values)
  for k, x in zip(positions, new, strict=True):
    full[k] = x
  return full


def jvp_of(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
  """Compute the JVP of a primitive by differentiating its function, which takes flat arguments and returns a list."""
  primals = [jnp.asarray(x) for x in primals]  # a primal may be a literal
  varied = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

  def f(*values):
    return function(*put(primals, varied, values))

  out, out_dot = jax.jvp(f, [primals[i] for i in varied], [tangents[i] for i in varied])
  zero = jax.dtypes.float0
  return out, [ad.Zero(jax.core.ShapedArray(t.shape, zero)) if t.dtype == zero else t for t in out_dot]


def _batch(args, dims, *, closed):
  return jax.vmap(jex_core.jaxpr_as_fun(closed), in_axes=dims)(*args), [0] * len(closed.out_avals)


def _jvp(primals, tangents, *, closed):
  return jvp_of(jex_core.jaxpr_as_fun(closed), primals, tangents)


def _lowered(function):
  return workarounds.eased(mlir.lower_fun(lambda *x, closed: function(closed, *x), multiple_results=True))


program_p.def_impl(lambda *x, closed: jex_core.jaxpr_as_fun(closed)(*x))
program_p.def_abstract_eval(lambda *avals, closed: list(closed.out_avals))
batching.primitive_batchers[program_p] = _batch
ad.primitive_jvps[program_p] = _jvp
mlir.register_lowering(program_p, _lowered(evaluate_plainly))
mlir.register_lowering(program_p, _lowered(evaluate), platform="cpu")
