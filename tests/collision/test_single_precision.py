"""In single precision prisms of a height field and shapes are as far apart as in double precision, grazing and overlapping."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.collision.convex import gjk, support, witness
from mjx_lite.collision.hfield import hfield
from mjx_lite.math import quat

SHAPES = ["cylinder", "ellipsoid", "box"]
N = 1000  # poses of each shape
SIZE = np.array([[0.05, 0.03, 0], [0.06, 0.04, 0.03], [0.06, 0.05, 0.04]])
CLOSE = 2e-6  # [m]: 1e-5 of the radius of a prism and a shape together
ITERATIONS = 50


def _poses(rng, apart):
  """Corners (P, 6, 3, W) of prisms about their centres, and rotations and positions of shapes around a point above them."""
  xy = 0.1 * np.array(hfield._CORNERS)[rng.integers(0, 2, (len(SHAPES), N))]
  top = np.concatenate([xy, rng.uniform(0, 0.08, (*xy.shape[:3], 1))], axis=3)
  corners = np.concatenate([np.where(np.arange(3) == 2, -0.05, top), top], axis=2)
  corners -= corners.mean(axis=2, keepdims=True)
  at = np.einsum("pnk,pnki->pni", rng.dirichlet([1, 1, 1], (len(SHAPES), N)), corners[:, :, 3:])
  pos = at + rng.uniform(-apart, apart, at.shape) + np.array([0, 0, apart])
  q = rng.normal(size=(len(SHAPES), 4, N))
  mat = np.asarray(quat.to_mat(jnp.asarray(q / np.linalg.norm(q, axis=1, keepdims=True))))
  rounded = (np.moveaxis(corners, 1, -1), mat, np.moveaxis(pos, 1, -1))
  return [x.astype(np.float32).astype(float) for x in rounded]


def _found(corners, mat, pos):
  one = jnp.ones((len(SHAPES), 3, 1), pos.dtype)
  eye = jnp.broadcast_to(jnp.eye(3, dtype=pos.dtype)[..., None], mat.shape)
  prisms = support.ConvexShape(0 * pos, eye, np.full(len(SHAPES), support.CORNERS), one, corners, one, 0 * one[:, 0])
  shapes = support.make(SHAPES, pos, mat, jnp.asarray(SIZE[..., None], pos.dtype), None)
  reach = jnp.ones((len(SHAPES), 1), pos.dtype)
  w = witness.witness(prisms, shapes, gjk.find(prisms, shapes, reach, ITERATIONS))
  return w.dist, w.normal


@functools.cache
def _search(dtype):
  find = jax.jit(_found)
  return lambda *args: [np.asarray(x) for x in find(*(jnp.asarray(x, dtype) for x in args))]


def _apart(corners, mat, pos, normal):
  """How far apart (P, W) prisms and shapes are along normals, in double precision; less than their distance."""
  normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)
  x, y, z = np.moveaxis(np.einsum("pijw,piw->pjw", mat, normal), 1, 0)
  a, b, c = SIZE.T[..., None]
  reach = np.stack([
    (a * np.hypot(x, y) + b * np.abs(z))[0],
    np.sqrt((a * x) ** 2 + (b * y) ** 2 + (c * z) ** 2)[1],
    (a * np.abs(x) + b * np.abs(y) + c * np.abs(z))[2],
  ])  # fmt: skip
  return np.sum(normal * pos, axis=1) - np.max(np.einsum("pkiw,piw->pkw", corners, normal), axis=1) - reach


@pytest.mark.parametrize("grazing", [True, False])
def test_distance_in_single_precision(grazing):
  rng = np.random.default_rng(0)
  corners, mat, pos = _poses(rng, 0.1 if grazing else 0.05)
  if grazing:
    wanted = np.where(rng.random((len(SHAPES), N)) < 0.8, -1, 1) * 10 ** rng.uniform(-6, -2, (len(SHAPES), N))
    for _ in range(3):
      dist, normal = _search(np.float64)(corners, mat, pos)
      pos = (pos + (wanted - dist)[:, None] * normal).astype(np.float32).astype(float)
  dist, _ = _search(np.float64)(corners, mat, pos)
  single, normal = _search(np.float32)(corners, mat, pos)
  shallow = np.abs(dist) < 1e-2
  assert shallow.mean(axis=1).min() > (0.95 if grazing else 0.1)
  # it is what it says
  inconsistent = np.abs(single - _apart(corners, mat, pos, normal)) > CLOSE
  assert inconsistent.mean() <= 0.001, inconsistent.sum(axis=1)
  # and the way out is as short: of several that are nearly as short, not always the same one
  longer = dist - single
  assert np.mean(longer > CLOSE) < 0.01, np.sum(longer > CLOSE, axis=1)
  assert longer[shallow].max() < 2e-4, longer[shallow].max()
