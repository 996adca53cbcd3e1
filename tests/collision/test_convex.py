"""The convex path against MuJoCo, at random poses and where shapes touch, and its derivatives against differences.

All pairs of types, in many poses, go through one compiled call: pairs on the first axis, poses on the world axis.
"""

import functools
import itertools
import re

import collision_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.collision import convex
from mjx_lite.collision.hulls import HullOf
from mjx_lite.collision.shapes import Shape

PAIRS = list(convex.PAIRS)
N = 60  # poses of each kind
ITERATIONS = 35


def _named(pair):
  """Mesh against mesh takes two meshes."""
  return ('mesh', 'cloud') if pair == ('mesh', 'mesh') else pair


@functools.cache
def _plan():
  hulls = [oracle.hulls(*_named(p)) for p in PAIRS]
  tables = oracle.hulls('mesh', 'cloud')[0].tables
  sides = []
  for side in (0, 1):
    mesh = [('mesh', 'cloud').index(_named(p)[side]) for p in PAIRS if p[side] == 'mesh']
    assert len(mesh) == sum(h[side] is not None for h in hulls)
    both = [oracle.hulls('mesh', 'cloud')[k] for k in mesh]
    sides.append(HullOf(tables, np.array([h.first[0] for h in both]), np.array([h.count[0] for h in both])) if both else None)
  return convex.plan(PAIRS, *sides)


def _fn(a, b, margin):
  return convex.collide(_plan(), a, b, margin, ITERATIONS)


@functools.cache
def _collide():
  return mjx.jit(_fn)


def _args(poses, dtype=np.float64):
  """Arguments of the collider from poses of every pair."""

  def stack(k, *index):
    return jnp.asarray(np.stack([np.moveaxis(p[k][(slice(None), *index)], 0, -1) for p in poses]), dtype)

  return *(Shape(stack(0, i), stack(1, i), stack(2, i)) for i in (0, 1)), stack(3)


def _touching(kind, depth):
  """Poses, and the second shape moved along the normal so that the shapes overlap by about the depth."""
  poses = [oracle.poses(np.random.default_rng(k), N, kind) for k in range(len(PAIRS))]
  poses = [(*p[:3], np.full(N, 3.0)) for p in poses]
  found = _collide()(*_args(poses))
  dist, normal = np.asarray(found.dist).min(axis=1), np.moveaxis(np.asarray(found.frame[:, 0, 0]), 1, -1)
  for k, p in enumerate(poses):
    p[0][:, 1] -= ((np.where(dist[k] > 3, 0, dist[k]) + depth)[:, None]) * normal[k]
  margin = np.random.default_rng(9).choice([0, 0.01], size=N)
  return [(*p[:3], margin) for p in poses]


@functools.cache
def _poses(kind):
  place, _, depth = kind.partition(' ')
  if depth:
    return _touching(place, float(depth))
  return [oracle.poses(np.random.default_rng(k), N, place) for k in range(len(PAIRS))]


KINDS = ('random', 'random 1e-2', 'random 1e-4', 'tilted 1e-3')


@functools.cache
def _both(kind):
  """Contacts of every pair and pose, ours and C's: lists of arrays (ncon, 13)."""
  poses = _poses(kind)
  dist, pos, frame = (np.moveaxis(np.asarray(x), -1, 1) for x in _collide()(*_args(poses)))
  rows = np.concatenate([dist[..., None], pos, frame.reshape(*dist.shape, 9)], axis=-1)
  ours = [[r[r[:, 0] < m] for r, m in zip(rows[k], p[3], strict=True)] for k, p in enumerate(poses)]
  return ours, [oracle.contacts(*_named(pair), *p) for pair, p in zip(PAIRS, poses, strict=True)]


@pytest.mark.parametrize('kind', KINDS)
def test_finds_what_mujoco_finds(kind):
  ours, theirs = _both(kind)
  same = np.zeros((len(PAIRS), N), bool)
  for k, pair in enumerate(PAIRS):
    for n, (x, y) in enumerate(zip(ours[k], theirs[k], strict=True)):
      assert np.isfinite(x).all(), (pair, n)
      same[k, n] = len(x) == len(y)
      # nothing that overlaps is missed, nothing apart is found
      deep = min([*x[:, 0], *y[:, 0]], default=0)
      assert len(x) > 0 or len(y) == 0 or deep > -1e-6, (pair, n, y)
    assert sum(len(y) > 0 for y in theirs[k]) > N / 4, pair
  assert same.mean() > 0.96, dict(zip(PAIRS, same.mean(axis=1), strict=True))


