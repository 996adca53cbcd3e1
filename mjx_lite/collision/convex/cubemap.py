"""Support function of polytopes with many corners, by a cube map: the cost does not grow with the number of corners.

Directions are points of a cube's surface, and the surface is divided into cells. A cell keeps a corner only if no other corner
is farther for all directions of the cell. Few corners are left: about four on average for a hull of thousands. (The Gauss map
takes the directions of a small cell to a few corners, except near the rim of a flat face.) A crowded cell is divided once more
into parts. The corners of each part are stored in blocks, and a query goes through the blocks of one part. The result is the
same as for a loop over all corners.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.math import vector
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops import linear
from mjx_lite.ops.select import fetched

MANY = 128  # number of corners above which a query is cheaper than a loop over all corners
_SIDE = 8  # cells along a side of the cube
_HALVINGS = 5  # a crowded cell has at most 2**5 parts along each side
_BLOCK = 2  # corners that are compared in one iteration
# directions so far outside count as in a cell; corners lower by so much, relative to the size, count as the farthest
_ROUNDING = 1e-5, 2e-6


class CubeMap(NamedTuple):
  """The cells of K polytopes, concatenated."""

  cell: np.ndarray  # (K * 6 * _SIDE**2,) first part of each cell
  split: np.ndarray  # (K * 6 * _SIDE**2,) number of parts along a side of the cell
  first: np.ndarray  # (nparts,) first block of each part
  nblock: np.ndarray  # (nparts,) number of blocks of each part, at least 1
  corner: np.ndarray  # (nblocks * _BLOCK,) index of a corner, ascending in a part; the part's first corner pads its last block
  vert: np.ndarray  # (nblocks * _BLOCK, 3) coordinates of the corner


def make(vert: np.ndarray) -> CubeMap:
  """Make the cells of one polytope with corners (n, 3). A polytope of few corners has one cell for all directions."""
  if len(vert) <= 2 * _BLOCK:
    return _written(np.asarray(vert, float), [[np.arange(len(vert))]], np.zeros(6 * _SIDE**2, int))
  return _make(np.ascontiguousarray(vert, float).tobytes())


def join(maps: list[CubeMap]) -> CubeMap:
  """Concatenate the cells of several polytopes."""
  parts = np.cumsum([0, *(len(x.first) for x in maps)])
  blocks = np.cumsum([0, *(len(x.corner) // _BLOCK for x in maps)])
  shifted = [x._replace(cell=x.cell + p, first=x.first + b) for x, p, b in zip(maps, parts, blocks, strict=False)]
  return CubeMap(*(np.concatenate(x) for x in zip(*shifted, strict=True)))


@functools.lru_cache(maxsize=512)
def _make(data: bytes) -> CubeMap:
  vert = np.frombuffer(data).reshape(-1, 3)
  cells = []
  for face in range(6):
    for low, inside in _divided(vert, face, (-1.0, -1.0), 2.0, np.arange(len(vert)), _SIDE):
      crowd = 0.5 * np.log2(len(inside) / _BLOCK)
      parts = 2 ** int(np.clip(np.ceil(crowd), 0, _HALVINGS))
      cells.append([part for _, part in _divided(vert, face, low, 2.0 / _SIDE, inside, parts)])
  return _written(vert, cells, np.arange(len(cells)))


def _divided(
  vert: np.ndarray, face: int, low: tuple[float, float], size: float, found: np.ndarray, number: int
) -> list[tuple[tuple[float, float], np.ndarray]]:
  """Divide a square on a face of the cube into `number` x `number` smaller squares, row by row.

  Heights of the polytope's corners are linear in a square. So the four corners of the square decide whether one height is
  nowhere above another.

  Returns:
    for each small square its lower corner, and the indices of the polytope's corners that may be farthest in the square.
  """
  grow, tie = _ROUNDING
  u, v = (x + size / number * np.add.outer(np.arange(number), [0, 1]) + [-grow, grow] for x in low)  # (number, 2)
  along, slope_u, slope_v = np.roll(vert[found], -(face % 3), axis=1).T
  height = (-1 if face > 2 else 1) * along + u[:, None, :, None, None] * slope_u + v[:, None, :, None] * slope_v
  height = height.reshape(number * number, 4, len(found))
  best = np.concatenate([height.argmax(axis=2), height.sum(axis=1).argmax(axis=1)[:, None]], axis=1)
  keep = np.ones((len(height), len(found)), bool)
  for k in best.T:
    least = np.take_along_axis(height, k[:, None, None], axis=2) - tie * np.abs(vert).max()
    keep &= (height >= least).any(axis=1)
  begin = ((x, y) for x in u[:, 0] + grow for y in v[:, 0] + grow)
  return [(corner, found[mask]) for corner, mask in zip(begin, keep, strict=True)]


def _written(vert: np.ndarray, cells: list[list[np.ndarray]], number: np.ndarray) -> CubeMap:
  """Write cells as blocks.

  Args:
    vert: (n, 3) corners.
    cells: the parts of each cell: indices of corners.
    number: (6 * _SIDE**2,) index into `cells` for each cell of the cube.
  """
  padded = [np.concatenate([x, np.repeat(x[:1], -len(x) % _BLOCK)]) for parts in cells for x in parts]
  nblock = np.array([len(x) // _BLOCK for x in padded])
  begin = np.cumsum([0, *(len(parts) for parts in cells)])[:-1]
  split = np.array([round(len(parts) ** 0.5) for parts in cells])
  corner, first = np.concatenate(padded), np.cumsum(nblock) - nblock
  begin, split, first, nblock, corner = (x.astype(np.int32) for x in (begin[number], split[number], first, nblock, corner))
  return CubeMap(cell=begin, split=split, first=first, nblock=nblock, corner=corner, vert=vert[corner])


def farthest(cells: CubeMap, which: Any, along: jax.Array) -> jax.Array:
  """Find the farthest corner of polytopes in given directions; ties go to the first corner. No gradient.

  Args:
    cells: the cells of K polytopes.
    which: (P, W or 1) index of the polytope.
    along: directions (P, ..., 3, W).

  Returns:
    indices (P, ..., W) of corners.
  """
  along = linear.materialize(jax.lax.stop_gradient(along))
  part = _part(cells, jnp.asarray(which).reshape(len(which), *(1,) * (along.ndim - 3), -1), along)
  first, nblock = linear.materialize((_at(cells.first, part), _at(cells.nblock, part)))
  table, within = jnp.asarray(cells.vert, along.dtype), np.arange(_BLOCK, dtype=np.int32)[:, None]

  def look(k, found):
    best, row = found
    start = _BLOCK * (first + jnp.minimum(k, nblock - 1))
    corner = fetched(table, start[..., None, :] + within)
    height, nth = first_largest(vector.dot(corner, along[..., None, :, :]))
    return jnp.maximum(best, height), jnp.where(height > best, start + nth, row)

  none = jnp.full(first.shape, -jnp.inf, along.dtype), _BLOCK * first
  return _at(cells.corner, jax.lax.fori_loop(0, jnp.max(nblock), look, none)[1])


def _at(table: np.ndarray, index: jax.Array) -> jax.Array:
  return fetched(jnp.asarray(table), index)


def _part(cells: CubeMap, which: jax.Array, along: jax.Array) -> jax.Array:
  """Compute the index (P, ..., W) of the part that contains a direction."""
  x, y, z = (along[..., k, :] for k in range(3))
  size = [jnp.abs(c) for c in (x, y, z)]
  by_x = (size[0] >= size[1]) & (size[0] >= size[2])
  by_y = ~by_x & (size[1] >= size[2])
  major, u, v = (jnp.where(by_x, a, jnp.where(by_y, b, c)) for a, b, c in ((x, y, z), (y, z, x), (z, x, y)))
  face = jnp.where(by_x, 0, jnp.where(by_y, 1, 2)) + jnp.where(major < 0, 3, 0)
  scale = 0.5 * _SIDE / jnp.where(major == 0, 1, jnp.abs(major))

  def interval(t, number):
    """Return which of `number` equal intervals of [0, 1) contains t; NaN counts as in the first."""
    return jnp.clip((t * number).astype(jnp.int32), 0, number - 1)

  row, column = (x * scale + 0.5 * _SIDE for x in (u, v))
  i, j = (interval(t / _SIDE, _SIDE) for t in (row, column))
  cell = ((which * 6 + face) * _SIDE + i) * _SIDE + j
  begin, split = _at(cells.cell, cell), _at(cells.split, cell)
  return begin + interval(row - i, split) * split + interval(column - j, split)
