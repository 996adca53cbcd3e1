"""Soaks the shipped humanoid in float32: many worlds under random controls and pushes, and what went wrong in them.

    python benchmarks/soak.py --steps 1000000 --worlds 1024

Counts worlds with values that are not finite, resets and other flags, and finds the largest energy, speed and depth below the
floor, over all steps of all worlds. Exits with 1 if a world is not finite or fell through the floor.
"""

import argparse
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx

MODEL = pathlib.Path(mjx.__file__).parent / "models" / "humanoid.xml"
CHUNK = 50  # steps per call; pushes and controls change once per call
PUSH = 200.0  # N, standard deviation of the force on a random body
DEEP = 0.2  # m below the floor that no centre of a geom may be


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--steps", type=int, default=1_000_000, help="in total, of all worlds together")
  parser.add_argument("--worlds", type=int, default=1024)
  parser.add_argument("--model", type=pathlib.Path, default=MODEL)
  parser.add_argument("--seed", type=int, default=0)
  return parser.parse_args()


def chunk(m, d, ctrl, push):
  """CHUNK steps of a world, and the largest energy, speed and depth along them."""

  def step(carry, _):
    d, worst = carry
    d = mjx.step(m, d.replace(ctrl=ctrl, xfrc_applied=push))
    depth = -jnp.min(d.geom_xpos[1:, 2], initial=jnp.inf)
    now = jnp.stack([jnp.abs(d.energy.sum()), jnp.abs(d.qvel).max(), depth])
    return (d, jnp.maximum(worst, now)), None

  return jax.lax.scan(step, (d, jnp.full(3, -jnp.inf)), None, length=CHUNK)[0]


def main() -> int:
  args = arguments()
  model = mujoco.MjModel.from_xml_path(str(args.model))
  model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
  m, rng, n = mjx.put_model(model), np.random.default_rng(args.seed), args.worlds
  one = mjx.make_data(m)
  d = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), one)
  run = mjx.jit(jax.vmap(chunk, in_axes=(None, 0, 0, 0)))
  worst, calls, began = np.full(3, -np.inf), max(1, round(args.steps / (n * CHUNK))), time.perf_counter()
  for i in range(calls):
    ctrl = jnp.asarray(rng.uniform(-1, 1, (n, model.nu)), jnp.float32)
    push = np.zeros((n, model.nbody, 6), np.float32)
    push[np.arange(n), rng.integers(1, model.nbody, n), :3] = PUSH * rng.normal(size=(n, 3))
    d, along = run(m, d, ctrl, jnp.asarray(push))
    worst = np.maximum(worst, np.asarray(along).max(axis=0))  # NaN stays NaN
    if i == 0:
      jax.block_until_ready(d)
      began = time.perf_counter()
  seconds = time.perf_counter() - began
  finite = np.isfinite(np.asarray(d.qpos)).all(axis=1) & np.isfinite(np.asarray(d.qvel)).all(axis=1)
  count = np.asarray(d.status.count)
  print(f"{calls * CHUNK * n:,} steps of {n:,} worlds, {d.qpos.dtype}, on {jax.devices()[0].device_kind}; {seconds:.0f} s")
  print(f"worlds with values that are not finite: {int((~finite).sum())}")
  for flag in mjx.Warning:
    print(f"{flag.name}: {int(count[:, int(flag)].sum()):,}")
  print("largest |energy| {:.4g} J, speed {:.4g} rad/s or m/s, depth of a geom below the floor {:.3g} m".format(*worst))
  return int(not finite.all() or not worst[2] < DEEP)


if __name__ == "__main__":
  sys.exit(main())
