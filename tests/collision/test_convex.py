"""The convex path against MuJoCo, at random poses and where shapes touch, and its derivatives against differences.

All pairs of types, in many poses, go through one compiled call: pairs on the first axis, poses on the world axis.
"""

import functools
import itertools
import re

import collision_oracle as oracle
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.spatial import ConvexHull

import mjx_lite as mjx
from mjx_lite.collision.convex import convex, support
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.shapes import Shape
from mjx_lite.compiler import regions
from mjx_lite.compiler.backends import llvm

PAIRS = list(convex.PAIRS)
N = 60  # poses of each kind
ITERATIONS = 35


def _named(pair):
  """Mesh against mesh takes two meshes."""
  return ("mesh", "cloud") if pair == ("mesh", "mesh") else pair


@functools.cache
def _plan():
  hulls = [oracle.hulls(*_named(p)) for p in PAIRS]
  tables = oracle.hulls("mesh", "cloud")[0].tables
  sides = []
  for side in (0, 1):
    mesh = [("mesh", "cloud").index(_named(p)[side]) for p in PAIRS if p[side] == "mesh"]
    assert len(mesh) == sum(h[side] is not None for h in hulls)
    both = [oracle.hulls("mesh", "cloud")[k] for k in mesh]
    first, nvert = (np.array([getattr(h, k)[0] for h in both]) for k in ("first", "nvert"))
    sides.append(GeomHulls(tables, first, nvert) if both else None)
  return convex.plan(PAIRS, *sides)


def _fn(a, b, margin):
  return convex.collide(_plan(), a, b, margin, ITERATIONS).contacts


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
  place, _, depth = kind.partition(" ")
  if depth:
    return _touching(place, float(depth))
  return [oracle.poses(np.random.default_rng(k), N, place) for k in range(len(PAIRS))]


KINDS = ("random", "random 1e-2", "random 1e-4", "tilted 1e-3")


