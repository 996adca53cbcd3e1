"""Machine code on disk: the next process compiles nothing; what is damaged, or others could have written, is not loaded."""

import errno
import os
import pathlib
import stat
import subprocess
import sys
import textwrap
import threading

import ffi_pool
import jax
import numpy as np
import pytest
import straight

import mjx_lite as mjx
from mjx_lite.compiler import disk, scalars
from mjx_lite.compiler.backends import llvm, llvm_machine

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """An own folder, of which nothing has been said, and a process that has compiled nothing."""
  place = tmp_path / "made" / "here"
  monkeypatch.setenv(disk.VARIABLE, str(place))
  monkeypatch.setattr(disk, "_said", set())
  monkeypatch.setattr(llvm_machine, "_made", {})
  monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *args: None)  # XLA takes a name once
  return place


@pytest.fixture
def compiled(monkeypatch):
  """Grows with each call of LLVM."""
  found, make = [], llvm_machine.objects
  monkeypatch.setattr(llvm_machine, "objects", lambda *args: found.append(1) or make(*args))
  return found


def _program(factor=2.0):
  """A program of one number for each world: x * x * factor."""
  p = scalars.Program()
  x = int(p.inputs(0, (1, 1), np.float32, True).item())
  return p, [np.array([p.make("mul", "f", p.make("mul", "f", x, x), p.const(factor, "f"))])]


def _made_anew(factor=2.0):
  """The kernel of a program, as a new process has it; its numbers are right."""
  llvm_machine._made.clear()
  p, outs = _program(factor)
  made = llvm_machine.target("mjx_lite", llvm._key(p, [1], outs, 8), lambda: llvm.kernel(p, [1], outs, 8))
  x = np.arange(5, dtype=np.float32)[:, None]
  out, memory = ffi_pool.empty(x.shape, np.float32), np.zeros(made.size, np.uint8)
  ffi_pool.Pool(1, "threads").call(llvm_machine._made[made.name][1].get_function_address("step"), [x], [out, memory])
  np.testing.assert_array_equal(out, x * x * np.float32(factor))
  return made


def _file(folder):
  (path,) = folder.iterdir()
  return path


# ------------------------------------------------------------------------------------------------------ from disk or compiled


def test_found_again(folder, compiled):
  first = _made_anew()
  assert len(compiled) == 1 and stat.S_IMODE(folder.stat().st_mode) == 0o700
  assert _made_anew() == first and len(compiled) == 1
  _made_anew(3.0)
  assert len(compiled) == 2 and len(list(folder.iterdir())) == 2


