"""Errors: each message says what is wrong, where, and what to do.

Tests: tests/io/test_mistakes.py, tests/io/test_io.py.
"""

from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np


class SlowPathWarning(UserWarning):
  """A computation takes a slower path than necessary, with the same results; the message names path, reason and cost."""


class CapacityWarning(UserWarning):
  """Contacts did not fit into the model's capacities; the message has the arguments of put_model that would have sufficed."""


class MjxError(ValueError):
  """Base class of the errors raised for bad input."""


class Problem(NamedTuple):
  """One unsupported feature of a model."""

  element: str  # name in the model, e.g. "joint 'hip'"
  attribute: str  # e.g. "frictionloss"
  what: str  # the unsupported value
  instead: str  # the nearest supported value

  def __str__(self) -> str:
    return f"{self.element}: {self.attribute} = {self.what} is not supported; {self.instead}"


class UnsupportedModelError(NotImplementedError):
  """Error for a model with features that are not implemented; `problems` lists all these features."""

  def __init__(self, problems: list[Problem]):
    self.problems = problems
    lines = "\n".join(f"  {p}" for p in problems)
    super().__init__(f"the model uses {len(problems)} feature(s) that mjx_lite does not implement:\n{lines}")


def check_index(i: Any, n: int, message: str) -> None:
  """Refuse an index, or an array of indices, outside 0 <= i < n. Traced indices are not checked.

  Raises:
    TypeError: the indices are not integers.
    IndexError: an index is out of range. Its text is `message`, in which `{i}` stands for the index.
  """
  if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(i)):
    return
  i = np.asarray(i)
  if i.dtype.kind not in "iu":
    raise TypeError(f"an index has to be an integer, not {i.dtype}.")
  wrong = i[(i < 0) | (i >= n)]
  if wrong.size:
    raise IndexError(message.format(i=wrong.flat[0]))


# names in mujoco-mjx and earlier versions that do not exist here: what to use instead
DATA_NAMES = {
  "_impl": "its fields are fields of Data itself: d.contact, d.efc_D, d.M, ...",
  "ncon": "the number of slots is constant, d.contact.dist.shape[-1]; (d.contact.exclude >= 0).sum(-1) counts the contacts",
  "nefc": "the number of constraint rows is constant, d.efc_D.shape[-1]; (d.efc_D > 0).sum(-1) counts the active rows",
  "ne": "count the active rows of its type: ((d.efc_D > 0) & (d.efc_type == ConstraintType.EQUALITY)).sum(-1)",
  "nf": "count the active rows of its types: d.efc_D > 0 where d.efc_type is FRICTION_DOF or FRICTION_TENDON",
  "nl": "count the active rows of its types: d.efc_D > 0 where d.efc_type is LIMIT_JOINT or LIMIT_TENDON",
  "nisland": "get_data(mj_model, d).nisland has it",
  "qM": "it is now d.M, as in MuJoCo 4; mjx_lite.full_m(m, d) is the dense matrix",
  "efc_J": "call mjx_lite.constraint_jacobian(m, d)",
  "efc_b": "efc_J qacc_smooth - efc_aref; J is mjx_lite.constraint_jacobian(m, d)",
  "efc_diagApprox": "it is now d.efc_diagA, as in MuJoCo 4",
  "plugin_state": "there are no plugins",
  "warning": "d.status counts them by mjx_lite.Warning",
  "solver": "call mjx_lite.solver_statistics(m, d)",
  "ten_wrapadr": "get_data(mj_model, d) has the paths of the tendons",
  "ten_wrapnum": "get_data(mj_model, d) has the paths of the tendons",
  "wrap_obj": "get_data(mj_model, d) has the paths of the tendons",
  "wrap_xpos": "get_data(mj_model, d) has the paths of the tendons",
}
MODEL_NAMES = {
  "_impl": "its fields are fields of Model itself",
  "_sizes": "sizes are fields of Model itself: m.nq, m.nv, ...",
  **dict.fromkeys(
    ("dof_hasfrictionloss", "tendon_hasfrictionloss", "geom_rbound_hfield", "mesh_convex", "wrap_inside_maxiter",
     "wrap_inside_tolerance", "wrap_inside_z_init", "is_wrap_inside"),
    "MJX uses it internally",
  ),
}  # fmt: skip
OPTION_NAMES = {
  "_impl": "its fields are fields of Option itself",
  "has_fluid_params": "look at density, viscosity and wind",
}
MODULE_NAMES = {
  "device_put": "use put_model for an MjModel and put_data for an MjData",
  "device_get_into": "use get_data_into",
  "benchmark": "run `mjx-lite bench MODEL.xml`",
  "is_sparse": "mjx_lite always stores the sparse entries of MuJoCo; for C, call mujoco.mj_isSparse(mj_model)",
  "refit_bvh": "mjx_lite has no bounding volumes to refit",
  **dict.fromkeys(
    ("create_render_context", "render", "render_with_segmentation", "get_rgb", "get_depth", "get_segmentation"),
    "use mjx_lite.viz.render",
  ),
}


def refuse_mujoco(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
  """Refuse arguments of mujoco's own types, which JAX does not know.

  Raises:
    TypeError: names the argument and the function that converts it.
  """
  advice = {"MjModel": "put_model", "MjData": "put_data", "MjSpec": "put_model of spec.compile()"}
  for which, x in [*enumerate(args), *kwargs.items()]:
    kind = type(x).__name__
    if kind in advice and type(x).__module__.startswith("mujoco"):
      name = f"number {which + 1}" if isinstance(which, int | np.integer) else f"'{which}'"
      raise TypeError(f"argument {name} is a mujoco.{kind}, which JAX does not know: use {advice[kind]} before.") from None
