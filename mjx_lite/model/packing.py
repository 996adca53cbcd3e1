"""Packing of a pytree into one array for each dtype, for programs of one world that are called from Python.

For each array that a program takes or returns JAX needs some microseconds, and a Data has ninety arrays. So `call` compiles a
function of the packed arrays. Its results are unpacked field by field when the fields are read (`Lazy`). A Data that only goes
from one call to the next is never unpacked.
"""

import dataclasses
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from mjx_lite.compiler import workarounds
from mjx_lite.compiler.memo import memoized
from mjx_lite.model.pytree import Replaceable, optional_fields, specs

_SINGLY = 3  # fields that are read one by one before all others are unpacked at once


class Packing:
  """Positions of the leaves of a pytree in its packed arrays; equal pytrees share one object (`packing_of`)."""

  def __init__(self, tree: Any, avals: Sequence[tuple[tuple[int, ...], np.dtype]]):
    self.tree = tree
    self._shapes = [shape for shape, _ in avals]
    self._sizes = [math.prod(shape) for shape in self._shapes]
    dtypes = sorted({dtype for _, dtype in avals}, key=str)
    self._groups = [[i for i, (_, dtype) in enumerate(avals) if dtype == t] for t in dtypes]
    self._avals = list(avals)
    self._programs: dict[Any, Callable[..., Any]] = {}

  @functools.cached_property
  def _spans(self) -> dict[str, tuple[int, int]]:
    """Range of the leaves of each field of the packed dataclass: the first index, and the index behind the last."""
    names = [f.name for f in dataclasses.fields(self.tree.node_data()[0]) if not f.metadata.get("static")]
    ends = [0, *itertools.accumulate(child.num_leaves for child in self.tree.children())]
    return dict(zip(names, itertools.pairwise(ends), strict=True))

  def _place(self, i: int) -> tuple[int, int]:
    """Return the index of the packed array that holds a leaf, and the leaf's offset in that array."""
    k = next(k for k, group in enumerate(self._groups) if i in group)
    return k, sum(self._sizes[j] for j in self._groups[k] if j < i)

  def pack(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the packed arrays."""
    return [jnp.concatenate([jnp.ravel(leaves[i]) for i in group]) for group in self._groups]

  def unpack(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the leaves."""
    leaves: dict[int, jax.Array] = {}
    for group, x in zip(self._groups, arrays, strict=True):
      parts = jax.lax.split(x, [self._sizes[i] for i in group])
      leaves.update({i: part.reshape(self._shapes[i]) for i, part in zip(group, parts, strict=True)})
    return [leaves[i] for i in range(len(self._shapes))]

  def __contains__(self, name: str) -> bool:
    return name in self._spans

  def read(self, name: str, arrays: Sequence[jax.Array]) -> Any:
    """Return the value of a field."""
    first, last = self._spans[name]
    tree = self.tree.children()[list(self._spans).index(name)]
    if first == last:
      return jax.tree.unflatten(tree, [])
    return jax.tree.unflatten(tree, self._program(name, lambda *x: self.unpack(x)[first:last])(*arrays))

  def read_all(self, arrays: Sequence[jax.Array]) -> dict[str, Any]:
    """Return the values of all fields."""
    whole = jax.tree.unflatten(self.tree, self._program(None, lambda *x: self.unpack(x))(*arrays))
    return dict(vars(whole))

  def write(self, arrays: Sequence[jax.Array], changes: dict[str, Any]) -> Sequence[jax.Array] | None:
    """Return the packed arrays with new values of some fields; None if a value has another structure, shape or dtype."""
    names, values, places = tuple(sorted(changes)), [], []
    for name in names:
      leaves, tree = jax.tree.flatten(changes[name])
      first, last = self._spans[name]
      if tree != self.tree.children()[list(self._spans).index(name)]:
        return None
      if any(_aval(x) != aval for x, aval in zip(leaves, self._avals[first:last], strict=True)):
        return None
      values += leaves
      places += range(first, last)

    def put(arrays, values):
      arrays = list(arrays)
      for (k, start), x in zip(map(self._place, places), values, strict=True):
        arrays[k] = jax.lax.dynamic_update_slice(arrays[k], jnp.ravel(x), (start,))
      return arrays

    return self._program(names, put)(arrays, values)

  def _program(self, key, function):
    if key not in self._programs:
      self._programs[key] = jax.jit(function)
    return self._programs[key]


packing_of = functools.lru_cache(maxsize=64)(Packing)


def _aval(x: Any) -> tuple[tuple[int, ...], np.dtype] | None:
  """Return the shape and dtype that a program would see; None if x is traced, or is not an array of numbers."""
  if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
    return (x.shape, x.dtype) if not jnp.issubdtype(x.dtype, jax.dtypes.extended) else None
  if isinstance(x, np.ndarray):
    return x.shape, jax.dtypes.canonicalize_dtype(x.dtype)
  return None


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["packing"])
@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
  """A pytree in packed form."""

  arrays: Sequence[jax.Array]
  packing: Packing

  def unpacked(self) -> Any:
    """Return the pytree."""
    return jax.tree.unflatten(self.packing.tree, self.packing.unpack(self.arrays))


