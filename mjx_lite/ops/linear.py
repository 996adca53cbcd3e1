"""Linear functions as primitives of their own, with a better transpose than JAX derives from their parts.

JAX transposes a gather into a scatter, which XLA on CPU compiles to a loop over rows with six kernels in each iteration. But
the inverse of a constant index is constant too. So the transpose can be a gather, which fuses with the operations around it, or
a product with a constant matrix. JAX transposes a written-out sum, or a concatenation of slices, into a sum of as many padded
copies of the derivative. One broadcast or one concatenation is enough.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from mjx_lite.compiler import operations, regions, scalars, workarounds

MAX_RUNS = 6  # a concatenation of fewer slices is cheaper than a gather
_MAX_PRODUCT = 1 << 16  # entries of the 0/1 matrix that adds up rows chosen more than once
_MAX_TERMS = 32  # terms of a sum; XLA on CPU splits a longer sum into two steps
_MAX_SUMS = 8  # sums that a single world's product is written out as; a larger product is left to the library
_MAX_SUMMED = 64  # terms of a sum in the written-out product of a few worlds; for longer sums the library is faster
_PARTS = 8  # blocks of rows that are added in one operation
_MAX_GATHERS = 4  # gathers that replace a matrix larger than _MAX_PRODUCT; instead of more gathers, a scatter

choose_p = jex_core.Primitive("mjx_choose")
collect_p = jex_core.Primitive("mjx_collect")
add_up_p = jex_core.Primitive("mjx_add_up")
spread_p = jex_core.Primitive("mjx_spread")
combine_p = jex_core.Primitive("mjx_combine")
contract_p = jex_core.Primitive("mjx_contract")
total_p = jex_core.Primitive("mjx_total")
repeat_p = jex_core.Primitive("mjx_repeat")
bind_p = jex_core.Primitive("mjx_bind")
materialize_p = jex_core.Primitive("mjx_materialize")
write_p = jex_core.Primitive("mjx_write")
no_alias_p = jex_core.Primitive("mjx_apart")


class ByValue:
  """A parameter of a primitive, compared and hashed by the values of an array."""

  def __init__(self, array: np.ndarray, size: int = 0):
    self._key = size, array.shape, array.tobytes()

  def __hash__(self):
    return hash(self._key)

  def __eq__(self, other):
    return type(self) is type(other) and self._key == other._key


class Choice(ByValue):
  """A choice of the rows `index` (n,) out of `size` rows; compared by value."""

  def __init__(self, index: np.ndarray, size: int):
    self.index, self.size = np.asarray(index), size
    super().__init__(self.index.astype(np.int64), size)

  def __repr__(self):
    return f"Choice({len(self.index)} of {self.size})"


def choose(x: jax.Array, index: np.ndarray) -> jax.Array:
  """Return `x[index]` along the first axis, for a constant valid index (n,)."""
  return choose_p.bind(x, choice=Choice(index, x.shape[0]))


def add_up(x: jax.Array, axis: int) -> jax.Array:
  """Return the sum along a short axis, which is dropped and is counted from the end.

  The sum is written out, and its transpose is a broadcast.
  """
  return add_up_p.bind(x, axis=axis, size=x.shape[axis])


def contract(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
  """Return `add_up` of the products a * b; for a tile of worlds the products are not materialized."""
  a, b = _alike(a, b)
  return contract_p.bind(a, b, axis=axis, size=a.shape[axis])


def _alike(*factors: jax.Array) -> list[jax.Array]:
  """Return the arrays in the shape and dtype of their product."""
  return jnp.broadcast_arrays(*(x.astype(jnp.result_type(*factors)) for x in factors))


def combine(a: jax.Array | np.ndarray, x: jax.Array) -> jax.Array:
  """Return the product (n, ...) of a matrix (n, k) and rows (k, ...); or m such products, of (m, n, k) and (m, k, ...).

  JAX's own rule for the transpose multiplies in the opposite order, so that its result has to be transposed again.
  """
  return combine_p.bind(a, x)


def total(x: jax.Array) -> jax.Array:
  """Return the sum along the first axis, which is dropped."""
  return total_p.bind(x, size=x.shape[0])


def materialize(x: Any) -> Any:
  """Return the tree x unchanged; on CPU compute each array of it once and in its own shape, before any operation uses it.

  XLA on CPU fuses too much. It computes the operand of a product with a constant matrix in the product's flat shape, index by
  index and not vectorised. It repeats the operand of a gather for every row. It repeats an array with several uses in each use.
  On CPU a barrier prevents this, without a copy (`_barrier`). On other devices the function has no effect.

  The barrier is also needed for consistency. If one copy of a comparison uses fused multiply-adds and another copy does not,
  the two may differ. So a decision that several results depend on has to be computed once.
  """
  return jax.tree.map(materialize_p.bind, x)


def materialize_everywhere(x: Any) -> Any:
  """Return the tree x unchanged, but computed once on every device: for arrays that not only XLA on CPU would compute again."""
  return jax.tree.map(write_p.bind, x)


def no_alias(x: jax.Array, *operands: jax.Array) -> jax.Array:
  """Return x unchanged; on CPU compute it once, in a buffer that aliases none of the operands of its shape.

  XLA lets the result of a kernel overwrite an operand that nothing else uses. LLVM does not know which operand is overwritten.
  The compiled code uses vectors if no operand is; otherwise the code goes number by number, ten times slower. An operand that
  is used after the result, even if only by a barrier, keeps its buffer.
  """
  return no_alias_p.bind(x, *operands)


def depend_on(x: Any, to: jax.Array) -> Any:
  """Return the tree x unchanged, but dependent on `to` for JAX; XLA does not see this dependence.

  Bind constants of a loop's body to the loop's carry to keep them in the body. Otherwise JAX, when it splits a loop for reverse
  mode, moves all operations on constants before the loop, and each small result becomes a kernel of its own. XLA still moves an
  operation out of the loop where that pays.
  """
  return jax.tree.map(lambda leaf: bind_p.bind(leaf, to), x)


def _barrier(*x: jax.Array) -> jax.Array:
  """Return the first argument through a barrier: all arguments are computed before it, and XLA fuses nothing across it."""
  return workarounds.barrier_call(*x)[0]


def _combine(a: jax.Array | np.ndarray, x: jax.Array) -> jax.Array:
  if not a.shape[-1]:
    return jnp.zeros((*a.shape[:-1], *x.shape[a.ndim - 1 :]), x.dtype)
  if is_summed(a.shape, x.shape):
    return _summed(jnp.asarray(a), x)
  row = a.ndim - 2
  batch = (0,) * row
  return jax.lax.dot_general(a, materialize(x), (((row + 1,), (row,)), (batch, batch)), precision=jax.lax.Precision.HIGHEST)


def _terms(a: tuple[int, ...], x: tuple[int, ...]) -> int:
  """Return the number of terms of each sum in the written-out product of matrices of these shapes."""
  results = math.prod((*a[:-1], *x[len(a) - 1 :]))
  return max(1, min(_MAX_TERMS, regions.MAX_REDUCED // max(1, results)))


def is_summed(a: tuple[int, ...], x: tuple[int, ...]) -> bool:
  """Return whether a product of matrices of these shapes is written out as sums."""
  worlds = x[-1] if len(x) > len(a) - 1 else math.inf
  if worlds == 1:
    return a[-1] <= _MAX_SUMS * _terms(a, x)
  return worlds <= regions.lanes() and a[-1] <= _MAX_SUMMED


def _summed(a: jax.Array, x: jax.Array) -> jax.Array:
  """Return a product of one or a few worlds as sums: XLA on CPU calls a library for other products, and no region can do so."""
  row, k, size = a.ndim - 2, a.shape[-1], _terms(a.shape, x.shape)
  is_one = x.shape[-1] == 1
  a, x = a.reshape(*a.shape, *(1,) * (x.ndim - row - 1)), jnp.expand_dims(materialize(x), row)
  if is_one:
    parts = []
    for first in range(0, k, size):
      terms = (jax.lax.slice_in_dim(v, first, min(first + size, k), axis=row + 1) for v in (a, x))
      parts.append(jnp.sum(operator.mul(*terms), axis=row + 1))
    return functools.reduce(operator.add, parts)
  # XLA on CPU does not vectorise sums over an axis that is not the last
  terms = list(map(operator.mul, *(jax.lax.split(v, (1,) * k, axis=row + 1) for v in (a, x))))
  parts = (functools.reduce(operator.add, terms[first : first + _MAX_TERMS]) for first in range(0, k, _MAX_TERMS))
  total = functools.reduce(lambda total, part: materialize(total + part), parts, materialize(next(parts)))
  return jax.lax.squeeze(total, (row + 1,))


def _combine_matrix(t: jax.Array, a: Any, x: jax.Array) -> jax.Array:
  """Return the derivative with respect to the matrix."""
  row = a.aval.ndim - 2
  axes, batch = tuple(range(row + 1, x.ndim)), (0,) * row
  return jax.lax.dot_general(t, x, ((axes, axes), (batch, batch)), precision=jax.lax.Precision.HIGHEST)


def _combine_batch(args: Any, dims: Any) -> tuple[jax.Array, int]:
  a, x = args
  if dims[0] is not None:
    return jax.vmap(_combine, in_axes=dims)(a, x), 0
  out = combine(a, jnp.moveaxis(x, dims[1], -1))
  return out, out.ndim - 1


def _total(x: jax.Array, size: int) -> jax.Array:
  if _is_added(x.shape):
    return _added(x)
  # a second row, of zeros: see vector.combine_rows
  return _combine(np.repeat([[1], [0]], size, axis=1).astype(x.dtype), x)[0]


def _is_added(x: tuple[int, ...]) -> bool:
  """Return whether the sum of rows of this shape is written out: for a tile of worlds, to fit a region."""
  return x[0] > 0 and regions.is_tile(x[-1])


def _added(x: jax.Array) -> jax.Array:
  """Return the sum along the first axis: up to `_PARTS` blocks of rows are added at a time, until one row is left."""
  while len(x) > 1:
    rows = -(-len(x) // _PARTS)
    short = jnp.zeros((-len(x) % rows, *x.shape[1:]), x.dtype)
    *parts, last = (x[k : k + rows] for k in range(0, len(x), rows))
    x = materialize(functools.reduce(operator.add, [*parts, jnp.concatenate([last, short]) if len(short) else last]))
  return x[0]


def _repeat(x: jax.Array, size: int) -> jax.Array:
  return jnp.broadcast_to(x, (size, *x.shape))


def _choose(x: jax.Array, choice: Choice) -> jax.Array:
  return take_rows(x, choice.index)


def cuts_of(index: np.ndarray) -> np.ndarray:
  """Return the positions in an index (n,) where runs of consecutive rows, or of -1, begin, except the first position."""
  before, after = index[:-1], index[1:]
  return np.flatnonzero(np.where(after < 0, before >= 0, (after != before + 1) | (before < 0))) + 1


def take_rows(x: jax.Array, index: np.ndarray) -> jax.Array:
  """Return x[index], with rows of zeros where the index is -1, as a concatenation of a few slices or as a gather."""
  if not len(index):
    return jnp.zeros((0, *x.shape[1:]), x.dtype)
  cuts = cuts_of(index)
  if len(cuts) < MAX_RUNS:
    parts = []
    for a, b in zip(np.r_[0, cuts], np.r_[cuts, len(index)], strict=True):
      n, first = int(b - a), int(index[a])
      zeros = first < 0
      parts.append(jnp.zeros((n, *x.shape[1:]), x.dtype) if zeros else jax.lax.slice_in_dim(x, first, first + n))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
  is_row = index >= 0
  out = x.at[np.where(is_row, index, 0)].get(mode="promise_in_bounds")
  return out if is_row.all() else jnp.where(is_row.reshape(-1, *(1,) * (x.ndim - 1)), out, 0)


def _collect(x: jax.Array, choice: Choice) -> jax.Array:
  """Return the transpose of `choose`, (size, ...): each row of x (n, ...) is added to the row that it was chosen from."""
  index, size = choice.index, choice.size
  most, is_product = _collection(choice)
  if is_product:
    return _combine((np.arange(size)[:, None] == index).astype(x.dtype), x)
  if most > _MAX_GATHERS:
    return jnp.zeros((size, *x.shape[1:]), x.dtype).at[index].add(x, mode="promise_in_bounds")
  count = np.bincount(index, minlength=size)
  order, first = np.append(np.argsort(index, kind="stable"), -1), np.cumsum(count) - count
  parts = [take_rows(x, order[np.where(count > k, first + k, -1)]) for k in range(max(most, 1))]
  return functools.reduce(operator.add, parts)


def _collection(choice: Choice) -> tuple[int, bool]:
  """Return how often a row was chosen at most, and whether a matrix product adds up the rows."""
  most = int(np.bincount(choice.index, minlength=choice.size).max(initial=0))
  return most, most > 1 and choice.size * len(choice.index) <= _MAX_PRODUCT


def _add_up(*factors: jax.Array, axis: int, size: int) -> jax.Array:
  at = factors[0].ndim + axis
  terms = zip(*(jax.lax.split(x, (1,) * size, axis=at) for x in factors), strict=True)
  return jax.lax.squeeze(functools.reduce(operator.add, (functools.reduce(operator.mul, x) for x in terms)), (at,))


def _contract(a: jax.Array, b: jax.Array, **params: Any) -> jax.Array:
  # XLA on CPU materializes a product before it takes several slices of it
  return _add_up(a, b, **params) if regions.is_tile(a.shape[-1]) else _add_up(a * b, **params)


def _added_shape(x: Any, axis: int, size: int) -> tuple[int, ...]:
  return (*x.shape[:axis], *x.shape[len(x.shape) + axis + 1 :])


def _spread(x: jax.Array, axis: int, size: int) -> jax.Array:
  return jnp.broadcast_to(jnp.expand_dims(x, axis), _spread_shape(x, axis, size))


def _spread_shape(x: Any, axis: int, size: int) -> tuple[int, ...]:
  at = len(x.shape) + axis + 1
  return (*x.shape[:at], size, *x.shape[at:])


def _may_collect(x: Any, choice: Choice) -> bool:
  """Return whether `_collect` needs neither a scatter nor a matrix product by the library."""
  most, is_product = _collection(choice)
  return is_summed((choice.size, len(choice.index)), x.shape) if is_product else most <= _MAX_GATHERS


def _may_total(x: tuple[int, ...]) -> bool:
  return _is_added(x) or is_summed((2, x[0]), x)


# Scalar rules: what each primitive is in a program of numbers (`compiler/scalars.py`).


def _scalar_choose(p, eqn, x):
  return scalars.take_rows(p, x, eqn.params["choice"].index, scalars.kind_of(eqn.outvars[0].aval.dtype))


def _scalar_collect(p, eqn, x):
  kind, choice = scalars.kind_of(eqn.outvars[0].aval.dtype), eqn.params["choice"]
  zeros = p.constant(np.zeros(x.shape[1:], operations.TYPES[kind]))
  rows = [[x[k] for k in np.flatnonzero(choice.index == i)] for i in range(choice.size)]
  return np.stack([p.sum(r, kind) if r else zeros for r in rows]) if rows else np.zeros((0, *x.shape[1:]), np.int64)


def _scalar_add_up(p, eqn, x):
  return p.fold("add", scalars.kind_of(eqn.outvars[0].aval.dtype), x, [x.ndim + eqn.params["axis"]])


def _scalar_contract(p, eqn, a, b):
  kind, axis = scalars.kind_of(eqn.outvars[0].aval.dtype), a.ndim + eqn.params["axis"]
  return p.sum([p.map("mul", kind, *x) for x in zip(np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0), strict=True)], kind)


def _scalar_spread(p, eqn, x):
  return np.broadcast_to(np.expand_dims(x, eqn.params["axis"]), eqn.outvars[0].aval.shape)


def _scalar_total(p, eqn, x):
  kind = scalars.kind_of(eqn.outvars[0].aval.dtype)
  return p.fold("add", kind, x, [0]) if len(x) else p.constant(np.zeros(x.shape[1:], operations.TYPES[kind]))


def _scalar_repeat(p, eqn, x):
  return np.broadcast_to(x, eqn.outvars[0].aval.shape)


def _scalar_combine(p, eqn, a, x):
  kind = scalars.kind_of(eqn.outvars[0].aval.dtype)
  if a.ndim == 3:
    return np.stack([_scalar_product(p, *y, kind) for y in zip(a, x, strict=True)])
  return _scalar_product(p, a, x, kind)


def _scalar_product(p, a, x, kind):
  """Return the product of a matrix (n, k) and rows (k, ...)."""
  none = p.constant(np.zeros(x.shape[1:], operations.TYPES[kind]))
  rows = [[p.map("mul", kind, np.broadcast_to(c, row.shape), row) for c, row in zip(line, x, strict=True)] for line in a]
  return np.stack([p.sum(r, kind) if r else none for r in rows]) if rows else np.zeros((0, *x.shape[1:]), np.int64)


def _scalar_identity(p, eqn, x, *operands):
  return x


def function(
  name: str,
  run: Callable[..., Any],
  shape: Callable[..., Any],
  transpose: Callable[..., Any],
  *,
  region: Callable[..., bool],
  scalar: Callable[..., Any],
  of_product: bool = False,
) -> Callable[..., jax.Array]:
  """Define a primitive for a linear function of an array (n, ..., W) and hashable parameters; return a function that binds it.

  Args:
    name: name of the primitive.
    run: the linear function.
    shape: function of the array's shape and the parameters. It returns the shape of the result.
    transpose: the transposed function, with the same parameters.
    region: function of the array's shape and the parameters. It returns whether a region may contain the primitive.
    scalar: the scalar rule: a function of the program, the equation and the numbers of the operands (`scalars.RULES`).
    of_product: whether the array is the product of two factors. Then `run` takes the two factors, in the product's shape.
  """
  primitive = jex_core.Primitive(name)
  _define(
    primitive,
    run,
    lambda x, **params: shape(x.shape, **params),
    transpose,
    first=False,
    of_product=of_product,
    region=lambda eqn: region(eqn.invars[0].aval.shape, **eqn.params),
    scalar=scalar,
  )
  return lambda *factors, **params: primitive.bind(*_alike(*factors), **params)


def _compiled_by(primitive: Any, region: Callable[[Any], bool], scalar: Callable[..., Any]) -> None:
  """Register what the compiler has to know of a primitive: whether an equation may be in a region, and its scalar rule."""
  regions.allowed[primitive.name] = region
  scalars.RULES[primitive.name] = scalar


def _define(
  primitive: Any,
  run: Callable[..., Any],
  shape: Callable[..., Any],
  transpose: Callable[..., Any],
  *,
  first: bool,
  scalar: Callable[..., Any],
  region: Callable[[Any], bool] = lambda eqn: True,
  of_product: bool = False,
) -> None:
  """Define a linear function of an array, or of the product of two arrays of one shape, with all of its rules.

  The transpose has the same parameters. Batching puts the batch axis first if `first`, else last. `region` and `scalar` are
  the compiler's rules (`_compiled_by`).
  """

  def batch(args, dims, **params):
    at = 0 if first else -1
    moved = [jnp.expand_dims(x, at) if d is None else jnp.moveaxis(x, d, at) for x, d in zip(args, dims, strict=True)]
    out = primitive.bind(*jnp.broadcast_arrays(*moved), **params)
    return out, 0 if first else out.ndim - 1

  compiled = jax.jit(lambda factors, params: run(*factors, **dict(params)), static_argnums=1)
  primitive.def_impl(lambda *factors, **params: compiled(factors, tuple(params.items())))
  primitive.def_abstract_eval(lambda x, *_, **params: jax.core.ShapedArray(shape(x, **params), x.dtype))
  mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
  batching.primitive_batchers[primitive] = batch
  if of_product:
    ad.defbilinear(
      primitive,
      lambda t, a, b, **params: transpose(t, **params) * b,
      lambda t, a, b, **params: transpose(t, **params) * a,
    )
  else:
    ad.deflinear2(primitive, lambda t, x, **params: [transpose(t, **params)])
  _compiled_by(primitive, region, scalar)


_define(
  choose_p, _choose, lambda x, choice: (len(choice.index), *x.shape[1:]), collect_p.bind, first=False, scalar=_scalar_choose
)
_define(
  collect_p, _collect, lambda x, choice: (choice.size, *x.shape[1:]), choose_p.bind, first=False, scalar=_scalar_collect,
  region=lambda eqn: _may_collect(eqn.invars[0].aval, **eqn.params),
)  # fmt: skip
_define(add_up_p, _add_up, _added_shape, spread_p.bind, first=True, scalar=_scalar_add_up)
_define(contract_p, _contract, _added_shape, spread_p.bind, first=True, of_product=True, scalar=_scalar_contract)
_define(spread_p, _spread, _spread_shape, add_up_p.bind, first=True, scalar=_scalar_spread)
_define(
  total_p, _total, lambda x, size: x.shape[1:], repeat_p.bind, first=False, scalar=_scalar_total,
  region=lambda eqn: _may_total(eqn.invars[0].aval.shape),
)  # fmt: skip
_define(repeat_p, _repeat, lambda x, size: (size, *x.shape), total_p.bind, first=False, scalar=_scalar_repeat)

_define(materialize_p, lambda x: x, lambda x: x.shape, materialize_p.bind, first=True, scalar=_scalar_identity)
_define(write_p, jax.lax.optimization_barrier, lambda x: x.shape, write_p.bind, first=True, scalar=_scalar_identity)

combine_p.def_impl(jax.jit(_combine))
combine_p.def_abstract_eval(lambda a, x: jax.core.ShapedArray((*a.shape[:-1], *x.shape[a.ndim - 1 :]), x.dtype))
mlir.register_lowering(combine_p, mlir.lower_fun(_combine, multiple_results=False))
batching.primitive_batchers[combine_p] = _combine_batch
ad.defbilinear(combine_p, _combine_matrix, lambda t, a, x: combine(a.swapaxes(-1, -2), t))
_compiled_by(combine_p, lambda eqn: is_summed(*(v.aval.shape for v in eqn.invars)), _scalar_combine)


def _define_first(primitive: Any) -> None:
  """Define a primitive that returns its first argument unchanged; its derivative ignores the other arguments."""
  primitive.def_impl(lambda x, *operands: x)
  primitive.def_abstract_eval(lambda x, *operands: jax.core.ShapedArray(x.shape, x.dtype))
  mlir.register_lowering(primitive, lambda ctx, x, *operands: [x])
  batching.primitive_batchers[primitive] = lambda args, dims: (primitive.bind(*args), dims[0])
  ad.primitive_jvps[primitive] = lambda primals, tangents: (primitive.bind(*primals), tangents[0])
  _compiled_by(primitive, lambda eqn: True, _scalar_identity)


_define_first(bind_p)
regions.identities.add(bind_p.name)
_define_first(no_alias_p)

for _primitive in (materialize_p, write_p, no_alias_p):
  mlir.register_lowering(_primitive, mlir.lower_fun(_barrier, multiple_results=False), platform="cpu")
