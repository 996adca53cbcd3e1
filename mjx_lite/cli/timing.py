"""Cost of a compiled program: seconds to trace and to compile, and the size of XLA's optimised program."""

import dataclasses
import functools
import re
import time
from collections.abc import Callable
from typing import Any

import jax

import mjx_lite as mjx
from mjx_lite.batching import worlds

# instructions that launch no kernel
_FREE = frozenset(
  ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "after-all", "partition-id", "replica-id"]
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(")
_CALLS = {
  "while": ("body", "condition"),
  "call": ("to_apply",),
  "conditional": ("branch_computations", "true_computation", "false_computation"),
}
_NAMED = re.compile(r"(\w+)=(?:%?([\w.\-]+)|\{([%\w.\-, ]+)\})")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{\s*$")


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled function and its cost.

  Attributes:
    call: the compiled function
    trace_s: time of tracing and lowering [s]
    compile_s: time of XLA's compilation [s]
    instructions: number of HLO instructions of the optimised program, including instructions inside fusions
    fusions: number of fusion instructions
    kernels: number of instructions outside fusions that launch a kernel; the body of a loop counts once
    launches: number of kernels that one call launches; the body of a loop counts once per trip if the trip count is known,
      otherwise once
    peak_bytes: bytes of results and temporary buffers, without arguments
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
  """Trace and compile a function for the given arguments, timed separately; clears caches of earlier calls first."""
  worlds.clear_caches()
  start = time.perf_counter()
  lowered = jit(function).lower(*args)
  traced = time.perf_counter()
  compiled = lowered.compile()
  end = time.perf_counter()
  text, memory = compiled.as_text() or "", compiled.memory_analysis()
  peak = memory.output_size_in_bytes + memory.temp_size_in_bytes if memory is not None else 0
  instructions, fusions, kernels = count_hlo(text)
  return Program(
    call=compiled,
    trace_s=traced - start,
    compile_s=end - traced,
    instructions=instructions,
    fusions=fusions,
    kernels=kernels,
    launches=count_launches(text),
    peak_bytes=peak,
  )


def count_hlo(text: str) -> tuple[int, int, int]:
  """Count instructions, fusions and kernels in the text of an optimised HLO module."""
  entry, bodies = _computations(text)
  operations = [operation for body in bodies.values() for operation, _ in body]
  kernels, seen, ahead = 0, set(), [entry]
  while ahead:
    name = ahead.pop()
    if name not in seen:
      seen.add(name)
      for operation, line in bodies[name]:
        called = _called(operation, line)
        kernels += not called and operation not in _FREE
        ahead += called
  return len(operations), operations.count("fusion"), kernels


def count_launches(text: str) -> int:
  """Count the kernels that one call of an optimised HLO module launches.

  The kernels of a loop count once per trip if the trip count is known, otherwise once. Of a conditional, the branch with the
  most kernels counts.
  """
  entry, bodies = _computations(text)

  @functools.cache
  def launches(computation: str) -> int:
    total = 0
    for operation, line in bodies[computation]:
      called = [launches(x) for x in _called(operation, line)]
      if operation == "while":
        trips = re.search(r'known_trip_count"?:\{"n":"(\d+)"', line)
        total += (int(trips.group(1)) if trips else 1) * sum(called)
      elif called:
        total += max(called) if operation == "conditional" else sum(called)
      else:
        total += operation not in _FREE
    return total

  return launches(entry)


def _computations(text: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
  """Parse an HLO module; return the entry's name and, by computation, operation and line of each instruction."""
  bodies: dict[str, list[tuple[str, str]]] = {"": []}
  entry = name = ""
  for line in text.splitlines():
    head = _COMPUTATION.match(line)
    found = _INSTRUCTION.match(line)
    if head:
      name = head.group(1)
      entry = name if line.startswith("ENTRY") else entry
      bodies[name] = []
    elif found:
      bodies[name].append((found.group(1), line))
  return entry, bodies


def _called(operation: str, line: str) -> list[str]:
  """Return the computations whose kernels an instruction launches; none if the instruction itself is a kernel."""
  if operation not in _CALLS or 'xla_cpu_small_call="true"' in line:
    return []
  named = " ".join(one or many for key, one, many in _NAMED.findall(line) if key in _CALLS[operation])
  return re.findall(r"[\w.\-]+", named)


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
  """Call a function and wait for its results; return the results and the elapsed time [s]."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def leaf_bytes(tree: Any) -> int:
  """Sum the bytes of all arrays of a pytree."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))
