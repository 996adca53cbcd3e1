"""Times `mjx_lite.sysid.fit` beside MuJoCo's own `mujoco.sysid` on the same problem, in one process and in alternation.

    pip install -e '.[sysid]' 'mujoco[sysid]'
    python benchmarks/sysid.py --trajectories 8 --steps 250 --repeats 3

An arm of servos; dampings, armatures and gains are unknown; the trajectories are of C MuJoCo, with noise on positions and
velocities. `mujoco.sysid` takes finite differences over rollouts on all cores and its default optimizer; ours has exact
Jacobians. Both start from the same values within the same bounds and run until they say that they have converged. Printed:
seconds of each repeat, of the first with compilation, least seconds of CPU, and the errors of what was found.
"""

import argparse
import contextlib
import io
import json
import statistics
import time

import jax
import mujoco
import numpy as np

import mjx_lite as mjx
from mjx_lite import sysid

jax.config.update("jax_enable_x64", True)
LINKS = 4
NOISE = 0.002


def xml(links: int) -> str:
  """A chain of links with a servo each."""
  body = ""
  for i in reversed(range(links)):
    axis = "0 1 0" if i % 2 else "0 0 1"
    body = f"""<body name="link{i}" pos="0 0 {0.1 if i else 0.3}">
      <joint name="joint{i}" axis="{axis}" damping="0.5" armature="0.05"/>
      <geom type="capsule" fromto="0.02 0 0 0.05 0 0.1" size="0.02" mass="0.5"/>{body}</body>"""
  servos = "".join(f'<position name="servo{i}" joint="joint{i}" kp="20" kv="1"/>' for i in range(links))
  sensors = "".join(f'<jointpos name="q{i}" joint="joint{i}"/><jointvel name="v{i}" joint="joint{i}"/>' for i in range(links))
  return f"""<mujoco><compiler angle="radian"/>
    <option timestep="0.004" integrator="implicitfast"><flag contact="disable"/></option>
    <worldbody>{body}</worldbody><actuator>{servos}</actuator><sensor>{sensors}</sensor></mujoco>"""


def problem(args):
  """The robot as it is, excitations, and what is measured."""
  rng = np.random.default_rng(args.seed)
  true = dict(damping=rng.uniform(0.2, 1.0, LINKS), armature=rng.uniform(0.02, 0.1, LINKS), kp=rng.uniform(10, 40, LINKS))
  m = mujoco.MjModel.from_xml_string(xml(LINKS))
  m.dof_damping[:], m.dof_armature[:] = true["damping"], true["armature"]
  m.actuator_gainprm[:, 0], m.actuator_biasprm[:, 1] = true["kp"], -true["kp"]
  mujoco.mj_setConst(m, mujoco.MjData(m))
  t = m.opt.timestep * np.arange(args.steps)[:, None]
  ctrl, seen = [], []
  for _ in range(args.trajectories):
    u = 0.8 * np.sin(rng.uniform(3, 12, LINKS) * t + rng.uniform(0, 6, LINKS))
    d, out = mujoco.MjData(m), []
    for x in u:
      d.ctrl[:] = x
      mujoco.mj_step(m, d)
      out.append(d.sensordata.copy())
    ctrl.append(u)
    seen.append(np.array(out) + NOISE * rng.normal(size=(args.steps, 2 * LINKS)))
  return np.concatenate(list(true.values())), ctrl, seen


class Ours:
  """mjx_lite.sysid.fit."""

  name = "mjx_lite.sysid"

  def __init__(self, ctrl, seen):
    self.m = mjx.put_model(mujoco.MjModel.from_xml_string(xml(LINKS)))
    self.params = [
      sysid.field(self.m, "dof_damping", bounds=(0.01, 3)),
      sysid.field(self.m, "dof_armature", bounds=(0.001, 0.5)),
      sysid.kp(self.m, bounds=(1, 100)),
    ]
    self.trajectories = [sysid.Trajectory(u, {"sensordata": y}) for u, y in zip(ctrl, seen, strict=True)]

  def fit(self):
    found = sysid.fit(self.m, self.params, self.trajectories, noise=NOISE)
    return found.values, found.iterations


