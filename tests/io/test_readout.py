"""Named access, resets of some worlds, contacts for users, states with history, serialisation."""

import pickle

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import orbax.checkpoint as ocp
import pytest
from models import SCENES, load

import mjx_lite as mjx
from mjx_lite.compiler.backends import ptx


@pytest.fixture(scope="module")
def scene():
  """Spec, model and data of a scene with every kind of element, in a state in which no two numbers are equal."""
  spec = mujoco.MjSpec.from_file(str(SCENES / "sensors.xml"))
  model = spec.compile()
  data = mujoco.MjData(model)
  for name in ("qpos", "qvel", "ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos"):
    x = getattr(data, name)
    x[...] = np.arange(x.size).reshape(x.shape) + 0.25
  mujoco.mj_kinematics(model, data)
  m = mjx.put_model(model)
  return spec, model, data, m, mjx.put_data(m, data)


NAMED = [
  ("joint", "ball", ("range", "damping", "qpos0", "qposadr", "type"), ("qpos", "qvel", "qfrc_applied", "xanchor")),
  ("joint", "hinge", ("axis", "stiffness"), ("qpos", "qvel", "qacc")),
  ("joint", "cube", ("armature",), ("qpos", "qvel")),
  ("body", "hand", ("mass", "inertia", "parentid"), ("xpos", "xquat", "xfrc_applied")),
  ("geom", "knob", ("size", "friction", "bodyid"), ("xpos",)),
  ("site", "egg", ("size", "pos"), ("xpos",)),
  ("camera", "eye", ("fovy", "pos"), ("xpos",)),
  ("actuator", "hold", ("gear", "gainprm", "trnid"), ("ctrl", "force", "length")),
  ("tendon", "rope", ("springyield",), ("length", "velocity")),
  ("sensor", "strong", ("cutoff", "dim", "adr"), ("data",)),
  ("equality", 0, ("solref", "data", "type"), ()),
  ("key", "late", ("time", "ctrl"), ()),
]


@pytest.mark.parametrize("kind, name, fields, results", NAMED)
def test_named_access_is_mujocos(scene, kind, name, fields, results):
  spec, model, data, m, d = scene
  ours, theirs = getattr(m, kind)(name), getattr(model, kind)(name)
  assert (ours.id, ours.name) == (theirs.id, theirs.name or None)
  for field in fields:
    np.testing.assert_array_equal(np.ravel(getattr(ours, field)), np.ravel(getattr(theirs, field)), err_msg=field)
  views = [d.bind(m, ours)]
  if isinstance(name, str) and kind != "key":
    views.append(d.bind(m, getattr(spec, kind)(name)))
  for view in views:
    for field in results:
      np.testing.assert_array_equal(
        np.ravel(getattr(view, field)), np.ravel(getattr(getattr(data, kind)(name), field)), err_msg=field
      )


def test_bind_several_and_set(scene):
  spec, _, data, m, d = scene
  np.testing.assert_array_equal(d.bind(m, spec.joints).qpos, data.qpos)
  np.testing.assert_array_equal(d.bind(m, spec.actuators).ctrl, data.ctrl)
  np.testing.assert_array_equal(m.bind(spec.geoms).size, m.geom_size)
  np.testing.assert_array_equal(d.bind(m, m.body("anchor")).mocap_pos, data.mocap_pos[0])

  def change(d):
    d = d.bind(m, m.joint("ball")).set("qvel", [1.0, 2, 3])
    return d.bind(m, spec.bodies[1:3]).set("xfrc_applied", jnp.zeros((2, 6)))

  new = mjx.jit(change)(d)
  first = m.joint("ball").dofadr[0] if np.ndim(m.joint("ball").dofadr) else m.joint("ball").dofadr
  np.testing.assert_array_equal(new.qvel[first : first + 3], [1, 2, 3])
  assert np.sum(new.qvel != d.qvel) == 3
  np.testing.assert_array_equal(new.xfrc_applied[1:3], 0)
  many = jax.tree.map(lambda x: jnp.stack([x, x]), d)  # a batch may stand before
  assert many.bind(m, m.joint("ball")).qpos.shape == (2, 4)
  both = d.bind(m, [m.joint("ball"), m.joint("hinge")])
  np.testing.assert_array_equal(both.qvel, [*data.joint("ball").qvel, *data.joint("hinge").qvel])
  with pytest.raises(KeyError, match="no joint 'nope'"):
    m.joint("nope")
  with pytest.raises(AttributeError, match="a joint has no field 'ctrl'"):
    _ = d.bind(m, m.joint("ball")).ctrl
  with pytest.raises(ValueError, match="signature"):
    m.bind(mujoco.MjSpec.from_file(str(SCENES / "trees.xml")).compile() and mujoco.MjSpec().worldbody)


