"""Model and Data as one array for each dtype between calls from Python."""

import copy
import pickle

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

XML = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .1"><freejoint/><geom size=".1"/></body>
    <body pos="2 0 1"><joint name="a" axis="0 1 0" limited="true" range="-20 20"/>
      <geom type="capsule" size=".04" fromto="0 0 0 .4 0 0"/></body>
  </worldbody>
  <actuator><motor joint="a"/></actuator>
</mujoco>
"""


@pytest.fixture(scope="module")
def world():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(XML))
  return m, mjx.make_data(m), mjx.jit(mjx.step), mjx.jit(mjx.step, one_world=True)


def unread(d):
  """Whether no field of a Data has been unpacked."""
  return "qpos" not in vars(d) and "_packed" in vars(d)


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


def test_steps_are_the_same(world):
  m, d, step, packed_step = world
  other = d
  for k in range(40):
    d = step(m, d.replace(ctrl=np.array([np.sin(k)])))
    other = packed_step(m, other.replace(ctrl=np.array([np.sin(k)])))
  assert unread(other) and isinstance(other, mjx.Data)
  np.testing.assert_array_equal(other.qpos, d.qpos)
  assert "qvel" not in vars(other)
  assert_equal(other, d)
  assert d.contact.dist.min() < 0 and np.any(d.efc_force)


def test_what_is_handed_over(world):
  """Three arrays in the place of a Data, made once; a change of a field unpacks nothing, and nothing is traced anew."""
  m, d, _, step = world
  d = step(m, step(m, d))
  known, packed = step._cache_size(), d.packed()
  assert len(packed.arrays) == len({x.dtype for x in jax.tree.leaves(mjx.make_data(m))})
  after = step(m, d.replace(ctrl=jnp.ones(1), qvel=d.qvel * 0))
  assert unread(after) and d.packed() is packed and step._cache_size() == known
  np.testing.assert_array_equal(after.ctrl, [1])
  assert not np.array_equal(after.qvel, step(m, d).qvel)


def test_changes_of_another_kind(world):
  """Python's numbers, nested fields, fields that were not kept; what does not fit is refused as always."""
  m, d, step, packed_step = world
  other = packed_step(m, d)
  d = step(m, d)
  changes = dict(time=0.5, contact=d.contact.replace(dist=d.contact.dist + 1))
  assert_equal(packed_step(m, other.replace(**changes)), step(m, d.replace(**changes)))
  kept = packed_step(m, other.replace(crb=jnp.zeros((m.nbody, 10))))
  np.testing.assert_array_equal(kept.crb, step(m, d.replace(crb=jnp.zeros((m.nbody, 10)))).crb)
  assert np.any(kept.crb) and not hasattr(other, "crb")
  with pytest.raises(ValueError, match="ctrl has shape"):
    packed_step(m, other.replace(ctrl=np.zeros((2, 1))))
  with pytest.raises(TypeError, match="control"):
    other.replace(control=0)
  with pytest.raises(AttributeError, match="'Data' object has no attribute 'xpo'"):
    _ = other.xpo


def test_other_arguments_and_results(world):
  m, d, _, _ = world
  f = mjx.jit(lambda m, d, u: (mjx.step(m, d.replace(ctrl=u)), {"sum": u.sum()}), one_world=True)
  after, extra = f(m, d, jnp.array([0.3]))
  assert unread(after) and extra["sum"] == jnp.array([0.3]).sum()
  g = mjx.jit(lambda d: d.qpos * 2, one_world=True)  # the Model closed over, or none
  np.testing.assert_array_equal(g(after), after.qpos * 2)


def test_several_worlds(world):
  """The plain function, as for all that is traced."""
  m, d, step, packed_step = world
  d = packed_step(m, d)
  many = jax.vmap(lambda u: d.replace(ctrl=u))(jnp.arange(3.0)[:, None])
  after = jax.vmap(packed_step, in_axes=(None, 0))(m, many)
  assert_equal(after, jax.vmap(step, in_axes=(None, 0))(m, many))
  batched = mjx.jit(jax.vmap(mjx.step, in_axes=(None, 0)), one_world=True)
  assert_equal(batched(m, many), after)
  constants = jax.vmap(lambda x: packed_step(m, d).qpos + x)(jnp.zeros(2))
  np.testing.assert_allclose(constants[1], step(m, d).qpos, rtol=1e-12)


def test_reading_while_another_function_is_traced(world):
  m, d, _, step = world
  d = step(m, step(m, d))
  assert unread(d)
  for f in (jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])[0]):
    again = step(m, d)
    f(lambda x, again=again: x + again.qpos.sum() + again.qvel.sum())(jnp.ones(()))
    assert not isinstance(again.qpos, jax.core.Tracer)
    np.testing.assert_array_equal(again.qpos, step(m, d).qpos)


def test_copies(world):
  m, d, _, step = world
  d = step(m, d)
  for other in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d), copy.copy(d), d.replace(), jax.tree.map(lambda x: x, d)):
    assert_equal(other, d)
    np.testing.assert_array_equal(other.xmat, d.xmat)
  assert repr(step(m, d)) == repr(jax.tree.map(lambda x: x, d))
