"""What a program costs: seconds to trace and to compile, and the size of what XLA made of it."""

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any

import jax

import mjx_lite as mjx
from mjx_lite.core import worlds

# instructions that move or name values and start no work of their own
_FREE = frozenset(
  ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"]
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(")
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
  """

  call: Callable[..., Any]
  trace_s: float
  compile_s: float
  instructions: int
  fusions: int
  kernels: int


def compile_program(function: Callable[..., Any], *args: Any, jit: Callable[..., Any] = mjx.jit) -> Program:
  """Traces and compiles a function for the given arguments, the two timed apart; nothing is left from earlier calls."""
  worlds.clear_caches()
  start = time.perf_counter()
  lowered = jit(function).lower(*args)
  traced = time.perf_counter()
  compiled = lowered.compile()
  end = time.perf_counter()
  return Program(compiled, traced - start, end - traced, *count_hlo(compiled.as_text() or ""))


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


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
  """Calls a function and waits for its results; returns them and the time taken [s]."""
  start = time.perf_counter()
  result = jax.block_until_ready(function(*args))
  return result, time.perf_counter() - start


def leaf_bytes(tree: Any) -> int:
  """Bytes of all arrays of a pytree."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))
