"""Paths around spheres and cylinders against C, at random: which paths wrap, how long they are, where they touch."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from mjx_lite.math import safe
from mjx_lite.tendon import wrap

N = 1500


def model(seed):
  """Many tendons, each around its own geom: half spheres; a third without side site, the others with one in or outside."""
  rng = np.random.default_rng(seed)
  text = lambda x: " ".join(repr(float(v)) for v in x)  # noqa: E731
  objects, tendons = [], []
  for i in range(N):
    kind, r = ("cylinder", "sphere")[i % 2], rng.uniform(0.2, 1)
    pose = f'pos="{text(0.3 * rng.normal(size=3))}" euler="{text(rng.uniform(-180, 180, 3))}"'
    objects.append(f'<geom name="g{i}" type="{kind}" size="{r} {r}" {pose}/>')
    for name, spread in (("a", 1.2), ("b", 1.2), ("s", 2 if i % 5 == 0 else 0.25)):
      objects.append(f'<site name="{name}{i}" pos="{text(spread * rng.normal(size=3))}"/>')
    side = f' sidesite="s{i}"' if i % 3 else ""
    tendons.append(f'<spatial><site site="a{i}"/><geom geom="g{i}"{side}/><site site="b{i}"/></spatial>')
  world, tendon = "".join(objects), "".join(tendons)
  return mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{world}</worldbody><tendon>{tendon}</tendon></mujoco>")


def problem(m):
  """What `wrap` takes, of every tendon of the model, and the function of the arrays alone."""
  d = mujoco.MjData(m)
  mujoco.mj_forward(m, d)
  site0, geom, site1 = m.wrap_objid.reshape(N, 3).T
  side = np.rint(m.wrap_prm.reshape(N, 3)[:, 1]).astype(int)
  sided, cylinder = np.flatnonzero(side >= 0), m.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CYLINDER
  mat = d.geom_xmat[geom].reshape(-1, 3, 3)
  arrays = (d.site_xpos[site0], d.site_xpos[site1], d.geom_xpos[geom], mat, m.geom_size[geom, 0], d.site_xpos[side[sided]])
  return d, [jnp.asarray(x)[..., None] for x in arrays], lambda *x: wrap.wrap(*x, cylinder, sided), (side, sided, geom)


def total(f, *arrays):
  w = f(*arrays)
  return safe.norm(arrays[0] - w.point0) + w.length + safe.norm(arrays[1] - w.point1)


# P121
@pytest.mark.parametrize("seed", [0, 1])
def test_paths_equal_c(seed):
  m = model(seed)
  d, arrays, f, (side, sided, geom) = problem(m)
  got = jax.jit(f)(*arrays)
  wraps = d.ten_wrapnum == 4
  np.testing.assert_array_equal(got.wrapped[:, 0], wraps)
  np.testing.assert_allclose(jax.jit(lambda *x: total(f, *x))(*arrays)[:, 0], d.ten_length, rtol=1e-13)
  first, points = d.ten_wrapadr[wraps], d.wrap_xpos.reshape(-1, 3)
  np.testing.assert_allclose(got.point0[wraps, :, 0], points[first + 1], atol=1e-13)
  np.testing.assert_allclose(got.point1[wraps, :, 0], points[first + 2], atol=1e-13)
  # every kind of path is there, wrapping and not
  distance = np.linalg.norm(d.site_xpos[side[sided]] - d.geom_xpos[geom[sided]], axis=1)
  inside = np.zeros(N, bool)
  inside[sided] = distance < m.geom_size[geom[sided], 0]
  cylinder = m.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CYLINDER
  for kind in (side < 0, (side >= 0) & ~inside, inside):
    for shape in (cylinder, ~cylinder):
      assert 20 < np.sum(wraps & kind & shape) < np.sum(kind & shape) - 20
  long = (side >= 0) & ~inside & (got.length[:, 0] > 1.05 * np.pi * m.geom_size[geom, 0])
  assert long.any(), "no path more than half around"


def test_gradients_equal_differences():
  """At random paths, in every argument; the length is stationary in the points of contact."""
  _, arrays, f, _ = problem(model(2))
  rng = np.random.default_rng(0)
  value = jax.jit(lambda *x: total(f, *x)[:, 0])
  wrapped = jax.jit(lambda *x: f(*x).wrapped)
  grads = jax.jit(jax.grad(lambda *x: jnp.sum(total(f, *x)), argnums=range(5)))(*arrays)
  for k, g in enumerate(grads):
    assert np.isfinite(g).all()
    step = jnp.asarray(rng.normal(size=arrays[k].shape))
    ends = [value(*arrays[:k], arrays[k] + s * 1e-6 * step, *arrays[k + 1 :]) for s in (1, -1)]
    kinds = [wrapped(*arrays[:k], arrays[k] + s * 1e-6 * step, *arrays[k + 1 :])[:, 0] for s in (1, -1)]
    same = kinds[0] == kinds[1]
    assert same.sum() > 0.99 * N
    slope = jnp.sum((g * step).reshape(N, -1), axis=1)
    np.testing.assert_allclose(slope[same], (ends[0] - ends[1])[same] / 2e-6, rtol=1e-5, atol=1e-5, err_msg=f"argument {k}")


def test_second_derivative_of_the_inside_path():
  """The point of contact moves with the ends: the derivative of the pull, which a Jacobian needs."""
  ends = jnp.array([[[1.0, 0.3]], [[0.2, 1.4]]])[..., None]  # (2, 1, 2, 1)
  radius, yes = jnp.full((1, 1), 0.6), jnp.ones((1, 1), bool)

  def point(x):
    return wrap.inside(x[0], x[1], radius, yes).point0[0, :, 0]

  assert wrap.inside(ends[0], ends[1], radius, yes).wrapped.all()
  jac = jax.jacfwd(point)(ends)
  np.testing.assert_allclose(jac, jax.jacrev(point)(ends), rtol=1e-12)
  step = jnp.asarray(np.random.default_rng(0).normal(size=ends.shape))
  # C stops Newton's method at 1e-6, so that differences over less than that see its steps
  difference = (point(ends + 1e-2 * step) - point(ends - 1e-2 * step)) / 2e-2
  np.testing.assert_allclose(jnp.vdot(jac[0], step), difference[0], rtol=1e-2, atol=1e-3)
  np.testing.assert_allclose(jnp.vdot(jac[1], step), difference[1], rtol=1e-2, atol=1e-3)


SINGULAR = {
  "end at the centre": ((0, 0, 0), (1, 0, 0)),
  "ends in line with the centre": ((-1, 0, 0), (1, 0, 0)),
  "ends at one place": ((1, 0, 0), (1, 0, 0)),
  "end on the hull": ((0.5, 0, 0), (0, 1, 0)),
  "tangent": ((-1, 0.5, 0), (1, 0.5, 0)),
  "along the axis": ((0, 0, -1), (0, 0, 1)),
}


@pytest.mark.parametrize("side", [(0, 0, 0), (0.1, 0, 0), (0, 0, 0.9), (0, 1, 0), None])
def test_gradient_is_finite_at_singular_points(side):
  x0, x1 = (jnp.array([case[k] for case in SINGULAR.values()], float) for k in (0, 1))
  x0, x1 = (jnp.concatenate([x, x])[..., None] for x in (x0, x1))
  n = len(x0)
  cylinder, sided = np.repeat([True, False], n // 2), np.arange(0 if side is None else n)
  mat, radius = jnp.broadcast_to(jnp.eye(3)[..., None], (n, 3, 3, 1)), jnp.full((n, 1), 0.5)
  mark = jnp.broadcast_to(jnp.array(side or (0, 0, 0), float)[:, None], (len(sided), 3, 1))
  f = lambda a, b, c, r, s: jnp.sum(total(lambda *x: wrap.wrap(*x, cylinder, sided), a, b, c, mat, r, s))  # noqa: E731
  for g in jax.jit(jax.grad(f, argnums=range(5)))(x0, x1, 0 * x0, radius, mark):
    assert np.isfinite(g).all()
