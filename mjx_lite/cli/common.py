"""Functions shared by the commands: models from files, random states and controls, rollouts, the console.

Tests: tests/cli/test_humanoid.py, tests/cli/test_commands.py.
"""

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import mujoco
import numpy as np
import rich.console
import rich.text

import mjx_lite as mjx
from mjx_lite.compiler import disk
from mjx_lite.io.capacity import shortage
from mjx_lite.rollout import state_of


def console(**options: Any) -> rich.console.Console:
  """Make a console that prints text literally: rich does not interpret brackets and colons in names, paths and messages."""
  return rich.console.Console(markup=False, emoji=False, highlight=False, **options)


# fixed width for tables in a file or a pipe
stdout = console(width=None if sys.stdout.isatty() else 120)
stderr = console(stderr=True)

# errors that the engine raises for an unsupported model; shown without a traceback
ENGINE_ERRORS = (NotImplementedError, mjx.MjxError)
# errors that NumPy and JAX raise when memory runs out; JAX raises JaxRuntimeError for other causes too
MEMORY_ERRORS = (MemoryError, jax.errors.JaxRuntimeError)

HUMANOID = pathlib.Path(__file__).parent.parent / "models" / "humanoid.xml"


class BadInput(Exception):
  """Error for a mistake of the user; only the message is shown."""


def positive_int(text: str) -> int:
  """Parse a whole number above zero, for argparse."""
  return _within(int(text), 1, np.inf)


def natural_int(text: str) -> int:
  """Parse a whole number, zero or above, for argparse."""
  return _within(int(text), 0, np.inf)


def port(text: str) -> int:
  """Parse a TCP port, or 0 for any port, for argparse."""
  return _within(int(text), 0, 65535)


def seconds(text: str) -> float:
  """Parse a nonnegative time [s], for argparse."""
  return _within(float(text), 0, np.inf)


def _within(value, low, high):
  """Return the value if it is in [low, high]; raise ValueError otherwise."""
  if not low <= value <= high:
    raise ValueError(f"{value} is not between {low} and {high}")
  return value


# argparse shows these names in its messages
positive_int.__name__ = "whole number above zero"
natural_int.__name__ = "whole number from zero on"
port.__name__ = "port from 0 to 65535"
seconds.__name__ = "number of seconds"


def headed(word: str, style: str, text: str) -> rich.text.Text:
  """Return a line that starts with a styled word."""
  return rich.text.Text.assemble((word, style), text)


def one_line(error: Exception) -> str:
  """Return an error's message without line breaks."""
  return " ".join(str(error).split())


def out_of_memory(error: Exception) -> bool:
  """Return whether an error of NumPy or JAX means that memory ran out."""
  return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def load_model(path: str | os.PathLike) -> mujoco.MjModel:
  """Read a model from MJCF, URDF or MJB; `humanoid` is the model in this package."""
  if str(path) == "humanoid" and not pathlib.Path("humanoid").exists():
    path = HUMANOID
  path = pathlib.Path(path)
  if not path.is_file():
    why = "this is a folder" if path.is_dir() else "no such file"
    raise BadInput(f"{path}: {why}. Give a MJCF, URDF or MJB file, or 'humanoid' for the model shipped here.")
  try:
    if path.suffix == ".mjb":
      return mujoco.MjModel.from_binary_path(str(path))
    return mujoco.MjModel.from_xml_path(str(path))
  except (ValueError, mujoco.FatalError) as error:
    raise BadInput(f"{path}: MuJoCo cannot compile this file: {one_line(error)}") from error


def make_folder(path: pathlib.Path) -> None:
  """Make a folder for results; call this before the computation, so that a failure loses no results."""
  try:
    path.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise BadInput(f"{path}: the folder for pictures cannot be made: {error.strerror}.") from error


def use_compilation_cache() -> None:
  """Enable JAX's compilation cache in the folder of the engine's machine code, so that a command compiles once per model."""
  root = disk.folder()
  if root is None:
    return
  folder = root / "jax"
  try:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
  except OSError:
    return  # without a cache only time is lost
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def count_cache_hits() -> Callable[[], int]:
  """Start to count the programs taken from the cache on disk; return a function that returns the count."""
  hits = []
  jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event == "/jax/compilation_cache/cache_hits" else None
  )
  return lambda: len(hits)


def initial_data(mj_model: mujoco.MjModel) -> mujoco.MjData:
  """Return the initial state of trajectories: the first keyframe if there is one, otherwise qpos0."""
  d = mujoco.MjData(mj_model)
  if mj_model.nkey:
    mujoco.mj_resetDataKeyframe(mj_model, d, 0)
  return d


