"""A world in a thread: what the kernel of a step computes, run here by NumPy, is what XLA computes."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight
from hypothesis import given, settings
from hypothesis import strategies as st
from models import load

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.compiler import paths, scalars
from mjx_lite.compiler.backends import interpret, ptx, ptx_registers

_WORLDS = 5
pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def kernels(monkeypatch):
  """Kernels by NumPy in the place of those of a GPU; returns the texts of those that were made."""
  texts = []

  def call(p, inputs, outs, dtypes, worlds):
    text, used = ptx.kernel(p, len(inputs), outs, worlds)
    texts.append(text)
    shapes = [jax.ShapeDtypeStruct((*x.shape[:-1], worlds), t) for x, t in zip(outs, dtypes, strict=True)]

    def run(*read):
      results = [np.full(s.shape, -77, s.dtype) for s in shapes]
      interpret.run(text, [np.asarray(x) for x in read], results, worlds)
      return results

    every = [*inputs, *map(jnp.asarray, p.tables)]
    return jax.pure_callback(run, shapes, *(every[k] for k in used if k < len(every)))

  monkeypatch.setattr(ptx, "call", call)
  return texts


def _by_threads(function, *args):
  """The function, its calls of the engine as on a GPU."""
  closed = jax.make_jaxpr(function)(*args)
  known = dict(zip(closed.jaxpr.invars, jax.tree.leaves(args), strict=True))
  known.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))

  def read(v):
    return v.val if hasattr(v, "val") else known[v]

  for e in closed.jaxpr.eqns:
    is_native = e.primitive is worlds.native_p
    outs = (worlds._run_on_gpu if is_native else e.primitive.bind)(*map(read, e.invars), **e.params)
    known.update(zip(e.outvars, outs if e.primitive.multiple_results else [outs], strict=True))
  return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(function, *args)), list(map(read, closed.jaxpr.outvars)))


def _batch(mj_model, m, seed=0):
  """Data of some worlds, each in another state, a little below where a trajectory of C has been."""
  rng = np.random.default_rng(seed)
  c = mujoco.MjData(mj_model)
  states = []
  for _ in range(_WORLDS):
    for _ in range(8):
      c.ctrl[:] = rng.uniform(-0.3, 0.3, mj_model.nu)
      mujoco.mj_step(mj_model, c)
    states.append((c.qpos.copy(), c.qvel + rng.normal(0, 0.1, mj_model.nv), c.ctrl.copy(), c.act.copy()))
  d = jax.tree.map(lambda x: jnp.broadcast_to(x, (_WORLDS, *x.shape)), mjx.make_data(m))
  fields = ("qpos", "qvel", "ctrl", "act")
  return d.replace(**{k: jnp.asarray(np.stack(x), jnp.float32) for k, x in zip(fields, zip(*states, strict=True), strict=True)})


def _assert_one_kernel_does_as_xla(function, m, d, kernels):
  got = _by_threads(function, m, d)
  assert len(kernels) == 1
  straight.assert_close(got, jax.jit(function)(m, d), tol=2e-4)


# joints of all types and limits; elliptic cones, Newton's iterations; equalities; tendons that wrap; muscles; RK4 below
@pytest.mark.parametrize("scene", ["joints", "yielding", "actuators", pytest.param("tendons", marks=pytest.mark.slow)])
def test_a_step(scene, kernels):
  mj_model = load(scene)
  m = mjx.put_model(mj_model, dtype=np.float32)
  d = _batch(mj_model, m)
  _assert_one_kernel_does_as_xla(jax.vmap(mjx.step, in_axes=(None, 0)), m, d, kernels)


def test_models_of_their_own(kernels):
  """Each world with a mass and a time step of its own: what all share is the rest of the model."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model, dtype=np.float32)
  d = _batch(mj_model, m)
  share = jnp.linspace(0.5, 1.5, _WORLDS)

  def step(m, d, share):
    m = m.replace(body_mass=share * m.body_mass, opt=m.opt.replace(timestep=share * m.opt.timestep))
    return mjx.step(m, d).qvel

  step = jax.vmap(step, in_axes=(None, 0, 0))
  got = _by_threads(step, m, d, share)
  assert len(kernels) == 1
  np.testing.assert_allclose(got, jax.jit(step)(m, d, share), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_rollout(kernels, monkeypatch, in_pieces):
  """Few steps are one kernel, many a loop of one: with more numbers than a kernel may have."""
  if in_pieces:
    monkeypatch.setattr(ptx, "LOOP", 5_000)
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model, dtype=np.float32)
  d = _batch(mj_model, m)
  rollout = jax.vmap(lambda m, d: mjx.rollout(m, d, steps=3, record=("qpos", "time")), in_axes=(None, 0))
  _assert_one_kernel_does_as_xla(rollout, m, d, kernels)


