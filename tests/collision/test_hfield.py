"""Contacts of every shape with a rough height field, along a trajectory of MuJoCo, and their derivatives."""

import copy
import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import SCENES, load

import mjx_lite as mjx
from mjx_lite.errors import UnsupportedModelError

STEPS = 200
EVERY = 4
SHAPES = ("sphere", "capsule", "box", "ellipsoid", "cylinder", "mesh")  # of the geoms 1 to 6
# without a margin and a gap C ends its search for their depth early (see `hfield.collide`)
CORNERED = [1 + SHAPES.index(k) for k in ("box", "mesh")]


@functools.cache
def _trajectory():
  """Poses (n, ngeom, ...), and C's contacts as rows (geom, dist, pos, normal): as they are, and with a gap of 1e-9."""
  model, patient = load("hills"), copy.deepcopy(load("hills"))
  patient.geom_gap[CORNERED] = 1e-9
  data, again = mujoco.MjData(model), mujoco.MjData(patient)
  pos, mat, contacts = [], [], ([], [])
  for _ in range(STEPS // EVERY):
    mujoco.mj_step(model, data, EVERY)
    again.qpos[:] = data.qpos
    for m, d, found in ((model, data, contacts[0]), (patient, again, contacts[1])):
      mujoco.mj_fwdPosition(m, d)
      found.append(np.array([[c.geom[1], c.dist, *c.pos, *c.frame[:3]] for c in d.contact]).reshape(-1, 8))
    pos.append(data.geom_xpos.copy())
    mat.append(data.geom_xmat.reshape(-1, 3, 3).copy())
  return np.array(pos), np.array(mat), *contacts


@functools.cache
def _collide():
  m = mjx.put_model(load("hills"))
  start = mjx.make_data(m)

  def contacts(pos, mat, size):
    d = mjx.collision(m.replace(geom_size=size), start.replace(geom_xpos=pos, geom_xmat=mat))
    return d.contact, d.status.bits

  return m, contacts, mjx.jit(jax.vmap(contacts, in_axes=(0, 0, None)))


@functools.cache
def _found():
  m, _, collide = _collide()
  pos, mat = _trajectory()[:2]
  return jax.tree.map(np.asarray, collide(pos, mat, m.geom_size))


@pytest.mark.parametrize("shape", SHAPES)
def test_finds_what_mujoco_finds(shape):
  c, bits = _found()
  assert not bits.any()
  geom = 1 + SHAPES.index(shape)
  states = same = n = close = placed = 0
  for k, theirs in enumerate(_trajectory()[3]):
    slot = np.flatnonzero((c.exclude[k] >= 0) & (c.geom[k, :, 1] == geom))
    ours = np.concatenate([c.dist[k, slot, None], c.pos[k, slot], c.frame[k, slot, 0]], axis=1)
    theirs = theirs[theirs[:, 0] == geom, 1:]
    states += len(theirs) > 0
    same += len(ours) == len(theirs) > 0
    if len(ours) == len(theirs):
      error = np.abs(ours - theirs)
      near = error[:, 0] < 2e-6
      n += len(ours)
      close += near.sum()
      placed += np.sum(near & (error[:, 1:4].max(axis=1, initial=0) < 1e-3))
  assert states > 0.7 * len(_trajectory()[3])
  assert same >= 0.98 * states, (same, states)
  assert close >= 0.98 * n, (close, n)
  # a cap or a face may lie flat
  assert placed >= {"cylinder": 0.85}.get(shape, 0.96) * close, (placed, close)


def test_where_mujoco_ends_its_search_early_it_finds_less():
  _, _, early, patient = _trajectory()
  more = np.concatenate([a[:, 1] - b[:, 1] for a, b in zip(early, patient, strict=True)])
  assert more.min() > -2e-6 and (more > 1e-4).any()


@pytest.mark.slow
def test_derivative_of_depth_and_place():
  m, contacts, _ = _collide()
  pos, mat = _trajectory()[:2]

  def depth(pos, mat):
    c, _ = contacts(pos, mat, m.geom_size)
    met = c.exclude >= 0
    return jnp.sum(jnp.where(met, c.dist, 0)) + jnp.sum(jnp.where(met[:, None], c.pos, 0)), c

  collide = mjx.jit(jax.vmap(jax.value_and_grad(depth, has_aux=True)))
  (_, c), slope = collide(pos, mat)
  assert np.isfinite(slope).all()
  move = np.random.default_rng(0).normal(size=pos.shape)
  step = 1e-7
  (right, c_right), _ = collide(pos + step * move, mat)
  (left, c_left), _ = collide(pos - step * move, mat)
  same = np.all((c.exclude == c_right.exclude) & (c.exclude == c_left.exclude), axis=1) & (c.exclude >= 0).any(axis=1)
  difference = (np.asarray(right) - np.asarray(left)) / (2 * step)
  there = np.sum(slope * move, axis=(1, 2))
  wrong = same & (np.abs(difference - there) > 1e-4 * (1 + np.abs(there)))
  assert same.sum() > 25
  # where faces lie on each other, or two features are equally near, there is no derivative
  assert wrong.sum() < 0.1 * same.sum(), (wrong.sum(), same.sum())


def test_a_shape_that_outgrows_its_window_is_marked():
  m, _, collide = _collide()
  pos, mat = _trajectory()[:2]
  bits = collide(pos, mat, 3 * m.geom_size)[1]
  assert (bits == 1 << mjx.Warning.CONTACTFULL).all()


@pytest.mark.parametrize("crowded, size", [(False, 4), (True, 9)])
def test_capacities_keep_the_first_contacts_and_mark_the_rest(crowded, size):
  """Of a sphere, and of a box or a beam that has more prisms under it than a pair has slots."""
  spec = mujoco.MjSpec.from_file(str(SCENES / "hills.xml"))
  for body in spec.worldbody.bodies[3:]:
    spec.delete(body)
  beam = spec.worldbody.bodies[2]
  beam.geoms[0].gap = 1e-9
  if crowded:
    beam.quat, beam.pos, beam.geoms[0].size = [0.8, 0.2, 0.1, 0.5], [-0.2, 0.05, 0.15], [0.21, 0.04, 0.03]
  model = spec.compile()
  m = mjx.put_model(model, ncon_max=size)
  ball, box = (next(g.tables.own for g in m.plan.collision.groups if g.name == f"hfield-{k}") for k in ("sphere", "*"))
  assert m.plan.contact.chosen and len(ball.direct) and not len(ball.crowded)
  assert bool(len(box.crowded)) == crowded != bool(len(box.direct))
  data, poses, expected = mujoco.MjData(model), [], []
  for _ in range(STEPS // EVERY):
    mujoco.mj_step(model, data, EVERY)
    mujoco.mj_fwdPosition(model, data)
    poses.append((data.geom_xpos.copy(), data.geom_xmat.reshape(-1, 3, 3).copy()))
    expected.append(np.array([[*c.geom, c.exclude, c.dist] for c in data.contact]).reshape(-1, 4))
  start = mjx.make_data(m)
  collide = mjx.jit(jax.vmap(lambda x, r: mjx.collision(m, start.replace(geom_xpos=x, geom_xmat=r))))
  d = collide(*(np.array(x) for x in zip(*poses, strict=True)))
  total = np.array([len(x) for x in expected])
  assert total.min() == 0 and size < total.max()
  np.testing.assert_array_equal(d.status.bits, np.where(total > size, 1 << mjx.Warning.CONTACTFULL, 0))
  for k, theirs in enumerate(expected):
    n = min(len(theirs), size)
    ours = np.concatenate([d.contact.geom[k], d.contact.exclude[k][:, None], d.contact.dist[k][:, None]], axis=1)
    np.testing.assert_allclose(ours[:n], theirs[:n], atol=2e-6)
    assert (d.contact.exclude[k][n:] < 0).all()


# P68
def test_one_pair_has_fifty_contacts_at_most():
  """The first ones are those of C, and the loss of the others is marked."""
  heights = " ".join(str(x) for x in np.random.default_rng(0).uniform(size=49).round(2))
  model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <asset><hfield name="rough" nrow="7" ncol="7" size="1 1 .1 .1" elevation="{heights}"/></asset>
      <worldbody>
        <geom type="hfield" hfield="rough"/><body pos="0 0 2.7"><freejoint/><geom size="3"/></body>
      </worldbody>
    </mujoco>""")
  m, data = mjx.put_model(model), mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  d = mjx.jit(lambda d: mjx.collision(m, mjx.kinematics(m, d)))(mjx.make_data(m))
  assert data.ncon == len(d.contact.dist) == 50
  np.testing.assert_array_equal(d.contact.exclude, 0)
  np.testing.assert_allclose(d.contact.dist, data.contact.dist, atol=2e-6)
  assert d.status.bits == 1 << mjx.Warning.CONTACTFULL


def test_more_cells_than_can_be_are_refused():
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <asset><hfield name="fine" nrow="100" ncol="100" size="1 1 .1 .1"/></asset>
      <worldbody>
        <geom name="floor" type="hfield" hfield="fine"/>
        <body pos="0 0 1"><freejoint/><geom name="roof" type="box" size="1 1 .1"/></body>
      </worldbody>
    </mujoco>""")
  with pytest.raises(UnsupportedModelError, match="'floor' and geom 'roof': collision = 99 x 99 cells"):
    mjx.put_model(model)


@pytest.mark.slow
def test_a_sphere_and_a_capsule_move_as_in_c():
  spec = mujoco.MjSpec.from_file(str(SCENES / "hills.xml"))
  for body in spec.worldbody.bodies[2:]:
    spec.delete(body)
  model = spec.compile()
  data, m = mujoco.MjData(model), mjx.put_model(model)
  step, d = mjx.jit(mjx.step), mjx.make_data(m)
  contacts = 0
  for _ in range(120):
    mujoco.mj_step(model, data)
    d = step(m, d)
    contacts += data.ncon
  assert contacts > 200
  np.testing.assert_allclose(d.qpos, data.qpos, atol=1e-4)
