"""The public functions of the engine: one-world shapes, batched by `jax.vmap`."""

from collections.abc import Callable
from typing import Any

import jax

from mjx_lite import forward as native
from mjx_lite.core import worlds
from mjx_lite.core.types import Data, Model

# XLA's newer code generator for CPU takes two to three times as long for the many small kernels of a step, and the
# program is no faster (benchmarks/README.md)
_CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False}


def jit(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
  """`jax.jit` with the compiler options that suit the engine on JAX's default backend.

  Use it for the outermost function (JAX takes compiler options nowhere else): on CPU a step compiles in half the time.
  Arguments are those of `jax.jit`.
  """
  options = _CPU_OPTIONS if jax.default_backend() == "cpu" else {}
  options = {**options, **(kwargs.pop("compiler_options", None) or {})}
  return jax.jit(function, compiler_options=options or None, **kwargs)


def one_world(function: Callable[..., Any]) -> Callable[..., Any]:
  """The public form of a native function of a Model and, mostly, its Data."""
  return worlds.one_world(function, _check)


def _check(m: Model, *args: Any) -> None:
  """Refuse what is not a Model, and a Data that does not belong to it."""
  if not isinstance(m, Model):
    raise TypeError(f"the first argument has to be a Model of mjx_lite, not {type(m).__name__}: use put_model.")
  if not args or not isinstance(args[0], Data):
    return
  d, sizes = args[0], m.plan.sizes
  expected = (("qpos", m.nq), ("qvel", m.nv), ("ctrl", m.nu), ("xpos", m.nbody), ("geom_xpos", m.ngeom))
  for field, size in (*expected, ("efc_D", sizes["nefc"])):
    shape = getattr(d, field).shape
    if shape[:1] != (size,):
      raise ValueError(
        f"the Data is of another model, or is a batch without jax.vmap: {field} has shape {shape}, "
        f"one world of this model has {size} rows."
      )


step = one_world(native.step)
step1 = one_world(native.step1)
step2 = one_world(native.step2)
forward = one_world(native.forward)
rollout = one_world(native.rollout)

fwd_position = one_world(native.fwd_position)
fwd_velocity = one_world(native.fwd_velocity)
fwd_actuation = one_world(native.fwd_actuation)
fwd_acceleration = one_world(native.fwd_acceleration)
kinematics = one_world(native.kinematics)
com_pos = one_world(native.com_pos)
camlight = one_world(native.camlight)
tendon = one_world(native.tendon)
tendon_armature = one_world(native.tendon_armature)
crb = one_world(native.crb)
factor_m = one_world(native.factor_m)
collision = one_world(native.collision)
make_constraint = one_world(native.make_constraint)
transmission = one_world(native.transmission)
com_vel = one_world(native.com_vel)
passive = one_world(native.passive)
rne = one_world(native.rne)
tendon_bias = one_world(native.tendon_bias)
solve = one_world(native.solve)
euler = one_world(native.euler)

full_m = one_world(native.full_m)
mul_m = one_world(native.mul_m)
solve_m = one_world(native.solve_m)
constraint_jacobian = one_world(native.constraint_jacobian)
xfrc_accumulate = one_world(native.xfrc_accumulate)
integrate_pos = one_world(native.integrate_pos)
differentiate_pos = one_world(native.differentiate_pos)
reset_data = one_world(native.reset)
