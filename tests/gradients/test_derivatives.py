"""Derivatives are calls of the engine, as steps are: in all of JAX's transformations, alone and in batches, by every `jit`."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight
from lane_tests import by_xla, count, states
from models import load

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.compiler import paths

WORLDS = 5


@pytest.fixture(params=[np.float32, np.float64], scope="module")
def swing(request):
  """A model with contacts and limits, and states on a trajectory of C."""
  mj_model = mujoco.MjModel.from_xml_string(straight.SWING)
  m = mjx.put_model(mj_model, dtype=request.param)
  return m, states(mj_model, m, WORLDS)[0]


HULLS = """<mujoco><asset><mesh name="wedge" vertex="0 0 0 .2 0 0 0 .2 0 0 0 .2 .2 .2 0"/></asset><worldbody>
  <geom type="plane" size="2 2 .1"/><body pos="0 0 .1"><freejoint/><geom type="mesh" mesh="wedge"/></body>
  <body pos=".02 .01 .28" euler="20 30 0"><freejoint/><geom type="ellipsoid" size=".1 .06 .08"/></body>
  <body pos=".3 0 .1"><freejoint/><geom type="box" size=".1 .08 .1"/></body>
  <body pos=".32 .05 .25"><freejoint/><geom type="cylinder" size=".06 .05"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize(
  ("options", "dtype"),
  [
    ({}, np.float64),
    ({"ncon_max": 12, "pair_max": 6}, np.float32),
    pytest.param({"ncon_max": 12}, np.float64, marks=pytest.mark.slow),
    pytest.param({"ncon_max": 12, "pair_max": 6}, np.float64, marks=pytest.mark.slow),
  ],
)
def test_models_with_hulls_and_capacities(options, dtype):
  """Their derivatives are kernels too, whose loops go over the pairs and the slots that are in use."""
  mj_model = mujoco.MjModel.from_xml_string(HULLS)
  m = mjx.put_model(mj_model, dtype=dtype, **options)
  d = states(mj_model, m, WORLDS, every=25)[0]
  assert m.why_not_straight and int(jnp.max(d.status.bits)) == 0

  def both(m, d):
    jacobian = jax.vmap(mjx.transition_jac, in_axes=(None, 0))(m, d)
    return jax.grad(lambda v: of_batch(m, d, v))(d.qvel), jax.tree.map(lambda x: x[:2], (jacobian.A, jacobian.B))

  with paths.recording() as found:
    got = jax.jit(lambda m, d: both(m, d))(m, d)
  assert {p.path for p in found} == {paths.MACHINE_CODE} and len(found) >= 2
  want = by_xla(both, m, d)
  straight.assert_close(got, want, tol=5e-3, double=1e-7)
  assert np.abs(want[0]).max() > 1


def energy(m, d, qvel):
  return jnp.sum(mjx.step(m, d.replace(qvel=qvel)).qvel ** 2)


def of_batch(m, d, qvel):
  return jnp.sum(jax.vmap(energy, in_axes=(None, 0, 0))(m, d, qvel))


def centred(f, x, eps=1e-6):
  """Differences of a function of a vector, in float64."""
  return np.stack([(f(x + e) - f(x - e)) / (2 * eps) for e in eps * np.eye(len(x))], axis=-1)


TRANSFORMED = {
  "grad of one": lambda m, d: jax.grad(lambda v: energy(m, jax.tree.map(lambda x: x[0], d), v))(d.qvel[0]),
  "grad of a batch": lambda m, d: jax.grad(lambda v: of_batch(m, d, v))(d.qvel),
  "batch of grads": lambda m, d: jax.vmap(jax.grad(energy, argnums=2), in_axes=(None, 0, 0))(m, d, d.qvel),
  "jvp": lambda m, d: jax.jvp(lambda v: mjx.step(m, jax.tree.map(lambda x: x[0], d).replace(qvel=v)).qpos,
                              (d.qvel[0],), (jnp.ones_like(d.qvel[0]),))[1],
  "jacfwd": lambda m, d: jax.vmap(lambda d: jax.jacfwd(lambda v: mjx.step(m, d.replace(qvel=v)).qvel)(d.qvel))(d),
  "jacrev": lambda m, d: jax.vmap(lambda d: jax.jacrev(lambda v: mjx.step(m, d.replace(qvel=v)).qvel)(d.qvel))(d),
  "hvp": lambda m, d: mjx.hvp(lambda v: of_batch(m, d, v), d.qvel, jnp.ones_like(d.qvel)),
  "masses, which all worlds share": lambda m, d: jax.grad(
    lambda mass: of_batch(m.replace(body_mass=mass), d, d.qvel))(m.body_mass),
  "masses, each its own": lambda m, d: jax.grad(lambda mass: jnp.sum(jax.vmap(
    lambda k, d: energy(m.replace(body_mass=k), d, d.qvel))(mass, d)))(jnp.stack([m.body_mass] * WORLDS)),
  "a loop of steps": lambda m, d: jax.grad(lambda v: jnp.sum(jax.lax.scan(
    lambda d, _: (jax.vmap(mjx.step, in_axes=(None, 0))(m, d), None), d.replace(qvel=v), length=3)[0].qpos))(d.qvel),
  "a rollout": lambda m, d: jax.grad(lambda v: jnp.sum(jax.vmap(
    lambda d, v: mjx.rollout(m, d.replace(qvel=v), steps=4, record=("qpos",))[1]["qpos"])(d, v)))(d.qvel),
  "transition_jac": lambda m, d: jax.vmap(mjx.transition_jac, in_axes=(None, 0))(m, d),
}  # fmt: skip


