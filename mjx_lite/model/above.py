"""Functions of layers above that methods of Model call.

A Model has methods, as `with_params`, whose work is done by modules that import Model. Such a module names its function with
`provides`, and the method calls the function by this name; so the methods stand in the class, with signature and docstring.

Tests: tests/smooth/test_set_const.py.
"""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_provided: dict[str, Callable[..., Any]] = {}


def provides(name: str) -> Callable[[F], F]:
  """Decorate the function that a method calls by this name."""

  def decorate(function: F) -> F:
    _provided[name] = function
    return function

  return decorate


def call(name: str, *args: Any, **kwargs: Any) -> Any:
  """Call the function that was provided under this name."""
  return _provided[name](*args, **kwargs)
