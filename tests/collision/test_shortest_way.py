"""The depth of all convex pairs against an oracle, and that a search that runs out says so.

All pairs go through one compiled call: pairs on the first axis, poses on the world axis. A normal is judged by its own depth.
"""

import functools
import itertools

import convex_oracle as oracle
import jax
import jax.numpy as jnp
import lane_tests
import mujoco
import numpy as np
import pytest
from models import SCENES

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.collision.convex import convex, hulls, shortest, support
from mjx_lite.collision.convex.hulls import GeomHulls
from mjx_lite.collision.shapes import Contacts, Shape
from mjx_lite.io import fields
from mjx_lite.math.extreme import first_largest
from mjx_lite.ops import lanes

ITERATIONS = 50
POSES = 50
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-5}  # of the size
ROUND = ("ellipsoid", "cylinder", "box")
# numbers are meshes with so many corners
PAIRS = [
  *itertools.combinations_with_replacement(ROUND, 2),
  *itertools.product(ROUND, (20, 60, 500)),
  (8, 8), (8, 20), (20, 60), (60, 60), (60, 500), (500, 500), (20, 5000),
  *itertools.product(("sphere", "capsule"), (*ROUND, 20, 500)),
]  # fmt: skip
ALONE = [("box", "box"), (60, 60), ("cylinder", 60), ("ellipsoid", "box"), ("capsule", "cylinder")]


def _kind(shape):
  return shape if isinstance(shape, str) else "mesh"


@functools.cache
def _hulls() -> tuple[hulls.Hulls, dict[int, int]]:
  """Tables of all meshes, and the number of the mesh with so many corners."""
  counts = sorted({x for p in PAIRS for x in p if not isinstance(x, str)})
  asset = "".join(f'<mesh name="m{n}" vertex="{" ".join(map(repr, oracle.hull(n).ravel().tolist()))}"/>' for n in counts)
  geoms = "".join(f'<geom type="mesh" mesh="m{n}"/>' for n in counts)
  model = mujoco.MjModel.from_xml_string(f"<mujoco><asset>{asset}</asset><worldbody>{geoms}</worldbody></mujoco>")
  return hulls.plan(fields.every(model), np.arange(model.nmesh), np.zeros(0, int)), {n: k for k, n in enumerate(counts)}


@functools.cache
def _bodies(pair, number):
  """Pairs of bodies."""
  tables, mesh = _hulls()
  corners = [None if isinstance(x, str) else tables.vert[tables.start[mesh[x]] :][: tables.nvert[mesh[x]]] for x in pair]
  rng = np.random.default_rng([number, *map(ord, str(pair))])
  return oracle.poses(rng, tuple(map(_kind, pair)), number, corners)


@functools.cache
def _poses(pair, number, indices):
  """Pairs of bodies, the depth of each and the size of their difference."""
  bodies = [_bodies(pair, number)[k] for k in indices]
  exact = all(x == "box" or (not isinstance(x, str) and x <= 60) for x in pair)
  depths = [oracle.exact(*x) if exact else oracle.bracket(*x, 1e-10) for x in bodies]
  return bodies, depths, np.array([oracle.extent(*x) for x in bodies])


@functools.cache
def _collide(pairs, iterations):
  plan = _plan(pairs)
  return mjx.jit(lambda a, b, margin: convex.collide(plan, a, b, margin, iterations, False))


@functools.cache
def _collide_in_kernel(pairs, iterations):
  """The same by a kernel, as in a step: lanes take pairs from a queue."""
  plan = _plan(pairs)

  def collide(a, b, margin):
    def flat(*x):
      found, lost = convex.collide(plan, Shape(*x[:3]), Shape(*x[3:6]), x[6], iterations, False)
      return found.dist, found.normal, lost

    with lanes.packed():
      dist, normal, lost = lane_tests.run(flat, a.pos, a.mat, a.size, b.pos, b.mat, b.size, margin, has_loops=True)
    return Contacts(dist, None, normal, None), lost

  return collide


def _plan(pairs):
  tables, mesh = _hulls()
  sides = []
  for side in (0, 1):
    some = [mesh[p[side]] for p in pairs if not isinstance(p[side], str)]
    sides.append(GeomHulls(tables, tables.start[some], tables.nvert[some]) if some else None)
  return convex.plan([tuple(map(_kind, p)) for p in pairs], *sides)


