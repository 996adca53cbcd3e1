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
