"""The curvature J' H J that Newton's method assembles body by body and contact by contact, against the dense Jacobian's."""

import pathlib

import jax
import jax.numpy as jnp
import lane_tests
import mujoco
import numpy as np
import pytest
from models import WATCHED

import mjx_lite as mjx
from mjx_lite.constraint import coupled, jacobian
from mjx_lite.ops import lanes

SCENES = pathlib.Path(__file__).parents[1] / "scenes"
SHIPPED = pathlib.Path(mjx.__file__).parent / "models" / "humanoid.xml"


@WATCHED
@pytest.mark.parametrize(
  ("path", "capacity", "many"),
  [
    pytest.param(SHIPPED, {}, False, marks=pytest.mark.slow), (SHIPPED, {}, True), (SCENES / "elliptic.xml", {}, False),
    (SHIPPED, {"ncon_max": 20}, False), pytest.param(SHIPPED, {"ncon_max": 20}, True, marks=pytest.mark.slow),
  ],
  ids=["one body and two", "the same, many worlds", "cones", "bodies chosen at run time", "the same, many worlds "],
)  # fmt: skip
def test_curvature_is_that_of_the_dense_jacobian(path, capacity, many, monkeypatch):
  """Of few worlds at a time, contact by contact, and of many."""
  model, worlds = mujoco.MjModel.from_xml_path(str(path)), 32 if many else 16
  m = mjx.put_model(model, tile=0 if many else None, **capacity)
  plan, found = m.plan.contact, []
  assert plan.chosen == bool(capacity) and len(plan.coupling.slot)
  assert len(plan.single_body.slot) + len(plan.coupling.slot) == plan.ncon and (capacity or len(plan.single_body.slot))
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
  qpos = np.tile(model.qpos0, (worlds, 1)) + rng.normal(size=(worlds, model.nq)) * 0.3
  qpos[:, 2] -= 0.3
  d = jax.vmap(lambda q: mjx.make_data(m).replace(qpos=q))(jnp.asarray(qpos))
  jax.block_until_ready(mjx.jit(jax.vmap(mjx.forward, in_axes=(None, 0)))(m, d).qacc)
  jax.effects_barrier()
  weights = np.concatenate([w for _, _, w in found], axis=-1)[len(m.plan.jacobian.order) :]
  assert (weights > 0).any(axis=-1).sum() > 5  # many contacts push somewhere
  upper = np.triu_indices(model.nv)
  for h, expected, _ in found:
    np.testing.assert_allclose(h[upper], expected[upper], rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("capacity", [{}, {"ncon_max": 20}], ids=["constant bodies", "bodies chosen at run time"])
@pytest.mark.parametrize("pushing", [[], [2], [0, 3, 4]])
def test_contacts_that_push_one_after_the_other(pushing, capacity):
  """As all at once, derivatives too."""
  rng, m = np.random.default_rng(1), mjx.put_model(mujoco.MjModel.from_xml_path(str(SHIPPED)), **capacity)
  p, nside = m.plan.contact.coupling, len(m.plan.contact.coupling.side)
  a = np.zeros((len(p.slot), 3, 3, 4))
  a[pushing] = rng.normal(size=(len(pushing), 3, 3, 4))
  a = jnp.asarray(a + a.swapaxes(1, 2))
  basis, cdof = (jnp.asarray(rng.normal(size=s)) for s in ((nside, 3, 6, 4), (m.nv, 6, 4)))
  body = jnp.asarray(rng.integers(m.nbody, size=(nside, 4)).astype(np.int32)) if capacity else None
  functions, upper = (coupled.sum_of_pushing, coupled.sum_of_all), np.triu_indices(m.nv)
  found, expected = (jax.jit(lambda *x, f=f: f(p, *x)[upper])(a, basis, body, cdof) for f in functions)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
  if pushing != [0, 3, 4]:  # one derivative of each kind tells
    return
  found, expected = (
    jax.jit(jax.grad(lambda a, b, c, f=f: jnp.sum(f(p, a, b, body, c)[upper] ** 2), argnums=(0, 1, 2)))(a, basis, cdof)
    for f in functions
  )
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-10), found, expected)


def test_contacts_of_bodies_of_several_trees_in_a_kernel():
  """The curvature slot by slot is that of all slots at once: of one tree's bodies, of two trees, and with the world."""
  trees = "".join(
    f"""<body pos="{x} 0 0"><freejoint/><geom size=".1"/><body><joint axis="0 1 0"/><geom size=".1" pos=".2 0 0"/>
      <body><joint axis="1 0 0"/><geom size=".1" pos=".4 0 0"/></body></body></body>"""
    for x in range(5)
  )  # 40 dofs: more than one integer has bits
  m = mjx.put_model(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{trees}</worldbody></mujoco>"), ncon_max=12)
  p, worlds, rng = m.plan.contact.coupling, 5, np.random.default_rng(0)
  body = rng.integers(m.nbody, size=(2 * 12, worlds)).astype(np.int32)
  a = rng.normal(size=(12, 3, 3, worlds))
  a = np.einsum("ijkw,ilkw->ijlw", a, a) * (rng.random((12, 1, 1, worlds)) < 0.6)
  about = rng.normal(size=(12, m.nbody, 3, 6, worlds))  # the motion of a contact point, about the root of a tree
  root = np.asarray(m.body_rootid)[body]
  side = np.tile(np.arange(12), 2)
  basis = about[side[:, None], root, :, :, np.arange(worlds)].transpose(0, 2, 3, 1)
  x = a, basis, body, rng.normal(size=(m.nv, 6, worlds))
  upper = np.triu_indices(m.nv)
  with lanes.packed():
    (found,) = lane_tests.run(lambda *x: coupled.sum_of_pushing(p, *x)[upper], *x)
  np.testing.assert_allclose(found, coupled.sum_of_all(p, *map(jnp.asarray, x))[upper], rtol=0, atol=1e-11)
