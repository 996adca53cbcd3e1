"""Sensors of whole objects inside sites: against the farthest of many points of the object, and against C's search.

C's search follows the distance to a point that is no farther than ours, often nearer where the site is round: what has to agree
is stated for each shape of the site.
"""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from derivatives import assert_gradients

import mjx_lite as mjx

SITES = {"sphere": ".9", "capsule": ".6 .5", "cylinder": ".7 .6", "box": ".6 .7 .8"}
GEOMS = {"sphere": ".2", "capsule": ".1 .2", "ellipsoid": ".1 .2 .3", "cylinder": ".15 .2", "box": ".1 .2 .15"}
POSES = 120
# C agrees to 1e-5 in at least this share of the poses, and is nowhere shorter by more than the other number [m]
AGREED = {"sphere": (0.95, 0.06), "capsule": (0.85, 0.03), "cylinder": (0.7, 0.08), "box": (0.95, 0.03)}


@pytest.fixture(scope="module")
def found():
  """Sensors by object and site for random poses: ours and C's, and what is needed to compute them anew."""
  mesh = '<mesh name="m" vertex="0 0 0 .3 0 0 0 .2 0 0 0 .25 .3 .3 .3 .1 .1 .1" />'
  place = 'pos=".05 0 .1" euler="20 30 {}"'
  geoms = [f'<geom name="{k}" type="{k}" size="{s}" {place.format(40 * i)}/>' for i, (k, s) in enumerate(GEOMS.items())]
  objects = [f'objtype="geom" objname="{k}"' for k in (*GEOMS, "mesh")]
  objects += [f'objtype="{k}" objname="{n}"' for k, n in (("body", "b"), ("xbody", "b"), ("site", "hull"), ("site", "block"))]
  model = mujoco.MjModel.from_xml_string(f"""<mujoco><asset>{mesh}</asset><worldbody>
    {"".join(f'<site name="{k}" type="{k}" size="{s}" pos=".1 -.05 0" euler="15 40 70"/>' for k, s in SITES.items())}
    <body name="b" mocap="true">{"".join(geoms)}<geom name="mesh" type="mesh" mesh="m" contype="0" conaffinity="0"/>
      <site name="hull" type="mesh" mesh="m" pos="0 .1 0" euler="30 0 20"/><site name="block" type="box" size=".1 .2 .1"/>
      <body pos=".1 0 0"><geom name="child" size=".1" pos="0 0 .3"/></body></body></worldbody>
    <sensor>{"".join(f'<insidesite site="{s}" {o} enclosed="true"/>' for s in SITES for o in objects)}</sensor></mujoco>""")
  m, data, rng = mjx.put_model(model), mujoco.MjData(model), np.random.default_rng(0)
  pos = rng.choice([0.1, 0.3, 0.7], (POSES, 1)) * rng.normal(size=(POSES, 3))
  quat = rng.normal(size=(POSES, 4))
  d = mjx.make_data(m)

  def look(pos, quat):
    moved = d.replace(mocap_pos=pos[None], mocap_quat=quat[None])
    return mjx.sensor_pos(m, mjx.kinematics(m, moved)).sensordata

  ours = np.asarray(mjx.jit(jax.vmap(look))(pos, quat)).reshape(POSES, len(SITES), len(objects))
  theirs, frames = [], []
  for p, q in zip(pos, quat, strict=True):
    data.mocap_pos[0], data.mocap_quat[0] = p, q
    mujoco.mj_forward(model, data)
    theirs.append(data.sensordata.copy())
    frames.append([(x.xpos.copy(), x.xmat.reshape(3, 3).copy()) for x in map(data.geom, range(model.ngeom))])
  return model, data, look, (pos, quat), ours, np.array(theirs).reshape(ours.shape), frames


def points(kind, size, n=6000):
  """Points of a surface, those farthest out along many directions among them."""
  u = np.random.default_rng(1).normal(size=(n, 3))
  u /= np.linalg.norm(u, axis=1, keepdims=True)
  along = np.sign(u[:, 2:]) * [0, 0, 1]
  if kind == "box":
    return np.sign(u) * size
  if kind == "cylinder":
    rim = u[:, :2] / np.linalg.norm(u[:, :2], axis=1, keepdims=True) * size[0]
    return np.concatenate([rim, along[:, 2:] * size[1]], axis=1)
  return size * u if kind == "ellipsoid" else size[0] * u + (along * size[1] if kind == "capsule" else 0)


def distance(kind, size, p):
  """Signed distance of points from a site."""
  if kind in ("sphere", "capsule"):
    end = [0, 0, 1] * np.clip(p[:, 2:], -size[1], size[1]) if kind == "capsule" else 0
    return np.linalg.norm(p - end, axis=1) - size[0]
  flat = np.stack([np.linalg.norm(p[:, :2], axis=1), np.abs(p[:, 2])], axis=1) if kind == "cylinder" else np.abs(p)
  q = flat - size[: flat.shape[1]]
  return np.linalg.norm(np.maximum(q, 0), axis=1) + np.minimum(q.max(axis=1), 0)


def test_it_is_the_farthest_point(found):
  model, data, _, _, ours, _, frames = found
  for j, site in enumerate(SITES):
    pose = data.site(site)
    for i, kind in enumerate(GEOMS):
      local = points(kind, model.geom_size[i])
      for k in range(0, POSES, 4):
        x, r = frames[k][i]
        inside = (local @ r.T + x - pose.xpos) @ pose.xmat.reshape(3, 3)
        most = distance(site, model.site(site).size, inside).max()
        # the points lie densely, so that they miss little of the distance
        assert -1e-12 < ours[k, j, i] - most < 2e-3, (site, kind, k)
    bodies = ours[:, j, :6].max(axis=1)
    np.testing.assert_allclose(ours[:, j, 6], bodies, atol=1e-12)
    assert (ours[:, j, 7] >= ours[:, j, 6]).all() and (ours[:, j, 7] > ours[:, j, 6]).any()


def test_beside_c(found):
  _, _, _, _, ours, theirs, _ = found
  for j, site in enumerate(SITES):
    more = ours[:, j] - theirs[:, j]
    assert more.min() > -1e-8  # C is never farther
    share, band = AGREED[site]
    assert (more < 1e-5).mean() > share and more.max() < band
    clear = np.abs(ours[:, j]) > band
    assert clear.mean() > 0.7
    np.testing.assert_array_equal(np.sign(ours[:, j])[clear], np.sign(theirs[:, j])[clear])


def test_gradients(found):
  _, _, look, (pos, quat), _, _, _ = found
  rng = np.random.default_rng(3)
  w = jnp.asarray(rng.normal(size=found[0].nsensor))
  at = jnp.asarray(pos[1]), jnp.asarray(quat[1])
  assert_gradients(lambda p, q: w @ look(p, q), at, [rng.normal(size=x.shape) for x in at])
