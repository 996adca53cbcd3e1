"""Identification: parameters of C's own trajectories, their covariance, bounds, segments, and what cannot be known."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import scipy.optimize

import mjx_lite as mjx
from mjx_lite import sysid
from mjx_lite.sysid import params as parameters
from mjx_lite.sysid import problem, programs, report, result, solve

fitting = importlib.import_module("mjx_lite.sysid.fit")  # the package's `fit` is the function

ARM = """
<mujoco>
  <!-- a servo and a motor; a block that slides on the floor beside them, and a ball that touches nothing -->
  <option timestep="0.01" integrator="implicitfast" cone="elliptic" tolerance="1e-14"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1" friction="0.5"/>
    <body pos="0 0 1">
      <joint name="arm" axis="0 1 0" damping="0.1" frictionloss="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03" mass="1" contype="0" conaffinity="0"/>
      <body name="tip" pos="0 0 -0.4">
        <joint name="tip" axis="0 1 0" damping="0.05"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02" mass="0.5" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body name="block" pos="1 0 0.0999">
      <joint name="slide_x" type="slide" axis="1 0 0"/>
      <joint name="slide_z" type="slide" axis="0 0 1"/>
      <geom name="block" size="0.1" mass="1" priority="1" friction="0.2" condim="3"/>
    </body>
    <geom name="far" size="0.1" pos="5 5 5" friction="0.7"/>
  </worldbody>
  <actuator>
    <position name="servo" joint="arm" kp="20" kv="1"/>
    <motor name="motor" joint="tip"/>
    <motor name="pusher" joint="slide_x"/>
  </actuator>
  <sensor>
    <jointpos name="arm" joint="arm"/>
    <jointpos name="tip" joint="tip"/>
    <jointpos name="block" joint="slide_x"/>
  </sensor>
</mujoco>
"""
TRUE = {"damping": 0.09, "frictionloss": 0.2, "mass": 0.7, "kp": 26.0, "gear": 1.2, "friction": 0.3}
NOISE, STEPS = 0.004, (150, 100)


def true_model(v):
  """The arm with other numbers, compiled by C."""
  m = mujoco.MjModel.from_xml_string(ARM)
  tip = m.body("tip").id
  m.dof_damping[1], m.dof_frictionloss[0] = v["damping"], v["frictionloss"]
  m.body_inertia[tip] *= v["mass"] / m.body_mass[tip]
  m.body_mass[tip] = v["mass"]
  m.actuator_gainprm[0, 0], m.actuator_biasprm[0, 1], m.actuator_gear[1, 0] = v["kp"], -v["kp"], v["gear"]
  m.geom_friction[m.geom("block").id, 0] = v["friction"]
  mujoco.mj_setConst(m, mujoco.MjData(m))
  return m


def simulate(m, ctrl, read, qpos=None):
  d = mujoco.MjData(m)
  if qpos is not None:
    d.qpos[:] = qpos
  out = []
  for u in ctrl:
    d.ctrl[:] = u
    mujoco.mj_step(m, d)
    out.append(read(d))
  return np.array(out)


def controls(steps, phase):
  t = 0.01 * np.arange(steps)[:, None]
  return np.array([0.8, 0.4, 4.0]) * np.sin(np.array([5.0, 7.0, 6.0]) * t + phase)


@pytest.fixture(scope="module")
def arm():
  """The fit of the arm, and the controls behind it."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM))
  rng = np.random.default_rng(0)
  ctrl, trajectories = [controls(n, phase) for n, phase in zip(STEPS, (0.0, 1.0), strict=True)], []
  for u in ctrl:
    y = simulate(true_model(TRUE), u, lambda d: d.sensordata.copy())
    y += NOISE * rng.normal(size=y.shape)
    y[20:30, 1] = np.nan  # lost
    trajectories.append(sysid.Trajectory(u, {"arm": y[:, 0], "tip": y[:, 1], "block": y[:, 2]}))
  unknown = [
    sysid.field(m, "dof_damping", "tip", bounds=(0, 1)),
    sysid.field(m, "dof_frictionloss", "arm", bounds=(0, 1)),
    sysid.mass(m, "tip", bounds=(0.1, 2)),
    sysid.kp(m, "servo", bounds=(1, 100)),
    sysid.field(m, "actuator_gear", "motor", 0, bounds=(0.1, 5)),
    sysid.field(m, "geom_friction", "block", 0, bounds=(0.01, 2)),
    sysid.field(m, "geom_friction", "far", 0, bounds=(0.01, 2)),
  ]
  with pytest.warns(sysid.NotIdentified) as caught:
    found = sysid.fit(m, unknown, trajectories, noise=NOISE)
  return found, ctrl, [str(w.message) for w in caught]


