"""Gradients of many models after 1, 10 and 100 steps, beside differences of the engine and of C, and in single precision.

    python tests/gradients/sweep.py joints dm_cheetah ...        # all scenes and real models where none is named

One line per model and number of steps: the blocks of inputs looked at, those at a switch (left out), and of the others the
worst error against differences of the engine and of C, and of float32 against float64; with the block.
"""

import argparse
import copy
import dataclasses
import pathlib
import sys
import time

import jax
import mujoco
import numpy as np

if __name__ == "__main__":
  jax.config.update("jax_enable_x64", True)
  sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

from models import ELSEWHERE, OTHERS, SCENE_NAMES, load

import mjx_lite as mjx
from mjx_lite.testing.check_grad import gradients, loss_weights, make_problem
from mjx_lite.testing.compare import optimal

BLOCKS = (
  "qpos", "qvel", "ctrl", "mass", "inertia", "friction", "dof friction", "damping", "stiffness", "tendon stiffness",
  "tendon damping", "geom size", "solref", "limit solref", "equality solref", "timestep",
)  # fmt: skip
HORIZONS = (1, 10, 100)
BEFORE = 60  # steps of C before the state
SMALL = 1e-3  # of the largest derivative: what a relative error is at least measured in


@dataclasses.dataclass
class Line:
  """What was found for a model and a number of steps; errors as (size, block)."""

  steps: int
  blocks: int = 0
  switching: int = 0
  wrong: tuple[str, ...] = ()
  own: tuple[float, str] = (0.0, "")
  of_c: tuple[float, str] = (0.0, "")
  rough_c: int = 0  # blocks whose differences of C disagree with each other
  single: tuple[float, str] = (0.0, "")


def state_of(name, before=BEFORE):
  """The model, solved to the optimum, and a state of C's trajectory under constant controls."""
  model = optimal(load(name))
  data = mujoco.MjData(model)
  data.ctrl[:] = np.random.default_rng(0).uniform(-0.4, 0.4, model.nu)
  mujoco.mj_step(model, data, before)
  return model, data


def losses_of_c(model, data, field, x, horizons, weights):
  """The losses of `check_grad` by C, with one field changed."""
  model, d = copy.copy(model), mujoco.MjData(model)
  model.opt.ccd_tolerance, model.opt.ccd_iterations = 1e-14, 2000  # contacts of curved shapes are as smooth as that
  signature = mujoco.mjtState.mjSTATE_INTEGRATION
  state = np.empty(mujoco.mj_stateSize(model, signature))
  mujoco.mj_getState(model, data, state, signature)
  mujoco.mj_setState(model, d, state, signature)
  if field == "qpos":
    mujoco.mj_integratePos(model, d.qpos, np.array(x), 1)
  elif hasattr(d, field):
    getattr(d, field)[:] = x
  elif hasattr(model, field):
    getattr(model, field)[:] = x
    mujoco.mj_setConst(model, mujoco.MjData(model))
  else:
    setattr(model.opt, field, x)
  out, done = [], 0
  for h in horizons:
    mujoco.mj_step(model, d, h - done)
    done, moved = h, np.zeros(model.nv)
    mujoco.mj_differentiatePos(model, moved, 1, data.qpos, d.qpos)
    out.append(sum(w @ y for w, y in zip(weights, (moved, d.qvel, d.act), strict=True)))
  return np.array(out)


def differences_of_c(model, data, field, direction, horizons, weights):
  """Derivatives along a direction after each number of steps, and how much two widths disagree."""
  owner = next(o for o in (data, model, model.opt) if hasattr(o, field))
  at = np.zeros(model.nv) if field == "qpos" else np.array(getattr(owner, field))
  f = lambda e: losses_of_c(model, data, field, at + e * direction.reshape(at.shape), horizons, weights)  # noqa: E731
  found = []
  for e in (1e-3, 1e-4, 1e-5, 3e-6, 1e-6):
    ends = [f(k * e) for k in (-2, -1, 1, 2)]
    near, wide = (ends[2] - ends[1]) / (2 * e), (ends[3] - ends[0]) / (4 * e)
    found.append(((4 * near - wide) / 3, np.abs(near - wide)))
  best = np.argmin([x[1] for x in found], axis=0)
  return tuple(np.choose(best, [x[k] for x in found]) for k in (0, 1))


