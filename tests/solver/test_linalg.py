"""The dense factor and solve: right in both precisions, finite where singular, differentiable, and free of LAPACK."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from jax.test_util import check_grads

import mjx_lite as mjx
from mjx_lite.cli import timing
from mjx_lite.cli.common import rollout
from mjx_lite.compiler.backends import llvm
from mjx_lite.math import linalg
from mjx_lite.solver import operator

# two bodies that touch each other, so that the solver needs the dense operator
TOUCHING = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.095"><freejoint/><geom size="0.1"/></body>
    <body pos="0.05 0 0.26"><freejoint/><geom size="0.1" mass="1"/></body>
  </worldbody>
</mujoco>
"""


def systems(n, width, dtype=np.float64, spread=0.0):
  """Random positive definite matrices (n, n, W), rows and columns scaled over `spread` powers of ten, and vectors."""
  rng = np.random.default_rng(n)
  g = rng.normal(size=(width, n, n + 3))
  scale = 10 ** rng.uniform(-spread / 2, spread / 2, size=(width, n))
  a = np.moveaxis(scale[:, :, None] * (g @ g.transpose(0, 2, 1)) * scale[:, None], 0, -1)
  return jnp.asarray(a, dtype), jnp.asarray(rng.normal(size=(n, width)), dtype)


def solve(a, x):
  return linalg.factor_solve(linalg.cholesky(a), x)


def exact(a, x):
  return np.linalg.solve(np.moveaxis(np.asarray(a, float), -1, 0), np.asarray(x, float).T[..., None])[..., 0].T


# sizes: less than a block, a block, several, some of them in a loop
@pytest.mark.parametrize("n", [1, 4, 6, 27, 40])
def test_solution_is_right_in_both_precisions(n):
  a, x = systems(n, 3, spread=6)
  np.testing.assert_allclose(jax.jit(solve)(a, x), exact(a, x), rtol=1e-9)
  small, y = a.astype(np.float32), x.astype(np.float32)
  got, want = jax.jit(solve)(small, y), exact(small, y)
  assert got.dtype == np.float32
  # in the norm in which the scaled system is well conditioned
  weight = np.sqrt(np.diagonal(np.asarray(a)).T)
  assert np.linalg.norm((got - want) * weight) < 1e-3 * np.linalg.norm(want * weight)


@pytest.mark.parametrize("n", [5, 27])
def test_only_the_upper_triangle_is_read(n):
  a, x = systems(n, 3)
  below = np.tri(n, k=-1, dtype=bool)[..., None]
  np.testing.assert_array_equal(solve(jnp.where(below, 7.0, a), x), solve(a, x))


def test_world_that_is_singular_or_not_finite_does_not_disturb_the_others():
  a, x = systems(6, 3)
  singular = a.at[:, :, 0].set(1.0).at[:, :, 1].set(jnp.nan)
  out = jax.jit(solve)(singular, x)
  assert np.isfinite(out[:, 0]).all() and np.isnan(out[:, 1]).all()
  np.testing.assert_allclose(out[:, 2], exact(a, x)[:, 2], rtol=1e-9)


def test_derivatives_of_the_solution():
  a, x = systems(6, 2)
  symmetric = lambda a, x: solve(a + jnp.swapaxes(a, 0, 1), x)  # noqa: E731
  check_grads(symmetric, (a, x), order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)


def size(function, *args, jit):
  return timing.compile_program(function, *args, jit=jit).instructions


def test_passes_are_not_fused_into_each_other_by_any_jit():
  """XLA on CPU would repeat the rows of one in all later ones."""
  a, x = systems(27, 4)
  assert size(solve, a, x, jit=jax.jit) < 2 * size(solve, a, x, jit=mjx.jit)


def test_derivatives_are_not_those_of_the_factor():
  a, x = systems(27, 4)
  gradient = jax.grad(lambda *args: jnp.sum(solve(*args) ** 2), (0, 1))
  assert size(gradient, a, x, jit=mjx.jit) < 2 * size(solve, a, x, jit=mjx.jit)


