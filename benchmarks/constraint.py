"""Times the rows and the solver alone: `mjx_lite` beside `make_constraint` and `solve` of mujoco.mjx, in alternation.

    python benchmarks/constraint.py                                       # the humanoid of mujoco-mjx, 1,024 worlds
    python benchmarks/constraint.py --scenes humanoids_2 --solver CG --iterations 20
    python benchmarks/constraint.py --devices 2                           # `inside` on both cores

Each engine in a process of its own, as in run.py. Both start from the same states, in which contacts are made and warm starts
lie behind. Twice: `alone`, from Data in the layout that each engine's step has inside, the worlds last or first; and `inside`,
where they are: the time of forward dynamics with them less that without. See README.md.
"""

import argparse
import functools
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from run import SCENES, SOLVERS, Worker, choose_solver, import_engine, load

import mjx_lite
from mjx_lite.batching import worlds
from mjx_lite.cli import common, timing
from mjx_lite.pipeline import acceleration, actuation, constraint, dynamics, metric

SOLVED = ("qacc", "qfrc_constraint")


def _ours(m, d):
  """Rows and solution, as a step has them."""
  d, rows = constraint.build_rows(m, d)
  d = acceleration.solve_rows(m, d, rows, metric.effective_metric(m, d))
  return {k: getattr(d, k) for k in SOLVED}


def _theirs(m, d):
  from mujoco.mjx._src import constraint, solver

  d = solver.solve(m, constraint.make_constraint(m, d))
  return {k: getattr(d, k) for k in SOLVED}


def _our_acceleration(m, d, constrained):
  d, work = dynamics.until_velocity(m, d, skip_sensor=True, energies=False)
  d = acceleration.smooth_acceleration(m, actuation.fwd_actuation(m, d), work.factor)
  return (acceleration.solve_rows(m, d, work.rows).qacc if constrained else d.qacc_smooth), d.contact.frame


def _their_acceleration(m, d, constrained):
  from mujoco.mjx._src import forward, solver

  d = forward.fwd_acceleration(m, forward.fwd_actuation(m, forward.fwd_velocity(m, forward.fwd_position(m, d))))
  return (solver.solve(m, d).qacc if constrained else d.qacc_smooth), d._impl.contact.frame


def _inside(acceleration, constrained, steps):
  """Accelerations some times over, each in states that the last ones have moved by a millionth."""

  def run(m, d):
    def body(last, _):
      scale = 1 + 1e-6 * jnp.tanh(jnp.mean(last, axis=1, keepdims=True))
      moved = d.replace(qpos=d.qpos * scale, qvel=d.qvel * scale)
      found, frame = jax.vmap(lambda m, d: acceleration(m, d, constrained=constrained), in_axes=(None, 0))(m, moved)
      # contacts are wanted without the solver, too
      return found + 1e-30 * jnp.sum(frame[:, :1, 0, 0], axis=1, keepdims=True), None

    return jax.lax.scan(body, d.qvel, None, length=steps)[0]

  if jax.device_count() == 1:
    return run
  mesh, spec = _mesh(), jax.sharding.PartitionSpec
  split = spec("worlds")
  return jax.shard_map(run, mesh=mesh, in_specs=(spec(), split), out_specs=split, check_vma=False)


def _mesh():
  return jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",))


class Stage:
  """The stage of an engine, alone and inside forward dynamics, compiled, and the Data before it."""

  def __init__(self, name, scene, args, state):
    mjx, mj_model, steps = import_engine(name), _load(scene, args), args.steps
    stage, acceleration, self.axis = _stage(name)
    axis, jit = self.axis, getattr(mjx, "jit", jax.jit)
    self.m = mjx.put_model(mj_model)
    single, count = mjx.make_data(self.m), len(state["qpos"])
    d = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), single)
    d = d.replace(**{k: jnp.asarray(x) for k, x in state.items()})
    mesh, spec = _mesh(), jax.sharding.PartitionSpec
    place = (jax.sharding.NamedSharding(mesh, x) for x in (spec(), spec("worlds")))
    self.steps, self.start = steps, [jax.device_put(x, where) for x, where in zip((self.m, d), place, strict=True)]
    self.inside = {c: timing.compile_program(_inside(acceleration, c, steps), *self.start, jit=jit) for c in (True, False)}
    self.d = jax.block_until_ready(jit(jax.vmap(mjx.forward, in_axes=(None, 0), out_axes=axis))(self.m, d))
    self.program = timing.compile_program(jax.vmap(stage, in_axes=(None, axis), out_axes=axis), self.m, self.d, jit=jit)

  def told(self):
    """What it cost to compile, the number of its kernels, and the accelerations (worlds, nv) that it finds."""
    cost = {"compile_s": self.program.trace_s + self.program.compile_s, "kernels": self.program.kernels}
    found = self.program.call(self.m, self.d)
    qacc, constrained = (np.moveaxis(np.asarray(x), self.axis, 0) for x in (found["qacc"], found["qfrc_constraint"]))
    return cost, qacc, constrained

  def run(self):
    """Seconds and CPU seconds of the stage alone."""
    cpu = time.process_time()
    spent = timing.timed(self.program.call, self.m, self.d)[1]
    return spent, time.process_time() - cpu

  def run_inside(self):
    """Seconds and CPU seconds of one forward dynamics with the stage, and without it."""
    found = []
    for program in self.inside.values():
      cpu = time.process_time()
      spent = timing.timed(program.call, *self.start)[1]
      found += [spent / self.steps, (time.process_time() - cpu) / self.steps]
    return found


