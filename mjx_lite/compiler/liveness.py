"""What of a scalar program something reads: of the state of a loop and of the rows of a queue often a part only.

Tests: tests/compiler/test_arrays.py.
"""

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from mjx_lite.compiler.operations import Loop, Queue
from mjx_lite.compiler.scalars import Program


def alive(p: Program, roots: Iterable[int]) -> set[int]:
  """Return all numbers that `roots` depend on, those in loops and queues included."""
  of_state: dict[int, tuple[int, ...]] = {}  # what a number of a state comes from: its loop or queue, first and next number
  for k, inside in p.payload.items():
    loop = _loop(inside)
    if loop is not None:
      of_state.update((a, (k, *b)) for a, *b in zip(loop.params, loop.first, loop.last, strict=True))
    if isinstance(inside, Queue):
      of_state[inside.item] = (k,)
  stack, seen = list(roots), set()
  while stack:
    k = stack.pop()
    if k not in seen:
      seen.add(k)
      stack += of_state[k] if p.op[k] == "param" else _sources(p, k)
  return seen


def _loop(inside: Any) -> Loop | None:
  """Return a loop, or the search of a queue, from the further data of a number."""
  if isinstance(inside, Queue):
    return inside.search
  return inside if isinstance(inside, Loop) else None


def _sources(p: Program, k: int) -> Iterator[int]:
  """Yield the numbers that a number depends on; of a loop and of a queue what decides about its course."""
  inside = p.payload.get(p.args[k][0] if p.op[k] == "after" else k)
  loop = _loop(inside)
  if p.op[k] == "after":
    at = p.payload[k]
    yield p.args[k][0]
    if isinstance(inside, Queue):
      yield from (inside.first[at], inside.last[at % len(inside.last)])
    elif loop is not None:
      yield loop.params[at]
    return
  if isinstance(inside, Queue):
    yield from inside.wanted
  if loop is not None:
    yield loop.proceeds
  if p.op[k] not in ("loop", "queue"):
    yield from p.args[k]


def readers(p: Program, numbers: Iterable[int]) -> collections.Counter[int]:
  """Return how often each number is an operand of `numbers`, or what a loop or a queue among these becomes."""
  found: collections.Counter[int] = collections.Counter()
  for k in numbers:
    found.update(p.args[k])
    inside = p.payload.get(k)
    loop = _loop(inside)
    if isinstance(inside, Queue):
      found.update(inside.last)
    if loop is not None:
      found.update((*loop.last, loop.proceeds))
  return found
