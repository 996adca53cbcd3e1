"""Sums over the dofs that move what contacts act on, by bodies where these are fewer."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.compiler.backends import llvm
from mjx_lite.math.tree import mask_sum


def _model(spheres, bodies=4):
  chain = ""
  for k in range(bodies):
    geoms = "".join(f'<geom size=".05" pos="{0.1 * i} {0.1 * k} 0"/>' for i in range(spheres))
    chain = f'<body pos="0 0 .3"><joint axis="{k % 2} 1 {k % 3}"/>{geoms}{chain}</body>'
  loose = f'<body pos="1 0 1"><freejoint/>{geoms}</body>'
  world = f'<worldbody><geom type="plane" size="1 1 1"/>{chain}{loose}</worldbody>'
  return mujoco.MjModel.from_xml_string(f"<mujoco>{world}</mujoco>")


@pytest.mark.parametrize("worlds", [1, 16, 40])
@pytest.mark.parametrize("spheres", [1, 3])
def test_sums_by_bodies_are_those_of_the_dofs(spheres, worlds):
  m = mjx.put_model(_model(spheres))
  sides = m.plan.contact.sides
  assert (sides.body_dof is not None) and len(sides.slot) > m.nbody
  random = np.random.default_rng(0)
  x, y, back = (jnp.asarray(random.normal(size=(n, 2, worlds))) for n in (m.nv, m.nv, len(sides.slot)))
  matrix = sides.side_dof.matrix
  np.testing.assert_allclose(sides.from_dofs(x, y, None), np.einsum("sd,d...->s...", matrix, x * y), atol=1e-12)
  np.testing.assert_allclose(sides.to_dofs(back, None), np.einsum("sd,s...->d...", matrix, back), atol=1e-12)
  np.testing.assert_allclose(mask_sum(sides.side_dof, x, y), sides.from_dofs(x, y, None), atol=1e-12)


def test_programs_do_not_grow_with_the_contacts(monkeypatch):
  """Those that XLA compiles."""
  monkeypatch.setattr(llvm, "_IS_WANTED", False)

  def lines(spheres):
    m = mjx.put_model(_model(spheres), ncon_max="all")
    d = jax.tree.map(lambda x: jnp.repeat(x[None], 16, axis=0), mjx.make_data(m))
    return mjx.jit(jax.vmap(mjx.step, (None, 0))).lower(m, d).as_text().count("\n")

  few, many = lines(2), lines(8)
  assert many < 1.2 * few
