"""Many dofs whose contacts couple moving bodies: a few change the articulated pass, more take conjugate gradients. Beside C."""

import jax
import jax.numpy as jnp
import lane_tests
import mujoco
import numpy as np
import pytest
import straight
from derivatives import assert_gradients
from lane_tests import count
from models import TOO_LARGE, WATCHED

import mjx_lite as mjx
from mjx_lite.constraint import jacobian
from mjx_lite.constraint.rows import Jacobian
from mjx_lite.math import krylov
from mjx_lite.ops import lanes
from mjx_lite.solver import coupling, operator

LIMB = (
  '<body pos="{x} 0 0"><joint axis="0 1 0" range="-60 60" damping=".05"/>'
  '<geom type="capsule" fromto="0 0 0 {x} 0 -.1" size=".04" condim="{condim}"/></body>'
)
BODY = (
  '<body pos="{x} {y} {z}" euler="{a} {b} {c}"><freejoint/><geom type="capsule" size=".06 .1" condim="{condim}"/>{limbs}</body>'
)


def heap(cone, bodies=8):
  """Bodies with two limbs each that fall upon each other in a pit, 8 dofs each."""
  rng, walls = np.random.default_rng(0), ((1, 0), (-1, 0), (0, 1), (0, -1))
  parts = []
  for i in range(bodies):
    condim = (3, 4, 1, 6)[i % 4]
    limbs = "".join(LIMB.format(x=x, condim=condim) for x in (0.15, -0.15))
    a, b, c = rng.uniform(-90, 90, 3)
    parts.append(BODY.format(x=0.1 * (i % 3), y=0.1 * (i % 2), z=0.15 + 0.11 * i, a=a, b=b, c=c, condim=condim, limbs=limbs))
  pit = "".join(f'<geom type="plane" size="1 1 .1" pos="{-0.4 * x} {-0.4 * y} 0" zaxis="{x} {y} 0"/>' for x, y in walls)
  return mujoco.MjModel.from_xml_string(
    f'<mujoco><option timestep="0.004" cone="{cone}" iterations="100" tolerance="1e-10"><flag island="disable"/></option>'
    f'<worldbody><geom type="plane" size="1 1 .1"/>{pit}{"".join(parts)}</worldbody></mujoco>'
  )


def states(model, m, n, start=120, between=(3, 99)):
  """Some states of a trajectory, from where the bodies lie upon each other; C's accelerations and iterations there.

  So many of the contacts are between bodies that move.
  """
  data, found, qacc, niter = mujoco.MjData(model), [], [], []
  for i in range(start + 10 * n):
    if i >= start and i % 10 == 0:
      found.append(mjx.put_data(m, data))
    mujoco.mj_step(model, data)
    if len(found) > len(qacc):
      qacc.append(data.qacc.copy())
      niter.append(data.solver_niter[0])
      pairs = model.body_rootid[model.geom_bodyid[data.contact.geom]]
      assert between[0] <= ((pairs[:, 0] != pairs[:, 1]) & (pairs[:, 0] > 0)).sum() <= between[1]
  return jax.tree.map(lambda *x: np.stack(x), *found), np.array(qacc), np.array(niter)


@pytest.mark.parametrize(
  ("cone", "tile"), [("pyramidal", None), *(pytest.param("elliptic", x, marks=pytest.mark.slow) for x in (0, None))]
)
@TOO_LARGE
def test_accelerations_and_iterations_are_those_of_c(cone, tile):
  model = heap(cone)
  m = mjx.put_model(model, dtype=np.float64, ncon_max=80, pair_max=120, tile=tile)
  assert operator.is_coupled(m) and not operator.is_tree_sparse(m)
  many, qacc, niter = states(model, m, 10)
  assert tile is not None or cone == "elliptic" or count(jax.vmap(mjx.forward, in_axes=(None, 0)), m, many, jit=mjx.jit) == 1
  d = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  assert not np.any(d.status.bits)
  np.testing.assert_allclose(d.qacc, qacc, rtol=1e-7, atol=1e-7 * np.abs(qacc).max())
  assert niter.mean() > 2 and abs(d.solver_niter.mean() / niter.mean() - 1) < 0.1


