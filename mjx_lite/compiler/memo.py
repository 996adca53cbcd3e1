"""Memoization per function, with weak references.

Tests: tests/batching/test_compiling.py.
"""

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any


def memoized(make: Callable[..., Any]) -> Callable[..., Any]:
  """Decorate a factory `make(function, *args)`, so that it runs once for each function and arguments.

  JAX keeps compiled programs for each function object, so a new object would be compiled again. The product of the factory
  refers to the function weakly, otherwise neither could be freed; so the caller has to keep the function alive. For callables
  that are not plain functions the factory runs at each call: a bound method is a new object each time, and other callables may
  be equal without being the same.
  """
  made: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()

  @functools.wraps(make)
  def making(function, *args):
    if not isinstance(function, types.FunctionType):
      return make(function, *args)
    products = made.setdefault(function, {})
    if args not in products:
      products[args] = make(weakref.proxy(function), *args)
    return products[args]

  return making
