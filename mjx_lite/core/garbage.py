"""Python's garbage collector, kept from what makes a million objects and no garbage."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def kept() -> Iterator[None]:
  """The collector off, for a trace or its lowering: in a large process each collection visits all other objects too.

  A context, or a decorator of what is to run in it.
  """
  was_on = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_on:
      gc.enable()
