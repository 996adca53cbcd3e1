"""The operations of a few worlds as a few functions: the same numbers, few kernels, and what may be in none of them."""

import itertools
import math
import os
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.cli import timing
from mjx_lite.compiler import regions, workarounds
from mjx_lite.compiler.backends import llvm
from mjx_lite.ops import linear

TABLE = np.arange(12.0).reshape(3, 4)
LARGE = np.arange(2.0 * regions.MAX_NUMBERS) ** 2


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
  """Where regions are; every JAX has it. Steps are no kernels here."""
  monkeypatch.setattr(llvm, "_IS_WANTED", False)
  with jax.default_device(jax.devices("cpu")[0]):
    yield


def several(x, flag, empty):
  """Loops, branches, products and gathers of one world, (3, 4, 1)."""
  scanned, sums = jax.lax.scan(lambda c, k: (jnp.sin(c) + k, jnp.sum(c, axis=0)), x, x)
  found = jax.lax.while_loop(lambda c: jnp.sum(c) < 50, lambda c: c * 1.5 + TABLE[0, :, None], jnp.abs(scanned[0]))
  chosen = jax.lax.cond(flag[0], lambda c: linear.choose(c, np.array([3, 1, 1])), lambda c: c[:3] * 0, found)
  product = linear.combine(TABLE, jnp.concatenate([scanned[0], empty])) + linear.total(scanned[0])
  return jnp.tanh(product) + chosen, sums, empty * 2


def sorting(x, flag, empty):
  return jnp.sort(several(x, flag, empty)[0] ** 2, axis=0), x + 1


def unused(x, flag, empty):
  """XLA finds out that what comes out does not hang on x."""
  return jnp.where(jnp.zeros((3, 4, 1)) == 0, 2.0, x), jnp.sin(flag * 1.0)


def constant(x, flag, empty):
  return jnp.where(jnp.zeros((3, 4, 1)) == 0, 2.0, x), jnp.where(jnp.zeros((1,)) == 0, 1.0, flag)


def looked_up(x, flag, empty):
  """XLA writes a constant into what it calls, which then does not use its operand."""
  return jnp.asarray(LARGE)[(100 * x * x).astype(int)], x + 1


def nested(x, flag, empty):
  """The same in a loop, which is cut in its turn."""

  def body(c, k):
    kept, _ = unused(c, flag, empty)
    chosen = jax.lax.cond(flag[0], lambda: several(c + k, flag, empty)[0], lambda: several(c * kept, flag, empty)[0])
    return jnp.tanh(c + chosen[:, None]), looked_up(jnp.tanh(kept), flag, empty)[0]

  return jax.lax.scan(body, x, x)


def printing(x, flag, empty):
  jax.debug.callback(lambda y: None, x)
  return jnp.sin(x) * 2, x


def inputs():
  return jnp.linspace(-1, 1, 12).reshape(3, 4), jnp.array(True), jnp.zeros((0,))


def in_regions(function):
  """The public form of a native function, which one world's operations go through regions in."""
  call = worlds.one_world(lambda m, *args: function(*args))
  return jax.jit(lambda *args: call((), *args))


def expected(function):
  x, flag, empty = inputs()
  return [y[..., 0] for y in function(x[..., None], flag[None], empty[..., None])]


def in_danger(text):
  """Operands of a compiled program's regions that nothing in them uses: XLA aborts for some of these, never for empty ones."""
  _, bodies = timing._computations(text)
  lines = [line for body in bodies.values() for name, line in body if name == "call"]
  calls = [line for line in lines if 'inlineable="false",xla_cpu_small_call="true"' in line]  # XLA's own can be inlined
  assert calls
  found = []
  for name in (re.search(r"to_apply=%?([\w.\-]+)", line).group(1) for line in calls):
    lines = [line.strip() for _, line in bodies[name]]
    for parameter in (line for line in lines if " parameter(" in line):
      variable, shape = re.match(r"(?:ROOT )?%?([\w.\-]+) = \w+\[([\d,]*)\]", parameter).groups()
      used = any(re.search(rf"%{re.escape(variable)}[,)]", line) for line in lines)
      if not used and "0" not in shape.split(","):
        found.append(parameter)
  return found


