"""`mjx-lite check MODEL`: compare every stage field with MuJoCo C along a trajectory; `--grad`: gradients with differences.

Tests: tests/cli/test_commands.py.
"""

import argparse

import jax
import mujoco
import rich.markup
import rich.table
import tqdm

import mjx_lite as mjx
from mjx_lite.cli import common
from mjx_lite.testing import compare


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's arguments."""
  parser.add_argument("model", metavar="MODEL.xml", help="MJCF, URDF or MJB file, or 'humanoid'")
  parser.add_argument("--steps", type=common.positive_int, default=200, help="length of C's trajectory (200)")
  parser.add_argument("--seed", type=common.natural_int, default=0, help="of the controls and the first state (0)")
  parser.add_argument("--grad", action="store_true", help="compare gradients of a step with differences, at the last state")
  parser.add_argument("--all", action="store_true", help="list fields without any difference too")


def run(args: argparse.Namespace) -> int:
  """Compare along the trajectory and print a table; exit code 1 on a difference."""
  mj_model = common.load_model(args.model)
  # both engines in double precision and at the solver's optimum, so that any difference is an error
  jax.config.update("jax_enable_x64", True)
  common.use_compilation_cache()
  mj_model = compare.optimal(mj_model)
  if args.grad:
    return _check_gradients(mj_model, args)
  engine = compare.Engine(mj_model)

  d = common.initial_data(mj_model)
  qpos, qvel = common.random_state(mj_model, 1, args.seed)
  d.qpos[:], d.qvel[:] = qpos[0], qvel[0]
  ctrl = common.random_control(mj_model, args.steps, 1, args.seed)[:, 0]
  worst: dict[str, tuple[int, compare.FieldError]] = {}
  first: tuple[int, compare.FieldError] | None = None
  most_contacts = most_rows = 0
  for step in tqdm.trange(args.steps, desc="steps", unit="step", leave=False, disable=None):
    d.ctrl[:] = ctrl[step]
    for error in compare.compare_stages(mj_model, d, engine=engine):
      if error.field not in worst or error.worst > worst[error.field][1].worst:
        worst[error.field] = step, error
      if first is None and not error.ok:
        first = step, error
    # step with C, so that one difference does not cause differences in later steps
    common.quiet(mujoco.mj_step, mj_model, d)
    most_contacts, most_rows = max(most_contacts, d.ncon), max(most_rows, d.nefc)

  if most_contacts > engine.m.plan.sizes["ncon"]:
    text = f" the model has {engine.m.capacity}, and C had up to {most_contacts} contacts"
    common.stderr.print(common.headed("contacts are missing:", "bold yellow", text), soft_wrap=True)
  _print_table(worst, args.all)
  common.stdout.print(
    f"{args.model}: {args.steps} states of C's trajectory, up to {most_contacts} contacts and {most_rows} rows.",
    soft_wrap=True,
  )
  if first is None:
    text = ": every stage field agrees with MuJoCo C within its tolerance"
    common.stdout.print(common.headed("equal", "bold green", text))
    return 0
  step, error = first
  common.stdout.print(common.headed("different", "bold red", f", first at step {step} in {error}"), soft_wrap=True)
  return 1


def _check_gradients(mj_model: mujoco.MjModel, args: argparse.Namespace) -> int:
  """Check gradients and print a line per block of inputs; exit code 1 if a gradient is wrong."""
  d = common.initial_data(mj_model)
  for ctrl in common.random_control(mj_model, args.steps, 1, args.seed)[:, 0]:
    d.ctrl[:] = ctrl
    common.quiet(mujoco.mj_step, mj_model, d)
  m = mjx.put_model(mj_model)
  found = mjx.check_grad(m, mjx.put_data(m, d), seed=args.seed, write=common.stdout.print)
  bad = [x.block for x in found if not x.ok]
  common.stdout.print(f"{args.model}: gradients of a step, {args.steps} steps after the start.", soft_wrap=True)
  if bad:
    common.stdout.print(common.headed("wrong", "bold red", f": {', '.join(bad)}"))
    return 1
  common.stdout.print(common.headed("equal", "bold green", ": gradients agree with differences wherever the step is smooth"))
  return 0


def _print_table(worst: dict[str, tuple[int, compare.FieldError]], everything: bool) -> None:
  """Print one line per field: its worst relative error, the element and the step."""
  table = rich.table.Table(box=None, header_style="bold")
  table.add_column("stage")
  table.add_column("field")
  table.add_column("worst", justify="right")
  table.add_column("allowed", justify="right")
  table.add_column("step", justify="right")
  table.add_column("where", overflow="fold")
  order = {field: i for i, field in enumerate(f for fields in compare.STAGE_FIELDS.values() for f in fields)}
  exact, stage = 0, ""
  for field in sorted(worst, key=order.__getitem__):
    step, error = worst[field]
    if error.worst == 0 and not everything:
      exact += 1
      continue
    style = None if error.ok else "bold red"
    table.add_row(
      error.stage if error.stage != stage else "",
      field,
      f"{error.worst:.1e}",
      f"{error.tolerance:.0e}",
      str(step),
      error.name,
      style=style,
    )
    stage = error.stage
  if table.row_count:
    common.stdout.print(table)
  if exact:
    common.stdout.print(f"{'and ' if table.row_count else ''}{exact} fields without any difference")
