"""The commands, in sizes that take seconds."""

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import mujoco
import numpy as np
import pytest
from mujoco import viewer

import mjx_lite as mjx
from mjx_lite import viz
from mjx_lite.cli import COMMANDS, common, inspect, main, view
from mjx_lite.io import capacity
from mjx_lite.testing import compare
from mjx_lite.viz import backend, draw

_UNSUPPORTED = """
<mujoco>
  <worldbody>
    <body name="b"><joint name="j"/><geom size="0.1"/><site name="s"/></body>
  </worldbody>
  <actuator><general name="magic" joint="j" biastype="dcmotor"/></actuator>
</mujoco>
"""


@pytest.fixture(autouse=True)
def plain_console(monkeypatch):
  """Wide output without colours, and no cache on disk outside the test."""
  monkeypatch.setattr(common, "stdout", common.console(width=200, no_color=True))
  monkeypatch.setattr(common, "stderr", common.console(width=200, no_color=True, stderr=True))
  monkeypatch.setattr(common, "use_compilation_cache", lambda: None)


def test_module_help_lists_the_commands():
  done = subprocess.run(
    [sys.executable, "-m", "mjx_lite", "--help"], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
  )
  assert done.returncode == 0, done.stderr
  assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help(command, capsys):
  with pytest.raises(SystemExit) as end:
    main([command, "--help"])
  assert end.value.code == 0
  assert "--worlds" in capsys.readouterr().out or command in ("check", "view")


def test_version(capsys):
  with pytest.raises(SystemExit) as end:
    main(["--version"])
  assert end.value.code == 0 and f"mujoco {mujoco.__version__}" in capsys.readouterr().out


_WRONG = [
  [], ["no_such_command"], ["bench"], ["demo", "--worlds", "0"], ["demo", "--seed", "-1"],
  ["bench", "humanoid", "--seed", "-1"], ["check", "humanoid", "--seed", "-1"],
  ["view", "humanoid", "--port", "99999"], ["view", "humanoid", "--seconds", "nan"],
]  # fmt: skip


@pytest.mark.parametrize("argv", _WRONG, ids=" ".join)
def test_wrong_arguments(argv, capsys):
  with pytest.raises(SystemExit) as end:
    main(argv)
  assert end.value.code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_argument_is_reported_with_the_usage_of_its_command(command, capsys):
  with pytest.raises(SystemExit) as end:
    main([command, *(["humanoid"] if command != "demo" else []), "--no-such"])
  assert end.value.code == 2
  err = capsys.readouterr().err
  assert f"usage: mjx-lite {command} " in err and "unrecognized arguments: --no-such" in err


_FILES = {
  "missing": (None, "no such file"),
  "broken": ("<mujoco><worldbody><body/></worldbod></mujoco>", "cannot compile"),
  "empty": ("", "cannot compile"),
  "binary": ("\0\1\2", "cannot compile"),
  "massless": ('<mujoco><worldbody><body name="arm"><joint/></body></worldbody></mujoco>', "arm"),
  "folder": ("folder", "folder"),
}


@pytest.mark.parametrize("kind", _FILES)
@pytest.mark.parametrize("command", [x for x in COMMANDS if x != "demo"])
def test_a_file_that_is_no_model_is_reported_in_one_line(command, kind, tmp_path, capfd, monkeypatch):
  monkeypatch.setattr(common, "stderr", common.console(width=40, no_color=True, stderr=True))  # a narrow terminal
  text, reason = _FILES[kind]
  path = tmp_path / "model.xml"
  if text == "folder":
    path.mkdir()
  elif text is not None:
    path.write_text(text)
  assert main([command, str(path)]) == 2
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) == 1 and lines[0].startswith(f"mjx-lite {command}: {path}: ") and reason in lines[0]


def test_more_worlds_than_there_is_memory_for(tmp_path, capsys):
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["bench", str(path), "--worlds", str(10**13)]) == 2
  err = capsys.readouterr().err
  assert len(err.splitlines()) == 1 and "memory" in err and "--worlds" in err


