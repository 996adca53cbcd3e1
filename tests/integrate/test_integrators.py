"""The integrators: states equal to C's, order of convergence, energy, gradients.

Parity of `implicit` and `implicitfast` is with that of the stages: several scenes of `tests/scenes` use them.
"""

import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing.compare import optimal, relative_error

I = mujoco.mjtIntegrator
STATE = ("time", "qpos", "qvel", "act", "history", "plastic", "qacc", "qacc_warmstart")

# a body that tumbles in a medium, and an arm that a servo, a damped tendon and a polynomial damper hold
SMALL = """
<mujoco>
  <option density="50" viscosity="0.3" timestep="0.01"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 1 1"><freejoint/><geom type="box" size=".1 .2 .3" pos=".1 0 0" fluidshape="ellipsoid"/></body>
    <body pos="0 0 2">
      <joint name="a" axis="0 1 0" damping="0.5 0.2 0.1"/><geom type="capsule" size=".05" fromto="0 0 0 0 0 -.5"/>
      <site name="p" pos=".1 0 -.3"/>
      <body pos="0 0 -.5"><joint name="b" type="ball"/><geom type="capsule" size=".05" fromto="0 0 0 .1 .2 -.4"/>
        <site name="q" pos=".05 .1 -.2"/></body>
    </body>
  </worldbody>
  <tendon><spatial name="t" damping="2 0.5 0" stiffness="20"><site site="p"/><site site="q"/></spatial></tendon>
  <actuator><position joint="a" kp="20" kv="3"/><general tendon="t" gaintype="affine" gainprm="1 0.2 0.5"/></actuator>
</mujoco>
"""
# no friction anywhere: energy is kept, but for the error of the integrator
CONSERVATIVE = """
<mujoco>
  <option timestep="0.004"><flag energy="enable" contact="disable"/></option>
  <worldbody>
    <body pos="0 1 1"><freejoint/><geom type="box" size=".1 .2 .3" pos=".1 0 0"/></body>
    <body pos="0 0 2">
      <joint axis="0 1 0"/><geom type="capsule" size=".05" fromto="0 0 0 0 0 -.5"/>
      <body pos="0 0 -.5"><joint type="ball" stiffness="2"/><geom type="capsule" size=".05" fromto="0 0 0 .1 .2 -.4"/></body>
    </body>
  </worldbody>
</mujoco>
"""


def with_integrator(model, integrator, timestep=None):
  model = model.__copy__()
  model.opt.integrator = integrator
  model.opt.timestep = timestep or model.opt.timestep
  return model


@pytest.mark.parametrize("name", ["joints", "actuators"])
def test_rk4_equals_c(name):
  model = with_integrator(optimal(load(name)), I.mjINT_RK4, 0.01)
  m, step, rng = mjx.put_model(model), mjx.jit(mjx.step), np.random.default_rng(0)
  data = mujoco.MjData(model)
  for k in range(30):
    data.ctrl[:] = rng.uniform(-1, 1, model.nu)
    data.qvel[:] += 0.2 * rng.normal(size=model.nv)
    before = mjx.put_data(m, data)
    mujoco.mj_step(model, data)
    after = step(m, before)
    for field in STATE:
      ours, theirs = (np.asarray(getattr(x, field)) for x in (after, data))
      assert relative_error(ours, theirs).max(initial=0) < 1e-8, (k, field)


@pytest.mark.parametrize("flag", ["enable", "disable"])
def test_rk4_leaves_the_energy_of_its_last_place(flag):
  """As all else that is derived; where only sensors ask for it, at the first place, nothing is left of it."""
  model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option timestep=".02" integrator="RK4"><flag energy="{flag}"/></option>
      <worldbody><body pos="0 0 1"><joint axis="0 1 0" stiffness="3"/><geom size=".1" pos=".5 0 0"/></body></worldbody>
      <sensor><e_potential/><e_kinetic/></sensor>
    </mujoco>""")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  data.qvel[:] = 3
  d = mjx.step(m, mjx.put_data(m, data, keep="all"))
  mujoco.mj_step(model, data)
  np.testing.assert_allclose(d.energy, data.energy, rtol=1e-12)
  np.testing.assert_allclose(d.sensordata, data.sensordata, rtol=1e-12)


SERVO = """<general joint="ball" gear="0 2 1" dyntype="filter" dynprm=".1" gainprm="{}" biastype="affine" biasprm="0 -.3 0"/>
  <dcmotor joint="hinge" resistance="1" motorconst=".2" {}/><motor tendon="rope"/>"""
READS = {
  "lengths": (SERVO.format(0.3, ""), ""),
  "velocities": (SERVO.format(0.5, 'lugre="30 .2 .03 .06 .1"'), ""),
  "tendons": (SERVO.format(0.5, ""), 'springyield="3"'),
}


@pytest.mark.parametrize("actuators, spring", READS.values(), ids=READS)
def test_rk4_leaves_at_its_first_place_what_the_end_of_the_step_reads(actuators, spring):
  model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <option timestep=".02" integrator="RK4"/>
      <worldbody>
        <site name="a" pos="0 .1 .3"/>
        <body pos="0 0 1"><joint name="hinge" axis="0 1 0" stiffness="3" {spring}/><geom size=".1" pos=".5 0 0"/>
          <body pos=".5 0 0"><joint name="ball" type="ball"/><geom size=".1" pos=".2 0 0"/><site name="b" pos=".2 0 .1"/></body>
        </body>
      </worldbody>
      <tendon><spatial name="rope" frictionloss="1"><site site="a"/><site site="b"/></spatial></tendon>
      <actuator>{actuators}</actuator>
    </mujoco>""")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  data.qvel[:], data.ctrl[:], data.qpos[0] = 1, 0.3, 0.1
  d = mjx.step(m, mjx.put_data(m, data, keep="all"))
  mujoco.mj_step(model, data)
  for name in ("actuator_length", "actuator_velocity", "ten_length", "ten_velocity", "act_dot", "act"):
    np.testing.assert_allclose(getattr(d, name), getattr(data, name), rtol=1e-10, err_msg=name)
  rows = mjx.get_data(model, d)
  np.testing.assert_allclose(rows.efc_J, data.efc_J, rtol=1e-10)


