"""Contacts of shapes of every kind that fall on each other, along a trajectory of MuJoCo."""

import collections

import jax
import mujoco
import numpy as np
from models import load

import mjx_lite as mjx

STEPS = 300


def _by_pair(contacts):
  found = collections.defaultdict(list)
  for geoms, dist, normal in contacts:
    found[tuple(int(g) for g in geoms)].append((dist, normal))
  return found


def test_contacts_along_a_trajectory():
  model = load("convex")
  data = mujoco.MjData(model)
  m = mjx.put_model(model)
  start, poses, theirs = mjx.make_data(m), [], []
  for _ in range(STEPS):
    mujoco.mj_step(model, data)
    mujoco.mj_fwdPosition(model, data)
    poses.append((data.geom_xpos.copy(), data.geom_xmat.reshape(-1, 3, 3).copy()))
    theirs.append(_by_pair((c.geom, c.dist, c.frame[:3].copy()) for c in data.contact))
  collide = mjx.jit(jax.vmap(lambda x, r: mjx.collision(m, start.replace(geom_xpos=x, geom_xmat=r)).contact))
  found = jax.tree.map(np.asarray, collide(*(np.array(x) for x in zip(*poses, strict=True))))

  states = same = close = compared = 0
  for k, pairs in enumerate(theirs):
    slots = np.flatnonzero(found.dist[k] < found.includemargin[k])
    ours = _by_pair((found.geom[k, s], found.dist[k, s], found.frame[k, s, 0]) for s in slots)
    for geoms in {*ours, *pairs}:
      states += 1
      same += len(ours[geoms]) == len(pairs[geoms])
      if ours[geoms] and pairs[geoms]:
        compared += 1
        depth = abs(min(x[0] for x in ours[geoms]) - min(x[0] for x in pairs[geoms]))
        close += depth < 2e-6 and np.linalg.norm(ours[geoms][0][1] - pairs[geoms][0][1]) < 1e-3
  assert states > 1000
  assert same >= 0.99 * states, (same, states)
  assert close >= 0.96 * compared, (close, compared)