def test_a_problem_without_unknowns_or_data_is_refused():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM))
  unknown, ctrl = sysid.field(m, "dof_damping", "tip"), np.zeros((5, 3))
  for params, data, message in (
    ([], sysid.Trajectory(ctrl, {"arm": np.zeros((5, 1))}), "params is empty"), (unknown, [], "trajectories is empty"),
    (unknown, sysid.Trajectory(ctrl, {}), "no trajectory has measurements"),
  ):  # fmt: skip
    with pytest.raises(ValueError, match=message):
      sysid.fit(m, params, data)


def test_without_optimistix_it_says_what_to_install(monkeypatch):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM))
  monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
  with pytest.raises(ImportError, match="mjx_lite\\[sysid\\]"):
    sysid.fit(m, sysid.mass(m, "tip"), sysid.Trajectory(np.zeros((2, 3)), {"tip": np.zeros(2)}))


def test_parameters_are_put_into_their_fields_without_scatters():
  """With tangents a scatter is a loop to compile. What is put is what is read, and nothing else changes."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM))
  unknown = [
    sysid.field(m, "dof_damping", ["tip", "arm"]), sysid.field(m, "geom_friction", None, 1), sysid.field(m, "actuator_gear"),
    sysid.field(m, "dof_armature", shared=True), sysid.field(m, "opt.gravity"), sysid.mass(m, "tip"),
    sysid.body_inertia(m, "block"), sysid.kp(m, "servo"), sysid.kv(m, "servo"),
  ]  # fmt: skip
  for p in unknown:
    old = p.get(m)
    program = jax.make_jaxpr(p.set)(m, old)
    assert "scatter" not in str(program), p.name
    np.testing.assert_allclose(p.get(p.set(m, 1.5 * old)), 1.5 * old, rtol=1e-9, atol=1e-12)
    for a, b in zip(jax.tree.leaves(p.set(m, old)), jax.tree.leaves(m), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_recovers_what_c_simulated(arm):
  found, _, _ = arm
  assert found.converged and found.iterations < 40
  error = found.values[:6] - np.array(list(TRUE.values()))
  assert (found.std[:6] < np.array([0.003, 0.02, 0.01, 0.3, 0.02, 0.003])).all()
  # the squared error in units of the covariance is chi-squared: 6 degrees of freedom, one in a thousand above 22.5
  assert error @ np.linalg.solve(found.cov[:6, :6], error) < 22.5
  assert 0.9 < found.chi2 < 1.1
  np.testing.assert_allclose(found.model.actuator_biasprm[0, 1], -found["kp[servo]"])
  low, high = found.interval("mass[tip]")
  assert abs((high - low) / 2 / found.std[2] - 1.96) < 0.001


def test_covariance_is_that_of_c(arm):
  """Noise propagated by finite differences of C at the fitted values."""
  found, ctrl, _ = arm
  values = dict(zip(TRUE, found.values[:6], strict=True))
  columns = []
  for name, value in values.items():
    h = 1e-6 * value
    two = [
      np.concatenate([simulate(true_model({**values, name: value + s * h}), u, lambda d: d.sensordata.copy()) for u in ctrl])
      for s in (1, -1)
    ]
    columns.append((two[0] - two[1]) / (2 * h))
  J = np.stack(columns, -1)  # (T, 3, 6)
  for start in (0, STEPS[0]):
    J[start + 20 : start + 30, 1] = 0
  J = J.reshape(-1, 6)
  cov = NOISE**2 * np.linalg.inv(J.T @ J)
  np.testing.assert_allclose(found.cov[:6, :6] / np.sqrt(np.outer(np.diag(cov), np.diag(cov))),
                             cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov))), atol=2e-4)  # fmt: skip


def test_says_what_the_data_do_not(arm):
  found, _, messages = arm
  assert found.unidentified == ["geom_friction[far, 0]"]
  assert len(messages) == 1 and "nothing about geom_friction[far, 0]" in messages[0]
  assert found.std[6] == np.inf and found.values[6] == 0.7 and "says nothing" in repr(found)


def test_page(arm, tmp_path):
  found, _, _ = arm
  found.report(tmp_path / "fit.html")
  page = (tmp_path / "fit.html").read_text()
  assert page.count("<img") == 2 and "kp[servo]" in page and "the data say nothing" in page
  ellipse = found.ellipse("kp[servo]", "mass[tip]")
  away = ellipse - found.values[[3, 2]]
  square = np.einsum("ni,ij,nj->n", away, np.linalg.inv(found.cov[np.ix_([3, 2], [3, 2])]), away)
  np.testing.assert_allclose(square, 5.991, rtol=1e-3)  # 95 % of chi-squared with two degrees of freedom
  assert len(report.signals(found, 1).axes) == 3


PENDULUM = """
<mujoco>
  <option timestep="0.02"/>
  <worldbody>
    <body name="bob" gravcomp="0">
      <joint name="hinge" axis="0 1 0" damping="0.05"/>
      <geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear="1"/></actuator>