def _flipped(data, at):
  return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [
  lambda x: b"", lambda x: x[:10], lambda x: x[:32], lambda x: x[: len(x) // 2], lambda x: x[:-1], lambda x: x + b"x",
  lambda x: _flipped(x, 0), lambda x: _flipped(x, 40), lambda x: _flipped(x, len(x) // 2), lambda x: _flipped(x, len(x) - 1),
])  # fmt: skip
def test_a_damaged_file_is_compiled_again(damage, folder, compiled):
  made = _made_anew()
  whole = _file(folder).read_bytes()
  _file(folder).write_bytes(damage(whole))
  assert disk.load(made.name) is None and not list(folder.iterdir())
  assert _made_anew() == made and len(compiled) == 2
  assert disk._unpacked(made.name, _file(folder).read_bytes()) == disk._unpacked(made.name, whole)


def test_a_file_of_another_name_is_not_loaded(folder):
  disk.store("a", [b"code"])
  (folder / "a.mjx").rename(folder / "b.mjx")
  assert disk.load("b") is None and not list(folder.iterdir())


def test_a_name_says_all_that_the_code_depends_on(monkeypatch):
  """Program, lanes, place of the inputs; processor, its features, system, versions of LLVM, and the compiler itself."""
  p, outs = _program()
  key = llvm._key(p, [1], outs, 8)
  other, others_outs = _program(np.nextafter(np.float32(2), np.float32(3)))
  moved = scalars.Program()
  x = int(moved.loads(scalars.Load(0, 1, True), 1, "f").item())
  moved_outs = [np.array([moved.make("mul", "f", moved.make("mul", "f", x, x), moved.const(2.0, "f"))])]
  keys = [key, llvm._key(p, [1], outs, 4), llvm._key(p, [2], outs, 8), llvm._key(other, [1], others_outs, 8)]
  keys += [llvm._key(moved, [1], moved_outs, 8), llvm._key(p, [1], [*outs, *outs], 8)]
  names = [llvm_machine._name("mjx_lite", k) for k in keys]
  name, features, lanes = llvm_machine.host()
  llvmlite = llvm_machine.library()
  for module, attribute, value in (
    (llvm_machine, "_SOURCES", "other"), (llvm_machine, "host", lambda: ("other", features, lanes)),
    (llvm_machine, "host", lambda: (name, f"{features},-fma", lanes)), (llvm_machine, "host", lambda: (name, features, 1)),
    (llvmlite, "get_default_triple", lambda: "other"), (llvmlite, "llvm_version_info", (1, 2, 3)), (os, "name", "other"),
    (llvm_machine.metadata, "version", lambda package: "other"),
  ):  # fmt: skip
    with monkeypatch.context() as patch:
      patch.setattr(module, attribute, value)
      names.append(llvm_machine._name("mjx_lite", key))
  assert len(set(names)) == len(names) == 14
  assert llvm_machine._name("mjx_lite", llvm._key(*_program()[:1], [1], _program()[1], 8)) == names[0]


def test_without_source_files_nothing_is_kept(folder, compiled, monkeypatch):
  """The code's own version is not known then."""
  monkeypatch.setattr(llvm_machine, "_SOURCES", "")
  _made_anew()
  _made_anew()
  assert len(compiled) == 2 and not folder.exists()


# ------------------------------------------------------------------------------------------------------------------ trust


def _refused(folder, compiled, match):
  """Nothing is loaded or written; it is said once."""
  names = sorted(folder.iterdir())
  before = len(compiled)
  with pytest.warns(mjx.SlowPathWarning, match=match) as found:
    _made_anew()
    _made_anew()
  assert len(found) == 1 and len(compiled) == before + 2 and sorted(folder.iterdir()) == names


# the code checks owners and mode bits on POSIX alone (`disk._check`): Windows has access lists, which it does not read
posix = pytest.mark.skipif(os.name != "posix", reason="owners and mode bits of files are checked on POSIX alone")


@posix
@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_to(mode, folder, compiled):
  _made_anew()
  folder.chmod(mode)
  _refused(folder, compiled, "other users can write to .*here")


@posix
def test_a_folder_of_another_user(folder, compiled, monkeypatch):
  _made_anew()
  user = os.geteuid()
  monkeypatch.setattr(os, "geteuid", lambda: user + 1)
  _refused(folder, compiled, "here belongs to another user")


@posix
def test_a_file_that_others_can_write_to(folder, compiled):
  """The file is not loaded, and a file that can be trusted is written in its place."""
  _made_anew()
  _file(folder).chmod(0o606)
  with pytest.warns(mjx.SlowPathWarning, match=r"other users can write to .*\.mjx"):
    _made_anew()
  assert len(compiled) == 2 and stat.S_IMODE(_file(folder).stat().st_mode) == 0o600
  _made_anew()
  assert len(compiled) == 2


# ------------------------------------------------------------------------------------------------- where there is no place


@pytest.mark.parametrize("value", ["0", "off"])
def test_off(value, compiled, folder, monkeypatch):
  monkeypatch.setenv(disk.VARIABLE, value)
  monkeypatch.chdir(folder.parents[1])
  _made_anew()
  _made_anew()
  assert len(compiled) == 2 and disk.folder() is None and not list(folder.parents[1].iterdir())


def test_off_for_a_while(folder):
  with disk.unused():
    disk.store("a", [b"code"])
    assert disk.load("a") is None
  assert disk.folder() == folder and not folder.exists()


def test_a_folder_that_cannot_be_made(folder, compiled, monkeypatch):
  """A file stands where the folder should; a home that can only be read is the same to the code."""
  folder.parents[1].joinpath("file").write_text("")
  monkeypatch.setenv(disk.VARIABLE, str(folder.parents[1] / "file" / "folder"))
  with pytest.warns(mjx.SlowPathWarning, match=f"not kept on disk: .*folder.*Set {disk.VARIABLE}") as found:
    _made_anew()
    _made_anew()
  assert len(found) == 1 and len(compiled) == 2


def test_no_space(folder, compiled, monkeypatch):
  def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "replace", full)
  with pytest.warns(mjx.SlowPathWarning, match="No space left") as found:
    _made_anew()
    _made_anew()
  assert len(found) == 1 and len(compiled) == 2 and not list(folder.iterdir())


