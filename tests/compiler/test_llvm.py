"""A world in a lane: what a kernel of machine code computes is what XLA computes, and C."""

import contextlib
import gc
import os
import re
import subprocess
import sys
import textwrap

import ffi_pool
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_tests import by_xla, compiled_for, count, run, run_one_by_one, states
from models import load

import mjx_lite as mjx
from mjx_lite.compiler import kernels, scalars
from mjx_lite.compiler.backends import llvm, llvm_machine
from mjx_lite.testing.compare import optimal

pytestmark = pytest.mark.usefixtures("single_precision")


SCENES = ("joints", "yielding", "actuators", "tendon_limits", "humanoid_mjx")
MORE = ("transmissions", "tendons", "media", "equalities", "trees", "diagexact", "delays", "sensor_delays", "tendon_armature",
        "quadruped", "humanoid", "humanoids_1")  # fmt: skip


# joints of all types and limits; elliptic cones, Newton's iterations; muscles; contacts; a real humanoid
@pytest.mark.parametrize("scene", [*SCENES, *(pytest.param(x, marks=pytest.mark.slow) for x in MORE)])
def test_a_step(scene):
  """All of Data, of as many worlds as fill a block and some more; and accelerations beside C's."""
  mj_model = optimal(load(scene))
  m = mjx.put_model(mj_model, dtype=np.float32)
  d, qacc = states(mj_model, m, 19)
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  assert count(step, m, d) == 1
  got = jax.jit(step)(m, d)
  straight.assert_close(got, by_xla(step, m, d))
  off = np.abs(got.qacc - qacc).max(axis=1) / (1 + np.abs(qacc).max(axis=1))
  assert np.median(off) < 2e-4 and off.max() < 2e-2, off


@pytest.mark.parametrize("number", [1, 2, 16, 33])
def test_worlds_are_as_alone(number):
  """However many fill no block, each is what it is among others."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 33)
  step = jax.jit(jax.vmap(mjx.step, in_axes=(None, 0)))
  want, first = step(m, d), jax.tree.map(lambda x: x[:number], d)
  for a, b in zip(jax.tree.leaves(step(m, first)), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b[:number], rtol=2e-6, atol=2e-6)
  one, alone = jax.tree.map(lambda x: x[number - 1], d), jax.jit(mjx.step)
  assert count(mjx.step, m, one) == 1
  for a, b in zip(jax.tree.leaves(alone(m, one)), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b[number - 1], rtol=2e-6, atol=2e-6)


def test_models_of_their_own():
  """Each world with a mass and a time step of its own: what all share is the rest of the model."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 19)
  share = jnp.linspace(0.5, 1.5, 19)

  def step(m, d, share):
    m = m.replace(body_mass=share * m.body_mass, opt=m.opt.replace(timestep=share * m.opt.timestep))
    return mjx.step(m, d).qvel

  step = jax.vmap(step, in_axes=(None, 0, 0))
  assert count(step, m, d, share) == 1
  straight.assert_close(jax.jit(step)(m, d, share), by_xla(step, m, d, share))


@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_a_rollout(integrator, monkeypatch):
  """One kernel with the loop, and with the loop inside of a step, where they are too long to be unrolled."""
  monkeypatch.setattr(llvm, "LOOP", 1000)
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING.replace("<mujoco>", f'<mujoco><option integrator="{integrator}"/>'))
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 19)
  rollout = jax.vmap(lambda m, d: mjx.rollout(m, d, steps=30, record=("qpos", "time")), in_axes=(None, 0))
  assert count(rollout, m, d) == 1 and "while" not in jax.jit(rollout).lower(m, d).as_text()
  straight.assert_close(jax.jit(rollout)(m, d), by_xla(rollout, m, d))


def test_a_rollout_of_one_step_is_no_loop(monkeypatch):
  monkeypatch.setattr(llvm, "LOOP", 1000)
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 19)
  rollout = jax.vmap(lambda m, d: mjx.rollout(m, d, steps=1, record=("qpos", "time")), in_axes=(None, 0))
  assert count(rollout, m, d) == 1
  straight.assert_close(jax.jit(rollout)(m, d), by_xla(rollout, m, d))


