"""Which geoms meet, in which order, with which parameters and forces: MuJoCo's rules one by one, with C beside."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx
from mjx_lite.testing import compare

XML = """
<mujoco>
  <option cone="elliptic" gravity="0 0 -5"/>
  <default><geom solref=".03 1"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="9 9 1" condim="1"/>
    <body name="once" pos="0 0 .09"><freejoint/><geom name="once" size=".1" condim="1"/></body>
    <body name="thrice" pos="1 0 .09"><freejoint/><geom name="thrice" size=".1" condim="3"/></body>
    <body name="roll" pos="2 0 .09"><freejoint/><geom name="roll" size=".1" condim="6" friction="1 .1 .1"/></body>
    <body name="mix1" pos="0 0 5"><freejoint/>
      <geom name="mix1" size=".1" condim="1" friction=".3 .02 .001" solref=".1 1"/></body>
    <body name="mix2" pos="0 0 5.19"><freejoint/>
      <geom name="mix2" size=".1" condim="4" friction=".2 .01 .004" solref=".02 .6" solmix="3"/></body>
    <body name="pair1" pos="1 0 5"><freejoint/><geom name="pair1" size=".1" contype="0" conaffinity="0" condim="6"/></body>
    <body name="pair2" pos="1 0 5.19"><freejoint/>
      <geom name="pair2" size=".1" contype="0" conaffinity="0" solref=".5 1"/></body>
    <body name="apart1" pos="2 0 5"><freejoint/><geom name="apart1" size=".1"/></body>
    <body name="apart2" pos="2 0 5.19"><freejoint/><geom name="apart2" size=".1"/></body>
    <body name="root" pos="3 0 5"><geom name="link0" size=".1"/>
      <body pos=".1 0 0"><joint/><geom name="link1" size=".1"/><geom name="link1b" size=".1" pos="0 .3 0"/>
        <geom name="link1c" size=".1" pos="0 .35 0"/>
        <body pos=".05 0 0"><joint axis="0 1 0"/><geom name="link2" size=".1"/></body></body></body>
    <body name="couple1" pos="4 0 .09"><freejoint/><geom name="c1" size=".1"/><geom name="c2" size=".1" pos="0 .3 0"/></body>
    <body name="couple2" pos="4.19 0 .09"><freejoint/><geom name="c3" size=".1"/><geom name="c4" size=".1" pos="0 .3 0"/></body>
    <body name="near" pos="5 0 .12"><freejoint/><geom name="near" size=".1" margin=".05" gap=".03"/></body>
    <body name="listed" pos="6 0 .16"><freejoint/><geom name="listed" size=".1" margin=".05" gap=".03"/></body>
    <body name="far" pos="7 0 .19"><freejoint/><geom name="far" size=".1" margin=".05" gap=".03"/></body>
    <body name="palm" pos="8 0 1" mocap="true"><geom name="palm" type="box" size=".2 .2 .05"/></body>
    <body name="held" pos="8 0 1.14"><freejoint/><geom name="held" size=".1"/></body>
  </worldbody>
  <contact>
    <pair geom1="pair1" geom2="pair2" condim="3" friction=".9 .7 .01 .002 .003" solref=".02 .8"/>
    <exclude body1="pair1" body2="pair2"/><exclude body1="apart1" body2="apart2"/>
  </contact>
</mujoco>"""


@pytest.fixture(scope="module")
def world():
  """Model, C's Data, ours, ours as C's, and the contact force of every slot; all bodies turn and slide."""
  model = compare.optimal(mujoco.MjModel.from_xml_string(XML))
  data = mujoco.MjData(model)
  data.qvel[:] = 0.3 * np.cos(np.arange(model.nv))
  for name in ("once", "thrice", "roll", "held"):
    data.joint(model.body(name).jntadr[0]).qvel[2] = -0.2
  data.mocap_pos[0] += [0.01, 0, 0.005]
  m = mjx.put_model(model)

  def forward(d):
    d = mjx.forward(m, d)
    return d, jax.vmap(lambda i: mjx.contact_force(m, d, i))(jnp.arange(len(d.contact.dist)))

  d, force = mjx.jit(forward)(mjx.put_data(m, data))
  mujoco.mj_forward(model, data)
  return model, data, d, mjx.get_data(model, d), np.asarray(force)


def contact(world, one, other):
  """Index of the contact of two geoms in C's order, and its slot; None where they do not meet."""
  model, _, d, ours, _ = world
  want = {model.geom(one).id, model.geom(other).id}
  found = [i for i in range(ours.ncon) if set(ours.contact.geom[i]) == want]
  assert len(found) <= 1
  slots = np.flatnonzero(np.asarray(d.contact.exclude) >= 0)
  return (found[0], slots[found[0]]) if found else None


# P61
def test_parameters_are_mixed(world):
  """The larger condim and friction, and means of solref and solimp by solmix."""
  c = world[3].contact[contact(world, "mix1", "mix2")[0]]
  assert c.dim == 4
  np.testing.assert_allclose(c.friction, [0.3, 0.3, 0.02, 0.004, 0.004])
  np.testing.assert_allclose(c.solref, [0.04, 0.7])


# P62
def test_an_explicit_pair_has_its_own_parameters_and_no_filter(world):
  """Neither masks nor an `exclude` count, nor what its geoms say; five coefficients of friction."""
  c = world[3].contact[contact(world, "pair1", "pair2")[0]]
  assert c.dim == 3
  np.testing.assert_allclose(c.friction, [0.9, 0.7, 0.01, 0.002, 0.003])
  np.testing.assert_allclose(c.solref, [0.02, 0.8])
  assert contact(world, "apart1", "apart2") is None


