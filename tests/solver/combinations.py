"""Parity of every combination of solver, cone, condim and integrator; run by hand.

    python tests/solver/combinations.py small:1346 small:1 humanoid_mjx:3 ... [--solvers NEWTON CG PGS]

A model and its condims: four digits give the small scene's spheres a condim each, one digit gives it to all geoms and pairs;
without digits the model stays as it is. Prints a line per combination: the worst relative errors of the rows' fields and of
what is solved, and by how much inverse dynamics misses the forces.
"""

import argparse
import itertools
import pathlib
import sys
import time

import jax
import mujoco

if __name__ == "__main__":
  jax.config.update("jax_enable_x64", True)
  sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "lib"))

import test_combinations as small
from models import load

from mjx_lite.batching import worlds


def model_of(what):
  """The model of an argument."""
  name, _, condims = what.partition(":")
  if name == "small":
    return mujoco.MjModel.from_xml_string(small.SCENE.format(*(condims if len(condims) == 4 else condims * 4)))
  model = load(name).__copy__()
  if condims:
    model.geom_condim[:] = model.pair_dim[:] = int(condims)
  return model


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("models", nargs="+")
  parser.add_argument("--solvers", nargs="+", default=["NEWTON", "CG", "PGS"])
  parser.add_argument("--integrators", nargs="+", default=["EULER", "RK4", "IMPLICIT", "IMPLICITFAST", "DISCRETE"])
  parser.add_argument("--steps", type=int, default=40)
  parser.add_argument("--every", type=int, default=8)
  args = parser.parse_args()
  for what, solver, cone, integrator in itertools.product(
    args.models, args.solvers, ("PYRAMIDAL", "ELLIPTIC"), args.integrators
  ):
    began = time.time()
    choice = (
      mujoco.mjtSolver.__members__[f"mjSOL_{solver}"], mujoco.mjtCone.__members__[f"mjCONE_{cone}"],
      mujoco.mjtIntegrator.__members__[f"mjINT_{integrator}"],
    )  # fmt: skip
    rows, solved, inverse, nefc = small.figures(model_of(what), *choice, args.steps, args.every)
    print(
      f"{what:14} {solver:6} {cone:9} {integrator:12} rows {rows.worst:.1e} {rows.field:14} "
      f"solved {solved.worst:.1e} {solved.field:10} inverse {inverse:.1e} nefc {nefc:3} {time.time() - began:4.0f} s",
      flush=True,
    )  # fmt: skip
    worlds.clear_caches()


if __name__ == "__main__":
  main()
