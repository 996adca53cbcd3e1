"""From and to mujoco: refusals, errors, conversions, names, states."""

import pickle

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import load

import mjx_lite as mjx
from mjx_lite.model import pytree

UNSUPPORTED = """
<mujoco>
  <option integrator="RK4" solver="PGS" noslip_iterations="2"><flag sleep="enable"/></option>
  <asset>
    <hfield name="hills" nrow="2" ncol="2" size="1 1 1 1"/><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
  </asset>
  <worldbody>
    <geom name="floor" type="hfield" hfield="hills"/>
    <body name="a"><joint name="hip" axis="0 1 0"/><site name="s" type="mesh" mesh="m"/>
      <geom name="lid" type="hfield" hfield="hills"/>
      <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
  </worldbody>
  <actuator><general name="act" joint="hip" biastype="dcmotor"/></actuator>
  <sensor><touch name="angle" site="s"/></sensor>
</mujoco>
"""


def test_everything_unsupported_is_named_in_one_error():
  model = mujoco.MjModel.from_xml_string(UNSUPPORTED)
  with pytest.raises(mjx.UnsupportedModelError) as error:
    mjx.put_model(model)
  text = str(error.value)
  for part in (
    "flag sleep", "sensor 'angle'",
    "'floor' and geom 'lid'", "hfield-hfield", "actuator 'act': dyntype/gaintype/biastype = NONE/FIXED/DCMOTOR",
  ):  # fmt: skip
    assert part in text, (part, text)
  assert len(error.value.problems) == 4, text


# P84
def test_an_integrator_that_is_none_is_refused():
  model = mujoco.MjModel.from_xml_string("<mujoco/>")
  model.opt.integrator = 9
  with pytest.raises(mjx.UnsupportedModelError, match="integrator"):
    mjx.put_model(model)


def test_a_supported_model_is_not_refused():
  assert mjx.put_model(load("joints")).nv == load("joints").nv


def test_wrong_arguments_say_what_to_do():
  model = load("trees")
  m = mjx.put_model(model)
  with pytest.raises(TypeError, match="already a Model"):
    mjx.put_model(m)
  with pytest.raises(TypeError, match="compile"):
    mjx.put_model(mujoco.MjSpec())
  with pytest.raises(TypeError, match="unexpected argument 'nonsense'"):
    mjx.put_model(model, nonsense=1)
  with pytest.warns(UserWarning, match="njmax"):
    mjx.put_model(model, njmax=100)
  with pytest.raises(ValueError, match="only"):
    mjx.put_model(model, keep=("body_mass",))
  for dtype in (np.float16, jnp.bfloat16, int):
    with pytest.raises(ValueError, match="float32 or float64"):
      mjx.put_model(model, dtype=dtype)
  d = mjx.make_data(m)
  with pytest.raises(ValueError, match="qpos has to be of a floating type"):
    mjx.step(m, d.replace(qpos=d.qpos.astype(int)))
  with pytest.raises(ValueError, match="another model"):
    mjx.put_data(model, mujoco.MjData(load("joints")))
  with pytest.raises(ValueError, match="another model"):
    mjx.get_data(load("joints"), mjx.make_data(m))


def test_a_model_of_another_mujoco_is_refused(monkeypatch):
  model = load("trees")
  monkeypatch.setattr(mujoco, "__version__", "3.3.0")
  with pytest.raises(ValueError, match=r"compiled by MuJoCo 3.3.0.*4\.0"):
    mjx.put_model(model)


def test_data_of_another_model_is_refused_by_the_stages():
  m, other = mjx.put_model(load("trees")), mjx.make_data(mjx.put_model(load("joints")))
  with pytest.raises(ValueError, match="another model"):
    mjx.step(m, other)


def test_static_and_pruned_fields_cannot_be_replaced():
  m = mjx.put_model(load("boxes"))
  with pytest.raises(ValueError, match="static"):
    m.replace(body_parentid=m.body_parentid)
  for field in ("dof_damping", "dof_frictionloss", "jnt_stiffness", "body_gravcomp"):
    with pytest.raises(ValueError, match=rf"keep=\('{field}',\)"):
      m.replace(**{field: getattr(m, field) + 1})
  with pytest.raises(ValueError, match="FILTERPARENT"):
    m.replace(opt=m.opt.replace(disableflags=int(mjx.DisableBit.FILTERPARENT)))
  with pytest.raises(ValueError, match="read-only"):
    m.body_parentid[0] = 1