@functools.cache
def _both(kind):
  """Contacts of every pair and pose, ours and C's: lists of arrays (ncon, 13)."""
  poses = _poses(kind)
  found = _collide()(*_args(poses))
  dist, pos, frame = (np.moveaxis(np.asarray(x), -1, 1) for x in (found.dist, found.pos, found.frame))
  rows = np.concatenate([dist[..., None], pos, frame.reshape(*dist.shape, 9)], axis=-1)
  ours = [[r[r[:, 0] < m] for r, m in zip(rows[k], p[3], strict=True)] for k, p in enumerate(poses)]
  return ours, [oracle.contacts(*_named(pair), *p) for pair, p in zip(PAIRS, poses, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS[1:])
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


def _special(pair, pos, mat, size, margin):
  """Contacts of one pair in N poses of its own, the others anywhere: ours (N, 4, 13) and C's, which searches to the end."""
  poses, k = list(_poses("random")), PAIRS.index(pair)
  poses[k] = pos, mat, size, np.full(N, margin)
  found = _collide()(*_args(poses))
  dist, place, frame = (np.moveaxis(np.asarray(x[k]), -1, 0) for x in (found.dist, found.pos, found.frame))
  opt = oracle.model(*_named(pair)).opt
  given, opt.ccd_tolerance = opt.ccd_tolerance, 1e-12
  theirs = oracle.contacts(*_named(pair), *poses[k])
  opt.ccd_tolerance = given
  return np.concatenate([dist[..., None], place, frame.reshape(N, 4, 9)], axis=-1), theirs


def test_a_face_seen_edge_on_does_not_hide_an_overlap():
  """A mesh half a metre deep in the cap of a cylinder, and with a face along its axis, to round-off or nearly."""
  tilt = np.where(np.arange(N) < 20, 0, np.random.default_rng(0).uniform(-0.05, 0.05, N))
  turned = np.stack([oracle.turn(1, x) @ oracle.turn(0, np.pi / 2) for x in tilt])
  mat = np.stack([np.broadcast_to(np.eye(3), turned.shape), turned], axis=1)
  pos = np.zeros((N, 2, 3))
  pos[:, 1] = np.stack([0.5 + 0.005 * np.arange(N), 0 * tilt, 0 * tilt + 1], axis=1)
  ours, theirs = _special(("cylinder", "mesh"), pos, mat, np.ones((N, 2, 3)), 0)
  deepest = np.array([x[:, 0].min() for x in theirs])
  assert (deepest < -0.45).mean() > 0.5
  assert (ours[:, :, 0].min(axis=1) < -0.45).all()


def test_edge_in_a_face_that_looks_sideways():
  """A corner of a box in the side of a cylinder, and a face there, nearly parallel to the generator, that looks aside."""
  rng = np.random.default_rng(0)
  place, lean, roll, aside, height = rng.uniform((-0.3, 0.01, 0.01, 0.01, -0.3), (0.3, 0.06, 0.06, 0.08, 0), (N, 5)).T
  turns = [oracle.turn(2, z) @ oracle.turn(0, x) @ oracle.turn(1, y) for x, y, z in zip(lean, roll, place - aside, strict=True)]
  mat = np.stack([np.broadcast_to(np.eye(3), (N, 3, 3)), np.stack(turns)], axis=1)
  size = np.broadcast_to([[0.7, 0.25, 0], [0.25, 0.14, 0.175]], (N, 2, 3))
  pos = np.zeros((N, 2, 3))
  pos[:, 1] = np.stack([-0.685 * np.sin(place), 0.685 * np.cos(place), height], axis=1) - mat[:, 1] @ (size[0, 1] * [1, -1, -1])
  ours, theirs = _special(("cylinder", "box"), pos, mat, size, 0)
  both = zip(ours, theirs, strict=True)
  aside = [(x[x[:, 0] < 0], y) for x, y in both if len(y) and (y[:, 4] < -0.8).all()]
  assert len(aside) > 0.8 * N
  assert [len(x) for x, _ in aside] == [len(y) for _, y in aside]
  np.testing.assert_allclose(*(np.concatenate([z[k][:, :7] for z in aside]) for k in (0, 1)), rtol=0, atol=1e-5)


def test_edge_of_a_capsule_that_lies_askew_on_a_rim():
  """With a margin C inflates a capsule along the normal of the single contact, which is not that of the face."""
  rng = np.random.default_rng(1)
  capsule = np.stack([oracle.turn(2, x) @ oracle.turn(0, np.pi / 2 + y) for x, y in rng.uniform(-0.05, 0.05, (N, 2))])
  mat = np.stack([capsule, np.broadcast_to(np.eye(3), capsule.shape)], axis=1)
  pos = np.zeros((N, 2, 3))
  pos[:, 0] = np.stack([rng.uniform(0.5, 0.9, N), rng.uniform(-0.1, 0.1, N), np.full(N, 0.595)], axis=1)
  size = np.broadcast_to([[0.1, 0.5, 0], [1.0, 0.5, 0]], (N, 2, 3))
  ours, theirs = _special(("capsule", "cylinder"), pos, mat, size, 0.05)
  found = [np.array(sorted(x[x[:, 0] < 0.05], key=lambda c: c[2])) for x in ours]
  both = [(x, np.array(sorted(y, key=lambda c: c[2]))) for x, y in zip(found, theirs, strict=True) if len(x) == len(y) == 2]
  assert len(both) > 0.8 * N
  np.testing.assert_allclose(*(np.array(x)[:, :, :7] for x in zip(*both, strict=True)), rtol=0, atol=1e-6)


def test_limits_of_faces_and_edges_that_lie_on_each_other():
  """About 5.1 degrees, not the same for both: a mesh and a capsule, tilted ever more, on the cap of a cylinder."""
  up = np.broadcast_to(np.eye(3), (N, 3, 3))
  tilts, size = np.linspace(0.0885, 0.09, N), np.ones((N, 2, 3))
  mesh = np.stack([oracle.turn(2, 0.3) @ oracle.turn(0, x) @ oracle.turn(1, -np.pi / 2) for x in tilts])
  pos = np.zeros((N, 2, 3))
  pos[:, 1] = 0.02, 0.01, 1.2
  faces = _special(("cylinder", "mesh"), pos, np.stack([up, mesh], axis=1), size, 0)
  tilts, size = np.linspace(0.08888, 0.08896, N), np.broadcast_to([[0.2, 0.4, 0], [1.0, 1.0, 0]], (N, 2, 3))
  capsule = np.stack([oracle.turn(2, 0.3) @ oracle.turn(0, np.pi / 2 + x) for x in tilts])
  edges = _special(("capsule", "cylinder"), pos[:, ::-1] - [[0, 0, 0.1], [0, 0, 0]], np.stack([capsule, up], axis=1), size, 0)
  for (ours, theirs), most in ((faces, 4), (edges, 2)):
    count = np.array([len(x) for x in theirs])
    assert set(count) == {most, count[-1]}
    np.testing.assert_array_equal([(x[:, 0] < 0).sum() for x in ours], count)


def test_single_contact_of_a_face_has_the_distance_along_its_normal():
  """A corner of a box, or an end of a capsule, that dips into the cap of a cylinder, and is nearly parallel to it."""
  rng = np.random.default_rng(3)
  turns = [oracle.turn(2, z) @ oracle.turn(0, x) @ oracle.turn(1, y) for x, y, z in rng.uniform(0.02, 0.06, (N, 3))]
  for pair, half, flat in ((("cylinder", "box"), (0.4, 0.5, 0.3), 0), (("capsule", "cylinder"), (0.1, 0.5, 0), np.pi / 2)):
    mat, size, pos = np.zeros((N, 2, 3, 3)), np.zeros((N, 2, 3)), np.zeros((N, 2, 3))
    k = pair.index("cylinder")
    mat[:, k], size[:, k] = np.eye(3), (1, 0.5, 0)
    mat[:, 1 - k], size[:, 1 - k] = np.stack(turns) @ oracle.turn(0, flat), half
    lowest = half[0] + half[1] * np.abs(mat[:, 1 - k, 2, 2]) if flat else np.abs(mat[:, 1 - k, 2]) @ half
    pos[:, 1 - k, 2] = 0.5 + lowest - rng.uniform(1e-4, 5e-3, N)
    ours, theirs = _special(pair, pos, mat, size, 0)
    single = [(x[x[:, 0] < 0], y) for x, y in zip(ours, theirs, strict=True) if len(y) == 1]
    assert len(single) > 0.8 * N
    np.testing.assert_allclose(*(np.array(x)[:, 0, :7] for x in zip(*single, strict=True)), rtol=0, atol=1e-9)


def test_symmetric():
  """Pairs of one type with the shapes swapped: the same distance where there is a single contact."""
  for kind in ("random", "random 1e-2"):
    a, b, margin = _args(_poses(kind))
    both = [np.asarray(_collide()(*shapes, margin).dist) for shapes in ((a, b), (b, a))]
    for k, pair in enumerate(PAIRS):
      if pair[0] == pair[1] != "mesh":
        single = np.all([(x[k] < margin[k]).sum(axis=0) == 1 for x in both], axis=0)
        x, y = (z[k].min(axis=0)[single] for z in both)
        assert single.sum() > 10
        assert np.mean(np.abs(x - y) < 1e-5) > 0.85, pair


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_hulls_that_overlap_deeply_leave_each_other_by_the_shortest_way(dtype, tolerance):
  """Depth of the mesh and the cloud: how far the origin is from the nearest face of the hull of their differences."""
  pos, mat, size, _ = oracle.poses(np.random.default_rng(0), 200, "random")
  hulls = oracle.hulls("mesh", "cloud")
  a, b = (
    np.einsum("nij,vj->nvi", mat[:, k], h.tables.vert[h.first[0] : h.first[0] + h.nvert[0]]) + pos[:, k, None]
    for k, h in enumerate(hulls)
  )
  depth = np.array([-ConvexHull((x[:, None] - y).reshape(-1, 3)).equations[:, 3].max() for x, y in zip(a, b, strict=True)])
  p = convex.plan([("mesh", "mesh")], *(GeomHulls(*h) for h in hulls))
  args = [jnp.asarray(np.moveaxis(x, 0, -1)[None], dtype) for x in (pos[:, 0], pos[:, 1], mat[:, 0], mat[:, 1], size[:, 0])]
  shapes = Shape(args[0], args[2], args[4]), Shape(args[1], args[3], args[4])
  found = mjx.jit(lambda a, b, margin: convex.collide(p, a, b, margin, ITERATIONS, False).contacts)(*shapes, 0 * args[0][:, 0])
  deep = depth > 0.02
  assert deep.sum() > 40
  np.testing.assert_allclose(-found.dist[0, 0, deep], depth[deep], rtol=0, atol=tolerance)


def test_a_hull_that_pierces_a_thin_plate_leaves_it_by_the_shortest_way():
  """Where the search ends, the vertices may lie on a line; from there, too, a shorter way is looked for."""
  rng, n, half = np.random.default_rng(2), 600, np.array([0.4, 0.5, 0.005])
  _, mat, _, _ = oracle.poses(rng, n, "random")
  pos, plate_mat = 0.5 * rng.uniform(-1, 1, (n, 3)) * (half + 0.02), np.broadcast_to(np.eye(3), (n, 3, 3))
  hull = oracle.hulls("box", "mesh")[1]
  hull = hull._replace(tables=hull.tables._replace(vert=0.5 * hull.tables.vert))
  corners = np.array(list(itertools.product(*zip(-half, half, strict=True))))
  vertices = hull.tables.vert[hull.first[0] : hull.first[0] + hull.nvert[0]]
  mesh = np.einsum("nij,vj->nvi", mat[:, 1], vertices) + pos[:, None]
  depth = [-ConvexHull((corners[:, None] - x).reshape(-1, 3)).equations[:, 3].max() for x in mesh]
  p = convex.plan([("box", "mesh")], None, GeomHulls(*hull))
  shapes = [
    Shape(*(jnp.asarray(np.moveaxis(x, 0, -1)[None]) for x in (*place, np.broadcast_to(size, (n, 3)))))
    for place, size in (((0 * pos, plate_mat), half), ((pos, mat[:, 1]), np.ones(3)))
  ]
  found = mjx.jit(lambda a, b, margin: convex.collide(p, a, b, margin, ITERATIONS, False).contacts)(*shapes, jnp.zeros((1, n)))
  np.testing.assert_allclose(-found.dist[0, 0], depth, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pair", [("ellipsoid", "mesh"), ("cylinder", "box")], ids="-".join)
def test_curved_shapes_that_overlap_deeply_leave_each_other_by_as_short_a_way_as_in_mujoco(pair):
  pos, mat, size, margin = oracle.poses(np.random.default_rng(0), 800, "random")
  pos[:, 1] = pos[:, 0] + 0.3 * (pos[:, 1] - pos[:, 0])
  p = convex.plan([pair], *(None if h is None else GeomHulls(*h) for h in oracle.hulls(*pair)))
  shapes = [Shape(*(jnp.asarray(np.moveaxis(x[:, k], 0, -1)[None]) for x in (pos, mat, size))) for k in (0, 1)]
  none = jnp.zeros((1, len(pos)))
  found = mjx.jit(lambda a, b, margin: convex.collide(p, a, b, margin, ITERATIONS, False).contacts)(*shapes, none)
  opt = oracle.model(*pair).opt
  given, flags = (opt.ccd_tolerance, opt.ccd_iterations), opt.disableflags
  opt.ccd_tolerance, opt.ccd_iterations, opt.disableflags = 1e-12, 500, flags | mujoco.mjtDisableBit.mjDSBL_MULTICCD
  theirs = np.array([x[:, 0].min(initial=0) for x in oracle.contacts(*pair, pos, mat, size, 0 * margin)])
  (opt.ccd_tolerance, opt.ccd_iterations), opt.disableflags = given, flags
  off = (np.asarray(found.dist[0, 0]) - theirs)[theirs < -0.05]
  assert len(off) > 400
  assert np.mean(np.abs(off) < 1e-4) > 0.97, np.mean(np.abs(off) < 1e-4)
  assert off.max() < 1e-3


@functools.cache
def _directions():
  rng = np.random.default_rng(2)
  a, b, margin = _args(_poses("random 1e-2"))

  def tangent(s):
    x, y, z = rng.normal(size=(3, *s.pos[:, 0].shape))
    skew = np.stack([np.stack(r, axis=1) for r in ((0 * x, -z, y), (z, 0 * x, -x), (-y, x, 0 * x))], axis=1)
    mat = jnp.einsum("pijw,pjkw->pikw", skew, s.mat)
    return Shape(jnp.asarray(rng.normal(size=s.pos.shape)), mat, 0.1 * jnp.asarray(rng.normal(size=s.size.shape)))

  return (a, b, margin), (tangent(a), tangent(b), jnp.zeros_like(margin))


def test_derivatives():
  """Reverse mode of a random combination of the contacts, against differences along a random motion of every pair."""
  args, tangents = _directions()
  found = _collide()(*args)
  active = np.asarray(found.dist < args[2][:, None])
  rng = np.random.default_rng(4)
  weights = [jnp.asarray(np.where(_as(active, x), rng.normal(size=x.shape), 0)) for x in found]

  def combination(*moved):
    return sum(jnp.sum(w * x, axis=tuple(range(1, x.ndim - 1))) for w, x in zip(weights, _fn(*moved), strict=True))

  slope = mjx.jit(jax.grad(lambda a, b: jnp.sum(combination(a, b, args[2])), argnums=(0, 1)))(*args[:2])
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))
  each = jax.tree.map(lambda x, dx: jnp.sum(x * dx, axis=tuple(range(1, x.ndim - 1))), slope, tangents[:2])
  there = np.asarray(sum(jax.tree.leaves(each)))

  def moved(h):
    out = _collide()(*jax.tree.map(lambda x, dx: x + h * dx, args, tangents))
    return np.asarray(sum(jnp.sum(w * x, axis=tuple(range(1, x.ndim - 1))) for w, x in zip(weights, out, strict=True)))

  step = 1e-6
  here, right, left = moved(0), moved(step), moved(-step)
  scale = 1 + np.abs(there)
  smooth = np.abs(right - 2 * here + left) / step < 1e-3 * scale
  assert smooth.mean() > 0.85, dict(zip(PAIRS, smooth.mean(axis=1), strict=True))
  wrong = smooth & (np.abs((right - left) / (2 * step) - there) > 1e-3 * scale)
  assert wrong.mean() < 0.005, dict(zip(PAIRS, wrong.mean(axis=1), strict=True))


