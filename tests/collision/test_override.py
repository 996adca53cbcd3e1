"""The flag OVERRIDE: one set of contact parameters for all."""

import mujoco
from models import load

from mjx_lite.testing import compare


def test_override_equals_c():
  model = compare.optimal(load("elliptic")).__copy__()
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_OVERRIDE
  model.opt.o_margin, model.opt.o_solref[:], model.opt.o_solimp[:] = 0.02, [0.03, 0.8], [0.8, 0.9, 0.01, 0.4, 3]
  model.opt.o_friction[:] = [0.5, 0.6, 0.01, 0.002, 0.003]
  engine, data = compare.Engine(model), mujoco.MjData(model)
  for k in range(40):
    if k % 8 == 0:
      errors = compare.compare_stages(model, data, engine=engine)
      assert not [e for e in errors if not e.ok]
    mujoco.mj_step(model, data)
  assert data.ncon and (data.contact.includemargin == 0.02).all()
