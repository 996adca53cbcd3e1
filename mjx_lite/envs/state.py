"""State of an environment between steps, in the form of Brax and MuJoCo Playground.

Tests: tests/envs/test_envs.py.
"""

import dataclasses
from typing import Any

import jax

import mjx_lite as mjx


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class State:
  """State of an episode in one world, or in a batch with a leading world axis. `done` and `reward` are floats."""

  data: mjx.Data
  obs: Any  # array, or dict of arrays
  reward: jax.Array
  done: jax.Array
  metrics: dict[str, jax.Array]
  info: dict[str, Any]

  @property
  def pipeline_state(self) -> mjx.Data:
    """The field `data`, under the name that Brax uses."""
    return self.data

  def replace(self, **changes: Any) -> "State":
    """Return a copy with some fields changed."""
    if "pipeline_state" in changes:
      changes["data"] = changes.pop("pipeline_state")
    return dataclasses.replace(self, **changes)

  def tree_replace(self, changes: dict[str, Any]) -> "State":
    """Return a copy with fields changed by dotted path, also fields of Data: `{'data.qpos': q, 'info.steps': 0}`."""
    out = self
    for path, value in changes.items():
      out = _put(out, path.split("."), value)
    return out


def _put(node: Any, path: list[str], value: Any) -> Any:
  """Return a copy of the node in which the value at the path is replaced."""
  head, *rest = path
  if isinstance(node, dict):
    return {**node, head: _put(node[head], rest, value) if rest else value}
  return node.replace(**{head: _put(getattr(node, head), rest, value) if rest else value})
