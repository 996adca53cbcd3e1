"""The primitive colliders against MuJoCo, and their derivatives against differences.

All poses of a pair go through one compiled call, on the world axis.
"""

import functools
import itertools
import re

import collision_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjx_lite.collision.primitive import primitive
from mjx_lite.collision.shapes import NO_CONTACT, Contacts, Shape

PAIRS = [pair for pair, collider in primitive.COLLIDERS.items() if collider.fn and pair[0] != "hfield" and pair[1] != "sdf"]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids="-".join)
N = 300  # poses of each kind

EYE = np.eye(3)
X90, X45, Z45 = oracle.turn(0, np.pi / 2), oracle.turn(0, np.pi / 4), oracle.turn(2, np.pi / 4)

# scenes by hand: (geom b's place, turn of a, turn of b, size of a, size of b, number of contacts)
BOX, CUBE, ROD, BALL, FLOOR = (0.5, 0.6, 0.3), (0.5, 0.5, 0.5), (0.1, 0.5, 0), (0.2, 0, 0), (0, 0, 1)
SCENES = {
  ("plane", "sphere"): [((0, 0, 0.2 - 1e-9), EYE, EYE, FLOOR, BALL, 1), ((0, 0, -5), EYE, EYE, FLOOR, BALL, 1)],
  ("plane", "capsule"): [
    ((0, 0, 0.6 - 1e-9), EYE, EYE, FLOOR, ROD, 1),  # standing
    ((0, 0, 0.05), EYE, X90, FLOOR, ROD, 2),  # lying
    ((0, 0, 0.3), EYE, X45, FLOOR, ROD, 1),  # leaning
    ((0, 0, -3), EYE, X45, FLOOR, ROD, 2),  # below
  ],
  ("plane", "box"): [
    ((0, 0, 0.3 - 1e-9), EYE, EYE, FLOOR, BOX, 4),  # flat, touching
    ((0, 0, 0.6), EYE, X45, FLOOR, BOX, 2),  # on an edge
    ((0, 0, 0.7), EYE, X45 @ Z45, FLOOR, BOX, 1),  # on a corner
    ((0, 0, -2), EYE, EYE, FLOOR, BOX, 4),  # below
  ],
  ("plane", "ellipsoid"): [
    ((0, 0, 0.3 - 1e-9), EYE, EYE, FLOOR, BOX, 1),
    ((0, 0, 0.4), EYE, X45, FLOOR, BOX, 1),
    ((0, 0, -2), EYE, X45, FLOOR, BOX, 1),
  ],
  ("plane", "cylinder"): [
    ((0, 0, 0.5 - 1e-9), EYE, EYE, FLOOR, ROD, 3),  # standing
    ((0, 0, 0.1 - 1e-9), EYE, X90, FLOOR, ROD, 2),  # lying
    ((0, 0, 0.4), EYE, X45, FLOOR, ROD, 1),  # leaning
    ((0, 0, -3), EYE, X45, FLOOR, ROD, 4),  # below
  ],
  ("plane", "mesh"): [((0, 0, 5), EYE, EYE, FLOOR, BOX, 0), ((0, 0, -2), EYE, X45, FLOOR, BOX, 4)],
  ("sphere", "cylinder"): [
    ((0.3 - 1e-9, 0, 0.2), EYE, EYE, BALL, ROD, 1),  # side, touching
    ((0.05, 0, 0.65), EYE, EYE, BALL, ROD, 1),  # cap
    ((0.2, 0, 0.6), EYE, EYE, BALL, ROD, 1),  # rim
    ((0, 0, 0.1), EYE, EYE, BALL, ROD, 1),  # centre on the axis
    ((0, 0, 0.1), X45, EYE, BALL, ROD, 1),
    ((0.05, 0, 0.47), EYE, EYE, BALL, ROD, 1),  # inside, near a cap
  ],
  ("sphere", "sphere"): [
    ((0.4 - 1e-9, 0, 0), EYE, EYE, BALL, BALL, 1),  # touching
    ((0, 0, 0), EYE, EYE, BALL, BALL, 1),  # same centre, parallel axes
    ((0, 0, 0), EYE, X45, BALL, BALL, 1),  # same centre, other axes
  ],
  ("sphere", "capsule"): [
    ((0.3 - 1e-9, 0, 0.2), EYE, EYE, BALL, ROD, 1),  # side, touching
    ((0, 0, 0.7), EYE, EYE, BALL, ROD, 1),  # end
    ((0, 0, 0.1), EYE, EYE, BALL, ROD, 1),  # centre on the axis
    ((0, 0, 0.1), X45, EYE, BALL, ROD, 1),
  ],
  ("sphere", "box"): [
    ((0.7 - 1e-9, 0, 0), EYE, EYE, BALL, BOX, 1),  # face, touching
    ((0.6, 0.7, 0), EYE, EYE, BALL, BOX, 1),  # edge
    ((0.6, 0.7, 0.4), EYE, EYE, BALL, BOX, 1),  # corner
    ((0, 0, 0), EYE, EYE, BALL, BOX, 1),  # same centre
    ((0.1, 0.2, 0.05), EYE, EYE, BALL, BOX, 1),  # centre inside
    ((0.5, 0, 0), EYE, EYE, BALL, BOX, 1),  # centre on a face
  ],
  ("capsule", "capsule"): [
    ((0.15, 0, 0), EYE, EYE, ROD, ROD, 2),  # parallel
    ((0.15, 0, 0.3), EYE, EYE, ROD, ROD, 2),  # parallel, shifted
    ((0, 0, 0.4), EYE, EYE, ROD, ROD, 2),  # on one line, overlapping
    ((0, 0, 1.1), EYE, EYE, ROD, ROD, 2),  # on one line, end to end: the same contact twice
    ((0, 0, 0), EYE, EYE, ROD, ROD, 2),  # the same
    ((0.15, 0, 0), EYE, X90, ROD, ROD, 1),  # crossed
    ((0, 0, 0), EYE, X90, ROD, ROD, 1),  # crossed, axes meet
    ((0.15, 0, 0), EYE, oracle.turn(0, 5e-5), ROD, ROD, 2),  # nearly parallel
    ((0.15, 0, 0), EYE, oracle.turn(0, 2e-4), ROD, ROD, 1),
  ],
  ("capsule", "box"): [
    ((0, 0, -0.38), X90, EYE, ROD, BOX, 2),  # flat on a face
    ((0, 0.4, -0.4 + 1e-9), X90, EYE, ROD, BOX, 2),  # flat, beyond an edge
    ((0, 0, -0.8), EYE, EYE, ROD, BOX, 1),  # upright on a face
    ((0.05, 0, -0.42), oracle.turn(0, 1.54), EYE, (0.15, 1, 0), BOX, 2),  # across a face
    ((0.5, 0.02, -0.32), oracle.turn(1, 0.8), oracle.turn(2, 0.1), ROD, BOX, 1),  # across an edge
    ((0, 0, 0), EYE, EYE, ROD, BOX, 0),  # skewering it, both ends out of reach: C finds nothing
    ((0.1, -0.1, 0.05), X45, EYE, ROD, BOX, 1),  # inside
    ((0.58, 0, 0), EYE, EYE, ROD, BOX, 2),  # along a side
  ],
  ("box", "box"): [
    ((0, 0, 0.6 - 1e-9), EYE, EYE, BOX, BOX, 4),  # flat on flat, touching
    ((0.3, 0.2, 0.55), EYE, EYE, BOX, BOX, 4),  # shifted
    ((0, 0, 0.95), EYE, Z45, CUBE, CUBE, 8),  # flat, turned by 45 degrees
    ((0, 0, 1.1), EYE, X45, CUBE, CUBE, 2),  # an edge on a face
    ((0, 0, 1.35), X45, oracle.turn(1, np.pi / 4), CUBE, CUBE, 1),  # an edge across an edge
    ((0, 0, 0), EYE, EYE, CUBE, CUBE, 4),  # the same
    ((0.1, 0.05, 0.02), EYE, Z45, CUBE, (0.1, 0.1, 0.1), 4),  # inside
    ((0.9, 0.9, 0.9), EYE, EYE, CUBE, CUBE, 4),  # corner in corner
  ],
}


