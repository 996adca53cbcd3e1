"""User sensors: their values come from a function of the user.

Tests: tests/transforms/test_callbacks.py.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from mjx_lite.model import callbacks
from mjx_lite.model.enums import Stage
from mjx_lite.model.types import Data, Model
from mjx_lite.sensor.group import Part, split


class UserTables(NamedTuple):
  """The user's sensors of one stage."""

  stage: int
  size: int  # number of values of all these sensors


def plan(s: dict[str, Any], ids: np.ndarray) -> list[Part]:
  """Group the sensors by stage."""
  by_stage = split(ids, s["sensor_needstage"][ids])
  return [Part(members, UserTables(stage, int(s["sensor_dim"][members].sum()))) for (stage,), members in by_stage]


def user(m: Model, d: Data, t: UserTables) -> jax.Array:
  """Return the values of the user's function. Gradient: that of the function."""
  return callbacks.call(m, d, "sensor", t.size, Stage(t.stage)).astype(d.qpos.dtype)
