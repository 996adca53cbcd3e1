"""What Models, Datas and their parts look like when they are printed."""

import re

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx

LONGEST = 400  # characters; Option has 30 values


def _scene(dtype=np.float32, name="boxes"):
  model = load(name)
  m = mjx.put_model(model, dtype=dtype)
  return model, m, mjx.make_data(m)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_options_and_bytes_are_there(dtype):
  model, m, d = _scene(dtype)
  m = m.tree_replace({"opt.timestep": jnp.asarray(0.0625, dtype)})
  text = repr(m)
  for part in (f"nq={model.nq}", f"nv={model.nv}", f"nbody={model.nbody}", "integrator=EULER", "timestep=0.0625"):
    assert part in text, (part, text)
  assert np.dtype(dtype).name in text and text.endswith("B)")
  assert repr(d) == str(d) and f"nq={model.nq}" in repr(d) and np.dtype(dtype).name in repr(d)
  assert f"nefc={d.efc_D.shape[0]}, ncon={d.contact.dist.shape[0]}" in repr(d)
  many = jax.tree.map(lambda x: jnp.stack([x] * 3), d)
  assert "3 worlds" in repr(many) and "3 worlds" in repr(many.contact) and f"{d.contact.dist.size} slots" in repr(d.contact)
  for x in (m, d, many):  # bytes
    taken = sum(leaf.nbytes for leaf in jax.tree.leaves(x))
    number, unit = re.search(r", ([\d.]+) (\w+)\)$", repr(x)).groups()
    assert float(number) * dict(B=1, kB=1e3, MB=1e6)[unit] == pytest.approx(taken, rel=0.01)
  for x in (m, d, many, d.contact, m.stat, d.status):
    assert len(repr(x)) < LONGEST and "\n" not in repr(x)
  assert len(repr(m.opt)) < 3 * LONGEST and "solver=NEWTON" in repr(m.opt) and "gravity=[" in repr(m.opt)


def test_flags_have_names():
  _, m, _ = _scene()
  off = m.replace(opt=m.opt.replace(disableflags=int(mjx.DisableBit.CONTACT | mjx.DisableBit.GRAVITY)))
  assert "CONTACT" in repr(off.opt) and "GRAVITY" in repr(off.opt)


def test_what_is_traced_is_shown_by_shape():
  _, m, d = _scene()
  many, seen = jax.tree.map(lambda x: jnp.stack([x] * 3), d), []

  def look(m, d):
    seen.extend(map(repr, (m, d, d.contact, m.opt, m.stat, d.status)))
    return d.qpos

  each = jax.vmap(look, (None, 0))
  for run, given in ((jax.jit(look), d), (each, many), (jax.jit(each), many)):
    seen.clear()
    run(m, given)
    assert all(len(x) < 3 * LONGEST for x in seen)
    assert "traced" in seen[1] and f"nq={m.nq}" in seen[1]
  seen.clear()
  jax.grad(lambda q: look(m, d.replace(qpos=q)).sum())(d.qpos)
  assert "traced" in seen[1]


def test_a_batched_model_says_which_fields():
  _, m, _ = _scene()
  heavy = m.replace(body_mass=jnp.stack([m.body_mass] * 5))
  assert f"batched: body_mass=float32[5,{m.nbody}]" in repr(heavy)
  every = jax.tree.map(lambda x: jnp.stack([x] * 5), m)
  assert "batched: qpos0" in repr(every) and "other fields" in repr(every) and len(repr(every)) < 2 * LONGEST


def test_packed_data_stays_packed():
  _, m, d = _scene("float32")
  step = mjx.jit(mjx.step, one_world=True)
  after = step(m, d)
  before = set(vars(after))
  text = repr(after)
  assert set(vars(after)) == before and f"nq={m.nq}" in text
  changed = after.replace(qfrc_applied=after.qfrc_applied + 1)
  assert repr(changed) == text
  assert repr(jax.tree.map(jnp.asarray, after)) == text


def test_what_is_not_made_of_arrays_or_is_gone_is_printed_too():
  _, m, d = _scene()
  for leaf in (None, True, "x", jax.sharding.PartitionSpec()):
    for x in (m, d, d.contact, m.opt, d.status):
      assert len(repr(jax.tree.map(lambda _: leaf, x))) < 3 * LONGEST  # noqa: B023
  assert f"nq={m.nq}" in repr(jax.eval_shape(lambda: d))
  text = repr(d.status)
  gone = jax.tree.map(jnp.array, d)
  jax.jit(lambda d: jax.tree.map(lambda x: x + 1 if x.dtype != bool else x, d), donate_argnums=0)(gone)
  assert repr(gone) == repr(d) and repr(gone.status) != text and "int32[]" in repr(gone.status)


def test_models_without_a_name_or_anything_in_them():
  m = mjx.put_model(mujoco.MjModel.from_xml_string("<mujoco/>"))
  for x in (m, mjx.make_data(m), mjx.make_data(m).contact):
    assert repr(x)
