"""The corner of a polytope that is farthest in a direction, at a cost that does not grow with their number.

Directions are points of a cube's surface, which is divided into cells. A corner can only be the farthest in a cell if no other
is farther all over it: few are left, of a hull of thousands some four on average (the Gauss map takes the directions of a small
cell to a few corners, unless it looks at the rim of a flat face). A crowded cell is divided once more. What is left of the
cells is written in blocks, and a look goes through those of one cell. It finds what going through all corners finds.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.core import linear
from mjx_lite.core.select import fetched
from mjx_lite.math import vector
from mjx_lite.math.extreme import first_largest

MANY = 128  # corners from which a look is cheaper than going through all of them
_LEVELS = 3  # halvings of a side of the cube
_SIDE = 2**_LEVELS  # cells along it
_PARTS = 4  # halvings of a crowded cell, at most
_BLOCK = 4  # corners that are looked at together
_ROUNDING = 1e-5, 2e-6  # directions so far outside count as in a cell; corners so little lower as the farthest, of the size


class CubeMap(NamedTuple):
  """The cells of K polytopes, one after another."""

  cell: np.ndarray  # (K * 6 * _SIDE**2,) its first part
  split: np.ndarray  # (K * 6 * _SIDE**2,) parts along one of its sides
  first: np.ndarray  # (nparts,) first block of a part
  count: np.ndarray  # (nparts,) number of its blocks, at least 1
  corner: np.ndarray  # (nblocks * _BLOCK,) which corner of the polytope, ascending in a part, whose first pads its last block
  vert: np.ndarray  # (nblocks * _BLOCK, 3) where that is


def of(vert: np.ndarray) -> CubeMap:
  """The cells of one polytope with corners (n, 3)."""
  return _of(np.ascontiguousarray(vert, float).tobytes())


def one_cell(vert: np.ndarray) -> CubeMap:
  """All corners in each cell, for few of them."""
  return _written(np.asarray(vert, float), [[np.arange(len(vert))]], np.zeros(6 * _SIDE**2, int))


def join(maps: list[CubeMap]) -> CubeMap:
  """The cells of several polytopes."""
  parts = np.cumsum([0, *(len(x.first) for x in maps)])
  blocks = np.cumsum([0, *(len(x.corner) // _BLOCK for x in maps)])
  shifted = [x._replace(cell=x.cell + p, first=x.first + b) for x, p, b in zip(maps, parts, blocks, strict=False)]
  return CubeMap(*(np.concatenate(x) for x in zip(*shifted, strict=True)))


@functools.lru_cache(maxsize=512)
def _of(data: bytes) -> CubeMap:
  vert = np.frombuffer(data).reshape(-1, 3)
  cells = []
  for face in range(6):
    for row in _divided(vert, face, np.array([-1.0, -1.0]), 2.0, np.arange(len(vert)), _LEVELS):
      for low, size, found in row:
        crowd = max(1, len(found) / (2 * _BLOCK))
        levels = min(_PARTS, int(np.ceil(0.5 * np.log2(crowd))))
        cells.append([part for parts in _divided(vert, face, low, size, found, levels) for *_, part in parts])
  return _written(vert, cells, np.arange(len(cells)))


def _divided(vert: np.ndarray, face: int, low: np.ndarray, size: float, found: np.ndarray, levels: int) -> list[list[tuple]]:
  """Of a square on a face of the cube the rows of parts of 2**levels along a side: corner, size, and corners of the hull."""
  found = _farthest_in(vert, face, low, size, found)
  if levels == 0:
    return [[(low, size, found)]]
  half = 0.5 * size
  quarter = [[_divided(vert, face, low + half * np.array([i, j]), half, found, levels - 1) for j in (0, 1)] for i in (0, 1)]
  return [left + right for one, other in quarter for left, right in zip(one, other, strict=True)]


def _farthest_in(vert: np.ndarray, face: int, low: np.ndarray, size: float, found: np.ndarray) -> np.ndarray:
  """Those corners that may be the farthest in a square: heights are linear in it, so its four corners tell."""
  grow, tie = _ROUNDING
  at = low + size * np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) + grow * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
  direction = np.roll(np.concatenate([np.full((4, 1), 1 if face < 3 else -1), at], axis=1), face % 3, axis=1)
  height = vert[found] @ direction.T
  keep = np.ones(len(found), bool)
  for k in {*height.argmax(axis=0), int(height.sum(axis=1).argmax())}:
    keep &= (height >= height[k] - tie * np.abs(vert).max()).any(axis=1)
  return found[keep]


def _written(vert: np.ndarray, cells: list[list[np.ndarray]], number: np.ndarray) -> CubeMap:
  """Cells as blocks.

  Args:
    vert: (n, 3) corners.
    cells: the parts of each cell.
    number: (6 * _SIDE**2,) which of the cells.
  """
  padded = [np.concatenate([x, np.repeat(x[:1], -len(x) % _BLOCK)]) for parts in cells for x in parts]
  count = np.array([len(x) // _BLOCK for x in padded])
  begin = np.cumsum([0, *(len(parts) for parts in cells)])[:-1]
  split = np.array([round(len(parts) ** 0.5) for parts in cells])
  corner, first = np.concatenate(padded), np.cumsum(count) - count
  begin, split, first, count, corner = (x.astype(np.int32) for x in (begin[number], split[number], first, count, corner))
  return CubeMap(begin, split, first, count, corner, vert[corner])


def farthest(cells: CubeMap, which: Any, along: jax.Array) -> jax.Array:
  """The first of the farthest corners.

  Args:
    cells: of K polytopes.
    which: (P, W or 1) which of them.
    along: directions (P, ..., 3, W).

  Returns:
    indices (P, ..., W).
  """
  along = linear.materialized(jax.lax.stop_gradient(along))
  part = _part(cells, jnp.asarray(which).reshape(len(which), *(1,) * (along.ndim - 3), -1), along)
  first, count = linear.materialized((_at(cells.first, part), _at(cells.count, part)))
  table, within = jnp.asarray(cells.vert, along.dtype), np.arange(_BLOCK, dtype=np.int32)[:, None]

  def look(k, found):
    best, place = found
    start = _BLOCK * (first + jnp.minimum(k, count - 1))
    corner = fetched(table, start[..., None, :] + within)
    height, nth = first_largest(vector.dot(corner, along[..., None, :, :]))
    return jnp.maximum(best, height), jnp.where(height > best, start + nth, place)

  none = jnp.full(first.shape, -jnp.inf, along.dtype), _BLOCK * first
  return _at(cells.corner, jax.lax.fori_loop(0, jnp.max(count), look, none)[1])


def _at(table: np.ndarray, index: jax.Array) -> jax.Array:
  return fetched(jnp.asarray(table), index)


def _part(cells: CubeMap, which: jax.Array, along: jax.Array) -> jax.Array:
  """The part (P, ..., W) of a cell that a direction is in."""
  x, y, z = (along[..., k, :] for k in range(3))
  size = [jnp.abs(c) for c in (x, y, z)]
  by_x = (size[0] >= size[1]) & (size[0] >= size[2])
  by_y = ~by_x & (size[1] >= size[2])
  major, u, v = (jnp.where(by_x, a, jnp.where(by_y, b, c)) for a, b, c in ((x, y, z), (y, z, x), (z, x, y)))
  face = jnp.where(by_x, 0, jnp.where(by_y, 1, 2)) + jnp.where(major < 0, 3, 0)
  scale = 0.5 * _SIDE / jnp.where(major == 0, 1, jnp.abs(major))

  def of(t, number):
    """Which of a number of intervals of [0, 1) it is in; of what is no number, the first."""
    return jnp.clip((t * number).astype(jnp.int32), 0, number - 1)

  row, column = (x * scale + 0.5 * _SIDE for x in (u, v))
  i, j = (of(t / _SIDE, _SIDE) for t in (row, column))
  cell = ((which * 6 + face) * _SIDE + i) * _SIDE + j
  begin, split = _at(cells.cell, cell), _at(cells.split, cell)
  return begin + of(row - i, split) * split + of(column - j, split)
