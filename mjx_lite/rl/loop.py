"""Training loop shared by the learners, with progress bar, and checkpoints from which training resumes."""

import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
import tqdm

import mjx_lite as mjx
from mjx_lite.envs.base import Env
from mjx_lite.envs.wrappers import wrap
from mjx_lite.io.capacity import warn_of_shortage

L = TypeVar("L")  # training state of an algorithm


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
  look: Callable[[Any], None] = lambda worlds: None,
) -> tuple[Any, list[dict[str, float]]]:
  """Run the training loop: call the compiled iteration `iterations` times.

  Args:
    program: compiled iteration (worlds, learner, key) -> (worlds, learner, report).
    worlds: state of the environments.
    learner: pytree of everything else that changes in an iteration.
    key: a key of jax.random.
    iterations: total number of iterations, including the iterations before a checkpoint.
    steps: number of environment steps in an iteration.
    starts: function (worlds, key) -> worlds that replaces the bank of initial states.
    renew: number of iterations between calls of `starts`.
    checkpoint: folder for checkpoints; training resumes from the latest checkpoint in this folder, if there is one.
    every: number of iterations between checkpoints; the last iteration always writes a checkpoint.
    progress: called after each iteration with the iteration's number, its entry of the curve, and the learner.
    look: called after each iteration with the state of the environments.

  Returns:
    the learner and the learning curve, with one entry per iteration. The return of an iteration is NaN if no episode ended in
    this iteration; the progress bar then shows the last known return.
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
      look(worlds)
      report = {k: float(v) for k, v in jax.device_get(report).items()}
      curve.append({"steps": (i + 1) * steps, **report})
      bar.set_postfix(_shown(curve))
      if progress is not None:
        progress(i, curve[-1], learner)
      if store and ((i + 1) % every == 0 or i + 1 == iterations):
        store.save((worlds, learner, key), curve)
  finally:  # also after an interrupt: finish writing the checkpoint
    if store:
      store.close()
  return learner, curve


def _shown(curve: list[dict[str, float]]) -> dict[str, str]:
  """Format return and length of the last iteration in which episodes ended; an empty dict if there is none."""
  last = next((x for x in reversed(curve) if not math.isnan(x["return"])), None)
  return {} if last is None else {"return": f"{last['return']:.3g}", "length": f"{last['length']:.0f}"}


class Checkpoints:
  """Folder with the latest training states and their learning curves, written by orbax (extra `rl`)."""

  def __init__(self, folder: str | os.PathLike, keep: int = 2):
    import orbax.checkpoint as ocp

    self._ocp = ocp
    self.folder = pathlib.Path(folder).absolute()
    self._manager = ocp.CheckpointManager(self.folder, options=ocp.CheckpointManagerOptions(max_to_keep=keep))

  def save(self, tree: Any, curve: list[dict[str, float]]) -> None:
    """Write a checkpoint; the arguments may be changed after the call."""
    args = self._ocp.args
    both = args.Composite(arrays=args.StandardSave(_arrays(tree)), curve=args.JsonSave({"curve": list(curve)}))
    self._manager.save(len(curve), args=both)

  def latest(self, like: Any) -> tuple[Any, list[dict[str, float]]] | None:
    """Read the latest tree, with the structure of `like`, and its curve; None if there is no checkpoint."""
    step = self._manager.latest_step()
    if step is None:
      return None
    args, form = self._ocp.args, _arrays(like)
    both = args.Composite(arrays=args.StandardRestore(jax.tree.map(np.empty_like, form)), curve=args.JsonRestore())
    message = f"the checkpoint in {self.folder} is of another task or of other settings: use another folder."
    try:
      found = self._manager.restore(step, args=both)
    except (ValueError, KeyError) as error:
      raise ValueError(message) from error
    if any(np.shape(found["arrays"][i]) != x.shape for i, x in form.items()):
      raise ValueError(message)
    return _filled(like, found["arrays"]), found["curve"]["curve"]

  def close(self) -> None:
    """Wait until all checkpoints are written."""
    self._manager.close()


def _is_key(x: Any) -> bool:
  """Return whether an array holds jax.random keys, which orbax cannot store."""
  return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def _arrays(tree: Any) -> dict[str, np.ndarray]:
  """Return the leaves as NumPy arrays by index, without empty leaves, which orbax cannot store."""
  leaves = enumerate(jax.tree.leaves(tree))
  return {str(i): np.asarray(jax.random.key_data(x) if _is_key(x) else x) for i, x in leaves if x.size}


def _filled(like: Any, arrays: dict[str, Any]) -> Any:
  """Return the tree `like` with its leaves replaced by the arrays; the inverse of `_arrays`."""
  leaves, form = jax.tree.flatten(like)
  for i, x in enumerate(leaves):
    if x.size:
      new = jax.numpy.asarray(arrays[str(i)])
      leaves[i] = jax.random.wrap_key_data(new, impl=jax.random.key_impl(x)) if _is_key(x) else new
  return jax.tree.unflatten(form, leaves)


class Algorithm(Protocol):
  """A learning algorithm for one task: networks, optimizers, and the iteration."""

  def begin(self, obs: jax.Array, key: jax.Array) -> Any:
    """Return a new learner, from the first observations (worlds, n) and a key for the weights."""
    ...

  def iterate(self, worlds: Any, state: Any, learner: Any, key: jax.Array) -> tuple[Any, Any, dict[str, jax.Array]]:
    """Unroll the policy in the worlds and update the learner; return the state, the learner and the report."""
    ...


def train(
  algorithm: Algorithm,
  env: Env,
  config: Any,
  unroll: int,
  learner: L | None = None,
  *,
  seed: int,
  wrap_options: dict[str, Any],
  **run_options: Any,
) -> tuple[L, list[dict[str, float]]]:
  """Wrap the task, make the first learner, compile the iteration and run the training loop.

  Args:
    algorithm: the learning algorithm.
    env: the task.
    config: hyperparameters; of these, `worlds` and `episode_length` are used.
    unroll: number of steps of each world in an iteration.
    learner: training state to continue from; a new training state if None.
    seed: seed of all random numbers.
    wrap_options: arguments of `mjx_lite.envs.wrap`.
    **run_options: arguments of `run`: iterations, checkpoint, every, progress.

  Returns:
    the learner and the learning curve, as `run` returns them.
  """
  worlds = wrap(env, episode_length=config.episode_length, **wrap_options)
  key, for_env, for_params = jax.random.split(jax.random.key(seed), 3)
  state, starts = begin(worlds, for_env, config.worlds)
  if learner is None:
    learner = algorithm.begin(state.obs, for_params)

  def iterate(state, learner, key):
    return algorithm.iterate(worlds, state, learner, key)

  def look(state):
    warn_of_shortage(env.model, state.data, "train")

  return run(
    mjx.jit(iterate), state, learner, key, steps=config.worlds * unroll, starts=starts,
    renew=-(-config.episode_length // unroll), look=look, **run_options,
  )  # fmt: skip


def begin(worlds: Any, key: jax.Array, count: int) -> tuple[Any, Callable[[Any, jax.Array], Any]]:
  """Reset `count` worlds of a wrapped environment; return their state and the `starts` function for `run`."""
  reset = mjx.jit(worlds.reset)

  def first(key):
    return reset(jax.random.split(key, count))

  return first(key), lambda state, key: worlds.refill(state, first(key))
