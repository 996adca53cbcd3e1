"""Compare this code on several versions of JAX with an earlier commit on one of them: steps/s and time to compile.

    python benchmarks/versions.py --scenes humanoid hopper --rounds 5 --json versions.jsonl

Each version has a virtual environment of its own, which the script makes where it is missing (`--folder`), and each measurement
is a process of its own on one core, all versions in turn, several rounds. A round's ratios are those of its own measurements;
medians of these ratios are printed. The exit code is 1 where a step takes a slower path than machine code, or has more kernels
than the baseline's, or where that has one and a median misses its bound: 0.85 of the baseline's steps/s, 1.25 of its
trace + compile.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = "32131c9"
# name -> Python, JAX, NumPy, commit ("" for the files as they are)
VERSIONS = {
  "baseline": ("3.11", "0.10.2", "2.4.*", BASELINE),
  "0.10.2": ("3.11", "0.10.2", "2.4.*", ""),
  "0.11.2": ("3.12", "0.11.2", "2.4.*", ""),
  "0.12.0.1": ("3.13", "0.12.0.1", "2.5.*", ""),
}
PACKAGES = ("mujoco>=4.0,<4.1", "llvmlite", "tqdm", "rich", "mujoco-mjx==3.17.0", "gymnasium==1.4.0", "myo-sim==0.2.3", "scipy")
# scenes of the speed table whose step is machine code
SCENES = ("humanoid", "shipped", "half_cheetah", "hopper", "walker2d", "ant", "quadruped", "humanoids_1", "myo_elbow")
JITS = "mjx.jit", "jax.jit"
LEAST_SPEED, MOST_COMPILE = 0.85, 1.25


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--scenes", nargs="+", default=list(SCENES))
  parser.add_argument("--versions", nargs="+", default=list(VERSIONS), help="the first is what the others are compared with")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--worlds", type=int, default=1024)
  parser.add_argument("--steps", type=int, default=20)
  parser.add_argument(
    "--capacity", action="store_true", help="with the capacities that `suggest_capacity` finds in rollouts of C"
  )
  parser.add_argument("--jits", nargs="+", choices=JITS, default=list(JITS))
  parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="that all processes run on")
  parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "versions", help="of environments, kept")
  parser.add_argument("--json", type=pathlib.Path, help="file to append one line per measurement to")
  parser.add_argument("--worker", metavar="SCENE", help=argparse.SUPPRESS)
  return parser.parse_args()


def _python(version: str) -> str:
  """The interpreter of a version: on the PATH, or of pyenv, whose programs on the PATH may be for another version."""
  folders = sorted(pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions").glob(f"{version}.*"))
  candidates = [shutil.which(f"python{version}"), *(str(x / "bin" / "python3") for x in reversed(folders))]
  for found in filter(None, candidates):
    if not subprocess.run([found, "--version"], capture_output=True).returncode:
      return found
  sys.exit(f"Python {version} is not here: install it, or leave its version out with --versions.")


def _environment(name: str, folder: pathlib.Path) -> tuple[str, pathlib.Path]:
  """The interpreter of a version's environment, and the folder of its code; made where they are missing."""
  python, jax, numpy, commit = VERSIONS[name]
  place = folder / f"jax-{jax}"
  if not (place / "ready").exists():
    subprocess.run([_python(python), "-m", "venv", place], check=True)
    pins = (f"jax=={jax}", f"jaxlib=={jax}", f"numpy=={numpy}")
    subprocess.run([place / "bin" / "pip", "install", "-q", *pins, *PACKAGES], check=True)
    (place / "ready").touch()
  code = folder / commit if commit else ROOT
  if not code.exists():
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", code, commit], check=True, capture_output=True)
  return str(place / "bin" / "python"), code