# P70
@pytest.mark.parametrize("flag", ["CONTACT", "CONSTRAINT"])
def test_contacts_that_were_disabled_have_no_slots_and_stay_disabled(flag):
  model = load("boxes")
  on = mjx.put_model(model)
  off = on.replace(opt=on.opt.replace(disableflags=int(mjx.DisableBit[flag])))
  d = mjx.make_data(on)
  d = d.replace(geom_xpos=d.geom_xpos * 0)  # all at one place
  assert (mjx.collision(on, d).contact.exclude == 0).any()
  assert (mjx.collision(off, d).contact.exclude == -1).all()
  off.replace(opt=on.opt)
  model = mujoco.MjModel.__copy__(model)
  model.opt.disableflags |= int(mjx.DisableBit[flag])
  never = mjx.put_model(model)
  assert mjx.make_data(never).contact.dist.shape == (0,)
  with pytest.raises(ValueError, match="no slots"):
    never.replace(opt=never.opt.replace(disableflags=0))


@pytest.mark.parametrize("field", ["dof_damping", "dof_frictionloss", "jnt_stiffness", "body_gravcomp"])
def test_a_kept_field_has_its_force_and_gradient(field):
  model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody>
      <body><freejoint/><geom size=".1 .2 .3" type="box"/>
        <body pos=".4 0 0"><joint axis="0 1 0"/><geom size=".1"/></body></body>
    </worldbody></mujoco>""")
  m = mjx.put_model(model, keep=(field,))
  d = mjx.make_data(m)
  d = d.replace(qvel=d.qvel + 0.5, qpos=d.qpos.at[0::7].add(0.05))
  value = getattr(m, field) + 0.3
  changed = mujoco.MjModel.__copy__(model)
  getattr(changed, field)[:] = np.asarray(value)
  data = mujoco.MjData(changed)
  mujoco.mj_setConst(changed, data)  # flags that C keeps of the values
  data.qpos[:], data.qvel[:] = d.qpos, d.qvel
  mujoco.mj_step(changed, data)

  def f(x):
    qvel = mjx.step(m.replace(**{field: x}), d).qvel
    return jnp.sum(qvel**2), qvel

  g, qvel = mjx.jit(jax.grad(f, has_aux=True))(value)
  np.testing.assert_allclose(qvel, data.qvel, rtol=1e-6, atol=1e-7)
  assert np.isfinite(g).all() and np.abs(g).max() > 0


def test_all_names_of_mjmodel_work():
  model = load("joints")
  m = mjx.put_model(model)
  for name in dir(model):
    value = getattr(model, name)
    if name.startswith("_") or not isinstance(value, np.ndarray | int | float):
      continue
    np.testing.assert_array_equal(np.ravel(getattr(m, name)), np.ravel(value), err_msg=name)
  with pytest.raises(AttributeError, match="nonsense"):
    _ = m.nonsense


def test_put_and_get_data_are_inverse():
  model = load("trees")
  data = mujoco.MjData(model)
  data.qvel[:] = 0.1
  for _ in range(120):
    mujoco.mj_step(model, data)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  before = np.array(d.qpos)
  mujoco.mj_step(model, data)  # Data has its own copy
  np.testing.assert_array_equal(d.qpos, before)
  back = mjx.get_data(model, d)
  for name in ("qpos", "qvel", "time", "xpos", "xmat", "M", "qfrc_bias", "mocap_pos", "subtree_com"):
    np.testing.assert_array_equal(np.ravel(getattr(back, name)), np.ravel(getattr(d, name)), err_msg=name)


def test_batched_data_becomes_a_list():
  model = load("trees")
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  many = jax.vmap(lambda t: d.replace(time=t))(jnp.arange(3.0))
  out = mjx.get_data(model, many)
  assert [x.time for x in out] == [0, 1, 2]
  with pytest.raises(ValueError, match="list"):
    mjx.get_data_into(out, model, d)


def test_make_data_equals_a_new_mjdata():
  for name in ("joints", "pairs", "nothing"):
    model = load(name)
    data, d = mujoco.MjData(model), mjx.make_data(model)
    for field in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat", "eq_active", "time", "xfrc_applied"):
      np.testing.assert_array_equal(getattr(d, field), getattr(data, field), err_msg=field)


def test_data_is_made_without_compiling(caplog):
  """What a start of NumPy's would cost if each array were made by a program of its own: a second or two for a humanoid."""
  body = "<body pos='0 0 1'><joint/><geom size='.1'/></body>"
  model = mujoco.MjModel.from_xml_string(f"""
    <mujoco><worldbody><body mocap="true"><geom type="box" size="1 1 1"/></body>{53 * body}</worldbody></mujoco>""")
  mj_data, m = mujoco.MjData(model), mjx.put_model(model)
  mujoco.mj_forward(model, mj_data)
  with jax.log_compiles():
    d, of_c = mjx.make_data(m), mjx.put_data(m, mj_data)
  assert not [r.getMessage() for r in caplog.records if "ompil" in r.getMessage()]
  assert d.xpos.shape == (55, 3) and of_c.mocap_pos.shape == (1, 3)
  traced = jax.jit(lambda m: mjx.make_data(m))(m)  # with a Model that is traced too
  jax.tree.map(np.testing.assert_array_equal, traced, d)
  with jax.log_compiles():
    mjx.where(True, d, of_c)
  assert len([r for r in caplog.records if "Compiling" in r.getMessage() and "_where" in r.getMessage()]) == 1