def test_what_contacts_couple_in_a_kernel():
  """The stiffness of single bodies, and the product with the coupling of two: slot by slot as all slots at once."""
  m, worlds, rng = mjx.put_model(heap("elliptic"), dtype=np.float64, ncon_max=12, pair_max=120), 5, np.random.default_rng(0)
  c, bodies = m.plan.contact, np.arange(m.nbody)
  body = np.concatenate([rng.choice(bodies, size=(12, worlds)), rng.choice(bodies[1:], size=(12, worlds))]).astype(np.int32)
  body[3:6] = body[3]  # contacts of one pair follow each other
  body[15:18] = body[15]
  body[:12] = np.where(body[:12] == body[12:], 0, body[:12])
  a = rng.normal(size=(12, c.ndir, c.ndir, worlds))
  a = np.einsum("ijkw,ilkw->ijlw", a, a) * (rng.random((12, 1, 1, worlds)) < 0.7)
  basis, cdof, vec = (rng.normal(size=(*shape, worlds)) for shape in ((24, c.ndir, 6), (m.nv, 6), (m.nv,)))
  place = np.arange(m.nbody) - 1

  def products(a, basis, body, cdof, x):
    none = jnp.zeros((0, 3, 1))
    j = Jacobian(ball_axis=none, basis=basis, mu=0 * a[:, 0, :1], entries=none[:, 0], ten_J=none, body=body, number=None)
    couples = coupling.between(m, j, a)
    pairs = jacobian.couple_pairs(m, j, a, couples)
    return (
      jacobian.add_curvature(m, j, a, jnp.zeros((m.nbody - 1, 21, a.shape[-1])), place),
      jacobian.mul_pairs(m, j, a, pairs, cdof, x),
    )

  with lanes.packed():
    found = lane_tests.run(products, a, basis, body, cdof, vec, has_loops=True)
  for x, y in zip(found, straight.alone(products, a, basis, body, cdof, vec), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10 * np.abs(y).max())


@pytest.mark.parametrize(("worlds", "pairs"), [(5, 4), (5, 99), (40, 4)])
def test_contacts_of_a_pair_of_bodies_are_one(worlds, pairs, tiles_in_regions):
  """What they couple in a tile of worlds, and where there is no room for all pairs, or no tile: beside dense products."""
  m = mjx.put_model(heap("elliptic"), dtype=np.float64, ncon_max=12, pair_max=120)
  c, rng = m.plan.contact, np.random.default_rng(0)
  geoms = np.stack([m.plan.collision.geom1, m.plan.collision.geom2])
  meet = np.unique(m.geom_bodyid[geoms], axis=1)
  touching = meet[:, rng.permutation(meet.shape[1])[:pairs]]
  body = touching[:, rng.integers(0, touching.shape[1], (c.ncon, worlds))]
  basis = rng.normal(size=(2, c.ncon, c.ndir, 6, worlds))
  half = rng.normal(size=(c.ncon, c.ndir, c.ndir, worlds)) * (rng.random((c.ncon, 1, 1, worlds)) < 0.8)
  a = np.einsum("nikw,njkw->nijw", half, half)
  cdof, x = rng.normal(size=(m.nv, 6, worlds)), rng.normal(size=(m.nv, worlds))
  empty, mu = np.zeros((0, worlds)), np.ones((c.ncon, 5, worlds))
  j = Jacobian(empty, basis.reshape(-1, *basis.shape[2:]), mu, empty, empty, body.reshape(-1, worlds).astype(np.int32), None)

  moved = c.sides.moved[body].transpose(0, 1, 3, 2)  # (2, ncon, nv, worlds)
  pushes = moved.any(axis=2).all(axis=0) & (a[:, 0, 0] > 0)

  @mjx.jit
  def product(j, a, cdof, x):
    found = jacobian.couple_pairs(m, j, a, jnp.asarray(pushes))
    return jacobian.mul_pairs(m, j, a, found, cdof, x), found.number, found.unpaired

  found, number, unpaired = product(j, a, cdof, x)
  first, second = np.einsum("snikw,vkw,snvw,nw->snivw", basis, cdof, moved, pushes)
  right = -sum(np.einsum("nivw,nijw,njuw,uw->vw", p, a, q, x) for p, q in ((first, second), (second, first)))
  np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9 * np.abs(right).max())
  distinct = len(np.unique(body[:, pushes], axis=1).T)
  if worlds == 5:
    assert number == min(distinct, c.ncon) and np.any(unpaired) == (distinct > c.ncon) == (pairs > 4)
  else:
    np.testing.assert_array_equal(unpaired, pushes)


def few(cone, slots=20):
  """Six of them, where the first ones meet; few contacts between bodies, of which no more than these are provided for."""
  model = heap(cone, bodies=6)
  m = mjx.put_model(model, dtype=np.float64, ncon_max=slots, pair_max=20)
  assert operator.is_coupled(m)
  return m, states(model, m, 6, start=20, between=(1, 6))