@pytest.mark.parametrize("worlds", [1, 19])
@pytest.mark.parametrize("steps", [30, 31])
def test_a_rollout_with_rows_for_several_kernels(steps, worlds, monkeypatch):
  """A loop around a kernel with some steps, as many as their rows fit; of a prime number of steps each has its kernel."""
  monkeypatch.setattr(kernels, "_ROWS", 50)
  monkeypatch.setattr(llvm, "LOOP", 1000)
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, worlds)
  controls = jnp.asarray(np.random.default_rng(0).normal(size=(worlds, steps, m.nu)), jnp.float32)
  found = []
  at_once = kernels.Kernels._at_once
  monkeypatch.setattr(kernels.Kernels, "_at_once", lambda self, e: found.append(at_once(self, e)) or found[-1])
  rollout = jax.vmap(lambda m, d, c: mjx.rollout(m, d, c, record=("qpos", "time")), in_axes=(None, 0, 0))
  assert count(rollout, m, d, controls) == 1 and "while" in jax.jit(rollout).lower(m, d, controls).as_text()
  size = m.nu + m.nq + 1
  assert set(found) == {max(k for k in range(1, steps) if steps % k == 0 and k * size <= 50)} and 2 * size <= 50
  straight.assert_close(jax.jit(rollout)(m, d, controls), by_xla(rollout, m, d, controls))


HINGE = "<mujoco><worldbody><body><joint axis='0 1 0' damping='.1'/><geom size='.1' pos='0 0 -.5'/></body></worldbody></mujoco>"


