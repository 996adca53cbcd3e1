"""The page of walks is as the code: each function is called by the one before it, in at most five calls, and no file twice."""

import ast
import functools
import itertools
import pathlib
import re
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "mjx_lite"
PAGE = ROOT / "docs" / "concepts" / "walks.md"
MOST = 5  # calls below `step`
# heading of each walk, and its first and its last function
WALKS = {
  "Impedance of a friction cone": ("step", "impedance"),
  "A capsule against a box": ("step", "capsule_box"),
  "Gain of a muscle": ("step", "gain"),
}


class Stop(NamedTuple):
  """A row of the page: a function, its file, and what leads to the function if it is not called by its name.

  `through` is empty, or names a table and its file. Or it names a field or an argument, what in the caller's file fills it from
  a table, the table and its file.
  """

  function: str
  file: str
  through: tuple[str, ...]


def walks():
  """Walks of the page, by heading."""
  found = {}
  for part in PAGE.read_text().split("\n## ")[1:]:
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|(.*)\|$", part, re.M)
    found[part.splitlines()[0]] = [Stop(name, file, tuple(re.findall(r"`([\w/.]+)`", rest))) for name, file, rest in rows]
  return found


@functools.cache
def tree_of(file):
  return ast.parse((PACKAGE / file).read_text())


@functools.cache
def origins(file):
  """What the names of a module mean: name -> (file, name there), or (file, None) for a module."""
  found = {}
  for node in tree_of(file).body:
    if isinstance(node, ast.FunctionDef):
      found[node.name] = (file, node.name)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
      for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Name):
          found[target.id] = (file, target.id)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mjx_lite"):
      inside = node.module.split(".")[1:]
      for alias in node.names:
        module = "/".join([*inside, alias.name]) + ".py"
        is_module = (PACKAGE / module).exists()
        found[alias.asname or alias.name] = (module, None) if is_module else ("/".join(inside) + ".py", alias.name)
  return found


def named_in(file, node):
  """All functions and tables of the package that a piece of code of a file names, as (file, name)."""
  known = origins(file)
  for x in ast.walk(node):
    if isinstance(x, ast.Name) and x.id in known:
      yield known[x.id]
    elif isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id in known:
      module, inside = known[x.value.id]
      if inside is None:
        yield module, x.attr


def called_in(file, node):
  """As `named_in`, for functions that are called."""
  for x in ast.walk(node):
    if isinstance(x, ast.Call):
      yield from named_in(file, x.func)


def definition(file, name):
  """The function, the class or the assignment of a module with this name."""
  for node in tree_of(file).body:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if name in (getattr(node, "name", None), *(x.id for x in targets if isinstance(x, ast.Name))):
      return node
  raise AssertionError(f"{file} has no {name}")


def is_table(file, name):
  """Whether a name of a module is a dictionary that is written out."""
  return isinstance(getattr(definition(file, name), "value", None), ast.Dict)


def is_in_table(table, file, stop):
  """Whether an entry of a table, a dictionary written out in a file, names the function, a maker, or a table that names it."""
  for entry in definition(file, table).value.values:
    named = set(named_in(file, entry))
    tables = [(name, where) for where, name in named if name is not None and is_table(where, name)]
    if any(is_in_table(*x, stop) for x in tables):
      return True
    makers = [definition(file, name) for where, name in named if where == file and name is not None]
    if (stop.file, stop.function) in named.union(*(named_in(file, x) for x in makers)):
      return True
  return False


def calls(caller, stop):
  """Whether the caller calls the function: by its name, or as an entry of the table that the page names."""
  body = definition(caller.file, caller.function)
  assert isinstance(definition(stop.file, stop.function), ast.FunctionDef)
  if not stop.through:
    return (stop.file, stop.function) in called_in(caller.file, body)
  *field, table, file = stop.through
  if not is_in_table(table, file, stop):
    return False
  if not field:
    return (file, table) in called_in(caller.file, body)
  name, source = field
  called = [x.func for x in ast.walk(body) if isinstance(x, ast.Call)]
  is_called = any(name in (getattr(x, "attr", None), getattr(x, "id", None)) for x in called)
  is_here = any(getattr(x, "name", None) == source for x in tree_of(caller.file).body)
  return is_called and is_here and (file, table) in named_in(caller.file, definition(caller.file, source))


def is_whole(walk):
  return all(calls(*pair) for pair in itertools.pairwise(walk))


def test_the_page_has_the_walks():
  found = walks()
  assert {heading: (walk[0].function, walk[-1].function) for heading, walk in found.items()} == WALKS
  assert {walk[0].file for walk in found.values()} == {"pipeline/step.py"}


@pytest.mark.parametrize("heading", WALKS)
def test_each_function_is_called_by_the_one_before(heading):
  for caller, stop in itertools.pairwise(walks()[heading]):
    assert calls(caller, stop), f"{caller.function} of {caller.file} does not call {stop.function} of {stop.file}"


@pytest.mark.parametrize("heading", WALKS)
def test_a_missing_call_is_found(heading):
  walk = walks()[heading]
  for k in range(1, len(walk) - 1):
    assert not is_whole(walk[:k] + walk[k + 1 :]), walk[k]


@pytest.mark.parametrize("heading", WALKS)
def test_no_file_is_entered_twice(heading):
  files = [file for file, _ in itertools.groupby(stop.file for stop in walks()[heading])]
  assert len(files) == len(set(files))


@pytest.mark.parametrize("heading", WALKS)
def test_a_walk_is_short(heading):
  assert len(walks()[heading]) - 1 <= MOST
