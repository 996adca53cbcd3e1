"""`mjx-lite demo`: many worlds of the package's humanoid fall and flail under random control; a report and a picture.

Tests: tests/cli/test_commands.py.
"""

import argparse
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import rich.table
import rich.text
import tqdm

import mjx_lite as mjx
from mjx_lite import viz
from mjx_lite.cli import common, timing

_CHUNK = 20  # steps per call; the progress bar moves once per call
_COMPARED = 8  # number of worlds that are also stepped with C
_PICTURE_WORLDS = 9  # each is large enough to be seen on a page
_FILM_WORLDS = 16
_FILM_FPS = 24
_FILM_FRAMES = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's arguments."""
  parser.add_argument("--worlds", type=common.positive_int, default=1024, help="number of worlds (1024)")
  parser.add_argument("--steps", type=common.positive_int, default=200, help="steps of each world (200)")
  parser.add_argument("--seed", type=common.natural_int, default=0, help="of the controls and the first states (0)")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"), help="folder for pictures (out)")
  parser.add_argument("--no-render", action="store_true", help="make no picture")


class Run(NamedTuple):
  """Recorded trajectories of all worlds."""

  qpos: np.ndarray  # (steps + 1, worlds, nq), the initial state included
  qvel: np.ndarray  # (steps + 1, worlds, nv)
  ctrl: np.ndarray  # (steps, worlds, nu)
  last: Any  # Data of all worlds after the last step
  seconds: float  # run time [s]


