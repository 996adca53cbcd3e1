"""What derivatives cost beside values: compile and run time, memory, batched Jacobians; MJX with one iteration beside it.

    python benchmarks/gradients.py                                  # the humanoid of mujoco-mjx, 64 worlds, 100 steps
    python benchmarks/gradients.py --parts compile run --scenes shipped --worlds 128

Times are CPU seconds of the process (all threads), so that a busy machine distorts them little; of repeats the least counts.
"""

import argparse
import functools
import gc
import json
import os
import sys
import time

os.environ.setdefault("NPROC", str(2 * (os.cpu_count() or 1)))  # see README.md: a trap

import jax
import jax.numpy as jnp
from run import load

import mjx_lite
from mjx_lite.cli import common, timing

PARTS = ("compile", "jacobian", "memory", "mjx")


def _timed(function, *args, repeats=3):
  """CPU seconds of a call, the least of some after one that warms up."""
  jax.block_until_ready(function(*args))
  spent = []
  for _ in range(repeats):
    start = time.process_time()
    jax.block_until_ready(function(*args))
    spent.append(time.process_time() - start)
  return min(spent)


def _compiled(mjx, function, *args):
  """The program, and the CPU seconds to trace and to compile it."""
  timing.worlds.clear_caches()
  gc.collect()
  start = time.process_time()
  lowered = getattr(mjx, "jit", jax.jit)(function).lower(*args)
  traced = time.process_time()
  program = lowered.compile()
  end = time.process_time()
  size = dict(zip(("instructions", "fusions", "kernels"), timing.count_hlo(program.as_text() or ""), strict=True))
  return program, dict(trace_s=traced - start, compile_s=end - traced, **size)


class Case:
  """A model, worlds and controls."""

  def __init__(self, mjx, mj_model, worlds, steps, seed=0):
    self.mjx, self.m, self.steps, self.worlds = mjx, mjx.put_model(mj_model), steps, worlds
    qpos, qvel = common.random_state(mj_model, worlds, seed)
    single = mjx.make_data(self.m)
    self.d = jax.tree.map(lambda x: jnp.broadcast_to(x, (worlds, *jnp.shape(x))), single)
    self.d = self.d.replace(qpos=jnp.asarray(qpos), qvel=jnp.asarray(qvel))
    self.ctrl = jnp.asarray(common.random_control(mj_model, steps, worlds, seed))  # (steps, worlds, nu)

  def value(self, m, d, ctrl, checkpoint=1):
    """A scalar of the state after a rollout."""
    if hasattr(self.mjx, "rollout"):
      one = lambda d, u: self.mjx.rollout(m, d, u, record=(), checkpoint=checkpoint)[0]  # noqa: E731
      after = jax.vmap(one, in_axes=(0, 1))(d, ctrl)
      return (after.qpos**2).sum() + (after.qvel**2).sum()
    step = jax.vmap(self.mjx.step, in_axes=(None, 0))
    names = ("time", "qpos", "qvel", "act", "qacc_warmstart")

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(state, u):
      after = step(m, d.replace(ctrl=u, **state))
      return {k: getattr(after, k) for k in names}, None

    state, _ = jax.lax.scan(body, {k: getattr(d, k) for k in names}, ctrl)
    return (state["qpos"] ** 2).sum() + (state["qvel"] ** 2).sum()

  def gradient(self, m, d, ctrl, checkpoint=1):
    """Value and gradient with respect to the controls."""
    return jax.value_and_grad(lambda u: self.value(m, d, u, checkpoint))(ctrl)


def _costs(case):
  """Forward and gradient of a rollout: compile and run."""
  args, out = (case.m, case.d, case.ctrl), {}
  for name in ("value", "gradient"):
    program, cost = _compiled(case.mjx, getattr(case, name), *args)
    run = _timed(program, *args)
    out[name] = dict(**cost, run_s=run, us_per_world_step=1e6 * run / (case.worlds * case.steps))
  v, g = out["value"], out["gradient"]
  out["compile_ratio"] = (g["trace_s"] + g["compile_s"]) / (v["trace_s"] + v["compile_s"])
  out["run_ratio"] = g["run_s"] / v["run_s"]
  return out


def _jacobian(case):
  """`transition_jac` of all worlds, beside the plain `vmap(jacfwd(step))`."""
  mjx, m = case.mjx, case.m

  def plain(d):
    def move(x):
      after = mjx.step(m, d.replace(qpos=x[0], qvel=x[1], act=x[2], ctrl=x[3]))
      return after.qpos, after.qvel, after.act

    return jax.jacfwd(move)((d.qpos, d.qvel, d.act, d.ctrl))

  out = {}
  for name, f in (("transition_jac", functools.partial(mjx.transition_jac, m)), ("jacfwd", plain)):
    program, cost = _compiled(mjx, jax.vmap(f), case.d)
    out[name] = dict(**cost, run_s=_timed(program, case.d))
  out["jacfwd_over_transition_jac"] = out["jacfwd"]["run_s"] / out["transition_jac"]["run_s"]
  return out


def _memory(case):
  """Bytes that reverse mode stores per world and step, by what `checkpoint` is: those of the later half of the steps."""
  half = case.steps // 2

  def stored(steps, every):
    value = lambda u: case.value(case.m, case.d, u, every)  # noqa: E731
    kept = jax.eval_shape(lambda u: jax.vjp(value, u)[1], case.ctrl[:steps])
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept))

  per = case.worlds * (case.steps - half)
  return {f"checkpoint={every}": round((stored(case.steps, every) - stored(half, every)) / per) for every in (None, 1, 10)}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--scenes", nargs="+", default=["humanoid"])
  parser.add_argument("--worlds", type=int, default=64)
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
  args = parser.parse_args()
  for scene in args.scenes:
    model = load(scene)
    case = Case(mjx_lite, model, args.worlds, args.steps)
    found = {}
    if "compile" in args.parts:
      found["mjx_lite"] = _costs(case)
    if "memory" in args.parts:
      found["bytes per world and step"] = _memory(case)
    if "jacobian" in args.parts:
      found["jacobian of 256 states"] = _jacobian(Case(mjx_lite, model, 256, 1))
    if "mjx" in args.parts:
      from mujoco import mjx

      model.opt.iterations = 1  # reverse mode of MJX knows no loop of a varying length
      found["mjx, iterations=1"] = _costs(Case(mjx, model, args.worlds, args.steps))
    for part, numbers in found.items():
      for k, x in numbers.items():
        shown = {n: round(y, 3) if isinstance(y, float) else y for n, y in x.items()} if isinstance(x, dict) else x
        print(f"{scene}: {part}: {k}: {json.dumps(shown)}", flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