# P21, P83
@pytest.mark.parametrize(
  "integrator, xml", [(I.mjINT_RK4, CONSERVATIVE), (I.mjINT_IMPLICIT, SMALL), (I.mjINT_IMPLICITFAST, SMALL)]
)
def test_step_in_two_parts(integrator, xml):
  """With the integrator of the model; with Euler's where this is Runge and Kutta's."""
  model = with_integrator(mujoco.MjModel.from_xml_string(xml), integrator)
  m, data = mjx.put_model(model), mujoco.MjData(model)
  data.qvel[:] = 0.3
  d = mjx.jit(lambda m, d: mjx.step2(m, mjx.step1(m, d)))(m, mjx.put_data(m, data))
  euler = mujoco.MjData(with_integrator(model, I.mjINT_EULER))
  euler.qvel[:] = 0.3
  mujoco.mj_step(euler.model, euler)
  mujoco.mj_step1(model, data)
  mujoco.mj_step2(model, data)
  np.testing.assert_allclose(d.qpos, data.qpos, rtol=1e-12)
  np.testing.assert_allclose(d.qvel, data.qvel, rtol=1e-10, atol=1e-12)
  assert (np.abs(d.qvel - euler.qvel).max() < 1e-12) == (integrator == I.mjINT_RK4)


@functools.cache
def start(integrator):
  model = with_integrator(mujoco.MjModel.from_xml_string(CONSERVATIVE), integrator)
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  d = d.replace(qvel=d.qvel.at[jnp.array([3, 4, 5, 6, 8])].set(jnp.array([3.0, 1.0, -2.0, 2.0, 3.0])))
  return m, d, mjx.jit(lambda m, d: mjx.step(m, d))


def trajectory(integrator, nstep, duration=0.4):
  """Last state and the energies along the way."""
  m, d, step = start(integrator)
  m = m.replace(opt=m.opt.replace(timestep=jnp.asarray(duration / nstep)))
  energy_of = mjx.jit(lambda m, d: mjx.forward(m, d).energy.sum())  # step leaves that of the last place at which it was
  energy = []
  for _ in range(nstep):
    d = step(m, d)
    energy.append(float(energy_of(m, d)))
  return np.concatenate([d.qpos, d.qvel]), energy


best = functools.cache(lambda: trajectory(I.mjINT_RK4, 800)[0])


# P80
@pytest.mark.parametrize(
  "integrator, order",
  [(I.mjINT_RK4, 4), (I.mjINT_EULER, 1), (I.mjINT_IMPLICIT, 1), (I.mjINT_IMPLICITFAST, 1), (I.mjINT_DISCRETE, 1)],
)
def test_order_of_convergence_and_energy_drift(integrator, order):
  (coarse, _), (fine, energy) = (trajectory(integrator, n) for n in (50, 100))
  assert abs(np.log2(np.abs(coarse - best()).max() / np.abs(fine - best()).max()) - order) < 0.3
  assert np.ptp(energy) < (1e-8 if order == 4 else 1e-2) * energy[0]
  # the drift, too, goes with the timestep
  _, less = trajectory(integrator, 200)
  assert 0.75 * order < np.log2(np.ptp(energy) / np.ptp(less)) < order + 1.3


@pytest.mark.parametrize(
  "integrator", [I.mjINT_RK4, pytest.param(I.mjINT_IMPLICIT, marks=pytest.mark.slow), I.mjINT_IMPLICITFAST]
)
def test_gradients(integrator):
  model = with_integrator(mujoco.MjModel.from_xml_string(SMALL), integrator)
  m, rng = mjx.put_model(model), np.random.default_rng(0)
  d = mjx.make_data(m)
  w = jnp.asarray(rng.normal(size=m.nv))

  def f(dq, qvel, ctrl, mass, damping, timestep):
    m2 = m.replace(body_mass=mass, dof_damping=damping, opt=m.opt.replace(timestep=timestep))
    q = mjx.integrate_pos(m, d.qpos, dq, jnp.ones(()))
    return w @ mjx.step(m2, d.replace(qpos=q, qvel=qvel, ctrl=ctrl)).qvel

  at = (0.1 * w, w[::-1], jnp.array([0.3, 0.5]), m.body_mass, m.dof_damping, m.opt.timestep)
  assert_gradients(f, at, [rng.normal(size=x.shape) for x in at])


def test_derivative_of_the_smooth_forces_is_that_of_c():
  model = with_integrator(mujoco.MjModel.from_xml_string(SMALL), I.mjINT_IMPLICIT)
  m, data = mjx.put_model(model), mujoco.MjData(model)
  data.qvel[:], data.ctrl[:] = np.random.default_rng(0).normal(size=model.nv), 0.4
  d = mjx.jit(mjx.forward)(m, mjx.put_data(m, data))
  ours = mjx.jit(mjx.deriv_smooth_vel)(m, d)
  mujoco.mj_step(model, data)
  theirs = np.zeros((model.nv, model.nv))
  for i, (adr, n) in enumerate(zip(model.D_rowadr, model.D_rownnz, strict=True)):
    theirs[i, model.D_colind[adr : adr + n]] = data.qDeriv[adr : adr + n]
  np.testing.assert_allclose(ours, theirs, atol=1e-10)