</mujoco>
"""


def test_segments_find_what_one_piece_cannot():
  """A driven pendulum that goes over the top: a small error of a parameter ends in other turns."""
  c = mujoco.MjModel.from_xml_string(PENDULUM)
  ctrl = 3.0 * np.sin(2.1 * 0.02 * np.arange(400))[:, None]
  rng = np.random.default_rng(1)
  seen = simulate(c, ctrl, lambda d: np.concatenate([d.qpos, d.qvel]), qpos=[0.5])
  seen += 0.01 * rng.normal(size=seen.shape)
  t = sysid.Trajectory(ctrl, {"qpos": seen[:, :1], "qvel": seen[:, 1:]}, qpos=[0.5])
  assert np.ptp(seen[:, 0]) > 7  # it goes round
  m = mjx.put_model(c)
  m = m.replace(dof_damping=m.dof_damping * 3, actuator_gear=m.actuator_gear * 0.6)
  unknown = [sysid.field(m, "dof_damping", bounds=(0, 1)), sysid.field(m, "actuator_gear", column=0, bounds=(0.1, 5))]
  found = sysid.fit(m, unknown, t, segment=20)  # noise estimated
  assert found.converged and found.unidentified == []
  error = (found.values - [0.05, 1.0]) / found.std
  assert (np.abs(error) < 4).all() and (found.std < [2e-3, 1e-2]).all(), (found.values, found.std)
  assert found.jump < 1e-4
  np.testing.assert_allclose([found.noise["qpos"][0], found.noise["qvel"][0]], 0.01, rtol=0.1)

  def one_piece(values):
    c.dof_damping[:], c.actuator_gear[:, 0] = values
    return (simulate(c, ctrl, lambda d: np.concatenate([d.qpos, d.qvel]), qpos=[0.5]) - seen).ravel() / 0.01

  whole = scipy.optimize.least_squares(one_piece, [0.15, 0.6], bounds=([0, 0.1], [1, 5]))
  assert 2 * whole.cost > 100 * seen.size  # a local minimum: what the segments are for


FREE = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody><body><freejoint/><geom type="box" size="0.1 0.2 0.3" mass="2"/></body></worldbody>
</mujoco>
"""


def test_jacobian_of_segments():
  """Blocks against jax.jacfwd of the residual, with rotations and unknown starts."""
  m = mjx.put_model(mujoco.MjModel.from_xml_string(FREE))
  d = mjx.make_data(m)
  rng = np.random.default_rng(2)
  pose = rng.normal(size=(4, 7))
  pose[:, 3:] /= np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
  c = problem.channel(m, d, "qpos")
  assert c.tangent and len(c.columns) == 6
  p = problem.Structure(
    params=(sysid.body_inertia(m, 1), sysid.field(m, "opt.gravity")),
    sizes=(10, 3),
    channels=(c,),
    segments=4,
    link=(0, 2),
    starts=True,
  )
  start = dict(qpos=pose, qvel=rng.normal(size=(4, 6)), act=np.zeros((4, 0)), time=np.zeros(4))
  t = problem.Tables(
    m=m,
    d=d,
    start=jax.tree.map(jnp.asarray, start),
    ctrl=jnp.zeros((4, 2, 0)),
    measured={"qpos": jnp.asarray(pose[:, None] + np.zeros((4, 2, 1)))},
    weight={"qpos": jnp.asarray(rng.uniform(1, 2, (4, 2, 6)))},
    join=jnp.asarray(rng.uniform(1, 2, 12)),
    prior=jnp.asarray(rng.uniform(1, 2, (4, 12))),
    scale=jnp.asarray(rng.uniform(1, 2, 13)),
    spread=jnp.asarray(rng.uniform(1, 2, 12)),
  )
  theta = jnp.concatenate([p.params[0].get(m) + 0.1 * rng.normal(size=10), jnp.array([0.1, 0.2, -9.0])])
  z = jnp.concatenate([theta / t.scale, jnp.asarray(0.1 * rng.normal(size=48))])
  plain = lambda z: problem.residual(p, z, t)  # noqa: E731

  def by_parts(z):
    theta, delta = problem.unknowns(p, z, t)
    one = p._replace(segments=3)
    rows = np.array([[0, 1, 2], [3, 3, 3]])
    found = [
      problem.propagate_tangents(one, theta, delta[i], x) for i, x in zip(rows, programs.split_tables(t, 3), strict=True)
    ]
    return problem.assemble_jacobian(p, z, programs.concatenate(found, 4), t)

  (r, J), (value, slope) = mjx.jit(lambda z: (by_parts(z), (plain(z), jax.jacfwd(plain)(z))))(z)
  np.testing.assert_allclose(r, value, atol=1e-12)
  np.testing.assert_allclose(J, slope, atol=1e-9)


