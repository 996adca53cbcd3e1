"""Spheres and capsules in height fields: random and special poses as in C, derivatives, single precision, batches."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

SHAPES = ("sphere", "capsule")
SIZE = (0.5, 0.4, 0.12, 0.1)  # of the fields
GRID = (7, 9)  # rows and columns
LARGEST = 0.12, 0.1  # radius and half length that windows have room for
FIELDS = ("rough", "steps")
PLACES = ("above", "inside", "grid", "border", "below")


def _asset(field):
  rng = np.random.default_rng(3)
  # few heights: many prisms have level tops or tops in one plane
  heights = rng.uniform(0, 1, GRID) if field == "rough" else rng.choice([0, 0.5, 1], GRID)
  size, heights = (" ".join(map(str, np.ravel(x))) for x in (SIZE, heights))
  return f'<asset><hfield name="f" nrow="{GRID[0]}" ncol="{GRID[1]}" size="{size}" elevation="{heights}"/></asset>'


@functools.cache
def _model(shape, field, margin=0.0):
  """A tilted field, and a shape that is as large as any."""
  sizes = " ".join(map(str, LARGEST[: SHAPES.index(shape) + 1]))
  return mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option ccd_iterations="500" ccd_tolerance="1e-12"/>
      {_asset(field)}
      <worldbody>
        <geom type="hfield" hfield="f" euler="20 -30 50" pos=".1 -.2 .3"/>
        <body><freejoint/><geom type="{shape}" size="{sizes}" margin="{margin}"/></body>
      </worldbody>
    </mujoco>""")


def _poses(shape, field, place, n, seed=0):
  """n poses of the shape in the world, (n, 3), (n, 3, 3), and sizes (n, 3)."""
  rng = np.random.default_rng([seed, PLACES.index(place), SHAPES.index(shape)])
  data = mujoco.MjData(_model(shape, field))
  mujoco.mj_forward(data.model, data)
  width = 2 * np.array(SIZE[:2]) / (np.array(GRID[::-1]) - 1)
  pos = rng.uniform(-1, 1, (n, 3)) * [SIZE[0], SIZE[1], 0]
  pos[:, 2] = rng.uniform(-SIZE[3], SIZE[2], n) if place == "inside" else rng.uniform(0, 1.5, n) * SIZE[2]
  if place == "grid":  # on corners and in the middle of edges
    pos[:, :2] = np.round(2 * pos[:, :2] / width) / 2 * width
  if place == "border":
    side = rng.integers(2, size=n)
    pos[np.arange(n), side] = rng.choice([-1, 1], n) * (np.array(SIZE)[side] + rng.uniform(-0.05, 0.1, n))
  if place == "below":
    pos[:, 2] = -SIZE[3] + rng.uniform(-0.1, 0.02, n)
  mat = _rotations(rng, n)
  if place == "grid":  # upright, lying along an axis or between two
    turn = [_about(axis, rng.integers(8, size=n) * np.pi / 4) for axis in (2, 0)]
    mat = turn[0] @ turn[1]
  size = rng.uniform(0.02, 1, (n, 3)) * [LARGEST[0], LARGEST[1], 1]
  field_mat = data.geom_xmat[0].reshape(3, 3)
  return data.geom_xpos[0] + pos @ field_mat.T, field_mat @ mat, size


def _rotations(rng, n):
  q = rng.normal(size=(n, 4))
  out = np.zeros((n, 9))
  for k, x in enumerate(q / np.linalg.norm(q, axis=1, keepdims=True)):
    mujoco.mju_quat2Mat(out[k], x)
  return out.reshape(n, 3, 3)


def _about(axis, angle):
  out = np.zeros((len(angle), 3, 3))
  i, j = (axis + 1) % 3, (axis + 2) % 3
  out[:, axis, axis] = 1
  out[:, i, i], out[:, j, j], out[:, i, j], out[:, j, i] = np.cos(angle), np.cos(angle), -np.sin(angle), np.sin(angle)
  return out


def _theirs(shape, field, pos, mat, size, margin=0.0):
  """C's contacts of each pose: rows of distance, place and normal."""
  model = _model(shape, field, margin)
  data, found = mujoco.MjData(model), []
  mujoco.mj_forward(model, data)
  for x, r, s in zip(pos, mat, size, strict=True):
    model.geom_size[1] = s
    data.geom_xpos[1], data.geom_xmat[1] = x, r.ravel()
    mujoco.mj_collision(model, data)
    found.append(np.array([[c.dist, *c.pos, *c.frame[:3]] for c in data.contact]).reshape(-1, 7))
  model.geom_size[1] = [*LARGEST, 0][:3] if shape == "capsule" else [LARGEST[0], 0, 0]
  return found


