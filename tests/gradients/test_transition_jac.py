"""The linearised step against MuJoCo's finite differences; Hessian-vector products."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.cli.compare import optimal

# a body that rolls on the ground, and servos with an activation on a ball joint and a hinge
XML = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 0.09"><freejoint/><geom type="capsule" size="0.1 0.2" euler="90 20 0"/></body>
    <body pos="1 0 1">
      <joint name="b" type="ball" damping="0.1"/><geom size="0.1" pos="0.3 0 0"/>
      <body pos="0.5 0 0"><joint name="h" axis="0 1 0"/><geom size="0.1" pos="0.3 0 0"/></body>
    </body>
  </worldbody>
  <actuator>
    <general joint="h" dyntype="filter" dynprm="0.1" gainprm="2" biastype="affine" biasprm="0 -2 -0.1"/>
    <motor joint="b" gear="1 0.5 0"/>
  </actuator>
</mujoco>
"""
SLOW = ("elliptic", "transmissions", "equalities", "media", "trees", "pairs", "humanoid")


def states(model, n):
  """States of C along a trajectory under random controls."""
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  for _ in range(n):
    data.ctrl[:] = rng.uniform(-0.4, 0.4, model.nu)
    mujoco.mj_step(model, data, 40)
    yield data


def differences(model, data):
  nx, ns = 2 * model.nv + model.na, model.nsensordata
  out = [np.zeros(shape) for shape in ((nx, nx), (nx, model.nu), (ns, nx), (ns, model.nu))]
  mujoco.mjd_transitionFD(model, data, 1e-6, True, *out)
  return out


@pytest.mark.parametrize("name", ["inline", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_equals_finite_differences_of_c(name):
  model = optimal(mujoco.MjModel.from_xml_string(XML) if name == "inline" else load(name))
  m = mjx.put_model(model)
  data, expected = [], []
  for state in states(model, 2):
    data.append(mjx.put_data(m, state))
    expected.append(differences(model, state))
  many = jax.tree.map(lambda *x: jnp.stack(x), *data)
  found = mjx.jit(jax.vmap(mjx.transition_jac, in_axes=(None, 0)))(m, many)
  for i, of_c in enumerate(expected):
    for letter, ours, theirs in zip("ABCD", found, of_c, strict=True):
      assert ours[i].shape == theirs.shape
      scale = np.abs(theirs).max(initial=1e-3)
      np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-6 * scale, err_msg=f"{letter}, state {i}")


def test_hessian_vector_product():
  f = lambda x: jnp.sum(jnp.sin(x) ** 3) * x[0]  # noqa: E731
  x, v = jnp.array([0.3, -0.5, 1.0]), jnp.array([1.0, 2.0, -1.0])
  np.testing.assert_allclose(mjx.hvp(f, x, v), jax.hessian(f)(x) @ v, rtol=1e-12)
