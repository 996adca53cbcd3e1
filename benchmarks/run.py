"""Times mjx_lite, mujoco.mjx and mujoco.batch.Batch beside each other, each in a process of its own and in alternation.

    python benchmarks/run.py --scenes humanoid --worlds 1024 --steps 100 --repeats 5 --json results.jsonl

See README.md in this folder for the protocols and the columns.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.util
import itertools
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENGINES = ("mjx_lite", "mjx", "batch")
PROTOCOLS = ("rollout", "scan")
SOLVERS = ("NEWTON", "CG", "PGS")
DTYPES = ("float32", "float64")  # mujoco.mjx runs with the first, C computes with the second
_PATIENCE = 600  # [s] with an engine: mujoco.mjx may still deadlock, see `_environment`


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--scenes", nargs="+", default=["humanoid"], help=f"of {', '.join(SCENES)}, robots, or paths")
  parser.add_argument("--worlds", type=int, default=1024)
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--compile-repeats", type=int, default=2)
  parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
  parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
  parser.add_argument("--devices", type=int, default=1, help="host devices to divide the worlds among (JAX)")
  parser.add_argument("--cores", type=int, nargs="+", help="numbers of cores, one run each; all cores if not given")
  parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="of mjx_lite, one run each")
  parser.add_argument("--solver", choices=SOLVERS, help="instead of the model's, for all engines")
  parser.add_argument("--iterations", type=int, help="of the solver, instead of the model's")
  parser.add_argument("--capacity", action="store_true", help="mjx_lite with the capacities that `suggest_capacity` finds")
  parser.add_argument("--deviation", type=float, default=0.5, help="of the random controls, in parts of their range")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--json", type=pathlib.Path, help="file to append one JSON line per scene and engine to")
  return parser.parse_args()


def _package_folder(module: str) -> pathlib.Path | None:
  """The folder of an installed module, which is not imported."""
  try:
    spec = importlib.util.find_spec(module)
  except ModuleNotFoundError:
    return None
  return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def _of(module: str, file: str) -> Callable[[], pathlib.Path]:
  """A file of a package."""
  return lambda: (_package_folder(module) or pathlib.Path(f"{module} is not installed")) / file


# name -> where the model is; a path on the command line is a scene too
SCENES: dict[str, Callable[[], pathlib.Path]] = {
  **{name: _of("mujoco.mjx", f"test_data/{file}.xml") for name, file in {
    "humanoid": "humanoid/humanoid", **{f"humanoids_{k}": f"humanoid/{k:02}_humanoids" for k in range(1, 11)},
    "quadruped": "barkour_v0/assets/barkour_v0_mjx", "hand": "shadow_hand/scene_right", "pendula": "pendula",
  }.items()},
  **{name: _of("gymnasium", f"envs/mujoco/assets/{name}.xml") for name in ("ant", "half_cheetah", "hopper", "walker2d")},
  "myo_elbow": _of("myo_sim", "models/legacy/elbow/myoelbow_2dof6muscles.xml"),
  "shipped": lambda: ROOT / "mjx_lite" / "models" / "humanoid.xml",
  "pile_20": lambda: ROOT / "benchmarks" / "pile_20.xml",
}  # fmt: skip


@functools.cache
def robots() -> Any:
  """The module tests/lib/robots.py."""
  sys.path.insert(0, str(ROOT / "tests" / "lib"))
  return importlib.import_module("robots")


def load(scene: str) -> Any:
  """The MjModel of a scene, by its name here, in wheels.py or in tests/lib/robots.py (on a floor), or by its path."""
  import mujoco
  import wheels

  from mjx_lite.cli import common

  if scene in wheels.MODELS:
    return robots().on_floor(mujoco.MjSpec.from_file(str(wheels.file_of(scene))))
  if scene in robots().ROBOTS:
    return robots().load(scene)
  return common.load_model(SCENES[scene]() if scene in SCENES else pathlib.Path(scene))


def _environment(engine: str, args: argparse.Namespace) -> dict[str, str]:
  """What has to be set before JAX starts: devices, and as many threads for the kernels of one as serve the engine best.

  `NPROC` is where jaxlib reads the number of threads from. Where each core has a device, more than one divide kernels for
  nothing. mujoco.mjx calls LAPACK inside a loop, and jaxlib 0.10 deadlocks there with fewer threads than twice the cores.
  """
  found = {"MJX_LITE_CACHE": "0"}  # the compile time is a result
  if args.devices > 1:
    flag = f"--xla_force_host_platform_device_count={args.devices}"
    found["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
  cores = cores_of(args)
  threads = {"mjx_lite": 1 if args.devices > 1 else cores, "mjx": 2 * max(cores, args.devices)}
  if engine in threads and "NPROC" not in os.environ:
    found["NPROC"] = str(threads[engine])
  if engine in threads:
    found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # on a GPU they share its memory
  return found


def _all_cores() -> int:
  """The number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of(args: argparse.Namespace) -> int:
  """The number of cores of a run."""
  return getattr(args, "ncore", 0) or _all_cores()


