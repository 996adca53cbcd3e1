"""What an environment carries from step to step, in the form that Brax and MuJoCo Playground know."""

import dataclasses
from typing import Any

import jax

import mjx_lite as mjx


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class State:
  """One world's episode, or a batch of them with a leading world axis. `done` and `reward` are floats, as learners expect."""

  data: mjx.Data
  obs: Any  # array, or dict of arrays
  reward: jax.Array
  done: jax.Array
  metrics: dict[str, jax.Array]
  info: dict[str, Any]

  @property
  def pipeline_state(self) -> mjx.Data:
    """`data`, by the name that Brax has for it."""
    return self.data

  def replace(self, **changes: Any) -> "State":
    """Copy with some fields changed."""
    if "pipeline_state" in changes:
      changes["data"] = changes.pop("pipeline_state")
    return dataclasses.replace(self, **changes)

  def tree_replace(self, changes: dict[str, Any]) -> "State":
    """Copy with fields changed by dotted path, in Data too: `{'data.qpos': q, 'info.steps': 0}`."""
    out = self
    for path, value in changes.items():
      out = _put(out, path.split("."), value)
    return out


def _put(node: Any, path: list[str], value: Any) -> Any:
  """The node with what is at the path replaced."""
  head, *rest = path
  if isinstance(node, dict):
    return {**node, head: _put(node[head], rest, value) if rest else value}
  return node.replace(**{head: _put(getattr(node, head), rest, value) if rest else value})
