"""Contacts, accelerations and compile times of whole models beside MuJoCo C, one row of a table per model.

    python benchmarks/parity.py unitree_go1/scene.xml some_robot.xml
    python benchmarks/parity.py gym_spot walker_rodent                     # names of tests/lib/robots.py, set on a floor

C simulates states under random controls; one program, the step of a batch, is compiled and compared in these. See README.md.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import mujoco
import numpy as np
import run

import mjx_lite as mjx
from mjx_lite.cli import common, timing

robots = run.robots()
SLOTS = 64  # a model with more slots than these gets suggested capacities
TIGHT = 1e-12, 500  # C's tolerance and iterations for convex pairs, when it searches to the end
SAME = 1e-3  # [m] contacts of a pair of geoms that are farther from each other are two


class State(NamedTuple):
  """A state of C's, contacts of its own and of an endless search, and the acceleration with the latter."""

  data: mujoco.MjData
  ncon: int
  geom: np.ndarray
  dist: np.ndarray
  pos: np.ndarray
  normal: np.ndarray
  qacc: np.ndarray


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("models", nargs="+", help="paths, or names of run.py or tests/lib/robots.py")
  parser.add_argument("--states", type=int, default=48)
  parser.add_argument("--timeout", type=float, default=600, help="of one model [s]")
  parser.add_argument("--json", type=pathlib.Path, help="file to append to, a line per model, with the worst contacts")
  parser.add_argument("--here", action="store_true", help="in this process, instead of one for each model")
  return parser.parse_args()


def load(name: str) -> mujoco.MjModel:
  """A model that is solved to the optimum, where its acceleration is unique."""
  model = run.load(name)
  if model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:  # leaves contacts of its last stage
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
  model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
  model.opt.tolerance, model.opt.ls_tolerance, model.opt.noslip_iterations = 0, 1e-6, 0
  model.opt.iterations, model.opt.ls_iterations = 100, 100
  model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
  return model


def sample(model: mujoco.MjModel, number: int, every: float = 0.2) -> list[State]:
  """States along trajectories, one every so many seconds; some begin with the joints anywhere in their ranges."""
  rng, data = np.random.default_rng(0), mujoco.MjData(model)
  low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]])
  states: list[State] = []
  while len(states) < number:
    if len(states) % 8 == 0:
      robots.start(model, data)
    if len(states) % 16 == 8:
      robots._fold(model, data, rng)
    data.ctrl[:] = rng.uniform(low, high)
    mujoco.mj_step(model, data, max(1, round(every / model.opt.timestep)))
    data.qacc_warmstart[:] = 0
    given = model.opt.ccd_tolerance, model.opt.ccd_iterations
    seen = data.__copy__()
    mujoco.mj_forward(model, seen)
    ncon = seen.ncon
    model.opt.ccd_tolerance, model.opt.ccd_iterations = TIGHT
    mujoco.mj_forward(model, seen)
    model.opt.ccd_tolerance, model.opt.ccd_iterations = given
    c = seen.contact
    states.append(State(data.__copy__(), ncon, *(x.copy() for x in (c.geom, c.dist, c.pos, c.frame[:, :3], seen.qacc))))
  return states


class Match(NamedTuple):
  """A contact of both: types of its geoms, errors."""

  kind: str
  state: int
  geom: tuple[int, int]
  depth: float
  dist: float
  pos: float
  normal: float


def matched(model: mujoco.MjModel, k: int, state: State, ours: tuple) -> tuple[list[Match], list]:
  """Contacts of both (ours: geoms, dist, pos, normal), and pairs of geoms that have not as many of ours as of C's."""
  kind, sides = {}, []
  for side in (ours, (state.geom, state.dist, state.pos, state.normal)):
    found = collections.defaultdict(list)
    for g, *rest in zip(side[0].tolist(), *side[1:], strict=True):
      kind[tuple(g)] = "-".join(mujoco.mjtGeom(model.geom_type[x]).name[7:].lower() for x in g)
      found[tuple(g)].append(rest)
    sides.append(found)
  both, odd = [], []
  for pair, name in kind.items():
    mine, theirs = ([*side[pair]] for side in sides)
    if len(mine) != len(theirs):
      odd.append((k, name, pair, len(mine), len(theirs)))
    for x, p, n in theirs if mine else []:
      near = mine[int(np.argmin([np.linalg.norm(o[1] - p) for o in mine]))]
      off = float(np.linalg.norm(near[1] - p))
      if len(theirs) == 1 or off < SAME:
        both.append(Match(name, k, pair, float(x), float(abs(near[0] - x)), off, float(np.linalg.norm(near[2] - n))))
  return both, odd


