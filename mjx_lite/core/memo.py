"""What is made of a function, made once while the function lives."""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any


def memoized(make: Callable[..., Any]) -> Callable[..., Any]:
  """Decorator of what makes something of a function: asked again for the same one, it returns what it made.

  JAX keeps compiled programs for each function object, so a function made anew would be compiled anew. What is made refers to
  the function weakly, or neither could ever go: who hands it on has to hold the function. Of callables that are no plain
  functions (bound methods are other objects each time, others may be equal and not the same) it is made anew.
  """
  made: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()

  @functools.wraps(make)
  def making(function, *args):
    if not isinstance(function, types.FunctionType):
      return make(function, *args)
    of_it = made.setdefault(function, {})
    if args not in of_it:
      of_it[args] = make(weakref.proxy(function), *args)
    return of_it[args]

  return making