def choose_solver(mj_model: Any, solver: str | None, iterations: int | None) -> None:
  """Puts another solver and number of iterations into a model, where they are given."""
  import mujoco

  if solver is not None:
    mj_model.opt.solver = mujoco.mjtSolver.__members__[f"mjSOL_{solver}"]
  if iterations is not None:
    mj_model.opt.iterations = iterations


@dataclasses.dataclass
class Inputs:
  """The same for all engines: first states and controls, float32."""

  mj_model: Any
  qpos: Any  # (worlds, nq)
  qvel: Any  # (worlds, nv)
  ctrl: Any  # (steps, worlds, nu)


def capacity(inputs: Inputs, worlds: int = 16) -> Any:
  """Capacities from rollouts of some of the worlds by C."""
  import mujoco
  import numpy as np

  import mjx_lite

  data, samples = mujoco.MjData(inputs.mj_model), []
  for world in range(min(worlds, len(inputs.qpos))):
    mujoco.mj_resetData(inputs.mj_model, data)
    data.qpos[:], data.qvel[:] = inputs.qpos[world], inputs.qvel[world]
    for step, ctrl in enumerate(inputs.ctrl[:, world]):
      data.ctrl[:] = ctrl
      mujoco.mj_step(inputs.mj_model, data)
      if step % 10 == 9 or step == len(inputs.ctrl) - 1:
        samples.append(data.qpos.copy())
  return mjx_lite.suggest_capacity(inputs.mj_model, np.stack(samples))


