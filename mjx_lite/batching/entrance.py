"""The wrapper between a call from Python and a function compiled by `jax.jit`.

Tests: tests/transforms/test_weak_types.py, tests/io/test_mistakes.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

from mjx_lite.errors import refuse_mujoco
from mjx_lite.model.pytree import Replaceable, strong


def entrance(function: Callable[..., Any]) -> Callable[..., Any]:
  """Wrap a function compiled by `jax.jit`: remove weak types from its arguments, and name arguments of mujoco's types.

  JAX compiles one program for a weakly typed argument, as `jnp.full(3, 0.2)`, and another program for the strongly typed result
  that the next call is given. Arrays in Models and Datas are not converted, because `replace` leaves none weakly typed.
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
