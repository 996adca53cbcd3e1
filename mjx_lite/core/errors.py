"""Errors: each says what is wrong, where, and what to do."""

from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np


class MjxError(ValueError):
  """Base of the errors raised for bad input."""


class Problem(NamedTuple):
  """One thing in a model that is not supported."""

  element: str  # as the model names it, e.g. "joint 'hip'"
  attribute: str  # e.g. "frictionloss"
  what: str  # what is there
  instead: str  # the nearest thing that is supported

  def __str__(self) -> str:
    return f"{self.element}: {self.attribute} = {self.what} is not supported; {self.instead}"


class UnsupportedModelError(NotImplementedError):
  """A model uses features that are not implemented; `problems` lists all of them."""

  def __init__(self, problems: list[Problem]):
    self.problems = problems
    lines = "\n".join(f"  {p}" for p in problems)
    super().__init__(f"the model uses {len(problems)} thing(s) that mjx_lite does not implement:\n{lines}")


def check_index(i: Any, n: int, message: str) -> None:
  """Refuse a number, or an array of them, that is outside 0 <= i < n; what is traced is left alone.

  Raises:
    TypeError: for what is not whole numbers.
    IndexError: with the message, in which `{i}` stands for the number.
  """
  if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(i)):
    return
  i = np.asarray(i)
  if i.dtype.kind not in "iu":
    raise TypeError(f"a number of an element has to be a whole number, not {i.dtype}.")
  wrong = i[(i < 0) | (i >= n)]
  if wrong.size:
    raise IndexError(message.format(i=wrong.flat[0]))
