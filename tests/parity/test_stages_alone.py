"""Every public stage called alone, after `put_data` and after `make_data`, on models of one body."""

import inspect

import jax
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.model import pytree

JOINTS = {
  "none": "", "free": "<freejoint/>", "ball": '<joint type="ball" damping=".1"/>',
  "hinge": '<joint axis="0 1 0" damping=".1"/>', "slide": '<joint type="slide" damping=".1"/>',
}  # fmt: skip
INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
FLAGS = (
  "", 'energy="enable"', 'invdiscrete="enable"', 'fwdinv="enable"', 'constraint="disable" actuation="disable" sensor="disable"',
  'eulerdamp="disable" diagexact="enable"',
)  # fmt: skip
OTHERS = ((np.float32, "jit"), (np.float64, "eager"), (np.float64, "vmap"))
SCENE = """
<mujoco>
  <option integrator="{integrator}" density="{density}" viscosity="{density}"><flag {flags}/></option>
  <worldbody>
    <body euler="10 20 30">{joint}<inertial pos=".1 .2 -.1" mass="2" diaginertia=".02 .03 .04"/>{geom}</body>
  </worldbody>
</mujoco>
"""
# stages that lead nowhere by themselves: they advance the time
STEPS = ("step", "step1", "step2", "euler", "implicit", "rungekutta4")
CASES = [
  *((joint, "implicitfast", "", 1) for joint in JOINTS),
  *(("hinge", integrator, "", 0) for integrator in INTEGRATORS if integrator != "implicitfast"),
  *(("hinge", "Euler", flags, 0) for flags in FLAGS[1:]), ("none", "implicitfast", FLAGS[2], 1),
]  # fmt: skip


def stages():
  """Names of the public functions that take a Model and a Data, and need nothing else."""
  names = []
  for name in mjx.__all__:
    function = getattr(mjx, name)
    if not inspect.isfunction(function) or name in ("get_data", "rollout", "check_grad"):
      continue
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    if needed == ["m", "d"]:
      names.append(name)
  return names


def make(joint, integrator, flags, density, geom='<geom size=".1" contype="0" conaffinity="0"/>'):
  return mujoco.MjModel.from_xml_string(
    SCENE.format(joint=JOINTS[joint], integrator=integrator, flags=flags, density=density, geom=geom)
  )


def moving(model):
  """C's Data after forward, away from rest."""
  data, rng = mujoco.MjData(model), np.random.default_rng(0)
  mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.3)
  data.qvel[:] = rng.normal(size=model.nv)
  mujoco.mj_forward(model, data)
  return data


def types(d):
  leaves, structure = jax.tree.flatten(d)
  return [jax.typeof(x) for x in leaves], structure


def test_the_table_has_the_stages():
  assert len(stages()) >= 40 and {"inverse", "rungekutta4", "solve", "deriv_smooth_vel", "contacts"} <= set(stages())


@pytest.mark.parametrize(("joint", "integrator", "flags", "density"), CASES)
def test_every_stage_can_be_traced_alone(joint, integrator, flags, density):
  model = make(joint, integrator, flags, density)
  m = mjx.put_model(model, dtype=np.float32)
  wrong = []
  kinds = mjx.put_data(m, moving(model)), mjx.make_data(m, keep="all")
  assert types(kinds[0]) == types(mjx.make_data(m))  # so one of them is enough
  for d in kinds:
    for name in stages():
      out = jax.eval_shape(getattr(mjx, name), m, d)
      if isinstance(out, mjx.Data):
        there = [(getattr(d, k), getattr(out, k)) for k in pytree.present(d)]
        wrong += [] if all((x.shape, x.dtype) == (y.shape, y.dtype) for x, y in there) else [name]
  assert not wrong


@pytest.mark.parametrize(("dtype", "how"), [(np.float64, "jit"), *(pytest.param(*x, marks=pytest.mark.slow) for x in OTHERS)])
def test_stages_alone_leave_what_c_computed(dtype, how):
  """Each stage, after `put_data` of what C's forward left, computes again what is there."""
  model = make("hinge", "implicitfast", FLAGS[2], 1)
  m, data = mjx.put_model(model, dtype=dtype), moving(model)
  d = mjx.put_data(m, data)
  wrong, changed = [], ("qfrc_inverse", "cacc", "cfrc_ext", "cfrc_int", "subtree_linvel", "subtree_angmom", "energy")
  for name in stages():
    if name in (*STEPS, "reset", "reset_data", "rne_postconstraint", "inverse", "crb", "rne", "passive"):
      continue
    out = called(getattr(mjx, name), how)(m, d)
    if not isinstance(out, mjx.Data):
      continue
    for field in pytree.present(d):
      a, b = (np.asarray(getattr(x, field), float) for x in (d, out))
      if field not in changed and not np.allclose(a, b, rtol=0, atol=(1e-9 if dtype == np.float64 else 1e-4)):
        wrong.append((name, field))
  assert not wrong


def called(function, how):
  """The function as a user may call it: of one world, or of one in a batch."""
  if how == "eager":
    return function
  if how == "jit":
    return jax.jit(function)

  def of_batch(m, d):
    out = jax.jit(jax.vmap(function, in_axes=(None, 0)))(m, jax.tree.map(lambda x: np.stack([x, x]), d))
    return jax.tree.map(lambda x: x[1], out)

  return of_batch


@pytest.mark.parametrize(
  ("joint", "integrator", "dtype", "how"),
  [
    *(("hinge", "implicitfast", dtype, how) for dtype, how in ((np.float64, "jit"), *OTHERS)),
    *((joint, "implicitfast", np.float64, "jit") for joint in ("slide", "ball", "free")),
    *(("hinge", integrator, np.float64, "jit") for integrator in ("Euler", "implicit")),
  ],
)
def test_inverse_of_discrete_accelerations(integrator, joint, dtype, how):
  """Beside C's, in models with a free joint and without, which have no block of a free body."""
  model = make(joint, integrator, FLAGS[2], 1)
  m, data = mjx.put_model(model, dtype=dtype), moving(model)
  data.qacc[:] = np.random.default_rng(1).normal(size=model.nv)
  d = called(mjx.inverse, how)(m, mjx.put_data(m, data))
  mujoco.mj_inverse(model, data)
  assert np.abs(data.qfrc_inverse).max() > 0.1
  np.testing.assert_allclose(d.qfrc_inverse, data.qfrc_inverse, atol=1e-10 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize(("dtype", "how"), [(np.float64, "jit"), *OTHERS])
@pytest.mark.parametrize("keep", [(), "all"])
def test_runge_kutta_alone(keep, dtype, how):
  """After C's forward: C's step."""
  model = make("ball", "RK4", "", 0)
  m, data = mjx.put_model(model, dtype=dtype), moving(model)
  d = called(mjx.rungekutta4, how)(m, mjx.put_data(m, data, keep=keep))
  mujoco.mj_RungeKutta(model, data, 4)
  assert pytree.kept(d) == pytree.kept(mjx.make_data(m, keep=keep))
  for field in ("qpos", "qvel", "time", "qacc"):
    np.testing.assert_allclose(getattr(d, field), getattr(data, field), atol=1e-10 if dtype == np.float64 else 2e-5)
