"""Choice of the OpenGL platform. Platforms are tested in a separate process, because a broken platform can end the process."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys

WORKER = pathlib.Path(__file__).with_name("worker.py")

_PROBE = """
import mujoco
m = mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom size="1"/></worldbody></mujoco>')
d = mujoco.MjData(m)
mujoco.mj_forward(m, d)
with mujoco.Renderer(m, 32, 32) as r:
  r.update_scene(d)
  assert r.render().any(), 'the picture is black'
"""

_CURE = (
  "No picture can be drawn here: neither EGL nor OSMesa works.\n"
  "  Debian, Ubuntu:  apt-get install libegl1 libgl1-mesa-dri   (EGL, with or without a GPU)\n"
  "             or:   apt-get install libosmesa6                (OSMesa, software only)\n"
  "  With an NVIDIA GPU the driver brings EGL; in a container set NVIDIA_DRIVER_CAPABILITIES=all.\n"
  "  MUJOCO_GL=egl, osmesa or glfw picks one by hand."
)


# operating system -> platform names of MuJoCo, in the order of the tests; on other systems EGL and OSMesa
_PLATFORMS = {"darwin": ("cgl", "glfw"), "win32": ("wgl", "glfw")}


@dataclasses.dataclass(frozen=True)
class Backend:
  """The OpenGL platform that works, or the errors if no platform works.

  Attributes:
    name: 'egl', 'osmesa', 'glfw', 'cgl' or 'wgl'; None if no platform works
    tried: (name, last line of the error) of each platform that failed
  """

  name: str | None
  tried: tuple[tuple[str, str], ...]

  @property
  def message(self) -> str:
    """Instructions what to install if no platform works; empty if a platform works."""
    if self.name:
      return ""
    if len(self.tried) == 1 and self.tried[0][0] == "MUJOCO_GL":
      return self.tried[0][1]
    return "\n".join([_CURE, *(f"  {name}: {error}" for name, error in self.tried)])


def gl_environment(name: str) -> dict[str, str]:
  """Return the environment variables with which mujoco draws on the platform `name`."""
  env = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
  if name != "cgl":
    env["MUJOCO_GL"] = name
  return env


@functools.cache
def choose_backend() -> Backend:
  """Find an OpenGL platform that draws: test the platform in MUJOCO_GL first, then the platforms of the operating system."""
  names = list(_PLATFORMS.get(sys.platform, ("egl", "osmesa")))
  wish = os.environ.get("MUJOCO_GL", "").lower()
  if wish in ("off", "disable", "disabled", "false", "0"):
    return Backend(None, (("MUJOCO_GL", f"drawing is switched off by MUJOCO_GL={wish}"),))
  if wish and wish not in names:
    names.insert(0, wish)
  names.sort(key=lambda name: name != wish)
  tried = []
  for name in names:
    error = _probe(name)
    if error is None:
      return Backend(name, tuple(tried))
    tried.append((name, error))
  return Backend(None, tuple(tried))


def _probe(name: str) -> str | None:
  """Draw a 32 x 32 picture on the platform `name`; return None, or the last line of the error."""
  try:
    done = subprocess.run([sys.executable, "-c", _PROBE], env=gl_environment(name), capture_output=True, text=True, timeout=60)
  except subprocess.TimeoutExpired:
    return "no answer within 60 s"
  if done.returncode == 0:
    return None
  lines = done.stderr.strip().splitlines()
  return lines[-1] if lines else f"ended with code {done.returncode}"
