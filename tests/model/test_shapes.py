"""Arrays of a Model or a Data that do not fit are named, where they are given and where they are used."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.model import pytree

XML = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 1"><joint type="slide" damping="1"/><joint axis="0 1 0" damping="2"/><joint axis="1 0 0" damping="3"/>
      <geom size=".1"/></body>
  </worldbody>
</mujoco>
"""


def _scene(dtype=np.float64):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML), dtype=dtype)
  return m, mjx.make_data(m)


def _entrances(m, d):
  """Public functions of each kind."""
  yield lambda m, d: mjx.step(m, d).qvel
  yield lambda m, d: mjx.rollout(m, d, steps=2)[0].qvel
  yield lambda m, d: mjx.rollout(m, d, lambda m, d: d.ctrl, steps=2)[0].qvel
  yield lambda m, d: mjx.jac_body(m, d, 1)
  yield lambda m, d: mjx.set_const(m).dof_invweight0
  yield lambda m, d: mjx.geom_distance(m, d, 0, 1, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (2,), (4,), (3, 1), ()])
def test_a_damping_for_all_dofs(dtype, shape):
  m, _ = _scene(dtype)
  for change in (m.replace, m.with_params, lambda **x: m.tree_replace(x)):
    with pytest.raises(ValueError, match=r"Model.dof_damping has shape"):
      change(dof_damping=jnp.full(shape, 0.5, dtype))
    with pytest.raises(ValueError, match=r"Model.dof_damping"):
      jax.jit(lambda x: change(dof_damping=x).dof_damping)(jnp.full(shape, 0.5, dtype))  # noqa: B023
  with pytest.raises(ValueError, match=r"Model.dof_damping has shape"):
    m.with_params(dof_damping=[0.5])


def test_every_field_is_compared():
  """An array with one row more or less, of every field of a Model, put there past `replace`."""
  m, d = _scene()
  for name in pytree.specs(mjx.Model):
    old = getattr(m, name)
    wrong = jnp.zeros((old.shape[0] + 1, *old.shape[1:]))
    bad = jax.tree.map(lambda x: x, m)
    object.__setattr__(bad, name, wrong)
    with pytest.raises(ValueError, match=rf"Model.{name} has shape"):
      mjx.kinematics(bad, d)
    if name not in m.layout.pruned:
      with pytest.raises(ValueError, match=rf"Model.{name} has shape"):
        m.replace(**{name: wrong})
  for part in ("opt", "stat"):
    for name, spec in pytree.specs(type(getattr(m, part))).items():
      bad = jax.tree.map(lambda x: x, m)
      object.__setattr__(getattr(bad, part), name, jnp.zeros((*spec["shape"], 2)))
      with pytest.raises(ValueError, match=rf"Model.{part}.{name} has shape"):
        mjx.kinematics(bad, d)
  with pytest.raises(ValueError, match=r"Model.opt.gravity has shape \(2,\)"):
    m.opt.replace(gravity=jnp.ones(2))
  with pytest.raises(ValueError, match=r"Model.opt.gravity has shape \(2,\)"):
    m.tree_replace({"opt.gravity": jnp.ones(2)})


@pytest.mark.parametrize("name", ["time", "act", "history", "plastic", "qacc_warmstart", "eq_active", "userdata", "geom_xpos"])
def test_fields_of_data(name):
  m, d = _scene()
  old = getattr(d, name)
  with pytest.raises(ValueError, match=rf"Data.{name} has shape"):
    mjx.step(m, d.replace(**{name: jnp.zeros((2, *old.shape), old.dtype)}))


@pytest.mark.parametrize("how", [lambda f: f, jax.jit, mjx.jit], ids=["eager", "jit", "mjx.jit"])
def test_a_batch_without_vmap_says_so(how):
  m, d = _scene()
  heavy = m.replace(body_mass=jnp.stack([m.body_mass] * 4))
  many = jax.tree.map(lambda x: jnp.stack([x] * 4), d)
  message = r"Model.body_mass has shape \(4, 2\); one world of this model needs \(2,\): call the function under jax.vmap"
  for call in _entrances(m, d):
    with pytest.raises(ValueError, match=message):
      how(call)(heavy, d)
    with pytest.raises(ValueError, match=message):
      how(jax.vmap(call, in_axes=(None, 0)))(heavy, many)


def test_batches_pass_with_the_right_axes():
  m, d = _scene()
  heavy = m.replace(body_mass=jnp.stack([m.body_mass, 2 * m.body_mass]))
  axes = jax.tree.map(lambda _: None, m).replace(body_mass=0)
  out = jax.vmap(mjx.step, in_axes=(axes, None))(heavy, d)
  assert out.qvel.shape == (2, 3)
  every = jax.tree.map(lambda x: jnp.stack([x, x]), m)
  assert jax.vmap(mjx.step, in_axes=(0, None))(every, d).qvel.shape == (2, 3)
  slow = m.replace(opt=m.opt.replace(timestep=jnp.array([0.001, 0.002])))
  axes = jax.tree.map(lambda _: None, m).tree_replace({"opt.timestep": 0})
  np.testing.assert_allclose(jax.vmap(mjx.step, in_axes=(axes, None))(slow, d).time, [0.001, 0.002])


def test_make_data_of_a_batch_is_refused_where_it_would_be_wrong():
  m, _ = _scene()
  with pytest.raises(ValueError, match=r"Model.qpos0 has shape"):
    mjx.make_data(m.replace(qpos0=jnp.stack([m.qpos0] * 2)))
  every = jax.tree.map(lambda x: jnp.stack([x, x]), m)
  assert jax.vmap(mjx.make_data)(every).qpos.shape == (2, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_become_arrays_of_the_type(dtype):
  m, d = _scene(dtype)
  for number in (0.25, 1, np.float32(0.5), np.int64(2)):
    option = m.replace(opt=m.opt.replace(timestep=number)).opt, m.tree_replace({"opt.timestep": number}).opt
    for new in (*(x.timestep for x in option), d.replace(time=number).time):
      assert new.dtype == dtype and not new.weak_type and new == number
  assert mjx.step(m, d.replace(time=1.0)).time == 1 + m.opt.timestep
  with pytest.raises(TypeError, match=r"Model.dof_damping has to be an array, not float"):
    mjx.step(m.replace(dof_damping=0.5), d)