class JaxEngine:
  """mjx_lite or mujoco.mjx, which share their calls; float32."""

  def __init__(self, name: str, inputs: Inputs, args: argparse.Namespace):
    import jax
    import jax.numpy as jnp

    self.name, self.args = name, args
    self.mjx = import_engine(name)
    bounds = capacity(inputs) if args.capacity and name == "mjx_lite" else {}
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    self.m = self.mjx.put_model(inputs.mj_model, **bounds)
    single = self.mjx.make_data(self.m)
    worlds = inputs.qpos.shape[0]
    d = jax.tree.map(lambda x: jnp.broadcast_to(x, (worlds, *jnp.shape(x))), single)
    real = single.qpos.dtype
    self.d = d.replace(qpos=jnp.asarray(inputs.qpos, real), qvel=jnp.asarray(inputs.qvel, real))
    self.ctrl, self.first = jnp.asarray(inputs.ctrl, real), jnp.asarray(inputs.ctrl[:1], real)
    if args.devices > 1:
      mesh = jax.make_mesh((args.devices,), ("worlds",))
      split = lambda *spec: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))  # noqa: E731
      self.mesh = mesh
      self.m = jax.device_put(self.m, split())
      self.d = jax.device_put(self.d, split("worlds"))
      self.ctrl, self.first = jax.device_put((self.ctrl, self.first), split(None, "worlds"))
    self.programs: dict[str, Any] = {}
    self.steps: list[Any] = []

  def compile_step(self) -> None:
    """Compiles one step of all worlds."""
    self.steps.append(self._compile(self._step, self.first))

  def _compile(self, function, ctrl):
    import jax

    from mjx_lite.cli import timing

    jit = getattr(self.mjx, "jit", jax.jit)  # each engine's own documented way
    return timing.compile_program(self._divided(function), self.m, self.d, ctrl, jit=jit)

  def compile(self) -> dict[str, Any]:
    """Compiles the protocols; returns what they cost, and the least that the step cost."""
    import jax

    from mjx_lite.cli import timing

    step = min(self.steps, key=lambda p: p.trace_s + p.compile_s)
    for name in self.args.protocols:
      self.programs[name] = self._compile(getattr(self, "_" + name), self.ctrl)
    return {
      "device": jax.devices()[0].device_kind,
      "NPROC": os.environ.get("NPROC"),
      "step_seconds": [(p.trace_s, p.compile_s) for p in self.steps],
      "trace_s": step.trace_s,
      "compile_s": step.compile_s,
      "instructions": step.instructions,
      "fusions": step.fusions,
      "kernels": step.kernels,
      "launches": step.launches,
      "bytes_per_world": timing.leaf_bytes(self.d) // self.d.qpos.shape[0],
      **{f"{name}_peak_bytes_per_world": p.peak_bytes // self.d.qpos.shape[0] for name, p in self.programs.items()},
      **{f"{name}_trace_s": p.trace_s for name, p in self.programs.items()},
      **{f"{name}_compile_s": p.compile_s for name, p in self.programs.items()},
    }

  def run(self, protocol: str) -> tuple[float, Any]:
    """One rollout: its time [s] and the last qpos (worlds, nq)."""
    import numpy as np

    from mjx_lite.cli import timing

    result, spent = timing.timed(self.programs[protocol].call, self.m, self.d, self.ctrl)
    return spent, np.asarray(result[0].qpos)

  def _step(self, m, d, ctrl):
    import jax

    return (jax.vmap(self.mjx.step, in_axes=(None, 0))(m, d.replace(ctrl=ctrl[0])),)

  def _scan(self, m, d, ctrl):
    """Protocol (b): carry all of Data."""
    import jax

    step = jax.vmap(self.mjx.step, in_axes=(None, 0))
    return jax.lax.scan(lambda d, u: (step(m, d.replace(ctrl=u)), None), d, ctrl)

  def _rollout(self, m, d, ctrl):
    """Protocol (a): carry the integration state, record qpos and qvel."""
    import jax

    if hasattr(self.mjx, "rollout"):
      from mjx_lite.cli import common

      return common.rollout(m, d, ctrl)
    step = jax.vmap(self.mjx.step, in_axes=(None, 0))
    names = ("time", "qpos", "qvel", "act", "qacc_warmstart")

    def body(state, u):
      after = step(m, d.replace(ctrl=u, **state))
      return {name: getattr(after, name) for name in names}, (after.qpos, after.qvel)

    state, record = jax.lax.scan(body, {name: getattr(d, name) for name in names}, ctrl)
    return d.replace(**state), record

  def _divided(self, function):
    """The function with the worlds divided among the host devices, each running by itself."""
    if self.args.devices == 1:
      return function
    import jax

    spec = jax.sharding.PartitionSpec
    # the last Data is divided along its worlds; a record (steps, worlds, n) along its second axis
    outs = {"_step": (spec("worlds"),), "_scan": (spec("worlds"), None)}.get(function.__name__)
    if outs is None:
      record = spec(None, "worlds")
      is_triple = hasattr(self.mjx, "rollout")
      outs = (spec("worlds"), record, record) if is_triple else (spec("worlds"), record)
    return jax.shard_map(
      function,
      mesh=self.mesh,
      in_specs=(spec(), spec("worlds"), spec(None, "worlds")),
      out_specs=outs,
      check_vma=False,
    )


class BatchEngine:
  """MuJoCo C with as many threads as cores; float64."""

  name = "batch"

  def __init__(self, inputs: Inputs, args: argparse.Namespace):
    import mujoco.batch
    import numpy as np

    self.inputs = inputs
    self.batch = mujoco.batch.Batch(inputs.mj_model, inputs.qpos.shape[0], nthread=args.ncore)
    self.control = np.ascontiguousarray(inputs.ctrl.transpose(1, 0, 2), np.float64)

  def compile_step(self) -> None:
    """Nothing to compile."""

  def compile(self) -> dict[str, Any]:
    """The bytes are those of one MjData."""
    import mujoco

    d = mujoco.MjData(self.inputs.mj_model)
    mujoco.mj_forward(self.inputs.mj_model, d)
    return {"bytes_per_world": int(d.nbuffer + d.maxuse_arena), "state_bytes_per_world": 8 * self.batch.nstate}

  def run(self, protocol: str) -> tuple[float, Any]:
    """One rollout: its time [s] and the last qpos (worlds, nq)."""
    import mujoco

    self.batch.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
    self.batch.qpos, self.batch.qvel = self.inputs.qpos, self.inputs.qvel
    start = time.perf_counter()
    if protocol == "rollout":
      signature = int(mujoco.mjtState.mjSTATE_CTRL)
      self.batch.rollout(self.control.shape[1], self.control, control_spec=signature, record=("qpos", "qvel"))
    else:
      for u in self.inputs.ctrl:
        self.batch.ctrl = u
        self.batch.step()
    return time.perf_counter() - start, self.batch.qpos.copy()


class Worker:
  """An engine in a process of its own, whose methods can be called.

  Args:
    name: of the engine.
    make: a function of a module, or a partial of one, that makes it of name, scene and arguments.
    scene: its model.
    args: of the command line; `devices` counts here.
  """

  def __init__(self, name: str, make: Callable[..., Any], scene: str, args: argparse.Namespace):
    self.name = name
    here, there = multiprocessing.Pipe()
    before = dict(os.environ)
    os.environ.update(_environment(name, args))
    context = multiprocessing.get_context("spawn")
    self.process = context.Process(target=_serve, args=(there, make, name, scene, args), daemon=True)
    self.process.start()
    os.environ.clear()
    os.environ.update(before)
    there.close()
    self.pipe = here
    self._answer()

  def _answer(self):
    try:
      if not self.pipe.poll(_PATIENCE):
        self.process.kill()
        raise TimeoutError(f"{self.name} has not answered for {_PATIENCE} s: leave it out (--engines).")
      error, result = self.pipe.recv()
    except EOFError:
      raise RuntimeError(f"the process of {self.name} ended") from None
    if error is not None:
      raise error
    return result

  def call(self, method: str, *args: Any) -> Any:
    """What the engine's method returns."""
    self.pipe.send((method, args))
    return self._answer()

  def close(self) -> None:
    """Ends the process."""
    self.pipe.close()
    self.process.join(30)
    self.process.kill()


def _serve(pipe, make, name, scene, args):
  """What a worker's process does: makes the engine, then answers calls until the pipe is closed."""
  sys.path.insert(0, str(ROOT))
  if hasattr(os, "sched_setaffinity"):  # the last cores: the first one serves more interrupts
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores_of(args) :])
  try:
    engine = make(name, scene, args)
  # a package that is missing or older (no `mujoco.batch`), a feature that the engine refuses: the scene goes on without it
  except (ImportError, AttributeError, NotImplementedError) as error:
    # as one type, in words: an exception of the engine's own need not survive pickling
    pipe.send((NotImplementedError(f"{type(error).__name__}: {error}"), None))
    return
  pipe.send((None, None))
  while True:
    try:
      method, arguments = pipe.recv()
    except EOFError:
      return
    pipe.send((None, getattr(engine, method)(*arguments)))