def test_no_home(folder, monkeypatch):
  for name in (disk.VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(os.path, "expanduser", lambda path: path)
  for value in ("", "~/elsewhere"):
    monkeypatch.setenv(disk.VARIABLE, value)
    with pytest.warns(mjx.SlowPathWarning, match="no home folder"):
      disk.store("a", [b"code"])
    assert disk.load("a") is None


def test_default_folders(tmp_path, monkeypatch):
  monkeypatch.delenv(disk.VARIABLE)
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
  for platform, place in (("linux", "xdg"), ("darwin", "home/Library/Caches"), ("win32", "local")):
    monkeypatch.setattr(sys, "platform", platform)
    assert disk.folder() == tmp_path / place / "mjx_lite"
  monkeypatch.setattr(sys, "platform", "linux")
  for relative in ("", "caches"):  # of which XDG says that it does not count
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    assert disk.folder() == tmp_path / "home" / ".cache" / "mjx_lite"
  monkeypatch.setenv(disk.VARIABLE, "~/elsewhere")
  assert disk.folder() == tmp_path / "home" / "elsewhere"


# ------------------------------------------------------------------------------------------------------- size and writers


def test_the_longest_unused_go_first(folder, monkeypatch):
  monkeypatch.setattr(disk, "LIMIT", 4 * 1100)
  for k, name in enumerate("abcd"):
    disk.store(name, [bytes(1000)])
    os.utime(folder / f"{name}.mjx", (k, k))
  (folder / "notes").write_text("a user's file")
  assert disk.load("a") == [bytes(1000)]  # now `b` is the one that was not used for the longest time
  disk.store("e", [bytes(1000)])
  assert sorted(x.name for x in folder.iterdir()) == ["a.mjx", "c.mjx", "d.mjx", "e.mjx", "notes"]
  disk.store("f", [bytes(5000)])
  assert [x.name for x in folder.iterdir()] == ["notes"]  # it is larger than the limit by itself


_WRITER = f"""
  import importlib.util, sys, types
  sys.modules["mjx_lite"], errors = types.ModuleType("mjx_lite"), types.ModuleType("mjx_lite.errors")
  errors.SlowPathWarning, sys.modules["mjx_lite.errors"] = UserWarning, errors
  spec = importlib.util.spec_from_file_location("disk", {disk.__file__!r})
  disk = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(disk)
  own = bytes([int(sys.argv[1])]) * 30_000
  for k in range(200):
    disk.store("same", [own, b"", b"end"])
    found = disk.load("same")
    assert found is not None and len(found[0]) == len(own) and len(set(found[0])) == 1 and found[1:] == [b"", b"end"], k
"""


def test_two_processes_write_at_once(folder):
  """Without JAX, for the sake of time: the module needs none."""
  command = [sys.executable, "-W", "error", "-c", textwrap.dedent(_WRITER)]
  running = [subprocess.Popen([*command, str(k)], stderr=subprocess.PIPE, text=True) for k in (1, 2, 3)]
  for process in running:
    _, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
  assert [x.name for x in folder.iterdir()] == ["same.mjx"]


def test_threads_compile_once(folder, compiled):
  p, outs = _program()
  key, made = llvm._key(p, [1], outs, 8), []

  def make():
    made.append(llvm_machine.target("mjx_lite", key, lambda: llvm.kernel(p, [1], outs, 8)))

  threads = [threading.Thread(target=make) for _ in range(4)]
  for x in threads:
    x.start()
  for x in threads:
    x.join()
  assert len(compiled) == 1 and len({x.name for x in made}) == 1 and len(made) == 4


# ------------------------------------------------------------------------------------------------------------- processes

_STEPS = f"""
  import os, pathlib, jax, mujoco, mjx_lite as mjx
  from mjx_lite.compiler.backends import llvm_machine
  m = mjx.put_model(mujoco.MjModel.from_xml_string('''{straight.SWING}'''))
  d = jax.tree.map(lambda x: jax.numpy.stack([x] * 32), mjx.make_data(m))
  is_there = pathlib.Path(os.environ["MJX_LITE_CACHE"]).exists()
  made, make, hits = [], llvm_machine.objects, []
  llvm_machine.objects = lambda *a: made.append(1) or make(*a)
  event = "/jax/compilation_cache/cache_hits"
  jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name == event else None)
  step = jax.jit(jax.vmap(mjx.step, in_axes=(None, 0))).lower(m, d)
  before = len(hits)
  step = step.compile()
  hit = len(hits) - before
  for _ in range(20):
    d = step(m, d)
  slope = mjx.jit(jax.grad(lambda v: jax.vmap(mjx.step, (None, 0))(m, d.replace(qvel=v)).qpos.sum()))(d.qvel)
  print(is_there, len(made), hit, d.qpos.sum(), abs(slope).sum())
"""


def _process(**env):
  command = [sys.executable, "-W", "error::mjx_lite.errors.SlowPathWarning", "-c", textwrap.dedent(_STEPS)]
  done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-3000:]
  is_there, made, hit, *numbers = done.stdout.split()
  return is_there == "True", int(made), int(hit), numbers


def test_the_second_process_compiles_nothing(tmp_path):
  """With its own files alone, and with JAX's programs, which call the kernels by their names; importing writes nothing."""
  own = {disk.VARIABLE: str(tmp_path / "own")}
  both = {**own, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
  is_there, made, hit, numbers = _process(**both)
  assert (is_there, hit) == (False, 0) and made >= 4  # probes, the step, the derivative's two
  assert _process(**own) == (True, 0, 0, numbers)
  assert _process(**both) == (True, 0, 1, numbers)
  for path in pathlib.Path(own[disk.VARIABLE]).iterdir():
    path.unlink()
  assert _process(**both) == (True, made, 1, numbers)
