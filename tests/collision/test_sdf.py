"""Distance fields of meshes: contacts with every shape along a trajectory of MuJoCo, distances, rays, derivatives, refusals."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.collision.sdf import field
from mjx_lite.errors import UnsupportedModelError
from mjx_lite.model.enums import GeomType

STEPS, EVERY = 240, 5
SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")
# C takes differences over 1e-8 for the gradients outside octrees, and a point that comes upon a kink of a field goes to the one
# or the other side by round-off: most contacts agree to 1e-9, some to 1e-6, a few are elsewhere
EXACT, CLOSE = 1e-9, 1e-6
# fractions of states with as many contacts, of contacts that are close, and exact. A box's first point starts on its corner,
# where C does not find the same again if it is moved by 1e-15; of two distance fields, each is outside the other's octree
AGREE = {"box": (0.7, 0.75, 0.2), "sdf": (0.95, 0.95, 0.35)}


@functools.cache
def _trajectory():
  """Poses (n, ngeom, ...), C's contacts as rows (geoms, dist, pos, frame), and qpos (n, nq)."""
  model = load("sdf")
  data = mujoco.MjData(model)
  pos, mat, contacts, qpos = [], [], [], []
  for _ in range(STEPS // EVERY):
    mujoco.mj_step(model, data, EVERY)
    mujoco.mj_fwdPosition(model, data)
    contacts.append(np.array([[*c.geom, c.dist, *c.pos, *c.frame] for c in data.contact]).reshape(-1, 15))
    qpos.append(data.qpos.copy())
    pos.append(data.geom_xpos.copy())
    mat.append(data.geom_xmat.reshape(-1, 3, 3).copy())
  return np.array(pos), np.array(mat), contacts, np.array(qpos)


@functools.cache
def _model():
  m = mjx.put_model(load("sdf"))
  start = mjx.make_data(m)

  def contacts(pos, mat):
    return mjx.collision(m, start.replace(geom_xpos=pos, geom_xmat=mat)).contact

  def depth(pos, mat, weight):
    c = contacts(pos, mat)
    met = c.exclude >= 0
    numbers = jnp.concatenate([c.dist[:, None], c.pos, c.frame.reshape(-1, 9)], axis=1)
    return jnp.sum(jnp.where(met[:, None], numbers * weight, 0)), c

  value_and_grad = jax.value_and_grad(depth, argnums=(0, 1), has_aux=True)
  return m, mjx.jit(jax.vmap(value_and_grad, in_axes=(0, 0, None)))


def _id(name):
  return mujoco.mj_name2id(load("sdf"), mujoco.mjtObj.mjOBJ_GEOM, name)


@functools.cache
def _found():
  """Weights (ncon, 13), weighted sums (n,), contacts, and the sums' slopes.

  Without weight are shapes of which a point starts on a kink whatever the pose: a box's on its corner, a cylinder's on the edge
  of its cap, this capsule's where its cap begins.
  """
  m, evaluate = _model()
  pos, mat = _trajectory()[:2]
  geom = m.plan.collision.slot_geom
  on_kink = np.any(np.isin(geom, [_id(k) for k in ("box", "cylinder", "capsule")]), axis=1)
  weight = np.random.default_rng(1).normal(size=(len(geom), 13)) * ~on_kink[:, None]
  (value, c), slope = jax.tree.map(np.asarray, evaluate(pos, mat, weight))
  return weight, value, c, slope


@pytest.mark.parametrize("shape", (*SHAPES, "plane"))
def test_finds_what_mujoco_finds(shape):
  model, (_, _, c, _) = load("sdf"), _found()
  ring, other = _id("ring"), _id("floor" if shape == "plane" else shape)
  states = same = n = exact = close = 0
  for k, theirs in enumerate(_trajectory()[2]):
    geoms = sorted((ring, other), key=lambda g: (model.geom_type[g], g))
    slot = np.flatnonzero((c.exclude[k] >= 0) & np.all(np.sort(c.geom[k]) == np.sort(geoms), axis=1))
    ours = np.concatenate([c.dist[k, slot, None], c.pos[k, slot], c.frame[k, slot].reshape(-1, 9)], axis=1)
    theirs = theirs[np.all(np.sort(theirs[:, :2]) == np.sort(geoms), axis=1), 2:]
    states += len(theirs) > 0
    same += len(ours) == len(theirs) > 0
    assert len(theirs) or not len(ours)
    if len(ours) == len(theirs):
      error = np.abs(ours - theirs).max(axis=1, initial=0)
      n, exact, close = n + len(ours), exact + np.sum(error < EXACT), close + np.sum(error < CLOSE)
  assert states > 4
  least = AGREE.get(shape, (1, 1, 0.9))
  assert same >= least[0] * states, (same, states)
  assert close >= least[1] * n, (close, n)
  assert exact >= least[2] * n, (exact, n)


def test_derivatives_of_contacts():
  weight, _, c, slope = _found()
  evaluate, (pos, mat) = _model()[1], _trajectory()[:2]
  assert all(np.isfinite(x).all() for x in slope)
  rng = np.random.default_rng(0)
  move, step = [rng.normal(size=x.shape) for x in (pos, mat)], 1e-8
  (right, c_right), _ = evaluate(*(x + step * v for x, v in zip((pos, mat), move, strict=True)), weight)
  (left, c_left), _ = evaluate(*(x - step * v for x, v in zip((pos, mat), move, strict=True)), weight)
  same = np.all((c.exclude == c_right.exclude) & (c.exclude == c_left.exclude), axis=1) & (c.exclude >= 0).any(axis=1)
  # a point that comes upon a kink ends elsewhere
  same &= np.abs(np.where((c.exclude >= 0)[..., None], c_right.pos - c_left.pos, 0)).max(axis=(1, 2)) < 1e-4
  difference = (np.asarray(right) - np.asarray(left)) / (2 * step)
  there = sum(np.sum(s * v, axis=tuple(range(1, v.ndim))) for s, v in zip(slope, move, strict=True))
  wrong = same & (np.abs(difference - there) > 1e-4 * (1 + np.abs(there)))
  assert same.sum() > 25
  assert wrong.sum() < 0.1 * same.sum(), (wrong.sum(), same.sum())


def test_rays_and_distances():
  model, m = load("sdf"), _model()[0]
  d = mjx.make_data(m)
  geoms = (0, 2, 7, 8)  # floor, sphere, mesh and the other field
  vec = np.random.default_rng(3).normal(size=(60, 3)) * np.array([1, 1, 0.3]) - np.array([0, 0, 1.5])
  point = np.array([0.05, -0.02, 0.4])

  def look(pos, mat, point):
    at = d.replace(geom_xpos=pos, geom_xmat=mat)
    found = [mjx.geom_distance(m, at, 1, g, 0.5) for g in geoms]
    return *mjx.multi_ray(m, at, point, jnp.asarray(vec)), jnp.stack([f[0] for f in found]), jnp.stack([f[1] for f in found])

  def length(pos, point):
    dist = look(pos, _trajectory()[1][20], point)[0]
    return jnp.sum(jnp.where(dist < 0, 0, dist)), dist

  pos, mat, _, qpos = _trajectory()
  k = np.arange(4, len(pos), 8)
  dist, geom, depth, fromto = mjx.jit(jax.vmap(look, in_axes=(0, 0, None)))(pos[k], mat[k], point)
  data, found, segment, met = mujoco.MjData(model), np.zeros(1, np.int32), np.zeros(6), 0
  for i, j in enumerate(k):
    data.qpos[:] = qpos[j]
    mujoco.mj_kinematics(model, data)
    for v, x, g in zip(vec, dist[i], geom[i], strict=True):
      np.testing.assert_allclose(x, mujoco.mj_ray(model, data, point, v, None, 1, -1, found), rtol=1e-9)
      assert g == found[0]
      met += model.geom_type[g] == GeomType.SDF
    for n, g in enumerate(geoms):
      np.testing.assert_allclose(depth[i, n], mujoco.mj_geomDistance(model, data, 1, g, 0.5, segment), atol=1e-7)
      np.testing.assert_allclose(fromto[i, n], segment, atol=1e-5)
  assert met > 20 and (np.asarray(depth) < 0).sum() > 8

  slope = mjx.jit(jax.value_and_grad(length, argnums=(0, 1), has_aux=True))
  _, (by_pos, by_point) = slope(pos[20], point)
  move = np.random.default_rng(4).normal(size=3)
  (right, hit_right), _ = slope(pos[20], point + 1e-5 * move)
  (left, hit_left), _ = slope(pos[20], point - 1e-5 * move)
  assert np.array_equal(hit_right < 0, hit_left < 0)
  # a length ends anywhere within 1e-7 m of the surface, as in C, so this is what its differences over 2e-5 m can tell
  np.testing.assert_allclose((right - left) / 2e-5, move @ by_point, rtol=1e-3)
  np.testing.assert_allclose(by_pos.sum(axis=0), -by_point, rtol=1e-9)


@pytest.mark.parametrize("shape", field.FIELDS)
def test_fields_of_simple_shapes(shape):
  size = jnp.array([0.3, 0.2, 0.4])[:, None]
  point = jnp.asarray(np.random.default_rng(5).uniform(-1, 1, (200, 3)).T[None, None])

  def dist(p):
    return field.FIELDS[shape](p, size)[0]

  slope = jnp.moveaxis(jax.vmap(jax.grad(lambda p: dist(p[None, None, :, None])[0, 0, 0]))(point[0, 0].T), 0, 1)[None, None]
  mine = field.FIELDS[shape](point, size)[1]
  outside = dist(point) > 0
  if shape == GeomType.ELLIPSOID:
    slope, outside = slope / jnp.linalg.norm(slope, axis=-2, keepdims=True), outside | True
  np.testing.assert_allclose(jnp.where(outside[:, :, None], mine - slope, 0), 0, atol=1e-12)
  singular = jax.grad(lambda p: sum(jnp.sum(x) for x in field.FIELDS[shape](p, size)))(jnp.zeros((1, 1, 3, 1)))
  assert np.isfinite(singular).all()


def test_refuses_plugins_and_height_fields():
  scene = """<mujoco><extension><plugin plugin="mujoco.sdf.torus"/></extension><asset>
    <mesh name="a"><plugin plugin="mujoco.sdf.torus"/></mesh><mesh name="b" builtin="supersphere" params="4 1 1"/>
    <hfield name="h" nrow="2" ncol="2" size="1 1 1 1"/></asset>
    <worldbody><geom name="hill" type="hfield" hfield="h"/><body><freejoint/><geom name="mine" type="sdf" mesh="b"/></body>
    <body pos="0 0 5"><freejoint/><geom name="code" type="sdf" mesh="a"><plugin plugin="mujoco.sdf.torus"/></geom></body>
    </worldbody></mujoco>"""
  with pytest.raises(UnsupportedModelError) as refusal:
    mjx.put_model(mujoco.MjModel.from_xml_string(scene))
  for words in ("geom 'code'", "octree", "geom 'hill' and geom 'mine'", "hfield-sdf"):
    assert words in str(refusal.value)