def measure(name: str, number: int) -> dict:
  """All that is known of a model after one program."""
  model = load(name)
  row = {"model": name, "nbody": model.nbody, "ngeom": model.ngeom, "nv": model.nv}
  began = time.perf_counter()
  states = sample(model, number)
  row["sample_s"] = round(time.perf_counter() - began, 1)
  began = time.perf_counter()
  m = mjx.put_model(model, ncon_max=1)  # refuses here what it does not support
  row["pairs"] = len(m.plan.collision.geom1)
  options = {}
  if sum(max(1, len(g.pair)) for g in m.plan.collision.groups) * 4 > SLOTS:
    options = mjx.suggest_capacity(model, np.stack([s.data.qpos for s in states]))
  m = mjx.put_model(model, **options)
  row["put_s"], row["capacity"] = round(time.perf_counter() - began, 1), bool(options)
  d = jax.tree.map(lambda *x: np.stack(x), *(jax.tree.map(np.asarray, mjx.put_data(m, s.data)) for s in states))
  cpu = time.process_time()
  program = timing.compile_program(jax.vmap(mjx.step, in_axes=(None, 0)), m, d)
  row |= {"trace_s": program.trace_s, "compile_s": program.compile_s, "cpu_s": time.process_time() - cpu}
  began = time.perf_counter()
  d = jax.tree.map(np.asarray, program.call(m, d))
  row["run_s"] = round(time.perf_counter() - began, 2)
  return row | compare(model, states, d)


def compare(model: mujoco.MjModel, states: list[State], d) -> dict:
  """How far the batch of Data after a step is from C's."""
  c = d.contact
  geoms, both, odd, same, stock, error = np.broadcast_to(c.geom, (*c.dist.shape, 2)), [], [], [], [], []
  for k, state in enumerate(states):
    real = c.exclude[k] >= 0
    found, wrong = matched(model, k, state, tuple(x[real] for x in (geoms[k], c.dist[k], c.pos[k], c.frame[k][:, 0])))
    both, odd = both + found, odd + wrong
    same.append(not wrong)
    stock.append(int(real.sum()) == state.ncon)
    scale = 1 + np.abs(state.qacc).max(initial=0)
    error.append(np.abs(d.qacc[k] - state.qacc).max(initial=0) / scale)
  flags = {f.name: int((d.status.bits >> int(f) & 1).sum()) for f in mjx.Warning}
  by_kind = collections.defaultdict(list)
  for x in both:
    by_kind[x.kind].append(x)
  return {
    "slots": c.dist.shape[1], "ncon": float(np.mean([len(s.dist) for s in states])), "same": float(np.mean(same)),
    "same_stock": float(np.mean(stock)), "contacts": len(both),
    "close": float(np.mean([x.dist < 2e-6 for x in both])) if both else 1.0,
    "turned": float(np.mean([x.normal < SAME for x in both])) if both else 1.0,
    "dist": max((x.dist for x in both), default=0.0), "normal": max((x.normal for x in both), default=0.0),
    "pos": max((x.pos for x in both), default=0.0), "qacc_median": float(np.median(error)), "qacc": float(np.max(error)),
    "qacc_same": float(max((e for e, s in zip(error, same, strict=True) if s), default=0)),
    "flags": {k: n for k, n in flags.items() if n},
    "kinds": {k: [len(v), max(x.dist for x in v), max(x.normal for x in v)] for k, v in sorted(by_kind.items())},
    "odd": odd[:20], "worst": [x._asdict() for x in sorted(both, key=lambda x: -x.dist)[:8] if x.dist > 1e-8],
    "worst_normal": [x._asdict() for x in sorted(both, key=lambda x: -x.normal)[:8] if x.normal > 1e-5],
  }  # fmt: skip


def line(row: dict) -> str:
  name = "/".join(pathlib.PurePath(row["model"]).parts[-2:])
  if "refused" in row:
    return f"| {name} | {' '.join(row['refused'].split())} |"
  cells = (
    name, row["nbody"], row["ngeom"], row["pairs"], f"{row['slots']}{'' if row['capacity'] else ' (all)'}",
    f"{row['trace_s'] + row['compile_s']:.0f} ({row['cpu_s']:.0f})", f"{row['ncon']:.1f}", f"{row['same']:.0%}",
    f"{row['dist']:.0e}", f"{row['normal']:.0e}", f"{row['qacc_median']:.0e}", f"{row['qacc']:.0e}",
  )  # fmt: skip
  return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
  args = arguments()
  bad = 0
  for name in args.models:
    if args.here:
      jax.config.update("jax_enable_x64", True)
      try:
        row = measure(name, args.states)
      # refused by the engine, or by MuJoCo, which raises ValueError for a robot; the last: no such file, or no model
      except (NotImplementedError, ValueError, common.BadInput) as error:
        row = {"model": name, "refused": f"{type(error).__name__}: {error}"}
      print(json.dumps(row, default=float))
      continue
    command = [sys.executable, __file__, "--here", "--states", str(args.states), name]
    try:
      done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
      last = done.stdout.strip().splitlines()[-1:] if done.returncode == 0 else []
      row = json.loads(last[0]) if last else {"model": name, "refused": f"failed: {done.stderr.strip()[-600:]}"}
    except subprocess.TimeoutExpired:
      row = {"model": name, "refused": f"not done after {args.timeout:.0f} s"}
    print(line(row), flush=True)
    bad += "refused" in row
    if args.json:
      with args.json.open("a") as file:
        file.write(json.dumps(row) + "\n")
  return int(bad > 0)


if __name__ == "__main__":
  sys.exit(main())