def test_reset_of_some_worlds(scene):
  _, model, _, m, d = scene
  many = jax.vmap(lambda t: d.replace(time=t))(jnp.arange(3.0) + 1)
  some = mjx.jit(lambda d, mask: mjx.reset(m, d, mask, "late"))(many, jnp.array([True, False, True]))
  c = mujoco.MjData(model)
  mujoco.mj_resetDataKeyframe(model, c, 0)
  for field in ("time", "qpos", "qvel", "act", "ctrl", "history", "plastic", "mocap_pos", "mocap_quat", "eq_active"):
    np.testing.assert_array_equal(getattr(some, field)[0], getattr(c, field), err_msg=field)
    np.testing.assert_array_equal(getattr(some, field)[1], getattr(many, field)[1], err_msg=field)
  inside = jax.vmap(lambda d, mask: mjx.reset(m, d, mask, "late"))(many, jnp.array([True, False, True]))
  np.testing.assert_array_equal(inside.qpos, some.qpos)
  np.testing.assert_array_equal(mjx.reset(m, d).qpos, model.qpos0)
  np.testing.assert_array_equal(mjx.where(jnp.array([False, True, False]), d, many).time, [1, d.time, 3])
  with pytest.raises(KeyError, match="no keyframe 'x'"):
    mjx.reset(m, d, key="x")
  with pytest.raises(IndexError, match="nkey = 1"):
    mjx.reset(m, d, key=1)


TWO_KEYS = """
<mujoco>
  <worldbody><body><joint type="slide"/><geom size=".1"/></body></worldbody>
  <keyframe><key qpos="1"/><key qpos="2" time="5"/></keyframe>
</mujoco>
"""
WHOLE = (int, np.int8, np.int32, np.int64, np.uint8, np.array, jnp.asarray)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", WHOLE, ids=lambda k: k.__name__)
def test_a_keyframe_by_a_number_of_any_kind(kind, dtype):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TWO_KEYS), dtype=dtype)
  d = mjx.make_data(m)
  many = jax.tree.map(lambda x: jnp.stack([x, x, x]), d)
  for key in (0, 1):
    assert mjx.reset(m, d, key=kind(key)).qpos == key + 1
    assert jax.jit(lambda d: mjx.reset(m, d, key=kind(key)))(d).qpos == key + 1  # noqa: B023
    assert (jax.vmap(lambda d: mjx.reset(m, d, key=kind(key)))(many).qpos == key + 1).all()  # noqa: B023
    assert (mjx.reset(m, many, key=kind(key)).qpos == key + 1).all()
  for key in (-1, 2, 7):
    if key < 0 and kind is np.uint8:
      continue
    number = kind(key)
    for reset in (lambda d: mjx.reset(m, d, key=number), jax.jit(lambda d: mjx.reset(m, d, key=number))):  # noqa: B023
      with pytest.raises(IndexError, match=f"keyframe {key} is out of range: the model has nkey = 2"):
        reset(d)


def test_keyframes_by_world_and_of_the_trace():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TWO_KEYS))
  d = mjx.make_data(m)
  many = jax.tree.map(lambda x: jnp.stack([x, x, x]), d)
  keys = np.array([1, 0, 1])
  np.testing.assert_array_equal(mjx.reset(m, many, key=keys).qpos[:, 0], keys + 1)
  np.testing.assert_array_equal(jax.vmap(lambda d, k: mjx.reset(m, d, key=k))(many, keys).qpos[:, 0], keys + 1)
  for key, qpos in ((-3, 1), (9, 2)):  # those are clipped
    assert jax.jit(lambda d, k: mjx.reset(m, d, key=k))(d, key).qpos == qpos
  with pytest.raises(IndexError, match="keyframe 4"):
    mjx.reset(m, many, key=np.array([0, 4, 1]))
  for wrong in (1.0, np.float32(0), True, np.array([0.5])):
    with pytest.raises(TypeError, match="has to be an integer"):
      mjx.reset(m, d, key=wrong)


@pytest.mark.parametrize("kind", WHOLE, ids=lambda k: k.__name__)
def test_an_id_of_any_kind(kind):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(TWO_KEYS))
  d = mjx.kinematics(m, mjx.make_data(m))
  calls = (
    lambda i: mjx.jac_body(m, d, i), lambda i: mjx.jac_geom(m, d, i), lambda i: mjx.object_velocity(m, d, 1, i),
    lambda i: mjx.geom_distance(m, d, i, i, 1.0),
  )  # fmt: skip
  for call in calls:
    jax.tree.map(np.testing.assert_array_equal, call(kind(0)), call(0))
    with pytest.raises(IndexError, match="id 7 is out of range"):
      call(kind(7))


