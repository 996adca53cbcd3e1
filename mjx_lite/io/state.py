"""The state of a Data as one vector, in the order of the mjtState bits.

Tests: tests/io/test_io.py.
"""

import math

import jax
import jax.numpy as jnp

from mjx_lite.io.data import shape_of
from mjx_lite.io.options import renamed
from mjx_lite.model import pytree
from mjx_lite.model.enums import State
from mjx_lite.model.types import Data, Model

# bit -> field of Data; components that no accepted model has are absent
_FIELDS = {
  State.TIME: "time", State.QPOS: "qpos", State.QVEL: "qvel", State.ACT: "act", State.HISTORY: "history",
  State.PLASTIC: "plastic", State.WARMSTART: "qacc_warmstart",
  State.CTRL: "ctrl", State.QFRC_APPLIED: "qfrc_applied", State.XFRC_APPLIED: "xfrc_applied",
  State.EQ_ACTIVE: "eq_active", State.MOCAP_POS: "mocap_pos", State.MOCAP_QUAT: "mocap_quat", State.USERDATA: "userdata",
}  # fmt: skip


def _components(sig: int) -> list[str]:
  sig = int(sig)
  if sig < 0 or sig >= 1 << len([s for s in State if s.bit_count() == 1]):
    raise ValueError(f"state signature {sig} has bits that mjtState does not.")
  return [name for bit, name in sorted(_FIELDS.items()) if sig & bit]


def _shape(m: Model, name: str) -> tuple[int, ...]:
  return shape_of(m, pytree.specs(Data)[name], {})


@renamed(sig="spec")
def state_size(m: Model, spec: int) -> int:
  """Return the length of the state vector with the components in spec. Source: `mj_stateSize`."""
  return sum(math.prod(_shape(m, name)) for name in _components(spec))


@renamed(sig="spec")
def get_state(m: Model, d: Data, spec: int) -> jax.Array:
  """Return the state vector with the components in spec, in bit order. Source: `mj_getState`."""
  parts = [jnp.ravel(getattr(d, name)).astype(d.qpos.dtype) for name in _components(spec)]
  return jnp.concatenate(parts) if parts else jnp.zeros((0,), d.qpos.dtype)


@renamed(sig="spec")
def set_state(m: Model, d: Data, state: jax.Array, spec: int) -> Data:
  """Return the Data with the components in spec taken from a state vector. Source: `mj_setState`."""
  size = state_size(m, spec)
  if state.shape != (size,):
    raise ValueError(f"the state has shape {state.shape}, the signature {int(spec)} of this model needs ({size},).")
  changes, start = {}, 0
  for name in _components(spec):
    old = getattr(d, name)
    n = math.prod(old.shape)
    changes[name] = state[start : start + n].reshape(old.shape).astype(old.dtype)
    start += n
  return d.replace(**changes)
