"""A model without degrees of freedom, with all else that acts on them: everything that can be computed is, as in C."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.testing import compare

XML = """
<mujoco>
  <option timestep="0.004" density="2" viscosity="0.1" integrator="{integrator}" cone="{cone}"><flag energy="enable"/></option>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" surfacevel=".1 0 0 0 0 1" adhesion="1"/>
    <site name="a" pos="0 0 1"/>
    <body name="still" pos="0 .3 .4"><geom name="box" type="box" size=".1 .1 .1" fluidshape="ellipsoid"/></body>
    <body name="hand" mocap="true" pos=".1 .2 .05" euler="10 0 0">
      <geom name="ball" size=".1" adhesion=".2"/><site name="b" pos="0 0 .1" size=".2"/>
    </body>
  </worldbody>
  <contact><pair geom1="floor" geom2="ball" condim="4"/></contact>
  <equality><weld body1="hand" body2="still"/><connect body1="hand" body2="world" anchor="0 0 .1"/></equality>
  <tendon>
    <spatial name="rope" stiffness="3 1" damping="1" range=".1 .2" limited="true" frictionloss="1" springyield=".01"
      armature=".1">
      <site site="a"/><site site="b"/>
    </spatial>
  </tendon>
  <actuator>
    <position name="pull" tendon="rope" kp="3" timeconst=".1"/>
    <motor site="b" refsite="a" gear="1 0 0 0 1 0" nsample="3" delay=".005"/>
    <adhesion body="hand" ctrlrange="0 1" gain="2"/>
    <dcmotor tendon="rope" resistance="1" motorconst=".2" inductance="0 .01"/>
  </actuator>
  <sensor>
    <tendonpos tendon="rope"/><touch site="b"/><accelerometer site="b"/><force site="b"/><rangefinder site="b"/>
    <actuatorfrc actuator="pull"/><contact geom1="floor" data="found force dist"/><subtreelinvel body="hand"/>
    <e_potential/><e_kinetic/>
  </sensor>
</mujoco>"""


@pytest.mark.parametrize("integrator, cone", [("RK4", "elliptic"), ("implicit", "pyramidal"), ("discrete", "elliptic")])
def test_stages_equal_c(integrator, cone):
  model = compare.optimal(mujoco.MjModel.from_xml_string(XML.format(integrator=integrator, cone=cone)))
  engine, data = compare.Engine(model), mujoco.MjData(model)
  for _ in range(3):
    data.ctrl[:] = 0.4
    wrong = [str(e) for e in compare.compare_stages(model, data, engine=engine) if not e.ok]
    assert not wrong, wrong
    mujoco.mj_step(model, data)
  assert model.nv == 0 < data.ncon
  assert np.abs(data.act).min() > 0


@pytest.mark.parametrize("integrator", ["discrete", pytest.param("implicitfast", marks=pytest.mark.slow)])
def test_inverse_gradients_and_worlds(integrator):
  model = mujoco.MjModel.from_xml_string(XML.format(integrator=integrator, cone="elliptic"))
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_INVDISCRETE
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  assert mjx.inverse(m, d).qfrc_inverse.shape == (0,)
  assert mjx.deriv_smooth_vel(m, mjx.forward(m, d)).shape == (0, 0)

  def f(ctrl, length):
    after, _ = mjx.rollout(m.tree_replace({"tendon_lengthspring": length}), d.replace(ctrl=ctrl), steps=2, record=())
    return after.act.sum() + after.energy.sum()

  slope = mjx.jit(jax.grad(f, argnums=(0, 1)))(d.ctrl, m.tendon_lengthspring)
  assert np.all(slope[0][jnp.array([0, 3])] > 0) and np.isfinite(slope[1]).all()
  many = jax.tree.map(lambda x: jnp.stack([x] * 20), d)
  after = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)))(m, many)
  np.testing.assert_allclose(after.sensordata[7], mjx.step(m, d).sensordata, rtol=1e-12)
