"""Machine code in double precision: half as many lanes, and the results of XLA, NumPy and C to nearly all places."""

import functools
import re

import ffi_pool
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_tests import by_xla, compiled_for, count, program, run, run_one_by_one, states
from models import load

import mjx_lite as mjx
from mjx_lite.compiler import scalars
from mjx_lite.compiler.backends import llvm, llvm_machine
from mjx_lite.testing.compare import optimal

DTYPES = np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64, np.bool_
STEP = jax.vmap(mjx.step, in_axes=(None, 0))


@functools.cache
def scene(name, number):
  mj_model = optimal(load(name))
  m = mjx.put_model(mj_model)
  return m, *states(mj_model, m, number)


# ---------------------------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("name", ["joints", "yielding", "actuators", "tendon_limits", "humanoid_mjx"])
def test_a_step(name):
  """All of Data, of as many worlds as fill two blocks and some more; and accelerations beside C's."""
  m, d, qacc = scene(name, 19)
  assert count(STEP, m, d) == 1
  got = jax.jit(STEP)(m, d)

  def unmarked(d):  # round-off decides whether a tolerance of zero is reached
    kind, status = mjx.Warning.SOLVER, d.status
    return d.replace(status=status.replace(bits=status.bits & ~(1 << kind), count=status.count.at[..., kind].set(0)))

  straight.assert_close(unmarked(got), unmarked(by_xla(STEP, m, d)), double=1e-7)
  assert (np.abs(got.qacc - qacc).max(axis=1) < 1e-8 * (1 + np.abs(qacc).max(axis=1))).all()


@pytest.mark.parametrize("number", [1, 2, 8, 17])
def test_worlds_are_as_alone(number):
  """However many fill no block, each is what it is among others."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 17)
  want = jax.jit(STEP)(m, d)
  straight.assert_close(jax.jit(STEP)(m, jax.tree.map(lambda x: x[:number], d)), jax.tree.map(lambda x: x[:number], want))
  one = jax.tree.map(lambda x: x[number - 1], d)
  assert count(mjx.step, m, one) == 1
  straight.assert_close(jax.jit(mjx.step)(m, one), jax.tree.map(lambda x: x[number - 1], want))


@pytest.mark.core
def test_a_humanoid_beside_c():
  """A rollout is one kernel, and stays with C."""
  mj_model, steps = optimal(load("humanoid_mjx")), 60
  m = mjx.put_model(mj_model)
  assert m.qpos0.dtype == np.float64
  d, _ = states(mj_model, m, 9)
  ctrl = np.random.default_rng(1).uniform(-0.3, 0.3, (9, steps, mj_model.nu))

  def rollout(m, d, ctrl):
    return jax.vmap(lambda d, u: mjx.rollout(m, d, u, record=("qpos",))[1]["qpos"])(d, ctrl)

  assert count(rollout, m, d, ctrl) == 1
  got = jax.jit(rollout)(m, d, ctrl)
  for k in range(9):
    c = mjx.get_data(mj_model, jax.tree.map(lambda x, k=k: x[k], d))
    for u, qpos in zip(ctrl[k], got[k], strict=True):
      c.ctrl[:] = u
      mujoco.mj_step(mj_model, c)
      np.testing.assert_allclose(qpos, c.qpos, atol=1e-8)


def test_a_gradient_of_a_humanoid():
  """By kernels; what XLA computes, and differences."""
  m, d, _ = scene("humanoid_mjx", 9)

  def cost(qvel):
    after = jax.vmap(lambda d: mjx.rollout(m, d, steps=3)[0])(d.replace(qvel=qvel))
    return jnp.sum(after.qpos**2) + 0.1 * jnp.sum(after.qvel**2)

  slope = jax.grad(cost)
  assert count(slope, d.qvel, jit=mjx.jit) == 2
  got = mjx.jit(slope)(d.qvel)
  straight.assert_close(got, by_xla(slope, d.qvel, jit=mjx.jit), double=1e-7)
  way, h = np.random.default_rng(0).normal(size=d.qvel.shape), 1e-6
  value = mjx.jit(cost)
  ahead, back = (float(value(d.qvel + s * h * way)) for s in (1, -1))
  np.testing.assert_allclose(jnp.sum(got * way), (ahead - back) / (2 * h), rtol=1e-5)


def test_a_float32_model_has_all_lanes(monkeypatch):
  """JAX's numbers of 64 bits are integers alone."""
  assert llvm.is_on()
  lanes, kernel = [], llvm.kernel
  m = mjx.put_model(load("humanoid_mjx"), dtype=np.float32)
  d = jax.tree.map(lambda x: jnp.stack([x] * 5), mjx.make_data(m))
  monkeypatch.setattr(llvm, "kernel", lambda *args: lanes.append(args[-1]) or kernel(*args))
  straight.assert_close(jax.jit(STEP)(m, d), by_xla(STEP, m, d))
  assert [x for x in lanes if x > 1] == [llvm_machine.lanes()]  # what all worlds share has a lane


