"""Errors: each says what is wrong, where, and what to do."""

from typing import NamedTuple


class SlowPathWarning(UserWarning):
  """A computation takes a slower path than it could, with the same results; the message says which, why, and what it costs."""


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
