"""Controls and actuator forces.

Tests: tests/transforms/test_callbacks.py.
"""

import jax.numpy as jnp

from mjx_lite.actuator import force as actuator_force
from mjx_lite.actuator.state import UserLaws
from mjx_lite.model import callbacks as user
from mjx_lite.model import status
from mjx_lite.model.enums import BiasType, DynType, GainType
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model


def fwd_actuation(m: Model, d: Data) -> Data:
  """Compute actuator forces and the time derivatives of activations."""
  if not m.opt.use_actuation or not m.nactuator:
    return d.replace(**{k: jnp.zeros_like(getattr(d, k)) for k in ("act_dot", "actuator_force", "qfrc_actuator")})
  ctrl, bad = actuator_force.effective_ctrl(m, d.time, d.ctrl, d.history)
  a = actuator_force.actuation(
    m, ctrl, d.act, d.actuator_length, d.actuator_velocity, d.actuator_moment, d.qfrc_gravcomp, user_laws(m, d)
  )
  return d.replace(
    act_dot=a.act_dot, actuator_force=a.force, qfrc_actuator=a.qfrc, status=status.mark(d.status, Warning.BADCTRL, bad)
  )


def user_laws(m: Model, d: Data) -> UserLaws:
  """Return the values of the user's functions for the actuators of type USER."""
  kinds = (m.actuator_dyntype == DynType.USER, m.actuator_gaintype == GainType.USER, m.actuator_biastype == BiasType.USER)
  sizes = ("act_dyn", m.na), ("act_gain", m.nactuator), ("act_bias", m.nactuator)
  return UserLaws(*(user.call(m, d, *x) if k.any() else None for k, x in zip(kinds, sizes, strict=True)))


def apply_control(m: Model, d: Data) -> Data:
  """Set the controls by the user's function, if there is one."""
  return d if m.layout.callbacks.control is None else d.replace(ctrl=user.call(m, d, "control", m.nu).astype(d.ctrl.dtype))