def test_demo_into_what_is_no_folder_computes_nothing(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(common, "load_model", None)
  (tmp_path / "file").write_text("")
  assert main(["demo", "--out", str(tmp_path / "file")]) == 2
  assert "folder for pictures cannot be made" in capsys.readouterr().err


def test_demo_without_a_picture(tmp_path, capsys, monkeypatch):
  # a machine on which nothing can draw still runs the demo
  monkeypatch.setattr(draw, "choose_backend", lambda: backend.Backend(None, (("egl", "no driver"),)))
  assert main(["demo", "--worlds", "4", "--steps", "6", "--out", str(tmp_path)]) == 0
  out = capsys.readouterr().out
  for text in (
    "steps per second",
    "realtime factor",
    "trace + compile",
    "deviation",
    "status",
    "no picture",
    "apt-get",
  ):
    assert text in out
  assert not list(tmp_path.iterdir())


def test_demo_without_ffmpeg_and_mediapy_says_what_to_install(tmp_path, capsys, monkeypatch):
  def find_spec(name, find=importlib.util.find_spec):
    return None if name == "mediapy" else find(name)

  monkeypatch.setattr(importlib.util, "find_spec", find_spec)
  monkeypatch.setattr(shutil, "which", lambda _: None)
  monkeypatch.setattr(viz, "render_grid", lambda *_, **__: np.zeros((2, 2, 3), np.uint8))
  assert main(["demo", "--worlds", "2", "--steps", "2", "--out", str(tmp_path / "[dim]:bug:")]) == 0
  out = capsys.readouterr().out
  assert "no film: ffmpeg is not on the PATH and mediapy is not installed (pip install 'mjx_lite[viz]')" in out
  assert str(tmp_path / "[dim]:bug:" / "demo.png") in out
  monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/ffmpeg")
  assert (draw.why_no_mp4() or "").startswith("mediapy")


_BRACKETS = ("[bold]", "[/]", "[/red]", ":bug:", "[link=x]")  # style, ends of styles that are not open, emoji, link


@pytest.mark.parametrize("name", _BRACKETS)
def test_names_and_paths_with_brackets_are_printed_literally(name, tmp_path, capsys, monkeypatch):
  path = tmp_path / f"{name.replace('/', '')}.xml"
  path.write_text(_UNSUPPORTED.replace("magic", f"magic{name}"))
  assert main(["inspect", str(path), "--no-times"]) == 1
  out = capsys.readouterr().out
  assert f"magic{name}" in out and out.startswith(str(path))
  assert main(["check", str(path)]) == 2
  assert f"magic{name}" in capsys.readouterr().err

  path.write_text(_BALL.replace('name="x"', f'name="x{name}"').replace('joint="x"', f'joint="x{name}"'))
  monkeypatch.setattr(compare, "Engine", _Wrong)
  assert main(["check", str(path), "--steps", "2"]) == 1
  out = capsys.readouterr().out
  assert out.count(f"joint 'x{name}' dof 0") == 2 and f"{path}: 2 states" in out  # in the table, and as the first difference


@pytest.mark.parametrize("command", ["bench", "check"])
def test_a_path_with_brackets_is_printed_literally(command, tmp_path, capsys):
  (path := tmp_path / "[dim]arm.xml").write_text("<mujoco/>")
  short = {"bench": ["--worlds", "2", "--steps", "2", "--repeats", "1"], "check": ["--steps", "1", "--grad"]}
  assert main([command, str(path), *short[command]]) == 0
  assert f"{path}: " in capsys.readouterr().out


class _Wrong:
  """C itself, but for one component of one dof's acceleration."""

  def __init__(self, mj_model):
    self.mj_model, self.m = mj_model, mjx.put_model(mj_model)

  def step(self, state):
    d = compare._state_only(self.mj_model, state)
    mujoco.mj_step(self.mj_model, d)
    d.qacc[0] += 1
    return d


def test_contacts_that_do_not_fit_are_told(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(capacity, "choose", lambda *x: mjx.Capacity(ncon_max=1))
  balls = "".join(f'<body pos="{k} 0 .09"><freejoint/><geom size=".1"/></body>' for k in range(3))
  (path := tmp_path / "balls.xml").write_text(
    f'<mujoco><worldbody><geom type="plane" size="9 9 1"/>{balls}</worldbody></mujoco>'
  )
  assert main(["bench", str(path), "--worlds", "2", "--steps", "2", "--repeats", "1"]) == 0
  text = " ".join(capsys.readouterr().err.split())
  assert "in 2 of 2 worlds" in text and "put_model(m, ncon_max=3) would have sufficed" in text
  assert main(["inspect", str(path), "--no-times"]) == 0
  assert "contact slots: 1, as of put_model(m, ncon_max=1)" in capsys.readouterr().out


def test_check_of_the_shipped_humanoid(capsys):
  assert main(["check", "humanoid", "--steps", "8"]) == 0
  out = capsys.readouterr().out
  assert "equal" in out and "contacts" in out


def test_check_names_the_first_difference(capsys, monkeypatch):
  class Wrong:
    """C itself, but for one component of one body's position."""

    def __init__(self, mj_model):
      self.mj_model, self.m = mj_model, mjx.put_model(mj_model)

    def step(self, state):
      import mujoco

      d = compare._state_only(self.mj_model, state)
      mujoco.mj_step(self.mj_model, d)
      d.xpos[mujoco.mj_name2id(self.mj_model, mujoco.mjtObj.mjOBJ_BODY, "left_foot"), 2] += 1e-3
      d.qacc[8] += 1
      return d

  monkeypatch.setattr(compare, "Engine", Wrong)
  assert main(["check", "humanoid", "--steps", "2"]) == 1
  out = capsys.readouterr().out
  assert "first at step 0 in kinematics: xpos of body 'left_foot' component 2" in out
  assert "spine_roll" in out


def test_bench(capsys):
  assert main(["bench", "humanoid", "--worlds", "4", "--steps", "3", "--repeats", "1", "--batch", "--json"]) == 0
  result = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert result["steps_per_s"] > 0 and result["ratio"] > 0 and result["compile_s"] > 0
  assert result["bytes_per_world"] > 1000 and result["instructions"] > result["fusions"] > 0


def test_inspect(tmp_path, capsys):
  assert main(["inspect", "humanoid", "--no-times"]) == 0
  out = capsys.readouterr().out
  for text in ("nv 27", "plane - capsule", "contact slots", "bytes of Data per world", "unsupported: nothing"):
    assert text in out


def test_inspect_of_a_model_with_nothing_in_it(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(inspect, "STAGES", ("com_pos", "step"))
  (tmp_path / "empty.xml").write_text("<mujoco/>")
  assert main(["inspect", str(tmp_path / "empty.xml"), "--worlds", "2"]) == 0
  out = capsys.readouterr().out
  assert "nv 0" in out and "com_pos" in out


def test_check_and_bench_of_a_model_with_nothing_in_it(tmp_path, capsys):
  path = tmp_path / "empty.xml"
  path.write_text("<mujoco/>")
  assert main(["check", str(path), "--steps", "2"]) == 0
  out = capsys.readouterr().out
  assert "equal" in out and "without any difference" in out and "allowed" not in out  # no table without rows
  assert main(["bench", str(path), "--worlds", "2", "--steps", "2", "--repeats", "1"]) == 0
  assert "steps per second" in capsys.readouterr().out


def test_inspect_lists_what_is_unsupported(tmp_path, capsys):
  path = tmp_path / "model.xml"
  path.write_text(_UNSUPPORTED)
  code = main(["inspect", str(path), "--no-times"])
  out = capsys.readouterr().out
  assert code == 1 and "magic" in out


_BALL = """
<mujoco>
  <worldbody>
    <body><joint name="x" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body>
  </worldbody>
  <actuator><motor joint="x"/></actuator>
</mujoco>
"""


def test_view_without_a_display_says_what_to_do(tmp_path, capsys, monkeypatch):
  monkeypatch.delenv("DISPLAY", raising=False)
  monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
  monkeypatch.setattr(sys, "platform", "linux")
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["view", str(path)]) == 2
  err = capsys.readouterr().err
  assert "no display" in err and "viz.render" in err


def test_view_follows_sliders_mouse_reset_and_options(tmp_path, capsys, monkeypatch):
  """With a window that is not there: what its user would do is written into the MjData in `sync`."""
  seen = []

  class Window:
    def __init__(self, mj_model, d):
      self.mj_model, self.d = mj_model, d

    def __enter__(self):
      return self

    def __exit__(self, *_):
      pass

    def lock(self):
      return contextlib.nullcontext()

    def is_running(self):
      return len(seen) < 7

    def sync(self):
      seen.append((self.d.time, self.d.qpos[0], self.d.qvel[0]))
      self.d.ctrl[0] = 2 if len(seen) == 1 else 0
      self.d.xfrc_applied[1, 0] = -4 if len(seen) == 2 else 0
      if len(seen) == 4:
        mujoco.mj_resetData(self.mj_model, self.d)
      if len(seen) == 5:
        self.mj_model.opt.gravity[0] = 5
      if len(seen) == 6:  # not supported
        self.mj_model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_SLEEP

  monkeypatch.setenv("DISPLAY", ":0")
  monkeypatch.setattr(viewer, "launch_passive", Window)
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["view", str(path)]) == 0
  span = 8 * 0.002  # eight steps a picture
  times, places, speeds = np.array(seen).T
  np.testing.assert_allclose(times, span * np.array([1, 2, 3, 4, 1, 2, 3]), rtol=1e-5)
  np.testing.assert_allclose(speeds, span * np.array([0, 2, -2, -2, 0, 5, 10]), rtol=1e-4, atol=1e-9)
  assert places[1] > 0 and places[4] == 0
  assert "keeps the previous options" in (err := capsys.readouterr().err) and "sleep" in err.lower()


def test_view_waits_until_the_window_is_gone(tmp_path, monkeypatch):
  """GLFW, ended by Python in the middle of a picture, could hang."""
  gone = []

  class Window:
    def __init__(self, *_):
      self.closed = threading.Event()
      threading.Thread(target=self.draw, daemon=True).start()

    def draw(self):
      self.closed.wait(60)
      time.sleep(0.2)
      gone.append(True)

    def __enter__(self):
      return self

    def __exit__(self, *_):
      self.closed.set()

    def is_running(self):
      return False

  monkeypatch.setenv("DISPLAY", ":0")
  monkeypatch.setattr(viewer, "launch_passive", Window)
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["view", str(path)]) == 0
  assert gone


