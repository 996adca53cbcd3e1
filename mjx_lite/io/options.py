"""Names of arguments: names that have a meaning only in MJX, and old names of arguments that were renamed here."""

import difflib
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# arguments of put_model, make_data, put_data, get_data and get_data_into of mujoco-mjx, up to 3.17
MJX_ALONE = (
  "impl", "graph_mode", "keepalive_refs", "batch_sizes", "dummy_arg_for_batching", "_full_compat",
  "naconmax", "nconmax", "naccdmax", "nccdmax", "njmax", "nvmax", "nmaxpolygon", "nmaxpyramid",
)  # fmt: skip


def pass_over(function: str, options: Mapping[str, Any], able: Iterable[str] = (), stacklevel: int = 3) -> None:
  """Warn of arguments that have a meaning only in MJX, refuse all others.

  Args:
    function: name of the public function that was given the arguments.
    options: the arguments by name.
    able: names that the function takes; the error proposes the nearest of them.
    stacklevel: number of calls from here to the user's line.

  Raises:
    TypeError: for an argument that neither MJX nor mjx_lite knows.
  """
  for name, value in options.items():
    if name not in MJX_ALONE:
      near = difflib.get_close_matches(name, [*able, *MJX_ALONE], 1)
      raise TypeError(f"{function} got an unexpected argument '{name}'" + (f"; did you mean '{near[0]}'?" if near else "."))
    if value is not None and value is not False:
      warnings.warn(f"{function}(..., {name}=) has no meaning in mjx_lite and is ignored.", stacklevel=stacklevel)


def renamed(**names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Return a decorator of a function with renamed arguments: the old names still work, with a DeprecationWarning.

  Args:
    **names: the present name of each argument, by its old name.
  """

  def decorate(function):
    @functools.wraps(function)
    def public(*args, **kwargs):
      for old in names.keys() & kwargs.keys():
        new = names[old]
        warnings.warn(
          f"{function.__name__}(..., {old}=) is now {new}=, as in MJX; the old name goes in version 0.3.",
          DeprecationWarning, stacklevel=2,
        )  # fmt: skip
        kwargs[new] = kwargs.pop(old)
      return function(*args, **kwargs)

    return public

  return decorate