def test_one_world(kernels):
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model, dtype=np.float32)
  d = jax.tree.map(lambda x: x[2], _batch(mj_model, m))
  _assert_one_kernel_does_as_xla(mjx.step, m, d, kernels)


def _lowered(function, *args):
  return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_what_is_lowered_for_cuda(monkeypatch):
  """One kernel in the loop of a rollout, of what is read alone; none where an operation is not written as numbers."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model, dtype=np.float32, tile=0)
  d = _batch(mj_model, m)

  def state(m, d):
    step = jax.vmap(mjx.step, in_axes=(None, 0))

    def one(s, _):
      after = step(m, d.replace(qpos=s[0], qvel=s[1]))
      return (after.qpos, after.qvel), None

    return jax.lax.scan(one, (d.qpos, d.qvel), length=2)[0]

  text = _lowered(state, m, d)
  assert text.count('"__gpu$xla.gpu.ptx"') + text.count("@__gpu$xla.gpu.ptx") == 1
  (line,) = [x for x in text.splitlines() if "__gpu$xla.gpu.ptx" in x]
  results = line[line.rindex("->") :]
  assert results.count("tensor<") == 2, results  # qpos and qvel
  with monkeypatch.context() as patch:
    patch.delitem(scalars.RULES, "sqrt")
    patch.setattr(paths, "_warned", set())
    with pytest.warns(mjx.SlowPathWarning, match="operation sqrt has no rule"):
      assert "__gpu$xla.gpu.ptx" not in _lowered(lambda m, d: jax.vmap(mjx.step, in_axes=(None, 0))(m, d), m, d)


def _run(function, *args):
  """A function of arrays (..., 1) by threads, of arrays (..., worlds)."""
  closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype) for x in args))
  p = scalars.Program()
  outs = p.run(closed, [p.inputs(k, (*x.shape[:-1], 1), x.dtype, True) for k, x in enumerate(args)])
  width = args[0].shape[-1]
  text, used = ptx.kernel(p, len(args), outs, width)
  results = [np.zeros((*o.shape[:-1], width), a.dtype) for o, a in zip(outs, closed.out_avals, strict=True)]
  every = [*args, *p.tables]
  interpret.run(text, [every[k] for k in used if k < len(every)], results, width)
  return results


@pytest.mark.parametrize("name", straight.FUNCTIONS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=4, deadline=None)
def test_operations(name, seed):
  straight.assert_operation(name, _run, seed)


def test_more_numbers_than_registers(monkeypatch):
  """What is put away comes back, also in a loop and behind it."""
  monkeypatch.setattr(ptx_registers, "_REGISTERS", 8)
  x = np.random.default_rng(0).normal(0, 1, (24, 33)).astype(np.float32)
  for a, b in zip(_run(straight.put_away, x), straight.alone(straight.put_away, x), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_too_long_a_kernel(monkeypatch):
  monkeypatch.setattr(ptx, "_MAX_LINES", 20)
  with pytest.raises(scalars.Unsupported, match=r"a kernel of \d+ lines"):
    _run(lambda x: jnp.cumsum(x * x, 0), np.ones((20, 3), np.float32))


def test_numbers_of_64_bits():
  """They are refused, with the reason; a model of float64 is not tried."""
  with jax.enable_x64(True), pytest.raises(scalars.Unsupported, match=r"no numbers of 64 bits \(float64, int64\)"):
    _run(lambda x: jnp.argmax(x, 0), np.ones((2, 3)))
  assert "float64" in ptx.why_off("float64") and not ptx.why_off("float32")


def test_too_many_numbers(monkeypatch):
  monkeypatch.setattr(scalars, "MAX_NODES", 10)
  with pytest.raises(scalars.Unsupported, match="more than 10 numbers"):
    _run(lambda x: jnp.cumsum(x * x, 0), np.ones((20, 3), np.float32))
