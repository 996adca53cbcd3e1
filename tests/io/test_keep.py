"""Fields of Data that are kept only where they were asked for."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.model import pytree

NAMES = {
  "xmat", "ximat", "geom_xmat", "site_xmat", "crb", "qLD", "qLDiagInv", "efc_KBIP", "subtree_linvel", "subtree_angmom", "cacc",
  "cfrc_int", "cfrc_ext",
}  # fmt: skip


@pytest.fixture(scope="module")
def scene():
  """Contacts, limits, a tendon, every sensor: the Model, and Data after forward with all fields and without."""
  model = load("sensors")
  data = mujoco.MjData(model)
  mujoco.mj_step(model, data, 80)
  m, forward = mjx.put_model(model), mjx.jit(mjx.forward)
  full, lean = (forward(m, mjx.put_data(m, data, keep=keep)) for keep in ("all", ()))
  return model, m, full, lean


def test_which_fields(scene):
  _, m, full, lean = scene
  fields = set(pytree.specs(mjx.Data))
  assert set(pytree.optional_fields(mjx.Data)) == NAMES
  assert set(pytree.present(full)) == fields and set(pytree.present(lean)) == fields - NAMES
  some = mjx.make_data(m, keep=("crb", "xmat"))
  assert set(pytree.present(some)) == fields - NAMES | {"crb", "xmat"}
  for wrong in ("crb", ("qpos",), ("crbs",)):
    with pytest.raises(ValueError, match="keep takes 'all' or names of"):
      mjx.make_data(m, keep=wrong)


def test_the_fields_that_are_kept_are_the_same(scene):
  _, _, full, lean = scene
  for name in pytree.present(lean):
    for a, b in zip(*(jax.tree.leaves(getattr(d, name)) for d in (full, lean)), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=name)


def test_rotation_matrices_are_made_when_they_are_read(scene):
  _, _, full, lean = scene
  many = jax.tree.map(lambda x: jnp.stack([x, x, x]), lean)
  for name in ("xmat", "ximat", "geom_xmat", "site_xmat"):
    np.testing.assert_allclose(getattr(lean, name), getattr(full, name), atol=1e-14)
    np.testing.assert_array_equal(getattr(many, name)[2], getattr(lean, name))


def test_errors_say_what_to_do(scene):
  _, _, _, lean = scene
  with pytest.raises(AttributeError, match=r"Data.qLD is not kept: .*make_data\(m, keep=...\)"):
    _ = lean.qLD
  with pytest.raises(AttributeError, match=r"Data.cfrc_ext is not kept: call mjx_lite.rne_postconstraint\(m, d\)"):
    _ = lean.cfrc_ext
  assert not hasattr(lean, "subtree_linvel")


def test_on_demand(scene):
  """What computes them returns them; and they stay from then on, in a scan too if they were there at its beginning."""
  _, m, full, lean = scene
  wrenches, velocities = mjx.rne_postconstraint(m, lean), mjx.subtree_vel(m, lean)
  for d, names in ((wrenches, ("cacc", "cfrc_int", "cfrc_ext")), (velocities, ("subtree_linvel", "subtree_angmom"))):
    for name in names:
      np.testing.assert_allclose(getattr(d, name), getattr(full, name), rtol=1e-9, atol=1e-9)
    assert set(pytree.present(d)) - set(pytree.present(lean)) == set(names)

  def body(d, _):
    d = mjx.rne_postconstraint(m, mjx.step(m, d))
    return d, d.cfrc_ext

  with pytest.raises(TypeError, match="carry"):
    jax.lax.scan(body, lean, length=2)
  _, force = jax.lax.scan(body, wrenches, length=2)
  assert force.shape == (2, m.nbody, 6)


def test_every_stage_returns_what_it_was_given(scene):
  _, m, full, lean = scene
  stages = (
    *("kinematics", "com_pos", "crb", "factor_m", "collision", "make_constraint", "com_vel", "rne", "solve", "fwd_position"),
    *("fwd_velocity", "forward", "step", "step1", "step2", "inverse", "sensor_acc", "reset_data", "euler"),
  )
  for name in stages:
    for d in (full, lean):
      out = jax.eval_shape(getattr(mjx, name), m, d)
      assert jax.tree.structure(out) == jax.tree.structure(d), name


def test_who_needs_them_makes_them(scene):
  """Of a Data without them, the same as of one with them."""
  _, m, full, lean = scene
  body = 3
  results = (
    lambda d: mjx.jac_subtree_com(m, d, body),
    lambda d: mjx.angmom_mat(m, d, body),
    lambda d: mjx.object_acceleration(m, d, mjx.ObjType.BODY, body),
    lambda d: mjx.solve_m(m, d, d.qvel),
    lambda d: mjx.ray(m, d, jnp.array([0.0, 0, 3]), jnp.array([0.0, 0.1, -1]))[0],
    lambda d: mjx.step2(m, d).qacc,
    lambda d: mjx.forward(m, d.replace(qvel=d.qvel + 1), skip_stage=mjx.Stage.POS).qacc,
  )
  ours, theirs = (mjx.jit(lambda d: [f(d) for f in results])(x) for x in (lean, full))
  for a, b in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def test_the_soft_gradient_of_a_second_half_step():
  """The derivative of contacts that are felt, which do not touch, needs the rows' stiffness, which is made again."""
  ball = "<body pos='0 0 .11'><freejoint/><geom size='.1'/></body>"
  xml = f"<mujoco><worldbody><geom type='plane' size='1 1 1'/>{ball}</worldbody></mujoco>"
  m = mjx.put_model(mujoco.MjModel.from_xml_string(xml), contact_gradient="from_distance")
  half = [mjx.step1(m, mjx.make_data(m, keep=keep)) for keep in ("all", ())]
  full, lean = (jax.grad(lambda f, d=d: mjx.step2(m, d.replace(qfrc_applied=f)).qvel.sum())(d.qfrc_applied) for d in half)
  np.testing.assert_allclose(lean, full, rtol=1e-9, atol=1e-12)


def test_get_data_has_all_of_it(scene):
  """What the Data does not keep of positions C makes of what it has."""
  model, _, full, lean = scene
  ours, theirs = mjx.get_data(model, lean), mjx.get_data(model, full)
  for name in sorted(NAMES - {"subtree_linvel", "subtree_angmom", "cacc", "cfrc_int", "cfrc_ext"}):
    a, b = getattr(ours, name), getattr(theirs, name)
    assert a.shape == b.shape and np.any(b), name
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=name)
  fresh = mjx.get_data(model, mjx.make_data(mjx.put_model(model)))
  assert not np.any(fresh.qLD) and not np.any(fresh.xmat)


def test_reset_keeps_what_was_kept(scene):
  _, m, full, lean = scene
  for d in (full, lean, mjx.make_data(m, keep=("crb",))):
    assert jax.tree.structure(mjx.reset(m, d)) == jax.tree.structure(d)


def test_records_of_a_rollout(scene):
  """By name, also of what Data does not keep."""
  _, m, _, lean = scene
  last, record = mjx.rollout(m, lean, steps=2, record=("geom_xmat", "crb", "qLD"))
  assert record["geom_xmat"].shape == (2, m.ngeom, 3, 3) and np.any(record["qLD"][1])
  assert jax.tree.structure(last) == jax.tree.structure(lean)