@functools.cache
def _collide(shape, field, margin=0.0, dtype=np.float64):
  """Contacts of poses and sizes with a leading axis: a function that is not compiled, and one that is."""
  m = mjx.put_model(_model(shape, field, margin), dtype=dtype)
  start = mjx.make_data(m)
  (group,) = m.plan.collision.groups
  assert group.name == f"hfield-{shape}"

  at = mujoco.MjData(_model(shape, field, margin))
  mujoco.mj_forward(at.model, at)
  field_pos, field_mat = (jnp.asarray(x[0].reshape(k), dtype) for x, k in ((at.geom_xpos, 3), (at.geom_xmat, (3, 3))))

  def collide(pos, mat, size):
    d = start.replace(geom_xpos=jnp.stack([field_pos, pos]), geom_xmat=jnp.stack([field_mat, mat]))
    d = mjx.collision(m.replace(geom_size=m.geom_size.at[1].set(size)), d)
    return d.contact, d.status.bits

  return collide, mjx.jit(jax.vmap(collide), compiler_options={"xla_backend_optimization_level": 3})


def _ours(shape, field, pos, mat, size, margin=0.0, dtype=np.float64):
  """As `_theirs`."""
  c, bits = _collide(shape, field, margin, dtype)[1](*(jnp.asarray(x, dtype) for x in (pos, mat, size)))
  c = jax.tree.map(np.asarray, c)
  for x in (c.dist, c.pos, c.frame):
    assert np.isfinite(x).all()
  assert not np.asarray(bits).any()
  rows = np.concatenate([c.dist[..., None], c.pos, c.frame[:, :, 0]], axis=2)
  return [x[there] for x, there in zip(rows, c.exclude >= 0, strict=True)]


