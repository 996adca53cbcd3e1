"""Tables of README.md in this folder, made of the data in `results/`; `tools/write_docs.py` writes them.

`results/speed.jsonl` holds what `run.py --json` wrote, `results/versions.jsonl` what `versions.py --json` wrote.
"""

import json
import pathlib
import statistics
from typing import Any

import versions

FOLDER = pathlib.Path(__file__).resolve().parent


def read(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Read a file of results: the first line, which says how they were measured, and the others."""
  about, *rows = map(json.loads, (FOLDER / "results" / f"{name}.jsonl").read_text().splitlines())
  return about, rows


# name of a scene in the table -> what a reader should know of it
NOTES = {
  "quadruped": "four spheres in a height field",
  "gym_hyqreal1": "a quadruped with its meshes",
  "gym_spot_arm": "faces of up to 110 corners",
  "robosuite_g1": "Unitree's G1, a humanoid with its meshes, hulls of up to 5,365 corners; a tenth of the controls",
  "robosuite_h1": "Unitree's H1, hulls of up to 1,020 corners; a tenth of the controls",
  "mjlab_go1": "Go1 of mjlab 1.6.0",
  "mjlab_g1": "G1 of mjlab 1.6.0",
  "hand_egg": "manipulate_egg of gymnasium-robotics 1.4.2",
}


def speed(with_bytes: bool = True) -> str:
  """Return the table of scenes, in Markdown: rollouts on one core in both precisions, and on all cores."""
  rows = read("speed")[1]
  most = max(row["cores"] for row in rows)
  head = ["scene", "steps/s, one core", "/ C", "float64 / C", f"steps/s, {most} cores", "/ C", "/ MJX", "trace + compile [s]"]
  if with_bytes:
    head.append("bytes per world, ours / MJX's")
  lines = []
  for scene in dict.fromkeys(row["scene"] for row in rows):
    of = {(row["engine"], row["dtype"], row["cores"]): row for row in rows if row["scene"] == scene}
    one, double, all_ = (of.get(("mjx_lite", *key), {}) for key in (("float32", 1), ("float64", 1), ("float32", most)))
    theirs = of.get(("mjx", "float32", most), {})
    sizes = [f"{row['bytes_per_world']:,}" for row in (one, theirs) if "bytes_per_world" in row]
    compile_ = min((row["trace_s"] + row["compile_s"] for row in (one, all_) if row), default=None)
    note = f" ({NOTES[scene]})" if scene in NOTES else ""
    line = [
      f"`{scene}`{note}", _rate(one), _ratio(one, "batch"), _ratio(double, "batch"),
      _rate(all_), _ratio(all_, "batch"), _ratio(all_, "mjx"), "" if compile_ is None else f"{compile_:.1f}", " / ".join(sizes),
    ]  # fmt: skip
    lines.append(line[: len(head)])
  return "".join(f"| {' | '.join(line)} |\n" for line in [head, *lines]).replace("\n", f"\n|{'---|' * len(head)}\n", 1)


def _rate(row: dict[str, Any]) -> str:
  return f"{row['rollout']['median_steps_per_s']:,.0f}" if "rollout" in row else ""


def _ratio(row: dict[str, Any], other: str) -> str:
  ratio = row.get(f"rollout_over_{other}")
  return "" if ratio is None else f"{ratio:.2f}" if ratio < 20 else f"{ratio:.0f}"


def by_version() -> str:
  """Return the table of versions of JAX, in Markdown: medians of ratios of steps/s and of trace + compile.

  A row of a version is compared with the row of the first version that has the same scene and round.
  """
  rows = read("versions")[1]
  measured_versions = {row["version"] for row in rows}
  first, *others = [version for version in versions.VERSIONS if version in measured_versions]
  lines = [["scene", "", "kernels", f"steps/s, s: {first}", *others], ["---"] * (4 + len(others))]
  for scene in dict.fromkeys(row["scene"] for row in rows):
    of = {v: {row["round"]: row for row in rows if (row["scene"], row["version"]) == (scene, v)} for v in (first, *others)}
    for jit in ("mjx.jit", "jax.jit"):
      base = list(of[first].values())
      measured = f"{_median(base, f'{jit} speed'):,.0f}, {_median(base, f'{jit} compile'):.1f}"
      line = [scene, jit, str(base[0][f"{jit} kernels"]), measured]
      for version in others:
        rounds = [(of[first][k], row) for k, row in of[version].items()]
        line.append(", ".join(f"{x:.2f}" for x in versions.medians(rounds, jit)) if rounds else "")
      lines.append(line)
  return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _median(rows: list[dict[str, Any]], key: str) -> float:
  return statistics.median(row[key] for row in rows)