@functools.cache
def _poses(pair):
  """Scenes by hand, then N poses of each kind, as arrays (pos, mat, size, margin) with the pose first."""
  scenes = SCENES[pair]
  by_hand = (
    np.array([((0, 0, 0), s[0]) for s in scenes], float),
    np.array([s[1:3] for s in scenes]),
    np.array([s[3:5] for s in scenes], float),
    np.zeros(len(scenes)),
  )
  kinds = [oracle.poses(np.random.default_rng(1), N, kind) for kind in ("random", "aligned", "tilted")]
  return [np.concatenate(x) for x in zip(by_hand, *kinds, strict=True)]


def _args(pos, mat, size, margin, dtype=np.float64):
  """Poses on the world axis of one pair: arguments of a collider."""

  def last(x):
    return jnp.asarray(np.moveaxis(x, 0, -1)[None], dtype)

  return (*(Shape(last(pos[:, i]), last(mat[:, i]), last(size[:, i])) for i in (0, 1)), last(margin))


def _named(pair):
  """Types as the oracle names them: a mesh whose lowest vertex is unique."""
  return tuple("cloud" if t == "mesh" else t for t in pair)


@functools.cache
def _fn(pair):
  """The collider, with the hulls of meshes."""
  hull = oracle.hulls(*_named(pair))

  def collide(a, b, margin):
    return primitive.COLLIDERS[pair].fn(a._replace(hull=hull[0]), b._replace(hull=hull[1]), margin)

  return collide