@pytest.mark.parametrize("place, margin", [(x, 0.03 if x in ("above", "border") else 0.0) for x in PLACES])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_poses(shape, field, place, margin):
  poses = _poses(shape, field, place, 500)
  ours, theirs = _ours(shape, field, *poses, margin), _theirs(shape, field, *poses, margin)
  assert [len(x) for x in ours] == [len(x) for x in theirs]
  radius = np.repeat(poses[2][:, 0], [len(x) for x in ours])
  ours, theirs = np.concatenate(ours), np.concatenate(theirs)
  assert len(ours) > 300
  # where the centre or the axis touches a prism in a point, the depth is the radius, of which C misses up to 2e-5, and its
  # normal is that of one side or the other
  apart = np.abs(ours[:, 0] + radius) > 1e-12
  assert (apart.mean() > 0.999) == (place != "grid") and apart.mean() > 0.5
  assert np.abs(theirs[:, 0] + radius)[~apart].max(initial=0) < 5e-5
  np.testing.assert_allclose(ours[apart, 0], theirs[apart, 0], atol=1e-9)
  error = np.abs(ours - theirs)[apart]
  turned, moved = error[:, 4:].max(axis=1) > 1e-6, error[:, 1:4].max(axis=1) > 1e-6
  # in special positions two ways out are as short, and a capsule that is parallel to a face touches all along
  if place == "grid":
    assert turned.mean() < 0.02, turned.mean()
    assert moved[~turned].mean() < (0.4 if shape == "capsule" else 1e-3), moved[~turned].mean()
  else:
    assert not turned.any() and not moved.any(), (turned.sum(), moved.sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision(shape):
  for place in PLACES:
    poses = _poses(shape, "steps", place, 500)
    single, double = (_ours(shape, "steps", *poses, dtype=dtype) for dtype in (np.float32, np.float64))
    same = [len(a) == len(b) for a, b in zip(single, double, strict=True)]
    assert np.mean(same) > 0.95, (place, np.mean(same))
    error = np.concatenate([a[:, 0] - b[:, 0] for a, b, k in zip(single, double, same, strict=True) if k])
    assert np.abs(error).max() < 1e-5, (place, np.abs(error).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_world_does_not_depend_on_its_neighbours(shape):
  poses = _poses(shape, "rough", "inside", 500)
  collide = _collide(shape, "rough")[1]
  together = collide(*poses)[0]
  alone = collide(*(x[7:9] for x in poses))[0]
  for name in ("dist", "pos", "frame", "exclude"):
    np.testing.assert_allclose(getattr(alone, name), np.asarray(getattr(together, name))[7:9], atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives(shape):
  """Reverse mode of weighted distances, places and normals against differences, and finite in special positions."""
  collide, _ = _collide(shape, "rough")
  rng = np.random.default_rng(1)

  def value(weights, *pose):
    c, _ = collide(*pose)
    parts = (c.dist, c.pos, c.frame[:, 0])
    met = [jnp.where((c.exclude >= 0).reshape(-1, *(1,) * (x.ndim - 1)), x, 0) for x in parts]
    return sum(jnp.sum(w * x) for w, x in zip(weights, met, strict=True)), c.exclude

  slots = _ours_slots(collide, shape)
  weights = [rng.normal(size=(slots, *k)) for k in ((), (3,), (3,))]
  run = mjx.jit(jax.vmap(jax.value_and_grad(value, argnums=(1, 2, 3), has_aux=True), in_axes=(None, 0, 0, 0)))
  total = wrong = 0
  for place in PLACES:
    poses = _poses(shape, "rough", place, 300, seed=1)
    (_, exclude), slope = run(weights, *poses)
    for x in slope:
      assert np.isfinite(x).all(), place
    if place == "grid":
      continue
    move = [rng.normal(size=x.shape) for x in poses]
    step = 1e-6
    (right, one), _ = run(weights, *(x + step * v for x, v in zip(poses, move, strict=True)))
    (left, two), _ = run(weights, *(x - step * v for x, v in zip(poses, move, strict=True)))
    there = sum(np.sum(g * v, axis=tuple(range(1, v.ndim))) for g, v in zip(slope, move, strict=True))
    difference = (np.asarray(right) - np.asarray(left)) / (2 * step)
    same = np.all((exclude == one) & (exclude == two), axis=1)
    wrong += np.sum(np.abs(difference - there)[same] > 1e-5 * (10 + np.abs(there[same])))
    total += same.sum()
  # where the nearest feature changes within the step, there is no derivative
  assert total > 1000 and wrong <= 0.01 * total, (wrong, total)


def _ours_slots(collide, shape):
  pose = [x[0] for x in _poses(shape, "rough", "inside", 1)]
  return jax.eval_shape(collide, *pose)[0].dist.shape[0]


def test_rolling_over_a_rough_field():
  """Two of each shape, thrown: contacts along MuJoCo's trajectory, in its order."""
  thrown = [  # type, size, place
    ("sphere", ".05", "-.3 -.2"), ("capsule", ".03 .06", ".2 .2"),
    ("sphere", ".09", ".1 -.1"), ("capsule", ".05 .02", "-.2 .2"),
  ]  # fmt: skip
  bodies = ""
  for k, (shape, size, pos) in enumerate(thrown):
    geom = f'<geom type="{shape}" size="{size}" margin="{0.01 * k}"/>'
    bodies += f'<body pos="{pos} .2" euler="0 {60 + 40 * k} {30 * k}"><freejoint/>{geom}</body>'
  model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      {_asset("rough")}
      <worldbody><geom type="hfield" hfield="f"/>{bodies}</worldbody>
    </mujoco>""")
  model.geom_conaffinity[1:] = 0
  model.geom_contype[1:] = [2, 4, 8, 16]
  model.geom_conaffinity[0] = 30
  data, m = mujoco.MjData(model), mjx.put_model(model)
  data.qvel.reshape(4, 6)[:, :2] = [[0.6, 0.3], [-0.5, 0.2], [0.2, 0.7], [0.3, -0.6]]
  states, expected = [], []
  for _ in range(300):
    mujoco.mj_step(model, data)
    mujoco.mj_fwdPosition(model, data)
    states.append((data.geom_xpos.copy(), data.geom_xmat.reshape(-1, 3, 3).copy()))
    expected.append(np.array([[c.geom[1], c.exclude, c.dist, *c.pos, *c.frame] for c in data.contact]).reshape(-1, 15))
  start = mjx.make_data(m)
  collide = mjx.jit(jax.vmap(lambda x, r: mjx.collision(m, start.replace(geom_xpos=x, geom_xmat=r)).contact))
  c = jax.tree.map(np.asarray, collide(*(np.array(x) for x in zip(*states, strict=True))))
  assert len(m.plan.collision.groups) == 2
  assert sum(len(x) for x in expected) > 600
  assert {int(g) for x in expected for g in x[:, 0]} == {1, 2, 3, 4}
  for k, theirs in enumerate(expected):
    slot = np.flatnonzero(c.exclude[k] >= 0)
    ours = [
      c.geom[k, slot, 1:],
      c.exclude[k, slot, None],
      c.dist[k, slot, None],
      c.pos[k, slot],
      c.frame[k, slot].reshape(-1, 9),
    ]
    np.testing.assert_allclose(np.concatenate(ours, axis=1), theirs, atol=1e-5)