CORE = ("grad of one", "a rollout", "transition_jac")


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.core] * (x in CORE)) for x in TRANSFORMED])
def test_kernels_give_what_xla_gives(name, swing):
  """By plain `jax.jit`, and with nothing but machine code."""
  function = TRANSFORMED[name]
  with paths.recording() as found:
    got = jax.jit(lambda m, d: function(m, d))(*swing)
  assert {p.path for p in found} == {paths.MACHINE_CODE}
  assert any(p.function.startswith("derivative of") for p in found) or name == "transition_jac"
  straight.assert_close(got, by_xla(function, *swing), double=1e-8)


def test_differences(swing):
  m, d = swing
  if m.layout.dtype == "float32":
    pytest.skip("differences need float64")
  one = jax.tree.map(lambda x: x[2], d)
  step = jax.jit(lambda v: mjx.step(m, one.replace(qvel=v)).qvel)
  want = centred(step, one.qvel)
  for jacobian in (jax.jacfwd, jax.jacrev):
    np.testing.assert_allclose(jax.jit(jacobian(step))(one.qvel), want, rtol=1e-6, atol=1e-7)
  slope = jax.jit(jax.grad(lambda v: energy(m, one, v)))
  hessian = jax.jit(jax.hessian(lambda v: energy(m, one, v)))(one.qvel)
  np.testing.assert_allclose(hessian, centred(slope, one.qvel), rtol=1e-5, atol=1e-6)


def test_a_height_field():
  """Its pairs have more than a thousand constant indices. Along a direction, the gradient is that of differences."""
  mj_model = load("hills")
  m = mjx.put_model(mj_model, dtype=np.float64)
  d = states(mj_model, m, 3, every=40)[0]
  along = np.random.default_rng(0).normal(size=d.qvel.shape)
  with paths.recording() as found:
    slope = np.vdot(jax.jit(jax.grad(lambda v: of_batch(m, d, v)))(d.qvel), along)
  assert {p.path for p in found} == {paths.MACHINE_CODE} and int(jnp.max(d.status.most)) > 0
  value = jax.jit(lambda v: of_batch(m, d, v))
  want = (value(d.qvel + 1e-6 * along) - value(d.qvel - 1e-6 * along)) / 2e-6
  np.testing.assert_allclose(slope, want, rtol=1e-6)


def test_eager_calls(swing):
  m, d = swing
  slope = jax.grad(lambda v: of_batch(m, d, v))
  straight.assert_close(slope(d.qvel), jax.jit(slope)(d.qvel))


def test_a_rollouts_gradient_is_that_of_its_steps(swing):
  """One kernel takes the steps forward, and one goes back."""
  m, d = swing

  def slope(m, d):
    return jax.grad(lambda v: jnp.sum(jax.vmap(lambda d: mjx.rollout(m, d, steps=6)[0].qvel)(d.replace(qvel=v))))(d.qvel)

  assert count(slope, m, d) == 2


def _scans(jaxpr):
  for e in jaxpr.eqns:
    if e.primitive.name == "scan":
      yield e
    for inner in jax.extend.core.jaxprs_in_params(e.params):
      yield from _scans(inner)


def test_a_loop_of_steps_stores_states_alone(swing):
  """What the steps read and the solution of the solver; no other number of a step."""
  m, d = swing
  traced = jax.jit(lambda m, d: TRANSFORMED["a loop of steps"](m, d)).trace(m, d)
  forward = next(_scans(traced.jaxpr.jaxpr))
  inside = forward.params["jaxpr"].out_avals
  stored = sum(a.size for v, a in zip(forward.outvars, inside, strict=True) if v.aval.ndim > a.ndim)
  read = sum(getattr(d, k).size for k in mjx.model.types.INPUTS + mjx.model.types.STATE if getattr(d, k) is not None)
  assert 0 < stored <= 2 * read + d.qacc.size


def test_what_does_not_depend_has_no_derivative(swing):
  """Whole numbers, and results of other arguments; what a step passes on has the derivative of the identity."""
  m, d = swing
  one = jax.tree.map(lambda x: x[0], d)
  tangents = jax.jvp(
    lambda u: mjx.step(m, one.replace(qfrc_applied=u)), (one.qfrc_applied,), (jnp.ones(m.nv, m.layout.dtype),)
  )[1]
  assert tangents.contact.geom.dtype == jax.dtypes.float0
  np.testing.assert_array_equal(tangents.xpos, 0)
  np.testing.assert_array_equal(tangents.qfrc_applied, 1)
  own = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING.replace("<mujoco>", '<mujoco><size nuserdata="2"/>')))
  data = jnp.arange(2.0)  # which a step passes on, and does not read
  (_, passed) = jax.jvp(lambda x: mjx.step(own, mjx.make_data(own).replace(userdata=x)).userdata, (data,), (data + 1,))
  np.testing.assert_array_equal(passed, data + 1)
  worlds.clear_caches()
  assert count(lambda m, d: jax.jvp(lambda u: mjx.step(m, one.replace(xfrc_applied=u)).xpos, (one.xfrc_applied,),
                                    (one.xfrc_applied,))[1], m, d) == 0  # fmt: skip