@pytest.mark.parametrize('kind', KINDS[1:])
def test_distance_of_single_contacts(kind):
  ours, theirs = _both(kind)
  error, normal = [], []
  for x, y in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
    if len(x) == len(y) == 1:
      error.append(abs(x[0, 0] - y[0, 0]))
      normal.append(np.linalg.norm(x[0, 4:7] - y[0, 4:7]))
  # where there are two ways out of nearly equal length, C may take the other
  assert len(error) > 300
  assert np.mean(np.array(error) < 2e-6) > 0.95
  assert np.median(normal) < 1e-3
  assert np.max(error) < 0.02


def test_symmetric():
  """Pairs of one type: the same distances and the opposite normal with the shapes swapped."""
  for kind in ('random', 'random 1e-2'):
    a, b, margin = _args(_poses(kind))
    there, back = _collide()(a, b, margin), _collide()(b, a, margin)
    for k, pair in enumerate(PAIRS):
      if pair[0] == pair[1] != 'mesh':
        x, y = np.asarray(there.dist[k]).min(axis=0), np.asarray(back.dist[k]).min(axis=0)
        assert np.mean(np.abs(x - y) < 1e-5) > 0.9, pair


@functools.cache
def _directions():
  rng = np.random.default_rng(2)
  a, b, margin = _args(_poses('random 1e-2'))

  def tangent(s):
    x, y, z = rng.normal(size=(3, *s.pos[:, 0].shape))
    skew = np.stack([np.stack(r, axis=1) for r in ((0 * x, -z, y), (z, 0 * x, -x), (-y, x, 0 * x))], axis=1)
    mat = jnp.einsum('pijw,pjkw->pikw', skew, s.mat)
    return Shape(jnp.asarray(rng.normal(size=s.pos.shape)), mat, 0.1 * jnp.asarray(rng.normal(size=s.size.shape)))

  return (a, b, margin), (tangent(a), tangent(b), jnp.zeros_like(margin))


def test_derivatives():
  args, tangents = _directions()
  found, forward = mjx.jit(lambda x, dx: jax.jvp(_fn, x, dx))(args, tangents)
  assert all(np.isfinite(x).all() for x in (*found, *forward))
  active = np.asarray(found.dist < args[2][:, None])

  def moved(h):
    return _collide()(*jax.tree.map(lambda x, dx: x + h * dx, args, tangents))

  step = 1e-6
  right, left = moved(step), moved(-step)
  for name, tolerance in (('dist', 1e-4), ('pos', 1e-3), ('frame', 1e-3)):
    x, up, down, dx = (np.asarray(getattr(f, name)) for f in (found, right, left, forward))
    mask = active.reshape(*active.shape[:2], *[1] * (x.ndim - 3), -1)
    axes = tuple(range(1, x.ndim - 1))
    apart = np.sum(np.where(mask, np.abs(up - 2 * x + down) / step, 0), axis=axes)
    error = np.sum(np.where(mask, np.abs((up - down) / (2 * step) - dx), 0), axis=axes)
    scale = 1 + np.sum(np.where(mask, np.abs(dx), 0), axis=axes)
    smooth = apart < 1e-3 * scale
    assert smooth.mean() > 0.8, name
    wrong = smooth & (error > tolerance * scale)
    assert wrong.mean() < 0.01, (name, dict(zip(PAIRS, wrong.mean(axis=1), strict=True)))

  # reverse mode is the transpose of forward mode
  weight = jnp.where(active, 1.0, 0.0)
  loss = lambda a, b, m: jnp.sum(weight * _fn(a, b, m).dist)  # noqa: E731
  reverse = mjx.jit(jax.grad(loss, argnums=(0, 1)))(*args)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(reverse))
  back = sum(jnp.sum(x * dx) for x, dx in zip(jax.tree.leaves(reverse), jax.tree.leaves(tangents[:2]), strict=True))
  np.testing.assert_allclose(back, jnp.sum(weight * forward.dist), rtol=1e-8)


def test_float32():
  args = _args(_poses('random'), np.float32)
  assert {x.dtype for x in jax.eval_shape(_fn, *args)} == {np.dtype(np.float32)}
  assert re.findall(r'f64\[[^\]]', str(jax.make_jaxpr(_fn)(*args))) == []
