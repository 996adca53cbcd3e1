"""Capacities of contacts, as arguments of put_model.

Tests: tests/io/test_capacity_choice.py, tests/collision/test_capacity.py.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, repr=False)
class Capacity:
  """Limits of contacts, as keywords of put_model: `put_model(m, **capacity)`. `str` writes them as arguments.

  Attributes:
    pair_max: number of candidate pairs for the narrow phase by group, such as 'box-box', or one number for every group; None
      for all pairs.
    ncon_max: number of contact slots; "all" or None for a slot for every possible contact.
  """

  pair_max: int | Mapping[str, int] | None = None
  ncon_max: int | str | None = None

  def keys(self) -> Iterator[str]:
    """Return the keywords."""
    return iter(k for k in ("ncon_max", "pair_max") if getattr(self, k) is not None)

  def __getitem__(self, key: str) -> Any:
    return getattr(self, key)

  def __str__(self) -> str:
    return ", ".join(f"{k}={self[k]!r}" for k in self.keys())

  def __repr__(self) -> str:
    return f"{type(self).__name__}({self})"

  def slots(self, total: int) -> int:
    """Return how many of the `total` possible slots there are."""
    return total if self.ncon_max is None or isinstance(self.ncon_max, str) else min(int(self.ncon_max), total)

  def budget(self, group: str, size: int) -> int:
    """Return how many of the `size` candidates of a group go to the narrow phase."""
    bound = self.pair_max.get(group) if isinstance(self.pair_max, Mapping) else self.pair_max
    return size if bound is None else min(int(bound), size)


NO_BOUND = Capacity(ncon_max="all")


def rounded(n: int) -> int:
  """Round a number up to one of four numbers per power of two, so that round-off in a simulation seldom changes a capacity."""
  step = 2 ** max(0, math.ceil(math.log2(max(n, 1))) - 3)
  return -(-n // step) * step
