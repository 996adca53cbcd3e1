"""What C computed is in the Data that `put_data` makes of it: contacts and constraint rows too."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import ELSEWHERE, SCENE_NAMES, TOO_LARGE, load

import mjx_lite as mjx
from mjx_lite.io import _pack
from mjx_lite.model import pytree

TOUCHING = """
<mujoco>
  <option cone="{cone}" impratio="2" solver="{solver}" jacobian="{jacobian}"><flag island="disable"/></option>
  <worldbody>
    <geom type="plane" size="5 5 1" condim="1"/>
    <body pos="0 0 .09"><freejoint/><geom size=".1" condim="{condim}" friction=".7 .02 .003" margin=".01"/></body>
    <body name="body_c" pos=".05 .15 .095"><freejoint/><geom type="box" size=".1 .06 .1" condim="{condim}"/></body>
    <body pos="1 0 1"><joint name="low" axis="0 1 0" limited="true" range="-.2 1" frictionloss=".1"/>
      <geom type="capsule" size=".05 .2"/><site name="a" pos="0 0 .3"/>
      <body pos="0 0 .5"><joint name="high" axis="0 1 0" limited="true" range="-1 .2"/><geom size=".05"/>
        <body pos="0 0 .3"><joint name="ball" type="ball" limited="true" range="0 .3"/><geom type="capsule" size=".03 .1"/>
          <body pos="0 0 .3"><joint name="both" type="slide" limited="true" range="-.001 .001" margin=".01"/>
            <geom size=".03"/><site name="b"/></body></body></body></body>
  </worldbody>
  <tendon>
    <fixed name="over" limited="true" range="-1 .1" frictionloss=".2"><joint joint="high" coef="1"/></fixed>
    <fixed name="under" limited="true" range="0 1"><joint joint="low" coef="1"/></fixed>
    <spatial name="path" limited="true" range="0 .3"><site site="a"/><site site="b"/></spatial>
  </tendon>
  <equality>
    <connect body1="world" body2="body_c" anchor="0 0 0"/><joint joint1="low" joint2="high" polycoef="0 .5 0 0 0"/>
    <connect body1="world" body2="body_c" anchor="0 .1 0" active="false"/>
  </equality>
