"""Distance fields of meshes: contacts with every shape along a trajectory of MuJoCo, distances, rays, derivatives, refusals."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.collision import field
from mjx_lite.core.enums import GeomType
from mjx_lite.core.errors import UnsupportedModelError

STEPS, EVERY = 240, 5
SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box", "mesh", "sdf")
# C takes differences over 1e-8 for the gradients outside octrees, and a point that comes upon a kink of a field goes to the one
# or the other side by round-off: most contacts agree to 1e-9, some to 1e-7, a few are elsewhere
EXACT, CLOSE = 1e-9, 1e-6


@functools.cache
def _trajectory():
  """Poses (n, ngeom, ...), and C's contacts as rows (geoms, dist, pos, frame)."""
  model = load("sdf")
  data = mujoco.MjData(model)
  pos, mat, contacts = [], [], []
  for _ in range(STEPS // EVERY):
    mujoco.mj_step(model, data, EVERY)
    mujoco.mj_fwdPosition(model, data)
    contacts.append(np.array([[*c.geom, c.dist, *c.pos, *c.frame] for c in data.contact]).reshape(-1, 15))
    pos.append(data.geom_xpos.copy())
    mat.append(data.geom_xmat.reshape(-1, 3, 3).copy())
  return np.array(pos), np.array(mat), contacts


@functools.cache
def _model():
  m = mjx.put_model(load("sdf"))
  start = mjx.make_data(m)

  def contacts(pos, mat):
    return mjx.collision(m, start.replace(geom_xpos=pos, geom_xmat=mat)).contact

  def depth(pos, mat, weight):
    c = contacts(pos, mat)
    met = c.exclude >= 0
    numbers = jnp.concatenate([c.dist[:, None], c.pos, c.frame.reshape(-1, 9)], axis=1)
    return jnp.sum(jnp.where(met[:, None], numbers * weight, 0)), c

  value_and_grad = jax.value_and_grad(depth, argnums=(0, 1), has_aux=True)
  return m, mjx.jit(jax.vmap(value_and_grad, in_axes=(0, 0, None)))


@functools.cache
def _found():
  m, evaluate = _model()
  pos, mat = _trajectory()[:2]
  weight = np.random.default_rng(1).normal(size=(len(m.plan.collision.slot_pair), 13))
  (value, c), slope = jax.tree.map(np.asarray, evaluate(pos, mat, weight))
  return weight, value, c, slope


@pytest.mark.parametrize("shape", (*SHAPES, "plane"))
def test_finds_what_mujoco_finds(shape):
  model, (_, _, c, _) = load("sdf"), _found()
  ring = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "ring")
  other = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "floor" if shape == "plane" else shape)
  states = same = n = exact = close = 0
  for k, theirs in enumerate(_trajectory()[2]):
    geoms = sorted((ring, other), key=lambda g: (model.geom_type[g], g))
    slot = np.flatnonzero((c.exclude[k] >= 0) & (np.sort(c.geom[k]) == np.sort(geoms)).all(axis=1))
    ours = np.concatenate([c.dist[k, slot, None], c.pos[k, slot], c.frame[k, slot].reshape(-1, 9)], axis=1)
    theirs = theirs[(np.sort(theirs[:, :2]) == np.sort(geoms)).all(axis=1), 2:]
    states += len(theirs) > 0
    same += len(ours) == len(theirs) > 0
    assert len(theirs) or not len(ours)
    if len(ours) == len(theirs):
      error = np.abs(ours - theirs).max(axis=1, initial=0)
      n, exact, close = n + len(ours), exact + np.sum(error < EXACT), close + np.sum(error < CLOSE)
  assert states > 4
  print(shape, states, same, n, exact, close)
  assert same >= 0.95 * states, (same, states)
  assert close >= 0.95 * n, (close, n)
  assert exact >= 0.9 * n, (exact, n)