def in_single(model, data, horizons, blocks):
  """Derivatives along the directions in float32: of each number of steps, by block."""
  model = copy.copy(model)
  model.opt.tolerance, model.opt.ls_tolerance = 1e-8, 0.01
  m = mjx.put_model(model, dtype=np.float32)
  p = make_problem(m, mjx.put_data(m, data), horizons, blocks)
  return [{k: float(np.vdot(g[k], p.direction[k])) for k in p.at} for g in gradients(p)]


def look_at(name, horizons=HORIZONS, blocks=BLOCKS, single=False):
  """One Line per number of steps, and the table of `check_grad`."""
  model, data = state_of(name)
  m, table = mjx.put_model(model), []
  found = mjx.check_grad(m, mjx.put_data(m, data), steps=horizons, blocks=blocks, tolerance=1e-6, write=table.append)
  weights, lines = loss_weights(m), [Line(h) for h in horizons]
  of_c = {}
  for i, line in enumerate(lines):
    here = [x for x in found if x.steps == line.steps]
    largest = max((abs(x.difference) for x in here), default=0.0)
    line.blocks, line.switching = len(here), sum("not smooth" in x.flags for x in here)
    line.wrong = tuple(x.block for x in here if not x.ok)
    for x in here:
      if "not smooth" in x.flags:
        continue
      line.own = max(line.own, (x.error, x.block))
      if x.field not in of_c:
        of_c[x.field] = differences_of_c(model, data, x.field, x.direction, horizons, weights)
      value, rough = (y[i] for y in of_c[x.field])
      scale = max(abs(value), SMALL * largest, 1e-30)
      if rough > 1e-4 * scale:
        line.rough_c += 1
        continue
      line.of_c = max(line.of_c, (abs(x.autodiff - value) / scale, x.block))
  if single:
    for line, narrow in zip(lines, in_single(model, data, horizons, blocks), strict=True):
      here = [x for x in found if x.steps == line.steps]
      largest = max(abs(x.autodiff) for x in here)
      for x in here:
        if "not smooth" not in x.flags:
          scale = max(abs(x.autodiff), SMALL * largest, 1e-30)
          line.single = max(line.single, (abs(narrow[x.block] - x.autodiff) / scale, x.block))
  return lines, "\n".join(table)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("names", nargs="*", default=[*SCENE_NAMES, *ELSEWHERE, "humanoid", *OTHERS])
  parser.add_argument("--no-single", action="store_true")
  parser.add_argument("--steps", nargs="*", type=int, default=HORIZONS)
  parser.add_argument("--table", action="store_true", help="print what check_grad writes")
  args = parser.parse_args()
  for name in args.names:
    start = time.process_time()
    lines, table = look_at(name, tuple(args.steps), single=not args.no_single)
    if args.table:
      print(table)
    for x in lines:
      errors = "  ".join(f"{size:7.1e} {block:17}" for size, block in (x.own, x.of_c, x.single))
      wrong = f"  WRONG {', '.join(x.wrong)}" if x.wrong else ""
      seen = f"{x.blocks:2d} blocks {x.switching:2d} switch {x.rough_c:2d} rough in C"
      print(f"{name:34} {x.steps:4d}  {seen}  {errors}{wrong}", flush=True)
    print(f"{name:34} {time.process_time() - start:.0f} s", flush=True)
    from mjx_lite.batching import worlds

    worlds.clear_caches()


if __name__ == "__main__":
  main()