# P07
def test_reset_data():
  """State, inputs and counters of any use are gone."""
  model = load("pairs")
  m = mjx.put_model(model)
  d, fields = mjx.make_data(m, keep="all"), pytree.specs(mjx.Data)
  used = d.replace(**{k: getattr(d, k) + 1 for k, spec in fields.items() if spec["dtype"] == "float"})
  used = used.replace(eq_active=~d.eq_active, status=d.status.replace(bits=d.status.bits + 1, count=d.status.count + 2))
  c = mujoco.MjData(model)
  for reset in (mjx.jit(mjx.reset_data)(m, used), mjx.jit(mjx.reset)(m, used)):
    for field in ("qpos", "qvel", "act", "time", "ctrl", "qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos",
                  "mocap_quat", "userdata", "qacc_warmstart"):  # fmt: skip
      np.testing.assert_array_equal(getattr(reset, field), getattr(c, field), err_msg=field)
    assert not np.any(reset.status.count)


def test_names():
  model = load("joints")
  m = mjx.put_model(model)
  for kind in (mjx.ObjType.JOINT, mjx.ObjType.BODY, mjx.ObjType.ACTUATOR, mjx.ObjType.CAMERA):
    for i in range(12):
      assert mjx.id2name(m, kind, i) == mujoco.mj_id2name(model, int(kind), i)
  assert mjx.name2id(m, mjx.ObjType.JOINT, "slide") == 1
  assert mjx.name2id(m, mjx.ObjType.JOINT, "no such joint") == -1


# P03, P04
def test_state_vector():
  model = load("pairs")
  m = mjx.put_model(model)
  data = mujoco.MjData(model)
  for _ in range(20):
    mujoco.mj_step(model, data)
  data.mocap_pos[:] += 0.3
  d = mjx.put_data(m, data)
  bits = [1 << k for k in range(15)]
  for sig in [*bits, sum(bits), 0, 1 | 2 | 64, *(int(getattr(mujoco.mjtState, f"mjSTATE_{n}")) for n in ("PHYSICS", "USER"))]:
    assert mjx.state_size(m, sig) == mujoco.mj_stateSize(model, sig)
    expected = np.empty(mujoco.mj_stateSize(model, sig))
    mujoco.mj_getState(model, data, expected, sig)
    np.testing.assert_array_equal(mjx.get_state(m, d, sig), expected)
    back = mjx.set_state(m, mjx.make_data(m), jnp.asarray(expected), sig)
    np.testing.assert_array_equal(mjx.get_state(m, back, sig), expected)
  with pytest.raises(ValueError, match="shape"):
    mjx.set_state(m, d, jnp.zeros(3), 2)
  with pytest.raises(ValueError, match="bits"):
    mjx.state_size(m, 1 << 20)


def test_model_and_data_pickle():
  m = mjx.put_model(load("trees"))
  d = mjx.make_data(m)
  m2, d2 = pickle.loads(pickle.dumps((m, d)))
  assert m2.layout == m.layout and hash(m2.layout) == hash(m.layout)
  for x, y in zip(jax.tree.leaves((m, d)), jax.tree.leaves((m2, d2)), strict=True):
    np.testing.assert_array_equal(x, y)