@pytest.mark.parametrize("cone", [pytest.param("pyramidal", marks=pytest.mark.slow), "elliptic"])
def test_few_contacts_between_bodies(cone):
  m, (many, qacc, _) = few(cone)
  d = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  assert not np.any(d.status.bits)
  np.testing.assert_allclose(d.qacc, qacc, rtol=1e-7, atol=1e-7 * np.abs(qacc).max())


@WATCHED
def test_few_contacts_between_bodies_need_no_conjugate_gradients(monkeypatch):
  """One solve a direction, however many slots there are; more where the contacts are not taken into the factor, or not all."""
  solves, directions, split = [], [], krylov.split_solve

  def watched(solve, rest, x, *args):
    def watch(y):
      jax.debug.callback(lambda: solves.append(None))
      return solve(y)

    jax.debug.callback(lambda: directions.append(None))
    return split(watch, rest, x, *args)

  monkeypatch.setattr(krylov, "split_solve", watched)

  def per_direction(slots):
    m, (many, _, _) = few("pyramidal", slots)
    solves.clear(), directions.clear()
    for i in range(len(many.qpos)):
      jax.block_until_ready(jax.jit(mjx.forward)(m, jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), many)))
    jax.effects_barrier()
    return len(solves) / len(directions)

  assert per_direction(20) == per_direction(60) == 1
  monkeypatch.setattr(coupling, "_ROWS", 18)  # three contacts of six rows
  assert 1 < per_direction(21) < 12
  monkeypatch.setattr(coupling, "_ROWS", 1)
  assert per_direction(22) > 3


def test_no_few_contacts_beside_a_world_of_many():
  """Where one world has many of them, for which all take conjugate gradients, nothing is chosen; else the first ones."""
  m = mjx.put_model(heap("pyramidal"), dtype=np.float64, ncon_max=24, pair_max=120)
  c, empty = m.plan.contact, np.zeros((0, 2))
  pushing = np.zeros((c.ncon, 2))
  pushing[[1, 5, 6], 0] = 1
  pushing[2:12, 1] = 1
  assert 2 * (coupling._ROWS // c.ndir) < 10
  a = pushing[:, None, None] * np.eye(c.ndir)[..., None]
  body = np.repeat(np.int32([1, 4]), c.ncon)[:, None] * np.ones((1, 2), np.int32)

  def chosen(worlds):
    fields = np.zeros((2 * c.ncon, c.ndir, 6, worlds)), np.ones((c.ncon, 5, worlds)), empty, empty, body[:, :worlds]
    return mjx.jit(lambda a: coupling.choose(m, Jacobian(empty, *fields, None), a))(a[..., :worlds])

  one = chosen(1)
  assert one.number == 3
  np.testing.assert_array_equal(one.slot[:3, 0], [1, 5, 6])
  np.testing.assert_array_equal(one.among, pushing[:, :1])
  assert not np.any(one.unchosen)
  both = chosen(2)
  assert both.number == 0 and not np.any(both.among)
  np.testing.assert_array_equal(both.unchosen, pushing)


@TOO_LARGE
def test_single_precision_finds_the_same():
  model = heap("pyramidal")
  m = mjx.put_model(model, dtype=np.float32, ncon_max=80, pair_max=120)
  many, qacc, _ = states(model, m, 4)
  d = mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, many)
  np.testing.assert_allclose(d.qacc, qacc, atol=2e-3 * np.abs(qacc).max())


def many(cone):
  model = heap(cone)
  m = mjx.put_model(model, dtype=np.float64, ncon_max=80, pair_max=120)
  return m, states(model, m, 1)


@pytest.mark.parametrize("scene", [few, pytest.param(many, marks=pytest.mark.slow)])
def test_gradients(scene):
  m, found = scene("elliptic")
  d = jax.tree.map(lambda x: jnp.asarray(x[0]), found[0])
  rng = np.random.default_rng(1)
  weight = rng.normal(size=m.nv)

  def loss(qvel, mass, ctrl):
    after = mjx.step(m.replace(body_mass=mass), d.replace(qvel=qvel, qfrc_applied=ctrl))
    return jnp.dot(after.qvel, weight)

  at = d.qvel, m.body_mass, jnp.zeros(m.nv)
  assert_gradients(loss, at, [rng.normal(size=x.shape) * 0.1 for x in at], names=["qvel", "mass", "qfrc_applied"], eps=1e-7)
