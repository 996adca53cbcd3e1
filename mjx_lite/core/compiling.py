"""`jax.jit` with the compiler options that suit the engine."""

from collections.abc import Callable
from typing import Any

import jax

from mjx_lite.core import regions

# XLA's newer code generator for CPU takes two to three times as long for the many small kernels of a step, and the
# program is no faster (benchmarks/README.md)
_CPU_OPTIONS = {
  "xla_cpu_use_fusion_emitters": False,
  "xla_cpu_prefer_vector_width": 512,  # as XLA's library for products: changing between the two costs more than either
  # small loops are compiled as one function, in which what is written to memory (`linear.materialized`) is not
  "xla_disable_hlo_passes": "small-while-loop-hoisting",
}


def jit(function: Callable[..., Any], *, one_world: bool = False, **kwargs: Any) -> Callable[..., Any]:
  """`jax.jit` with the compiler options that suit the engine on JAX's default backend.

  Use it for the outermost function (JAX takes compiler options nowhere else): on CPU a step compiles in half the time and
  is a fifth faster.

  Args:
    function: what to compile.
    one_world: that function computes with a single world, and no batch: on CPU what it does besides calling the engine, and
      all that belongs to derivatives, then become a few functions of machine code too, as steps are of their own accord.
      Gradients of a rollout take two thirds of the time; the results are the same.
    **kwargs: those of `jax.jit`.
  """
  on_cpu = jax.default_backend() == "cpu"
  function = regions.whole(function) if one_world and on_cpu else function
  options = _CPU_OPTIONS if on_cpu else {}
  options = {**options, **(kwargs.pop("compiler_options", None) or {})}
  return jax.jit(function, compiler_options=options or None, **kwargs)
