"""Capacities of contacts: equal to C while they suffice, a mark where they do not, gradients, batches."""

import itertools

import jax
import jax.numpy as jnp
import lane_tests
import mujoco
import numpy as np
import pytest
from models import WATCHED, load

import mjx_lite as mjx
from mjx_lite import Warning
from mjx_lite.collision import broadphase
from mjx_lite.ops import lanes
from mjx_lite.testing import compare

STEPS = 300


def visited(model):
  data, out = mujoco.MjData(model), []
  for _ in range(STEPS):
    out.append(data.qpos.copy())
    mujoco.mj_step(model, data)
  return np.array(out)


@pytest.mark.parametrize("name", ["pairs", pytest.param("pile", marks=pytest.mark.slow)])
def test_stages_equal_c_with_tight_capacities(name):
  model = compare.optimal(load(name))
  tight = mjx.suggest_capacity(model, visited(model), headroom=1, spare=0)
  engine, data, wrong = compare.Engine(model, **tight), mujoco.MjData(model), []
  groups = {g.name: g for g in engine.m.plan.collision.groups}
  assert any(0 < g.budget < 0.7 * len(g.pair) for g in groups.values())
  assert engine.m.plan.sizes["ncon"] == tight.ncon_max < 0.5 * mjx.put_model(model).plan.sizes["ncon"]
  seen = 0
  for i in range(STEPS):
    if i % 15 == 0:
      errors = compare.compare_stages(model, data, engine=engine)
      wrong += [f"step {i}: {e}" for e in errors if not e.ok]
    mujoco.mj_step(model, data)
    seen = max(seen, data.ncon)
  assert not wrong, "\n".join(wrong[:20])
  assert seen == tight.ncon_max


# P95
def test_what_does_not_fit_is_marked():
  model = load("pile")
  data = mujoco.MjData(model)
  apart = data.qpos + np.tile([0, 0, 2, 0, 0, 0, 0], 12) * np.repeat(np.arange(12), 7)
  mujoco.mj_step(model, data, STEPS)
  mujoco.mj_fwdPosition(model, data)
  assert data.ncon > 20

  def collide(**capacity):
    m = mjx.put_model(model, **capacity)
    fall = jax.vmap(lambda q: mjx.collision(m, mjx.kinematics(m, mjx.make_data(m).replace(qpos=q))))
    return mjx.jit(fall)(np.stack([apart, data.qpos]))

  short_of_slots = collide(ncon_max=data.ncon - 1, pair_max={"sphere-box": 40})
  short_of_pairs = collide(ncon_max=data.ncon, pair_max=4)
  # the first in C's order stay
  np.testing.assert_array_equal(short_of_slots.contact.geom[1], data.contact.geom[:-1])
  for kind, d in ((Warning.CONTACTFULL, short_of_slots), (Warning.PAIRFULL, short_of_pairs)):
    np.testing.assert_array_equal(d.status.bits, [0, 1 << kind])
    assert d.status.count[1, kind] == 1


def convex_pairs():
  """States of a scene, its model with room for the contacts of these, and what finds them in all, with a number of each."""
  model = load("convex")
  qpos = visited(model)[20::8]
  few = mjx.put_model(model, **mjx.suggest_capacity(model, qpos, headroom=1, spare=0))
  group = few.plan.collision.groups[-1]
  assert group.name == "convex" and group.budget < 0.6 * len(group.pair)

  def depths(m, d, q):
    d = mjx.collision(m, mjx.kinematics(m, d.replace(qpos=q)))
    real = d.contact.exclude >= 0
    return jnp.sum(jnp.where(real, d.contact.dist, 0)), (jnp.sum(real), d)

  def look(m, q):
    each, (number, d) = jax.vmap(lambda x: depths(m, mjx.make_data(m), x))(q)
    return jnp.sum(each), (each, number, d)

  return model, qpos, few, look


