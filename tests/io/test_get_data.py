"""What mujoco's own functions find in an MjData that was filled from a Data: as if C had computed it."""

import copy

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.testing import compare

# what C uses within one call or over time and not from call to call, or where its memory is
INNER = {
  "solver", "solver_nnz", "solver_niter", "solver_fwdinv", "timer", "warning", "contact", "model", "signature",
  "maxuse_arena", "maxuse_con", "maxuse_efc", "maxuse_stack", "parena", "pbase", "pstack", "narena", "nbuffer", "threadpool",
  "qDeriv", "qLU", "qH", "qHDiagInv", "bvh_active", "flg_energypos", "flg_energyvel", "flg_rnepost", "flg_subtreevel",
  "iacc", "iacc_smooth", "ifrc_smooth", "ifrc_constraint", "iefc_force", "iefc_aref", "iefc_state",  # gathered in each solve
  "efc_b", "efc_aref", "efc_vel", "qacc_warmstart",
}  # fmt: skip


@pytest.fixture(scope="module")
def forwarded():
  """A scene with contacts, welds, limits, a tendon and every sensor; C's Data and ours after `forward`."""
  model = compare.optimal(load("sensors"))
  model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
  model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
  data = mujoco.MjData(model)
  data.ctrl[:] = [0.5, -0.3, 0.2, 0.1]
  mujoco.mj_step(model, data, 80)
  m = mjx.put_model(model)
  d = mjx.jit(mjx.forward)(m, mjx.put_data(m, data, keep="all"))
  return model, data, d


def oracle(model, data):
  theirs = compare._state_only(model, data)
  mujoco.mj_forward(model, theirs)
  return theirs


def used(model):
  """An MjData with contacts, rows and lazily computed things of another state."""
  out = mujoco.MjData(model)
  out.qvel[:] = 0.3
  mujoco.mj_step(model, out, 30)
  mujoco.mj_rnePostConstraint(model, out)
  return out


@pytest.mark.parametrize("jacobian", ["DENSE", "SPARSE"])
@pytest.mark.parametrize("solver", ["NEWTON", "PGS"])
def test_every_field_is_cs(forwarded, jacobian, solver):
  model, data, d = forwarded
  model = copy.deepcopy(model)
  model.opt.jacobian = int(getattr(mujoco.mjtJacobian, f"mjJAC_{jacobian}"))
  theirs, ours = oracle(model, data), used(model)
  model.opt.solver = int(getattr(mujoco.mjtSolver, f"mjSOL_{solver}"))
  mjx.get_data_into(ours, model, d)
  if solver == "PGS":  # its matrix; the forces of so few sweeps would be others
    mujoco.mj_projectConstraint(model, theirs)
  assert theirs.ncon > 3 and theirs.nefc > 20 and theirs.nisland > 1
  for name in dir(theirs):
    a, b = getattr(ours, name), getattr(theirs, name)
    sparse = "SPARSE" not in jacobian and name.startswith(("efc_J_", "efc_Y_", "efc_AR_"))  # of sparse matrices alone
    if sparse or name.startswith(("_", "flex", "efm")) or name in INNER or callable(b):
      continue
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape, name
    if b.dtype.kind in "biuf" and b.size:
      assert compare.relative_error(a, b).max() < 1e-8, name
  for name in ("dist", "pos", "frame", "friction", "dim", "geom", "geom1", "mu", "efc_address", "exclude", "flex"):
    np.testing.assert_allclose(getattr(ours.contact, name), getattr(theirs.contact, name), rtol=1e-9, atol=1e-9, err_msg=name)


def test_cs_functions_go_on_from_it(forwarded):
  model, data, d = forwarded
  theirs, ours = oracle(model, data), used(model)
  mjx.get_data_into(ours, model, d)
  for skip in (mujoco.mjtStage.mjSTAGE_VEL, mujoco.mjtStage.mjSTAGE_POS):
    again = copy.copy(ours)
    mujoco.mj_forwardSkip(model, again, int(skip), 0)
    for name in ("qacc", "sensordata", "cfrc_int"):
      assert compare.relative_error(getattr(again, name), getattr(theirs, name)).max() < 1e-8, name
  ours.flg_rnepost = 0
  force = np.zeros((2, 6))
  for i in range(ours.ncon):
    mujoco.mj_contactForce(model, ours, i, force[0])
    mujoco.mj_contactForce(model, theirs, i, force[1])
    np.testing.assert_allclose(*force, rtol=1e-8, atol=1e-8)
  assert force.any()
  seg = np.zeros((2, 6))
  for x, out in ((ours, seg[0]), (theirs, seg[1])):
    mujoco.mj_geomDistance(model, x, model.geom("hand").id, model.geom("ball").id, 5, out)
  np.testing.assert_allclose(*seg, rtol=1e-9, atol=1e-9)
  mujoco.mj_step(model, ours, 20)
  mujoco.mj_step(model, theirs, 20)
  for name in ("qpos", "qvel", "sensordata"):
    assert compare.relative_error(getattr(ours, name), getattr(theirs, name)).max() < 1e-6, name