@functools.cache
def _collide(pair):
  return jax.jit(_fn(pair))


def _rows(found: Contacts, margin) -> list[np.ndarray]:
  """Contacts of each pose as the oracle gives them."""
  dist, pos, frame = (np.moveaxis(np.asarray(x[0]), -1, 0) for x in (found.dist, found.pos, found.frame))
  rows = np.concatenate([dist[..., None], pos, frame.reshape(*dist.shape, 9)], axis=-1)
  return [r[r[:, 0] < m] for r, m in zip(rows, margin, strict=True)]


def _same(ours, theirs, tolerance=1e-9):
  return len(ours) == len(theirs) and (not len(ours) or np.abs(ours - theirs).max() < tolerance)


def _tied(pair, pose, ours, theirs):
  """Whether C's contacts change, as much as ours differ from them, when its input changes by round-off."""
  rng = np.random.default_rng(0)
  pos, mat, size, margin = (np.repeat(x[None], 60, axis=0) for x in pose)
  scale = 10 ** rng.uniform(-16, -12, size=(60, 1, 1))
  shaken = oracle.contacts(
    *_named(pair), pos + scale * rng.normal(size=pos.shape), mat + scale[..., None] * rng.normal(size=mat.shape), size, margin
  )
  return any(_same(ours, x, 1e-8) for x in shaken) or any(not _same(theirs, x, 1e-6) for x in shaken)


@every_pair
def test_equals_mujoco(pair):
  poses = _poses(pair)
  ours = _rows(_collide(pair)(*_args(*poses)), poses[3])
  theirs = oracle.contacts(*_named(pair), *poses)
  hand = len(SCENES[pair])
  differ = [k for k in range(len(ours)) if not _same(ours[k], theirs[k])]
  assert sum(len(x) > 0 for x in theirs[hand:]) > N
  # generic poses agree without exception; special ones unless C's own choice is made by round-off
  assert [k for k in differ if hand <= k < hand + N] == []
  assert [k for k in differ if not _tied(pair, [x[k] for x in poses], ours[k], theirs[k])] == []
  assert len(differ) <= 0.03 * len(ours)


# P67
@every_pair
def test_scenes_by_hand(pair):
  poses = _poses(pair)
  ours = _rows(_collide(pair)(*_args(*poses)), poses[3])[: len(SCENES[pair])]
  assert [len(x) for x in ours] == [s[5] for s in SCENES[pair]]
  theirs = oracle.contacts(*_named(pair), *(x[: len(ours)] for x in poses))
  for k, (x, y) in enumerate(zip(ours, theirs, strict=True)):
    np.testing.assert_allclose(np.sort(x[:, 0]), np.sort(y[:, 0]), atol=1e-9, err_msg=str(SCENES[pair][k]))