def states(mj_model, number, steps):
  """States (number, ...) after some steps under random controls."""
  m = mjx_lite.put_model(mj_model)
  d = common.batched_data(mj_model, m, *common.random_state(mj_model, number, 0))
  ctrl = jnp.asarray(common.random_control(mj_model, steps, number, 0))
  d = mjx_lite.jit(common.rollout)(m, d, ctrl)[0]
  return {k: np.asarray(getattr(d, k)) for k in ("qpos", "qvel", "act", "qacc_warmstart")} | {"ctrl": np.asarray(ctrl[-1])}


def _load(scene, args):
  model = load(scene)
  choose_solver(model, args.solver, args.iterations)
  return model


def _stage(name):
  """The stage of an engine, its acceleration, and the axis of the worlds."""
  if name == "mjx_lite":
    return *map(worlds.one_world, (_ours, _our_acceleration)), -1
  return _theirs, _their_acceleration, 0


def compare(scene, args):
  """One record per engine."""
  model = _load(scene, args)
  make = functools.partial(Stage, state=states(model, args.worlds, args.settle))
  stages = {name: Worker(name, make, scene, args) for name in args.engines}
  told = {name: s.call("told") for name, s in stages.items()}
  spent, inside = {name: [] for name in stages}, {name: [] for name in stages}
  for _ in range(args.repeats):
    for name, s in stages.items():
      spent[name].append(s.call("run"))
      inside[name].append(s.call("run_inside"))
  for s in stages.values():
    s.close()
  first = told[args.engines[0]][1]
  records = []
  for name, (cost, qacc, constrained) in told.items():
    wall, cpu = zip(*spent[name], strict=True)
    gap = np.abs(qacc - first).max(1) / np.abs(first).max(1)
    per = 1e6 / args.worlds
    both, both_cpu, rest, rest_cpu = per * np.array(inside[name]).T
    records.append(dict(
      scene=scene, engine=name, worlds=args.worlds, solver=int(model.opt.solver), iterations=int(model.opt.iterations),
      **cost, us_median=per * statistics.median(wall),
      us_best=per * min(wall), cpu_us_best=per * min(cpu), inside_us_median=float(np.median(both) - np.median(rest)),
      inside_us_best=float(both.min() - rest.min()), inside_cpu_us_best=float(both_cpu.min() - rest_cpu.min()),
      forward_us_best=float(both.min()), median_gap=float(np.median(gap)),
      constrained=float(np.mean(np.abs(constrained).max(1) > 0)),
    ))  # fmt: skip
  for r in records[1:]:
    keys = ("us_median", "us_best", "cpu_us_best", "inside_us_median", "inside_us_best", "inside_cpu_us_best")
    r[f"over_{args.engines[0]}"] = [round(r[k] / records[0][k], 2) for k in keys]
  return records


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--scenes", nargs="+", default=["humanoid"], help=f"of {', '.join(SCENES)}, or paths of models")
  parser.add_argument("--worlds", type=int, default=1024)
  parser.add_argument("--settle", type=int, default=100, help="steps before the states")
  parser.add_argument("--steps", type=int, default=20, help="forward dynamics in a program")
  parser.add_argument("--repeats", type=int, default=20)
  parser.add_argument("--engines", nargs="+", choices=("mjx_lite", "mjx"), default=["mjx_lite", "mjx"])
  parser.add_argument("--devices", type=int, default=1, help="host devices to divide the worlds among")
  parser.add_argument("--solver", choices=SOLVERS, help="instead of the model's")
  parser.add_argument("--iterations", type=int, help="instead of the model's")
  args = parser.parse_args()
  for scene in args.scenes:
    for record in compare(scene, args):
      print(json.dumps({k: round(x, 4) if isinstance(x, float) else x for k, x in record.items()}), flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
