"""Tables of README.md in this folder, made of the data in `results/`; `tools/write_docs.py` writes them.

`results/speed.jsonl` holds one line per scene, `results/versions.jsonl` what `versions.py --json` wrote.
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


def speed(with_bytes: bool = True) -> str:
  """Return the table of scenes, in Markdown."""
  head = ["scene", "worlds", "steps/s", "/ MJX", "/ C", "trace + compile [s]", "/ MJX's"]
  if with_bytes:
    head.append("bytes per world, ours / MJX's")
  lines = []
  for row in read("speed")[1]:
    note = f" ({row['note']})" if "note" in row else ""
    name = f"`{row['scene']}`{note}{', capacity' if row['capacity'] else ''}"
    sizes = [f"{row[k]:,}" for k in ("bytes_per_world", "mjx_bytes_per_world") if k in row]
    line = [
      name, f"{row['worlds']:,}", f"{row['steps_per_s']:,}", str(row.get("per_mjx", "")), f"{row['per_c']:.2f}",
      f"{row['compile_s']:.1f}", f"{row['compile_per_mjx']:.2f}" if "compile_per_mjx" in row else "", " / ".join(sizes),
    ]  # fmt: skip
    lines.append(line[: len(head)])
  return "".join(f"| {' | '.join(line)} |\n" for line in [head, *lines]).replace("\n", f"\n|{'---|' * len(head)}\n", 1)


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