@pytest.mark.parametrize("name", ["sensors", "tendons"])
def test_it_is_drawn_as_cs(forwarded, name):
  """All that the visualiser draws: tendons around geoms, contacts and their forces, inertias, islands, ..."""
  if name == "sensors":
    model, data, d = forwarded
  else:
    model = load(name)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 30)
    d = mjx.put_data(model, oracle(model, data))
  theirs, ours = oracle(model, data), used(model)
  mjx.get_data_into(ours, model, d)
  if name == "tendons":
    np.testing.assert_allclose(ours.wrap_xpos, theirs.wrap_xpos, atol=1e-12)
    assert (theirs.wrap_obj >= 0).any()
  option, scenes = mujoco.MjvOption(), []
  option.flags[:] = 1
  option.frame = int(mujoco.mjtFrame.mjFRAME_SITE)
  option.label = int(mujoco.mjtLabel.mjLABEL_CONTACTFORCE)
  for x in (ours, theirs):
    scene = mujoco.MjvScene(model, maxgeom=2000)
    mujoco.mjv_updateScene(model, x, option, None, mujoco.MjvCamera(), int(mujoco.mjtCatBit.mjCAT_ALL), scene)
    scenes.append(scene)
  assert scenes[0].ngeom == scenes[1].ngeom > model.ngeom
  for a, b in zip(*([s.geoms[i] for i in range(s.ngeom)] for s in scenes), strict=True):
    assert (a.type, a.objtype, a.objid, a.label) == (b.type, b.objtype, b.objid, b.label)
    for field in ("pos", "mat", "size", "rgba"):
      np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-5, atol=1e-6, err_msg=field)


@pytest.mark.parametrize("jacobian", ["DENSE", "SPARSE"])
def test_rows_that_c_would_not_have(forwarded, jacobian):
  """After a step qpos is the next one, and a limit may have been left: the rows stay those of the Data."""
  model, data, d = forwarded
  model = copy.deepcopy(model)
  model.opt.jacobian = int(getattr(mujoco.mjtJacobian, f"mjJAC_{jacobian}"))
  theirs, ours = oracle(model, data), used(model)
  moved = d.replace(qpos=d.qpos.at[model.joint("slide").qposadr[0]].set(0).at[model.joint("hinge").qposadr[0]].set(0))
  mjx.get_data_into(ours, model, moved)
  again = mujoco.MjData(model)
  again.qpos[:] = moved.qpos
  mujoco.mj_forward(model, again)
  assert again.nl < theirs.nl == ours.nl
  for field in ("nefc", "ne", "nf", "efc_type", "efc_id", "efc_D", "efc_force", "efc_J"):
    a, b = compare.read_field(model, ours, field), compare.read_field(model, theirs, field)
    assert compare.relative_error(a, b).max(initial=0) < 1e-8, field
  force = np.zeros((2, model.nv))
  for x, out in ((ours, force[0]), (theirs, force[1])):
    mujoco.mj_mulJacTVec(model, x, out, x.efc_force)
  np.testing.assert_allclose(*force, rtol=1e-7, atol=1e-7)


def test_worlds_become_a_list(forwarded):
  """Each world with its own contacts and rows."""
  model, _, d = forwarded
  none = d.contact.replace(exclude=-jnp.ones_like(d.contact.exclude))
  alone = d.replace(contact=none, efc_D=jnp.where(d.efc_type >= int(mjx.ConstraintType.CONTACT_FRICTIONLESS), 0, d.efc_D))
  one, other = (mjx.get_data(model, x) for x in (d, alone))
  many = mjx.get_data(model, jax.tree.map(lambda *x: jnp.stack(x), d, alone, d))
  assert one.nefc > other.nefc > 0 == other.ncon < one.ncon
  for a, b in zip(many, (one, other, one), strict=True):
    for field in ("ncon", "nefc", "efc_J", "efc_force", "efc_type", "qpos", "sensordata", "xpos"):
      np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)
