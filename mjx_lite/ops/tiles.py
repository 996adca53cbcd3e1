"""The choice between algorithms by the number of worlds that a program computes at once.

One algorithm is rarely the best for a single world and for thousands. A loop over the contacts that push in some world costs
little for one world, and loses against one product over all contacts for a large batch. Physics names the algorithms here,
and this module decides: no module above asks for the number of worlds.

Tests: tests/math/test_tree.py.
"""

from typing import TypeVar

import jax

from mjx_lite.compiler import regions

T = TypeVar("T")


def choose(x: jax.Array, *, single: T, tile: T, batch: T) -> T:
  """Return one of three alternatives (functions or values) by the number of worlds of an array (..., W).

  Args:
    x: array whose last axis has the worlds.
    single: for one world, or values that all worlds share.
    tile: for a tile of worlds, whose operations become machine code together on CPU (`compiler/regions.py`).
    batch: for all worlds at once, as on GPU and TPU.
  """
  if regions.is_tile(x.shape[-1]):
    return tile
  return single if regions.fits_region(x.shape[-1]) else batch


def whole_or_tiled(tile: int, *, whole: T, tiled: T) -> T:
  """Return one of two alternatives (functions or values) by the number of worlds per tile of a model.

  Args:
    tile: number of worlds per tile on CPU, 0 for all worlds at once.
    whole: for all worlds at once.
    tiled: for one tile after another.
  """
  return tiled if tile > 0 else whole
