"""64 bits everywhere; tests that mean float32 say so with `put_model(..., dtype=np.float32)`."""

import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# most of the tests' time goes to compilers; LLVM's optimisations cost a third of it
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import jax

jax.config.update("jax_enable_x64", True)
sys.path.insert(0, str(pathlib.Path(__file__).parent))
