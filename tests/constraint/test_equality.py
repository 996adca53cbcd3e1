"""Equality constraints beyond the parity of every stage: our own J, activity without a new trace, gradients."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.testing import compare


def moved(model, seed=0):
  """A state off the constraints and in motion."""
  rng, data = np.random.default_rng(seed), mujoco.MjData(model)
  mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.2)
  data.qvel[:] = rng.normal(size=model.nv)
  data.eq_active[:] = 1
  return data


def test_jacobian_equals_c():
  model = compare.optimal(load("equalities"))
  m = mjx.put_model(model)
  data = moved(model)
  d = mjx.forward(m, mjx.put_data(m, data))
  mujoco.mj_forward(model, data)
  assert data.ne == data.nefc == len(d.efc_D)
  np.testing.assert_allclose(mjx.constraint_jacobian(m, d), compare.read_field(model, data, "efc_J"), atol=1e-12)
  np.testing.assert_allclose(d.efc_aref, data.efc_aref, rtol=1e-10, atol=1e-10)
  # where the model was defined they hold, if nobody says another pose
  start = mjx.make_data(m)
  d = mjx.forward(m, start.replace(eq_active=start.eq_active | True))
  for name in ("bodies", "within", "off"):
    pos = np.asarray(d.efc_pos)[np.asarray(d.efc_id) == model.equality(name).id]
    assert len(pos) in (3, 6) and np.abs(pos).max() < 1e-12, name


REFERENCES = """
<mujoco>
  <option><flag contact="disable"/></option>
  <worldbody>
    <body><joint name="a" type="slide" ref=".3"/><geom size=".1"/></body>
    <body pos="1 0 0"><joint name="b" axis="0 1 0" ref="-40"/><geom size=".1" pos=".2 0 0"/></body>
    <body name="c" pos="2 0 0"><joint name="c" axis="0 1 0" ref="20"/><geom size=".1" pos=".2 0 0"/></body>
    <body name="d" pos="2.4 0 0"><freejoint/><geom size=".05"/></body>
  </worldbody>
  <tendon><fixed name="s"><joint joint="a" coef="2"/></fixed><fixed name="t"><joint joint="b" coef="-.7"/></fixed></tendon>
  <equality>
    <joint name="both" joint1="a" joint2="b" polycoef="0 .5 -.3 .2 .1"/><joint name="one" joint1="c" polycoef="0 1 2 3 4"/>
    <tendon name="tendons" tendon1="s" tendon2="t" polycoef="0 .4 .3 -.2 .1"/>
    <connect name="connect" body1="c" body2="d" anchor=".3 0 .1"/><weld name="weld" body1="c" body2="d"/>
  </equality>
</mujoco>"""


# P58, P59
def test_violations_are_counted_from_the_references():
  """None in the configuration of the model; couplings are quartic in what joints and tendons differ from theirs."""
  model = mujoco.MjModel.from_xml_string(REFERENCES)
  m = mjx.put_model(model)
  d, data = mjx.make_data(m), mujoco.MjData(model)
  rows = mjx.jit(lambda d: (d := mjx.forward(m, d), mjx.constraint_jacobian(m, d)))
  start, _ = rows(d)
  assert set(np.asarray(start.efc_id)) == set(range(5)) and np.all(start.efc_D > 0)
  np.testing.assert_allclose(start.efc_pos, 0, atol=1e-12)

  a, b, c = np.array([0.2, -0.4, 0.1])
  data.qpos[:3] += (a, b, c)
  moved, j = rows(mjx.put_data(m, data))
  mujoco.mj_forward(model, data)
  quartic, coupling = np.polynomial.Polynomial([0, 0.5, -0.3, 0.2, 0.1]), np.polynomial.Polynomial([0, 0.4, 0.3, -0.2, 0.1])
  expected = {
    "both": (a - quartic(b), [1, -quartic.deriv()(b), 0]),
    "one": (c, [0, 0, 1]),
    "tendons": (2 * a - coupling(-0.7 * b), [2, 0.7 * coupling.deriv()(-0.7 * b), 0]),
  }
  for name, (residual, slope) in expected.items():
    row = np.asarray(moved.efc_id) == model.equality(name).id
    np.testing.assert_allclose(moved.efc_pos[row], residual, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(j[row, :3], [slope], atol=1e-12, err_msg=name)
    np.testing.assert_allclose(data.efc_pos[data.efc_id == model.equality(name).id], residual, atol=1e-12, err_msg=name)


# P60
def test_activity_needs_no_new_trace():
  model = compare.optimal(load("equalities"))
  m = mjx.put_model(model)
  step = mjx.jit(lambda m, d: mjx.step(m, d))
  for seed in range(3):
    data = moved(model, seed)
    data.eq_active[:] = np.random.default_rng(seed).integers(0, 2, model.neq)
    after = step(m, mjx.put_data(m, data))
    mujoco.mj_step(model, data)
    np.testing.assert_allclose(after.qacc, data.qacc, rtol=1e-8, atol=1e-8)
    assert int(np.sum(np.asarray(after.efc_D) > 0)) == data.ne
  assert step._cache_size() == 1


def test_disable_flag():
  model = compare.optimal(load("equalities"))
  model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_EQUALITY
  m = mjx.put_model(model)
  d = mjx.forward(m, mjx.put_data(m, moved(model)))
  np.testing.assert_array_equal(d.qfrc_constraint, 0)


def test_gradient_with_respect_to_the_constraints_numbers():
  model = compare.optimal(load("equalities"))
  m = mjx.put_model(model)
  d = mjx.put_data(m, moved(model))
  w = jnp.asarray(np.random.default_rng(1).normal(size=model.nv))

  def f(data, solref):
    return jnp.dot(w, mjx.step(m.replace(eq_data=data, eq_solref=solref), d).qvel)

  at, rng = (m.eq_data, m.eq_solref), np.random.default_rng(2)
  assert_gradients(f, at, [rng.normal(size=x.shape) * jnp.abs(x) for x in at], atol=1e-6)


def test_gradient_is_finite_on_the_constraints():
  """Violations that are zero, at rest."""
  m = mjx.put_model(load("equalities"))
  d = mjx.make_data(m)
  g = mjx.jit(jax.grad(lambda q, v: jnp.sum(mjx.step(m, d.replace(qpos=q, qvel=v)).qvel ** 2), argnums=(0, 1)))(d.qpos, d.qvel)
  assert all(np.isfinite(x).all() for x in g)


def test_what_no_dof_changes_has_no_rows():
  """Between bodies that stand still; C leaves such a block out."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <body name="still"><geom size=".1"/></body>
        <body name="too" pos="1 0 0"><geom size=".1"/></body>
        <body name="moves" pos="0 1 0"><joint name="hinge" axis="0 1 0"/><geom size=".1" pos=".1 0 0"/></body>
      </worldbody>
      <equality>
        <weld body1="still" body2="too"/><connect body1="too" anchor="0 0 .1"/>
        <connect body1="moves" body2="still" anchor=".1 .2 0"/>
        <joint joint1="hinge"/>
      </equality>
    </mujoco>
  """)
  data = mujoco.MjData(model)
  data.qpos[:] = 0.1
  mujoco.mj_forward(model, data)
  assert data.ne == 4
  assert all(e.ok for e in compare.compare_stages(compare.optimal(model), data))