def _make(name: str, scene: str, args: argparse.Namespace) -> JaxEngine | BatchEngine:
  """An engine at the start of the scene."""
  inputs = make_inputs(scene, args)
  return BatchEngine(inputs, args) if name == "batch" else JaxEngine(name, inputs, args)


def make_inputs(scene: str, args: argparse.Namespace) -> Inputs:
  """The same in every process."""
  from mjx_lite.cli import common

  mj_model = load(scene)
  choose_solver(mj_model, args.solver, args.iterations)
  qpos, qvel = common.random_state(mj_model, args.worlds, args.seed)
  ctrl = common.random_control(mj_model, args.steps, args.worlds, args.seed, args.deviation)
  return Inputs(mj_model, qpos, qvel, ctrl)


def import_engine(name: str) -> Any:
  if name == "mjx":
    from mujoco import mjx

    return mjx
  import mjx_lite

  return mjx_lite


def _run_scene(scene: str, args: argparse.Namespace) -> list[dict[str, Any]]:
  """Times one scene with all engines; one record per engine."""
  records, workers = {}, []
  for name in args.engines:
    if name == "mjx" and args.dtype != DTYPES[0]:
      continue
    record = records[name] = {
      "scene": scene, "engine": name, "worlds": args.worlds, "steps": args.steps, "cores": args.ncore,
      "dtype": args.dtype if name == "mjx_lite" else DTYPES[name == "batch"],
    }  # fmt: skip
    try:
      workers.append(Worker(name, _make, scene, args))
    except NotImplementedError as error:  # what `_serve` makes of a refusal; any other failure ends the run
      record["refused"] = str(error)
      print(f"  {name} cannot run {scene}: {error}", file=sys.stderr)
  # the step in alternation too: the first compilation of a process pays for much that is not the engine's
  for repeat in range(args.compile_repeats):
    for worker in workers:
      print(f"  {scene}: compiling {worker.name}, round {repeat + 1} of {args.compile_repeats}", file=sys.stderr)
      worker.call("compile_step")
  for worker in workers:
    records[worker.name] |= worker.call("compile")
  for protocol in args.protocols:
    _time(scene, protocol, workers, records, args)
  for record in records.values():
    _add_ratios(record, records)
  for worker in workers:
    worker.close()
  return list(records.values())


