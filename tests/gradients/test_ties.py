"""Where contacts hang on a comparison that is a tie by construction, reverse mode goes with forward mode all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.collision.primitive.box import box_box, capsule_box, sphere_box
from mjx_lite.collision.primitive.curved import plane_cylinder, sphere_cylinder
from mjx_lite.collision.shapes import Shape

WORLDS = 2000
QUARTERS = np.array([[1, 0, 0, 0], [0.5**0.5, 0.5**0.5, 0, 0], [0.5**0.5, 0, 0.5**0.5, 0], [0.5, 0.5, 0.5, 0.5]])


def product(p, q):
  """Of quaternions (W, 4)."""
  real = p[:, :1] * q[:, :1] - np.sum(p[:, 1:] * q[:, 1:], axis=1, keepdims=True)
  return np.concatenate([real, p[:, :1] * q[:, 1:] + q[:, :1] * p[:, 1:] + np.cross(p[:, 1:], q[:, 1:])], axis=1)


def matrix(q):
  """Rotations (1, 3, 3, W) of quaternions (4, W)."""
  w, x, y, z = q / jnp.sqrt(jnp.sum(q * q, axis=0))
  rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)), \
    (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)), \
    (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))  # fmt: skip
  return jnp.stack([jnp.stack(row) for row in rows])[None]


def parallel(rng, apart):
  """Two shapes turned alike but for quarters of a turn, so that axes are parallel or perpendicular to round-off."""
  turn, quarter = rng.normal(size=(WORLDS, 4)), QUARTERS[rng.integers(0, 4, WORLDS)]
  turn /= np.linalg.norm(turn, axis=1, keepdims=True)
  x = dict(pos_a=rng.normal(size=(WORLDS, 3)), quat_a=turn, quat_b=product(turn, quarter))
  x |= {k: rng.uniform(0.05, 0.3, (WORLDS, 3)) for k in ("size_a", "size_b")}
  x["pos_b"] = x["pos_a"] + np.einsum("ijw,wj->wi", np.asarray(matrix(turn.T))[0], apart)
  return {k: y.T for k, y in x.items()}


def over_plane(rng):
  """Cylinders that lie or stand on a plane, their centres above it: below, a cap's other points touch, and caps change."""
  return plane_cylinder, parallel(rng, rng.uniform([-1, -1, 0], [1, 1, 0.3], (WORLDS, 3)))


def beside_box(rng):
  """Capsules parallel to edges of boxes."""
  return capsule_box, parallel(rng, rng.uniform(-0.4, 0.4, (WORLDS, 3)))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shapes", [over_plane, beside_box])
def test_reverse_mode_is_forward_mode(shapes, dtype):
  """Per world, along a random direction, of a function of the contacts that does not know their order."""
  rng = np.random.default_rng(0)
  collide, x = shapes(rng)
  weight = rng.normal(size=(7, WORLDS)).astype(dtype)
  along = {k: rng.normal(size=y.shape) for k, y in x.items()}
  x, along = ({k: jnp.asarray(y, dtype) for k, y in z.items()} for z in (x, along))

  def f(x):
    a, b = (Shape(x[f"pos_{k}"][None], matrix(x[f"quat_{k}"]), x[f"size_{k}"][None]) for k in "ab")
    found = collide(a, b, jnp.zeros((1, 1), dtype))
    y = jnp.concatenate([found.dist[:, :, None], found.pos, found.frame[:, :, 0]], axis=2)
    return jnp.sum(jnp.where(found.dist < 0, jnp.sin(jnp.sum(weight * y, axis=2)), 0), axis=(0, 1))

  gradient = mjx.jit(jax.grad(lambda x: jnp.sum(f(x))))(x)
  forward = np.asarray(mjx.jit(lambda x, t: jax.jvp(f, (x,), (t,))[1])(x, along), float)
  parts = np.stack([np.sum(np.asarray(gradient[k], float) * np.asarray(along[k], float), axis=0) for k in x])
  off = np.abs(parts.sum(axis=0) - forward) / (1e-3 + np.linalg.norm(parts, axis=0))
  assert (forward != 0).sum() > WORLDS // 4
  assert np.count_nonzero(~(off < (1e-2 if dtype == np.float32 else 1e-8))) == 0, np.sort(off)[-9:]