def _as(mask, x):
  """A mask of slots (P, n, W) for an array with more axes between."""
  return mask.reshape(*mask.shape[:2], *[1] * (x.ndim - 3), -1)


def test_float32():
  args = _args(_poses("random"), np.float32)
  assert {x.dtype for x in jax.eval_shape(_fn, *args)} == {np.dtype(np.float32)}
  assert re.findall(r"f64\[[^\]]", str(jax.make_jaxpr(_fn)(*args))) == []


def _operations(kernel):
  """Operations of a kernel of XLA's program if each is repeated in every use, as XLA's code generator mostly does."""
  size, last = {}, ""
  for name, operands in re.findall(r"^ +(?:ROOT )?%([\w.-]+) = [^(]*[\w-]+\((.*?)\)(?:, |$)", kernel, re.MULTILINE):
    size[name], last = 1 + sum(size.get(x, 0) for x in re.findall(r"%([\w.-]+)", operands)), name
  return size[last]


@pytest.mark.parametrize("tables", [2, 33])
def test_corners_of_a_tile_are_those_of_its_hulls(tables):
  """Of few hulls chosen by comparing, of many fetched."""
  rng, width = np.random.default_rng(0), max(2, regions.lanes())
  count = 3 + rng.integers(5, size=tables)
  corner, which = rng.normal(size=(count.sum(), 3)), rng.integers(tables, size=(1, width))
  table = support.Tables(corner, np.cumsum(count) - count, count, None)
  one = jnp.ones((1, 3, width))
  c = support.ConvexShape(one, one[:, None], np.zeros(1), one, support.Picked(table, jnp.asarray(which)), one, one[:, 0])
  found, direction = support.laid_out(c), rng.normal(size=(1, 3, width))
  point, index = support.farthest(found, jnp.asarray(direction))
  for k, w in enumerate(which[0]):
    mine = corner[table.first[w] : table.first[w] + count[w]]
    np.testing.assert_array_equal(np.asarray(found.table)[0, : count[w], :, k], mine)
    farthest = (mine @ direction[0, :, k]).argmax()
    assert index[0, k] == farthest
    np.testing.assert_array_equal(point[0, :, k], mine[farthest])


def test_no_kernel_repeats_operations_by_the_million(monkeypatch):
  """Of XLA: eight corners compared one after the other, each result used thrice by the next, were seven million operations."""
  monkeypatch.setattr(llvm, "_IS_WANTED", False)
  corners = " ".join(f"{x:.3f}" for x in np.random.default_rng(0).normal(size=24))
  body = '<body pos="0 0 {}"><freejoint/><geom type="mesh" mesh="m"/></body>'
  asset = f'<asset><mesh name="m" vertex="{corners}"/></asset>'
  bodies = body.format(0) + body.format(1)
  m = mjx.put_model(mujoco.MjModel.from_xml_string(f"<mujoco>{asset}<worldbody>{bodies}</worldbody></mujoco>"))
  program = mjx.jit(lambda d: mjx.collision(m, mjx.kinematics(m, d))).lower(mjx.make_data(m)).compile().as_text() or ""
  kernels = re.findall(r"^%fused_computation.*?^}", program, re.MULTILINE | re.DOTALL)
  assert len(kernels) > 100
  assert max(map(_operations, kernels)) < 250_000  # 1,900,000 with the chain
