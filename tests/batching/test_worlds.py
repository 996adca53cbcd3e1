"""The world axis: every way to batch reaches the native layout, where it is last."""

import gc
import resource

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.compiler import workarounds


@pytest.fixture(scope="module")
def pendulum():
  m = mjx.put_model(load("trees"))
  return m, mjx.make_data(m)


def native_calls(jaxpr):
  """All applications of the native primitive in a jaxpr, inner ones too."""
  for eqn in jaxpr.eqns:
    if eqn.primitive is worlds.native_p:
      yield eqn
    for p in eqn.params.values():
      for inner in p if isinstance(p, tuple | list) else (p,):
        if hasattr(inner, "jaxpr"):
          inner = inner.jaxpr
        if hasattr(inner, "eqns"):
          yield from native_calls(inner)


def batch(d, n):
  return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), d)


def the_call(f, *args):
  calls = list(native_calls(jax.make_jaxpr(f)(*args).jaxpr))
  assert len(calls) == 1
  return calls[0]


def scan_of_steps(m, d):
  return jax.lax.scan(lambda c, _: (mjx.step(m, c), None), d, None, length=3)[0]


@pytest.mark.parametrize(
  "f",
  [
    lambda m, d: jax.vmap(mjx.step, in_axes=(None, 0))(m, d),
    lambda m, d: jax.vmap(jax.jit(mjx.step), in_axes=(None, 0))(m, d),
    lambda m, d: jax.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, d),
    lambda m, d: jax.vmap(scan_of_steps, in_axes=(None, 0))(m, d),
    lambda m, d: jax.lax.scan(lambda c, _: (jax.vmap(mjx.step, in_axes=(None, 0))(m, c), None), d, None, length=3),
  ],
  ids=["vmap", "vmap_jit", "jit_vmap", "vmap_scan", "scan_vmap"],
)
def test_batching_reaches_the_native_layout(pendulum, f):
  m, d = pendulum
  call = the_call(f, m, batch(d, 5))
  assert call.params["batched"]
  n = call.params["call"].nshared
  assert all(v.aval.shape[-1] == 1 for v in call.invars[:n]), "a shared Model keeps a world axis of size 1"
  assert all(v.aval.shape[-1] == 5 for v in call.invars[n:])
  assert all(v.aval.shape[-1] == 5 for v in call.outvars)


def test_nested_vmap_merges_into_one_axis(pendulum):
  m, d = pendulum
  step = jax.vmap(jax.vmap(mjx.step, in_axes=(None, 0)), in_axes=(None, 0))
  call = the_call(step, m, batch(batch(d, 5), 3))
  assert {v.aval.shape[-1] for v in call.outvars} == {15}


def test_per_world_model_fields_are_batched_alone(pendulum):
  m, d = pendulum

  def f(mass, d):
    return mjx.step(m.replace(body_mass=mass), d)

  mass = m.body_mass * jnp.linspace(1, 2, 5)[:, None]
  call = the_call(jax.vmap(f), mass, batch(d, 5))
  wide = [v.aval.shape for v in call.invars[: call.params["call"].nshared] if v.aval.shape[-1] == 5]
  assert wide == [(m.nbody, 5)]
  out = mjx.jit(jax.vmap(f))(mass, batch(d, 5))
  one = mjx.jit(f)(mass[3], d)
  np.testing.assert_allclose(out.qpos[3], one.qpos, rtol=1e-12, atol=1e-15)


def test_gradient_of_vmap_differentiates_the_native_function(pendulum):
  """A kernel's program is that of one world, whatever the number of worlds."""
  m, d = pendulum
  seen = []

  def native(m, d):
    seen.append(d.qpos.shape)
    return d.qpos * m.opt.timestep

  f = worlds.one_world(native)
  many = batch(d, 4)
  total = lambda q: jax.vmap(f, in_axes=(None, 0))(m, many.replace(qpos=q)).sum()  # noqa: E731
  g = jax.grad(total)(many.qpos)
  assert seen == [(m.nq, 1)]  # traced once, also for the derivative
  np.testing.assert_allclose(g, m.opt.timestep)


def test_output_of_shared_values_belongs_to_every_world(pendulum):
  m, d = pendulum
  f = worlds.one_world(lambda m, d: (m.qpos0, d.qpos))
  shared, own = jax.vmap(f, in_axes=(None, 0))(m, batch(d, 4))
  assert shared.shape == own.shape == (4, m.nq)


