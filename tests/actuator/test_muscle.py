"""The muscles' curves over all of their pieces, which trajectories do not reach."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from models import load

import mjx_lite as mjx


def test_force_over_lengths_and_velocities():
  model = load("actuators")
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  d = d.replace(act=jnp.full_like(d.act, 0.7))
  rng = np.random.default_rng(0)
  length, velocity = rng.uniform(-2, 6, 400), rng.uniform(-8, 8, 400)

  def forces(length, velocity):
    full = lambda x: jnp.full(m.nout, x)  # noqa: E731
    return mjx.fwd_actuation(m, d.replace(actuator_length=full(length), actuator_velocity=full(velocity))).actuator_force

  ours = jax.jit(jax.vmap(forces))(length, velocity)
  for i in (0, 1):
    prm = [model.actuator_lengthrange[i], model.actuator_acc0[i]]
    gain = [mujoco.mju_muscleGain(a, b, *prm, model.actuator_gainprm[i, :9]) for a, b in zip(length, velocity, strict=True)]
    bias = [mujoco.mju_muscleBias(a, *prm, model.actuator_biasprm[i, :9]) for a in length]
    assert np.count_nonzero(gain) > 50 and np.count_nonzero(bias) > 50
    np.testing.assert_allclose(ours[:, i], 0.7 * np.array(gain) + bias, rtol=1e-11, atol=1e-12)
