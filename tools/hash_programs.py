"""Hash the programs of every stage of every scene, to show that a change of the code leaves the arithmetic as it was.

    python tools/hash_programs.py --out before.json
    python tools/hash_programs.py --compare before.json       # exit code 1, with the stages that differ

A program is what JAX traces (a jaxpr). The hash is of its canonical form: primitives, operands, shapes, dtypes, parameters and
the contents of constants; without names, source lines and addresses. So a hash does not change when code moves or is renamed.
"""

import argparse
import dataclasses
import enum
import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

import jax
import numpy as np
from jax.extend import core as jex_core

import mjx_lite as mjx

# functions of a Model and a Data
STAGES = (
  "kinematics", "com_pos", "camlight", "tendon", "transmission", "crb", "factor_m", "collision", "make_constraint", "com_vel",
  "passive", "rne", "fwd_position", "fwd_velocity", "fwd_actuation", "fwd_acceleration", "sensor_pos", "sensor_vel",
  "sensor_acc", "forward", "inverse", "step", "step1", "step2", "euler", "implicit", "rungekutta4", "rne_postconstraint",
  "subtree_vel", "energy_pos", "energy_vel", "transition_jac", "contacts",
)  # fmt: skip
# parameters that hold names, sources or functions; what the functions compute is in the program already
_NAMES = frozenset(("name", "debug_info", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "callback", "ctx_mesh"))


class _Writer:
  """The canonical form of a program, fed to a hash piece by piece."""

  def __init__(self):
    self.hash = hashlib.sha256()
    self.seen: dict[int, tuple[Any, str]] = {}  # digests of programs that are called often

  def put(self, *pieces: Any) -> None:
    self.hash.update("|".join(map(str, pieces)).encode() + b"\n")

  def value(self, x: Any) -> None:
    """Put a parameter or a constant."""
    if isinstance(x, jex_core.ClosedJaxpr | jex_core.Jaxpr):
      self.put("program", self.digest(x))
    elif isinstance(x, np.ndarray | np.generic | jax.Array):
      x = np.asarray(x)
      self.put("array", x.shape, x.dtype, hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest())
    elif isinstance(x, enum.Enum):
      self.put("enum", int(x.value) if isinstance(x.value, int) else x.name)
    elif isinstance(x, bool | int | float | str | bytes | complex | type(None) | np.dtype):
      self.put(type(x).__name__, x)
    elif isinstance(x, dict):
      for k in sorted(x, key=str):
        self.put("key", k)
        self.value(x[k])
    elif isinstance(x, tuple | list):
      self.put("sequence", len(x))
      for y in x:
        self.value(y)
    elif isinstance(x, frozenset | set):
      self.put("set", sorted(map(str, x)))
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
      self.value([getattr(x, f.name) for f in dataclasses.fields(x)])
    elif callable(x):
      self.put("function")
    else:
      self.put("other", "" if " at 0x" in repr(x) else repr(x))

  def digest(self, program: Any) -> str:
    """Return the hash of a program, closed or not."""
    if id(program) not in self.seen:
      inner = _Writer()
      inner.seen = self.seen
      inner.program(program)
      self.seen[id(program)] = program, inner.hash.hexdigest()
    return self.seen[id(program)][1]

  def program(self, program: Any) -> None:
    """Put a program."""
    jaxpr, consts = (program.jaxpr, program.consts) if isinstance(program, jex_core.ClosedJaxpr) else (program, ())
    number: dict[Any, int] = {}

    def name(v: Any) -> Any:
      if isinstance(v, jex_core.Literal):
        return "literal", np.asarray(v.val).dtype, np.asarray(v.val).tolist()
      return number.setdefault(v, len(number))

    self.put("arguments", [(name(v), v.aval.shape, v.aval.dtype) for v in (*jaxpr.constvars, *jaxpr.invars)])
    for x in consts:
      self.value(x)
    for e in jaxpr.eqns:
      self.put(e.primitive.name, [name(v) for v in e.invars], [(name(v), v.aval.shape, str(v.aval.dtype)) for v in e.outvars])
      if e.primitive.name == "mjx_native":
        self.value(_inside(e))
        continue
      for key in sorted(set(e.params) - _NAMES):
        self.put("parameter", key)
        self.value(e.params[key])
    self.put("results", [name(v) for v in jaxpr.outvars])


def _inside(eqn: Any) -> Any:
  """Return the program that a call of the engine stands for."""
  from mjx_lite.batching import worlds

  avals = tuple((v.aval.shape, v.aval.dtype) for v in eqn.invars)
  return worlds._trace(eqn.params["call"], eqn.params["batched"], avals)


def programs(mj_model: Any, dtype: Any) -> Iterator[tuple[str, str]]:
  """Yield the name and the hash of the program of each stage, of one world and, for the step, of several."""
  m = mjx.put_model(mj_model, dtype=dtype)
  d = mjx.make_data(m)
  for stage in STAGES:
    try:
      closed = jax.make_jaxpr(getattr(mjx, stage))(m, d)
    except Exception as error:  # a stage may refuse a model: its message is part of what has to stay
      yield stage, f"{type(error).__name__}: {str(error)[:200]}"
      continue
    yield stage, _Writer().digest(closed)
  worlds = jax.tree.map(lambda x: jax.numpy.stack([x] * 3), d)
  yield "step of 3 worlds", _Writer().digest(jax.make_jaxpr(jax.vmap(mjx.step, in_axes=(None, 0)))(m, worlds))


def main() -> int:
  """Write the hashes, or compare them; exit code 1 where one differs."""
  import models

  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  names = (*models.SCENE_NAMES, *models.ELSEWHERE, "humanoid", *models.REAL)
  parser.add_argument("--scenes", nargs="+", default=list(names))
  parser.add_argument("--out", type=pathlib.Path)
  parser.add_argument("--compare", type=pathlib.Path)
  args = parser.parse_args()
  before = json.loads(args.compare.read_text()) if args.compare else {}
  found: dict[str, dict[str, str]] = {}
  different = 0
  for scene in args.scenes:
    for dtype in ("float32", "float64"):
      jax.config.update("jax_enable_x64", dtype == "float64")
      mjx.batching.worlds.clear_caches()
      key = f"{scene} {dtype}"
      found[key] = dict(programs(models.load(scene), np.dtype(dtype)))
      wrong = [k for k, x in found[key].items() if key in before and before[key].get(k) != x]
      different += len(wrong)
      print(key, len(found[key]), "stages", f"DIFFERENT: {', '.join(wrong)}" if wrong else "", flush=True)
  if args.out:
    args.out.write_text(json.dumps(found, indent=1))
  return int(different > 0)


if __name__ == "__main__":
  sys.exit(main())
