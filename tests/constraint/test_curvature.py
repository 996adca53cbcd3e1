"""The curvature J' H J that Newton's method assembles body by body and contact by contact, against the dense Jacobian's."""

import pathlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.constraint import jacobian

SCENES = pathlib.Path(__file__).parents[1] / "scenes"
SHIPPED = pathlib.Path(mjx.__file__).parent / "models" / "humanoid.xml"


@pytest.mark.parametrize(
  ("path", "capacity"),
  [(SHIPPED, {}), (SCENES / "elliptic.xml", {}), (SHIPPED, {"ncon_max": 20})],
  ids=["one body and two", "cones", "bodies chosen at run time"],
)
def test_curvature_is_that_of_the_dense_jacobian(path, capacity, monkeypatch):
  model = mujoco.MjModel.from_xml_path(str(path))
  m = mjx.put_model(model, **capacity)
  plan, found = m.plan.contact, []
  assert plan.chosen == bool(capacity) and len(plan.coupling.slot)
  assert len(plan.alone.slot) + len(plan.coupling.slot) == plan.ncon and (capacity or len(plan.alone.slot))
  assemble = jacobian.dense_curvature

  def checked(m, j, cdof, w, cone=None):
    h, dense = assemble(m, j, cdof, w, cone), jacobian.dense(m, j, cdof)
    expected = jnp.einsum("rnw,rw,rmw->nmw", dense, jnp.broadcast_to(w, (len(dense), w.shape[-1])), dense)
    if cone is not None:
      last = dense[len(m.plan.jacobian.order) :].reshape(plan.ncon, plan.ndir, m.nv, -1)
      expected += jnp.einsum("cknw,cklw,clmw->nmw", last, cone, last)
    jax.debug.callback(lambda *x: found.append(x), h, expected, w)
    return h

  monkeypatch.setattr(jacobian, "dense_curvature", checked)
  rng = np.random.default_rng(0)
  qpos = np.tile(model.qpos0, (16, 1)) + rng.normal(size=(16, model.nq)) * 0.3
  qpos[:, 2] -= 0.3
  d = jax.vmap(lambda q: mjx.make_data(m).replace(qpos=q))(jnp.asarray(qpos))
  jax.block_until_ready(mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, d).qacc)
  jax.effects_barrier()
  weights = np.concatenate([w for _, _, w in found], axis=-1)[len(m.plan.jacobian.order) :]
  assert (weights > 0).any(axis=-1).sum() > 5  # many contacts push somewhere
  upper = np.triu_indices(model.nv)
  for h, expected, _ in found:
    np.testing.assert_allclose(h[upper], expected[upper], rtol=0, atol=1e-12 * np.abs(expected).max())