@pytest.mark.parametrize("n", [3, 9, 41])
def test_factor_gives_the_matrix_back(n):
  a, _ = systems(n, 3, spread=6)
  row, col = np.triu_indices(n)
  upper = np.zeros(a.shape)
  upper[row, col] = linalg.entries(jax.jit(linalg.cholesky)(a), row, col)
  lower = upper / np.einsum("iiw->iw", upper)[:, None]
  np.testing.assert_allclose(np.einsum("kiw,kjw->ijw", lower, upper), a, rtol=1e-9)


@pytest.mark.parametrize("n", [3, 9, 41])
def test_system_that_is_not_symmetric(n):
  a, x = systems(n, 2)
  a = a + 0.3 * jnp.asarray(np.random.default_rng(0).normal(size=a.shape))
  np.testing.assert_allclose(jax.jit(linalg.solve)(a, x), exact(a, x), rtol=1e-9)
  weight = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))
  da, dx = jax.grad(lambda a, x: jnp.sum(weight * linalg.solve(a, x)), (0, 1))(a, x)
  adjoint = exact(np.swapaxes(a, 0, 1), weight)
  np.testing.assert_allclose(dx, adjoint, rtol=1e-8)
  np.testing.assert_allclose(da, -adjoint[:, None] * exact(a, x)[None], rtol=1e-8, atol=1e-12)


def test_compiled_step_calls_no_lapack(monkeypatch):
  """What XLA compiles of it."""
  monkeypatch.setattr(llvm, "_IS_WANTED", False)
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TOUCHING))
  assert not operator.is_tree_sparse(m)
  d = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, *x.shape)), mjx.make_data(m))
  text = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0))).lower(m, d).compile().as_text()
  assert "custom-call" not in text, [line.strip()[:200] for line in text.splitlines() if "custom-call" in line]
  # what it would look like
  assert "lapack" in jax.jit(jnp.linalg.cholesky).lower(jnp.eye(3)).compile().as_text()


def sharded_rollout():
  """Compare a rollout with its worlds divided among all devices with one on the first device; prints the worst gap."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TOUCHING), dtype=np.float32)
  d, n, devices = mjx.make_data(m), 64, jax.devices()
  assert len(devices) == 2 and not operator.is_tree_sparse(m)
  qvel = 0.1 * jax.random.normal(jax.random.key(0), (n, m.nv), d.qvel.dtype)
  many = jax.vmap(lambda v: d.replace(qvel=v))(qvel)
  ctrl = jnp.zeros((40, n, m.nu))
  mesh = jax.sharding.Mesh(np.array(devices), ("world",))
  placed = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))  # noqa: E731
  split = (jax.device_put(m, placed()), jax.device_put(many, placed("world")), jax.device_put(ctrl, placed(None, "world")))
  call = mjx.jit(rollout)
  one = call(m, many, ctrl)[1]
  for _ in range(20):
    two = jax.block_until_ready(call(*split)[1])
  assert len(two.sharding.device_set) == 2
  assert float(jnp.abs(one[-1] - one[0]).max()) > 1e-3
  print("gap", float(jnp.abs(np.asarray(one) - np.asarray(two)).max()))


def test_worlds_divided_among_devices_step_as_on_one():
  """In a process of its own: the number of devices is fixed when JAX starts, and a deadlock must not stop the tests."""
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  env["XLA_FLAGS"] = f"{env['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
  tests = pathlib.Path(__file__).parents[1] / "lib"
  env["PYTHONPATH"] = os.pathsep.join([str(tests), str(pathlib.Path(__file__).parent), *sys.path])
  code = "import test_linalg; test_linalg.sharded_rollout()"
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
  assert done.returncode == 0, done.stderr[-3000:]
  assert float(done.stdout.split("gap")[1]) < 1e-5
