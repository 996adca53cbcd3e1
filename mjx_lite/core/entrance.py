"""What stands between a call from Python and what `jax.jit` made of a function."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from mjx_lite.core.errors import refuse_mujoco
from mjx_lite.core.pytree import Replaceable, strong


def entrance(function: Callable[..., Any]) -> Callable[..., Any]:
  """What `jax.jit` made of a function, taking weakly typed arrays as arrays of their type, and naming arguments of mujoco.

  JAX compiles a program for `jnp.full(3, 0.2)`, which is weakly typed, and another one for the result that the next call is
  given. Models and Datas are looked at no further: `replace` leaves nothing weakly typed in them.
  """

  @functools.wraps(function)
  def calling(*args, **kwargs):
    try:
      return function(*map(_strong, args), **{k: _strong(x) for k, x in kwargs.items()})
    except TypeError:
      refuse_mujoco(args, kwargs)
      raise

  names = ("lower", "trace", "eval_shape", "_cache_size", "clear_cache")
  vars(calling).update({name: getattr(function, name) for name in names if hasattr(function, name)})
  return calling


def _strong(x: Any) -> Any:
  if isinstance(x, Replaceable):
    return x
  return jax.tree.map(strong, x, is_leaf=_is_ours) if isinstance(x, tuple | list | dict) else strong(x)


def _is_ours(x: Any) -> bool:
  return isinstance(x, Replaceable)
