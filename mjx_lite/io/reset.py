"""Choice between Datas for each world, and reset of some worlds.

Tests: tests/io/test_readout.py.
"""

from typing import Any

import jax
import jax.numpy as jnp

from mjx_lite.errors import check_index
from mjx_lite.io.data import make_data
from mjx_lite.model import pytree
from mjx_lite.model.enums import ObjType
from mjx_lite.model.names import name2id
from mjx_lite.model.types import Data, Model

_KEY = {
  "time": "key_time", "qpos": "key_qpos", "qvel": "key_qvel", "act": "key_act", "ctrl": "key_ctrl",
  "plastic": "key_plastic", "mocap_pos": "key_mpos", "mocap_quat": "key_mquat",
}  # fmt: skip


def where(done: Any, a: Any, b: Any) -> Any:
  """Select a for each world where `done` holds, b elsewhere.

  Args:
    done: truth value, or one per world.
    a: a Data, or any pytree; without a world axis it is used for every world.
    b: the same kind of pytree, with a world axis if `done` has one.
  """
  return _where(done, a, b)


@jax.jit  # one program for all arrays, if not traced already
def _where(done: Any, a: Any, b: Any) -> Any:
  done = jnp.asarray(done)

  def choose(x: Any, y: Any) -> jax.Array:
    x, y = jnp.asarray(x), jnp.asarray(y)
    return jnp.where(done.reshape(done.shape + (1,) * (max(x.ndim, y.ndim) - done.ndim)), x, y)

  return jax.tree.map(lambda x, y: pytree.strong(choose(x, y)), a, b)


def reset(m: Model, d: Data, mask: Any = True, key: Any = None) -> Data:
  """Reset worlds to the start or to a keyframe; computed fields and the counters of the status become zero.

  Args:
    m: the model.
    d: Data of one world, or with a leading world axis.
    mask: worlds to reset, all of them by default.
    key: name or index of a keyframe, or an array with one index for each world; None for the model's reference configuration. A
      traced index is clipped to the existing keyframes.

  Raises:
    KeyError: for a name that no keyframe has.
    IndexError: for an index that is out of range and not traced.
    TypeError: for an index that is not an integer.

  Source: `mj_resetData`, `mj_resetDataKeyframe`.
  """
  start = make_data(m, keep=pytree.kept(d))
  if key is not None:
    if isinstance(key, str):
      found = name2id(m, ObjType.KEY, key)
      if found < 0:
        raise KeyError(f"the model has no keyframe '{key}'.")
      key = found
    check_index(key, m.nkey, f"keyframe {{i}} is out of range: the model has nkey = {m.nkey}.")
    number = jnp.asarray(key)
    start = start.replace(**{k: jnp.take(getattr(m, field), number, axis=0, mode="clip") for k, field in _KEY.items()})
  return where(jnp.broadcast_to(jnp.asarray(mask, bool), d.time.shape), start, d)