def test_arm64(monkeypatch):
  """LLVM makes ARM's vectors of two numbers, and calls only what a C library has."""
  assembly = compiled_for("aarch64-unknown-linux-gnu", monkeypatch)
  assert len(re.findall(r"fm(?:ul|la|ls)\s+v\d+\.2d", assembly)) > 100
  called = set(re.findall(r"^\s+bl\s+(\w+)", assembly, re.MULTILINE))
  own = r"part|take|give|work|task|leave|threads|schedule"
  assert {x for x in called if not re.match(own, x)} <= {"fmod", "memcpy", "memset", "malloc", "free", "sched_yield"}


@pytest.mark.core
def test_nothing_is_moved_before_or_after():
  m, d, _ = scene("humanoid_mjx", 9)
  text = jax.jit(STEP).lower(m, d).compile().as_text()
  assert "custom-call" in text and not re.findall(r"(?<!\w)(transpose\(|\w*transpose\w* = )", text)


# ------------------------------------------------------------------------------------------------------------ operations


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("name", straight.FUNCTIONS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=2, deadline=None)
def test_operations(name, lanes, seed):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(llvm_machine, "lanes", lambda: lanes)
    straight.assert_operation(name, run if lanes > 1 else run_one_by_one, seed, np.float64)


@pytest.mark.core
@pytest.mark.parametrize("name", ["exp", "log", "expm1"])
def test_functions_over_their_whole_range(name):
  """Beside NumPy: few units in the last place, for arguments of all sizes. XLA sets numbers below the least normal one to 0."""
  rng, exact = np.random.default_rng(0), getattr(np, name)
  size = 10 ** rng.uniform(-300, 2.85, 100_000)
  x = np.concatenate([size, -size, rng.uniform(-2, 2, 100_000), np.spacing(1.0) * np.arange(1, 100)])
  if name == "log":
    x = np.concatenate(
      [10 ** rng.uniform(-307, 308, 200_000), 1 + rng.uniform(-1e-3, 1e-3, 10_000), rng.uniform(0.5, 2, 100_000)]
    )
  x = x[: len(x) // 8 * 8]
  (got,), right = run(getattr(jnp, name), x[None]), exact(x.astype(np.longdouble))[None]
  is_normal = (np.abs(right) >= np.finfo(float).tiny) & (np.abs(right) <= np.finfo(float).max)
  error = np.abs(np.asarray(got) - right)[is_normal] / np.spacing(np.abs(right[is_normal].astype(float)))
  assert error.max() < 4, x[is_normal[0]][error.argmax()]
  with np.errstate(over="ignore"):
    np.testing.assert_allclose(got[~is_normal], right[~is_normal].astype(float), atol=np.finfo(float).tiny)
  special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 709.7827, 709.79, -708.39, -746, 1e300, -1e300])
  with np.errstate(all="ignore"):
    np.testing.assert_allclose(run(getattr(jnp, name), special[None])[0][0], exact(special), rtol=1e-15, atol=1e-307)