@pytest.mark.parametrize("slope", [0.0, 1e-17, -1e-17])
def test_points_of_a_lying_cylinder_tilt_with_it(slope):
  """By the angle about y of a cylinder along x on the plane z = 0, the points below move by its radius, along it."""
  size, radius = jnp.asarray([0.1, 0.3, 0.0])[None, :, None], 0.1
  plane = Shape(jnp.zeros((1, 3, 1)), jnp.eye(3)[None, :, :, None], size)

  def along(angle):
    c, s = jnp.cos(angle), jnp.sin(angle) + slope
    mat = jnp.stack([s, 0, c, 0, 1, 0, -c, 0, s]).reshape(1, 3, 3, 1)
    found = plane_cylinder(plane, Shape(jnp.asarray([0.0, 0.0, 0.09])[None, :, None], mat, size), jnp.zeros((1, 1)))
    return jnp.sum(found.pos[0, :2, 0, 0])

  exact = (along(1e-4) - along(-1e-4)) / 2e-4
  assert abs(exact) > radius
  np.testing.assert_allclose(jax.grad(along)(0.0), exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("collide", [sphere_box, sphere_cylinder])
def test_distance_and_normal_go_by_the_same_face(collide, dtype):
  """Spheres half way between faces or caps: by the other shape's place, the distance's derivative is the normal."""
  rng = np.random.default_rng(0)
  x = parallel(rng, np.where(rng.random((WORLDS, 3)) < 0.5, 0, rng.choice([-0.1, 0.1], (WORLDS, 3))))
  x = {k: jnp.asarray(y, dtype) for k, y in x.items()}
  a = Shape(x["pos_a"][None], matrix(x["quat_a"]), x["size_a"][None])
  size = np.array([[0.3], [0.2], [0.2]]) if collide is sphere_cylinder else rng.choice([0.2, 0.3], (3, WORLDS))

  def dist_and_normal(pos):
    b = Shape(pos[None], matrix(x["quat_b"]), jnp.asarray(size, dtype)[None])
    found = collide(a, b, jnp.zeros((1, 1), dtype))
    return jnp.sum(found.dist), found.frame[0, 0, 0]

  gradient, normal = mjx.jit(jax.grad(dist_and_normal, has_aux=True))(x["pos_b"])
  np.testing.assert_allclose(gradient, normal, atol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_edge_crosses_the_side_it_lies_in(dtype):
  """Boxes with parallel faces and sides level with each other: by the place of one, distances go by their normals."""
  rng = np.random.default_rng(0)
  x = parallel(rng, rng.choice([-0.1, 0, 0.1], (WORLDS, 3)))
  x |= {k: rng.choice([0.2, 0.3, 0.4], (3, WORLDS)) for k in ("size_a", "size_b")}
  x = {k: jnp.asarray(y, dtype) for k, y in x.items()}
  a = Shape(x["pos_a"][None], matrix(x["quat_a"]), x["size_a"][None])

  def dists_and_normals(pos):
    found = box_box(a, Shape(pos[None], matrix(x["quat_b"]), x["size_b"][None]), jnp.zeros((1, 1), dtype))
    touch = found.dist < 0
    normals = jnp.sum(jnp.where(touch[:, :, None], found.frame[:, :, 0], 0), axis=(0, 1))
    return jnp.sum(jnp.where(touch, found.dist, 0)), (normals, jnp.sum(touch, axis=(0, 1)))

  gradient, (normals, number) = mjx.jit(jax.grad(dists_and_normals, has_aux=True))(x["pos_b"])
  np.testing.assert_array_equal(number, 4)
  np.testing.assert_allclose(gradient, normals, atol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_capsule_level_with_a_side_of_a_box_ends_where_its_face_does(dtype):
  """Parallel to the side but for round-off: rounding must not say that it leaves the box there."""
  ulp = np.finfo(dtype).eps
  tilt, shift = (np.ravel(x) for x in np.meshgrid(np.linspace(-2, 2, 41) * 0.1 * ulp, np.arange(-2, 3) * 0.1 * ulp))
  length, size = 0.3, jnp.asarray([0.2, 0.4, 0.2], dtype)[None, :, None]
  one, zero = np.ones_like(tilt), np.zeros_like(tilt)
  pos = jnp.asarray(np.stack([0.2 + shift, -0.1 * one, 0.25 * one])[None], dtype)
  mat = jnp.asarray(np.stack([one, zero, tilt, zero, zero, one, zero, -one, zero]).reshape(1, 3, 3, -1), dtype)
  box = Shape(jnp.zeros((1, 3, 1), dtype), jnp.eye(3, dtype=dtype)[None, :, :, None], size)

  def along(pos, mat):
    found = capsule_box(Shape(pos, mat, jnp.asarray([0.1, length, 0], dtype)[None, :, None]), box, jnp.zeros((1, 1), dtype))
    return jnp.sum(found.pos[0, :, 1]), found.pos[0, :, 1]

  slope, y = mjx.jit(jax.grad(along, argnums=(0, 1), has_aux=True))(pos, mat)
  np.testing.assert_allclose(np.sort(y, axis=0), [-0.4 * one, 0.2 * one], atol=1e-6)
  assert all(np.abs(s).max() < 10 for s in slope)
