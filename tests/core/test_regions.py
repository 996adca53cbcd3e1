"""A single world's operations as a few functions: the same numbers, few kernels, and what may be in none of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.cli import timing
from mjx_lite.core import linear, regions

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="kernels are only put together on CPU")

TABLE = np.arange(12.0).reshape(3, 4)


def several(x, flag, empty):
  """Loops, branches, products and gathers of one world, (3, 4, 1)."""
  scanned, sums = jax.lax.scan(lambda c, k: (jnp.sin(c) + k, jnp.sum(c, axis=0)), x, x)
  found = jax.lax.while_loop(lambda c: jnp.sum(c) < 50, lambda c: c * 1.5 + 1, jnp.abs(scanned[0]))
  chosen = jax.lax.cond(flag, lambda c: linear.choose(c, np.array([3, 1, 1])), lambda c: c[:3] * 0, found)
  product = linear.combine(TABLE, jnp.concatenate([scanned[0], empty])) + linear.total(scanned[0])
  return jnp.tanh(product) + chosen, sums, empty * 2


def sorting(x, flag, empty):
  return jnp.sort(several(x, flag, empty)[0] ** 2, axis=0), x + 1


def constant(x, flag, empty):
  """What comes out does not hang on what goes in, but for its shape."""
  return jnp.where(np.ones((3, 4, 1), bool), TABLE[..., None], x), jnp.ones_like(x) * 2


def printing(x, flag, empty):
  jax.debug.callback(lambda y: None, x)
  return jnp.sin(x) * 2, x


def inputs():
  return jnp.linspace(-1, 1, 12).reshape(3, 4, 1), jnp.array(True), jnp.zeros((0, 1))


def in_regions(function):
  closed = jax.make_jaxpr(function)(*inputs())
  return jax.jit(lambda *args: regions.evaluate(closed, *args))


def count(jitted, *args):
  """Regions of a program; XLA has not yet made any of small loops."""
  return jitted.lower(*args).as_text().count("xla_cpu_small_call")


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("function", [several, sorting, constant, printing])
def test_regions_of_any_size_compute_the_same(function, size, monkeypatch):
  monkeypatch.setattr(regions, "_SIZE", size)
  for found, expected in zip(in_regions(function)(*inputs()), function(*inputs()), strict=True):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_operands_may_be_constants():
  """XLA writes constants into what it calls, and aborts where a region then does not use its operand."""
  closed = jax.make_jaxpr(several)(*inputs())
  found = jax.jit(lambda flag: regions.evaluate(closed, inputs()[0], flag, inputs()[2]))(True)
  np.testing.assert_allclose(found[0], several(*inputs())[0], rtol=1e-12)


def test_what_xla_has_no_code_for_stays_outside():
  assert count(in_regions(several), *inputs()) == 1
  assert count(in_regions(sorting), *inputs()) == 2
  assert count(in_regions(printing), *inputs()) == 0
  large = jnp.ones((regions.MAX_NUMBERS + 1, 1))
  closed = jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x)))(large)
  assert count(jax.jit(lambda x: regions.evaluate(closed, x)), large) == 0


@pytest.mark.parametrize("jit", [jax.jit, mjx.jit])
def test_a_step_of_one_world_starts_few_kernels(jit):
  m = mjx.put_model(load("humanoid"))
  d = mjx.make_data(m)
  both, several_d = jax.vmap(mjx.step, in_axes=(None, 0)), jax.tree.map(lambda x: jnp.stack([x, x]), d)
  assert regions.IS_TESTED, "try the tests with this jaxlib, and if they pass extend what IS_TESTED allows"
  assert count(jit(both), m, several_d) == 0 < count(jit(mjx.step), m, d)
  alone = timing.compile_program(mjx.step, m, d, jit=jit)
  assert alone.launches < timing.compile_program(both, m, several_d, jit=jit).launches / 10


def test_without_regions_where_jaxlib_is_not_known(monkeypatch):
  monkeypatch.setattr(regions, "IS_TESTED", False)
  assert count(in_regions(several), *inputs()) == 0


def test_one_world_as_among_others():
  """Steps of one world, without and with a batch axis, beside those of two."""
  m = mjx.put_model(load("trees"))
  d = mjx.make_data(m)
  d = d.replace(qvel=jnp.linspace(-1, 1, m.nv))

  def steps(d):
    return jax.lax.scan(lambda c, _: (mjx.step(m, c), None), d, None, length=5)[0].qpos

  alone = mjx.jit(steps)(d)
  for worlds in ([d], [d, d]):
    among = mjx.jit(jax.vmap(steps))(jax.tree.map(lambda *x: jnp.stack(x), *worlds))
    np.testing.assert_allclose(among[0], alone, rtol=1e-10, atol=1e-10)