@pytest.mark.parametrize("capacity", [{}, {"ncon_max": 4, "pair_max": 4}])
def test_an_explicit_pair_that_no_dof_moves_has_no_rows(capacity):
  """Of one body, of two that are welded together, and of a mocap body with the floor; that with another body has."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <geom name="floor" type="plane" size="9 9 1"/>
        <body mocap="true"><geom name="mocap" size=".1"/></body>
        <body pos="0 0 1">
          <freejoint/><geom name="a" size=".1"/><geom name="b" size=".1" pos=".15 0 0"/>
          <body pos="0 .15 0"><geom name="c" size=".1"/></body>
        </body>
        <body pos="0 0 1.15"><freejoint/><geom name="d" size=".1" contype="0" conaffinity="0"/></body>
      </worldbody>
      <contact>
        <pair geom1="a" geom2="b"/><pair geom1="a" geom2="c"/><pair geom1="floor" geom2="mocap"/><pair geom1="a" geom2="d"/>
      </contact>
    </mujoco>
  """)
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  assert sorted(data.contact.exclude) == [0, 3, 3, 3]
  engine = compare.Engine(compare.optimal(model), **capacity)
  assert all(e.ok for e in compare.compare_stages(engine.mj_model, data, engine=engine))


def test_contacts_of_nothing_that_moves():
  """The only ones of a model: no dof has a part in them."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <body><geom name="a" size=".1"/></body>
        <body pos=".15 0 0"><geom name="b" size=".1"/></body>
        <body pos="0 0 1"><joint frictionloss=".1"/><geom size=".1"/></body>
      </worldbody>
      <contact><pair geom1="a" geom2="b"/></contact>
    </mujoco>
  """)
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  assert data.ncon == 1 and data.nefc == 1
  assert all(e.ok for e in compare.compare_stages(compare.optimal(model), data))


def test_moving_surfaces_that_touch_nothing():
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <worldbody>
        <geom type="plane" size="1 1 1" surfacevel="1 0 0 0 0 0"/>
        <body pos="0 0 1"><joint frictionloss=".1"/><geom size=".1" contype="0" conaffinity="0"/></body>
      </worldbody>
    </mujoco>
  """)
  assert all(e.ok for e in compare.compare_stages(compare.optimal(model), mujoco.MjData(model)))


# P63
def test_filters_of_bodies(world):
  """A child does not meet its parent, unless this is static; geoms of one body do not meet."""
  assert contact(world, "link0", "link1") and contact(world, "link0", "link2")
  assert contact(world, "link1", "link2") is None and contact(world, "link1b", "link1c") is None


# P64
def test_contacts_stand_by_pairs_of_bodies(world):
  model, data, _, ours, _ = world
  np.testing.assert_array_equal(ours.contact.geom, data.contact.geom)
  bodies = [tuple(sorted(b)) for b in model.geom_bodyid[ours.contact.geom]]
  pair = tuple(sorted(model.geom_bodyid[[model.geom("pair1").id, model.geom("pair2").id]]))
  bodies = [b for b in bodies if b != pair]  # explicit ones come first
  assert bodies == sorted(bodies) and len(set(bodies)) < len(bodies)


# P65
def test_frames_have_axes_as_rows(world):
  """The normal first, from the first geom to the second."""
  model, _, d, ours, _ = world
  np.testing.assert_allclose(ours.contact[contact(world, "floor", "thrice")[0]].frame[:3], [0, 0, 1], atol=1e-12)
  for i, (a, b) in enumerate(ours.contact.geom):
    frame = ours.contact.frame[i].reshape(3, 3)
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(frame), 1)
    if model.geom_type[a] == model.geom_type[b] == mujoco.mjtGeom.mjGEOM_SPHERE:
      along = np.asarray(d.geom_xpos[b] - d.geom_xpos[a])
      np.testing.assert_allclose(frame[0], along / np.linalg.norm(along), atol=1e-9)


# P66
def test_forces_of_contacts(world):
  """In the contact's frame; without torque where the condim has none, with one where it has."""
  model, data, _, _, force = world
  torque = {}
  for name in ("once", "thrice", "roll"):
    i, slot = contact(world, "floor", name)
    theirs = np.zeros(6)
    mujoco.mj_contactForce(model, data, i, theirs)
    np.testing.assert_allclose(force[slot], theirs, rtol=1e-6, atol=1e-8)
    assert force[slot, 0] > 0 and np.any(force[slot, 1:3]) == (name != "once")
    torque[name] = force[slot, 3:]
  assert not np.any(torque["once"]) and not np.any(torque["thrice"]) and np.all(torque["roll"])


# P69
def test_margin_and_gap(world):
  """Active within the margin, listed without rows within the gap beyond it."""
  _, data, _, ours, _ = world
  for name, exclude in (("near", 0), ("listed", 1)):
    i, _ = contact(world, "floor", name)
    assert ours.contact.exclude[i] == data.contact.exclude[i] == exclude
    assert (ours.contact.efc_address[i] == -1) == (data.contact.efc_address[i] == -1) == bool(exclude)
  assert contact(world, "floor", "far") is None


# P132
def test_a_mocap_body_carries(world):
  """It stands where it was put, and pushes whatever lies on it."""
  model, data, d, _, force = world
  palm = model.body("palm").id
  np.testing.assert_array_equal(d.xpos[palm], data.mocap_pos[0])
  assert not np.any(d.cvel[palm])
  assert force[contact(world, "palm", "held")[1], 0] > 0
  held = model.body("held").dofadr[0]
  assert d.qacc[held + 2] > 0
  np.testing.assert_allclose(d.qacc, data.qacc, rtol=1e-6, atol=1e-6)