def _found(pairs, dtype, number, iterations=ITERATIONS, first=0, last=None, collide=_collide):
  """Depths (pair, pose), normals (pair, pose, 3), and in which poses a search ran out, 50 poses at a time."""

  def shape(side, poses):
    fields = [[[getattr(_bodies(p, number)[k][side], x) for k in poses] for p in pairs] for x in ("pos", "mat", "size")]
    return Shape(*(jnp.asarray(np.moveaxis(np.array(x), 1, -1), dtype) for x in fields))

  depth, normal, lost = [], [], []
  for poses in np.arange(first, last or number).reshape(-1, POSES):
    found, out = collide(tuple(pairs), iterations)(shape(0, poses), shape(1, poses), jnp.zeros((len(pairs), POSES), dtype))
    depth.append(-np.asarray(found.dist[:, 0], float))
    normal.append(np.moveaxis(np.asarray(found.normal[:, 0], float), 1, -1))
    lost.append(np.asarray(out))
  return np.concatenate(depth, axis=1), np.concatenate(normal, axis=1), np.concatenate(lost)


def _wrong(pairs, dtype, number, only=None, collide=_collide):
  """What differs from the oracle: pair, pose, too deep by, normal too deep by, not deep enough by, of the size.

  All poses are looked at, or only one; that one is computed side by side with its neighbours.
  """
  first = 0 if only is None else only // POSES * POSES
  last = number if only is None else first + POSES
  depth, normal, _ = _found(pairs, dtype, number, first=first, last=last, collide=collide)
  indices = tuple(range(number)) if only is None else (only,)
  wrong = []
  for i, pair in enumerate(pairs):
    for k, (a, b), right, size in zip(indices, *_poses(pair, number, indices), strict=True):
      own = oracle.depth_along(a, b, normal[i, k - first][None])[0]
      off = np.array([depth[i, k - first] - right.high, own - right.high, right.low - depth[i, k - first]]) / size
      if not (off <= TOLERANCE[dtype]).all():
        wrong.append((pair, k, *off))
  return wrong


def test_oracles_agree():
  """The bracket of the depth has the exact depth of polytopes in it, and closes."""
  bodies, depths, size = _poses((20, 60), POSES, tuple(range(POSES)))
  for x, d, s in zip(bodies, depths, size, strict=True):
    found = oracle.bracket(*x, 1e-10)
    assert found.low - 1e-12 * s <= d.high <= found.high + 1e-12 * s
    assert found.high - found.low <= 1e-10 * s


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_all_pairs_leave_each_other_by_the_shortest_way(dtype):
  assert _wrong(PAIRS, dtype, POSES) == []


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_pairs_in_a_kernel_leave_each_other_by_the_shortest_way(dtype):
  assert _wrong(PAIRS[::2], dtype, POSES, collide=_collide_in_kernel) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_all_pairs_leave_each_other_by_the_shortest_way_in_many_poses(dtype):
  assert _wrong(PAIRS, dtype, 2000) == []


@pytest.mark.parametrize("pair", ALONE, ids=lambda p: "-".join(map(str, p)))
def test_a_pair_alone_leaves_by_the_shortest_way(pair):
  assert _wrong([pair], np.float64, POSES) == []


@pytest.mark.parametrize(
  "pair, pose, dtype",
  [
    (("ellipsoid", "cylinder"), 83, np.float64),  # the flat end of a cylinder
    (("cylinder", "cylinder"), 314, np.float64),
    ((8, 8), 714, np.float32),  # the least depth is a ten-thousandth of the size, below a corner of a face
    ((8, 20), 720, np.float32),
    (("ellipsoid", "cylinder"), 848, np.float64),  # the normal was right and the depth was not that of the normal
    (("ellipsoid", "cylinder"), 382, np.float32),
    (("ellipsoid", "box"), 401, np.float64),  # the way out of a ball on an edge has one equation only
    (("cylinder", "cylinder"), 1982, np.float64),
    (("capsule", "cylinder"), 310, np.float64),  # one rim of a cylinder was found, and the nearest point is between both
    (("sphere", "box"), 511, np.float32),  # rounding hid that the simplex has to turn
    (("sphere", 500), 1164, np.float32),
  ],
  ids=str,
)
def test_rare_poses(pair, pose, dtype):
  """Poses among 2,000 of a pair in which the normal was up to 12 degrees off, or the depth up to 4e-5 of the size."""
  assert _wrong([pair], dtype, 2000, pose) == []


