"""`mjx-lite bench MODEL`: steps per second and compile time, on request compared with MuJoCo C's batch.

Tests: tests/cli/test_commands.py.
"""

import argparse
import json
import statistics
import time

import jax.numpy as jnp
import mujoco
import numpy as np
import rich.table

import mjx_lite as mjx
from mjx_lite.cli import common, timing
from mjx_lite.compiler import disk


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's arguments."""
  parser.add_argument("model", metavar="MODEL.xml", help="MJCF, URDF or MJB file, or 'humanoid'")
  parser.add_argument("--worlds", type=common.positive_int, default=1024, help="number of worlds (1024)")
  parser.add_argument("--steps", type=common.positive_int, default=100, help="steps of a rollout (100)")
  parser.add_argument("--repeats", type=common.positive_int, default=3, help="rollouts that are timed (3)")
  parser.add_argument("--seed", type=common.natural_int, default=0, help="of the controls and the first states (0)")
  parser.add_argument("--batch", action="store_true", help="time mujoco.batch.Batch on all cores too, in alternation")
  parser.add_argument("--json", action="store_true", help="print one JSON line instead of the table")


def run(args: argparse.Namespace) -> int:
  """Time rollouts that carry the state and record qpos and qvel."""
  mj_model = common.load_model(args.model)
  m = mjx.put_model(mj_model)
  qpos, qvel = common.random_state(mj_model, args.worlds, args.seed)
  d = common.batched_data(mj_model, m, qpos, qvel)
  ctrl = common.random_control(mj_model, args.steps, args.worlds, args.seed)
  controls = jnp.asarray(ctrl)
  # nothing compiled is taken from disk: the compile time is a result
  with common.stdout.status("tracing and compiling"), disk.unused():
    program = timing.compile_program(common.rollout, m, d, controls)
  batch = _batch(mj_model, args.worlds) if args.batch else None

  ours, theirs = [], []
  (end, *_), _ = timing.timed(program.call, m, d, controls)
  common.tell_of_shortage(m, end)
  for _ in range(args.repeats):
    ours.append(timing.timed(program.call, m, d, controls)[1])
    if batch is not None:
      theirs.append(_time_batch(batch, qpos, qvel, ctrl))

  result = {
    "model": args.model,
    "worlds": args.worlds,
    "steps": args.steps,
    "trace_s": program.trace_s,
    "compile_s": program.compile_s,
    "steps_per_s": _rate(args, ours),
    "steps_per_s_best": args.worlds * args.steps / min(ours),
    "bytes_per_world": timing.leaf_bytes(d) // args.worlds,
    "instructions": program.instructions,
    "fusions": program.fusions,
  }
  if theirs:
    result["batch_steps_per_s"] = _rate(args, theirs)
    result["ratio"] = result["steps_per_s"] / result["batch_steps_per_s"]
  if args.json:
    print(json.dumps(result))
    return 0
  table = rich.table.Table(box=None, show_header=False, padding=(0, 2, 0, 0))
  table.add_row("trace + compile", f"{program.trace_s:.2f} s + {program.compile_s:.2f} s")
  table.add_row("steps per second", f"{result['steps_per_s']:,.0f}  (best {result['steps_per_s_best']:,.0f})")
  table.add_row("realtime factor", f"{result['steps_per_s'] * mj_model.opt.timestep:,.0f}")
  table.add_row("bytes of Data per world", f"{result['bytes_per_world']:,}")
  table.add_row("HLO instructions, fusions", f"{program.instructions:,}, {program.fusions:,}")
  if theirs:
    table.add_row("C Batch, steps per second", f"{result['batch_steps_per_s']:,.0f}  (float64, all cores)")
    table.add_row("ratio to C", f"{result['ratio']:.2f}")
  title = f"{args.model}: {args.worlds:,} worlds, {args.steps} steps, median of {args.repeats}, {d.qpos.dtype}"
  common.stdout.print(title, soft_wrap=True)
  common.stdout.print(table)
  return 0


def _rate(args: argparse.Namespace, times: list[float]) -> float:
  """Compute steps per second from the median time."""
  return args.worlds * args.steps / statistics.median(times)


def _batch(mj_model: mujoco.MjModel, worlds: int):
  """Make MuJoCo C's batch, which runs on all cores."""
  import mujoco.batch

  return mujoco.batch.Batch(mj_model, worlds)


def _time_batch(batch, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> float:
  """Measure the time of C's rollout from the same states under the same controls [s]."""
  batch.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
  batch.qpos, batch.qvel = qpos, qvel
  control = np.ascontiguousarray(ctrl.transpose(1, 0, 2), np.float64)
  start = time.perf_counter()
  batch.rollout(ctrl.shape[0], control, control_spec=int(mujoco.mjtState.mjSTATE_CTRL), record=("qpos", "qvel"))
  return time.perf_counter() - start
