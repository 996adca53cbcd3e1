"""The static part of a model, which decides shapes and program structure, with one digest as its hash and equality.

Tests: tests/transforms/test_step.py, tests/batching/test_processes.py.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mjx_lite.model.callbacks import NONE, Callbacks

if TYPE_CHECKING:
  from mjx_lite.plan import Plan


class Layout:
  """Static part of a Model.

  Attributes:
    static: mjModel's integer, flag and rendering fields as read-only NumPy arrays and Python numbers, by name.
    plan: index tables of the subsystems, by name (each a NamedTuple from that subsystem's `plan`).
    pruned: traced fields that were zero, so that their terms were left out. Replacing one of these fields raises an error.
    tile: number of worlds per tile on CPU, 0 for all worlds at once.
    dtype: name of the floating-point type of the Model's leaves.
    callbacks: the user's functions, during a call that was given some.

  Two layouts of equal content are equal, so equal models share one trace. The digest is computed once, at construction.
  Flattening a Model or comparing two Models costs nothing that grows with the arrays.
  """

  __slots__ = ("_hash", "callbacks", "digest", "dtype", "plan", "pruned", "static", "tile")

  def __init__(self, static: Mapping[str, Any], plan: "Plan", pruned: frozenset[str], tile: int, dtype: str):
    self.static = dict(static)
    self.plan = plan
    self.pruned = pruned
    self.tile = tile
    self.dtype = dtype
    self.callbacks = NONE
    h = hashlib.blake2b(digest_size=16)
    feed(h, (sorted(self.static.items()), plan, sorted(pruned), tile, dtype))
    self.digest = h.digest()
    self._hash = hash(self.digest)

  def __hash__(self) -> int:
    return self._hash

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Layout) and self.digest == other.digest and self.callbacks == other.callbacks

  def with_callbacks(self, callbacks: Callbacks) -> "Layout":
    """Return a copy with the user's functions."""
    new = object.__new__(Layout)
    for name in Layout.__slots__:
      setattr(new, name, getattr(self, name))
    new.callbacks = callbacks
    return new

  def with_part(self, name: str, part: Any) -> "Layout":
    """Return a copy with another plan of one subsystem.

    The new plan has to follow from this layout alone: only its name goes into the new digest, not its content.
    """
    new = self.with_callbacks(self.callbacks)
    new.plan = self.plan._replace(**{name: part})
    new.digest = hashlib.blake2b(self.digest + name.encode(), digest_size=16).digest()
    new._hash = hash(new.digest)
    return new

  def __reduce__(self):
    return Layout, (self.static, self.plan, self.pruned, self.tile, self.dtype)


def feed(h: Any, x: Any) -> None:
  """Add a nested record to a hash, and make its arrays read-only."""
  if isinstance(x, np.ndarray):
    x.flags.writeable = False
    h.update(f"{x.dtype.str}{x.shape}".encode())
    h.update(np.ascontiguousarray(x).tobytes())
  elif isinstance(x, tuple | list):
    h.update(f"{type(x).__name__}{len(x)}".encode())
    for item in x:
      feed(h, item)
  elif isinstance(x, dict):
    feed(h, sorted(x.items()))
  else:
    h.update(repr(x).encode())