def count(lowered):
  """Regions of a program; XLA has not yet made any of small loops."""
  return lowered.as_text().count("xla_cpu_small_call")


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("function", [several, sorting, unused, constant, looked_up, nested, printing])
def test_regions_of_any_size_compute_the_same(function, size, monkeypatch):
  monkeypatch.setattr(regions, "_SIZE", size)
  for found, wanted in zip(in_regions(function)(*inputs()), expected(function), strict=True):
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def zeros_of(function, *args):
  """As many and as large as what the function returns."""
  return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), list(jax.eval_shape(function, *args)))


def in_scan(function, x, flag, empty):
  """Of the operands some are constants, some hang on the loop."""

  def body(total, flag):
    return jax.tree.map(jnp.add, total, list(function(x, flag, empty))), None

  zeros = zeros_of(function, x, flag, empty)
  return jax.jit(lambda flags: jax.lax.scan(body, zeros, flags)[0])(flag[None])


def in_branch(function, x, flag, empty):
  """The same, of a branch."""
  args = (x, flag, empty)
  return jax.jit(lambda flag: jax.lax.cond(flag, lambda: list(function(*args)), lambda: zeros_of(function, *args)))(True)


CONTEXTS = {
  "constants": lambda function, *args: jax.jit(lambda: function(*args))(),
  "scan": in_scan,
  "branch": in_branch,
  "world": lambda function, *args: [y[0] for y in jax.vmap(function)(*(x[None] for x in args))],
}


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("function", [several, sorting, unused, constant, looked_up, nested])
def test_regions_in_any_context_compute_the_same(function, context, size, monkeypatch):
  monkeypatch.setattr(regions, "_SIZE", size)
  for found, wanted in zip(CONTEXTS[context](in_regions(function), *inputs()), expected(function), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_what_xla_has_no_code_for_stays_outside():
  assert count(in_regions(several).lower(*inputs())) == 1
  assert count(in_regions(sorting).lower(*inputs())) == 2
  assert count(in_regions(printing).lower(*inputs())) == 0
  large = jnp.ones((regions.MAX_NUMBERS + 1, 1))
  closed = jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x)))(large)
  assert count(jax.jit(lambda x: regions.evaluate(closed, x)).lower(large)) == 0


def test_steps_of_one_world_and_of_many_start_few_kernels(tiles_in_regions):
  m, all_at_once = (mjx.put_model(load("joints"), tile=tile) for tile in (None, 0))
  d = mjx.make_data(m)
  assert regions.is_on()

  def compiled(m, worlds_, jit=mjx.jit):
    step, many = mjx.step, d
    if worlds_:
      step, many = jax.vmap(mjx.step, in_axes=(None, 0)), jax.tree.map(lambda x: jnp.stack([x] * worlds_), d)
    lowered = jit(step).lower(m, many)
    return count(lowered), timing.count_launches(lowered.compile().as_text())

  found, kernels = compiled(all_at_once, 2 * regions.lanes())
  assert found == 0
  cases = [(all_at_once, regions.lanes()), *((m, n, jit) for n in (0, 2 * regions.lanes()) for jit in (jax.jit, mjx.jit))]
  for found, launches in (compiled(*case) for case in cases):
    assert 0 < found
    assert launches < kernels / 2  # of tiles most are copies in and out


def test_many_worlds_go_through_regions_where_the_user_sets_the_option():
  """Importing the package changes neither the environment nor JAX's configuration."""
  code = """
    import os, sys
    before = dict(os.environ)
    import jax
    options = dict(jax.config.values)
    import mjx_lite
    from mjx_lite.compiler import regions
    mjx_lite.put_model, regions.is_on()
    assert dict(os.environ) == before and dict(jax.config.values) == options
    assert regions.lanes() == (16 if "unroll" in os.environ.get("XLA_FLAGS", "") else 0)
  """
  for flags in ("", regions.FLAGS):
    env = {**os.environ, "XLA_FLAGS": flags}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=env)