def test_corners_that_pad_a_table_are_not_found(monkeypatch):
  """Each repeats the first corner of its shape, and rounding may prefer any of them."""

  def points():
    _collide.cache_clear()
    worlds.clear_caches()
    pairs = [(8, 20), ("box", 20), ("capsule", 8), ("ellipsoid", "cylinder")]
    bodies = [[_bodies(p, POSES)[k] for k in range(POSES) if k % 3 != 2] for p in pairs]
    shapes = [
      Shape(
        *(
          jnp.asarray(np.moveaxis([[getattr(x[side], f) for x in some] for some in bodies], 1, -1))
          for f in ("pos", "mat", "size")
        )
      )
      for side in (0, 1)
    ]
    found, _ = _collide(tuple(pairs), ITERATIONS)(*shapes, jnp.zeros((len(pairs), len(bodies[0]))))
    return np.asarray(found.pos[:, 0])

  def last_largest(score):
    best, at = first_largest(score[..., ::-1, :])
    return best, score.shape[-2] - 1 - at

  first = points()
  monkeypatch.setattr(support, "first_largest", last_largest)
  np.testing.assert_allclose(points(), first, rtol=0, atol=1e-6)
  _collide.cache_clear()


def test_polytopes_in_general_poses_are_never_lost():
  """Enough rounds for these hulls; every third pose is symmetric."""
  pairs = [p for p in PAIRS if not {"ellipsoid", "cylinder"} & {*p}]
  for dtype in TOLERANCE:
    _, _, lost = _found(pairs, dtype, POSES)
    assert not lost[np.arange(POSES) % 3 != 2].any()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("pair", [("cylinder", 60), (60, 60)], ids=lambda p: "-".join(map(str, p)))
def test_what_is_not_marked_is_right(pair, dtype):
  """Also of a search that has too few iterations; a depth that is not found counts as none."""
  _, right, size = _poses(pair, POSES, tuple(range(POSES)))
  tolerance = shortest.DOUBT[np.dtype(dtype).itemsize]
  for iterations in (4, 12):
    depth, _, lost = _found([pair], dtype, POSES, iterations)
    wrong = np.abs(np.maximum(depth[0], 0) - [x.high for x in right]) > tolerance * size
    assert not (wrong & ~lost).any()
    assert wrong.any() or iterations > 4


@pytest.mark.parametrize("worlds", [1, 40])
@pytest.mark.parametrize("size", [1, 1e-4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_way_out_of_a_ball_is_proved(dtype, size, worlds):
  """Where Y is a ball, by triangles whose corners come very near to each other; alone, and side by side with others."""
  radius, rng = size * 0.2, np.random.default_rng(0)
  place = rng.normal(size=(worlds, 3))
  place *= rng.uniform(0.6, 0.8, (worlds, 1)) / np.linalg.norm(place, axis=1, keepdims=True)
  place = np.asarray(np.array([[-0.053, 0.304, 0.387]]) * radius if worlds == 1 else place * radius, dtype)
  wanted = np.arange(worlds) % 3 != 1

  def known(_, world):
    start = jnp.array([0, 0, 1], dtype)
    return shortest.Known(start, start[0], dtype(2 * radius), dtype(2 * radius * shortest.CURVED[np.dtype(dtype).itemsize]))

  how = shortest.search(lambda _, world: lambda d: jnp.asarray(place)[world][:, None] + dtype(radius) * d, known)
  no = jnp.zeros((1, worlds), bool)
  nothing = shortest.Exit(jnp.zeros((1, 3, worlds), dtype), jnp.full((1, worlds), 7, dtype), no, no)
  way = mjx.jit(lambda: lanes.search(jnp.asarray(wanted)[None], how, nothing))()
  assert way.better[0, wanted].all() and not way.unproved.any() and (way.depth[0, ~wanted] == 7).all()
  length = np.linalg.norm(place, axis=1)
  tolerance = 2 * shortest.CURVED[np.dtype(dtype).itemsize]
  np.testing.assert_allclose(way.depth[0, wanted], (radius - length)[wanted], rtol=0, atol=2 * radius * tolerance)
  np.testing.assert_allclose(way.normal[0, :, wanted], -(place / length[:, None])[wanted], rtol=0, atol=4 * tolerance**0.5)


def _case(name):
  model = mujoco.MjModel.from_xml_path(str(SCENES / "cases" / f"{name}.xml"))
  model.opt.ccd_iterations, model.opt.ccd_tolerance = 1000, 1e-12
  model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MULTICCD)
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  return model, data


def _contacts(model, dtype, run):
  """Contacts of the engine, and the bits of the status."""
  m = mjx.put_model(model, dtype=dtype)
  d = run(lambda d: mjx.collision(m, mjx.kinematics(m, d)))(mjx.make_data(m))
  there = np.asarray(d.contact.exclude).ravel() >= 0
  return np.asarray(d.contact.dist, float).ravel()[there], np.asarray(d.contact.frame, float).reshape(-1, 3, 3)[there], d.status


RUNS = {
  "eager": lambda f: f,
  "jit": mjx.jit,
  "vmap": lambda f: lambda d: jax.vmap(f)(jax.tree.map(lambda x: x[None], d)),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-9), (np.float32, 1e-6)])