@pytest.mark.core
@pytest.mark.parametrize("steps", [64, 65, 200])
def test_a_long_rollout_of_a_small_model(steps):
  """The loop is in the kernel; so is that of its gradient."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(HINGE))
  d = jax.vmap(lambda v: mjx.make_data(m).replace(qvel=v))(jnp.linspace(-1, 1, 5)[:, None])

  def end(v):
    return jax.vmap(lambda d: mjx.rollout(m, d, steps=steps)[0].qpos)(d.replace(qvel=v))

  assert count(end, d.qvel) == 1
  assert "while" not in jax.jit(end).lower(d.qvel).as_text()
  straight.assert_close(jax.jit(end)(d.qvel), by_xla(end, d.qvel))
  slope = jax.grad(lambda v: end(v).sum())
  assert mjx.jit(slope).lower(d.qvel).as_text().count("custom_call @mjx_lite_") > 0
  straight.assert_close(mjx.jit(slope)(d.qvel), by_xla(slope, d.qvel))


_ROLLOUT = jax.vmap(lambda m, d: mjx.rollout(m, d, steps=10, record=("qpos",)), in_axes=(None, 0))
_STEP = jax.vmap(mjx.step, in_axes=(None, 0))


def _traces():
  """How many traces JAX has not freed."""
  gc.collect()
  return sum(type(x).__name__ == "DynamicJaxprTrace" and bool(x.frame.tracing_eqns) for x in gc.get_objects())


@pytest.mark.parametrize("case", ["rollout", "step", "no kernel"])
def test_gradient(case, monkeypatch):
  """With respect to each world's state, and to what all share; where it is too long for kernels it is the same.

  And no trace stays, as that of an attempt would.
  """
  m = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING))
  d, _ = states(mujoco.MjModel.from_xml_string(straight.SWING), m, 19)

  def energy(qvel, mass):
    start = m.replace(body_mass=mass), d.replace(qvel=qvel)
    if case == "rollout":
      after, record = _ROLLOUT(*start)
      return jnp.sum(after.qvel**2) + jnp.sum(record["qpos"])
    return jnp.sum(_STEP(*start).qvel ** 2)

  def slope(f):  # of another function each time: JAX remembers what it made of one
    return mjx.jit(jax.value_and_grad(lambda *x: f(*x), argnums=(0, 1)))

  before = _traces()
  with pytest.MonkeyPatch.context() as patch:
    if case == "no kernel":
      patch.setattr(llvm, "_MAX_OPERATIONS", 20)
    is_slow = pytest.warns(mjx.SlowPathWarning, match="a kernel of") if case == "no kernel" else contextlib.nullcontext()
    with is_slow:
      lowered = slope(energy).lower(d.qvel, m.body_mass)
    assert lowered.as_text().count("custom_call @mjx_lite_") == (0 if case == "no kernel" else 2)
    got = lowered.compile()(d.qvel, m.body_mass)
  assert _traces() == before
  monkeypatch.setattr(llvm, "_IS_WANTED", False)
  straight.assert_close(got, slope(energy)(d.qvel, m.body_mass))


def test_what_is_constant_is_so_in_gradients(monkeypatch):
  """Loops that count with constants are written out where JAX found them outside of what is differentiated, too."""
  mj_model = load("transmissions")
  m = mjx.put_model(mj_model, dtype=np.float32)
  d, _ = states(mj_model, m, 3)
  assert llvm.is_on()  # the probe has kernels too
  kernel, operations = llvm.kernel, []

  def counted(p, sizes, outs, lanes):
    if lanes > 1:  # not what all worlds share
      operations.append(p.op)
    return kernel(p, sizes, outs, lanes)

  monkeypatch.setattr(llvm, "kernel", counted)
  jax.jit(_STEP).lower(m, d)
  (own,) = (op.count("loop") for op in operations)  # of the solver, which ends when it is done
  operations.clear()
  mjx.jit(jax.grad(lambda qvel: jnp.sum(_STEP(m, d.replace(qvel=qvel)).qvel ** 2))).lower(d.qvel)
  forward, backward = (op.count("loop") for op in operations)
  assert own > 0 and forward <= own and backward == 0


def test_a_bad_world_is_marked_alone():
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 19)
  d = d.replace(qvel=d.qvel.at[3, 0].set(jnp.nan))
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  got = jax.jit(step)(m, d)
  straight.assert_close(got, by_xla(step, m, d))
  assert np.flatnonzero(np.asarray(got.status.count).sum(axis=-1)).tolist() == [3]


# ------------------------------------------------------------------------------------------------------------ operations


@pytest.mark.core
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_writes_at_a_computed_index(mode):
  """Set and add, of a row and of a column; beyond the rows nothing or the last row, as the mode has it."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(6, 4, 19)).astype(np.float32)
  at = rng.integers(0, 4, 19) if mode == "promise_in_bounds" else rng.integers(-2, 12, 19)

  def function(x, at):
    at = at[0, 0]
    row, column = x.at[at, 1].set(x[0, 0], mode=mode), x.at[2:3, at].add(x[:1, 0], mode=mode)
    each = jax.vmap(lambda y, k: y.at[k].add(y[:1, 0], mode=mode))(x, jnp.stack([at, at + 1, at, at, at, at]))
    return row, column, each, x.at[jnp.stack([at, at])].add(x[:2], mode=mode)

  for a, b in zip(run(function, x, at[None].astype(np.int32)), straight.alone(function, x, at[None]), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize("number", [1, 2, 3, 17, 145])
def test_sorting(number):
  """Numbers that are often equal: stable, by two keys, and with numbers that follow."""
  x = np.floor(3 * np.random.default_rng(number).normal(size=(number, 19))).astype(np.float32)

  def function(x):
    by_two = jax.lax.sort((x, jnp.cumsum(x, 0), 2 * x), dimension=0, num_keys=2, is_stable=False)
    return jnp.sort(x, 0), jnp.argsort(x, 0), *by_two, *jax.lax.sort((x, jnp.cumsum(x, 0), 2 * x), dimension=0, num_keys=1)

  for a, b in zip(run(function, x), function(x), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("number", [1, 3, 17])
def test_the_largest_and_what_is_reached_so_far(number):
  """Numbers that are often equal; and arrays that are repeated."""
  x = np.floor(3 * np.random.default_rng(number).normal(size=(2, number, 19))).astype(np.float32)

  def function(x):
    largest = [jnp.moveaxis(y, 2, 1) for y in jax.lax.top_k(jnp.moveaxis(x, 1, 2), (number + 1) // 2)]
    so_far = [f(x, axis=1, reverse=r) for f in (jax.lax.cummax, jax.lax.cummin, jax.lax.cumprod) for r in (False, True)]
    return *largest, *so_far, jnp.tile(x, (2, 3, 1))

  for a, b in zip(run(function, x), function(x), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
@pytest.mark.parametrize("name", straight.FUNCTIONS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=2, deadline=None)
def test_operations(name, lanes, seed):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(llvm_machine, "lanes", lambda: lanes)
    straight.assert_operation(name, run if lanes > 1 else run_one_by_one, seed)


@pytest.mark.parametrize("lanes", [4, 8])
def test_numbers_that_other_parts_want(monkeypatch, lanes):
  monkeypatch.setattr(llvm, "_PART", 10)
  monkeypatch.setattr(llvm_machine, "lanes", lambda: lanes)
  x = np.random.default_rng(0).normal(0, 1, (24, 33)).astype(np.float32)
  for a, b in zip(run(straight.put_away, x), straight.alone(straight.put_away, x), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("worlds", [2, 15, 16, 17, 48])
def test_arrays_of_any_size_come_and_go(lanes, worlds, monkeypatch):
  """A block is moved a few rows at a time where it is full, and number by number where it is not; flags are bytes."""
  monkeypatch.setattr(llvm_machine, "lanes", lambda: lanes)
  rng = np.random.default_rng(worlds)
  xs = [rng.normal(size=(n, worlds)).astype(np.float32) for n in (1, 3, 4, 5, 8, 31, 0)]
  xs += [rng.integers(0, 9, (n, 2, worlds)).astype(np.int32) for n in (1, 5)]

  def function(*xs):  # the first half of each too: of an array some numbers are read
    return [y for x in xs for y in (x[::-1] + 1, x[: (len(x) + 1) // 2] * 2, x > 0.5)]

  for a, b in zip(run(function, *xs), function(*xs), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.core
@pytest.mark.parametrize("room", [1, 3, 5])
@pytest.mark.parametrize("threads, mode", [
  (None, "threads"), (1, "threads"), (2, "threads"), (8, "threads"), (8, "inline"), (8, "late"), (8, "refused"),
])  # fmt: skip
def test_threads_share_the_worlds(threads, mode, room):
  """Whatever the pool does with tasks, each world is computed once, and the handler waits for no task that has not begun."""
  rng, worlds = np.random.default_rng(room), 16 * room + 3
  x = rng.normal(size=(worlds, 30)).astype(np.float32)
  closed = jax.make_jaxpr(lambda x: jnp.cumsum(x * x, 0))(jax.ShapeDtypeStruct((30, 1), np.float32))
  p = scalars.Program()
  outs = p.run(closed, [p.inputs(0, (30, 1), np.float32, True)])
  made = llvm_machine.target("mjx_lite", llvm._key(p, [30], outs, 8), lambda: llvm.kernel(p, [30], outs, 8))
  size = made.size
  assert made.used == [0] and size % 64 == 0
  out, memory, pool = ffi_pool.empty(x.shape, np.float32), np.zeros(size * room, np.uint8), ffi_pool.Pool(threads, mode)
  pool.call(llvm_machine._made[made.name][1].get_function_address("step"), [x], [out, memory])
  np.testing.assert_allclose(out, np.cumsum(x * x, 1), rtol=1e-5)
  wanted = 0 if room == 1 else min(threads or 1, room) - 1
  assert len(pool.tasks) == (0 if mode == "refused" else wanted)
  assert pool.errors == (wanted if mode == "refused" else int(threads is None and room > 1))
  if mode == "late":
    out[:], memory[:] = 77, 77
    for task in pool.tasks:
      task()
    assert (out == 77).all() and (memory == 77).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 6])
def test_loops_of_kernels(at_once, reverse, monkeypatch):
  """A loop of kernels with one or some iterations: arrays that iterations read and make are per-world or shared."""
  rng = np.random.default_rng(0)
  worlds, length = 20, 6
  monkeypatch.setattr(kernels, "_ROWS", at_once * 11)
  start, rows, force = (rng.normal(size=(worlds, *s)).astype(np.float32) for s in ((2,), (length, 4), (2, 3)))
  table = rng.normal(size=(length, 2)).astype(np.float32)

  def one(table, start, rows, force):  # of one world, whose axis comes last
    def advance(x, row):
      y = jnp.sqrt(jnp.abs(x)) + row[0][:, None] + row[1][:2] + jnp.sum(force, 1)
      return y, (y * 2, row[1][1:])

    return jax.lax.scan(advance, start, (table, rows), reverse=reverse)

  wide = [table, *(x[..., None] for x in (start[0], rows[0], force[0]))]
  closed = jax.make_jaxpr(lambda *x: jax.tree.leaves(one(*x)))(*wide)
  builder = kernels.Kernels(llvm.call, worlds, loop=1, on_cpu=True)
  got = jax.jit(lambda *x: builder.evaluate(closed, x))
  assert got.lower(table, start, rows, force).as_text().count("stablehlo.while") == (at_once < length)
  want = jax.vmap(lambda *x: [y[..., 0] for y in jax.tree.leaves(one(table, *(z[..., None] for z in x)))])(start, rows, force)
  for a, b in zip(got(table, start, rows, force), want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.core
@pytest.mark.parametrize("jit", [jax.jit, mjx.jit])
def test_nothing_is_moved_before_or_after(jit):
  """A kernel reads and writes arrays as users have them: XLA transposes none, which it would compile one by one."""
  mj_model = load("humanoid_mjx")
  m = mjx.put_model(mj_model)
  d, _ = states(mj_model, m, 17, every=1)
  text = jit(jax.vmap(mjx.step, in_axes=(None, 0))).lower(m, d).compile().as_text()
  assert "custom-call" in text and not re.findall(r"(?<!\w)(transpose\(|\w*transpose\w* = )", text)


def test_what_worlds_share_is_a_kernel(monkeypatch):
  """XLA has no operations of the model's tables; operations without a scalar form, and too many numbers, stay XLA's."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING))
  d = jax.tree.map(lambda x: jnp.stack([x] * 5), mjx.make_data(m))

  def lowered():
    return jax.jit(jax.vmap(lambda m, d: mjx.step(m, d), in_axes=(None, 0))).lower(m, d)

  found = lowered()
  assert found.as_text().count("custom_call @mjx_shared_") == 1 and "stablehlo.multiply" not in found.as_text()
  want = found.compile()(m, d)
  for name, value in (("_SHARED", 0), ("_together", None)):
    with monkeypatch.context() as patch:
      if name == "_SHARED":
        patch.setattr(kernels, name, value)
      else:
        together = kernels.Kernels._together

        def one_world_refused(self, closed, inputs, together=together):
          if self.worlds == 1:
            raise scalars.Unsupported("as an operation without a rule")
          return together(self, closed, inputs)

        patch.setattr(kernels.Kernels, name, one_world_refused)
      other = lowered()
    assert "@mjx_shared_" not in other.as_text() and other.as_text().count("custom_call @mjx_lite_") == 1
    straight.assert_close(other.compile()(m, d), want)


def test_what_is_not_a_number_stays_that():
  """The less and the greater, as in JAX, of whichever is not."""
  x = np.array([[np.nan, 1, np.nan, 2], [1, np.nan, np.nan, 3]], np.float32)

  def both(x):
    return jnp.minimum(x[0], x[1]), jnp.maximum(x[0], x[1]), jnp.minimum(x, 2.5), jnp.maximum(2.5, x)

  for a, b in zip(run(both, x), straight.alone(both, x), strict=True):
    np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------------- where there is none


def test_too_long_a_step_is_xlas(monkeypatch):
  monkeypatch.setattr(llvm, "_MAX_OPERATIONS", 20)
  with pytest.raises(scalars.Unsupported, match=r"a kernel of \d+ operations"):
    run(lambda x: jnp.cumsum(x * x, 0), np.ones((20, 3), np.float32))
  m = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING))
  d = jax.tree.map(lambda x: jnp.stack([x] * 3), mjx.make_data(m))
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  with pytest.warns(mjx.SlowPathWarning, match=r"step takes a slower path .* a kernel of \d+ operations"):
    assert count(step, m, d) == 0
  assert jax.jit(step)(m, d).qpos.shape == (3, 2)  # it is said once


def test_models_whose_kernels_have_loops():
  """Searches for contacts, and capacities."""
  swing = mujoco.MjModel.from_xml_string(straight.SWING)
  assert not mjx.put_model(swing).why_not_straight
  assert "capacities" in mjx.put_model(swing, ncon_max=1).why_not_straight
  assert "searched" in mjx.put_model(load("convex")).why_not_straight
  assert "contact slots" in mjx.put_model(load("pairs")).why_not_straight
  with jax.enable_x64(True):
    assert not mjx.put_model(swing).why_not_straight


@pytest.mark.parametrize("triple, vectors_of_four", [
  ("aarch64-unknown-linux-gnu", r"fm(ul|la|ls)\s+v\d+\.4s"), ("arm64-apple-macosx", r"fm(ul|la|ls)\.4s\s+v\d+"),
])  # fmt: skip
def test_arm64(triple, vectors_of_four, monkeypatch):
  """The code of a step is not for x86 alone: LLVM makes ARM's vectors of it, and calls only what a C library has."""
  assembly = compiled_for(triple, monkeypatch)
  assert len(re.findall(vectors_of_four, assembly)) > 100
  called = {x.lstrip("_") for x in re.findall(r"^\s+bl\s+(\w+)", assembly, re.MULTILINE)}
  own = r"part|take|give|work|task|leave|threads|schedule"
  assert {x for x in called if not re.match(own, x)} <= {"fmodf", "memcpy", "memset", "malloc", "free", "sched_yield"}


def test_a_processor_of_which_llvm_tells_nothing(monkeypatch):
  """As on some machines with ARM processors: four numbers in a vector."""
  library = llvm_machine.library()
  llvm_machine.host.cache_clear()

  def silent():
    raise RuntimeError("no features")

  monkeypatch.setattr(library, "get_host_cpu_features", silent)
  try:
    assert llvm_machine.lanes() == 4
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_allclose(run(lambda x: x * x + 1, x)[0], x * x + 1, rtol=1e-6)
  finally:
    llvm_machine.host.cache_clear()


def test_exported_steps_have_none():
  """They are loaded where the machine code is not."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING))
  d = mjx.make_data(m)
  exported = jax.export.export(jax.jit(mjx.step))(m, d)
  assert "mjx_lite_" not in exported.mlir_module()
  straight.assert_close(jax.export.deserialize(exported.serialize()).call(m, d), jax.jit(mjx.step)(m, d))


# ---------------------------------------------------------------------------------------------------- other processes' flags


def _process(code, **env):
  command = [sys.executable, "-c", textwrap.dedent(code)]
  done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout


_CODE = f"""
  import jax, numpy as np, mujoco, mjx_lite as mjx
  from mjx_lite.compiler.backends import llvm
  m = mjx.put_model(mujoco.MjModel.from_xml_string('''{straight.SWING}'''))
  d = jax.tree.map(lambda x: jax.numpy.stack([x] * 32), mjx.make_data(m))
  step = jax.vmap(mjx.step, in_axes=(None, 0))
"""


def test_none_if_the_user_says_so():
  code = _CODE + "\n  print(llvm.is_on(), jax.jit(step).lower(m, d).as_text().count('@mjx_lite_'))"
  assert _process(code, MJX_LITE_KERNELS="0").split() == ["False", "0"]
  assert _process(code).split() == ["True", "1"]


def test_worlds_divided_among_devices():
  """In `shard_map` each device has its kernel's worlds; XLA, which divides arrays by itself, cannot divide a kernel."""
  code = (
    _CODE
    + """
  spec, mesh = jax.sharding.PartitionSpec, jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",))
  shared = dict(mesh=mesh, in_specs=(spec(), spec("worlds")), out_specs=spec("worlds"), check_vma=False)
  moved = lambda m, d: step(m, d).qvel  # not all of Data: JAX 0.11.2 cannot divide arrays without numbers
  split = jax.jit(jax.shard_map(moved, **shared))
  a, b = split(m, d), jax.jit(moved)(m, d)
  counts = [jax.jit(f).lower(m, d).as_text().count("@mjx_lite_") for f in (split, moved)]
  print(*counts, float(abs(a - b).max()), len(a.sharding.device_set))
"""
  )
  flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
  found = _process(code, XLA_FLAGS=flags).split()
  assert found[:2] == ["1", "0"] and float(found[2]) < 1e-5 and found[3] == "4"
