"""Times constraint rows and solver alone: mjx_lite beside mujoco.mjx and C, in one process and in alternation.

    python benchmarks/solve.py --scene humanoid --worlds 1024 --solvers NEWTON CG --iterations 1 100

States are those of C after a fall under random controls. JAX engines compute `make_constraint` and `solve` of all worlds in
float32; C does the same for one world after another on one core, in float64.
"""

import argparse
import copy
import statistics
import sys
import time

import run

DISTINCT = 64  # states of C, repeated


def states(mj_model):
  """States after a fall, as (time, qpos, qvel, act, ctrl, warm start)."""
  import mujoco
  import numpy as np

  rng, out = np.random.default_rng(0), []
  data = mujoco.MjData(mj_model)
  for _ in range(DISTINCT):
    mujoco.mj_resetData(mj_model, data)
    data.qvel[:] = 0.5 * rng.normal(size=mj_model.nv)
    data.ctrl[:] = rng.uniform(-0.5, 0.5, mj_model.nu)
    mujoco.mj_step(mj_model, data, int(rng.integers(150, 400)))
    out.append(copy.copy(data))
  return out


def prepared(engine, jit, m, data, worlds):
  """Data of all worlds, all known but rows and solution; and the compiled function that is timed."""
  import jax
  import jax.numpy as jnp

  fields = ("qpos", "qvel", "ctrl", "qacc_warmstart")
  single = engine.make_data(m)
  many = {k: jnp.asarray([getattr(data[i % DISTINCT], k) for i in range(worlds)], getattr(single, k).dtype) for k in fields}
  d = jax.tree.map(lambda x: jnp.broadcast_to(x, (worlds, *jnp.shape(x))), single).replace(**many)
  d = jit(jax.vmap(engine.forward, in_axes=(None, 0)))(m, d).replace(qacc_warmstart=many["qacc_warmstart"])

  def both(d):
    d = engine.solve(m, engine.make_constraint(m, d))
    return d.qacc, d.qfrc_constraint

  return d, jit(jax.vmap(both))


def c_seconds(mujoco, mj_model, data, worlds):
  """Rows and solution of as many worlds in C, one after another."""
  warm = [d.qacc_warmstart.copy() for d in data]
  start = time.perf_counter()
  for i in range(worlds):
    d = data[i % DISTINCT]
    d.qacc_warmstart[:] = warm[i % DISTINCT]
    mujoco.mj_makeConstraint(mj_model, d)
    mujoco.mj_projectConstraint(mj_model, d)
    mujoco.mj_referenceConstraint(mj_model, d)
    mujoco.mj_fwdConstraint(mj_model, d)
  return time.perf_counter() - start


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--scene", default="humanoid", choices=run.SCENES)
  parser.add_argument("--worlds", type=int, default=1024)
  parser.add_argument("--solvers", nargs="+", default=["NEWTON"])
  parser.add_argument("--iterations", nargs="+", type=int, default=[1])
  parser.add_argument("--repeats", type=int, default=7)
  args = parser.parse_args()
  args.devices = 1
  run._prepare_process(args)
  import jax
  import mujoco
  from mujoco import mjx

  import mjx_lite

  for solver in args.solvers:
    for iterations in args.iterations:
      mj_model = mujoco.MjModel.from_xml_path(str(run.SCENES[args.scene]()))
      mj_model.opt.solver, mj_model.opt.iterations = mujoco.mjtSolver.__members__[f"mjSOL_{solver}"], iterations
      data = states(mj_model)
      programs = {}
      for name, engine, jit in (("mjx_lite", mjx_lite, mjx_lite.jit), ("mjx", mjx, jax.jit)):
        d, f = prepared(engine, jit, engine.put_model(mj_model), data, args.worlds)
        programs[name] = lambda d=d, f=f: jax.block_until_ready(f(d))
      spent = {name: [] for name in (*programs, "C")}
      for _ in range(args.repeats + 1):
        for name, call in programs.items():
          start = time.perf_counter()
          call()
          spent[name].append(time.perf_counter() - start)
        spent["C"].append(c_seconds(mujoco, mj_model, data, args.worlds))
      median = {k: statistics.median(x[1:]) for k, x in spent.items()}
      per = ", ".join(f"{k} {1e6 * x / args.worlds:.1f} us" for k, x in median.items())
      ratios = (median[k] / median["mjx_lite"] for k in ("mjx", "C"))
      print(
        f"{args.scene} {solver} iterations {iterations}: {per} per world; {next(ratios):.1f} x mjx, {next(ratios):.2f} x C",
        flush=True,
      )


if __name__ == "__main__":
  sys.exit(main())