@pytest.mark.parametrize("name", ["sensor_delays", "yielding"])
def test_state_with_history_and_plastic(name):
  model = load(name)
  m, data = mjx.put_model(model), mujoco.MjData(model)
  mujoco.mj_step(model, data, 30)
  assert model.nhistory or model.nplastic
  d = mjx.put_data(m, data)
  for sig in (mujoco.mjtState.mjSTATE_HISTORY, mujoco.mjtState.mjSTATE_PLASTIC, mujoco.mjtState.mjSTATE_INTEGRATION):
    expected = np.empty(mujoco.mj_stateSize(model, sig))
    mujoco.mj_getState(model, data, expected, sig)
    np.testing.assert_array_equal(mjx.get_state(m, d, int(sig)), expected)
    np.testing.assert_array_equal(
      mjx.get_state(m, mjx.set_state(m, mjx.make_data(m), jnp.asarray(expected), int(sig)), int(sig)), expected
    )


@pytest.fixture(scope="module")
def stepped():
  """A small world in contact, and its compiled step."""
  model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 .09"><freejoint/><geom size=".1"/></body><body pos="0.01 0 .28"><freejoint/><geom size=".1"/></body>
    </worldbody></mujoco>""")
  m = mjx.put_model(model)
  return model, m, mjx.jit(mjx.step)(m, mjx.make_data(m))


def test_contacts_for_users(stepped):
  model, m, d = stepped
  c, net = mjx.contacts(m, d), np.asarray(mjx.net_contact_force(m, d))
  data = mjx.get_data(model, d)
  assert c.active.sum() == data.ncon == 2
  total = np.zeros((model.nbody, 6))
  for i, slot in enumerate(np.flatnonzero(c.active)):
    theirs = np.zeros(6)
    mujoco.mj_contactForce(model, data, i, theirs)
    np.testing.assert_allclose(c.force[slot], theirs, atol=1e-12)
    np.testing.assert_array_equal(c.geom[slot], data.contact.geom[i])
    turned = np.concatenate([np.asarray(c.frame[slot]).T @ theirs[:3], np.asarray(c.frame[slot]).T @ theirs[3:]])
    np.testing.assert_allclose(c.force_world[slot], turned, atol=1e-12)
    for side, sign in ((0, -1), (1, 1)):
      b = model.geom_bodyid[c.geom[slot][side]]
      arm = np.asarray(c.pos[slot]) - data.xipos[b]
      total[b] += sign * np.concatenate([turned[:3], turned[3:] + np.cross(arm, turned[:3])])
  np.testing.assert_allclose(net[1:], total[1:], atol=1e-9)
  assert np.abs(net[1:]).max() > 1 and not net[0].any()


def test_round_trips(stepped, tmp_path):
  """Model and Data through pickle, npz and orbax."""
  _, m, d = stepped
  leaves, form = jax.tree.flatten((m, d))
  np.savez(tmp_path / "both.npz", *leaves)
  with np.load(tmp_path / "both.npz") as file:
    from_npz = jax.tree.unflatten(form, [file[f"arr_{i}"] for i in range(len(leaves))])
  # orbax takes no arrays without elements
  some = {str(i): x for i, x in enumerate(leaves) if x.size}
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "orbax", some)
    checkpointer.wait_until_finished()
    back = checkpointer.restore(tmp_path / "orbax", some)
  from_orbax = jax.tree.unflatten(form, [back.get(str(i), x) for i, x in enumerate(leaves)])
  for both in (pickle.loads(pickle.dumps((m, d))), from_npz, from_orbax):
    assert both[0].layout == m.layout
    for a, b in zip(jax.tree.leaves(both), leaves, strict=True):
      np.testing.assert_array_equal(a, b)
      assert a.dtype == b.dtype


@pytest.mark.parametrize("batch", [0, 3])
def test_export_of_a_step(stepped, batch):
  _, m, d = stepped
  step, worlds = mjx.step, [d]
  if batch:
    step, worlds = jax.vmap(mjx.step, in_axes=(None, 0)), [d.replace(qvel=d.qvel + 0.1 * i) for i in range(batch)]
    d = jax.tree.map(lambda *x: jnp.stack(x), *worlds)
  exported = jax.export.export(jax.jit(step))(m, d)
  again = jax.export.deserialize(exported.serialize())
  a, one = again.call(m, d), mjx.jit(mjx.step)
  for name, x in (("qpos", a.qpos), ("qvel", a.qvel)):
    expected = [getattr(one(m, w), name) for w in worlds]
    np.testing.assert_allclose(x, expected if batch else expected[0], rtol=1e-9, atol=1e-12, err_msg=name)


def test_export_for_devices_that_are_not_here():
  """Of a GPU's kernels JAX promises nothing to later versions and refuses to write them down: what is exported has none."""
  with jax.enable_x64(False):
    m = mjx.put_model(load("joints"))
    assert not ptx.why_off()
    exported = jax.export.export(jax.jit(mjx.step), platforms=["cuda", "tpu"])(m, mjx.make_data(m))
  assert exported.platforms == ("cuda", "tpu") and "ptx" not in exported.mlir_module()