class Theirs:
  """mujoco.sysid."""

  name = "mujoco.sysid"

  def __init__(self, ctrl, seen):
    from mujoco import sysid as other

    self.other = other
    spec = mujoco.MjSpec.from_string(xml(LINKS))
    m = spec.compile()
    d = mujoco.MjData(m)
    start = other.create_initial_state(m, d.qpos, d.qvel, d.act)
    h = m.opt.timestep
    # its first measurement is that of the start; the rollout's own follow, what step i measures at time (i + 1) h
    sequences = []
    for i, (u, y) in enumerate(zip(ctrl, seen, strict=True)):
      time_u, time_y = h * np.arange(len(u) + 1), h * np.arange(len(u) + 1)
      u, y = np.concatenate([u, u[-1:]]), np.concatenate([y[:1], y])
      sensors = other.TimeSeries.from_names(time_y, y, m)
      sequences.append(other.ModelSequences("arm", spec, f"t{i}", start, other.TimeSeries(time_u, u), sensors))
    self.residual = other.build_residual_fn(models_sequences=sequences)

  def _params(self):
    other, out = self.other, self.other.ParameterDict()

    def add(name, value, low, high, modifier):
      out.add(other.Parameter(name, value, min_value=low, max_value=high, modifier=modifier))

    for i in range(LINKS):
      j = f"joint{i}"
      add(f"damping{i}", 0.5, 0.01, 3, lambda s, p, j=j: _set_first(s.joint(j), "damping", p.value[0]))
    for i in range(LINKS):
      add(f"armature{i}", 0.05, 0.001, 0.5, lambda s, p, j=f"joint{i}": setattr(s.joint(j), "armature", p.value[0]))
    for i in range(LINKS):
      add(f"kp{i}", 20, 1, 100, lambda s, p, a=f"servo{i}": _set_kp(s.actuator(a), p.value[0]))
    return out

  def fit(self):
    calls = [0]

    def residual(x, params, **kwargs):
      calls[0] += 1
      return self.residual(x, params, **kwargs)

    with contextlib.redirect_stdout(io.StringIO()):
      found, _ = self.other.optimize(self._params(), residual, verbose=False)
    return found.as_vector(), calls[0]


def _set_first(element, field, value):
  """Set a number, or the first of several."""
  old = getattr(element, field)
  if np.ndim(old):
    old[0] = value
  else:
    setattr(element, field, value)


def _set_kp(actuator, value):
  actuator.gainprm[0], actuator.biasprm[1] = value, -value


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--trajectories", type=int, default=8)
  parser.add_argument("--steps", type=int, default=250)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args()
  true, ctrl, seen = problem(args)
  engines = [Ours(ctrl, seen), Theirs(ctrl, seen)]
  seconds = {e.name: [] for e in engines}
  told = {}
  for i in range(args.repeats + 1):  # the first one compiles
    for e in engines:
      began, cpu = time.perf_counter(), time.process_time()
      values, calls = e.fit()
      spent, cpu = time.perf_counter() - began, time.process_time() - cpu
      told.setdefault(e.name, dict(first_s=round(spent, 2), first_cpu_s=round(cpu, 2)))
      if i:
        seconds[e.name].append(round(spent, 3))
        told[e.name]["cpu_s"] = min(told[e.name].get("cpu_s", np.inf), round(cpu, 2))
      told[e.name].update(evaluations=calls, worst_error=float(np.max(np.abs(values / true - 1))))
  for e in engines:
    print(json.dumps(dict(engine=e.name, median_s=statistics.median(seconds[e.name]), seconds=seconds[e.name], **told[e.name])))


if __name__ == "__main__":
  main()
