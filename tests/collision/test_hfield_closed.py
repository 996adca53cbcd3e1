"""Spheres and capsules in height fields, in closed form: random and special poses as in C, derivatives, single precision, batches."""

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


def _elevation(field):
  rng = np.random.default_rng(3)
  # few heights: many prisms have level tops or tops in one plane
  return rng.uniform(0, 1, GRID) if field == "rough" else rng.choice([0, 0.5, 1], GRID)


@functools.cache
def _model(shape, field, margin=0.0):
  """A tilted field, and a shape that is as large as any."""
  heights = " ".join(map(str, _elevation(field).ravel()))
  sizes = " ".join(map(str, LARGEST[: SHAPES.index(shape) + 1]))
  return mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option ccd_iterations="500" ccd_tolerance="1e-12"/>
      <asset><hfield name="f" nrow="{GRID[0]}" ncol="{GRID[1]}" size="{" ".join(map(str, SIZE))}" elevation="{heights}"/></asset>
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_poses(shape, field, place, n=2000):
  poses = _poses(shape, field, place, n)
  ours, theirs = _ours(shape, field, *poses), _theirs(shape, field, *poses)
  counts = np.array([[len(a), len(b)] for a, b in zip(ours, theirs, strict=True)])
  same = counts[:, 0] == counts[:, 1]
  error = np.concatenate([np.abs(a - b) for a, b, k in zip(ours, theirs, same, strict=True) if k])
  depth, there, turned = error[:, 0], error[:, 1:4].max(axis=1), error[:, 4:].max(axis=1)
  print(shape, field, place, "touch", (counts[:, 1] > 0).mean(), "per", counts[:, 1].mean(), "count differs", (~same).sum(), "depth", depth.max(), np.mean(depth > 1e-6), "place", np.mean(there > 1e-4), "normal", np.mean(turned > 1e-4))
  bad=np.flatnonzero(~same)[:5]
  print(bad, counts[bad])
