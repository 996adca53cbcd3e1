"""Machine code of kernels on CPU: LLVM compiles the assembly, and XLA finds the code under a name.

A later process finds the machine code on disk (`disk.py`), and neither writes the assembly nor compiles it.

Tests: tests/compiler/test_llvm.py, tests/compiler/test_disk.py.
"""

import concurrent.futures
import ctypes
import functools
import hashlib
import json
import os
import pathlib
import re
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax

from mjx_lite.compiler import disk, workarounds

_ATTRIBUTES = 'attributes #0 = { noinline nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
_MOST_WORKERS = 8  # threads that compile a kernel

_made: dict[str, tuple["Target", Any]] = {}  # machine code by name; never freed, as it is not known which programs call it
_making = threading.Lock()


def _hash_of_sources() -> str:
  """Return the hash of the compiler's source files; "" where they are not there, and then no machine code is kept on disk."""
  files = sorted(pathlib.Path(__file__).parents[1].rglob("*.py"))
  return hashlib.sha256(b"".join(x.read_bytes() for x in files)).hexdigest() if files else ""


_SOURCES = _hash_of_sources()  # at import: a file may change while the process runs


@functools.cache
def library() -> Any:
  """Return LLVM, loaded at the first call."""
  from llvmlite import binding

  binding.initialize_native_target()
  binding.initialize_native_asmprinter()
  return binding


@functools.cache
def host() -> tuple[str, str, int]:
  """Return the processor's name, its features, and the number of float32 numbers in one of its vectors."""
  llvm = library()
  name = llvm.get_host_cpu_name()
  try:
    features = llvm.get_host_cpu_features()
  except RuntimeError:  # LLVM does not know the features
    return name, "", 4
  return name, features.flatten(), 16 if features.get("avx512f") else 8 if features.get("avx") else 4


def lanes() -> int:
  """Return the number of worlds that go through a kernel's code at a time, if there are several worlds; for float32."""
  return host()[2]


class Target(NamedTuple):
  """A kernel that XLA can call.

  Attributes:
    name: name under which XLA finds the machine code.
    size: bytes of memory that a thread needs.
    used: indices of the inputs that the kernel reads.
  """

  name: str
  size: int
  used: list[int]


def target(prefix: str, key: str, make: Callable[[], tuple[Sequence[str], str, int, list[int]]]) -> Target:
  """Return a kernel; compile and register its machine code at the first call, or load the code that an earlier process kept.

  Args:
    prefix: first part of the kernel's name.
    key: text that determines what `make` returns.
    make: function that writes the kernel: its functions and its entry, and `size` and `used` of `Target`.
  """
  name = _name(prefix, key)
  with _making:
    if name not in _made:
      numbers, *code = _kept(name, lambda: _compiled(make))
      engine = _linked(code)
      start = ctypes.CFUNCTYPE(None)(engine.get_function_address("step"))
      jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(start), "cpu")
      size, *used = json.loads(numbers)
      _made[name] = Target(name, size, used), engine
  return _made[name][0]


def _name(prefix: str, key: str) -> str:
  """Return the name of a kernel, which has a hash of all that determines the machine code."""
  llvm = library()
  surroundings = _SOURCES, host(), llvm.get_default_triple(), llvm.llvm_version_info, metadata.version("llvmlite"), os.name
  return f"{prefix}_{hashlib.sha256(repr((key, surroundings)).encode()).hexdigest()[:32]}"


def _kept(name: str, make: Callable[[], list[bytes]]) -> list[bytes]:
  """Return what `make` returns, or the same from disk."""
  found = disk.load(name) if _SOURCES else None
  if found is None:
    found = make()
    if _SOURCES:
      disk.store(name, found)
  return found


def _compiled(make: Callable[[], tuple[Sequence[str], str, int, list[int]]]) -> list[bytes]:
  """Return a kernel's numbers, which are `size` and `used`, and its object files."""
  functions, entry, size, used = make()
  return [json.dumps([size, *used]).encode(), *objects(functions, entry)]


def objects(functions: Sequence[str], entry: str) -> list[bytes]:
  """Return the object files of a kernel, compiled in parallel threads."""
  workers = min(os.cpu_count() or 1, _MOST_WORKERS) if workarounds.works(workarounds.EMIT) else 1
  texts = modules(functions, entry, workers)
  with workarounds.no_scheduler(library()), concurrent.futures.ThreadPoolExecutor(workers) as pool:
    return list(pool.map(_object, texts))


def modules(functions: Sequence[str], entry: str, workers: int) -> list[str]:
  """Return the LLVM assembly of a kernel as modules of about equal length, with the entry in the first module."""
  shares = [list(functions[k::workers]) for k in range(workers)]
  heads = [x.partition("#0")[0] for x in functions]
  declared = [f"declare void @part{k}({', '.join(['ptr'] * x.count('ptr '))})" for k, x in enumerate(heads) if k % workers]
  shares[0] += [entry, *declared]
  # intrinsics: the type of the result, the name, and the type of the operands
  called = set(re.findall(r"call (\S+|<[^>]+>) (@llvm\.[\w.]+)\((\w+|<[^>]+>)", "\n".join((*functions, entry))))
  head = [_declaration(*x) for x in sorted(called)]
  return ["\n".join((*head, *share, _ATTRIBUTES, "")) for share in shares if share]


def _declaration(out: str, name: str, operand: str) -> str:
  """Return the declaration of an intrinsic of LLVM, from the types of its result and of its first operand."""
  operands = operand
  if "umin" in name:
    operands = f"{operand}, {operand}"
  elif "memset" in name:
    operands = "ptr, i8, i64, i1"
  elif "scatter" in name:
    n = operand[1:].partition(" ")[0]
    operands = f"{operand}, <{n} x ptr>, i32, <{n} x i1>"
  elif "expandload" in name:
    operands = f"ptr, <{out[1:].partition(' ')[0]} x i1>, {out}"
  elif "compressstore" in name:
    n = operand[1:].partition(" ")[0]
    operands = f"{operand}, ptr, <{n} x i1>"
  elif "gather" in name:
    n = operand[1:].partition(" ")[0]
    operands = f"{operand}, i32, <{n} x i1>, {out}"
  return f"declare {out} {name}({operands})"


def _machine() -> Any:
  name, features, _ = host()
  return library().Target.from_default_triple().create_target_machine(name, features, opt=1, jit=True, codemodel="jitdefault")


def _object(text: str) -> bytes:
  """Return the object file of a module."""
  llvm = library()
  return workarounds.emit_object(llvm, _machine(), llvm.parse_assembly(text, llvm.create_context()))


def _linked(objects: Sequence[bytes]) -> Any:
  """Return an engine of LLVM that holds the machine code in memory."""
  llvm = library()
  engine = llvm.create_mcjit_compiler(llvm.parse_assembly("", llvm.create_context()), _machine())
  for x in objects:
    engine.add_object_file(llvm.ObjectFileRef.from_data(x))
  engine.finalize_object()
  return engine
