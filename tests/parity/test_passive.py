"""Passive forces under the flags that switch them off, alone and together, from states that C simulates."""

import copy

import mujoco
import numpy as np
import pytest
from models import load
from test_stages import randomise_inputs

import mjx_lite as mjx
from mjx_lite.testing.compare import relative_error

FIELDS = ("qfrc_spring", "qfrc_damper", "qfrc_gravcomp", "qfrc_fluid", "qfrc_passive")
SPRING, DAMPER, GRAVITY = mjx.DisableBit.SPRING, mjx.DisableBit.DAMPER, mjx.DisableBit.GRAVITY


@pytest.mark.parametrize("name, alive", [("media", FIELDS), ("yielding", ("qfrc_spring", "qfrc_damper", "qfrc_passive"))])
@pytest.mark.parametrize("flags", [SPRING, DAMPER, SPRING | DAMPER, GRAVITY])
def test_flags(name, alive, flags):
  model = copy.deepcopy(load(name))
  data = mujoco.MjData(model)
  randomise_inputs(model, data, np.random.default_rng(0))
  for _ in range(60):
    mujoco.mj_step(model, data)
  model.opt.disableflags |= int(flags)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  d = mjx.put_data(m, data)
  ours = mjx.jit(mjx.passive)(m, d.replace(**{k: getattr(d, k) + 7 for k in FIELDS}))
  for field in FIELDS:
    assert relative_error(np.asarray(getattr(ours, field)), getattr(data, field)).max() < 1e-10, field
  if flags == SPRING | DAMPER:
    assert not any(np.any(getattr(ours, k)) for k in FIELDS)
  elif flags == SPRING:
    assert all(np.any(getattr(ours, k)) for k in alive if k != "qfrc_spring")

  if name == "yielding":
    after = mjx.jit(mjx.euler)(m, d)
    before = data.plastic.copy()
    mujoco.mj_step(model, data)
    np.testing.assert_allclose(after.plastic, data.plastic, rtol=0, atol=1e-12)
    assert np.any(data.plastic != before) == (not flags & SPRING)


def test_density_and_viscosity_alone():
  for field in ("density", "viscosity"):
    model = copy.deepcopy(load("media"))
    setattr(model.opt, field, 0)
    data = mujoco.MjData(model)
    data.qvel[:] = np.random.default_rng(0).normal(size=model.nv)
    mujoco.mj_forward(model, data)
    m = mjx.put_model(model)
    ours = mjx.jit(mjx.passive)(m, mjx.put_data(m, data))
    assert relative_error(np.asarray(ours.qfrc_fluid), data.qfrc_fluid).max() < 1e-10
    assert np.any(data.qfrc_fluid)


def test_ellipsoids_however_slow():
  """C divides by no speed: drag and lift go with its square down to the least of them."""
  model = mujoco.MjModel.from_xml_string("""
    <mujoco>
      <option density="90"/>
      <worldbody><body><freejoint/><geom type="box" size=".06 .08 .02" fluidshape="ellipsoid"/></body></worldbody>
    </mujoco>
  """)
  m, data = mjx.put_model(model), mujoco.MjData(model)
  passive = mjx.jit(mjx.passive)
  qvel = np.random.default_rng(0).normal(size=model.nv)
  for speed in (1, 1e-2, 1e-4, 1e-8, 0):
    data.qvel[:] = speed * qvel
    mujoco.mj_forward(model, data)
    found = passive(m, mjx.put_data(m, data)).qfrc_fluid
    assert relative_error(np.asarray(found), data.qfrc_fluid).max() < 1e-10, speed
    if speed:  # as a part of itself, not of the largest forces that there are
      np.testing.assert_allclose(found, data.qfrc_fluid, rtol=1e-9, atol=0)


def test_initial_references():
  model = load("yielding")
  data = mujoco.MjData(model)
  m = mjx.put_model(model)
  d = mjx.make_data(m)
  np.testing.assert_array_equal(d.plastic, data.plastic)
  reset = mjx.jit(mjx.reset_data)(m, d.replace(plastic=d.plastic + 1))
  np.testing.assert_array_equal(reset.plastic, data.plastic)