def test_a_region_of_just_what_top_k_returns_on_several_devices():
  """XLA aborted, so in a process of its own."""
  code = """
    import jax, jax.numpy as jnp, numpy as np
    import mjx_lite
    from mjx_lite.compiler import regions
    x = jnp.cos(jnp.arange(128.0)).reshape(2, 64)
    largest = lambda x: jax.lax.top_k(x, 4)
    found = jax.make_jaxpr(lambda x: (lambda v, i: jnp.sin(v) + i)(*largest(x)))(x[:1])
    spec = jax.sharding.PartitionSpec("worlds")
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",))
    one = lambda x: regions.evaluate(found, x)[0]
    run = mjx_lite.jit(jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    assert "xla_cpu_small_call" in run.lower(x).as_text()
    v, i = largest(x)
    np.testing.assert_allclose(run(x), jnp.sin(v) + i, rtol=1e-6)
  """
  flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
  subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environment)


def test_a_device_s_part_is_cut_as_all_worlds_are(tiles_in_regions):
  """In `jax.shard_map` JAX writes operations about devices, which are in no region, beside every `where`."""
  m = mjx.put_model(load("joints"))
  d = jax.tree.map(lambda x: jnp.stack([x] * 2), mjx.make_data(m))
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  mesh, spec = jax.make_mesh((1,), ("worlds",)), jax.sharding.PartitionSpec
  part = jax.shard_map(step, mesh=mesh, in_specs=(spec(), spec("worlds")), out_specs=spec("worlds"), check_vma=False)
  d = jax.device_put(d, jax.sharding.NamedSharding(mesh, spec("worlds")))
  found = []
  for f in (step, part):
    worlds.clear_caches()  # traced anew, each by itself
    found.append(count(mjx.jit(f).lower(m, d)))
  whole, divided = found
  assert whole == divided > 0


def test_without_regions(monkeypatch):
  monkeypatch.setattr(regions, "_IS_WANTED", False)
  assert count(in_regions(several).lower(*inputs())) == 0


def test_one_world_as_among_others_and_closed_over():
  m = mjx.put_model(load("delays"))
  d = mjx.make_data(m)
  d = d.replace(qvel=jnp.linspace(-1, 1, m.nv))
  alone = mjx.jit(mjx.step)(m, d)
  known = jax.jit(lambda: mjx.step(m, d)).lower().compile()
  assert not in_danger(known.as_text())  # though all operands are constants
  found = [known()]
  for batch in ([d], [d, d]):
    among = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, jax.tree.map(lambda *x: jnp.stack(x), *batch))
    found.append(jax.tree.map(lambda x: x[0], among))
  for other in found:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), other, alone)


def test_memory_of_arguments_that_are_handed_on():
  """XLA ends the process where the memory of an empty array is handed on while one goes through a region."""
  m = mjx.put_model(load("joints"))
  d = mjx.make_data(m)
  assert any(not x.size for x in jax.tree.leaves(d))
  want = mjx.jit(mjx.step)(m, d)
  got = mjx.jit(mjx.step, donate_argnums=1)(m, jax.tree.map(jnp.array, d))
  jax.tree.map(np.testing.assert_array_equal, got, want)


def loss(m, d, ctrl, power):
  end, record = mjx.rollout(m, d, ctrl)
  return jnp.sum(record["qpos"] ** power) + jnp.sum(end.qvel**2)


