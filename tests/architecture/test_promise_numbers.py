"""Each of MuJoCo's promises about states, steps, constraints, integrators and mechanics, P01 to P133, has a test.

A comment above a test names the promises that it keeps. Those that no test here could keep stand below with the reason.
"""

import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]
LAST = 133
# numbers that no promise has
NONE = {*range(14, 20), *range(30, 40), *range(72, 80), *range(86, 90), *range(99, 110)}
ELSEWHERE = {
  97: "text of warnings, once per kind: a compiled step prints nothing, it counts in Data.status (tests/model/test_status.py)",
  119: "shortcuts of actuators: the compiler turns them into gainprm and biasprm, which are all that put_model reads",
  130: "springdamper: the compiler turns it into stiffness and damping, which are all that put_model reads",
}


def named() -> dict[int, list[str]]:
  """Number of each promise that stands above a test, and those tests."""
  found = {}
  for path in sorted(TESTS.rglob("test_*.py")):
    for numbers, test in re.findall(r"^# (P\d+(?:, P\d+)*)\n(?:[@ )].*\n)*def (test_\w+)", path.read_text(), re.M):
      for number in re.findall(r"\d+", numbers):
        found.setdefault(int(number), []).append(f"{path.name}::{test}")
  return found


def test_every_promise_has_a_test_or_a_reason():
  kept = named()
  assert not NONE & ELSEWHERE.keys()
  for number in range(1, LAST + 1):
    excused = number in NONE or number in ELSEWHERE
    assert (number in kept) != excused, f"P{number:02}: {kept.get(number) or 'no test names it'}"
  assert set(kept) <= set(range(1, LAST + 1))


def test_no_comment_of_the_kind_is_overlooked():
  """Every line that only names promises stands above a test."""
  lines = [x for path in TESTS.rglob("test_*.py") for x in re.findall(r"^# P\d.*", path.read_text(), re.M)]
  assert sum(len(re.findall(r"P\d+", x)) for x in lines) == sum(len(x) for x in named().values())
