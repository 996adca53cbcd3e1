"""Trains tasks with the settings of `mjx_lite.rl.settings` and says what the policies do, without noise and from new starts.

    pip install -e '.[rl]'
    python benchmarks/learn.py joystick_flat --json learned.jsonl
    python benchmarks/learn.py joystick_flat --on joystick_rough --checkpoint run     # what it does elsewhere
    python benchmarks/learn.py joystick_rough --after joystick_flat --checkpoint run  # goes on from what was learned there

Printed, one line of JSON for each task: steps, seconds of wall and of CPU (compiling included), the learning curve thinned to
twenty entries, and what the policy does: return and length of episodes; for the joystick the velocities at each command, means
over worlds and over the time after the first second, and what worlds miss (root mean square over worlds of their means); for
the hand the angle to the goal.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite import envs
from mjx_lite.rl import ppo, settings

# forward, to the left [m/s], about the vertical [rad/s]
COMMANDS = {
  "stand": (0, 0, 0), "forward": (0.8, 0, 0), "back": (-0.6, 0, 0), "left": (0, 0.4, 0), "right": (0, -0.4, 0),
  "turn left": (0, 0, 0.8), "turn right": (0, 0, -0.8), "curve": (0.6, 0, 0.5),
}  # fmt: skip


def returns(env, policy, length, count=64):
  """Mean return and length of whole episodes from new starts."""
  worlds = envs.wrap(env, episode_length=length, auto_reset=False)

  def one(carry, _):
    state, alive, total, steps = carry
    state = worlds.step(state, policy(state.obs))
    total, steps = total + alive * state.reward, steps + alive
    return (state, alive * (1 - state.done), total, steps), None

  @mjx.jit
  def run(keys):
    state = worlds.reset(keys)
    zero = jnp.zeros_like(state.reward)
    (state, _, total, steps), _ = jax.lax.scan(one, (state, zero + 1, zero, zero), length=length)
    return total, steps

  total, steps = run(jax.random.split(jax.random.key(7), count))
  return {"return": round(float(total.mean()), 1), "length": round(float(steps.mean()), 1)}


def follow(env, policy, seconds=5.0, count=16):
  """What a joystick policy does at each command: mean velocities, root mean square of what it misses, worlds that fell."""
  steps, first = round(seconds / env.dt), round(1 / env.dt)

  def one(carry, _):
    state, up = carry
    state = env.step(state, policy(state.obs))
    up = up * (1 - state.done)
    v = env.velocity(state.data)
    return (state, up), (jnp.stack([v[0], v[1], state.data.qvel[5]]), up)

  def world(key, command):
    state = env.reset(key)
    d = state.data.replace(mocap_pos=command[None])
    state = state.replace(data=d, obs=env.observe(env.model, d))
    return jax.lax.scan(one, (state, jnp.ones_like(state.done)), length=steps)[1]

  commands = jnp.repeat(jnp.asarray(list(COMMANDS.values()), env.model.qpos0.dtype), count, axis=0)
  v, up = mjx.jit(jax.vmap(world))(jax.random.split(jax.random.key(8), len(commands)), commands)
  v = np.asarray(v).reshape(len(COMMANDS), count, steps, 3)[:, :, first:]
  up = np.asarray(up).reshape(len(COMMANDS), count, steps)[:, :, first:]
  out = {}
  for i, (name, command) in enumerate(COMMANDS.items()):
    weight = np.maximum(up[i].sum(), 1)
    mean = (v[i] * up[i][..., None]).sum((0, 1)) / weight
    by_world = (v[i] * up[i][..., None]).sum(1) / np.maximum(up[i].sum(1), 1)[:, None]
    miss = np.sqrt(np.mean((by_world - np.array(command)) ** 2, axis=0))
    out[name] = {
      "command": command,
      "mean": mean.round(3).tolist(),
      "miss": miss.round(3).tolist(),
      "fell": int((up[i][:, -1] == 0).sum()),
    }
  return out


def turned(env, policy, length, count=64):
  """Angles [deg] between cube and goal at the start and the end of episodes, medians over worlds, and how many dropped it."""

  def one(carry, _):
    state, held = carry
    state = env.step(state, policy(state.obs))
    held = held * (1 - state.done)
    return (state, held), (env.away(state.data)[0], held)

  def world(key):
    state = env.reset(key)
    return env.away(state.data)[0], *jax.lax.scan(one, (state, jnp.ones_like(state.done)), length=length)[1]

  first, cosine, held = mjx.jit(jax.vmap(world))(jax.random.split(jax.random.key(8), count))

  def angle(c):
    return np.rad2deg(2 * np.arccos(np.clip(np.abs(c), 0, 1)))

  kept = np.asarray(held)[:, -1] > 0
  last = np.median(angle(np.asarray(cosine)[:, -10:]), axis=1)  # of the last tenth of a second and more
  return {
    "start": round(float(np.median(angle(first))), 1), "end": round(float(np.median(last[kept])), 1) if kept.any() else None,
    "within_20": int((last[kept] < 20).sum()), "dropped": int((~kept).sum()), "of": count,
  }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("tasks", nargs="+", choices=sorted(settings.PPO))
  parser.add_argument("--iterations", type=int, help="instead of those of the settings")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--after", choices=sorted(settings.PPO), help="task from whose learner to start")
  parser.add_argument("--on", nargs="*", default=[], help="other tasks to try the policy on")
  parser.add_argument("--checkpoint", help="folder to write to and to go on from; one for each task beneath it")
  parser.add_argument("--json", help="file to append to")
  args = parser.parse_args()
  for name in args.tasks:
    env, options = envs.load(name, dtype=np.float32), dict(settings.PPO[name])
    options["iterations"] = args.iterations or options["iterations"]
    learner = None
    if args.after:
      learner = ppo.train(
        envs.load(args.after, dtype=np.float32), **settings.PPO[args.after], seed=args.seed,
        checkpoint=args.checkpoint and f"{args.checkpoint}/{args.after}",
      ).learner  # fmt: skip
    wall, cpu = time.perf_counter(), time.process_time()
    folder = args.checkpoint and f"{args.checkpoint}/{name}"
    out = ppo.train(env, **options, seed=args.seed, learner=learner, checkpoint=folder)
    told = dict(task=name, wall_s=round(time.perf_counter() - wall, 1), cpu_s=round(time.process_time() - cpu, 1))
    ended = [x for x in out.curve if x["episodes"]]
    thin = ended[:: max(len(ended) // 20, 1)] + ended[-1:]
    told |= dict(steps=out.curve[-1]["steps"], curve=[(x["steps"], round(x["return"], 1)) for x in thin])
    for other in (name, *args.on):
      there = envs.load(other, dtype=np.float32)
      told[other] = returns(there, out.policy, options["config"].episode_length)
      if other.startswith("joystick"):
        told[other]["follows"] = follow(there, out.policy)
      if other == "in_hand_cube":
        told[other]["turned"] = turned(there, out.policy, options["config"].episode_length)
    line = json.dumps(told)
    print(line)
    if args.json:
      with open(args.json, "a") as f:
        f.write(line + "\n")


if __name__ == "__main__":
  main()
