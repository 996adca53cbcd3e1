"""Inertias that follow the sizes of geoms, against the compiler's."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.sysid import inertia, shape

XML = """
<mujoco>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body><freejoint/><geom type="sphere" size="{0}"/></body>
    <body><freejoint/><geom type="capsule" size="{1} {2}" euler="20 30 0"/></body>
    <body><freejoint/><geom type="cylinder" size="{1} {0}"/></body>
    <body><freejoint/><geom type="ellipsoid" size="{0} {1} {2}"/></body>
    <body><freejoint/><geom type="box" size="{2} {1} {0}" density="300"/>
      <geom type="capsule" size="{0} {1}" pos="0.1 0.3 0" euler="40 0 20" density="300"/></body>
  </worldbody>
</mujoco>
"""


def model(*sizes):
  return mujoco.MjModel.from_xml_string(XML.format(*sizes))


def test_equals_the_compiler():
  before, after = model(0.1, 0.2, 0.3), model(0.15, 0.12, 0.33)
  m = mjx.put_model(before)
  found = mjx.jit(lambda size: shape.with_size(m, np.arange(1, 6), size))(jnp.asarray(after.geom_size))
  np.testing.assert_allclose(found.body_mass, after.body_mass, rtol=1e-12)
  np.testing.assert_allclose(found.body_ipos, after.body_ipos, atol=1e-12)
  np.testing.assert_allclose(found.body_invweight0, after.body_invweight0, rtol=1e-9)
  for b in range(1, 6):
    ours, theirs = (
      (r * i) @ r.T for r, i in (
        (np.asarray(inertia.matrix(jnp.asarray(x.body_iquat[b]))), np.asarray(x.body_inertia[b])) for x in (found, after)
      )
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_other_shapes_are_refused():
  m = mjx.put_model(model(0.1, 0.2, 0.3))
  with pytest.raises(ValueError, match="PLANE"):
    jax.eval_shape(lambda s: shape.with_size(m, np.array([0]), s), m.geom_size)
