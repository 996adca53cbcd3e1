"""The README's code and the documents' code run as they are written."""

import os
import pathlib
import re
import subprocess
import sys

import mujoco
import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"
# .ci/run executes the notebooks; tools/write_notebooks.py writes them into docs/notebooks
PAGES = sorted(x for x in (ROOT / "docs").rglob("*.md") if x.parent.name != "notebooks")
ROBOT = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <light pos="0 0 3"/>
    <body name="torso">
      <freejoint/><geom size="0.1" mass="2"/><site name="imu"/>
      <body name="leg" pos="0 0 -0.1">
        <joint name="hip" axis="0 1 0" damping="0.3"/><geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="servo" joint="hip" kp="20" kv="1"/></actuator>
  <sensor><jointpos name="encoder" joint="hip"/><gyro name="gyro" site="imu"/></sensor>
</mujoco>
"""


def blocks(page):
  """Python code of a page, block by block."""
  return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.fixture
def robot(tmp_path, monkeypatch):
  """A small stand-in for the model that the README names, as a file in the working directory."""
  monkeypatch.chdir(tmp_path)
  pathlib.Path("humanoid.xml").write_text(ROBOT)
  return mujoco.MjModel.from_xml_string(ROBOT)


def test_the_readme(robot):
  (block,) = blocks(README)
  assert "1024" in block and "steps=50" in block
  out = {}
  exec(compile(block.replace("1024", "4").replace("steps=50", "steps=3"), "README.md", "exec"), out)
  assert out["worlds"].qpos.shape == (4, robot.nq) and out["worlds"].time.shape == (4,)
  assert out["gradient"].shape == (4, 1) and out["record"]["qpos"].shape == (3, robot.nq)


@pytest.mark.long
@pytest.mark.parametrize("page", [x for x in PAGES if blocks(x)], ids=lambda x: x.relative_to(ROOT / "docs").as_posix())
def test_a_page(page, tmp_path):
  """As its reader would, in a process of its own, with the options that ship; the blocks one after the other."""
  env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
  done = subprocess.run([sys.executable, "-c", "\n".join(blocks(page))], cwd=tmp_path, env=env, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-3000:]