def test_gradients_in_every_order_of_transformations(pendulum):
  m, d = pendulum
  f = worlds.one_world(lambda m, d: jnp.sin(d.qvel) * m.opt.timestep)
  one = lambda v: f(m, d.replace(qvel=v)).sum()  # noqa: E731
  v = jnp.linspace(0, 1, 3 * m.nv).reshape(3, m.nv)
  expected = jnp.cos(v) * m.opt.timestep
  np.testing.assert_allclose(jax.vmap(jax.grad(one))(v), expected)
  np.testing.assert_allclose(jax.grad(lambda v: jax.vmap(one)(v).sum())(v), expected)
  np.testing.assert_allclose(jax.jacfwd(one)(v[0]), expected[0])
  np.testing.assert_allclose(jnp.diagonal(jax.hessian(one)(v[0])), -jnp.sin(v[0]) * m.opt.timestep)


@pytest.mark.parametrize(
  ("worlds_", "tile"), [(5, 4), (48, 128), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 4), (8, 4), (35, 128)))]
)
def test_tiles_change_nothing(worlds_, tile):
  whole, tiled = (mjx.put_model(load("trees"), tile=t) for t in (0, tile))
  d = mjx.make_data(whole)
  many = jax.vmap(lambda k: d.replace(qvel=0.1 * jax.random.normal(k, d.qvel.shape)))(
    jax.random.split(jax.random.key(0), worlds_)
  )
  a, b = (mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, many) for m in (whole, tiled))
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


def test_a_model_of_slides_alone_batches():
  # its turns are constants, and so have no world axis of their own
  body = '<body><joint type="slide"/><geom size="0.1"/></body>'
  m = mjx.put_model(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>"))
  d = mjx.make_data(m)
  out = jax.eval_shape(jax.vmap(lambda qpos: mjx.kinematics(m, d.replace(qpos=qpos))), jnp.zeros((3, 1)))
  assert out.xpos.shape == (3, 2, 3) and out.xquat.shape == (3, 2, 4)


def test_eager_calls_are_compiled_as_by_jit(monkeypatch):
  """With the options that suit the engine."""
  made = []
  monkeypatch.setattr(worlds.compiling, "jit", lambda f: made.append(f) or jax.jit(f))
  one = worlds.one_world(lambda m, x: x + 1)
  assert one((), jnp.zeros(3)).shape == (3,) and len(made) == 1
  assert jax.jit(one)((), jnp.zeros(3)).shape == (3,) and len(made) == 1


def test_no_garbage_is_collected_while_a_step_is_lowered():
  m = mjx.put_model(load("pairs"))
  traced, collections = mjx.jit(lambda m, d: mjx.step(m, d)).trace(m, mjx.make_data(m)), []
  threshold = gc.get_threshold()
  assert gc.isenabled()
  gc.callbacks.append(lambda phase, info: collections.append(phase))
  gc.set_threshold(700, 10, 10)  # as Python has it, unlike these tests
  try:
    traced.lower()
  finally:
    gc.set_threshold(*threshold)
    gc.callbacks.pop()
  assert len(collections) < 20  # of what is around the step; of that itself a hundred
  assert gc.isenabled()


def test_calls_take_no_memory_anew_while_a_step_is_traced():
  """However deep the interpreter's stack is: it asks for more where a chunk of it ends, and gives that back, in each call."""

  def faults(depth):
    if depth:
      return faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000):
      absolute(-1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

  def absolute(x):
    return max(x, -x)

  assert max(workarounds.eased(lambda: [faults(depth) for depth in range(300)])()) < 100


@pytest.mark.parametrize("jit", [jax.jit, mjx.jit])
def test_without_jit_the_users_code_sees_values(jit):
  """Under `jax.disable_jit`, by which users look into their own code, the engine stays a program: it called itself before."""
  m = mjx.put_model(load("nothing"))
  d, seen = mjx.make_data(m), []

  def two(d):
    for _ in range(2):
      d = mjx.step(m, d)
      seen.append(float(d.time))  # which a traced value refuses
    return d

  with jax.disable_jit():
    out = jit(two)(d)
    gradient = jax.grad(lambda t: mjx.step(m, d.replace(time=t)).time)(d.time)
  np.testing.assert_allclose(seen, [m.opt.timestep, 2 * m.opt.timestep])
  assert out.time == seen[-1] and gradient == 1


def test_a_batch_that_the_function_closes_over(pendulum):
  m, d = pendulum
  many, step = batch(d, 3), jax.vmap(mjx.kinematics, in_axes=(None, 0))
  np.testing.assert_array_equal(mjx.jit(lambda: step(m, many).xpos)(), mjx.jit(step)(m, many).xpos)


def test_both_precisions_in_one_process(pendulum):
  """JAX keeps NumPy's arrays in the precision in which it met them first, as long as a trace has them."""
  with jax.enable_x64(False):
    m = mjx.put_model(load("trees"))
    assert jax.eval_shape(mjx.forward, m, mjx.make_data(m)).qacc.dtype == np.float32
  assert jax.eval_shape(mjx.forward, *pendulum).qacc.dtype == np.float64
