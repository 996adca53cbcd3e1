"""The user's functions in the loop: MuJoCo's callbacks, pure, written for one world in the public layout."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Callbacks(NamedTuple):
  """Functions of the Model and the Data of one world that `step`, `forward`, `inverse` and `rollout` call.

  They are part of the program: define them once (another function object traces anew), and let them not close over values
  of a trace; what varies goes through Data, in `userdata` for example. They may call functions of mjx_lite, and derivatives
  go through them.

  Attributes:
    control: ctrl (nu,), once per evaluation of the forces, so four times a step under RK4 (mjcb_control).
    passive: what is added to qfrc_passive (nv,) (mjcb_passive).
    contact: which contact slots are kept (ncon,), for contacts that were found; `mjcb_contactfilter` decides by geoms before.
    sensor: (m, d, stage) -> the numbers of all USER sensors of the stage, in order (mjcb_sensor); the sensordata of the
      stage is not in d yet.
    act_dyn: act_dot (na,), of which the entries of actuators with dyntype USER are taken (mjcb_act_dyn).
    act_gain: gains (nactuator,), of which those of gaintype USER are taken (mjcb_act_gain).
    act_bias: forces (nactuator,), of which those of biastype USER are taken (mjcb_act_bias).
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
  """The Model with functions in its static part, for the stages to find."""
  return m if callbacks is None else m.replace(layout=m.layout.with_callbacks(callbacks))


def call(m: Any, d: Any, name: str, size: int, *static: Any) -> jax.Array:
  """Result (size, W) of one of the user's functions in all worlds.

  Args:
    m, d: Model and Data in the engine's layout.
    name: field of Callbacks.
    size: length of its result.
    *static: further arguments.

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
