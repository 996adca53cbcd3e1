"""The reference: every public name says what it is and what it takes, and pdoc makes pages of it."""

import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference.md"
MODULES = ("mjx_lite", "mjx_lite.envs", "mjx_lite.control", "mjx_lite.sysid", "mjx_lite.viz")
# modules that are meant to be read as they are have no list of names: these functions of them are for users
MORE = {
  "mjx_lite.envs.gym": ("GymVectorEnv", "TorchVectorEnv"),
  "mjx_lite.rl.ppo": ("Config", "train", "make_policy"),
  "mjx_lite.rl.shac": ("Config", "train", "make_policy"),
  "mjx_lite.sysid.shape": ("with_size",),
  "mjx_lite.testing.compare": ("Engine", "FieldError", "compare_stages", "optimal", "relative_error"),
}
PUBLIC = [(x, name) for x in MODULES for name in importlib.import_module(x).__all__]
PUBLIC += [(module, name) for module, names in MORE.items() for name in names]


def find(kind):
  """Public things of a kind, with their names."""
  for module, name in PUBLIC:
    if kind(x := getattr(importlib.import_module(module), name)):
      yield f"{module}.{name}", x


def test_public_classes_and_their_methods_say_what_they_are():
  silent = []
  for name, x in find(inspect.isclass):
    own = [m for m, f in vars(x).items() if not m.startswith("_") and inspect.isfunction(getattr(f, "fget", f))]
    own = [m for m in own if getattr(vars(x)[m], "fget", vars(x)[m]).__name__ != "<lambda>"]  # flags, whose names say it all
    silent += [f"{name}.{m}" for m in own if not inspect.getdoc(getattr(x, m))]
    silent += [] if inspect.getdoc(x) else [name]
  assert not silent


def test_public_functions_say_what_they_take():
  """`m` and `d` are the Model and the Data everywhere; each other argument is named in the docstring."""
  silent = {}
  for name, x in find(inspect.isfunction):
    text = inspect.getdoc(x) or ""
    taken = inspect.signature(x).parameters.keys() - {"m", "d"}
    lost = [p for p in taken if not re.search(rf"(\b|\*){p}\b", text) and "Arguments as of `" not in text]
    if lost or not text:
      silent[name] = lost
  assert not silent


# the extra `test` brings pdoc, so CI runs this; an older environment may lack it
@pytest.mark.skipif(not importlib.util.find_spec("pdoc"), reason="pdoc is not installed: pip install -e '.[docs]'")
def test_pdoc_makes_the_pages(tmp_path):
  command = re.search(r"^(PDOC_ALLOW_EXEC=1 )pdoc (.*) -o site$", PAGE.read_text(), re.M)
  words = command[2].split()
  done = subprocess.run(
    [sys.executable, "-m", "pdoc", *words, "-o", str(tmp_path)], capture_output=True, text=True,
    env={**os.environ, "PDOC_ALLOW_EXEC": "1"},
  )  # fmt: skip
  assert done.returncode == 0 and not done.stderr, done.stderr
  for module in (*MODULES, *MORE):
    assert module in words or module.rpartition(".")[0] in words
    page = (tmp_path / (module.replace(".", "/") + ".html")).read_text()
    assert all(f'id="{name}"' in page for m, name in PUBLIC if m == module)
