"""Sensors of whole models beside MuJoCo C, type by type: errors along C's trajectories, and derivatives against differences.

    python benchmarks/sensors.py --json found.jsonl robot.xml scene.xml    # appends a line per model
    python benchmarks/sensors.py --table found.jsonl                       # all of them in one table
    python benchmarks/sensors.py --derivatives                             # of the scenes of the tests

A model gets sensors of every type that its bodies, joints, tendons and actuators admit, beside those that it has. Each is
compared twice: with what C's sensors say of the engine's own results, so that no solver or collider stands between, and with
C's from the same state, solved to the optimum, where the contacts are the same. See README.md.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import sys
import time
from typing import cast

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import mjx_lite as mjx
from mjx_lite.testing import compare

S, T = mujoco.mjtSensor, mujoco.mjtObj
FRAMES = ("FRAMEPOS", "FRAMEQUAT", "FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS", "FRAMELINVEL", "FRAMEANGVEL")
SCENES = pathlib.Path(__file__).parents[1] / "tests" / "scenes"
SLOTS = 64  # a model with more slots than these gets suggested capacities


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("models", nargs="*")
  parser.add_argument("--bodies", type=int, default=4, help="that get sensors, of each model")
  parser.add_argument("--states", type=int, default=8)
  parser.add_argument("--json", type=pathlib.Path)
  parser.add_argument("--table", type=pathlib.Path)
  parser.add_argument("--derivatives", action="store_true")
  return parser.parse_args()


def _named(elements, kind):
  """Elements, with a name each."""
  for i, x in enumerate(elements):
    x.name = x.name or f"{kind}_{i}"
  return list(elements)


def _type(name):
  return getattr(S, f"mjSENS_{name}")


def equip(spec: mujoco.MjSpec, bodies: int) -> None:
  """Add sensors."""
  for kind in ("joint", "tendon", "actuator"):
    _named(getattr(spec, f"{kind}s"), kind)
  plain = spec.compile()
  still = (plain.body_weldid == 0) | (plain.body_mocapid >= 0)
  moving = [b for b in _named(spec.bodies, "body") if not still[b.id]]
  chosen = [moving[i] for i in np.linspace(0, len(moving) - 1, min(bodies, len(moving))).astype(int)]
  add, sizes = spec.add_sensor, {b.name: max((plain.geom_rbound[g.id] for g in b.geoms), default=0) for b in chosen}
  for k, b in enumerate(chosen):
    other = chosen[k - 1]
    size = max(0.02, sizes[b.name])
    # off the axes: bodies begin where others end, and there round-off decides what a ray meets
    place = dict(pos=[0.13 * size, 0.17 * size, 0.11 * size], quat=[0.8, 0.1, 0.5, 0.3])
    site = b.add_site(name=f"sensing_{k}", size=[size] * 3, **place)
    for name in FRAMES:
      add(type=_type(name), objtype=T.mjOBJ_BODY, objname=b.name)
      add(type=_type(name), objtype=T.mjOBJ_SITE, objname=site.name, reftype=T.mjOBJ_XBODY, refname=other.name)
    for name in ("FRAMELINACC", "FRAMEANGACC"):
      add(type=_type(name), objtype=T.mjOBJ_XBODY, objname=b.name)
    for name in ("SUBTREECOM", "SUBTREELINVEL", "SUBTREEANGMOM"):
      add(type=_type(name), objtype=T.mjOBJ_BODY, objname=b.name)
    for name in ("GYRO", "VELOCIMETER", "ACCELEROMETER", "FORCE", "TORQUE", "MAGNETOMETER", "TOUCH"):
      add(type=_type(name), objtype=T.mjOBJ_SITE, objname=site.name)
    ray = add(type=S.mjSENS_RANGEFINDER, objtype=T.mjOBJ_SITE, objname=site.name)
    ray.intprm[0] = 1
    add(type=S.mjSENS_INSIDESITE, objtype=T.mjOBJ_XBODY, objname=other.name, reftype=T.mjOBJ_SITE, refname=site.name)
  of_type = {
    mujoco.mjtJoint.mjJNT_BALL: ("BALLQUAT", "BALLANGVEL"), mujoco.mjtJoint.mjJNT_FREE: (),
  }  # fmt: skip
  for j in spec.joints:
    limited = j.limited = int(plain.jnt_limited[plain.joint(j.name).id])  # what the compiler guessed it forgets
    names = of_type.get(j.type, ("JOINTPOS", "JOINTVEL", "JOINTACTFRC", "JOINTLIMITPOS", "JOINTLIMITVEL", "JOINTLIMITFRC"))
    for name in names:
      if not ("LIMIT" in name and not limited):
        add(type=_type(name), objtype=T.mjOBJ_JOINT, objname=j.name)
  for t in spec.tendons:
    limited = t.limited = int(plain.tendon_limited[plain.tendon(t.name).id])
    for name in ("TENDONPOS", "TENDONVEL", "TENDONACTFRC", "TENDONLIMITPOS", "TENDONLIMITVEL", "TENDONLIMITFRC"):
      if not ("LIMIT" in name and not limited):
        add(type=_type(name), objtype=T.mjOBJ_TENDON, objname=t.name)
  for a in spec.actuators:
    for name in ("ACTUATORPOS", "ACTUATORVEL", "ACTUATORFRC"):
      add(type=_type(name), objtype=T.mjOBJ_ACTUATOR, objname=a.name)
  for name in ("E_POTENTIAL", "E_KINETIC", "CLOCK"):
    add(type=_type(name))


def states(model, number):
  """States of C along a trajectory under random controls."""
  rng, data = np.random.default_rng(0), mujoco.MjData(model)
  if model.nkey:
    mujoco.mj_resetDataKeyframe(model, data, 0)
  low, high = np.where(model.actuator_ctrllimited, model.actuator_ctrlrange.T, [[-1.0], [1.0]]) if model.nu else (0, 0)
  for _ in range(number):
    data.ctrl[:] = rng.uniform(low, high, model.nu)
    mujoco.mj_step(model, data, max(1, round(0.05 / model.opt.timestep)))
    yield compare._state_only(model, data)


def _error(a, b, kind, force):
  """Relative error; what a joint lets through is a sum that cancels, and is seen beside a thousandth of the largest force."""
  if kind in (S.mjSENS_FORCE, S.mjSENS_TORQUE):
    return (np.abs(a - b) / max(np.abs(b).max(), 1e-3 * force, 1e-3)).max()
  return compare.relative_error(a, b).max()


def _contacts_agree(ours, theirs):
  """Whether both have the same contacts, and so the same problem to solve."""
  a, b = ours.contact, theirs.contact
  if ours.ncon != theirs.ncon or np.any(a.geom != b.geom):
    return False
  return all(np.abs(getattr(a, k) - getattr(b, k)).max(initial=0) < 1e-9 for k in ("dist", "pos", "frame"))


def errors(model, number):
  """By type: number of sensors, worst errors against C's sensors and against all of C, and how many ever said something.

  Returns:
    That, and the number of states with C's contacts, which alone count for the second error.
  """
  seen = list(states(model, number))
  m = None
  with contextlib.suppress(mjx.MjxError):  # more slots than there is room for
    m = mjx.put_model(model)
  if m is None or len(mjx.make_data(m).contact.dist) > SLOTS:
    m = mjx.put_model(model, **mjx.suggest_capacity(model, np.array([x.qpos for x in seen])))
  forward, worst, alive = mjx.jit(mjx.forward), np.zeros((2, model.nsensor)), np.zeros(model.nsensor, bool)
  same = 0
  for state in seen:
    d = forward(m, mjx.put_data(m, state))
    ours, own = (cast(mujoco.MjData, mjx.get_data(model, d)) for _ in range(2))
    own.sensordata[:] = 0
    for stage in (mujoco.mj_sensorPos, mujoco.mj_sensorVel, mujoco.mj_sensorAcc):
      stage(model, own)
    mujoco.mj_forward(model, state)
    alike = _contacts_agree(ours, state)
    same += alike
    for i in range(model.nsensor):
      a = ours.sensor(i).data
      for k, b in enumerate((own.sensor(i).data, state.sensor(i).data)[: 1 + alike]):
        worst[k, i] = max(worst[k, i], _error(a, b, model.sensor_type[i], np.abs(own.cfrc_int).max()))
        alive[i] |= b.any()
  out: dict[str, tuple[int, float, float, int]] = {}
  for i, t in enumerate(model.sensor_type):
    name = S(int(t)).name.removeprefix("mjSENS_")
    n, own, whole, said = out.get(name, (0, 0.0, 0.0, 0))
    out[name] = n + 1, max(own, worst[0, i]), max(whole, worst[1, i]), said + int(alive[i])
  return out, same


def measure(path, bodies, number):
  """What a line of the file says of a model."""
  began = time.perf_counter()
  spec = mujoco.MjSpec.from_file(path)
  equip(spec, bodies)
  model = compare.optimal(spec.compile())
  model.opt.noslip_iterations, model.opt.solver = 0, int(mujoco.mjtSolver.mjSOL_NEWTON)
  model.opt.ccd_tolerance, model.opt.ccd_iterations = 1e-12, 500  # C's search for convex contacts goes to its end
  try:
    found, same = errors(model, number)
  except mjx.UnsupportedModelError as e:
    return {"model": path, "refused": str(e)}
  return {"model": path, "sensors": found, "states": number, "same": int(same), "seconds": time.perf_counter() - began}


def derivatives():
  """By type: worst difference of a derivative along a random direction from central differences, relative to the sensor."""
  out = collections.defaultdict(lambda: [0.0, 0.0])
  for name in ("sensors", "sensor_rays"):
    model = mujoco.MjModel.from_xml_path(str(SCENES / f"{name}.xml"))
    far = np.isin(model.sensor_type, [S.mjSENS_GEOMDIST, S.mjSENS_GEOMNORMAL, S.mjSENS_GEOMFROMTO])
    model.sensor_cutoff[~far] = 0
    data, rng = mujoco.MjData(model), np.random.default_rng(1)
    if name == "sensors":
      mujoco.mj_step(model, data, 70)
    else:
      data.qvel[:] = 0.1 * rng.normal(size=model.nv)
    mujoco.mj_forward(model, data)
    m = mjx.put_model(model)
    d = mjx.jit(mjx.fwd_position)(m, mjx.put_data(m, data))
    rows = jnp.asarray(rng.uniform(1, 2, d.efc_force.shape))

    def f(x, m=m, d=d):
      dq, qvel, qacc, force, drive = x
      x = d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones(())), qvel=qvel)
      x = mjx.fwd_velocity(m, mjx.sensor_pos(m, mjx.fwd_position(m, x)))
      x = mjx.sensor_vel(m, x).replace(qacc=qacc, efc_force=force, actuator_force=drive, qfrc_actuator=0.3 * qacc)
      return mjx.sensor_acc(m, x).sensordata

    at = (jnp.zeros(m.nv), d.qvel, jnp.asarray(data.qacc), rows, jnp.asarray(data.actuator_force))
    slope, value = mjx.jit(lambda x, v, f=f: jax.jvp(f, (x,), (v,))[1]), mjx.jit(f)
    for _ in range(3):
      v = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in at)
      ours = np.asarray(slope(at, v))
      ends = [np.asarray(value(tuple(x + s * 1e-6 * y for x, y in zip(at, v, strict=True)))) for s in (1, -1)]
      theirs = (ends[0] - ends[1]) / 2e-6
      for i, t in enumerate(model.sensor_type):
        own = slice(model.sensor_adr[i], model.sensor_adr[i] + model.sensor_dim[i])
        entry = out[S(int(t)).name.removeprefix("mjSENS_")]
        entry[0] = max(entry[0], float((np.abs(ours[own] - theirs[own]) / max(1, np.abs(theirs[own]).max())).max()))
        entry[1] = max(entry[1], float(np.abs(ours[own]).max()))
  return out


def table(path: pathlib.Path) -> None:
  """A line per type over all models of a file; then what was refused."""
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  total = collections.defaultdict(lambda: [0, 0, 0.0, 0.0, ""])
  for line in lines:
    for name, (n, own, whole, said) in line.get("sensors", {}).items():
      t = total[name]
      t[0], t[1], t[2] = t[0] + n, t[1] + said, max(t[2], own)
      if whole >= t[3]:
        t[3], t[4] = whole, pathlib.Path(line["model"]).stem
  print("| type | sensors | that say something | C's sensors | all of C | where |\n|---|---|---|---|---|---|")
  for name, (n, said, own, whole, where) in sorted(total.items()):
    print(f"| {name} | {n} | {said} | {own:.0e} | {whole:.0e} | {where} |")
  seen = [x for x in lines if "sensors" in x]
  print(f"\n{len(seen)} models; contacts agree in {sum(x['same'] for x in seen)} of {sum(x['states'] for x in seen)} states")
  for line in lines:
    if "sensors" in line and line["same"] < line["states"]:
      print(f"{pathlib.Path(line['model']).stem}: in {line['same']} of {line['states']}")
    if "refused" in line:
      print(f"{pathlib.Path(line['model']).stem}: {line['refused'].splitlines()[-1].strip()}")


def main():
  args = arguments()
  jax.config.update("jax_enable_x64", True)
  number = args.states
  for path in args.models:
    line = measure(path, args.bodies, number)
    worst = sorted((f"{max(x[1:3]):.0e} {k}" for k, x in line.get("sensors", {}).items()), key=lambda x: -float(x.split()[0]))
    told = line.get("refused") or f"{line['seconds']:.0f} s, contacts agree in {line['same']} of {number}: {worst[:4]}"
    print(path, told, flush=True)
    if args.json:
      with args.json.open("a") as file:
        file.write(json.dumps(line) + "\n")
  if args.derivatives:
    print("| type | derivative off by | largest |\n|---|---|---|")
    for name, (off, most) in sorted(derivatives().items()):
      print(f"| {name} | {off:.0e} | {most:.0e} |")
  if args.table is not None:
    table(args.table)


if __name__ == "__main__":
  sys.exit(main())
