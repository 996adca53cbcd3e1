"""The articulated-body pass, on trees of every kind of joint: beside C's factor of M, and beside the dense factor."""

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import TOO_LARGE

import mjx_lite as mjx
from mjx_lite.smooth import articulated, articulated_plan, mass

GEOM = '<geom type="box" size=".1 .2 .3" pos=".1 0 .05" euler="10 20 30"/>'
HINGE, SLIDE, BALL, FREE = (
  '<joint axis=".6 0 .8" armature=".01"/>',
  '<joint type="slide" axis="0 1 0"/>',
  '<joint type="ball"/>',
  "<freejoint/>",
)


def body(joints, *children):
  return f'<body pos=".3 .1 .2" euler="5 -7 11">{joints}{GEOM}{"".join(children)}</body>'


LEG = body(HINGE + SLIDE, body(BALL))
SPHERE = '<body><freejoint/><geom size=".1"/></body>'  # its block of M is diagonal
TREES = {
  "roots that are free, and on the world": (
    body(FREE, LEG),
    body(HINGE, body(BALL)),
    SPHERE,
    body(FREE, body("", body(HINGE))),
    body(BALL, LEG),
  ),
  "free bodies alone": (body(FREE), body(FREE), body(FREE)),
}


def model_and_data(trees):
  model = mujoco.MjModel.from_xml_string(f"<mujoco><option gravity='1 -2 -9'/><worldbody>{''.join(trees)}</worldbody></mujoco>")
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  data.qpos[:] = rng.normal(size=model.nq)
  mujoco.mj_normalizeQuat(model, data.qpos)
  data.qvel[:] = rng.normal(size=model.nv)
  mujoco.mj_forward(model, data)
  return model, data


# slow: free bodies alone are the scene `boxes` of the stages' test too
@pytest.fixture(params=[name if "roots" in name else pytest.param(name, marks=pytest.mark.slow) for name in TREES])
def case(request, monkeypatch):
  """Data of C, and the model with the articulated pass and with a dense factor."""
  model, data = model_and_data(TREES[request.param])
  models = []
  for limit in (0, model.nv):
    monkeypatch.setattr(articulated_plan, "_DENSE_DOFS", limit)
    models.append(mjx.put_model(model, dtype=np.float64))
  assert [mass.is_articulated(m) for m in models] == [True, False]
  return data, *models


@TOO_LARGE
def test_factor_and_accelerations_are_those_of_c(case):
  data, *models = case
  for m in models:
    d = mjx.forward(m, mjx.put_data(m, data, keep=("qLD", "qLDiagInv")))
    for field in ("qLD", "qLDiagInv", "qacc_smooth"):
      want = getattr(data, field)
      np.testing.assert_allclose(getattr(d, field), want, rtol=1e-10, atol=1e-12 * np.abs(want).max(), err_msg=field)


def test_trace_is_that_of_c(case):
  data, *models = case
  columns = np.zeros((models[0].nv, models[0].nv))
  for column, unit in zip(columns, np.eye(models[0].nv), strict=True):
    mujoco.mj_mulM(data.model, data, column, unit)
  for m in models:
    d = mjx.crb(m, mjx.com_pos(m, mjx.kinematics(m, mjx.put_data(m, data))))
    m, d = jax.tree.map(lambda x: jnp.asarray(x)[..., None], (m, d))
    np.testing.assert_allclose(mass.trace(m, d.cinert, d.cdof, d.M), np.trace(columns), rtol=1e-12)


def derivatives(m, data, tangent):
  """Of M^-1 x by qpos, armature and x: forward mode, then reverse mode."""
  d = mjx.put_data(m, data)

  def solved(qpos, armature, x):
    moved = m.replace(dof_armature=armature)
    return mjx.solve_m(moved, mjx.crb(moved, mjx.com_pos(moved, mjx.kinematics(moved, d.replace(qpos=qpos)))), x)

  at = d.qpos, m.dof_armature + 0.01, jnp.ones(m.nv)
  along = tuple(jnp.asarray(t[: len(x)]) for t, x in zip(tangent, at, strict=True))
  forward = jax.jit(lambda *x: jax.jvp(solved, x, along)[1])
  reverse = jax.jit(jax.grad(lambda *x: solved(*x) @ along[2], argnums=(0, 1, 2)))
  return forward(*at), *reverse(*at)


def test_derivatives_of_the_solution_are_those_with_a_dense_factor(case):
  data, *models = case
  tangent = np.random.default_rng(1).normal(size=(3, models[0].nq))
  for a, b in zip(*(derivatives(m, data, tangent) for m in models), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10 * np.abs(b).max())


def test_few_dofs_are_factored_densely():
  model, _ = model_and_data((body(FREE, LEG),))
  assert not mass.is_articulated(mjx.put_model(model))


def test_tree_by_tree_is_the_same_as_all_at_once():
  """Many trees alike, in several worlds: the factor and its derivative, of trees that branch and of chains."""
  tree = body(FREE, body(HINGE + SLIDE, body(HINGE), body(SLIDE, body(HINGE))), body(SLIDE))
  for trees in ((tree,) * 6, (body(HINGE + SLIDE, body(HINGE)),) * 6):
    m = mjx.put_model(model_and_data(trees)[0], dtype=np.float64)
    p, rng = m.plan.articulated, np.random.default_rng(2)
    ndepth, width = p.dof.shape
    assert p.to_parent.shape[1] == 6 and articulated._rows_of_block(p) < width
    half = rng.normal(size=(len(p.carried.matrix), 6, 6, 5))
    inertia = np.einsum("nikw,njkw->nijw", half, half)[:, *np.triu_indices(6)]
    inertia[-1] = 0
    there = (p.dof < m.nv)[..., None]
    at = inertia, rng.normal(size=(ndepth, width, 6, 5)) * there[:, :, None], rng.uniform(1, 2, (ndepth, width, 5)) * there
    along = tuple(rng.normal(size=x.shape) for x in at)
    sweeps = [functools.partial(f, p) for f in (articulated._all_at_once, articulated._block_by_block)]
    for one, other in zip(*(jax.tree.leaves((f(*map(jnp.asarray, at)), jax.jvp(f, at, along))) for f in sweeps), strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
