"""The farthest corner of a polytope by the cells of a cube map, beside going through all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mjx_lite.collision.convex import cubemap


def _round(rng, n):
  x = rng.normal(size=(n, 3))
  return x / np.linalg.norm(x, axis=1, keepdims=True) * [1, 0.3, 2]


def _prism(rng, n):
  """Two flat faces of n corners, whose axis lies anywhere: all of them may be the farthest in one cell."""
  angle = 2 * np.pi * np.arange(n) / n
  ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
  turn = np.linalg.qr(rng.normal(size=(3, 3)))[0] if rng.random() < 0.5 else np.eye(3)
  return np.concatenate([ring, ring + np.array([0, 0, 1])]) @ turn.T


def _grid(rng, n):
  """Corners with many ties, most of them on edges or faces."""
  return np.array(list(np.ndindex(4, 4, 4)), float)[rng.permutation(64)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from([_round, _prism, _grid]), number=st.integers(3, 400))
def test_the_farthest_corner_is_that_of_all(dtype, seed, shape, number):
  """Also in directions along axes, across edges of the cube and of the hull, and of faces, where many corners tie."""
  rng = np.random.default_rng(seed)
  hulls = [shape(rng, number), _round(rng, 5)]
  direction = rng.normal(size=(256, 3)) * np.exp(rng.normal(size=(256, 1)))
  direction[::4] = np.round(2 * direction[::4])
  direction[1::4] = np.cross(*(hulls[0][rng.integers(len(hulls[0]), size=(2, 64))] @ np.eye(3)), axis=-1)
  which = rng.integers(2, size=256)
  with jax.enable_x64(dtype is np.float64):
    cells = cubemap.join([cubemap.make(hulls[0]), cubemap.make(hulls[1])])
    along = jnp.asarray(direction.T[None], dtype)
    index = np.asarray(cubemap.farthest(cells, which[None], along))[0]
  along, size = np.asarray(along)[0].astype(float), np.abs(np.concatenate(hulls)).max()
  for k, w in enumerate(which):
    height = hulls[w] @ along[:, k]
    assert height[index[k]] >= height.max() - 8 * np.finfo(dtype).eps * size * np.abs(along[:, k]).sum()
    if along[:, k].any() and shape is _grid and w == 0 and (k % 4 == 0):  # exact in both types
      assert index[k] == height.argmax()


def test_cells_hold_few_corners():
  """Of a ball of 4,000 corners about a dozen at most are looked at; of the rim of a disc all, where its face looks."""
  rng = np.random.default_rng(0)
  cells = cubemap.make(_round(rng, 4000))
  number = cubemap._BLOCK * cells.nblock
  assert number[cells.cell].mean() < 4 and number.max() <= 12
  disc = cubemap.make(_prism(rng, 64))
  number = cubemap._BLOCK * disc.nblock
  assert number.max() == 64 and np.median(number) <= 4
  assert disc.corner.max() == 127 and len(disc.vert) == len(disc.corner)


def test_a_direction_that_is_no_number_finds_a_corner():
  cells = cubemap.make(_round(np.random.default_rng(0), 200))
  along = np.array([[[np.nan, 0, np.inf], [1, 0, -np.inf], [0, 0, 1]]], np.float32)
  found = np.asarray(cubemap.farthest(cells, np.zeros((1, 3), np.int32), jnp.asarray(along)))
  assert ((found >= 0) & (found < 200)).all()
