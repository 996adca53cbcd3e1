"""Record of the path that each call of the engine takes, and of the reason why it takes no faster path.

Calls are recorded when they are lowered, for `mjx_lite.explain`. Where an operation has no rule, or an exception ends the
building of a kernel, the call takes a slower path with the same results. A `SlowPathWarning` reports this path once for each
model and reason.
"""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from mjx_lite.errors import SlowPathWarning

MACHINE_CODE = "machine code of the engine's own"
PTX = "one kernel of the GPU"
REGIONS = "XLA, as a few functions"
KERNELS = "XLA, operation by operation"


class Path(NamedTuple):
  """The path by which a call of the engine was lowered.

  Attributes:
    function: name of the stage; derivatives are named `derivative of step`.
    worlds: worlds of the call.
    path: one of the paths above.
    reason: why no faster path was taken; "" on the fastest path.
    details: the traceback of the exception, "" if there was none.
  """

  function: str
  worlds: int
  path: str
  reason: str = ""
  details: str = ""


_recorded: ContextVar[list[Path] | None] = ContextVar("_recorded", default=None)
_warned: set[Any] = set()


@contextmanager
def recording() -> Iterator[list[Path]]:
  """Collect the paths of all calls that are lowered in the block."""
  found: list[Path] = []
  token = _recorded.set(found)
  try:
    yield found
  finally:
    _recorded.reset(token)


def record(path: Path) -> None:
  """Add a path to the list that `recording` collects."""
  found = _recorded.get()
  if found is not None and path not in found:
    # a derivative was recorded as machine code before it fell back to a slower path
    found[:] = [p for p in found if not (path.reason and p.function == path.function and not p.reason)]
    found.append(path)


def fell_back(function: str, worlds: int, path: str, error: BaseException, model: Any) -> None:
  """Record a call for which a faster path failed, and warn once for each model and reason.

  Args:
    function: name of the stage.
    worlds: worlds of the call.
    path: the path that is taken instead.
    error: the exception that ended the faster path.
    model: hashable key; models of different structure have different keys.
  """
  # without a cause the engine itself refused, and the message is sufficient
  details = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
  reason = str(error) or type(error).__name__
  record(Path(function, worlds, path, reason, details))
  if (key := (function, model, reason)) not in _warned:
    _warned.add(key)
    warnings.warn(
      SlowPathWarning(
        f"{function} takes a slower path ({path}): {reason}. The results are the same; it takes several times as long to run. "
        "mjx_lite.explain(m) shows the path of each function and the traceback of what failed."
      ),
      stacklevel=2,
    )