def test_bounds():
  """Nonlinear least squares in boxes that cut the minimum off, against SciPy's."""
  rng = np.random.default_rng(3)
  A = rng.normal(size=(8, 4))
  b = A @ np.array([0.6, -0.5, -0.4, 0.2]) + 0.1 * rng.normal(size=8)

  def residual(z):
    return jnp.asarray(A) @ z + 0.3 * jnp.sin(3 * z[0]) * z[1] - b

  linearised = jax.jit(lambda z: (residual(z), jax.jacfwd(residual)(z)))
  step = jax.jit(functools.partial(solve.advance, tolerance=1e-8))

  def run(z, *box):
    start = solve.begin(z, linearised(z), *box)
    return solve.least_squares(linearised, lambda now, first, found: step(now, first, found, *box), start, 99)

  active = 0
  for seed in range(4):
    low = np.random.default_rng(seed).uniform(-0.5, -0.05, 4)
    high = np.random.default_rng(seed + 10).uniform(0.05, 0.5, 4)
    found = run(jnp.zeros(4), jnp.asarray(low), jnp.asarray(high))
    theirs = scipy.optimize.least_squares(lambda z: np.asarray(residual(z)), np.zeros(4), bounds=(low, high), xtol=1e-14)
    assert (found.z >= low).all() and (found.z <= high).all() and found.converged
    assert float((found.residual**2).sum()) <= 2 * theirs.cost + 1e-7
    active += int(((found.z == low) | (found.z == high)).sum())
  assert active > 3


def test_what_is_unknown_of_the_starts(monkeypatch):
  """Two trajectories of two segments each: which starts are held, free, or known with some noise."""
  seen = []

  def stop(z, tables, low, high, iterations):
    seen.append((tables, np.asarray(low[1:]).reshape(4, 2), np.asarray(high[1:]).reshape(4, 2)))
    raise StopIteration

  monkeypatch.setattr(fitting, "_solver", lambda *options: stop)
  m = mjx.put_model(mujoco.MjModel.from_xml_string(PENDULUM))
  y = np.arange(6.0)[:, None]
  t = [sysid.Trajectory(np.zeros((6, 1)), {"qpos": y, "qvel": -y}, qpos=[9.0])] * 2
  for start_noise in (None, 0.1, np.inf, [0.1, 0.2]):
    with pytest.raises(StopIteration):
      sysid.fit(m, sysid.field(m, "dof_damping", bounds=(0, 1)), t, start_noise=start_noise, segment=4)
    tables, low, high = seen[-1]
    np.testing.assert_array_equal(tables.start["qpos"][:, 0], [9, 3, 9, 3])  # given, and measured after the fourth step
    np.testing.assert_array_equal(tables.start["time"], [0, 0.08, 0, 0.08])
    np.testing.assert_array_equal(tables.measured["qpos"][1, :, 0], [4, 5, 0, 0])
    assert not tables.weight["qpos"][1, 2:].any() and tables.weight["qpos"][1, :2].all()
    fixed = start_noise is None
    np.testing.assert_array_equal(high, np.where(fixed & (np.arange(4) % 2 == 0), 0, np.inf)[:, None] * [1, 1])
    np.testing.assert_array_equal(low, -high)
    first = np.broadcast_to([10, 5] if np.ndim(start_noise) else 10 if start_noise == 0.1 else 0, 2)
    np.testing.assert_allclose(tables.prior, [first, [0, 0], first, [0, 0]])


