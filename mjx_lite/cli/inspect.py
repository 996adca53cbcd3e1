"""`mjx-lite inspect MODEL`: sizes, slots, memory, stage times, and what is unsupported.

Tests: tests/cli/test_commands.py.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import rich.table

import mjx_lite as mjx
from mjx_lite.cli import common, timing
from mjx_lite.compiler import disk

_SIZES = ("nq", "nv", "nu", "na", "nbody", "njnt", "ngeom", "nsite", "ncam", "nmocap", "ntree")

# stages in the order of a step; the last entry is the whole step
STAGES = (
  *("kinematics", "com_pos", "camlight", "crb", "factor_m", "collision", "transmission", "make_constraint"),
  *("com_vel", "passive", "rne", "fwd_actuation", "fwd_acceleration", "solve", "euler", "step"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's arguments."""
  parser.add_argument("model", metavar="MODEL.xml", help="MJCF, URDF or MJB file, or 'humanoid'")
  parser.add_argument("--worlds", type=common.positive_int, default=128, help="worlds in the timed stages (128)")
  parser.add_argument("--no-times", action="store_true", help="compile and time nothing")


def run(args: argparse.Namespace) -> int:
  """Print sizes, slots, memory, paths and stage times; exit code 1 if the model is not supported."""
  mj_model = common.load_model(args.model)
  sizes = ", ".join(f"{x} {getattr(mj_model, x)}" for x in _SIZES)
  common.stdout.print(common.headed(args.model, "bold", f": {sizes}"))
  try:
    m = mjx.put_model(mj_model)
  except NotImplementedError as error:
    _print_unsupported(error)
    return 1
  d = mjx.make_data(m)
  _print_slots(mj_model, m, d)
  common.stdout.print("unsupported: nothing that this model uses")
  if not args.no_times:
    with common.stdout.status("finding the path of each function"):
      found = mjx.explain(m)
    common.stdout.print(str(found), markup=False, highlight=False)
    _print_times(mj_model, m, args.worlds)
  return 0


def _print_unsupported(error: NotImplementedError) -> None:
  """Print the unsupported elements of the model."""
  problems = getattr(error, "problems", None)
  if problems is None:
    common.stdout.print(common.headed("unsupported:", "bold red", f" {error}"))
    return
  table = rich.table.Table(title=f"{len(problems)} unsupported", title_justify="left", title_style="bold red", box=None)
  for column in ("element", "attribute", "value", "instead"):
    table.add_column(column, overflow="fold")
  for p in problems:
    table.add_row(*(str(x) for x in (p.element, p.attribute, p.what, p.instead)))
  common.stdout.print(table)


def _print_slots(mj_model: mujoco.MjModel, m: Any, d: Any) -> None:
  """Print candidate pairs and possible contacts by the types of the two geoms, slots, rows, and memory."""
  # the plan has resolved explicit pairs and contact masks already
  slots = m.plan.collision
  kinds = [tuple(int(mj_model.geom_type[g]) for g in geoms) for geoms in zip(slots.geom1, slots.geom2, strict=True)]
  possible = np.zeros(len(kinds), int)
  for group in slots.groups:
    possible[group.pair] = group.tables.ncon
  table = rich.table.Table(box=None, header_style="bold")
  table.add_column("geom types")
  for column in ("candidate pairs", "possible contacts"):
    table.add_column(column, justify="right")
  for kind in sorted(set(kinds)):
    selected = np.array([k == kind for k in kinds])
    name = " - ".join(mujoco.mjtGeom(t).name.removeprefix("mjGEOM_").lower() for t in kind)
    table.add_row(name, str(selected.sum()), str(possible[selected].sum()))
  table.add_row("all", str(len(kinds)), str(possible.sum()), style="bold")
  common.stdout.print(table)
  common.stdout.print(f"contact slots: {m.plan.sizes['ncon']}, as of put_model(m, {m.capacity})", soft_wrap=True)
  bounded = ", ".join(f"{g.name} {len(g.pair)}" for g in slots.groups if g.bounded)
  if bounded:
    common.stdout.print(f"pairs by group, which put_model's pair_max can bound: {bounded}")
  nefc = int(d.efc_D.shape[0])
  contacts = int(np.sum(m.plan.rows.type >= int(mujoco.mjtConstraint.mjCNSTR_CONTACT_FRICTIONLESS)))
  common.stdout.print(f"constraint rows: {nefc} slots, {contacts} of contacts, {nefc - contacts} of limits and friction")
  every, state = timing.leaf_bytes(d), timing.leaf_bytes([d.qpos, d.qvel, d.act, d.qacc_warmstart, d.ctrl, d.time])
  common.stdout.print(
    f"memory: {every:,} bytes of Data per world ({every * 1024 / 2**20:.1f} MiB in 1,024 worlds), of which "
    f"{state:,} are state and control; {timing.leaf_bytes(m):,} bytes of Model"
  )


def _print_times(mj_model: mujoco.MjModel, m: Any, worlds: int) -> None:
  """Time every stage separately from random states, and print a table."""
  qpos, qvel = common.random_state(mj_model, worlds, 0)
  d = common.batched_data(mj_model, m, qpos, qvel)
  table = rich.table.Table(box=None, header_style="bold")
  table.add_column("stage")
  for column in ("trace s", "compile s", f"µs per world ({worlds} worlds)", "instructions", "fusions", "kernels"):
    table.add_column(column, justify="right")
  with common.stdout.status("compiling") as status, disk.unused():
    for name in STAGES:
      status.update(f"compiling {name}")
      batched = jax.vmap(getattr(mjx, name), in_axes=(None, 0))
      program = timing.compile_program(batched, m, d)
      program.call(m, d)
      spent = min(timing.timed(program.call, m, d)[1] for _ in range(5))
      table.add_row(
        name,
        f"{program.trace_s:.2f}",
        f"{program.compile_s:.2f}",
        f"{1e6 * spent / worlds:.2f}",
        f"{program.instructions:,}",
        f"{program.fusions:,}",
        f"{program.kernels:,}",
        style="bold" if name == "step" else None,
      )
  common.stdout.print(table)
  dtype = jnp.zeros(()).dtype
  common.stdout.print(f"a stage called alone rebuilds what it needs; step shares it. {dtype}.")