@pytest.mark.parametrize('place, capsule, box, with_second', [
  ((0.0119, -0.0455, -0.0195), (0.046, 0.02, 0), (0.011, 0.017, 0.017), 6),  # an end at a corner: the same contact twice
  ((0.1, 0.05, 0.35), (0.1, 1, 0), BOX, 4),  # across a face, both ends beyond it
])  # fmt: skip
def test_second_contact_of_a_capsule_perpendicular_to_a_side_does_not_hang_on_rounding(place, capsule, box, with_second):
  sign = np.array(list(itertools.product((-1, 1), repeat=3)), float)
  axis = np.stack([1e-15 * sign[:, 0], sign[:, 2], 1e-15 * sign[:, 1]], axis=1)
  mat = np.stack([np.stack([np.cross(x, [0, 0, 1]), [0, 0, 1], x], axis=1) for x in axis])
  n = len(axis)
  poses = [
    np.broadcast_to([place, (0, 0, 0)], (n, 2, 3)), np.stack([mat, np.broadcast_to(EYE, mat.shape)], axis=1),
    np.broadcast_to([capsule, box], (n, 2, 3)), np.zeros(n),
  ]  # fmt: skip
  ours, theirs = _rows(_collide(("capsule", "box"))(*_args(*poses)), poses[3]), oracle.contacts("capsule", "box", *poses)
  # C has a second contact for some of the signs only, always in the same place
  assert sorted(len(x) for x in theirs) == [1] * (n - with_second) + [2] * with_second
  for x in ours:
    both = [y for y in theirs if len(y) == 2 and np.abs(y[0] - x[0]).max() < 1e-9]
    assert both and all(_same(x, y) for y in both)


def _batched(f):
  """The function under vmap, with a batch of one."""
  return lambda *args: jax.tree.map(lambda x: x[0], jax.vmap(f)(*jax.tree.map(lambda x: x[None], args)))


@pytest.mark.parametrize("run", [lambda f: f, jax.jit, _batched], ids=["eager", "jit", "vmap"])
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-9), (np.float32, 1e-6)])
def test_a_capsule_exactly_along_an_axis_of_a_box_has_the_contacts_of_mujoco(dtype, tolerance, run):
  """Where the capsule is perpendicular to an axis with no rounding error, the number of contacts in C is no accident."""
  rng, n = np.random.default_rng(4), 400
  axes, signs = itertools.permutations(range(3)), list(itertools.product((-1, 1), repeat=3))
  signed = np.array([np.diag(s) @ EYE[list(p)] for p in axes for s in signs])
  mat = signed[np.linalg.det(signed) > 0][rng.integers(24, size=(n, 2))]
  pos = np.stack([np.zeros((n, 3)), rng.integers(-100, 101, size=(n, 3)) / 128], axis=1)
  size = rng.integers(8, 64, size=(n, 2, 3)) / 64 + np.arange(3) / 1024  # no two features are equally near
  poses = pos, mat, size, np.zeros(n)
  ours, theirs = _rows(run(_fn(("capsule", "box")))(*_args(*poses, dtype)), poses[3]), oracle.contacts("capsule", "box", *poses)
  number = [len(x) for x in theirs]
  assert min(number.count(k) for k in range(3)) > 20
  assert [len(x) for x in ours] == number
  assert all(_same(x, y, tolerance) for x, y in zip(ours, theirs, strict=True))


@functools.cache
def _directions(pair):
  """A tangent of the arguments of each pose: place, turn and size of both shapes."""
  rng = np.random.default_rng(2)
  a, b, margin = _args(*_poses(pair))

  def tangent(s):
    x, y, z = rng.normal(size=(3, s.pos.shape[-1]))
    skew = np.array([[0 * x, -z, y], [z, 0 * x, -x], [-y, x, 0 * x]])
    mat = jnp.einsum("ijw,pjkw->pikw", skew, s.mat)
    return Shape(jnp.asarray(rng.normal(size=s.pos.shape)), mat, 0.3 * jnp.asarray(rng.normal(size=s.size.shape)))

  return (a, b, margin), (tangent(a), tangent(b), jnp.zeros_like(margin))


