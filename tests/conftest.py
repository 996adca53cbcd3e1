"""64 bits everywhere; tests that mean float32 say so with `put_model(..., dtype=np.float32)`."""

import gc
import os
import pathlib
import resource
import sys

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# most of the tests' time goes to compilers; LLVM's optimisations cost a third of it, XLA's newer code generator a tenth
# (`mjx.jit` does without), and dividing a program among threads that are busy with other tests a little
os.environ["XLA_FLAGS"] = " ".join(
  (
    os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
  )
)  # fmt: skip
os.environ["MJX_LITE_CACHE"] = "0"  # what an earlier run compiled must not stand for what this code compiles

import jax

jax.config.update("jax_enable_x64", True)
gc.set_threshold(100_000, 10, 10)  # a trace makes a million objects, few of them garbage: 3 % of the tests' time
_TESTS = pathlib.Path(__file__).parent
sys.path[:0] = [str(_TESTS / "lib"), *(str(_TESTS.parent / x) for x in ("tools", "benchmarks"))]


def pytest_configure(config):
  """Where a kernel cannot be built, a test fails; tests of that say so (`pytest.warns`)."""
  config.addinivalue_line("filterwarnings", "error::mjx_lite.errors.SlowPathWarning")


# folders that the newest Python and JAX have to pass: the engine's compiler, and what users run
CORE = ("batching", "compiler", "model", "ops", "pipeline", "shipped")
# what `.ci/run` has time for, and somebody who tries the README's command has not
LONG = (
  "actuator/test_actuator_gradients.py", "batching/test_worlds.py", "collision/test_adhesion.py",
  "collision/test_capacity.py", "collision/test_convex.py", "collision/test_cubemap.py", "collision/test_hfield.py",
  "collision/test_hfield_closed.py", "collision/test_queries.py", "collision/test_sdf.py", "collision/test_shortest_way.py",
  "collision/test_single_precision.py", "compiler/test_llvm", "compiler/test_paths.py", "compiler/test_ptx.py",
  "compiler/test_regions.py", "constraint/test_at_limit.py", "constraint/test_curvature.py", "constraint/test_equality.py",
  "control/test_control.py", "gradients", "integrate/test_integrators.py", "integrate/test_stability.py",
  "io/test_checkpoint.py", "io/test_keep.py", "io/test_put_data.py", "math/test_quotient.py", "math/test_tree.py",
  "parity/test_inverse.py", "parity/test_random_models.py", "parity/test_random_steps.py", "parity/test_stages_alone.py",
  "sensor/test_enclosure.py", "sensor/test_sensors.py", "smooth/test_articulated.py", "solver/test_coupled.py",
  "solver/test_first_slots.py", "solver/test_iterates", "solver/test_linalg.py", "solver/test_solvers.py",
  "sysid/test_fit.py", "tendon", "transforms/test_callbacks.py", "transforms/test_many_devices.py",
  "transforms/test_rollout.py", "transforms/test_symbolic_export.py", "transforms/test_weak_types.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  for item in items:
    path = pathlib.Path(item.path).relative_to(_TESTS).as_posix()
    for marker, places in ((pytest.mark.core, CORE), (pytest.mark.long, LONG)):
      if path.startswith(places):
        item.add_marker(marker)


def _forget():
  """Forget traces and programs, also those in cycles: while one lives, JAX has NumPy's constants in its precision."""
  from mjx_lite.batching import worlds

  worlds.clear_caches()
  gc.collect()


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
  """Compiled programs of a thousand tests would take many gigabytes: forget them after a module, once they are many."""
  yield
  if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 3_000_000:  # KiB
    _forget()


@pytest.fixture
def optimised(monkeypatch):
  """Programs with the optimisations that are left out above: where running takes longer than compiling."""
  import mjx_lite as mjx

  plain = mjx.jit
  monkeypatch.setattr(mjx, "jit", lambda f, **k: plain(f, compiler_options={"xla_backend_optimization_level": 3}, **k))


@pytest.fixture
def tiles_in_regions(monkeypatch):
  """Many worlds go through regions by sixteens, as where the user has set `regions.FLAGS`; the numbers need no flags."""
  from mjx_lite.compiler import regions
  from mjx_lite.compiler.backends import llvm

  _forget()
  monkeypatch.setattr(llvm, "_IS_WANTED", False)
  monkeypatch.setattr(regions, "lanes", lambda: 16)
  yield
  _forget()


@pytest.fixture(scope="module")
def single_precision():
  """No 64-bit numbers, nor traces that have them: kernels have none."""
  with jax.enable_x64(False):
    _forget()
    yield
  _forget()
