"""Steps: whole, or in two parts around the control.

Tests: tests/pipeline/test_pipeline.py.
"""

from mjx_lite.model import callbacks as user
from mjx_lite.model.callbacks import Callbacks
from mjx_lite.model.enums import IntegratorType
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.actuation import apply_control, fwd_actuation
from mjx_lite.pipeline.advance import INTEGRATORS
from mjx_lite.pipeline.constraint import rebuild_rows
from mjx_lite.pipeline.dynamics import StageCache, accelerations, forward, until_velocity
from mjx_lite.pipeline.inverse import compare_inverse
from mjx_lite.pipeline.position import mass_factor
from mjx_lite.pipeline.reset import check_acc, check_state
from mjx_lite.pipeline.sensors import sensor_acc


def step(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Advance the state by one timestep.

  Args:
    m: the model.
    d: the Data.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  d = check_state(m, d)
  d = forward(m, d)
  d = check_acc(m, d)
  return _integrate(m, d, m.opt.integrator)


def step1(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Run the part of a step before the control is needed. A control function of the user is called at its end.

  Args:
    m: the model.
    d: the Data.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  d = check_state(m, d)
  d, _ = until_velocity(m, d)
  return apply_control(m, d)


def step2(m: Model, d: Data, *, callbacks: Callbacks | None = None) -> Data:
  """Run the rest of the step, with the control now set. If the integrator is RK4, Euler's method is used, as in C.

  Args:
    m: the model.
    d: Data after `step1`, with the control.
    callbacks: the user's functions in the loop; static.
  """
  m = user.attach(m, callbacks)
  d, rows = rebuild_rows(m, d)
  cache = StageCache(mass_factor(m, d), rows)
  d = fwd_actuation(m, d)
  d = accelerations(m, d, cache)
  d = sensor_acc(m, d)
  d = check_acc(m, d)
  return _integrate(m, d, IntegratorType.EULER if m.opt.integrator == IntegratorType.RK4 else m.opt.integrator)


def _integrate(m: Model, d: Data, integrator: int) -> Data:
  return INTEGRATORS[integrator](m, compare_inverse(m, d) if m.opt.use_fwdinv else d)
