"""Machine code of kernels on CPU: LLVM compiles the assembly, and XLA finds the code under a name.

Tests: tests/compiler/test_llvm.py.
"""

import concurrent.futures
import ctypes
import functools
import hashlib
import os
import pathlib
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mjx_lite.compiler import workarounds

_ATTRIBUTES = 'attributes #0 = { noinline nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
_MOST_WORKERS = 8  # threads that compile a kernel

_made: dict[str, Any] = {}  # machine code by name; never freed, as it is not known which programs call it
_making = threading.Lock()


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


def target(functions: Sequence[str], entry: str) -> str:
  """Return the name under which XLA finds the machine code of a kernel; compile and register the code at the first call."""
  key = hashlib.sha256(repr((functions, entry, host(), library().llvm_version_info)).encode()).hexdigest()[:32]
  name = f"mjx_lite_{key}"
  with _making:
    if name not in _made:
      engine = _linked(_stored(key, lambda: objects(functions, entry)))
      start = ctypes.CFUNCTYPE(None)(engine.get_function_address("step"))
      jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(start), "cpu")
      _made[name] = engine
  return name


def _stored(key: str, make: Callable[[], list[bytes]]) -> list[bytes]:
  """Return object files from `make`, or from JAX's compilation cache on disk if it is on and holds them."""
  folder, is_kept = (jax.config.values[f"jax_{name}"] for name in ("compilation_cache_dir", "enable_compilation_cache"))
  if not folder or not is_kept or "://" in folder:
    return make()
  file = pathlib.Path(folder, f"mjx_lite-{key}.npz")
  if file.exists():
    with np.load(file) as parts:
      return [x.tobytes() for x in parts.values()]
  made = make()
  file.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.NamedTemporaryFile(dir=folder, delete=False) as new:
    np.savez(new, *(np.frombuffer(x, np.uint8) for x in made))
  os.replace(new.name, file)  # atomic: other processes see a complete file or none
  return made


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
  head = [f"declare {out} {name}({t}{', ' + t if 'umin' in name else ''})" for out, name, t in sorted(called)]
  return ["\n".join((*head, *share, _ATTRIBUTES, "")) for share in shares if share]


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
