"""What integrators promise of stability: what they damp implicitly, what not, and that smaller steps cure what diverges."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx
from mjx_lite import Warning

I = mujoco.mjtIntegrator
# a light pendulum with a spring, a damper and a damped tendon, each as strong as the test says
PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body><joint name="a" axis="0 1 0" damping="1" stiffness="1"/><geom size=".05" pos=".2 0 0" mass=".1"/></body>
  </worldbody>
  <tendon><fixed name="t" damping="1"><joint joint="a" coef="1"/></fixed></tendon>
</mujoco>
"""


@functools.partial(jax.jit, static_argnums=5)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0, None))
def run(m, damping, tendon_damping, stiffness, timestep, steps):
  """Speeds along the way, resets and the energy of worlds that differ in these numbers."""
  opt = m.opt.replace(timestep=timestep)
  shape = m.dof_damping.shape, m.tendon_damping.shape, m.jnt_stiffness.shape
  m = m.replace(
    dof_damping=jnp.full(shape[0], damping), tendon_damping=jnp.full(shape[1], tendon_damping),
    jnt_stiffness=jnp.full(shape[2], stiffness), opt=opt,
  )  # fmt: skip
  d = mjx.make_data(m).replace(qvel=jnp.ones(1))

  def step(d, _):
    d = mjx.step(m, d)
    return d, (jnp.abs(d.qvel[0]), d.energy.sum())

  d, (speed, energy) = jax.lax.scan(step, d, None, length=steps)
  return speed, energy, d.status.count[Warning.RESET]


def put(integrator, flags=0):
  model = mujoco.MjModel.from_xml_string(PENDULUM)
  model.opt.integrator, model.opt.disableflags = integrator, flags
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
  return mjx.put_model(model)


def test_stability():
  #        joint damping, tendon damping, divergence by a spring, the same in small steps, a damped swing
  worlds = np.array([[100, 0, 0, 0.01], [0, 100, 0, 0.01], [0, 0, 1e4, 0.01], [0, 0, 1e4, 0.001], [0.01, 0, 1, 0.001]]).T
  speed, energy, resets = (np.asarray(x) for x in run(put(I.mjINT_EULER), *worlds, 400))
  np.testing.assert_array_equal(resets > 0, [False, True, True, False, False])
  assert speed[0, -1] < 0.05  # stiff damping of joints is implicit, that of tendons is not
  assert np.all(np.diff(energy[4]) < 1e-7)
  _, _, resets = run(put(I.mjINT_EULER, int(mjx.DisableBit.EULERDAMP)), *worlds, 400)
  np.testing.assert_array_equal(resets > 0, [True, True, True, False, False])
  speed, _, resets = run(put(I.mjINT_IMPLICITFAST), *worlds, 400)
  np.testing.assert_array_equal(resets > 0, [False, False, True, False, False])
  assert np.all(speed[:2, -1] < 0.05)
