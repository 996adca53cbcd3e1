"""What the README has from elsewhere: kinds from the engine's tables, speed from the benchmarks.

`python tests/features.py` writes it.
"""

import pathlib
import re

from mjx_lite.actuator.table import BIASES, DYNAMICS, GAINS
from mjx_lite.collision import hfield
from mjx_lite.collision.primitive import COLLIDERS
from mjx_lite.collision.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.constraint.equality import EQUALITIES
from mjx_lite.control import METHODS
from mjx_lite.core import enums
from mjx_lite.envs import ENVS
from mjx_lite.forward import INTEGRATORS
from mjx_lite.io.model import CONTACT_GRADIENTS
from mjx_lite.io.validate import CONES, ENABLE_FLAGS
from mjx_lite.sensor.table import SENSORS
from mjx_lite.smooth.transmission import TRANSMISSIONS
from mjx_lite.solver.table import SOLVERS

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"

# what MuJoCo has of a kind, and the table that says what there is here
OF_MUJOCO = {
  "integrator": (enums.IntegratorType, INTEGRATORS),
  "solver": (enums.SolverType, SOLVERS),
  "cone": (enums.ConeType, CONES),
  "flags to enable": (enums.EnableBit, ENABLE_FLAGS),
  "equality": (enums.EqType, EQUALITIES),
  "transmission": (enums.TrnType, TRANSMISSIONS),
  "activation dynamics": (enums.DynType, DYNAMICS),
  "gain": (enums.GainType, GAINS),
  "bias": (enums.BiasType, BIASES),
  "sensor": (enums.SensorType, SENSORS),
}
OWN = {"contact gradient": CONTACT_GRADIENTS, "environment": ENVS, "planning by sampling": METHODS}


def contacts() -> list[tuple[str, list[str]]]:
  """Types of geoms, and those that each collides with, every pair once."""
  first = {}
  for a, b in {**COLLIDERS, **FIELD_COLLIDERS}:
    first.setdefault(a, []).append(b)
  return [*first.items(), ("hfield", list(hfield.SHAPES))]


def features() -> str:
  """The kinds, in Markdown."""
  lines = ["| kind | supported | refused |", "|---|---|---|"]
  for kind, (every, table) in OF_MUJOCO.items():
    have = [x for x in every if x in table]
    lack = [x for x in every if x not in table and x.name not in ("UNDEFINED", "NONE")]
    lines.append(f"| {kind} | {_names(have)} | {_names(lack)} |")
  lines += [f"| contacts of {a} with | {', '.join(b)} | |" for a, b in contacts()]
  lines += [f"| {kind} | {', '.join(f'`{x}`' for x in table)} | |" for kind, table in OWN.items()]
  return "\n".join(lines) + "\n"


def _names(members) -> str:
  return ", ".join(x.name.lower() for x in members)


def speed() -> str:
  """The benchmarks' table of scenes without its last column, bytes."""
  scenes = re.search(r"^## Scenes\n.*?\n(\|.*?)\n\n", (ROOT / "benchmarks" / "README.md").read_text(), re.S | re.M)[1]
  return "".join("|".join(line.split("|")[:-2]) + "|\n" for line in scenes.splitlines())


PARTS = {"features": features, "speed": speed}


def marked(part: str) -> str:
  """Where a part is in the README, as a regular expression with three groups."""
  return f"(<!-- {part}: written by tests/features.py -->\n)(.*?)(<!-- end of {part} -->\n)"


if __name__ == "__main__":
  page = README.read_text()
  for part, text in PARTS.items():
    begin, old, end = re.search(marked(part), page, re.S).groups()
    page = page.replace(begin + old + end, begin + text() + end)
  README.write_text(page)
