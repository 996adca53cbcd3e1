"""What the learners share: the loop over iterations with its progress bar, and checkpoints from which it goes on."""

import math
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tqdm

import mjx_lite as mjx


def run(
  program: Callable[[Any, Any, jax.Array], tuple[Any, Any, dict[str, jax.Array]]],
  worlds: Any,
  learner: Any,
  key: jax.Array,
  *,
  iterations: int,
  steps: int,
  starts: Callable[[Any, jax.Array], Any],
  renew: int,
  checkpoint: str | os.PathLike | None = None,
  every: int = 10,
  progress: Callable[[int, dict[str, float], Any], None] | None = None,
) -> tuple[Any, list[dict[str, float]]]:
  """Calls the compiled iteration again and again.

  Args:
    program: (worlds, learner, key) -> (worlds, learner, report).
    worlds: state of the environments.
    learner: pytree of all else that changes.
    key: of jax.random.
    iterations: in all, those before a checkpoint included.
    steps: of the environments in an iteration.
    starts: (worlds, key) -> worlds whose next episodes start elsewhere.
    renew: iterations after which that is called.
    checkpoint: folder to which all is written, and from which it goes on if it was written before.
    every: iterations between checkpoints; there is one after the last, too.
    progress: called after each iteration with its number, its entry of the curve, and the learner.

  Returns:
    the learner and the learning curve, one entry for each iteration; in those without the end of an episode the return is NaN,
    and the bar shows the last one that is known.
  """
  store = None if checkpoint is None else Checkpoints(checkpoint)
  try:
    found = store.latest((worlds, learner, key)) if store else None
    (worlds, learner, key), curve = found or ((worlds, learner, key), [])
    bar = tqdm.trange(len(curve), iterations, initial=len(curve), total=iterations, unit="iteration", disable=None)
    for i in bar:
      key, for_iteration, for_starts = jax.random.split(key, 3)
      if i and i % renew == 0:
        worlds = starts(worlds, for_starts)
      worlds, learner, report = program(worlds, learner, for_iteration)
      report = {k: float(v) for k, v in jax.device_get(report).items()}
      curve.append({"steps": (i + 1) * steps, **report})
      bar.set_postfix(_shown(curve))
      if progress is not None:
        progress(i, curve[-1], learner)
      if store and ((i + 1) % every == 0 or i + 1 == iterations):
        store.save((worlds, learner, key), curve)
  finally:  # interrupted, too: what is being written has to be whole before someone goes on from it
    if store:
      store.close()
  return learner, curve


def _shown(curve: list[dict[str, float]]) -> dict[str, str]:
  """Return and length of the last iteration in which episodes ended; nothing before the first."""
  last = next((x for x in reversed(curve) if not math.isnan(x["return"])), None)
  return {} if last is None else {"return": f"{last['return']:.3g}", "length": f"{last['length']:.0f}"}


class Checkpoints:
  """A folder with the last few states of learning, written by orbax (extra `rl`), and their curves."""

  def __init__(self, folder: str | os.PathLike, keep: int = 2):
    import orbax.checkpoint as ocp

    self._ocp = ocp
    self.folder = pathlib.Path(folder).absolute()
    self._manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep))

  def save(self, tree: Any, curve: list[dict[str, float]]) -> None:
    """Writes; what it is called with may change afterwards."""
    args = self._ocp.args
    both = args.Composite(arrays=args.StandardSave(_arrays(tree)), curve=args.JsonSave({"curve": list(curve)}))
    self._manager.save(len(curve), args=both)

  def latest(self, like: Any) -> tuple[Any, list[dict[str, float]]] | None:
    """The last tree, of the form of another one, and the curve; None where nothing was written."""
    step = self._manager.latest_step()
    if step is None:
      return None
    args, form = self._ocp.args, _arrays(like)
    both = args.Composite(arrays=args.StandardRestore(jax.tree.map(np.empty_like, form)), curve=args.JsonRestore())
    why = f"the checkpoint in {self.folder} is not of this task and these settings."
    try:
      found = self._manager.restore(step, args=both)
    except (ValueError, KeyError) as error:
      raise ValueError(why) from error
    if any(np.shape(found["arrays"][i]) != x.shape for i, x in form.items()):
      raise ValueError(why)
    return _filled(like, found["arrays"]), found["curve"]["curve"]

  def close(self) -> None:
    """Waits until all is written."""
    self._manager.close()


def _is_key(x: Any) -> bool:
  """Whether an array is of keys, which no file has."""
  return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def _arrays(tree: Any) -> dict[str, np.ndarray]:
  """The leaves by number as NumPy arrays; without the empty ones, which no file has either."""
  leaves = enumerate(jax.tree.leaves(tree))
  return {str(i): np.asarray(jax.random.key_data(x) if _is_key(x) else x) for i, x in leaves if x.size}


def _filled(like: Any, arrays: dict[str, Any]) -> Any:
  """The inverse of `_arrays`."""
  leaves, form = jax.tree.flatten(like)
  for i, x in enumerate(leaves):
    if x.size:
      new = jax.numpy.asarray(arrays[str(i)])
      leaves[i] = jax.random.wrap_key_data(new, impl=jax.random.key_impl(x)) if _is_key(x) else new
  return jax.tree.unflatten(form, leaves)


def begin(worlds: Any, key: jax.Array, count: int) -> tuple[Any, Callable[[Any, jax.Array], Any]]:
  """State of so many worlds of a wrapped environment, and for `run` what gives it a bank of new first states."""
  reset = mjx.jit(worlds.reset)

  def first(key):
    return reset(jax.random.split(key, count))

  return first(key), lambda state, key: worlds.refill(state, first(key))