@pytest.mark.parametrize("after", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("before", DTYPES, ids=lambda t: t.__name__)
def test_conversions(before, after):
  """Among all kinds of numbers, for numbers that both have; lanes and constants."""
  x = np.array([[0, 1, 2, 77, 100, 3, 5, 9, 127, 1], [1, 5, 0, 3, 1, 1, 0, 0, 2, 4]]).astype(before)
  if np.issubdtype(before, np.signedinteger) and np.issubdtype(after, np.integer):
    x[0, :4] = -1, -5, np.iinfo(before).max, np.iinfo(before).min  # which wrap around

  def function(x):
    return x.astype(after), jnp.where(x > 1, x, 0).astype(after), jnp.ones_like(x[:1]).astype(after)

  with np.errstate(all="ignore"):
    want = x.astype(after), np.where(x > 1, x, 0).astype(before).astype(after), np.ones((1, 10)).astype(after)
  for a, b in zip(run(function, x), want, strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  for a, b in zip(scalars.constants(jax.make_jaxpr(function)(x), [x]), want, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("integer", [np.int64, np.uint64])
def test_bits(integer):
  x = np.array([[1.5, -0.0, np.inf, -np.nan, 5e-300]])

  def function(x):
    bits = jax.lax.bitcast_convert_type(x, integer)
    return bits, jax.lax.bitcast_convert_type(bits ^ 1, np.float64), bits >> 52, bits << 3, ~bits, bits & 255 | 3

  for a, b in zip(run(function, x), function(x), strict=True):
    np.testing.assert_array_equal(np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64))


def test_functions_of_one_argument():
  x = jnp.array([[0, -0.0, 1, -2, np.inf, -np.inf, np.nan, 1e-300, 2.5, -3.5, 1e18, 0.5]])

  def function(x):
    precise = jax.lax.reduce_precision(x, 11, 52)
    return jnp.isfinite(x), jnp.sign(x), jax.lax.rsqrt(jnp.abs(x)), precise, jnp.round(x), x % 2.3, jnp.copysign(2.0, x), x**-3

  for a, b in zip(run(function, x), function(x), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-15)
  with pytest.raises(scalars.Unsupported, match="fewer bits than float64"):
    program(lambda x: jax.lax.reduce_precision(x, 8, 23), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers(dtype):
  """Of all signs and sizes, to some units in the last place for each unit of the exponent."""
  rng = np.random.default_rng(0)
  x = np.concatenate([10 ** rng.uniform(-6, 6, 100), rng.uniform(-3, 3, 100), np.zeros(8), [np.inf, np.nan, 1, -2]]).astype(
    dtype
  )
  y = np.concatenate([rng.uniform(-3, 3, 100), rng.integers(-5, 6, 100), np.arange(-2, 2, 0.5), [0.4, 0, np.nan, 0]]).astype(
    dtype
  )

  def function(x, y):
    return x**y, jnp.abs(x) ** 0.4, jnp.abs(x) ** -1.5

  got, want = run(function, x[None], y[None]), function(jnp.asarray(x)[None], jnp.asarray(y)[None])
  for a, b in zip(got, want, strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=100 * np.finfo(dtype).eps)


def test_unsigned_integers():
  x = np.array([[7, 1 << 31, (1 << 32) - 1], [2, 3, 5]], np.uint32)
  for a, b in zip(run(lambda x: (x[0] // x[1], x[0] % x[1]), x), (x[0] // x[1], x[0] % x[1]), strict=True):
    np.testing.assert_array_equal(a, b)


def test_integers_of_64_bits():
  """Beyond the range of 32 bits; and the least and the greatest of none."""
  x = np.array([[1 << 40, -7, 3 - (1 << 50), 5], [3, 2, 1 << 33, -4]])

  def function(x):
    none = x[:0]
    parts = x[0] * 3 - x[1], jnp.abs(x), -x, jnp.sum(x, 0), jnp.cumsum(x, 0), jnp.sort(x, 0), jnp.argmax(x, 0), x < 1 << 35
    return *parts, jax.lax.div(x[0], x[1]), jax.lax.rem(x[0], x[1]), jnp.max(none, 0, initial=-5), jnp.all(none == 1, 0)

  for a, b in zip(run(function, x), function(x), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("index", [np.int32, np.int64, np.uint32])
def test_tables_by_any_index(index):
  """Of constants, of inputs, of a loop's state, long and short, of all kinds; an index of 64 bits may be beyond 32."""
  rng = np.random.default_rng(0)
  at = rng.integers(0, 12, (3, 9)).astype(index)
  if index is np.int64:
    at[0, :2] = 1 << 40, -(1 << 40)
  at = at - 1 if index is not np.uint32 else at
  tables = [rng.normal(size=n).astype(t) for n in (5, 12) for t in (np.float64, np.float32)]
  tables += [rng.integers(0, 2, n).astype(t) for n in (4, 11) for t in (np.int64, np.int32, bool)]
  x = rng.normal(size=(12, 9))

  def function(at, x):
    def advance(s):
      return jnp.roll(s[0], 1, axis=0), s[1] + 1, s[2] + jnp.take(s[0], at[0], axis=0, mode="clip")[..., 0]

    looped = jax.lax.while_loop(lambda s: jnp.all(s[1] < 3), advance, (x, x[:1] * 0, 0 * x[:1, 0]))
    found = [jnp.take(t, at, mode="clip") for t in map(jnp.asarray, tables)]
    return *found, jnp.take(x, at[:, 0], axis=0, mode="clip"), looped[2], x.at[at[1, 0]].get(mode="fill", fill_value=7.0)

  for a, b in zip(run(function, at, x), straight.alone(function, at, x), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=1e-14)


def test_constants_that_differ_in_double_precision_alone():
  a, b = 1 / 3, float(np.float32(1 / 3))
  x = np.ones((1, 3))
  for got, want in zip(run(lambda x: (x * a, x * b, x * -0.0 + jnp.float32(a)), x), (a, b, b), strict=True):
    np.testing.assert_array_equal(got, np.full((1, 3), want))
  p = scalars.Program()
  assert len({p.const(a, "d"), p.const(b, "d"), p.const(a, "f"), p.const(0.0, "d"), p.const(-0.0, "d"), p.const(0, "l")}) == 6


# -------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("worlds", [2, 7, 8, 9, 24])
def test_arrays_of_any_size_come_and_go(lanes, worlds, monkeypatch):
  """Numbers of 8, 4 and 1 bytes in one program, of blocks that are full and that are not."""
  monkeypatch.setattr(llvm_machine, "lanes", lambda: lanes)
  rng = np.random.default_rng(worlds)
  xs = [rng.normal(size=(n, worlds)) for n in (1, 3, 4, 5, 8, 31, 0)]
  xs += [rng.integers(0, 9, (n, 2, worlds)).astype(t) for n in (1, 5) for t in (np.int64, np.int32, np.float32, np.uint64)]

  def function(*xs):  # the first half of each too: of an array some numbers are read
    return [y for x in xs for y in (x[::-1] + 1, x[: (len(x) + 1) // 2] * 2, x > 0.5)]

  for a, b in zip(run(function, *xs), function(*xs), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lanes", [4, 16])
def test_numbers_that_other_parts_want(monkeypatch, lanes):
  monkeypatch.setattr(llvm, "_PART", 10)
  monkeypatch.setattr(llvm_machine, "lanes", lambda: lanes)
  x = np.random.default_rng(0).normal(0, 1, (24, 19))
  for a, b in zip(run(straight.put_away, x), straight.alone(straight.put_away, x), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("threads, room", [(None, 1), (2, 3), (8, 5)])
def test_threads_share_the_worlds(threads, room):
  """Each world is computed once, in blocks of eight."""
  worlds = 8 * room + 3
  x = np.random.default_rng(room).normal(size=(worlds, 30))
  p, outs, _ = program(lambda x: jnp.cumsum(x * x, 0), x.T)
  made = llvm_machine.target("mjx_lite", llvm._key(p, [30], outs, 4), lambda: llvm.kernel(p, [30], outs, 4))
  assert made.used == [0] and made.size % 64 == 0
  out, memory = ffi_pool.empty(x.shape, np.float64), np.zeros(made.size * room, np.uint8)
  pool = ffi_pool.Pool(threads, "threads")
  pool.call(llvm_machine._made[made.name][1].get_function_address("step"), [x], [out, memory])
  np.testing.assert_allclose(out, np.cumsum(x * x, 1), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_programs_of_32_bits_have_nothing_of_64(dtype):
  p, outs, _ = program(lambda x: jnp.cumsum(x * x, 0) > 3, np.ones((30, 5), dtype))
  functions, handler, _, _ = llvm.kernel(p, [30], outs, 4)
  texts = "\n".join((*functions, handler))
  assert ("%eight" in texts) == ("double" in texts) == ("take8" in texts) == (dtype == np.float64)
