"""Contacts of robots as their makers describe them, with many meshes, in states that C simulates.

Shapes that overlap deeply may leave each other by another than the shortest way (`collision/convex/gjk.py`): they count apart.
"""

import collections

import jax
import numpy as np
import pytest
import robots

import mjx_lite as mjx

STATES = 64
DEEP = 0.01  # [m]


def by_pair(geom, dist, normal):
  found = collections.defaultdict(list)
  for g, x, n in zip(geom.tolist(), dist, normal, strict=True):
    found[tuple(g)].append((x, n))
  return found


def compare(model, states, **capacity):
  """Of all states and all pairs of geoms in contact: how many are as in C. Nothing overflows."""
  m = mjx.put_model(model, **capacity)
  start = mjx.make_data(m)
  look = mjx.jit(jax.vmap(lambda q: mjx.collision(m, mjx.com_pos(m, mjx.kinematics(m, start.replace(qpos=q))))))
  d = jax.tree.map(np.asarray, look(states.qpos))
  assert not d.status.bits.any()
  c, n = d.contact, collections.Counter()
  geoms = np.broadcast_to(c.geom, (*c.dist.shape, 2))
  odd = []
  for k, theirs in enumerate(states.contacts):
    real = c.exclude[k] >= 0
    ours = by_pair(geoms[k][real], c.dist[k][real], c.frame[k][real][:, 0])
    theirs = by_pair(*theirs)
    all_deep = " deep" if min((x[0] for side in theirs.values() for x in side), default=0) < -DEEP else ""
    n["states" + all_deep] += 1
    n["count" + all_deep] += int(real.sum() == sum(map(len, theirs.values())))
    for pair in {*ours, *theirs}:
      depth = [min((x[0] for x in side[pair]), default=0) for side in (ours, theirs)]
      same = len(ours[pair]) == len(theirs[pair])
      near = abs(depth[0] - depth[1]) < max(2e-6, 1e-6 * np.abs(depth).max())
      deep = " deep" if depth[1] < -DEEP else ""
      n["pairs" + deep] += 1
      n["number"] += same
      n["depth" + deep] += bool(near)
      if ours[pair] and theirs[pair]:
        n["both" + deep] += 1
        n["normal" + deep] += bool(np.linalg.norm(ours[pair][0][1] - theirs[pair][0][1]) < 1e-3)
      if not (same and near):
        odd.append((k, pair, depth, len(ours[pair]), len(theirs[pair])))
  return n, odd


@pytest.mark.slow
@pytest.mark.parametrize("name", [k for k in robots.ROBOTS if k != "robosuite_aloha"])  # its arms meet nothing
def test_contacts_equal_c(name):
  model = robots.load(name)
  states = robots.sample(model, STATES)
  check(name, *compare(model, states, **mjx.suggest_capacity(model, states.qpos)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [k for k in robots.ROBOTS if k != "robosuite_aloha"])
def test_the_chosen_capacities_suffice_for_a_thousand_steps(name):
  model = robots.load(name)
  check(name, *compare(model, robots.along(model)))


def check(name, n, odd):
  said = f"{dict(n)} {odd[:5]}"
  print(name, said)
  assert n["pairs"] + n["pairs deep"] > 20, said
  assert n["count"] >= 0.98 * n["states"], said
  assert n["depth"] >= 0.98 * n["pairs"], said
  assert n["normal"] >= 0.98 * n["both"], said
  assert n["depth deep"] >= 0.8 * n["pairs deep"], said
