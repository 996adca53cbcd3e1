"""The order of contacts: that of the candidates, for bodies with several geoms each, is C's with its midphase and without."""

import mujoco
import numpy as np
import pytest

from mjx_lite.collision import pairs
from mjx_lite.io import fields

KINDS = ("sphere", "capsule", "ellipsoid", "cylinder", "box")


def heap(rng, midphase):
  """Three bodies and the world with up to three geoms each, all in one place; and two explicit pairs."""
  spec = mujoco.MjSpec()
  spec.option.disableflags = 0 if midphase else mujoco.mjtDisableBit.mjDSBL_MIDPHASE
  names = []
  for b in range(4):
    body = spec.worldbody.add_body(pos=0.15 * rng.normal(size=3)) if b else spec.worldbody
    if b:
      body.add_freejoint()
    for k in range(rng.integers(1, 4)):
      kind = "plane" if b == k == 0 else KINDS[rng.integers(len(KINDS))]
      names.append((b, f"{b}{k}"))
      body.add_geom(
        name=f"{b}{k}", type=getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}"), size=0.1 + 0.1 * rng.random(3),
        pos=0.1 * rng.normal(size=3), contype=rng.integers(4), conaffinity=rng.integers(4), margin=0.02 * rng.random(),
      )  # fmt: skip
  for _ in range(2):
    (b1, one), (b2, two) = (names[i] for i in rng.choice(len(names), 2, replace=False))
    if b1 != b2:
      spec.add_pair(geomname1=one, geomname2=two)
  return spec.compile()


# P64
@pytest.mark.parametrize("midphase", [True, False])
def test_contacts_stand_in_the_order_of_the_candidates(midphase):
  rng, most = np.random.default_rng(0), 0
  for _ in range(40):
    model = heap(rng, midphase)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    candidates = pairs.candidates(fields.every(model), model.opt.disableflags)
    place = {(p.geom1, p.geom2): k for k, p in enumerate(candidates)}
    met = [place[c.geom1, c.geom2] for c in data.contact]
    assert met == sorted(met)
    most = max(most, len(set(met)))
  assert most > 10
