"""Python's garbage collector, kept from what makes a million objects and no garbage."""

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def kept() -> Iterator[None]:
  """The collector off, for a trace or its lowering: in a large process each collection visits all other objects too."""
  was_on = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_on:
      gc.enable()


def keeping(function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, called with the collector off."""

  @functools.wraps(function)
  def quiet(*args, **kwargs):
    with kept():
      return function(*args, **kwargs)

  return quiet
