"""Compiled functions live and go as those of `jax.jit` do."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.compiler import workarounds

XML = "<mujoco><worldbody><body><joint/><geom size='.1'/></body></worldbody></mujoco>"


@pytest.fixture(scope="module")
def world():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML))
  return m, mjx.make_data(m)


def counting():
  traces = []

  def step(m, d):
    traces.append(1)
    return mjx.step(m, d)

  return step, traces


@pytest.mark.parametrize("one_world", [False, True])
def test_a_function_compiled_in_a_loop_is_traced_once(world, one_world):
  m, d = world
  step, traces = counting()
  for _ in range(3):
    d = mjx.jit(step, one_world=one_world)(m, d)
  assert len(traces) == 1

  @functools.wraps(step)
  def other(m, d):
    return step(m, d).replace(time=jnp.asarray(7.0))

  assert mjx.jit(other, one_world=one_world)(m, d).time == 7
  assert mjx.jit(step, one_world=one_world)(m, d).time < 1
  assert len(traces) == 2


@pytest.mark.parametrize("one_world", [False, True])
def test_a_function_without_references_is_freed(world, one_world):
  m, d = world

  def compiled():
    step, _ = counting()
    return mjx.jit(step, one_world=one_world), weakref.ref(step)

  wrapped, function = compiled()
  gc.collect()
  assert wrapped(m, d).time > 0  # it refers to its function
  del wrapped
  gc.collect()
  assert function() is None
  lower = mjx.jit(lambda x: x + 1, one_world=one_world).lower
  gc.collect()
  assert lower(1.0).compile()(1.0) == 2


def test_a_method_and_what_is_equal_are_no_functions():
  class Times:
    def __init__(self, factor):
      self.factor = factor

    def __eq__(self, other):
      return True

    def __hash__(self):
      return 1

    def __call__(self, x):
      return x * self.factor

    def times(self, x):
      return x * self.factor

  for factor in (2.0, 3.0):
    assert mjx.jit(Times(factor))(1.0) == factor
    assert mjx.jit(Times(factor).times)(1.0) == factor
  named = mjx.jit(lambda x, *, power: x**power, static_argnames="power")
  assert named(3.0, power=2) == 9


def test_options_that_xla_does_not_know(world, monkeypatch):
  """Options that this XLA has not are left out."""
  m, d = world
  known = workarounds.compiler_options()
  assert "xla_cpu_prefer_vector_width" in known
  monkeypatch.setattr(workarounds, "_OPTIONS", {**workarounds._OPTIONS, "xla_cpu_no_such_option": True})
  workarounds.compiler_options.cache_clear()
  try:
    assert workarounds.compiler_options() == known
    assert mjx.jit(lambda m, d: mjx.step(m, d).time)(m, d) > 0
  finally:
    workarounds.compiler_options.cache_clear()


@pytest.mark.parametrize("function", [
  lambda x, i: x.at[i].add(x), lambda x, i: x.at[i].set(2 * x), lambda x, i: jnp.sort(x), lambda x, i: x[i], jnp.cumsum,
  lambda x, i: jax.lax.top_k(x, 2)[0], lambda x, i: jax.lax.fori_loop(0, i[0], lambda k, y: y + x[k], x[0]),
], ids=["scatter_add", "scatter", "sort", "gather", "cumsum", "top_k", "loop"])  # fmt: skip
def test_options_leave_every_operation_a_code_path(function):
  """An option that leaves out a pass of XLA may leave an operation without one: JAX 0.11 has none for a bare scatter."""
  x, i = jnp.arange(5.0), jnp.array([3, 0, 3, 1, 4])
  args = (x,) if function is jnp.cumsum else (x, i)
  np.testing.assert_allclose(mjx.jit(lambda *a: function(*a))(*args), function(*args), rtol=1e-6)
