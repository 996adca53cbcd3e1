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
  <option timestep="0.01" viscosity="1"/>
  <worldbody>
    <body><joint name="a" axis="0 1 0" damping="1" stiffness="1"/><geom size=".05" pos=".2 0 0" mass=".1"/></body>
  </worldbody>
  <tendon><fixed name="t" damping="1"><joint joint="a" coef="1"/></fixed></tendon>
</mujoco>
"""


@functools.partial(jax.jit, static_argnums=6)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, 0, 0, None))
def run(m, damping, tendon_damping, viscosity, stiffness, timestep, steps):
  """Speeds along the way, resets and the energy of worlds that differ in these numbers."""
  opt = m.opt.replace(timestep=timestep, viscosity=viscosity)
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


# P81, P82, P85
def test_stability():
  worlds = np.array(
    [
      [100, 0, 0, 0, 0.01],  # joint damping
      [0, 100, 0, 0, 0.01],  # tendon damping
      [0, 0, 1e4, 0, 0.01],  # viscosity
      [0, 0, 0, 1e4, 0.01],  # divergence by a spring
      [0, 0, 0, 1e4, 0.001],  # the same in small steps
      [0.01, 0, 0, 1, 0.001],  # a damped swing
    ]
  ).T
  speed, energy, resets = (np.asarray(x) for x in run(put(I.mjINT_EULER), *worlds, 400))
  np.testing.assert_array_equal(resets > 0, [False, True, True, True, False, False])
  assert speed[0, -1] < 0.05  # stiff damping of joints is implicit, that of tendons and of the medium is not
  assert np.all(np.diff(energy[5]) < 1e-7)
  _, _, resets = run(put(I.mjINT_EULER, int(mjx.DisableBit.EULERDAMP)), *worlds, 400)
  np.testing.assert_array_equal(resets > 0, [True, True, True, True, False, False])
  speed, _, resets = run(put(I.mjINT_IMPLICITFAST), *worlds, 400)
  np.testing.assert_array_equal(resets > 0, [False, False, False, True, False, False])
  assert np.all(speed[:3, -1] < 0.05)


# P71
def test_deep_penetration_diverges_in_large_steps_alone():
  """A ball that two stiff planes throw to each other."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><default><geom solref="-1e6 -10"/></default><worldbody>
    <geom type="plane" size="1 1 1"/><geom type="plane" size="1 1 1" pos="0 0 1" zaxis="0 0 -1"/>
    <body pos="0 0 .02"><joint type="slide" axis="0 0 1"/><geom size=".1"/></body></worldbody></mujoco>""")
  m = mjx.put_model(model)

  def fall(timestep):
    small = m.replace(opt=m.opt.replace(timestep=timestep))
    d, _ = jax.lax.scan(lambda d, _: (mjx.step(small, d), None), mjx.make_data(m), None, length=200)
    return d.status.count[Warning.RESET], d.qpos

  resets, qpos = mjx.jit(jax.vmap(fall))(jnp.array([0.01, 0.001]))
  assert resets[0] > 0 == resets[1] and np.isfinite(qpos).all()