def _forward(pair):
  return jax.jit(lambda x, dx: jax.jvp(_fn(pair), x, dx))


def _both_modes(pair):
  """Forward and reverse mode about one evaluation, so that ties of special poses fall the same way."""

  def both(x, dx, weights):
    _, slope = jax.linearize(_fn(pair), *x)
    return slope(*dx), jax.linear_transpose(slope, *x)(weights)

  return jax.jit(both)


def _per_world(x):
  """Sum over everything but the worlds."""
  return np.sum(np.asarray(x), axis=tuple(range(x.ndim - 1)))


@every_pair
def test_derivatives(pair):
  args, tangents = _directions(pair)
  found, forward = _forward(pair)(args, tangents)

  # finite everywhere, on the scenes by hand and the aligned poses above all
  for x in (*found, *forward):
    assert np.isfinite(x).all()

  # forward mode is the difference quotient, where the quotients to the left and right agree
  step = 1e-6
  active = found.dist < args[2][:, None]
  masks = [active.reshape(*active.shape[:2], *[1] * (x.ndim - 3), -1) for x in found]

  def quotient(h):
    shifted = jax.tree.map(lambda x, dx: x + h * dx, args, tangents)
    return [(x - y) / h for x, y in zip(_collide(pair)(*shifted), found, strict=True)]

  def error(x, y):
    return sum(_per_world(np.where(k, np.abs(u - v), 0)) for u, v, k in zip(x, y, masks, strict=True))

  right, left = quotient(step), quotient(-step)
  scale = 1 + error(forward, [0 * x for x in forward])
  smooth = error(right, left) < 1e-3 * scale
  kinds = slice(len(SCENES[pair]), len(SCENES[pair]) + N)
  assert smooth[kinds].mean() > 0.9
  central = [0.5 * (x + y) for x, y in zip(right, left, strict=True)]
  assert (error(central, forward)[kinds][smooth[kinds]] < 1e-4 * scale[kinds][smooth[kinds]]).all()

  # reverse mode is its transpose
  rng = np.random.default_rng(3)
  weights = Contacts(*(jnp.where(k, rng.normal(size=x.shape), 0) for x, k in zip(found, masks, strict=True)))
  forward, reverse = _both_modes(pair)(args, tangents, weights)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(reverse))
  there = sum(_per_world(u * v) for u, v in zip(weights, forward, strict=True))
  back = sum(_per_world(x) for x in jax.tree.leaves(jax.tree.map(jnp.multiply, reverse, tangents)))
  np.testing.assert_allclose(back, there, rtol=1e-8, atol=1e-8 * scale.max())


@every_pair
def test_float32_stays(pair):
  args = _args(*(x[:3] for x in _poses(pair)), dtype=np.float32)
  jaxpr = str(jax.make_jaxpr(_fn(pair))(*args))
  assert re.findall(r"f64\[[^\]]", jaxpr) == []
  assert {x.dtype for x in jax.eval_shape(_fn(pair), *args)} == {np.dtype(np.float32)}


@every_pair
def test_shared_values_broadcast(pair):
  a, b, margin = _args(*(x[:3] for x in _poses(pair)))
  n = primitive.COLLIDERS[pair].ncon
  for place_a, place_b, size, band in itertools.product((1, 3), repeat=4):
    if max(place_a, place_b, size) == 1:
      continue
    a1 = Shape(a.pos[..., :place_a], a.mat[..., :place_a], a.size[..., :size])
    b1 = Shape(b.pos[..., :place_b], b.mat[..., :place_b], b.size[..., :size])
    found = jax.eval_shape(_fn(pair), a1, b1, margin[..., :band])
    assert [x.shape for x in found] == [(1, n, 3), *[(1, n, 3, 3)] * 3]


def test_table():
  assert len(PAIRS) == 13
  assert NO_CONTACT < np.finfo(np.float32).max