def test_a_whole_program_of_one_world():
  """What is not the engine's is in few kernels too if it is asked for, and gives what it gives without."""
  m = mjx.put_model(load("shapes"))
  d, ctrl = mjx.make_data(m), jnp.zeros((3, m.nu))
  d = d.replace(qvel=jnp.linspace(-1, 1, m.nv))
  gradient = jax.value_and_grad(lambda d, power: loss(m, d, ctrl, power), allow_int=True)
  # XLA makes calls of small loops by itself too, if it may
  options = workarounds.compiler_options()
  plain = jax.jit(gradient, static_argnums=1, compiler_options=options)
  compiled = [plain, *(mjx.jit(gradient, one_world=x, static_argnums=1) for x in (False, True))]
  plain, engine, one = (timing.count_launches(f.lower(d, 2).compile().as_text()) for f in compiled)
  assert one < engine == plain
  for function in compiled[1:]:
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), *(f(d, 2)[0] for f in (compiled[0], function))
    )
    for k in ("qpos", "qvel", "time"):
      np.testing.assert_allclose(*(getattr(f(d, 2)[1], k) for f in (compiled[0], function)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("batch", "method"), [pytest.param(5, "stepped", marks=pytest.mark.slow), (40, "rolled")])
def test_derivatives_of_many_worlds_are_in_regions(batch, method, tiles_in_regions, monkeypatch):
  """Some worlds at a time, forward and reverse, of a rollout and of a step under the user's checkpoint."""
  m = mjx.put_model(load("shapes"))
  one = mjx.make_data(m)
  qvel = jnp.asarray(np.random.default_rng(0).normal(size=(batch, m.nv)))
  ctrl = jnp.zeros((3, m.nu))

  def rolled(v):
    return loss(m, one.replace(qvel=v), ctrl, 2)

  def stepped(v):
    step = jax.checkpoint(lambda d, _: (mjx.step(m, d), None))
    return jnp.sum(jax.lax.scan(step, one.replace(qvel=v), length=3)[0].qpos ** 2)

  every = jax.vmap(dict(rolled=rolled, stepped=stepped)[method])
  for derivative in (
    jax.grad(lambda v: every(v).astype(jnp.float16).astype(v.dtype).sum()),  # with something of the user's
    lambda v: jax.jvp(every, (v,), (jnp.cos(v),))[1],
  ):
    worlds.clear_caches()
    with monkeypatch.context() as patch:
      patch.setattr(regions, "_IS_WANTED", False)
      plain = mjx.jit(derivative).lower(qvel)  # with its options XLA makes no calls of small loops by itself
    worlds.clear_caches()
    ours = mjx.jit(derivative).lower(qvel)
    assert count(ours) > 0 == count(plain)
    plain, ours = plain.compile(), ours.compile()
    tiles = -(-batch // regions.lanes())
    assert timing.count_launches(ours.as_text()) < tiles * timing.count_launches(plain.as_text()) / 4
    np.testing.assert_allclose(ours(qvel), plain(qvel), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("one_world", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_derivatives_of_what_closes_over_the_traced(one_world):
  """As under a `vmap` around the compiled function."""
  m = mjx.put_model(load("shapes"))
  d = mjx.make_data(m)
  speeds = jnp.asarray(np.random.default_rng(1).normal(size=(2, m.nv)))

  def slope(v):
    return mjx.jit(jax.grad(lambda q: mjx.step(m, d.replace(qpos=q, qvel=v)).qpos.sum()), one_world=one_world)(d.qpos)

  for ours, v in zip(jax.vmap(slope)(speeds), speeds, strict=True):
    np.testing.assert_allclose(ours, slope(v), rtol=1e-9, atol=1e-11)


def test_what_is_not_the_engines_stays_as_it_is():
  """Of a whole program too, and without `one_world` `jit` adds nothing."""

  def own(x):
    return jnp.fft.fft(x.astype(jnp.float16).astype(x.dtype)).real + jnp.sort(x)

  m = mjx.put_model(load("shapes"))
  d = mjx.make_data(m)
  for f in (own, lambda x: own(mjx.step(m, d.replace(qvel=x)).qpos),
            jax.grad(lambda x: own(mjx.step(m, d.replace(qvel=x)).qpos).sum())):  # fmt: skip
    assert "mjx_program" not in str(mjx.jit(f).trace(d.qvel + 0.1).jaxpr)
    for one_world in (False, True):
      found = mjx.jit(f, one_world=one_world)(d.qvel + 0.1)
      np.testing.assert_allclose(found, jax.jit(f)(d.qvel + 0.1), rtol=1e-8, atol=1e-10)
  with pytest.raises(TypeError, match="of my own"):
    mjx.jit(lambda x: (_ for _ in ()).throw(TypeError("of my own")))(1.0)


def test_a_whole_program_may_be_transformed_and_called_as_any():
  def f(x, *, power, start=None):
    y, _ = jax.lax.scan(lambda c, k: (jnp.sin(c) * k**power, None), x if start is None else start, x)
    return y + x

  x = jnp.linspace(0.1, 1, 4)
  one = mjx.jit(f, one_world=True, static_argnames="power")
  np.testing.assert_allclose(one(x, power=2), f(x, power=2), rtol=1e-12)
  np.testing.assert_allclose(one(x, power=1, start=x**2), f(x, power=1, start=x**2), rtol=1e-12)
  for transformed in (jax.jacfwd, jax.jacrev, jax.vmap):
    at = x[:, None] if transformed is jax.vmap else x
    # JAX differentiates no function that it compiles with options
    plain = jax.jit(regions.program(f), static_argnames="power")
    found, wanted = (transformed(lambda x, f=f: f(x, power=2))(at) for f in (plain, f))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
  with jax.disable_jit():
    np.testing.assert_allclose(one(x, power=2), f(x, power=2), rtol=1e-12)


EQUATIONS = st.tuples(st.integers(1, 5), st.integers(0, 300), st.integers(0, 9))  # operations, numbers, the last to read them


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(EQUATIONS, min_size=1, max_size=8), st.sets(st.integers(0, 7), max_size=2))
def test_cut_where_least_is_written(equations, outside):
  """Of all ways to cut, with parts of at most eight operations, one that costs least."""
  eqns = [SimpleNamespace(outvars=[Result(SimpleNamespace(size=numbers))]) for _, numbers, _ in equations]
  sizes = [math.inf if k in outside else size for k, (size, _, _) in enumerate(equations)]
  last = {e.outvars[0]: reader for e, (_, _, reader) in zip(eqns, equations, strict=True)}

  def cost(bounds):
    total = 0.0
    for first, end in bounds:
      if math.inf in sizes[first:end]:
        total += 0 if end - first == 1 else math.inf
        continue
      written = [v for e in eqns[first:end] for v in e.outvars if last[v] >= end]
      too_large = end - first > 1 and sum(sizes[first:end]) > 8
      total += math.inf if too_large else regions._REGION + sum(1 + v.aval.size / regions._NUMBERS for v in written)
    return total

  n = len(eqns)
  inner = itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n))
  least = min(cost(list(itertools.pairwise((0, *ends, n)))) for ends in inner)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(regions, "_SIZE", 8)
    found = regions._bounds(eqns, sizes, last)
  assert found[0][0] == 0 and found[-1][1] == n and all(a[1] == b[0] for a, b in itertools.pairwise(found))
  np.testing.assert_allclose(cost(found), least, rtol=1e-12)


class Result:
  """A variable, which is known by what it is, not by its value."""

  def __init__(self, aval):
    self.aval = aval


def test_what_only_derivatives_see_is_no_result():
  """Bound, named and stopped values are what they were, and a region hands them on to nobody."""

  def function(x):
    same = linear.depend_on(jax.lax.stop_gradient(x), x * 2)
    return jnp.sin(same) + jax.ad_checkpoint.checkpoint_name(same, "kept"), same

  closed = jax.make_jaxpr(function)(jnp.ones(3))
  cut = jax.make_jaxpr(lambda x: regions.evaluate(closed, x))(jnp.ones(3))
  assert [len(e.outvars) for e in cut.eqns if e.params.get("name") == "region"] == [2]  # the sum, and the operand
  for one, other in zip(regions.evaluate(closed, jnp.arange(3.0)), function(jnp.arange(3.0)), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
