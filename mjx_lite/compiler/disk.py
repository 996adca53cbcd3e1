"""Files of machine code on disk, which a process keeps for the processes after it.

The folder is `mjx_lite` in the user's cache folder: `$XDG_CACHE_HOME` or `~/.cache` on Linux, `~/Library/Caches` on macOS,
`%LOCALAPPDATA%` on Windows. The environment variable MJX_LITE_CACHE names another folder, or switches the files off with 0 or
`off`. The folder is made when the first file is written, with access for its owner only.

Loaded files run as code of the process. So a folder or a file that another user owns, or that other users can write to, is
refused. A file has a checksum of its name and its contents; a damaged file is deleted, and counts as missing. A file is written
under another name and then renamed, so that other threads and processes see a complete file or none. All files together take at
most `LIMIT` bytes: the files that were not used for the longest time are deleted first. Where no file can be read or written,
everything is compiled as if there were no files, and one `SlowPathWarning` has the reason.

Tests: tests/compiler/test_disk.py.
"""

import contextlib
import hashlib
import os
import pathlib
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence

from mjx_lite.errors import SlowPathWarning

VARIABLE = "MJX_LITE_CACHE"
LIMIT = 512 << 20  # bytes of all files
_SUFFIX = ".mjx"
_WORD = 8  # bytes of a length
_CHECKSUM = 32  # bytes of a SHA-256 hash

_said: set[str] = set()  # values of the variable that a warning was about


def folder() -> pathlib.Path | None:
  """Return the folder of the files, which may not exist; None if the user has switched the files off or has no home folder."""
  chosen = os.environ.get(VARIABLE, "")
  if chosen in ("0", "off"):
    return None
  xdg = os.environ.get("XDG_CACHE_HOME", "")
  roots = {"win32": os.environ.get("LOCALAPPDATA", "~"), "darwin": "~/Library/Caches"}
  root = roots.get(sys.platform, xdg if os.path.isabs(xdg) else "~/.cache")
  place = os.path.expanduser(chosen or os.path.join(root, "mjx_lite"))
  if place.startswith("~"):
    _say("the user has no home folder")
    return None
  return pathlib.Path(place).absolute()


@contextlib.contextmanager
def unused() -> Iterator[None]:
  """Read and write no files in the block, for measurements of compile time."""
  before = os.environ.get(VARIABLE)
  os.environ[VARIABLE] = "0"
  try:
    yield
  finally:
    os.environ.pop(VARIABLE)
    if before is not None:
      os.environ[VARIABLE] = before


def load(name: str) -> list[bytes] | None:
  """Return the contents of a file; None if there is no such file, or if it cannot be trusted."""
  place = folder()
  if place is None:
    return None
  path = place / (name + _SUFFIX)
  try:
    _check(path.parent, path.parent.stat())
    with path.open("rb") as file:
      _check(path, os.fstat(file.fileno()))
      parts = _unpacked(name, file.read())
    if parts is None:
      path.unlink()
    else:
      os.utime(path)
  except FileNotFoundError:
    return None
  except OSError as error:
    _say(str(error))
    return None
  return parts


def store(name: str, parts: Sequence[bytes]) -> None:
  """Write a file, and delete the files that were not used for the longest time if there is no room for all."""
  place = folder()
  if place is None:
    return
  temporary = ""
  try:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(place, place.stat())
    descriptor, temporary = tempfile.mkstemp(_SUFFIX, "new-", place)
    with open(descriptor, "wb") as file:
      file.write(_packed(name, parts))
    os.replace(temporary, place / (name + _SUFFIX))
    _make_room(place)
  except OSError as error:
    _say(str(error))
    with contextlib.suppress(OSError):
      os.unlink(temporary)


def _check(path: pathlib.Path, status: os.stat_result) -> None:
  """Raise a PermissionError if another user than the process's owns a file or folder, or can write to it.

  On Windows the user's folders have access lists, which these numbers do not show.
  """
  if os.name != "posix":
    return
  if status.st_uid != os.geteuid():
    raise PermissionError(f"{path} belongs to another user")
  if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
    raise PermissionError(f"other users can write to {path}, so its machine code is not trusted (chmod go-w would do)")


def _packed(name: str, parts: Sequence[bytes]) -> bytes:
  """Return the bytes of a file: the checksum of all that follows, then the name and the parts, each after its length."""
  rest = b"".join(len(x).to_bytes(_WORD, "little") + x for x in (name.encode(), *parts))
  return hashlib.sha256(rest).digest() + rest


def _unpacked(name: str, data: bytes) -> list[bytes] | None:
  """Return the parts of a file; None if the file is damaged or has another name."""
  rest = data[_CHECKSUM:]
  if hashlib.sha256(rest).digest() != data[:_CHECKSUM]:
    return None
  parts, at = [], 0
  while at < len(rest):
    start = at + _WORD
    at = start + int.from_bytes(rest[at:start], "little")
    parts.append(rest[start:at])
  return parts[1:] if parts[:1] == [name.encode()] else None


def _make_room(place: pathlib.Path) -> None:
  """Delete files, those first that were not used for the longest time, until all files together take at most `LIMIT` bytes."""
  found = []
  for path in place.glob(f"*{_SUFFIX}"):
    with contextlib.suppress(FileNotFoundError):  # another process has deleted it
      status = path.stat()
      found.append((status.st_mtime_ns, status.st_size, path))
  total = sum(size for _, size, _ in found)
  for _, size, path in sorted(found):
    if total <= LIMIT:
      break
    path.unlink(missing_ok=True)
    total -= size


def _say(reason: str) -> None:
  """Warn once for each folder."""
  chosen = os.environ.get(VARIABLE, "")
  if chosen not in _said:
    _said.add(chosen)
    text = (
      f"machine code is not kept on disk: {reason}. Each process compiles it again. Set {VARIABLE} to another folder or to 0."
    )
    warnings.warn(SlowPathWarning(text), stacklevel=3)
