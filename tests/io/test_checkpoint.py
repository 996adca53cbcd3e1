"""Models and Datas in files of flax and orbax."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import load

import mjx_lite as mjx

flax = pytest.importorskip("flax.serialization")
ocp = pytest.importorskip("orbax.checkpoint")


def _things(dtype=np.float64, keep=()):
  m = mjx.put_model(load("boxes"), dtype=dtype)
  d = mjx.forward(m, mjx.make_data(m, keep=keep).replace(qvel=jnp.full(m.nv, 0.1, dtype)))
  return m, d, jax.tree.map(lambda x: jnp.stack([x, x + 1 if x.dtype != bool else x]), d)


def _same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


def _empty(x):
  return jax.tree.map(jnp.zeros_like, x)


@pytest.mark.parametrize("keep", [(), "all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_dictionary_has_all_there_is(dtype, keep):
  for x in _things(dtype, keep):
    state = mjx.to_state_dict(x)
    assert all(y.size for y in jax.tree.leaves(state))
    _same(mjx.from_state_dict(_empty(x), state), x)


def test_flax_writes_them():
  m, d, many = _things()
  for x in (m, d, many, d.contact, d.status, m.opt):
    data = flax.to_bytes(x)
    assert len(data) > sum(y.nbytes for y in jax.tree.leaves(x))
    _same(flax.from_bytes(_empty(x), data), x)
  both = {"data": d, "w": jnp.ones(3)}
  _same(flax.from_bytes(_empty(both), flax.to_bytes(both)), both)


def test_orbax_writes_the_dictionaries(tmp_path):
  for i, x in enumerate(_things()):
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(tmp_path / str(i), mjx.to_state_dict(x))
      checkpointer.wait_until_finished()
      _same(mjx.from_state_dict(_empty(x), checkpointer.restore(tmp_path / str(i))), x)
      _same(mjx.from_state_dict(_empty(x), checkpointer.restore(tmp_path / str(i), mjx.to_state_dict(x))), x)
  with pytest.raises(ValueError, match="zero size"), ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "whole", _things()[1])  # what Data's docstring says; once this passes, it need not
  assert "to_state_dict" in mjx.Data.__doc__


def test_inside_of_a_program():
  _, d, many = _things()
  _same(jax.jit(lambda d: mjx.from_state_dict(d, mjx.to_state_dict(d)))(d), d)
  _same(jax.vmap(lambda d: mjx.from_state_dict(d, mjx.to_state_dict(d)))(many), many)


def test_what_does_not_fit_is_named():
  m, d, many = _things()
  state = mjx.to_state_dict(d)
  with pytest.raises(ValueError, match=r"Data.time was written as float64\[2\], and is float64\[\] in this one"):
    mjx.from_state_dict(d, mjx.to_state_dict(many))
  with pytest.raises(ValueError, match=r"Data.qpos was not written"):
    mjx.from_state_dict(d, {k: x for k, x in state.items() if k != "qpos"})
  with pytest.raises(ValueError, match="Data has no crb here: make the Data with the keep="):
    mjx.from_state_dict(d, mjx.to_state_dict(_things(keep=("crb",))[1]))
  with pytest.raises(ValueError, match=r"written as float32"):
    mjx.from_state_dict(m, mjx.to_state_dict(_things(np.float32)[0]))


CODE = """
import sys
{first}
import mujoco, mjx_lite as mjx
assert {loaded} == ("flax" in sys.modules)
{then}
d = mjx.make_data(mujoco.MjModel.from_xml_string("<mujoco/>"))
assert ("flax" in sys.modules) == {after}
if {after}:
  import flax.serialization
  assert flax.serialization.from_bytes(d, flax.serialization.to_bytes(d)).time == 0
"""
FLAX = "import flax.serialization"


@pytest.mark.parametrize(("first", "then"), [(FLAX, ""), ("", FLAX), ("", "")], ids=["before", "after", "never"])
def test_flax_is_not_imported_for_it(first, then):
  code = CODE.format(first=first, then=then, loaded=bool(first), after=bool(first or then))
  subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
