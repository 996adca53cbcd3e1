"""`mjx-lite view MODEL`: MuJoCo's viewer with a world stepped by mjx_lite; in a browser with `--web`.

Tests: tests/cli/test_commands.py.
"""

import argparse
import copy
import os
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx
from mjx_lite.cli import common

FPS = 60.0
# fields that the viewer's mouse and sliders write, and fields that a step changes
INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat", "eq_active")
STATE = ("time", "qpos", "qvel", "act")

_ELSEWHERE = (
  "`mjx-lite view --web` shows the world in a browser, and pictures and films need no display: `mjx-lite demo`, or "
  "mjx_lite.viz.render(mj_model, record, path='film.mp4')."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's arguments."""
  parser.add_argument("model", metavar="MODEL.xml", help="MJCF, URDF or MJB file, or 'humanoid'")
  parser.add_argument(
    "--seconds", type=common.seconds, default=float("inf"), help="close after so long (when the window is closed)"
  )
  parser.add_argument(
    "--web", action="store_true",
    help="no window: serve MuJoCo's web viewer on this machine's loopback address, for a browser here or behind `ssh -L`",
  )  # fmt: skip
  parser.add_argument("--port", type=common.port, default=0, help="of --web (the first free one from 8080 on)")


def run(args: argparse.Namespace) -> int:
  """Open the viewer and step until the viewer is closed."""
  mj_model = common.load_model(args.model)
  m = mjx.put_model(mj_model)
  if not args.web and (why := why_no_window()) is not None:
    raise common.BadInput(f"{why}\n{_ELSEWHERE}")
  common.use_compilation_cache()
  mj_data = common.initial_data(mj_model)
  mujoco.mj_forward(mj_model, mj_data)
  common.stdout.print("compiling; then double click an object, and push it with Ctrl and the right button")
  world = World(mj_model, m, mj_data)
  return in_browser(world, args) if args.web else in_window(world, args)


def in_window(world: "World", args: argparse.Namespace) -> int:
  """Step until the window is closed."""
  import mujoco.viewer

  before = set(threading.enumerate())
  try:
    viewer = mujoco.viewer.launch_passive(world.mj_model, world.mj_data)
  except RuntimeError as error:  # for example no OpenGL platform, or macOS without mjpython
    raise common.BadInput(f"MuJoCo's viewer does not open: {error}\n{_ELSEWHERE}") from error
  drawing = set(threading.enumerate()) - before
  try:
    with viewer:
      pace = Pace(args.seconds)
      while viewer.is_running() and pace.wait(world.span):
        with viewer.lock():
          world.step(world.steps)
        viewer.sync()
  finally:
    _join(drawing)  # Python could hang at exit while GLFW still draws
  return 0


def _join(threads: set[threading.Thread], patience: float = 5.0) -> None:
  """Wait until the threads have ended, at most `patience` seconds."""
  end = time.perf_counter() + patience
  for thread in threads:
    thread.join(max(0.0, end - time.perf_counter()))


def in_browser(world: "World", args: argparse.Namespace) -> int:
  """Serve the page and step until interrupted."""
  from mujoco.studio import app, launch_thread, step_control, viewer_protocol, web_viewer

  class OnLoopback(web_viewer.WebViewer):
    """MuJoCo's web viewer on the loopback address: MuJoCo's own listens to the whole network without a password."""

    _host = property(lambda self: "127.0.0.1", lambda self, _: None)

  class Buttons(step_control.StepControl):
    """MuJoCo's step control without its own steps, which C would compute."""

    _on_step = None
    _owed = 0.0

    def due(self, steps: int) -> int:
      """Return how many of the `steps` of a picture to take, by the page's pause, speed and single-step controls."""
      if self.step_control.get_pause_state() != step_control.sim.PauseState.UNPAUSED:
        return int(self.step_control.consume_single_step_request())
      owed = self._owed + steps * self.step_control.get_speed() / 100
      self._owed = owed % 1
      return int(owed)

  def serve(endpoint):
    config = viewer_protocol.ViewerConfig(title="mjx_lite", gfx="web", http_port=args.port)
    viewer_protocol.run_viewer_loop(OnLoopback(config, endpoint, plugins=[app.App()]))

  buttons = Buttons()
  plugins = [buttons if isinstance(x, step_control.StepControl) else x for x in app.SIM_PLUGINS]
  try:
    with launch_thread.launch_thread(serve, sim_plugins=plugins) as handle:
      handle.set_model(world.mj_model, data=world.mj_data)
      pace = Pace(args.seconds)
      while handle.is_running() and pace.wait(world.span):
        if handle.model is not world.mj_model:  # the user dropped another model on the page
          world = World(handle.model, mjx.put_model(handle.model), handle.data)
        world.step(buttons.due(world.steps))
        handle.sync()
  except RuntimeError as error:  # for example a taken port
    raise common.BadInput(f"MuJoCo's web viewer does not start: {error}") from error
  return 0


class Pace:
  """Real-time clock: waits for the next picture, and ends after a total time."""

  def __init__(self, seconds: float):
    self._due = time.perf_counter()
    self._end = self._due + seconds

  def wait(self, span: float) -> bool:
    """Wait until `span` seconds after the previous due time; return False when the total time is over.

    A delay of up to 0.1 s is made up by shorter waits.
    """
    self._due = max(self._due + span, time.perf_counter() - 0.1)
    time.sleep(max(0.0, self._due - time.perf_counter()))
    return time.perf_counter() < self._end


def why_no_window() -> str | None:
  """Return a message if no window can open here, otherwise None."""
  if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    return "There is no display here: neither DISPLAY nor WAYLAND_DISPLAY is set."
  return None


class World:
  """MjData stepped by mjx_lite. The next step uses the values that the viewer has written into the MjData."""

  def __init__(self, mj_model: mujoco.MjModel, m: Any, mj_data: mujoco.MjData):
    self.mj_model, self.m, self.mj_data = mj_model, m, mj_data
    self._set_pace()
    self._opt = copy.copy(mj_model.opt)
    self._d, self._warned = mjx.put_data(mj_model, mj_data), False
    self._written = self._read(STATE)
    self._take_steps = mjx.jit(_steps)
    self._take_steps(m, self._d, 0)  # compile before a window opens

  def step(self, steps: int) -> None:
    """Take `steps` steps, then compute the drawn quantities: poses, contacts, forces."""
    if self._opt != self.mj_model.opt:  # changed in the viewer's physics panel
      self._follow_options()
    if steps > 0:
      self._move(steps)
    mujoco.mj_forward(self.mj_model, self.mj_data)

  def _set_pace(self) -> None:
    h = self.mj_model.opt.timestep
    if not h > 0:
      raise common.BadInput(f"the timestep of the model is {h:g}; the viewer needs a timestep above 0.")
    self.steps = max(1, round(1 / (FPS * h)))  # steps per picture
    self.span = self.steps * h  # simulated time per picture [s]

  def _follow_options(self) -> None:
    self._opt = copy.copy(self.mj_model.opt)
    try:
      m = mjx.put_model(self.mj_model)
      self._set_pace()
      self.m, self._d = m, mjx.put_data(self.mj_model, self.mj_data)  # enabling contacts changes array shapes
    except (common.BadInput, *common.ENGINE_ERRORS) as error:
      common.stderr.print(f"The world keeps the previous options: {error}")

  def _move(self, steps: int) -> None:
    state = self._read(STATE)
    if any(np.any(state[k] != self._written[k]) for k in STATE):  # the viewer changed the state: a reset, or a keyframe
      self._d = mjx.put_data(self.mj_model, self.mj_data)
    given = {k: jnp.asarray(x, getattr(self._d, k).dtype) for k, x in self._read(INPUTS).items()}
    self._d = self._take_steps(self.m, self._d.replace(**given), steps)
    self._warned = self._warned or common.tell_of_shortage(self.m, self._d)
    for k in STATE:
      if k == "time":
        self.mj_data.time = float(self._d.time)
      else:
        getattr(self.mj_data, k)[:] = getattr(self._d, k)
    self._written = self._read(STATE)

  def _read(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {k: np.array(getattr(self.mj_data, k)) for k in names}


def _steps(m, d, steps):
  """Take `steps` steps. The number is traced, because slow motion takes fewer steps per picture."""
  return jax.lax.fori_loop(0, steps, lambda _, x: mjx.step(m, x), d)
