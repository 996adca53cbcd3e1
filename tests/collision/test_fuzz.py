"""A hundred thousand random poses of every pair of geom types: finite, nothing missed, the same from both sides.

Prints a table; run by hand: `python -m pytest -m slow -s tests/collision/test_fuzz.py`. From the same side or the other the
nearest features are meant, without further contacts, whose choice begins with one of the geoms in C. C searches to the end.

What C finds is not counted as missed where our normal proves that the shapes overlap less: they touch in a point there.
"""

import functools

import collision_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.collision.convex import convex
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.shapes import NO_CONTACT, Shape

N, BATCH = 100_000, 2_000
MISSED, DEEP = 1e-4, 0.02  # of the size
ITERATIONS = 35
PAIRS = [pair for pair in COLLIDERS if pair[1] != "sdf"]


def _named(pair):
  """Mesh against mesh takes two meshes."""
  return ("mesh", "cloud") if pair == ("mesh", "mesh") else pair


def _poses(pair):
  """Mostly anywhere, some near every special position, some in it."""
  rng = np.random.default_rng(PAIRS.index(pair))
  parts = [oracle.poses(rng, n, kind) for n, kind in ((N // 2, "random"), (N // 4, "tilted"), (N // 4, "aligned"))]
  return [np.concatenate(x) for x in zip(*parts, strict=True)]


@functools.cache
def _collider(pair, turned=False, multiccd=True):
  """Contacts of poses, on the world axis, in float64 and in float32; turned: of the second geom with the first."""
  hulls = oracle.hulls(*_named(pair))
  fn = COLLIDERS[pair].fn
  if fn is None:
    types, sides = (pair[::-1], hulls[::-1]) if turned else (pair, hulls)
    p = convex.plan([types], *(_alone(x) for x in sides))
    return _fast(lambda a, b, margin: convex.collide(p, a, b, margin, ITERATIONS, multiccd).contacts)
  return _fast(lambda a, b, margin: fn(*(s._replace(hull=h) for s, h in zip((a, b), hulls, strict=True)), margin))


def _fast(fn):
  """Compiled with the optimisations that `conftest.py` leaves out: here it is running that takes long."""
  return mjx.jit(fn, compiler_options={"xla_backend_optimization_level": 3})


def _alone(hull):
  return None if hull is None else GeomHulls(*hull)


def _contacts(pair, poses, dtype=np.float64, turned=False, multiccd=True):
  """dist (N, n), pos (N, n, 3), normal (N, n, 3)."""
  run, out = _collider(pair, turned, multiccd), []
  for k in range(0, len(poses[0]), BATCH):
    pos, mat, size, margin = (np.moveaxis(x[k : k + BATCH], 0, -1).astype(dtype) for x in poses)
    shapes = [Shape(*(jnp.asarray(x[None, i]) for x in (pos, mat, size))) for i in ((1, 0) if turned else (0, 1))]
    found = jax.tree.map(np.asarray, run(*shapes, jnp.asarray(margin[None])))
    frame = np.broadcast_to(found.frame[0], (*found.dist[0].shape[:1], 3, 3, found.dist.shape[-1]))
    out.append([np.moveaxis(x, -1, 0) for x in (found.dist[0], found.pos[0], frame[:, 0])])
  return [np.concatenate(x) for x in zip(*out, strict=True)]


# how far shapes of a size (N, 3) reach along directions in their frames
REACH = {
  "plane": lambda s, x, y, z: np.where(z > 1 - 1e-9, 0, np.inf),
  "sphere": lambda s, x, y, z: s[:, 0],
  "capsule": lambda s, x, y, z: s[:, 0] + s[:, 1] * np.abs(z),
  "ellipsoid": lambda s, x, y, z: np.linalg.norm(s * np.stack([x, y, z], axis=1), axis=1),
  "cylinder": lambda s, x, y, z: s[:, 0] * np.hypot(x, y) + s[:, 1] * np.abs(z),
  "box": lambda s, x, y, z: np.sum(s * np.abs(np.stack([x, y, z], axis=1)), axis=1),
}


def _searched(pair, poses):
  """Depth of C's deepest contact (N,), its search bounded by 500 iterations and a tolerance of 1e-12."""
  opt = oracle.model(*_named(pair)).opt
  given = opt.ccd_tolerance, opt.ccd_iterations
  opt.ccd_tolerance, opt.ccd_iterations = 1e-12, 500
  found = np.array([min(c[:, 0], default=NO_CONTACT) for c in oracle.contacts(*_named(pair), *poses)])
  opt.ccd_tolerance, opt.ccd_iterations = given
  return found


def _overlap(pair, poses, normal):
  """How far (N,) the shapes overlap along normals (N, 3): no less than their depth."""
  pos, mat, size, _ = poses
  total = -np.sum(normal * (pos[:, 1] - pos[:, 0]), axis=1)
  for k, (kind, hull) in enumerate(zip(pair, oracle.hulls(*_named(pair)), strict=True)):
    n = np.einsum("nji,nj->ni", mat[:, k], normal) * (1, -1)[k]
    s, (x, y, z) = size[:, k], n.T
    if kind == "mesh":
      total += np.max(n @ hull.tables.vert[hull.first[0] : hull.first[0] + hull.nvert[0]].T, axis=1)
    else:
      total += REACH[kind](s, x, y, z)
  return total


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_random_poses(pair):
  poses = _poses(pair)
  margin, size = poses[3], poses[2].max(axis=(1, 2))
  dist, pos, normal = _contacts(pair, poses)
  for x in (dist, pos, normal, *_contacts(pair, [x[:: N // 10_000] for x in poses], np.float32)):
    assert np.isfinite(x).all()
  touching = dist < margin[:, None]
  assert np.allclose(np.linalg.norm(normal, axis=-1)[touching], 1)
  ours = np.where(touching, dist, NO_CONTACT).min(axis=1)
  theirs = _searched(pair, poses)
  missed = (ours == NO_CONTACT) & (theirs < -MISSED * size) & (_overlap(pair, poses, normal[:, 0]) > MISSED * size)
  extra = (theirs == NO_CONTACT) & (ours < -MISSED * size)
  both = (ours < NO_CONTACT) & (theirs < NO_CONTACT)
  off = (ours - theirs)[both] / size[both]
  said = (
    f"{'-'.join(pair)}: {both.mean():.0%} touch; missed {missed.sum()}, only ours {extra.sum()}; "
    f"depth as C's {np.mean(np.abs(off) < 1e-6):.2%}, deeper than C's by 1e-4 {np.mean(off < -MISSED):.3%}, "
    f"shallower {np.mean(off > MISSED):.3%} (largest {max(off.max(initial=0), 0):.1e})"
  )
  swapped = None
  if pair[0] == pair[1] or COLLIDERS[pair].fn is None:
    if COLLIDERS[pair].fn is None:
      # contacts of faces and edges are C's, which begin with one geom
      one, other = (_contacts(pair, poses, turned=x, multiccd=False) for x in (False, True))
    else:
      one, other = (dist,), _contacts(pair, [x[:, ::-1] if x.ndim > 1 else x for x in poses])
    # a contact at the margin may be there from one side only
    first, again = (np.minimum(x[0].min(axis=1), margin) for x in (one, other))
    # shapes that overlap deeply may leave each other by another way (`collision/convex/gjk.py`)
    swapped = (np.abs(first - again) / size)[first > -DEEP * size]
    said += f"; swapped: as before {np.mean(swapped < 1e-6):.3%}, by 1e-4 {np.mean(swapped < MISSED):.3%}"
  print(said, flush=True)
  assert not missed.any(), said
  assert swapped is None or np.mean(swapped < MISSED) > 0.999, said