</mujoco>
"""


WITHOUT_ROWS = ("actuators", "delays", "media", "nothing", "sensor_delays", "tendons", "yielding", "shapes")


def _touching(cone="pyramidal", condim=3, solver="Newton", jacobian="dense"):
  model = mujoco.MjModel.from_xml_string(TOUCHING.format(cone=cone, condim=condim, solver=solver, jacobian=jacobian))
  model.opt.iterations, model.opt.tolerance, model.opt.ls_iterations = 100, 1e-14, 100
  data = mujoco.MjData(model)
  data.joint("low").qpos[:], data.joint("high").qpos[:] = -0.25, 0.3
  data.joint("ball").qpos[:] = [np.cos(0.3), np.sin(0.3), 0, 0]
  data.qvel[:] = np.random.default_rng(0).normal(size=model.nv) * 0.1
  mujoco.mj_forward(model, data)
  return model, data


def _same(model, ours, theirs, tolerance=1e-12):
  """All fields of contacts, rows, and everything else that both have."""
  assert (ours.ncon, ours.nefc, ours.ne, ours.nf, ours.nl) == (theirs.ncon, theirs.nefc, theirs.ne, theirs.nf, theirs.nl)
  for name in (*_pack._CONTACT_FIELDS, "geom1", "geom2", "efc_address"):
    a, b = getattr(ours.contact, name), getattr(theirs.contact, name)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"contact.{name}")
  for name in (x for x in pytree.specs(mjx.Data) if hasattr(theirs, x) and x != "actuator_moment"):
    a, b = np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))
    if name.startswith("solver_"):
      a, b = a[:1], b[: max(1, theirs.nisland)].max(keepdims=True) if name == "solver_niter" else b[:1]
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0)), err_msg=name)


@pytest.mark.parametrize("name", [*SCENE_NAMES, *ELSEWHERE, "humanoid"])
def test_every_field_comes_back(name):
  model = copy.deepcopy(load(name))
  model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)  # C leaves other numbers in efc_state by islands
  m, data, rng, touched = mjx.put_model(model), mujoco.MjData(model), np.random.default_rng(0), 0
  for i in range(120):
    if i % 10 == 0:
      data.ctrl[:] = rng.normal(size=model.nu)
    mujoco.mj_step(model, data)
    if i % 30 == 29:
      theirs = copy.copy(data)
      mujoco.mj_forward(model, theirs)
      back = mjx.get_data(model, mjx.put_data(m, theirs, keep="all"))
      _same(model, back, theirs)
      touched += theirs.nefc
  assert bool(touched) == (name not in WITHOUT_ROWS)


@pytest.mark.parametrize("jacobian", ["dense", "sparse"])
@pytest.mark.parametrize("condim", [1, 3, 4, 6])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_rows_of_every_kind_come_back(cone, condim, jacobian):
  model, data = _touching(cone, condim, jacobian=jacobian)
  kinds = {mjx.ConstraintType(int(x)).name for x in data.efc_type}
  assert {"EQUALITY", "FRICTION_DOF", "FRICTION_TENDON", "LIMIT_JOINT", "LIMIT_TENDON"} < kinds and data.ncon > 4
  for which in ("low", "high", "ball", "both"):
    assert np.any((data.efc_type == mjx.ConstraintType.LIMIT_JOINT) & (data.efc_id == model.joint(which).id)), which
  _same(model, mjx.get_data(model, mjx.put_data(model, data, keep="all")), data)


@TOO_LARGE  # PGS, with 144 rows
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
  ("cone", "condim", "solver"),
  [
    pytest.param(cone, condim, solver, marks=[pytest.mark.slow] if solver == "PGS" and condim == 3 else [])
    for cone, condim in (("pyramidal", 1), ("pyramidal", 3), ("elliptic", 3), ("elliptic", 6))
    for solver in ("Newton", "CG", "PGS")
  ],
)
def test_stages_go_on_from_what_c_computed(cone, condim, solver, dtype):
  model, data = _touching(cone, condim, solver)
  if solver != "Newton":  # the optimum, which all of them look for
    model.opt.solver, model.opt.iterations = int(mujoco.mjtSolver.mjSOL_NEWTON), 100
    mujoco.mj_forward(model, data)
    model.opt.solver, model.opt.iterations = int(mjx.SolverType[solver.upper()]), 5
    data.qacc_warmstart[:] = data.qacc
  mujoco.mj_rnePostConstraint(model, data)
  m = mjx.put_model(model, dtype=dtype)
  d = mjx.put_data(m, data)
  tolerance = 1e-6 if dtype == np.float64 else 2e-3

  def stages(m, d):
    solved = mjx.solve(m, d)
    force = jax.vmap(lambda i: mjx.contact_force(m, d, i))(jnp.arange(d.contact.dist.shape[0]))
    return solved.qacc, mjx.rne_postconstraint(m, d).cfrc_ext, force, mjx.constraint_jacobian(m, d)

  many = jax.tree.map(lambda x: jnp.stack([x, x]), d)
  wanted = np.zeros((data.ncon, 6))
  for i in range(data.ncon):
    mujoco.mj_contactForce(model, data, i, wanted[i])
  results = [mjx.jit(stages)(m, d), jax.tree.map(lambda x: x[1], mjx.jit(jax.vmap(stages, (None, 0)))(m, many))]
  results += [stages(m, d)] if dtype == np.float64 and solver == "Newton" and condim == 6 else []
  for qacc, ext, force, _ in results:
    for ours, theirs in ((qacc, data.qacc), (ext, data.cfrc_ext), (force[d.contact.exclude >= 0], wanted)):
      np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * max(1, np.abs(theirs).max()))
  jac = results[0][3][np.asarray(d.efc_D) > 0]
  np.testing.assert_allclose(jac, data.efc_J.reshape(jac.shape), rtol=tolerance, atol=tolerance)


def test_a_sphere_in_a_plane():
  """The numbers of the report that found contacts to be lost."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><geom type="plane" size="1 1 1"/>
      <body pos="0 0 .09"><freejoint/><geom size=".1"/></body></worldbody></mujoco>""")
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  m, d = mjx.put_model(model), mjx.put_data(model, data)
  assert mjx.solve(m, d).qacc[2] == pytest.approx(24.51, abs=1e-3) == data.qacc[2]
  assert mjx.get_data(model, d).ncon == 1
  assert mjx.rne_postconstraint(m, d).cfrc_ext[1, 5] == pytest.approx(143.757, abs=1e-3)
  assert mjx.contact_force(m, d, 0)[0] == pytest.approx(143.757, abs=1e-3)
  assert mjx.net_contact_force(m, d)[1, 2] == pytest.approx(143.757, abs=1e-3)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_slots_that_are_chosen(cone):
  """With capacities a slot takes the geoms, the condim and the types of rows of its contact."""
  model, data = _touching(cone, 6)
  m = mjx.put_model(model, ncon_max=data.ncon + 2)
  assert m.plan.contact.chosen and m.plan.contact.mixed
  d = mjx.put_data(m, data, keep="all")
  _same(model, mjx.get_data(model, d), data)
  assert d.status.bits == 0
  np.testing.assert_allclose(mjx.jit(mjx.solve)(m, d).qacc, data.qacc, rtol=1e-6, atol=1e-6)
  few = mjx.put_data(mjx.put_model(model, ncon_max=data.ncon - 2), data)
  assert few.status.bits == 1 << int(mjx.Warning.CONTACTFULL) and few.status.count[mjx.Warning.CONTACTFULL] == 1
  assert (few.contact.exclude == 0).sum() == data.ncon - 2
  np.testing.assert_array_equal(few.contact.geom, data.contact.geom[: data.ncon - 2])


def test_more_contacts_of_a_pair_than_slots_are_marked():
  model, data = _touching()
  m = mjx.put_model(model)
  again = mujoco.MjModel.from_xml_string(TOUCHING.format(cone="pyramidal", condim=3, solver="Newton", jacobian="dense"))
  pair = np.array([0, 1])  # a plane and a sphere have one slot
  twice = mujoco.MjData(again)
  mujoco._functions._realloc_con_efc(twice, ncon=2, nefc=0, nJ=0)
  twice.contact.geom[:], twice.contact.dim[:], twice.contact.exclude[:] = pair, 3, 0
  d = mjx.put_data(m, twice)
  assert (d.contact.exclude >= 0).sum() == 1 and d.status.bits == 1 << int(mjx.Warning.CONTACTFULL)
  assert mjx.put_data(m, data).status.bits == 0


def test_what_has_no_place_is_named():
  model, data = _touching()
  apart = copy.deepcopy(model)
  apart.geom_contype[:] = apart.geom_conaffinity[:] = 0
  with pytest.raises(ValueError, match="geom 0 and geom 1, which cannot touch in the Model"):
    mjx.put_data(mjx.put_model(apart), data)
  slippery = copy.deepcopy(model)
  slippery.geom_condim[:] = 4
  with pytest.raises(ValueError, match="has condim 3, and in the Model this contact has another"):
    mjx.put_data(mjx.put_model(slippery), data)
  smooth = copy.deepcopy(model)
  smooth.dof_frictionloss[:] = 0
  with pytest.raises(ValueError, match=r"FRICTION_DOF of element 12, .*keep"):
    mjx.put_data(mjx.put_model(smooth), data)
  mjx.put_data(mjx.put_model(smooth, keep=("dof_frictionloss",)), data)


def test_data_that_was_never_computed_has_no_contacts():
  model = load("boxes")
  d = mjx.put_data(model, mujoco.MjData(model))
  assert (d.contact.exclude == -1).all() and not d.efc_D.any()