def _time(
  scene: str, protocol: str, workers: list[Worker], records: dict[str, dict[str, Any]], args: argparse.Namespace
) -> None:
  """Puts the times of a protocol into the records; the first round warms up and compares ends, then A B C A B C ..."""
  import numpy as np

  ends = {worker.name: np.asarray(worker.call("run", protocol)[1], np.float64) for worker in workers}
  times = {worker.name: [] for worker in workers}
  for repeat in range(args.repeats):
    print(f"  {scene}: {protocol}, round {repeat + 1} of {args.repeats}", file=sys.stderr)
    for worker in workers:
      times[worker.name].append(worker.call("run", protocol)[0])
  for name, spent in times.items():
    count = args.worlds * args.steps
    records[name][protocol] = {
      "median_steps_per_s": count / statistics.median(spent),
      "best_steps_per_s": count / min(spent),
      "seconds": spent,
      "finite_worlds": int(np.isfinite(ends[name]).all(-1).sum()),
    }
    if "batch" in ends:
      # the median world: chaos makes the worst one meaningless after many steps
      gap = np.abs(ends[name] - ends["batch"]).max(-1)
      records[name][protocol]["median_gap_to_batch"] = float(np.nanmedian(gap))


def _add_ratios(record: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
  """Puts ratios to the other engines of the same run into a record."""
  for other in ("mjx", "batch"):
    peer = records.get(other, {})
    if record["engine"] == other:
      continue
    for protocol in PROTOCOLS:
      if protocol in record and protocol in peer:
        rate = record[protocol]["median_steps_per_s"] / peer[protocol]["median_steps_per_s"]
        record[f"{protocol}_over_{other}"] = rate
    if "compile_s" in record and "compile_s" in peer:
      ours, theirs = (x["trace_s"] + x["compile_s"] for x in (record, peer))
      record[f"compile_over_{other}"] = ours / theirs


def _versions() -> dict[str, str]:
  from importlib import metadata

  names = ("jax", "jaxlib", "mujoco", "mujoco-mjx", "numpy")
  found = {}
  for name in names:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = "not installed"
  return found


def _print_table(records: list[dict[str, Any]], args: argparse.Namespace) -> None:
  import rich.console
  import rich.table

  def cell(record, *keys, form="{:,.0f}"):
    for key in keys:
      record = record.get(key) if isinstance(record, dict) else None
    return "-" if record is None else form.format(record)

  table = rich.table.Table(box=None, header_style="bold", padding=(0, 1))
  table.add_column("scene")
  table.add_column("engine")
  heads = ["trace s", "compile s", "instr.", "fusions", "kernels", "B/world"]
  for protocol in args.protocols:
    letter = {"rollout": "a", "scan": "b"}[protocol]
    heads += [f"({letter}) steps/s median", "best", "/mjx", "/C"]
  for head in heads:
    table.add_column(head, justify="right")
  for r in records:
    row = [cell(r, "trace_s", form="{:.2f}"), cell(r, "compile_s", form="{:.2f}")]
    row += [cell(r, key) for key in ("instructions", "fusions", "kernels", "bytes_per_world")]
    for protocol in args.protocols:
      row += [cell(r, protocol, "median_steps_per_s"), cell(r, protocol, "best_steps_per_s")]
      row += [cell(r, f"{protocol}_over_{other}", form="{:.2f}") for other in ("mjx", "batch")]
    if "refused" in r:
      row[0] = "refused"
    table.add_row(r["scene"], r["engine"], *row)
  console = rich.console.Console(width=160)
  console.print(table)
  for scene in dict.fromkeys(r["scene"] for r in records):
    mine = {r["engine"]: r for r in records if r["scene"] == scene}
    if "compile_over_mjx" in mine.get("mjx_lite", {}):
      print(f"{scene}: trace + compile of the step, mjx_lite / mjx = {mine['mjx_lite']['compile_over_mjx']:.2f}")


def main() -> int:
  args = _arguments()
  machine = {
    "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    "cpu": platform.processor() or platform.machine(),
    "devices": args.devices,
    "repeats": args.repeats,
    **_versions(),
  }
  everything = []
  runs = itertools.product(args.scenes, args.cores or [_all_cores()], args.dtypes)
  for scene, args.ncore, args.dtype in runs:
    records = _run_scene(scene, args)
    everything += records
    for record in records:
      line = json.dumps({**machine, **record})
      print(line)
      if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        with args.json.open("a") as file:
          file.write(line + "\n")
  _print_table(everything, args)
  return 0


if __name__ == "__main__":
  sys.exit(main())
