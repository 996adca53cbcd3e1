"""Rays and distances of geoms against MuJoCo, and their derivatives."""

import functools
import itertools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import TOO_LARGE, load

import mjx_lite as mjx

N = 400


@functools.cache
def _scene():
  model = load("shapes")
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  return model, data, mjx.put_model(model), mjx.put_data(model, data)


@functools.cache
def _rays():
  rng = np.random.default_rng(0)
  point = np.array([0.3, -0.2, 1.4])
  return point, rng.normal(size=(N, 3)) * [1, 1, 0.7] - [0, 0, 0.5]


CHOICES = {
  "all": dict(),
  "groups": dict(geomgroup=(1, 0, 1, 1, 1, 1)),
  "moving": dict(flg_static=False, bodyexclude=3),
}


@TOO_LARGE
@pytest.mark.parametrize("choice", CHOICES)
def test_rays_equal_c(choice):
  model, data, m, d = _scene()
  options = CHOICES[choice]
  point, vec = _rays()
  dist, geom = mjx.jit(lambda p, v: mjx.multi_ray(m, d, p, v, **options))(point, vec)
  group = np.array(options["geomgroup"], np.uint8) if "geomgroup" in options else None
  found = np.zeros(1, np.int32)
  seen = set()
  for k in range(N):
    static, exclude = options.get("flg_static", True), options.get("bodyexclude", -1)
    length = mujoco.mj_ray(model, data, point, vec[k], group, static, exclude, found)
    seen.add(int(found[0]))
    assert int(geom[k]) == found[0], k
    np.testing.assert_allclose(dist[k], length, rtol=1e-10)
  assert len(seen) >= (9 if choice == "all" else 6)


def test_ray_from_inside_and_derivative():
  model, data, m, d = _scene()
  found = np.zeros(1, np.int32)
  cast = mjx.jit(lambda p, v: mjx.ray(m, d, p, v))
  slope = mjx.jit(jax.grad(lambda p, v: mjx.ray(m, d, p, v)[0], argnums=(0, 1)))
  for body in range(1, model.nbody):
    start, along = data.xpos[body] + 1e-3, np.array([0.3, 0.5, -0.4])
    dist, geom = cast(start, along)
    assert float(dist) == pytest.approx(mujoco.mj_ray(model, data, start, along, None, True, -1, found), rel=1e-10)
    assert geom == found[0]
    there = slope(start, along)
    for step in 1e-6 * np.eye(3):
      for turns, got in ((0, there[0] @ step), (1, there[1] @ step)):
        ends = [cast(start + sign * step * (1 - turns), along + sign * step * turns)[0] for sign in (1, -1)]
        assert float(got) == pytest.approx(float(ends[0] - ends[1]) / 2, rel=1e-5, abs=1e-11)


@functools.cache
def _distances(pairs, distmax):
  _, _, m, d = _scene()
  return mjx.jit(lambda x: [mjx.geom_distance(m, d.replace(geom_xpos=x), a, b, distmax) for a, b in pairs])


# swapped or not, of closed form, and cylinder with ellipsoid
PAIRS = ((2, 0), (3, 2), (0, 7), (5, 4))


def test_distances_equal_c():
  model, data, _, d = _scene()
  found = _distances(PAIRS, 10.0)(d.geom_xpos)
  for (a, b), (dist, fromto) in zip(PAIRS, found, strict=True):
    segment = np.zeros(6)
    length = mujoco.mj_geomDistance(model, data, a, b, 10.0, segment)
    assert float(dist) == pytest.approx(length, abs=3e-6), (a, b)
    np.testing.assert_allclose(np.linalg.norm(fromto[3:] - fromto[:3]), length, atol=3e-6)
    np.testing.assert_allclose(fromto, segment, atol=2e-3)


def test_distance_beyond_the_limit_and_derivative():
  _, _, m, d = _scene()
  ((dist, fromto),) = _distances(((2, 3),), 0.1)(d.geom_xpos)
  assert float(dist) == 0.1 and not np.any(fromto)
  pair = (5, 4)
  measure = _distances(PAIRS, 10.0)
  k_pair = PAIRS.index(pair)
  slope = mjx.jit(jax.grad(lambda x: mjx.geom_distance(m, d.replace(geom_xpos=x), *pair, 10.0)[0]))(d.geom_xpos)
  for g, k in itertools.product(pair, range(3)):
    step = jnp.zeros_like(d.geom_xpos).at[g, k].set(1e-6)
    quotient = (measure(d.geom_xpos + step)[k_pair][0] - measure(d.geom_xpos - step)[k_pair][0]) / 2e-6
    assert float(slope[g, k]) == pytest.approx(float(quotient), abs=1e-6)
