"""User functions that the pipeline calls: MuJoCo's callbacks, as pure functions of one world in the public layout.

Tests: tests/transforms/test_callbacks.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Callbacks(NamedTuple):
  """Functions of the Model and the Data of one world that `step`, `forward`, `inverse` and `rollout` call.

  Functions are part of the program: define each function once, because JAX traces again for another function object. A
  function must not close over traced values. Pass varying values through Data, for example in `userdata`. The functions may
  call functions of mjx_lite, and derivatives go through the functions.

  Attributes:
    control: returns ctrl (nu,). Called once per evaluation of the forces, so four times a step under RK4 (mjcb_control).
    passive: returns a force (nv,) that is added to qfrc_passive (mjcb_passive).
    contact: returns a mask (ncon,) of the contact slots to keep. Called after contacts are found; MuJoCo's
      `mjcb_contactfilter` decides before that, by geoms.
    sensor: (m, d, stage) -> the values of all USER sensors of the stage, in order (mjcb_sensor). d does not have the
      sensordata of the stage yet.
    act_dyn: returns act_dot (na,), of which only the entries of actuators with dyntype USER are used (mjcb_act_dyn).
    act_gain: returns gains (nactuator,), of which only those of gaintype USER are used (mjcb_act_gain).
    act_bias: returns forces (nactuator,), of which only those of biastype USER are used (mjcb_act_bias).
  """

  control: Callable[..., Any] | None = None
  passive: Callable[..., Any] | None = None
  contact: Callable[..., Any] | None = None
  sensor: Callable[..., Any] | None = None
  act_dyn: Callable[..., Any] | None = None
  act_gain: Callable[..., Any] | None = None
  act_bias: Callable[..., Any] | None = None


NONE = Callbacks()


def attach(m: Any, callbacks: Callbacks | None) -> Any:
  """Return the Model with callbacks in its static part, where the stages read them."""
  return m if callbacks is None else m.replace(layout=m.layout.with_callbacks(callbacks))


def call(m: Any, d: Any, name: str, size: int, *static: Any) -> jax.Array:
  """Return the result (size, W) of one of the user's functions in all worlds.

  Args:
    m, d: Model and Data in the engine's layout.
    name: field of Callbacks that has the function.
    size: length of the function's result.
    *static: further arguments of the function.

  Raises:
    ValueError: the function is missing, or its result has another shape.
  """
  function = getattr(m.layout.callbacks, name)
  if function is None:
    raise ValueError(
      f"the model has elements of type USER: pass a function, step(m, d, callbacks=Callbacks({name}=...)), or remove them."
    )
  leaves, tree = jax.tree.flatten((attach(m, NONE), d))
  axes = [None if x.shape[-1] == 1 else x.ndim - 1 for x in leaves]
  leaves = [x if axis is not None else x[..., 0] for x, axis in zip(leaves, axes, strict=True)]

  def one(*leaves):
    out = jnp.asarray(function(*jax.tree.unflatten(tree, leaves), *static))
    if out.shape != (size,):
      raise ValueError(f"the callback {name} has to return an array of shape {(size,)}, not {out.shape}.")
    return out

  if all(axis is None for axis in axes):
    return one(*leaves)[..., None]
  return jax.vmap(one, in_axes=axes, out_axes=-1)(*leaves)
