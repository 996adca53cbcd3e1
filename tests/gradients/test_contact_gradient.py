"""Modes of contact gradients: the same values, other derivatives."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

MODES = ("exact", "smooth", "from_distance")
BILLIARD = """
<mujoco>
  <option gravity="0 0 0" timestep="0.01" cone="{cone}"/>
  <default><geom type="sphere" size="0.1" mass="1" condim="{condim}" solref="-4000 -5"/></default>
  <worldbody>
    <body name="cue"><joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/><geom/></body>
    <body name="ball" pos="1 0.28 0">
      <joint name="u" type="slide" axis="1 0 0"/><joint name="v" type="slide" axis="0 1 0"/><geom/>
    </body>
  </worldbody>
</mujoco>
"""
STEPS = 80


def billiard(mode, condim=1, cone="pyramidal", reach=0.05):
  model = mujoco.MjModel.from_xml_string(BILLIARD.format(condim=condim, cone=cone))
  return mjx.put_model(model, contact_gradient=mode, contact_reach=reach)


def _end(m, velocity):
  """Where the ball is in the end, when the cue ball starts with a velocity (2,)."""
  d = mjx.make_data(m)
  after, _ = mjx.rollout(m, d.replace(qvel=d.qvel.at[:2].set(velocity)), steps=STEPS, record=())
  return after.qpos[2:]


@pytest.mark.parametrize("cone, condim", [pytest.param("pyramidal", 3, marks=pytest.mark.slow), ("elliptic", 3)])
def test_values_do_not_depend_on_the_mode(cone, condim):
  """Bit by bit, in a collision too; the program without derivatives is the same."""
  velocity = jnp.array([2.0, 0.4])
  models = [billiard(mode, condim, cone) for mode in MODES]
  ends = [jax.jit(_end)(m, velocity) for m in models]
  assert np.abs(ends[0]).max() > 0.01
  for end in ends[1:]:
    np.testing.assert_array_equal(end, ends[0])
  lowered = {jax.jit(lambda d, m=m: mjx.step(m, d)).lower(mjx.make_data(m)).as_text() for m in models}
  assert len(lowered) == 1


@pytest.mark.parametrize("cone, condim", [("pyramidal", 1), pytest.param("elliptic", 3, marks=pytest.mark.slow)])
def test_a_miss_has_a_gradient_from_distance_only(cone, condim):
  velocity = jnp.array([2.0, 0.0])
  slope = {mode: jax.jit(jax.jacfwd(_end, argnums=1))(billiard(mode, condim, cone), velocity) for mode in MODES}
  back = jax.jit(jax.jacrev(_end, argnums=1))(billiard("from_distance", condim, cone), velocity)
  np.testing.assert_allclose(back, slope["from_distance"], rtol=1e-9, atol=1e-9)
  assert not slope["exact"].any()
  assert all(np.isfinite(x).all() for x in slope.values())
  # the ball is pushed forwards, the more so the higher the cue ball passes
  assert slope["from_distance"][0, 1] > 1e-3


def test_while_touching_far_from_others_all_modes_agree():
  """A deep contact: the weights are 1 there."""
  m = billiard("exact")
  d = mjx.make_data(m).replace(qpos=jnp.array([0.85, 0.25, 0.0, 0.0]), qvel=jnp.array([0.5, 0.1, 0.0, 0.0]))
  f = lambda m, qpos: mjx.step(m, d.replace(qpos=qpos)).qvel  # noqa: E731
  exact, smooth, far = (jax.jit(jax.jacrev(f, argnums=1))(billiard(mode, reach=1e-3), d.qpos) for mode in MODES)
  np.testing.assert_allclose(far, exact, rtol=1e-9, atol=1e-9)
  np.testing.assert_allclose(smooth, exact, rtol=1e-6, atol=1e-6)


def test_billiard():
  """Gradient descent hits a ball that the first shot misses, and sends it to its place."""
  m, target = billiard("from_distance", reach=0.1), jnp.array([0.3, 0.2])
  loss = jax.jit(jax.value_and_grad(lambda v: jnp.sum((_end(m, v) - target) ** 2)))
  velocity = jnp.array([2.0, 0.0])
  first, best = float(loss(velocity)[0]), np.inf
  for _ in range(60):
    value, grad = loss(velocity)
    best = min(best, float(value))
    velocity = velocity - 0.3 * grad / jnp.maximum(1, jnp.linalg.norm(grad) / 0.3)
  assert best < 1e-3 * first


def test_unknown_mode():
  with pytest.raises(ValueError, match="contact_gradient has to be one of exact, smooth, from_distance"):
    billiard("soft")


STEP = """
<mujoco>
  <option gravity="0 0 0" timestep="0.01" cone="{cone}" integrator="{integrator}"/>
  <worldbody>
    <geom type="plane" size="1 1 1" condim="{condim}"/>
    <body pos="0 0 0.1"><freejoint/><geom size="0.1" mass="1" condim="1" solref="0.05 0.7" solimp="0.5 0.9 0.01"/></body>
    <body pos="2 0 0.1"><joint type="slide" axis="1 0 1"/><geom size="0.1" mass="1" condim="1"/></body>
  </worldbody>
