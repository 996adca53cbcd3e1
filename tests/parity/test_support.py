"""Support functions and on-demand stages against the C functions of the same name, for every id, along trajectories."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load
from test_stages import randomise_inputs

import mjx_lite as mjx
from mjx_lite.testing.compare import relative_error

FRAMES = {
  mjx.ObjType.BODY: "nbody", mjx.ObjType.XBODY: "nbody", mjx.ObjType.GEOM: "ngeom", mjx.ObjType.SITE: "nsite",
  mjx.ObjType.CAMERA: "ncam",
}  # fmt: skip
STAGES = ("subtree_linvel", "subtree_angmom", "cacc", "cfrc_int", "cfrc_ext", "energy")


def assert_close(ours, theirs, what):
  ours, theirs = np.asarray(ours), np.asarray(theirs)
  assert ours.shape == theirs.shape, what
  assert relative_error(ours, theirs).max(initial=0) <= 1e-10, what


def states(model, count):
  """States along a trajectory under random inputs."""
  data, rng = mujoco.MjData(model), np.random.default_rng(2)
  for i in range(20 * count):
    if i % 20 == 0:
      randomise_inputs(model, data, rng)
    mujoco.mj_step(model, data)
    if i % 20 == 15:
      yield data, rng


def of_all_ids(m, d, point, force, torque):
  """Every support function at every id, by name: the ids are traced, and batched with vmap."""
  count = {k: jnp.arange(getattr(m, k)) for k in ("nbody", "ngeom", "nsite", "ncam")}
  each = lambda f, size: jax.vmap(f)(count[size]) if len(count[size]) else None  # noqa: E731
  at = functools.partial
  return {
    "mj_jac": each(at(mjx.jac, m, d, point), "nbody"),
    "mj_jacPointAxis": each(at(mjx.jac_point_axis, m, d, point, force), "nbody"),
    "mj_jacDot": each(at(mjx.jac_dot, m, d, point), "nbody"),
    "mj_jacBody": each(at(mjx.jac_body, m, d), "nbody"),
    "mj_jacBodyCom": each(at(mjx.jac_body_com, m, d), "nbody"),
    "mj_jacGeom": each(at(mjx.jac_geom, m, d), "ngeom"),
    "mj_jacSite": each(at(mjx.jac_site, m, d), "nsite"),
    "mj_jacSubtreeCom": each(at(mjx.jac_subtree_com, m, d), "nbody"),
    "mj_angmomMat": each(at(mjx.angmom_mat, m, d), "nbody"),
    "mj_applyFT": each(at(mjx.apply_ft, m, d, force, torque, point), "nbody"),
    "velocity": {
      (t, local): each(lambda i, t=t, local=local: mjx.object_velocity(m, d, t, i, local), n)
      for t, n in FRAMES.items() for local in (False, True)
    },
    "acceleration": {
      (t, local): each(lambda i, t=t, local=local: mjx.object_acceleration(m, d, t, i, local), n)
      for t, n in FRAMES.items() for local in (False, True)
    },
    "force": [
      jax.vmap(lambda i, w=world: mjx.contact_force(m, d, i, w))(jnp.arange(len(d.contact.dist))) for world in (False, True)
    ] if len(d.contact.dist) else None,
  }  # fmt: skip


def jacobians_of_c(model, data, name, size, *point):
  out = np.zeros((2, getattr(model, size), 3, model.nv))
  for i in range(out.shape[1]):
    getattr(mujoco, name)(model, data, out[0, i], out[1, i], *point, i)
  return out.swapaxes(2, 3)


def check(model, ours, data, d, point, force, torque):
  for name, size, *args in (
    ("mj_jac", "nbody", point), ("mj_jacDot", "nbody", point), ("mj_jacPointAxis", "nbody", point, force),
    ("mj_jacBody", "nbody"), ("mj_jacBodyCom", "nbody"), ("mj_jacGeom", "ngeom"), ("mj_jacSite", "nsite"),
  ):  # fmt: skip
    theirs = jacobians_of_c(model, data, name, size, *args)
    if ours[name] is not None:
      assert_close(ours[name][0], theirs[0], name)
      assert_close(ours[name][1], theirs[1], name)
  for name in ("mj_jacSubtreeCom", "mj_angmomMat"):
    for b in range(model.nbody):
      theirs = np.zeros((3, model.nv))
      getattr(mujoco, name)(model, data, theirs, b)
      if not model.body_subtreemass[b]:
        theirs = np.zeros_like(theirs)  # C divides by zero
      assert_close(ours[name][b].T, theirs, (name, b))
  for b in range(model.nbody):
    theirs = np.zeros(model.nv)
    mujoco.mj_applyFT(model, data, force, torque, point, b, theirs)
    assert_close(ours["mj_applyFT"][b], theirs, b)
  for which, function in (("velocity", mujoco.mj_objectVelocity), ("acceleration", mujoco.mj_objectAcceleration)):
    for (kind, local), values in ours[which].items():
      for i in range(getattr(model, FRAMES[kind])):
        theirs = np.zeros(6)
        function(model, data, kind, i, theirs, local)
        assert_close(values[i], theirs, (which, kind, i, local))
  slots = np.flatnonzero(np.asarray(d.contact.exclude) >= 0)
  for i, slot in enumerate(slots):
    theirs = np.zeros(6)
    mujoco.mj_contactForce(model, data, i, theirs)
    assert_close(ours["force"][0][slot], theirs, slot)
    frame = data.contact[i].frame.reshape(3, 3)
    assert_close(ours["force"][1][slot], np.concatenate([frame.T @ theirs[:3], frame.T @ theirs[3:]]), slot)
  if ours["force"] is not None:
    empty = np.asarray(d.contact.exclude) != 0
    assert not np.asarray(ours["force"][0])[empty].any()


# P66, P112
@pytest.mark.parametrize("name", ["pairs", pytest.param("yielding", marks=pytest.mark.slow)])
def test_functions_equal_c(name):
  model = load(name)
  m = mjx.put_model(model)

  @mjx.jit
  def run(d, point, force, torque):
    d = mjx.rne_postconstraint(m, mjx.subtree_vel(m, mjx.forward(m, d)))
    d = mjx.energy_vel(m, mjx.energy_pos(m, d))
    return d, of_all_ids(m, d, point, force, torque)

  touched = 0
  for state, rng in states(model, 6):
    point, force, torque = rng.normal(size=(3, 3))
    d, ours = run(mjx.put_data(m, state), point, force, torque)
    data = mjx.get_data(model, d)  # C computes from what the engine computed
    theirs = mjx.get_data(model, d)
    for function in (mujoco.mj_subtreeVel, mujoco.mj_rnePostConstraint, mujoco.mj_energyPos, mujoco.mj_energyVel):
      function(model, theirs)
    for field in STAGES:
      assert_close(getattr(data, field), getattr(theirs, field), field)
      assert np.any(getattr(theirs, field))
    check(model, ours, data, d, point, force, torque)
    touched += data.ncon
  assert touched or name != "pairs"


def test_local_to_global_equals_c():
  model = load("yielding")
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  rng = np.random.default_rng(0)
  pos, turn = rng.normal(size=(model.nbody, 3)), rng.normal(size=(model.nbody, 4))
  turn /= np.linalg.norm(turn, axis=1, keepdims=True)
  ours = jax.vmap(mjx.local_to_global)(data.xpos, data.xquat, pos, turn)
  for b in range(model.nbody):
    xpos, xmat = np.zeros(3), np.zeros(9)
    mujoco.mj_local2Global(data, xpos, xmat, pos[b], turn[b], b, 0)
    assert_close(ours[0][b], xpos, b)
    assert_close(ours[1][b].ravel(), xmat, b)


def test_wrong_ids_are_refused():
  m = mjx.put_model(load("yielding"))
  d = mjx.make_data(m)
  with pytest.raises(IndexError, match="nbody = 9"):
    mjx.jac(m, d, np.zeros(3), 9)
  with pytest.raises(IndexError, match="ncam"):
    mjx.object_velocity(m, d, mjx.ObjType.CAMERA, -1)
  with pytest.raises(IndexError, match="ncon = 0"):
    mjx.contact_force(m, d, 0)
  with pytest.raises(ValueError, match="XBODY"):
    mjx.object_velocity(m, d, mjx.ObjType.JOINT, 0)