@pytest.mark.slow  # 40 s to compile; the real robots of the stages' test and of test_robots.py are looked at with capacities
def test_convex_pairs_chosen_are_as_all_of_them():
  model, qpos, few, look = convex_pairs()
  (_, every), (number, found) = (mjx.jit(lambda q, m=m: look(m, q)[1][1:])(qpos) for m in (mjx.put_model(model), few))
  assert not found.status.bits.any()
  for k in range(len(qpos)):
    a, b = (
      [getattr(c, f)[k][c.exclude[k] >= 0] for f in ("geom", "dist", "pos", "frame")] for c in (every.contact, found.contact)
    )
    # the ends of an edge come in either order
    a, b = ([x[np.lexsort((c[1], *c[0].T))] for x in c] for c in (a, b))
    for x, y in zip(a, b, strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
  assert number.sum() > 100


@pytest.mark.slow  # 25 s to compile; ways of pairs are differentiated in test_convex.py, choices in test_contact_gradient.py
def test_gradient_through_the_choice_of_convex_pairs():
  """That of differences, where these see the same contacts."""
  _, qpos, few, look = convex_pairs()
  near = mjx.jit(jax.value_and_grad(lambda q: look(few, q), has_aux=True))
  (_, (_, number, _)), slope = near(qpos)
  along = 1e-7 * np.random.default_rng(0).normal(size=qpos.shape)
  ends = [near(qpos + sign * along)[0][1] for sign in (1, -1)]
  same = (ends[0][1] == number) & (ends[1][1] == number) & (number > 0)
  want, got = 0.5 * (ends[0][0] - ends[1][0])[same] / 1e-7, jnp.sum(slope * along, axis=1)[same] / 1e-7
  assert np.isfinite(slope).all() and same.sum() > 20
  assert np.mean(np.abs(want - got) < 1e-4 * (1 + np.abs(want))) > 0.9, np.stack([want, got], axis=1)


def test_gradients_and_batches():
  spheres = "".join(
    f'<body pos="{0.15 * k} 0.02 {0.09 + 0.01 * k}"><freejoint/>'
    f'<geom type="sphere" size="0.1" condim="{1 + 2 * (k % 2)}"/></body>'
    for k in range(4)
  )
  model = mujoco.MjModel.from_xml_string(
    f'<mujoco><option timestep="0.004"/><worldbody><geom type="plane" size="1 1 1"/>{spheres}</worldbody></mujoco>'
  )
  model = compare.optimal(model)
  m = mjx.put_model(model, pair_max=3, ncon_max=6)
  assert m.plan.contact.chosen and m.plan.contact.mixed
  weight, rng = np.random.default_rng(0).normal(size=m.nv), np.random.default_rng(1)

  def loss(qpos, qvel):
    d = mjx.step(m, mjx.make_data(m).replace(qpos=qpos, qvel=qvel))
    return jnp.dot(d.qvel, weight), d.contact.dist

  qpos = np.array(model.qpos0) + rng.normal(size=(3, m.nq)) * 0.01
  qpos[2, 2::7] += np.array([0, 0.3, 0, 0.3])  # other contacts than in the first worlds
  qvel = 0.1 * rng.normal(size=(3, m.nv))
  many = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
  both = mjx.jit(many)
  (values, dist), grads = both(qpos, qvel)
  assert len({int(n) for n in jnp.sum(dist < 0, axis=1)}) > 1
  x = qpos, qvel
  for k in range(2):
    along = [1e-6 * rng.normal(size=y.shape) * (i == k) for i, y in enumerate(x)]
    ends = [both(*(y + sign * a for y, a in zip(x, along, strict=True)))[0][0] for sign in (1, -1)]
    np.testing.assert_allclose(1e6 * jnp.sum(grads[k] * along[k], axis=1), 1e6 * (ends[0] - ends[1]) / 2, rtol=1e-5, atol=1e-6)
  for i in range(2):
    np.testing.assert_allclose(mjx.jit(loss)(qpos[i], qvel[i])[0], values[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
  "name, options, text",
  [
    ("pile", dict(ncon_max=0), "ncon_max has to be at least 1"),
    ("pile", dict(pair_max={"box-boxes": 3}), "box-boxes"),
  ],
)
def test_capacities_that_cannot_be_used(name, options, text):
  with pytest.raises(ValueError, match=text):
    mjx.put_model(load(name), **options)


def test_bound_of_round_shapes_is_their_distance():
  rng = np.random.default_rng(3)
  shapes = ["sphere", "capsule"] * 12
  quats = rng.normal(size=(24, 4))
  quats[:8] = np.eye(4)[0]  # parallel: one behind the other, overlapping, on one line
  places = rng.uniform(-0.6, 0.6, (24, 3))
  places[:4, :2] = 0
  geoms = "".join(
    f'<geom type="{t}" size="{rng.uniform(0.02, 0.1)} {rng.uniform(0.05, 0.5)}" pos="{p[0]} {p[1]} {p[2]}" '
    f'quat="{q[0]} {q[1]} {q[2]} {q[3]}"/>'
    for t, p, q in zip(shapes, places, quats, strict=True)
  )
  model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{geoms}</worldbody></mujoco>")
  data = mujoco.MjData(model)
  mujoco.mj_kinematics(model, data)
  one, two = np.triu_indices(24, 1)
  m = mjx.put_model(model, dtype=np.float64)
  native = jax.tree.map(lambda x: jnp.asarray(x)[..., None], m)
  poses = jnp.asarray(data.geom_xpos[..., None]), jnp.asarray(data.geom_xmat.reshape(-1, 3, 3, 1))
  bounds = broadphase.bounds(native, *poses)
  reach, exact = 0.1, np.array([mujoco.mj_geomDistance(model, data, i, j, 10, None) for i, j in zip(one, two, strict=True)])
  balls = np.linalg.norm(data.geom_xpos[one] - data.geom_xpos[two], axis=1) - model.geom_rbound[one] - model.geom_rbound[two]
  near = balls < reach
  assert 20 < near.sum() < len(near) - 100
  reaches = jnp.full((len(one), 1), reach)
  bound = broadphase.overlap(bounds, broadphase.Candidates(one, two, "capsule-capsule", np.arange(24)), reaches)[:, 0]
  np.testing.assert_allclose(bound[near], reach - exact[near], atol=1e-9)
  assert np.all(bound[~near] <= 0) and np.all((bound >= reach - exact - 1e-9) | (exact > reach))
  # looked at part after part, whatever belongs to one tree
  touching = int((bound > 0).sum())
  for tree in (np.arange(24), np.zeros(24, int), np.arange(24) // 12):
    candidates = broadphase.Candidates(one, two, "capsule-capsule", tree)
    near = broadphase.near_trees(bounds.balls, tree, jnp.asarray(reach))
    for budget in (touching - 3, touching, touching + 5):
      chosen = broadphase.nearest_in_tile(bounds, candidates, reaches, budget, near=near)
      wanted = broadphase.nearest(bound[:, None], budget)
      assert chosen.number == wanted.number == touching
      found, expected = (np.sort(x.row[x.valid]) for x in (chosen, wanted))
      np.testing.assert_array_equal(found, expected)
      assert len(found) == min(budget, touching)


@pytest.mark.parametrize("worlds", [1, pytest.param(16, marks=pytest.mark.slow), 70])  # 70: more than an integer has bits
def test_candidates_near_each_others_trees(worlds, monkeypatch):
  """Three trees of balls, two of which overlap, at an end and in the last world alone: few pairs are looked at."""
  rng = np.random.default_rng(worlds)
  tree, along = np.repeat([7, 2, 4], 12), np.tile(np.arange(12), 3)
  pos = rng.uniform(-0.2, 0.2, (36, 3, worlds))
  pos[:, 0] += along[:, None]
  pos[tree == 2, 0] += 10  # its first two balls beside the last two of tree 7
  pos[tree == 4, 1] += 50
  apart = np.arange(worlds) < worlds - 1
  pos[tree == 2, 2] += 5 * apart
  balls = broadphase.Balls(jnp.asarray(pos), jnp.full((36, 1), 0.25), jnp.full((36, 1), 0.01))
  pairs = [(a, b) for x in ((7, 2), (7, 4), (2, 4)) for a, b in itertools.product(*(np.flatnonzero(tree == t) for t in x))]
  c = broadphase.Candidates(*np.array(pairs).T, "sphere-sphere", tree)
  assert broadphase.worth_trees(c)
  segments = broadphase.Segments(balls.pos, jnp.ones_like(balls.pos), jnp.zeros((36, 1)), balls.radius)
  bounds = broadphase.Bounds(balls, broadphase.Boxes(*[jnp.zeros((36, 1, 1))] * 3), segments)
  near, seen, overlaps = broadphase.near_trees(balls, tree, jnp.asarray(0.02)), [], broadphase._overlaps

  def counted(*x):
    some = overlaps(*x)
    return lambda take, lazy: jax.debug.callback(seen.append, take(jnp.arange(len(pairs)))) or some(take, lazy)

  wanted = broadphase.nearest(broadphase.overlap(bounds, c), 8)
  monkeypatch.setattr(broadphase, "_overlaps", counted)
  chosen = broadphase.nearest_in_tile(bounds, c, None, 8, near=near)
  jax.effects_barrier()
  assert np.all(chosen.number <= 8) and np.sum(chosen.valid) == np.sum(wanted.valid) > 0
  for w in range(worlds):
    found, expected = (np.sort(x.row[:, w][x.valid[:, w]]) for x in (chosen, wanted))
    np.testing.assert_array_equal(found, expected)
  assert not np.any(chosen.valid[:, apart]) and len(seen) == 1  # 16 of 432 at a time


@WATCHED
def test_parts_out_of_reach_are_not_looked_at(monkeypatch):
  """Two piles far from each other: pairs within them only; with what is left of the last part none twice."""
  model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody>" + "".join(
      f'<body pos="{100 * (k // 15)} 0 {0.19 * k}"><freejoint/><geom size="0.1"/></body>' for k in range(30)
    ) + "</worldbody></mujoco>"
  )  # fmt: skip
  m = mjx.put_model(model, pair_max=40, dtype=np.float64)
  seen, kept = [], broadphase._kept
  monkeypatch.setattr(broadphase, "_kept", lambda *x: jax.debug.callback(lambda y: seen.append(y), x[2]) or kept(*x))
  d = mjx.collision(m, mjx.kinematics(m, mjx.make_data(m)))
  jax.effects_barrier()
  assert int((d.contact.exclude == 0).sum()) == 28 and not d.status.bits
  assert sum(int((x > 0).sum()) for x in seen) == 28


def test_more_slots_than_there_is_room_for_are_refused():
  boxes = "".join(f'<body pos="{i} 0 0"><freejoint/><geom type="box" size=".4 .4 .4"/></body>' for i in range(70))
  model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{boxes}</worldbody></mujoco>")
  with pytest.raises(ValueError, match=r"19320 contacts.*suggest_capacity"):
    mjx.put_model(model, ncon_max="all")
  assert mjx.put_model(model).plan.sizes["ncon"] < 1000
  assert mjx.put_model(model, **mjx.suggest_capacity(model, model.qpos0)).plan.sizes["ncon"] < 20


@pytest.mark.parametrize("n, budget", [(300, 4), (5003, 7), (700, 40)])
def test_nearest_are_those_that_overlap_most(n, budget):
  rng = np.random.default_rng(n)
  overlap = rng.normal(size=(3, n)).astype(np.float32)
  overlap[0, rng.random(n) < 0.9] = -np.inf
  overlap[1] = np.where(np.arange(n) < budget, 1, -1)  # just as many as fit
  chosen = broadphase.nearest(jnp.asarray(overlap.T), budget)
  found = np.take_along_axis(overlap, np.asarray(chosen.row).T, axis=1)
  np.testing.assert_array_equal(found, -np.sort(-overlap, axis=1)[:, :budget])
  assert all(len(np.unique(x)) == budget for x in np.asarray(chosen.row).T)
  np.testing.assert_array_equal(chosen.valid.T, found > 0)
  np.testing.assert_array_equal(chosen.number, (overlap > 0).sum(axis=1))


@pytest.mark.parametrize("budget", [1, 6, 40])
def test_the_largest_overlaps_are_kept_in_a_kernel(budget):
  """Part after part, in any order; a world without any among them."""
  rng = np.random.default_rng(budget)
  overlap = rng.normal(size=(3, 16, 9)) - 0.5
  overlap[..., 4] = -1

  def keep(x):
    value, row = broadphase._nothing(budget, x[0])
    for k in range(3):
      index = jnp.broadcast_to(16 * k + np.arange(16, dtype=np.int32)[:, None], x[k].shape)
      value, row = broadphase._kept(value, row, x[k], index)
    return value, row

  with lanes.packed():
    value, row = map(np.asarray, lane_tests.run(keep, overlap, has_loops=True))
  flat = overlap.reshape(48, 9)
  for world in range(9):
    positive = np.sort(flat[:, world][flat[:, world] > 0])[::-1][:budget]
    valid = value[:, world] > 0
    np.testing.assert_array_equal(np.sort(value[valid, world])[::-1], positive)
    np.testing.assert_array_equal(flat[row[valid, world], world], value[valid, world])


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("number", [5, 30])
@pytest.mark.parametrize("worlds", [1, 8, 40])
def test_first_contacts_are_those_of_lowest_rank(worlds, number, shared, fills):
  """Of few and of many, in a world, a tile and a batch; worlds without any, with as many as fit, with one more, with many."""
  rng, n, size = np.random.default_rng(worlds), 90, 400
  rank = np.stack([rng.permutation(size)[:n] for _ in range(1 if shared else worlds)], axis=1).astype(np.int32)
  counts = [0, number, number + 1, n] if worlds > 1 else [number + 1]
  touches = np.zeros((n, worlds), bool)
  for world in range(worlds):
    touches[rng.permutation(n)[: counts[world % len(counts)]], world] = True
  if worlds == 8 and not fills:  # in a kernel too
    with lanes.packed():
      rank = np.broadcast_to(rank, touches.shape)
      chosen = broadphase.Chosen(*lane_tests.run(lambda *x: broadphase.first_contacts(*x, number, size, fills), touches, rank))
  else:
    chosen = mjx.jit(broadphase.first_contacts, static_argnums=(2, 3, 4))(touches, rank, number, size, fills)
  for world in range(worlds):
    order = np.argsort(rank[:, world % rank.shape[1]])
    contacts = order[touches[order, world]]
    valid = np.asarray(chosen.valid)[:, world]
    np.testing.assert_array_equal(valid, np.arange(number) < len(contacts))
    row = np.asarray(chosen.row)[:, world]
    np.testing.assert_array_equal(row[valid], contacts[:number])
    assert ((row >= 0) & (row < n)).all() and not (fills and touches[row[~valid], world].any())
    assert chosen.number[world] == len(contacts)