def _pack(x: Any) -> Packed:
  leaves, tree = jax.tree.flatten(x)
  packing = packing_of(tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
  return Packed(packing.pack(leaves), packing)


_pack_now = jax.jit(_pack)


def _are_given(leaves: Sequence[Any]) -> bool:
  """Return whether all leaves are arrays of known numbers, not traced."""
  return all(_aval(x) is not None for x in leaves)


class Lazy(Replaceable):
  """A pytree dataclass whose fields may lie in packed arrays until they are read."""

  @classmethod
  def of(cls, packed: Packed) -> Any:
    """Return an object whose fields are read from packed arrays."""
    new = object.__new__(cls)
    vars(new).update(_packed=packed, _changes={})
    return new

  def __getattr__(self, name: str) -> Any:
    own = vars(self)
    packed = own.get("_packed")
    if name in optional_fields(type(self)):
      return getattr(type(self), name).__get__(self)  # its AttributeError led here: raise the error again
    if packed is None or name not in packed.packing:
      raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
    # another function may be traced now; the values are known, and a cached field must not belong to its trace
    with jax.ensure_compile_time_eval():
      if len(own) - 2 < _SINGLY:
        own[name] = packed.packing.read(name, packed.arrays)
      else:
        own.update({**packed.packing.read_all(packed.arrays), **own})
    return own[name]

  def __getstate__(self) -> dict[str, Any]:
    return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

  def replace(self, **changes: Any) -> Any:
    """Return a copy with some fields changed."""
    own = vars(self)
    optional = optional_fields(type(self))
    changes = {f"_{k}" if k in optional else k: x for k, x in changes.items()}
    if "_packed" not in own or any(name not in own["_packed"].packing for name in changes):
      return super().replace(**changes)
    new = object.__new__(type(self))
    vars(new).update({**own, **changes, "_changes": {**own["_changes"], **changes}})
    return new

  def packed(self) -> Packed | None:
    """Return the packed form; None if the object is traced, has several worlds, or has a field that cannot be packed."""
    own = vars(self)
    packed = own.get("_packed")
    if packed is None:
      leaves = jax.tree.leaves(self)
      return _pack_now(self) if _are_given(leaves) and self.is_one_world() else None
    if own["_changes"]:
      arrays = packed.packing.write(packed.arrays, own["_changes"])
      if arrays is None:
        return None
      packed = Packed(arrays, packed.packing)
      own.update(_packed=packed, _changes={})
    return packed

  def is_one_world(self) -> bool:
    """Return whether the arrays have no leading world axis, judged by the first declared array."""
    name, spec = next(iter(specs(type(self)).items()))
    return getattr(self, name).ndim == len(spec["shape"])


_known: weakref.WeakKeyDictionary[Any, Packed | None] = weakref.WeakKeyDictionary()


def _packed_model(m: Any) -> Packed | None:
  """Return the packed form of a pytree that is passed again and again, from a cache; None if the pytree is traced."""
  if m not in _known:
    _known[m] = _pack_now(m) if _are_given(jax.tree.leaves(m)) else None
  return _known[m]


def call(plain: Callable[..., Any], jit: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
  """Return `plain` with packed arguments and results for calls from Python with the Data of one world.

  Args:
    plain: the compiled function, used for all other calls.
    jit: function that compiles a function.
    function: the function before compilation.
  """
  program = jit(_of_packed(function))

  @functools.wraps(function)
  def calling(*args, **kwargs):
    given = None if kwargs else _packed(args)
    if given is None:
      return plain(*args, **kwargs)
    out = program(*given)
    return jax.tree.map(_unpacked, out, is_leaf=_is_packed)

  def cache_size():
    return workarounds.compilations(plain) + workarounds.compilations(program)

  vars(calling).update({name: getattr(plain, name) for name in ("lower", "trace", "eval_shape")}, _cache_size=cache_size)
  return calling


@memoized
def _of_packed(function):
  """Return the function with packed arguments and packed results."""

  def of_packed(*args):
    out = function(*(x.unpacked() if isinstance(x, Packed) else x for x in args))
    return jax.tree.map(lambda x: _pack(x) if _is_lazy(x) and x.is_one_world() else x, out, is_leaf=_is_lazy)

  return of_packed


def _packed(args):
  """Return the arguments with each Data and Model packed; None if no argument is a Data, or if one cannot be packed."""
  if not any(map(_is_lazy, args)):
    return None
  out = []
  for x in args:
    if isinstance(x, Replaceable):
      x = x.packed() if isinstance(x, Lazy) else _packed_model(x)
      if x is None:
        return None
    elif any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x)):
      return None
    out.append(x)
  return out


def _unpacked(x):
  if not _is_packed(x):
    return x
  if any(isinstance(a, jax.core.Tracer) for a in x.arrays):  # called with constants while another function is traced
    return x.unpacked()
  return x.packing.tree.node_data()[0].of(x)


def _is_lazy(x):
  return isinstance(x, Lazy)


def _is_packed(x):
  return isinstance(x, Packed)