def run(args: argparse.Namespace) -> int:
  """Run the demo; exit code 0 also if no picture can be drawn here."""
  if not args.no_render:
    common.make_folder(args.out)
  mj_model = common.load_model(common.HUMANOID)
  common.use_compilation_cache()
  cached = common.count_cache_hits()
  chunk = min(_CHUNK, args.steps)
  steps = -(-args.steps // chunk) * chunk  # whole chunks, so that one compiled program is enough

  m = mjx.put_model(mj_model)
  qpos, qvel = common.random_state(mj_model, args.worlds, args.seed)
  d = common.batched_data(mj_model, m, qpos, qvel)
  ctrl = common.random_control(mj_model, steps, args.worlds, args.seed)
  device = jax.devices()[0]
  common.stdout.print(
    f"{args.worlds:,} humanoids ({mj_model.nv} dofs, {mj_model.nu} motors), {steps} steps of "
    f"{1e3 * mj_model.opt.timestep:g} ms, {d.qpos.dtype}, on {device.platform} ({device.device_kind})"
  )
  with common.stdout.status("tracing and compiling, some seconds on the first run"):
    program = timing.compile_program(common.rollout, m, d, jnp.asarray(ctrl[:chunk]))
  result = _run_worlds(program, m, d, qpos, qvel, ctrl, chunk)
  one_step = _one_step_deviation(mj_model, program, m, d, result, chunk)
  along = _rollout_deviation(mj_model, result)
  common.tell_of_shortage(m, result.last)
  _report(mj_model, program, cached(), result, one_step, along)
  if not args.no_render:
    _draw(mj_model, result, args.out)
  return 0


def _run_worlds(program, m, d, qpos, qvel, ctrl, chunk) -> Run:
  """Step all worlds, chunk by chunk."""
  steps, worlds = ctrl.shape[:2]
  record_qpos, record_qvel, seconds = [qpos[None]], [qvel[None]], 0.0
  last = d
  with tqdm.tqdm(total=steps * worlds, unit="step", unit_scale=True, desc="worlds", disable=None) as bar:
    for start in range(0, steps, chunk):
      controls = jax.block_until_ready(jnp.asarray(ctrl[start : start + chunk]))
      (last, q, v), spent = timing.timed(program.call, m, last, controls)
      seconds += spent
      record_qpos.append(np.asarray(q))
      record_qvel.append(np.asarray(v))
      bar.update(chunk * worlds)
  return Run(np.concatenate(record_qpos), np.concatenate(record_qvel), ctrl, last, seconds)


def _one_step_deviation(mj_model, program, m, d, result: Run, chunk: int) -> tuple[int, float, float]:
  """Compare one step of the engine and of C from the same states of the run, both with a cold start of the solver.

  The compiled program takes one state per world. So each world starts from its state at a random time of the run.

  Returns:
    The number of states, and the largest deviations of qpos and of qvel.
  """
  steps, worlds = result.ctrl.shape[:2]
  rng = np.random.default_rng(0)
  time, world = rng.integers(0, steps, worlds), np.arange(worlds)
  qpos, qvel, ctrl = result.qpos[time, world], result.qvel[time, world], result.ctrl[time, world]
  d = d.replace(
    qpos=jnp.asarray(qpos, d.qpos.dtype),
    qvel=jnp.asarray(qvel, d.qvel.dtype),
    qacc_warmstart=jnp.zeros_like(d.qacc_warmstart),
  )
  controls = jnp.asarray(np.broadcast_to(ctrl, (chunk, *ctrl.shape)))
  _, q, v = program.call(m, d, controls)
  count = min(worlds, 1000)
  error_q = error_v = 0.0
  c = mujoco.MjData(mj_model)
  for i in range(count):
    mujoco.mj_resetData(mj_model, c)
    c.qpos[:], c.qvel[:], c.ctrl[:] = qpos[i], qvel[i], ctrl[i]
    common.quiet(mujoco.mj_step, mj_model, c)
    error_q = max(error_q, _worst(np.asarray(q[0, i]) - c.qpos))
    error_v = max(error_v, _worst(np.asarray(v[0, i]) - c.qvel))
  return count, error_q, error_v


def _rollout_deviation(mj_model: mujoco.MjModel, result: Run) -> dict[int, float]:
  """Return the largest deviation of qpos from C by number of steps, over the worlds that are also stepped with C."""
  steps, worlds = result.ctrl.shape[:2]
  worst = np.zeros(steps + 1)
  for world in range(min(_COMPARED, worlds)):
    c = mujoco.MjData(mj_model)
    c.qpos[:], c.qvel[:] = result.qpos[0, world], result.qvel[0, world]
    for step in range(steps):
      c.ctrl[:] = result.ctrl[step, world]
      common.quiet(mujoco.mj_step, mj_model, c)
      worst[step + 1] = max(worst[step + 1], _worst(result.qpos[step + 1, world] - c.qpos))
  # the largest deviation up to each step
  worst = np.maximum.accumulate(worst)
  return {step: float(worst[step]) for step in sorted({1, 10, 50, steps}) if step <= steps}


def _worst(difference: np.ndarray) -> float:
  """Return the largest absolute component; inf if there is a NaN."""
  return float(np.abs(np.nan_to_num(difference, nan=np.inf, posinf=np.inf, neginf=np.inf)).max(initial=0))


def _report(mj_model, program: timing.Program, cached: int, result: Run, one_step, along: dict[int, float]) -> None:
  """Print the table of results."""
  steps, worlds = result.ctrl.shape[:2]
  rate = steps * worlds / result.seconds
  precision = result.qpos.dtype
  table = rich.table.Table(box=None, show_header=False, padding=(0, 2, 0, 0))
  table.add_column(style="bold")
  table.add_column()
  table.add_row("steps per second", f"{rate:,.0f}  ({1e6 / rate:.3g} µs per step of a world)")
  table.add_row("realtime factor", f"{rate * mj_model.opt.timestep:,.0f}  (seconds simulated per second)")
  source = "  (program taken from the cache on disk)" if cached else ""
  table.add_row("trace + compile", f"{program.trace_s:.1f} s + {program.compile_s:.1f} s{source}")
  count, error_q, error_v = one_step
  table.add_row(
    "deviation from MuJoCo C, one step",
    f"qpos {error_q:.1e}, qvel {error_v:.1e}  (worst of {count:,} states of the run; {precision} against float64)",
  )
  table.add_row(
    "deviation of qpos along the run",
    ", ".join(f"{error:.1e} within {step} step{'s' if step > 1 else ''}" for step, error in along.items())
    + f"  (worst of {min(_COMPARED, worlds)} worlds)",
  )
  table.add_row(
    "", rich.text.Text("it grows because a falling body is chaotic: contacts multiply the rounding of each step", "dim")
  )
  table.add_row("status", _status(result))
  common.stdout.print(table)


def _status(result: Run) -> str:
  """Format the warnings of the engine, and the number of worlds with values that are not finite."""
  flags = [f"{name} in {count:,} worlds" for name, count in common.status_counts(result.last).items()]
  bad = int((~np.isfinite(result.qpos[-1])).any(-1).sum())
  if bad:
    flags.append(f"values that are not finite in {bad:,} worlds")
  return ", ".join(flags) or "no flags, all values finite"


def _draw(mj_model: mujoco.MjModel, result: Run, folder: pathlib.Path) -> None:
  """Write a PNG of falling humanoids and, if ffmpeg is available, an MP4; print a message if nothing can be drawn."""
  worlds = result.ctrl.shape[1]
  try:
    with common.stdout.status("drawing"):
      picture = viz.render_grid(mj_model, result.qpos[len(result.qpos) // 3, :_PICTURE_WORLDS], elevation=-18.0)
      viz.write_png(folder / "demo.png", picture)
      shown = min(worlds, _PICTURE_WORLDS)
      common.stdout.print(f"picture of {shown} worlds: {folder / 'demo.png'}", soft_wrap=True)
      if (why := viz.why_no_mp4()) is None:
        # half speed, because a fall takes one second; a long run plays faster, to limit the time of software rendering
        steps = len(result.qpos)
        every = max(round(0.5 / (_FILM_FPS * mj_model.opt.timestep)), -(-steps // _FILM_FRAMES), 1)
        film = viz.render_grid(mj_model, result.qpos[::every, :_FILM_WORLDS], width=640, height=360)
        why = viz.write_mp4(folder / "demo.mp4", film, _FILM_FPS)
      common.stdout.print(f"film: {folder / 'demo.mp4'}" if why is None else f"no film: {why}", soft_wrap=True)
  except viz.NoPicture as error:
    common.stdout.print(common.headed("no picture was made.", "yellow", f" {error}"))
  except OSError as error:
    common.stdout.print(common.headed("no picture was made:", "yellow", f" {error}"), soft_wrap=True)