</mujoco>
"""


def one_step(cone, integrator="Euler", condim=3, **options):
  spec = mujoco.MjSpec.from_string(STEP.format(cone=cone, integrator=integrator, condim=condim))
  spec.geoms[2].condim = 4  # more than one condim: with a capacity, slots take that of what touches
  return mjx.put_model(spec.compile(), contact_gradient="from_distance", contact_reach=0.05, **options)


@jax.jit
def over_velocity(m, height):
  """Derivative of the next velocity by the velocity, with the first sphere at a distance from the plane."""
  d = mjx.make_data(m)
  d = d.replace(qpos=d.qpos.at[2].add(height), qvel=d.qvel.at[:3].set(jnp.array([0.3, -0.2, -0.5])))
  return jax.jacfwd(lambda v: mjx.step(m, d.replace(qvel=v)).qvel)(d.qvel)


@pytest.mark.parametrize("cone", ["pyramidal", pytest.param("elliptic", marks=pytest.mark.slow)])
def test_discrete(cone):
  """A contact that just does not touch has the derivatives of one that just does; further away they fade."""
  m = one_step(cone, "discrete")
  touching, missing, away = (np.asarray(over_velocity(m, x)) for x in (-1e-9, 1e-9, 0.5))
  np.testing.assert_allclose(missing, touching, rtol=1e-5, atol=1e-6)
  assert abs(touching[2, 2] - 1) > 0.1 and 1e-9 < abs(away[2, 2] - 1) < 1e-3


@pytest.mark.slow  # condims chosen at run time are differentiated by test_gradients_and_batches of test_capacity.py too
@pytest.mark.parametrize("cone", ["elliptic", "pyramidal"])
def test_condims_chosen_at_run_time(cone):
  """With a capacity the slots' condims are those of what is near: the same derivatives as with a slot for every pair."""
  fixed, chosen = one_step(cone), one_step(cone, ncon_max=2)
  assert chosen.plan.contact.mixed
  for height in (-1e-3, 2e-2):
    np.testing.assert_allclose(over_velocity(chosen, height), over_velocity(fixed, height), rtol=1e-9, atol=1e-12)
    assert abs(over_velocity(fixed, height)[0, 0] - 1) > 1e-3  # friction is felt


@pytest.mark.parametrize("options", [{"pair_max": 1}, pytest.param({"pair_max": 1, "tile": 0}, marks=pytest.mark.slow)])
def test_pairs_chosen_at_run_time(options):
  """Where few pairs are looked at closely, one that is near and does not touch is among them, and not missed if it is not."""
  spheres = "".join(f'<body pos="{x} 0 0"><freejoint/><geom size="0.1"/></body>' for x in (0, 0.22, 3))
  model = mujoco.MjModel.from_xml_string(f"<mujoco><option gravity='0 0 0'/><worldbody>{spheres}</worldbody></mujoco>")

  def slope(**options):
    m = mjx.put_model(model, contact_gradient="from_distance", contact_reach=0.05, **options)
    d = mjx.make_data(m)
    d = d.replace(qvel=d.qvel.at[6].set(-0.5))  # towards the first

    def after(v):
      out = mjx.step(m, d.replace(qvel=v))
      return out.qvel, out.status.bits

    jacobian, bits = mjx.jit(jax.jacfwd(after, has_aux=True))(d.qvel)
    assert not bits
    return jacobian

  whole = slope()
  assert abs(whole[0, 0] - 1) > 1e-3
  np.testing.assert_allclose(slope(**options), whole, rtol=1e-9, atol=1e-12)
