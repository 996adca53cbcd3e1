"""What a program costs: seconds to trace and to compile, and the size of what XLA made of it."""

import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax

import mjx_lite as mjx
from mjx_lite.core import worlds

# instructions that move or name values and start no work of their own
_FREE = frozenset(
  ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all", "partition-id", "replica-id"]
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(")
_CALLED = frozenset(["body", "condition", "to_apply", "branch_computations", "true_computation", "false_computation"])
_NAMED = re.compile(r"(\w+)=(?:%?([\w.\-]+)|\{([%\w.\-, ]+)\})")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled function and what it cost.

  Attributes:
    call: the compiled function
    trace_s: tracing and lowering [s]
    compile_s: XLA's compilation [s]
    instructions: HLO instructions of the optimised program, those inside fusions included
    fusions: fusion instructions
    kernels: instructions outside fusions that start work; a loop's body counts once
    launches: kernels that one call starts, a loop's as often as it runs where that is known, else once
    peak_bytes: of results and what is kept between kernels, arguments aside
  """

  call: Callable[..., Any]
  trace_s: float
  compile_s: float
  instructions: int
  fusions: int
  kernels: int
  launches: int
  peak_bytes: int


def compile_program(function: Callable[..., Any], *args: Any, jit: Callable[..., Any] = mjx.jit) -> Program:
  """Traces and compiles a function for the given arguments, the two timed apart; nothing is left from earlier calls."""
  worlds.clear_caches()
  start = time.perf_counter()
  lowered = jit(function).lower(*args)
  traced = time.perf_counter()
  compiled = lowered.compile()
  end = time.perf_counter()
  text, memory = compiled.as_text() or "", compiled.memory_analysis()
  peak = memory.output_size_in_bytes + memory.temp_size_in_bytes if memory is not None else 0
  return Program(compiled, traced - start, end - traced, *count_hlo(text), count_launches(text), peak)


def count_hlo(text: str) -> tuple[int, int, int]:
  """Counts instructions, fusions and kernels in the text of an optimised HLO module."""
  # which computations are bodies of fusions or of reductions: their instructions start nothing
  inner = set(re.findall(r"(?:calls|to_apply|select|scatter)=%?([\w.\-]+)", text))
  called = set(re.findall(r"\bcall\([^\n]*to_apply=%?([\w.\-]+)", text))
  inner -= called
  instructions = fusions = kernels = 0
  computation = ""
  for line in text.splitlines():
    head = _COMPUTATION.match(line)
    if head:
      computation = head.group(1)
      continue
    found = _INSTRUCTION.match(line)
    if not found:
      continue
    operation = found.group(1)
    instructions += 1
    fusions += operation == "fusion"
    kernels += computation not in inner and operation not in _FREE and operation not in ("while", "call")
  return instructions, fusions, kernels


def count_launches(text: str) -> int:
  """Counts the kernels that a call of an optimised HLO module starts: those of loops times their trips, where these are known.

  Of a conditional the dearest branch counts.
  """
  bodies: dict[str, list[str]] = {}
  entry = name = ""
  for line in text.splitlines():
    head = _COMPUTATION.match(line)
    if head:
      name = head.group(1)
      entry = name if line.startswith("ENTRY") else entry
      bodies[name] = []
    elif name:
      bodies[name].append(line)

  @functools.cache
  def of(computation: str) -> int:
    total = 0
    for line in bodies[computation]:
      found = _INSTRUCTION.match(line)
      operation = found.group(1) if found else ""
      named = {k: re.findall(r"[\w.\-]+", one or many) for k, one, many in _NAMED.findall(line)}
      called = {k: [of(x) for x in v if x in bodies] for k, v in named.items() if k in _CALLED}
      if operation == "while":
        trips = re.search(r'known_trip_count"?:\{"n":"(\d+)"', line)
        total += (int(trips.group(1)) if trips else 1) * sum(map(sum, called.values()))
      elif operation == "conditional":
        total += max((x for v in called.values() for x in v), default=0)
      elif operation == "call":
        total += sum(map(sum, called.values()))
      elif found and operation not in _FREE:
        total += 1
    return total

  return of(entry) if entry else 0


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
  """Calls a function and waits for its results; returns them and the time taken [s]."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def leaf_bytes(tree: Any) -> int:
  """Bytes of all arrays of a pytree."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))
