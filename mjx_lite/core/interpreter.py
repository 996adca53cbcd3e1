"""What Python's interpreter costs where JAX traces and lowers: a million objects that are no garbage, and deep calls."""

import functools
import gc
from collections.abc import Callable
from typing import Any

_WORDS = 1 << 16  # of the interpreter's stack: half a megabyte, of which only what is used takes memory


def eased(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, to trace or to lower a program: called without the garbage collector, and with room for the calls inside.

  In a large process each collection visits all other objects too. And CPython keeps its frames in chunks of 16 KiB that it asks
  the operating system for and gives back: what is called again and again just where one ends, does so in each call, which takes
  longer than all that it does. A frame that needs much gets a chunk of its own, with as much behind it for what it calls.
  """

  @functools.wraps(function)
  def call(*args, **kwargs):
    was_on = gc.isenabled()
    gc.disable()
    try:
      return _with_room(function, args, kwargs)
    finally:
      if was_on:
        gc.enable()

  return call


def _with_room(function, args, kwargs):
  return function(*args, **kwargs)


_with_room.__code__ = _with_room.__code__.replace(co_stacksize=_WORDS)