def _measure(scene: str, args: argparse.Namespace) -> dict[str, float]:
  """Trace + compile of a batch's step, and steps/s of a rollout, by `mjx.jit` and `jax.jit`; in the worker's process."""
  import time
  import warnings

  sys.path.insert(0, str(pathlib.Path(os.environ["PYTHONPATH"]) / "benchmarks"))
  import jax
  import jax.numpy as jnp
  import numpy as np
  import run

  import mjx_lite as mjx
  from mjx_lite.cli import timing  # where the baseline and this code both have the caches

  if hasattr(mjx, "SlowPathWarning"):
    warnings.simplefilter("error", mjx.SlowPathWarning)
  mj_model, rng = run.load(scene), np.random.default_rng(0)
  velocities = 0.1 * rng.normal(size=(args.worlds, mj_model.nv))
  controls = rng.uniform(-0.5, 0.5, (args.worlds, args.steps, mj_model.nu))
  inputs = run.Inputs(mj_model, np.tile(mj_model.qpos0, (args.worlds, 1)), velocities, np.moveaxis(controls, 1, 0))
  m = mjx.put_model(mj_model, **(run.capacity(inputs) if args.capacity else {}))
  d = jax.vmap(lambda v: mjx.make_data(m).replace(qvel=v))(jnp.asarray(velocities, jnp.float32))
  ctrl = jnp.asarray(controls, jnp.float32)
  found: dict[str, float] = {"bytes per world": sum(x.nbytes for x in jax.tree.leaves(mjx.make_data(m)))}
  for name in args.jits:
    jit = mjx.jit if name == "mjx.jit" else jax.jit
    timing.worlds.clear_caches()
    start = time.perf_counter()
    lowered = jit(jax.vmap(lambda m, d: mjx.step(m, d), in_axes=(None, 0))).lower(m, d)
    lowered.compile()
    found[f"{name} compile"] = time.perf_counter() - start
    found[f"{name} kernels"] = lowered.as_text().count("custom_call @mjx_lite_")

    def rolled(m, d, u):
      return jax.vmap(lambda d, u: mjx.rollout(m, d, u)[1]["qpos"])(d, u)

    rollout, spent = jit(rolled), []
    jax.block_until_ready(rollout(m, d, ctrl))
    for _ in range(3):
      start = time.perf_counter()
      jax.block_until_ready(rollout(m, d, ctrl))
      spent.append(time.perf_counter() - start)
    found[f"{name} speed"] = args.worlds * args.steps / min(spent)
  return found


def _one(name: str, scene: str, python: str, code: pathlib.Path, args: argparse.Namespace) -> dict[str, float]:
  """A measurement in a process of its own."""
  given = ["--worker", scene, "--worlds", str(args.worlds), "--steps", str(args.steps), "--jits", *args.jits]
  given += ["--capacity"] if args.capacity else []
  env = {**os.environ, "PYTHONPATH": str(code), "JAX_PLATFORMS": "cpu", "NPROC": "1", "MJX_LITE_CACHE": "0"}
  command = ["taskset", "-c", str(args.core), python, __file__, *given]
  done = subprocess.run(command, env=env, capture_output=True, text=True)
  if done.returncode:
    sys.exit(f"{name}, {scene}:\n{done.stderr[-3000:]}")
  return json.loads(done.stdout.splitlines()[-1])


HEAD = (
  "| scene | JAX | | steps/s | / first | trace + compile [s] | / first | within bounds |\n|---|---|---|---|---|---|---|---|"
)


def medians(rounds: list[tuple[dict[str, float], dict[str, float]]], jit: str) -> tuple[float, float]:
  """Return the medians over rounds of the ratios to the first version: of steps/s, and of trace + compile."""
  speed, compile_ = (
    statistics.median(ours[f"{jit} {k}"] / first[f"{jit} {k}"] for first, ours in rounds) for k in ("speed", "compile")
  )
  return speed, compile_


def report(scene: str, name: str, rounds: list[tuple[dict[str, float], dict[str, float]]]) -> tuple[list[str], bool]:
  """Return lines with the medians of a scene on a version beside the first version, and whether they are within bounds."""
  lines, good = [], True
  for jit in (name for name in JITS if f"{name} speed" in rounds[0][0]):
    speed, compile_ = medians(rounds, jit)
    steps = statistics.median(ours[f"{jit} speed"] for _, ours in rounds)
    seconds = statistics.median(ours[f"{jit} compile"] for _, ours in rounds)
    wanted, kernels = rounds[0][0][f"{jit} kernels"], {ours[f"{jit} kernels"] for _, ours in rounds}
    is_bound = wanted == 1
    fine = 0 < min(kernels) and max(kernels) <= wanted and (not is_bound or (speed >= LEAST_SPEED and compile_ <= MOST_COMPILE))
    good &= fine
    verdict = ("yes" if is_bound else f"no bound: {wanted} kernels") if fine else "NO"
    path = "" if kernels == {wanted} else f", {min(kernels)} kernels for {wanted}"
    lines.append(
      f"| {scene} | {name} | {jit} | {steps:,.0f} | {speed:.2f} | {seconds:.1f} | {compile_:.2f} | {verdict}{path} |"
    )
  return lines, good


def main() -> int:
  """Measures and prints; exit code 1 where a bound is missed."""
  args = _arguments()
  if args.worker:
    print(json.dumps(_measure(args.worker, args)))
    return 0
  args.folder.mkdir(parents=True, exist_ok=True)
  places = {name: _environment(name, args.folder) for name in args.versions}
  first, good = args.versions[0], True
  print(HEAD, flush=True)
  for scene in args.scenes:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in args.versions}
    for k in range(args.rounds):
      for name in args.versions:
        found[name].append(_one(name, scene, *places[name], args))
        if args.json:
          with args.json.open("a") as file:
            file.write(json.dumps(dict(scene=scene, version=name, round=k, **found[name][-1])) + "\n")
    for name in args.versions[1:]:
      lines, fine = report(scene, name, list(zip(found[first], found[name], strict=True)))
      print("\n".join(lines), flush=True)
      good &= fine
  return 0 if good else 1


if __name__ == "__main__":
  sys.exit(main())
