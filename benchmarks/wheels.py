"""Models of packages that cannot be installed beside this one, from their wheels, which pip downloads without dependencies.

python benchmarks/wheels.py            # prints the file, version and hash of each
"""

import hashlib
import pathlib
import subprocess
import sys
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "build" / "wheels"
# scene -> package and version, file in the wheel
MODELS = {
  "mjlab_go1": ("mjlab==1.6.0", "mjlab/asset_zoo/robots/unitree_go1/xmls/go1.xml"),
  "mjlab_g1": ("mjlab==1.6.0", "mjlab/asset_zoo/robots/unitree_g1/xmls/g1.xml"),
  "hand_egg": ("gymnasium-robotics==1.4.2", "gymnasium_robotics/envs/assets/hand/manipulate_egg.xml"),
}


class NotThere(RuntimeError):
  """A wheel that could not be downloaded."""


def _wheel(package: str) -> pathlib.Path:
  """The wheel of a package, downloaded at the first call."""
  name, version = package.replace("-", "_").split("==")
  pattern = f"{name}-{version}-*.whl"
  if not list(FOLDER.glob(pattern)):
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", FOLDER, package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      raise NotThere(f"{package} is not there: {done.stderr.strip().splitlines()[-1]}")
  return next(FOLDER.glob(pattern))


def file_of(scene: str) -> pathlib.Path:
  """The file of a scene, with the files beside it."""
  package, file = MODELS[scene]
  place = FOLDER / package
  if not (place / file).exists():
    with zipfile.ZipFile(_wheel(package)) as wheel:
      wheel.extractall(place)
  return place / file


def main() -> int:
  for scene, (package, file) in MODELS.items():
    digest = hashlib.sha256(_wheel(package).read_bytes()).hexdigest()
    print(f"{scene}: {package} sha256 {digest} {file}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
