"""Write what documents have from elsewhere: kinds from the engine's tables, speed from data, differences from docstrings.

    python tools/write_docs.py

A part of a page stands between two comments, `<!-- NAME: written by tools/write_docs.py -->` and `<!-- end of NAME -->`.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

from mjx_lite.actuator.table import BIASES, DYNAMICS, GAINS
from mjx_lite.actuator.transmission import TRANSMISSIONS
from mjx_lite.collision.hfield import hfield
from mjx_lite.collision.primitive.primitive import COLLIDERS
from mjx_lite.collision.sdf.sdf_mesh import FIELD_COLLIDERS
from mjx_lite.constraint.equality import EQUALITIES
from mjx_lite.control import METHODS
from mjx_lite.envs import ENVS
from mjx_lite.io.model import CONTACT_GRADIENTS
from mjx_lite.io.validate import CONES, ENABLE_FLAGS
from mjx_lite.model import enums
from mjx_lite.pipeline import INTEGRATORS
from mjx_lite.sensor.table import SENSORS
from mjx_lite.solver.table import SOLVERS

ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import tables

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
  """Return the table of kinds, in Markdown."""
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
  """Return the benchmarks' table of scenes without its last column, bytes."""
  return tables.speed(with_bytes=False)


def _docstrings() -> Iterator[tuple[str, str]]:
  """Yield the name and the docstring of each module, class and function of the package, in order."""
  package = ROOT / "mjx_lite"
  for file in sorted(package.rglob("*.py")):
    module = ".".join(file.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        name = "" if isinstance(node, ast.Module) else f".{node.name}"
        yield f"{module}{name}", ast.get_docstring(node) or ""


def differences() -> str:
  """Return all `Differs:` paragraphs of docstrings, as a list in Markdown."""
  lines = []
  for name, text in _docstrings():
    for found in re.findall(r"^Differs: (.*?)(?=\n\n|\n[A-Z]\w*: |\Z)", text, re.S | re.M):
      words = " ".join(found.split())
      lines.append(f"* `{name}`: {words[0].upper()}{words[1:]}\n")
  return "".join(lines)


# name of a part -> page, and what makes the part
PARTS = {
  "features": (ROOT / "docs" / "features.md", features),
  "speed": (ROOT / "docs" / "performance.md", speed),
  "differences": (ROOT / "docs" / "differences.md", differences),
  "scenes": (ROOT / "benchmarks" / "README.md", tables.speed),
  "versions": (ROOT / "benchmarks" / "README.md", tables.by_version),
}


def marked(part: str) -> str:
  """Return where a part is in its page: a regular expression with three groups."""
  return f"(<!-- {part}: written by tools/write_docs.py -->\n)(.*?)(<!-- end of {part} -->\n)"


def main() -> None:
  """Write every part."""
  for part, (page, text) in PARTS.items():
    page.write_text(re.sub(marked(part), lambda m, text=text: m[1] + text() + m[3], page.read_text(), flags=re.S))


if __name__ == "__main__":
  main()