def random_state(mj_model: mujoco.MjModel, worlds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Draw random states around the initial state, with normal velocities of standard deviation 0.3.

  Limited hinges and slides move by up to 30 % of their range; free bodies rotate about z.

  Returns:
    qpos (worlds, nq) and qvel (worlds, nv). Both are rounded to float32, so that both precisions start from the same numbers.
  """
  rng = np.random.default_rng(seed)
  qpos = np.tile(initial_data(mj_model).qpos, (worlds, 1))
  qvel = 0.3 * rng.standard_normal((worlds, mj_model.nv))
  for joint in range(mj_model.njnt):
    adr, kind = mj_model.jnt_qposadr[joint], mj_model.jnt_type[joint]
    if kind == mujoco.mjtJoint.mjJNT_FREE:
      qpos[:, adr + 3 : adr + 7] = _rotated(qpos[:, adr + 3 : adr + 7], rng.uniform(-np.pi, np.pi, worlds))
    elif kind in (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE) and mj_model.jnt_limited[joint]:
      low, high = mj_model.jnt_range[joint]
      qpos[:, adr] = np.clip(qpos[:, adr] + 0.3 * (high - low) * rng.uniform(-1, 1, worlds), low, high)
  return qpos.astype(np.float32), qvel.astype(np.float32)


def _rotated(quat: np.ndarray, angle: np.ndarray) -> np.ndarray:
  """Rotate quaternions (n, 4) about the world's z axis by angles (n,) [rad]."""
  c, s = np.cos(angle / 2), np.sin(angle / 2)
  w, x, y, z = quat.T
  return np.stack([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w], -1)


def random_control(mj_model: mujoco.MjModel, steps: int, worlds: int, seed: int, deviation: float = 0.5) -> np.ndarray:
  """Draw smooth noise with a correlation time of 0.1 s.

  The standard deviation is `deviation` times the width of the control range; the range is [-2, 2] for unlimited controls.

  Returns:
    ctrl (steps, worlds, nu), float32, inside the control range.
  """
  rng = np.random.default_rng(seed + 1)
  keep = float(np.exp(-mj_model.opt.timestep / 0.1))
  ctrl = np.empty((steps, worlds, mj_model.nu), np.float32)
  noise = rng.standard_normal((worlds, mj_model.nu), np.float32)
  for step in range(steps):
    ctrl[step] = noise
    noise = keep * noise + np.sqrt(1 - keep**2) * rng.standard_normal(noise.shape, np.float32)
  limited = mj_model.actuator_ctrllimited.astype(bool)
  low = np.where(limited, mj_model.actuator_ctrlrange[:, 0], -2.0)
  high = np.where(limited, mj_model.actuator_ctrlrange[:, 1], 2.0)
  return np.clip((low + high) / 2 + (high - low) * deviation * ctrl, low, high).astype(np.float32)


def batched_data(mj_model: mujoco.MjModel, m: Any, qpos: np.ndarray, qvel: np.ndarray) -> Any:
  """Return the Data of a batch of worlds: the initial state with the given qpos (worlds, nq) and qvel (worlds, nv)."""
  d = mjx.put_data(mj_model, initial_data(mj_model))
  worlds = qpos.shape[0]
  d = jax.tree.map(lambda x: jax.numpy.broadcast_to(x, (worlds, *x.shape)), d)
  return d.replace(qpos=jax.numpy.asarray(qpos, d.qpos.dtype), qvel=jax.numpy.asarray(qvel, d.qvel.dtype))


def rollout(m: Any, d: Any, ctrl: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
  """Step a batch of worlds under ctrl (steps, worlds, nu); the caller compiles this function.

  Returns:
    The Data d with the state after the last step, and qpos (steps, worlds, nq) and qvel (steps, worlds, nv) after each step.
  """
  # the only function of the commands that depends on the signature of the engine's rollout
  end, record = jax.vmap(mjx.rollout, in_axes=(None, 0, 1), out_axes=(0, 1))(m, d, ctrl)
  return state_of(d, end), record["qpos"], record["qvel"]


def status_counts(d: Any) -> dict[str, int]:
  """Count the worlds with each kind of warning in a batch of Data; empty if there are none or Data has no status."""
  status = getattr(d, "status", None)
  if status is None:
    return {}
  from mjx_lite.model.status import Warning as Kind

  count = np.asarray(status.count).reshape(-1, len(Kind))
  return {kind.name: int((count[:, kind] > 0).sum()) for kind in Kind if (count[:, kind] > 0).any()}


def tell_of_shortage(m: Any, d: Any) -> bool:
  """Print it if contacts did not fit in some world; return whether it is so."""
  text = shortage(m, d)
  if text:
    stderr.print(headed("contacts are missing:", "bold yellow", f" {text}"), soft_wrap=True)
  return bool(text)


def number(x: float) -> str:
  """Format a number for a report: separators of thousands, three significant digits below 100."""
  return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def quiet(function: Callable[..., Any], *args: Any) -> Any:
  """Call a MuJoCo function without printing MuJoCo's warnings, which random controls cause."""
  handler = mujoco.get_mju_user_warning()
  mujoco.set_mju_user_warning(lambda _: None)
  try:
    return function(*args)
  finally:
    mujoco.set_mju_user_warning(handler)