def test_view_does_not_wait_forever():
  free = threading.Event()
  stuck = threading.Thread(target=free.wait, args=(60,), daemon=True)
  stuck.start()
  view._join({stuck}, patience=0.1)
  assert stuck.is_alive()
  free.set()


def test_view_refuses_time_that_stands_still(tmp_path, capsys, monkeypatch):
  monkeypatch.setenv("DISPLAY", ":0")
  path = tmp_path / "ball.xml"
  path.write_text(_BALL.replace("<worldbody>", '<option timestep="0"/><worldbody>'))
  assert main(["view", str(path)]) == 2
  assert "timestep = 0, has to be above 0" in capsys.readouterr().err


def test_view_in_a_browser_is_served_to_this_machine_alone(tmp_path, monkeypatch):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  pages, refused, step = {}, [], view.World.step

  def visit(world, steps):
    step(world, steps)
    for name in {"", "model"} - pages.keys():
      address = f"http://127.0.0.1:{port}/{name}"
      with contextlib.suppress(urllib.error.URLError, TimeoutError), urllib.request.urlopen(address, timeout=10) as page:
        pages[name] = page.read()
    if len(pages) == 2:
      with socket.socket() as other:  # another of the machine's addresses
        refused.append(other.connect_ex(("127.0.0.2", port)) != 0)
      raise KeyboardInterrupt

  monkeypatch.setattr(view.World, "step", visit)
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["view", str(path), "--web", "--port", str(port), "--seconds", "60"]) == 130  # as Ctrl+C ends it
  assert b"<html" in pages[""] and len(pages["model"]) > 1000
  assert refused == [True]