@pytest.mark.parametrize("name", ["capsule_box_exact", "hull_hull_vertices", "g1_cyl_mesh", "hfield_foot_pose"])
def test_cases_of_real_models(name, dtype, tolerance, run):
  """Contacts of C, searched to the end."""
  model, data = _case(name)
  dist, frame, status = _contacts(model, dtype, RUNS[run])
  assert len(dist) == data.ncon > 0
  np.testing.assert_allclose(np.sort(dist), np.sort(data.contact.dist), rtol=0, atol=tolerance)
  assert not np.asarray(status.bits).any()
  if name in ("hull_hull_vertices", "g1_cyl_mesh"):  # near a least depth a normal is only known to the root of its error
    np.testing.assert_allclose(frame[0, 0], data.contact.frame[0, :3], rtol=0, atol=tolerance**0.5)


@pytest.mark.parametrize("run", RUNS)
def test_a_search_that_runs_out_of_iterations_is_marked(run):
  model, _ = _case("g1_cyl_mesh")
  model.opt.ccd_iterations = 3
  _, _, status = _contacts(model, np.float64, RUNS[run])
  assert np.all(np.asarray(status.bits) == 1 << mjx.Warning.CCD)
  assert np.all(np.asarray(status.count)[..., mjx.Warning.CCD] == 1)


@pytest.fixture
def one_round(monkeypatch):
  """A search of one round; other tests must not find its programs, nor the other way round."""
  worlds.clear_caches()
  monkeypatch.setattr(shortest, "ROUNDS", {8: 1, 4: 1})
  yield
  worlds.clear_caches()


def test_a_search_that_runs_out_of_rounds_is_marked(one_round):
  model, _ = _case("g1_cyl_mesh")
  assert _contacts(model, np.float64, mjx.jit)[2].bits == 1 << mjx.Warning.CCD


def test_a_search_on_a_height_field_that_runs_out_is_marked():
  model, _ = _case("hfield_foot_pose")
  model.opt.ccd_iterations = 3
  assert _contacts(model, np.float64, mjx.jit)[2].bits == 1 << mjx.Warning.CCD


@pytest.mark.parametrize("kind", ["DIST", "NORMAL", "FROMTO"])
def test_a_sensor_of_distance_whose_search_runs_out_is_marked(kind):
  """Where the geoms do not collide."""
  spec = mujoco.MjSpec.from_file(str(SCENES / "cases" / "g1_cyl_mesh.xml"))
  one, two = spec.geoms
  one.name, two.name, one.contype, one.conaffinity = "one", "two", 0, 0
  kind = getattr(mujoco.mjtSensor, f"mjSENS_GEOM{kind}")
  geom = mujoco.mjtObj.mjOBJ_GEOM
  spec.add_sensor(type=kind, objtype=geom, objname="one", reftype=geom, refname="two", cutoff=1)
  for iterations, bits in ((50, 0), (3, 1 << mjx.Warning.CCD)):
    spec.option.ccd_iterations = iterations
    m = mjx.put_model(spec.compile(), dtype=np.float64)
    d = mjx.jit(lambda d, m=m: mjx.forward(m, d))(mjx.make_data(m))
    assert d.status.bits == bits and not d.contact.dist.size
