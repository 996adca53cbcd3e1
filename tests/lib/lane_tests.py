"""What tests of machine code on CPU share: states, numbers of kernels, the same by XLA, and functions of arrays in lanes."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight

import mjx_lite as mjx
from mjx_lite.compiler import scalars
from mjx_lite.compiler.backends import llvm, llvm_machine


def states(mj_model, m, number, every=8):
  """Data of some worlds, where a trajectory of C has been; and C's accelerations there."""
  rng, c = np.random.default_rng(0), mujoco.MjData(mj_model)
  found, qacc = [], []
  for _ in range(number):
    for _ in range(every):
      c.ctrl[:] = rng.uniform(-0.3, 0.3, mj_model.nu)
      mujoco.mj_step(mj_model, c)
    found.append(mjx.put_data(m, c))
    mujoco.mj_forward(mj_model, c)
    qacc.append(c.qacc.copy())
  return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *found), np.stack(qacc)


def count(function, *args, jit=jax.jit):
  """How many kernels a function calls."""
  return jit(function).lower(*args).as_text().count("custom_call @mjx_lite_")


def by_xla(function, *args, jit=jax.jit):
  """The function's results, without kernels."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(llvm, "_IS_WANTED", False)

    def again(*a):  # another function: JAX remembers what it made of that one
      return function(*a)

    assert count(again, *args, jit=jit) == 0
    return jit(again)(*args)


def compiled_for(triple, monkeypatch):
  """The assembly of a step of five worlds for another processor, whose vectors have four float32 numbers."""
  from llvmlite import binding

  binding.initialize_all_targets()
  binding.initialize_all_asmprinters()
  m = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING))
  d = jax.tree.map(lambda x: jnp.stack([x] * 5), mjx.make_data(m))
  assert llvm.is_on()  # the probe runs here
  found = []
  monkeypatch.setattr(llvm_machine, "lanes", lambda: 4)

  def target(prefix, key, make):
    functions, entry, size, used = make()
    if prefix == "mjx_lite":
      found.append((functions, entry))
    return llvm_machine.Target(f"{prefix}_none", size, used)

  monkeypatch.setattr(llvm_machine, "target", target)
  assert count(jax.vmap(lambda m, d: mjx.step(m, d), in_axes=(None, 0)), m, d) == 1
  (text,) = llvm_machine.modules(*found[0], workers=1)
  machine = binding.Target.from_triple(triple).create_target_machine(opt=1)
  return machine.emit_assembly(binding.parse_assembly(text, binding.create_context()))


def program(function, *args, has_loops=False):
  """The program of a function of arrays (..., 1), given arrays (..., worlds); its results, and their dtypes."""
  closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype) for x in args))
  p = scalars.Program(scalars.UNROLLED if has_loops else np.inf, llvm.LOOP)
  outs = p.run(closed, [p.inputs(k, (*x.shape[:-1], 1), x.dtype, args[0].shape[-1] > 1) for k, x in enumerate(args)])
  return p, outs, [a.dtype for a in closed.out_avals]


def run(function, *args, **options):
  """A function of arrays (..., 1) in lanes, of arrays (..., worlds)."""
  p, outs, dtypes = program(function, *args, **options)
  width = args[0].shape[-1]
  axis = 0 if width > 1 else -1

  def call(*args):
    made = llvm.call(p, [jnp.moveaxis(x, -1, axis) for x in args], outs, dtypes, width)
    return [jnp.moveaxis(x, axis, -1) for x in made]

  return jax.jit(call)(*args)


def run_one_by_one(function, x):
  """The same, each world by itself."""
  worlds = [run(function, x[..., k : k + 1]) for k in range(x.shape[-1])]
  return [np.concatenate(y, axis=-1) for y in zip(*worlds, strict=True)]