def test_view_in_a_browser_follows_the_mouse_and_the_buttons(tmp_path, monkeypatch):
  """Without a page: what it would send when goes through the queues of the server, which is not there either."""
  from mujoco.studio import launch_thread, messages, sim, viewer_handle

  page, seen = [], []

  def launch(_, sim_plugins):
    page_end, end = launch_thread.make_thread_endpoints()
    page.append(page_end)
    return viewer_handle.ViewerHandle(end, sim_plugins=sim_plugins)

  def push(force):
    state = np.array([0, 0, 0, 0, 0, 0, force, 0, 0, 0, 0, 0], float)
    return messages.PerturbSnapshot(state=state, state_sig=int(mujoco.mjtState.mjSTATE_XFRC_APPLIED))

  paused, running = sim.PauseState.NORMAL_PAUSED, sim.PauseState.UNPAUSED
  script = [
    push(-4), push(0), messages.StepControlSnapshot(pause_state=paused), messages.SingleStepEvent(), None,
    messages.StepControlSnapshot(pause_state=running, speed=50), None, None,
  ]  # fmt: skip

  class Script:
    """A picture for each message; the last is without one."""

    def __init__(self, _):
      self.messages = iter(script)

    def wait(self, _):
      message = next(self.messages, "end")
      if message not in (None, "end"):
        page[0].send_to_sim(message)
      return message != "end"

  step = view.World.step

  def watch(world, steps):
    step(world, steps)
    seen.append((world.mj_data.time, world.mj_data.qvel[0]))

  monkeypatch.setattr(launch_thread, "launch_thread", launch)
  monkeypatch.setattr(view, "Pace", Script)
  monkeypatch.setattr(view.World, "step", watch)
  path = tmp_path / "ball.xml"
  path.write_text(_BALL)
  assert main(["view", str(path), "--web"]) == 0
  times, speeds = np.array(seen).T  # a message counts from the picture after its own
  np.testing.assert_allclose(times, 0.002 * np.array([8, 16, 24, 24, 25, 25, 29, 33]), rtol=1e-5)
  np.testing.assert_allclose(speeds, 0.016 * np.array([0, -4, -4, -4, -4, -4, -4, -4]), rtol=1e-4, atol=1e-9)
