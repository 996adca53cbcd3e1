"""Worlds divided among devices and processes: as on one device, and nothing is exchanged in a step.

In processes of their own: the number of devices is fixed when JAX starts, and a deadlock must not stop the tests.
"""

import os
import re
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjx_lite as mjx

SCENE = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="1 1 0.1"/>
    <body pos="0 0 0.2">
      <freejoint/><geom type="capsule" size="0.05 0.1"/>
      <body pos="0 0 0.15"><joint name="bend" axis="0 1 0"/><geom type="capsule" size="0.04 0.1"/></body>
    </body>
    <body pos="0.05 0 0.5"><freejoint/><geom size="0.1"/></body>
    <body pos="0.5 0 0.3"><freejoint/><geom size="0.1"/></body>
  </worldbody>
  <actuator><motor joint="bend"/></actuator>
</mujoco>
"""
WORLDS, STEPS = 64, 40
EXCHANGE = re.compile(r"\b(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def worlds():
  """The model, and worlds that fall upon each other in ways of their own."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(SCENE), dtype=np.float64, pair_max=3, ncon_max=9)
  d = mjx.make_data(m)
  rng = np.random.default_rng(0)
  qvel, ctrl = 0.3 * rng.normal(size=(WORLDS, m.nv)), 0.1 * rng.normal(size=(WORLDS, STEPS, m.nu))
  return m, jax.vmap(lambda v: d.replace(qvel=v))(qvel), jnp.asarray(ctrl)


def last(m, d, ctrl, devices=None):
  """Positions after a rollout."""
  if devices is None:
    return jax.vmap(lambda d, u: mjx.rollout(m, d, u)[0].qpos)(d, ctrl)
  return mjx.rollout(m, d, ctrl, devices=devices)[0].qpos


def slope(m, d, ctrl, devices=None):
  """Derivative of a number of all worlds with respect to their controls, and the positions."""

  def number(u):
    qpos = last(m, d, u, devices)
    return jnp.sum(qpos**2), qpos

  return jax.grad(number, has_aux=True)(ctrl)


def empty():
  """An array without numbers, divided by plain JAX; JAX 0.11.2 ends the process."""
  mesh, spec = jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",)), jax.sharding.PartitionSpec("worlds")
  divided = jax.shard_map(lambda *x: x, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
  jax.jit(divided)(jnp.ones((8, 3)), jnp.ones((8, 0)))


def on_eight(whole):
  """Compare rollouts on eight devices and on one; if `whole`, gradients and steps under `jax.shard_map` too.

  Prints gaps, and what is exchanged.
  """
  assert jax.device_count() == 8
  m, d, ctrl = worlds()
  mesh, spec = jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",)), jax.sharding.PartitionSpec
  step = jax.vmap(mjx.step, in_axes=(None, 0))
  split = jax.shard_map(step, mesh=mesh, in_specs=(spec(), spec("worlds")), out_specs=spec("worlds"), check_vma=False)
  rollout = slope if whole else lambda *args: (last(*args),)
  runs = {
    "gradient rollout" if whole else "rollout": [lambda m, d, u, n=n: rollout(m, d, u, n) for n in (None, jax.devices())],
    "step": [lambda m, d, u, f=f: (f(m, d).qvel,) for f in (step, split)],
  }
  if not whole:
    del runs["step"]
  for names, (one, eight) in runs.items():
    program = mjx.jit(eight).lower(m, d, ctrl).compile()
    exchanged = len(EXCHANGE.findall(program.as_text()))
    for name, want, found in zip(names.split(), mjx.jit(one)(m, d, ctrl), program(m, d, ctrl), strict=True):
      assert len(found.sharding.device_set) == 8
      print(name, float(jnp.max(jnp.abs(want - np.asarray(found))) / jnp.max(jnp.abs(found))), exchanged)


def in_two(process, port, folder):
  """The rollout in one of two processes with two devices each; saves the positions of its own worlds."""
  jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
  assert jax.device_count() == 4 and jax.local_device_count() == 2
  m, d, ctrl = worlds()
  mesh, spec = jax.sharding.Mesh(np.asarray(jax.devices()), ("worlds",)), jax.sharding.PartitionSpec

  def spread(x, *axes):
    whole = np.asarray(x)
    sharding = jax.sharding.NamedSharding(mesh, spec(*axes))
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

  m = jax.tree.map(spread, m)
  d, ctrl = jax.tree.map(lambda x: spread(x, "worlds"), (d, ctrl))
  found = mjx.jit(lambda m, d, u: last(m, d, u, jax.devices()))(m, d, ctrl)
  parts = {f"at{s.index[0].start}": np.asarray(s.data) for s in found.addressable_shards}
  np.savez(f"{folder}/{process}.npz", **parts)


def start(code, devices):
  flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
  path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
  env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "PYTHONPATH": path}
  command = [sys.executable, "-c", f"import test_many_devices as t; {code}"]
  return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0, err[-3000:]
  return out


def test_eight_devices_do_as_one_and_exchange_nothing():
  plain = start("t.empty()", 8)
  plain.communicate(timeout=300)
  whole = plain.returncode == 0  # a step's Data has arrays without numbers, and so has JAX's derivative of `shard_map`
  lines = [line.split() for line in end(start(f"t.on_eight({whole})", 8)).splitlines()]
  assert [line[0] for line in lines] == (["gradient", "rollout", "step"] if whole else ["rollout"])
  for name, gap, exchanged in lines:
    assert float(gap) < 1e-8 and int(exchanged) == 0, (name, gap, exchanged)


def test_two_processes_do_as_one(tmp_path):
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
  both = [start(f"t.in_two({k}, {port}, {str(tmp_path)!r})", 2) for k in range(2)]
  for process in both:
    end(process)
  m, d, ctrl = worlds()
  want, have = np.asarray(mjx.jit(last)(m, d, ctrl)), 0
  for k in range(2):
    for at, part in np.load(tmp_path / f"{k}.npz").items():
      first = int(at[2:] or 0) if at != "atNone" else 0
      np.testing.assert_allclose(part, want[first : first + len(part)], rtol=1e-8, atol=1e-8)
      have += len(part)
  assert have == WORLDS


def test_worlds_have_to_divide_among_the_devices():
  m, d, ctrl = worlds()
  with pytest.raises(ValueError, match="multiple of 3"):
    mjx.rollout(m, d, ctrl, devices=3 * jax.devices()[:1])
