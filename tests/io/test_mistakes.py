"""What a user gets wrong is named, with what to do."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite import envs
from mjx_lite.compiler import workarounds

XML = """
<mujoco>
  <worldbody><body><joint name="x" type="slide"/><geom size=".1"/></body></worldbody>
  <actuator><motor joint="x"/></actuator>
</mujoco>
"""


def _scene():
  mj_model = mujoco.MjModel.from_xml_string(XML)
  m = mjx.put_model(mj_model)
  return mj_model, m, mjx.make_data(m)


MISTAKES = {
  "ctrl of another rank": (lambda _, m, d: mjx.step(m, d.replace(ctrl=jnp.zeros((1, 1)))), ValueError, r"ctrl has .*\(1, 1\)"),
  "a list": (lambda _, m, d: mjx.step(m, d.replace(ctrl=[1.0])), TypeError, "ctrl has to be an array, not list"),
  "step of MjData": (lambda x, m, _: mjx.step(m, mujoco.MjData(x)), TypeError, "use put_data"),
  "make_data of nothing": (lambda *_: mjx.make_data(None), TypeError, "not NoneType"),
  "put_data of a Data": (lambda x, _, d: mjx.put_data(x, d), TypeError, "not Data"),
  "get_data of a Model": (lambda _, m, d: mjx.get_data(m, d), TypeError, "not Model and Data"),
  "steps below zero": (lambda _, m, d: mjx.rollout(m, d, steps=-3), ValueError, "steps .* not -3"),
  "steps and a half": (lambda _, m, d: mjx.rollout(m, d, steps=2.5), ValueError, "steps .* not 2.5"),
  "a record of no field": (lambda _, m, d: mjx.rollout(m, d, steps=2, record=("qposs",)), ValueError, "'qposs'"),
  "a parameter that is none": (lambda _, m, __: m.with_params(bodymass=1), ValueError, "'bodymass'; did you mean 'body_mass'"),
  "suggest_capacity of a Model": (lambda _, m, d: mjx.suggest_capacity(m, d.qpos), TypeError, "MjModel, not Model"),
  "samples of another model": (lambda x, m, d: mjx.suggest_capacity(x, [[1, 2]]), ValueError, r"shape \(1, 2\), .* \(n, 1\)"),
  "with_params of an option": (lambda _, m, __: m.with_params(timestep=1), ValueError, "Model.opt has: tree_replace"),
  "replace of an option": (lambda _, m, __: m.replace(timestep=1), TypeError, r"tree_replace\({'opt.timestep': ...}\)"),
  "replace of a statistic": (lambda _, m, __: m.replace(extent=1), TypeError, "'stat.extent'"),
  "replace of a contact's field": (lambda _, __, d: d.replace(dist=1), TypeError, "'contact.dist'"),
  "a field that is none": (lambda _, __, d: d.replace(qposs=d.qpos), TypeError, "no field 'qposs'; did you mean 'qpos'"),
  "an option that is none": (lambda _, m, __: m.opt.replace(time_step=1), TypeError, "'time_step'; did you mean 'timestep'"),
  "a path that is none": (lambda _, m, __: m.tree_replace({"opt.gravty": 1}), TypeError, "'gravty'; did you mean 'gravity'"),
}


@pytest.mark.parametrize("name", ["ncon", "nefc", "_impl", "qM", "ne", "nf", "nl", "efc_J", "plugin_state"])
def test_old_fields_of_data_have_a_new_name(name):
  _, m, d = _scene()
  after = mjx.jit(mjx.step, one_world=True)(m, d)
  for x in (d, after, jax.tree.map(lambda x: x[None], d)):
    with pytest.raises(AttributeError, match=f"Data has no '{name}': ."):
      getattr(x, name)
    assert not hasattr(x, name)
  with pytest.raises(AttributeError, match=r"Data has no .qM.: it is now d\.M"):
    jax.jit(lambda d: d.qM)(d)


def test_every_field_of_mjxs_data_is_here_or_named():
  theirs = pytest.importorskip("mujoco.mjx._src.types")
  _, m, d = _scene()
  full = mjx.make_data(m, keep="all")
  for cls in (theirs.Data, theirs.DataJAX):
    for f in dataclasses.fields(cls):
      if not hasattr(full, f.name):
        with pytest.raises(AttributeError, match=f"Data has no '{f.name}': ."):
          getattr(d, f.name)
  for ours, classes in ((m, (theirs.Model, theirs.ModelJAX)), (m.opt, (theirs.Option, theirs.OptionJAX))):
    for f in (f for cls in classes for f in dataclasses.fields(cls)):
      if not hasattr(ours, f.name):
        with pytest.raises(AttributeError, match=f"'{f.name}'.*: ."):
          getattr(ours, f.name)


@pytest.mark.parametrize("name", ["device_put", "device_get_into", "benchmark", "render", "is_sparse", "get_rgb"])
def test_old_functions_have_a_new_name(name):
  with pytest.raises(AttributeError, match=f"'mjx_lite' has no attribute '{name}': (use|run|mjx_lite) "):
    getattr(mjx, name)
  with pytest.raises(AttributeError, match=r"no attribute 'nonsense'\.$"):
    _ = mjx.nonsense


def test_what_was_jitted_names_mujocos_types():
  mj_model, m, d = _scene()
  step = mjx.jit(mjx.step)
  assert step(m, d).time == m.opt.timestep
  with pytest.raises(TypeError, match=r"argument number 1 is a mujoco.MjModel, .* put_model"):
    step(mj_model, d)
  with pytest.raises(TypeError, match=r"argument number 2 is a mujoco.MjData, .* put_data"):
    step(m, mujoco.MjData(mj_model))
  with pytest.raises(TypeError, match=r"argument 'd' is a mujoco.MjData"):
    step(m, d=mujoco.MjData(mj_model))
  with pytest.raises(TypeError, match=r"unhashable|abstract array|not a valid JAX type"):  # what is not ours stays as it is
    step(object(), d)
  known = workarounds.compilations(step)  # JAX 0.12 counts calls that failed, too
  assert step.lower(m, d) and step(m, d).time == m.opt.timestep and workarounds.compilations(step) == known


def _edited(**changes):
  model = mujoco.MjModel.from_xml_string(XML)
  for name, value in changes.items():
    if name == "timestep":
      model.opt.timestep = value
    else:
      getattr(model, name)[1] = value
  return model


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(timestep=-0.01), "option: timestep = -0.01"), (dict(timestep=0), "option: timestep = 0,"),
    (dict(timestep=float("nan")), "option: timestep = nan"), (dict(body_mass=0), "body 1: it has joints, mass = 0"),
    (dict(body_inertia=0), "body 1: it has joints, .* inertia"), (dict(body_mass=-1), r"body 1: body_mass = \[-1.\]"),
    (dict(body_mass=float("inf")), "body 1: body_mass"), (dict(body_inertia=[1, -1, 1]), "body 1: body_inertia"),
  ],
)  # fmt: skip
def test_numbers_from_which_no_motion_follows(changes, message):
  with pytest.raises(mjx.MjxError, match=message):
    mjx.put_model(_edited(**changes))


def test_a_massless_body_may_move_one_that_is_fixed_to_it():
  mjx.put_model(
    mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><body name="a"><joint type="slide"/><body><geom size=".1"/></body></body></worldbody></mujoco>""")
  )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_derivative_with_respect_to_a_data(dtype):
  """Fields that are no floats have no derivatives: `allow_int` says so to JAX, as Data's docstring does."""
  mj_model, _, _ = _scene()
  m = mjx.put_model(mj_model, dtype=dtype)
  d = mjx.make_data(m).replace(ctrl=jnp.ones(1, dtype))
  f = lambda d: mjx.step(m, d).qvel.sum()  # noqa: E731
  for how in (lambda f: f, jax.jit):
    g = how(jax.grad(f, allow_int=True))(d)
    assert g.contact.dim.dtype == jax.dtypes.float0 and g.qvel[0] == pytest.approx(1) and repr(g)
    np.testing.assert_allclose(g.ctrl, jax.grad(lambda u: f(d.replace(ctrl=u)))(d.ctrl))
  assert "allow_int=True" in mjx.Data.__doc__


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_names_it(name):
  make, kind, message = MISTAKES[name]
  with pytest.raises(kind, match=message):
    make(*_scene())


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_one_key_for_many_worlds(key):
  many = envs.wrap(envs.load("pendulum"), episode_length=10)
  with pytest.raises(ValueError, match="split"):
    many.reset(key(0))


@pytest.mark.parametrize("option", ['solver="PGS"', 'noslip_iterations="3"', ""])
def test_a_model_too_large_for_a_machine_is_told(option):
  """Pairs of many geoms: rows by rows 1.2 GB in a world, rows by dofs little; with capacities neither."""
  balls = "".join(f"<body pos='{k} 0 0'><freejoint/><geom size='.1' condim='6'/></body>" for k in range(50))
  model = mujoco.MjModel.from_xml_string(f"<mujoco><option {option}/><worldbody>{balls}</worldbody></mujoco>")
  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    mjx.put_model(model, ncon_max="all")
  told = [str(w.message) for w in found if "contact slots" in str(w.message)]
  assert len(told) == bool(option) and all("suggest_capacity" in x and "rows by rows" in x and "1.2 GB" in x for x in told)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    mjx.put_model(model)
    mjx.put_model(model, ncon_max=10)