def test_combinations_are_named():
  """Two columns of one direction, one alone, one without effect, one at its bound, and a start that does what a column does."""
  rng = np.random.default_rng(4)
  a, b, c = 100 * rng.normal(size=(3, 50))
  J = np.stack([a, -0.1 * a, b, 0 * a, b + c, c], axis=1)
  box = fitting.Box(["damping", "kv", "mass", "friction", "gear"], *np.zeros((3, 5)), np.array([1.0, 10, 2, 1, 1]))
  cov, why = result._covariance(J, 5, np.array([False] * 4 + [True]), box)
  assert why == {"friction": "", "damping": "kv", "kv": "damping"}
  assert np.isinf(np.diagonal(cov)[[0, 1, 3]]).all() and not cov[4].any()
  explained = np.stack([a, c], axis=1)
  remainder = b - explained @ np.linalg.lstsq(explained, b)[0]
  np.testing.assert_allclose(cov[2, 2], 4 / (remainder @ remainder))
  messages = list(result._warnings(box, np.array([False] * 4 + [True]), why))
  assert "do not tell damping from kv" in messages[1] and "gear ends at its bound" in messages[3]


def test_nothing_follows_from_fields_set_alone():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM), keep=tuple(mjx.io.model.PRUNABLE))
  changed = {k: getattr(m, k) * 1.5 + 0.1 for k in parameters.ALONE}
  a, b = mjx.jit(mjx.set_const)(m), mjx.jit(mjx.with_params)(m, **changed)
  for x, y in zip(jax.tree.leaves(a.replace(**changed)), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(x, y)


def test_refusals():
  m = mjx.put_model(mujoco.MjModel.from_xml_string(ARM))
  with pytest.raises(ValueError, match="no joint 'knee'"):
    sysid.field(m, "dof_damping", "knee")
  with pytest.raises(ValueError, match="not a float field"):
    sysid.field(m, "dof_bodyid")
  with pytest.raises(ValueError, match="no column 3"):
    sysid.field(m, "geom_friction", "block", 3)
  good = sysid.field(m, "dof_damping", "tip", bounds=(0.1, 1))
  t = sysid.Trajectory(np.zeros((5, 3)), {"arm": np.zeros(5)})
  with pytest.raises(ValueError, match=r"dof_damping\[tip\] = 0.05 is not within"):
    sysid.fit(m, good, t)
  with pytest.raises(ValueError, match="actuators motor, pusher are not servos"):
    sysid.kp(m)
  with pytest.raises(ValueError, match="segment=0 is not possible"):
    sysid.fit(m, sysid.field(m, "dof_damping", "tip"), t, segment=0)
  with pytest.raises(ValueError, match="neither a sensor"):
    sysid.fit(m, good, t._replace(measured={"leg": np.zeros(5)}))
  with pytest.raises(ValueError, match=r"shape \(4,\)"):
    sysid.fit(m, good, t._replace(measured={"arm": np.zeros(4)}))
  assert sysid.field(m, "geom_friction", ["block", "far"], 0, shared=True).labels == ("geom_friction[0]",)


def test_estimates_scatter_as_their_covariance_says():
  """Monte Carlo: a hundred measurements of the same pendulum, which differ in their noise alone."""
  c = mujoco.MjModel.from_xml_string(PENDULUM)
  m, steps, noise, rng = mjx.put_model(c), 60, 0.02, np.random.default_rng(5)
  ctrl = np.sin(0.2 * np.arange(steps))[:, None]
  clean = simulate(c, ctrl, lambda d: d.qpos.copy(), [0.5])
  unknown = [sysid.field(m, "dof_damping", bounds=(0, 1)), sysid.field(m, "actuator_gear", column=0, bounds=(0.1, 5))]
  true, errors, claimed = np.array([0.05, 1.0]), [], []
  for _ in range(100):
    seen = clean + noise * rng.normal(size=clean.shape)
    found = sysid.fit(m, unknown, sysid.Trajectory(ctrl, {"qpos": seen}, qpos=[0.5]), noise=noise)
    errors.append(found.values - true)
    claimed.append(found.cov)
  errors, cov = np.array(errors), np.mean(claimed, axis=0)
  square = np.einsum("ni,ij,nj->n", errors, np.linalg.inv(cov), errors).sum()
  assert 142 < square < 269  # chi-squared with 200 degrees of freedom; one in five hundred is outside
  scatter = errors.T @ errors / len(errors)
  correlation = lambda x: x[0, 1] / np.sqrt(x[0, 0] * x[1, 1])  # noqa: E731
  assert abs(np.arctanh(correlation(scatter)) - np.arctanh(correlation(cov))) < 3 / np.sqrt(97)  # Fisher's z
  covered = [abs(e[1]) < 1.96 * np.sqrt(v[1, 1]) for e, v in zip(errors, claimed, strict=True)]
  assert 88 <= sum(covered) <= 100  # 95 expected
