"""Capacities that put_model chooses: where, the same everywhere, with room; what is said if they do not suffice."""

import ast
import pickle
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from models import MJX_DATA, OTHERS, SCENES, SHIPPED, load

import mjx_lite as mjx
from mjx_lite import envs
from mjx_lite.collision import broadphase, driver, near
from mjx_lite.envs.wrappers import wrap
from mjx_lite.io import capacity, fields, states
from mjx_lite.model.capacity import rounded

HAND, HUMANOIDS = str(MJX_DATA / "shadow_hand/scene_right.xml"), str(MJX_DATA / "humanoid/02_humanoids.xml")
BALLS = "".join(f'<body pos="{0.25 * k} 0 0.15"><freejoint/><geom size=".1"/></body>' for k in range(4))
ROW = f'<mujoco><worldbody><geom type="plane" size="2 2 .1"/>{BALLS}</worldbody></mujoco>'
FALLEN = np.tile([0, 0, 0.09, 1, 0, 0, 0], 4) + np.repeat(0.19 * np.arange(4), 7) * np.tile(np.eye(7)[0], 4)  # 7 contacts


@pytest.fixture
def unwarned(monkeypatch):
  """No model has been warned of."""
  monkeypatch.setattr(capacity, "_WARNED", set())


@pytest.fixture
def unchosen(monkeypatch):
  """No choice is remembered."""
  monkeypatch.setattr(capacity, "_CHOSEN", {})


def all_slots(model):
  s, values = fields.split(model)
  return driver.plan(s, values, int(model.opt.disableflags))


@pytest.mark.parametrize("path", [SHIPPED / "humanoid.xml", MJX_DATA / "humanoid/01_humanoids.xml", SCENES / "pairs.xml"])
def test_cheap_slots_stay_and_nothing_is_simulated(path, monkeypatch):
  monkeypatch.setattr(states, "simulate", lambda m: pytest.fail("simulated"))
  model = mujoco.MjModel.from_xml_path(str(path))
  m = mjx.put_model(model)
  assert m.plan.sizes["ncon"] == len(all_slots(model).slot_pair) and m.plan.collision.compact is None
  assert str(m.capacity) == "ncon_max='all'" and mjx.put_model(model, **m.capacity).layout == m.layout
  assert "ncon_max" not in repr(m)


@pytest.mark.parametrize("path", [HAND, HUMANOIDS])
def test_capacities_are_chosen_printed_and_taken_back(path):
  model = mujoco.MjModel.from_xml_path(path)
  m, every = mjx.put_model(model), mjx.put_model(model, ncon_max="all")
  total = len(all_slots(model).slot_pair)
  assert every.plan.sizes["ncon"] == total and str(every.capacity) == "ncon_max='all'"
  assert m.plan.sizes["ncon"] < 0.1 * total and str(m.capacity) in repr(m)
  printed = {k.arg: ast.literal_eval(k.value) for k in ast.parse(f"put_model({m.capacity})").body[0].value.keywords}
  assert set(printed) == {"ncon_max", "pair_max"}
  assert mjx.put_model(model, **printed).layout == m.layout == mjx.put_model(model, **m.capacity).layout
  sizes = {g.name: len(g.pair) for g in m.plan.collision.groups}
  assert all(0 < 2 * n <= sizes[k] for k, n in printed["pair_max"].items())
  assert mjx.SuggestedCapacity is mjx.Capacity and eval(repr(m.capacity), {"Capacity": mjx.Capacity}) == m.capacity


def test_given_capacities_are_taken_as_they_are(monkeypatch):
  monkeypatch.setattr(states, "simulate", lambda m: pytest.fail("simulated"))
  model = mujoco.MjModel.from_xml_path(HUMANOIDS)
  m = mjx.put_model(model, ncon_max=9)
  assert m.plan.sizes["ncon"] == 9 and m.capacity.pair_max is None
  m = mjx.put_model(model, pair_max={"sphere-capsule": 5})
  assert m.capacity.pair_max == {"sphere-capsule": 5}
  assert mjx.put_model(model, ncon_max="all", pair_max={"sphere-capsule": 5}).layout == m.layout
  for wrong in (dict(ncon_max="some"), dict(pair_max="all"), dict(ncon_max=0)):
    with pytest.raises(ValueError, match=r"put_model: (ncon|pair)_max has to be"):
      mjx.put_model(model, **wrong)


def test_slots_stay_where_few_would_be_saved(unchosen, monkeypatch):
  model = mujoco.MjModel.from_xml_path(HUMANOIDS)
  crowd = states.simulate(model)
  crowd = crowd._replace(ncon=crowd.ncon + 300)
  monkeypatch.setattr(states, "simulate", lambda m: crowd)
  assert str(mjx.put_model(model).capacity) == "ncon_max='all'"


def test_a_start_in_the_floor_fits():
  """More contacts at qpos0 than the model ever has again."""
  rng = np.random.default_rng(0)
  shell = rng.normal(size=(200, 3))
  shell *= 0.5 / np.linalg.norm(shell, axis=1, keepdims=True)
  height = -np.sort(shell[:, 2])[40]
  geoms = "".join(f'<geom pos="{x} {y} {z}" size=".002"/>' for x, y, z in shell)
  body = f'<body pos="0 0 {height}"><freejoint/>{geoms}</body>'
  model = mujoco.MjModel.from_xml_string(f'<mujoco><worldbody><geom type="plane" size="2 2 1"/>{body}</worldbody></mujoco>')
  data = mujoco.MjData(model)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  assert 40 <= data.ncon <= m.plan.sizes["ncon"] < 100
  assert not mjx.forward(m, mjx.make_data(m)).status.bits


def test_another_process_chooses_the_same():
  code = f"import mujoco, mjx_lite; print(mjx_lite.put_model(mujoco.MjModel.from_xml_path({HAND!r})).capacity)"
  found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert found.strip() == str(mjx.put_model(mujoco.MjModel.from_xml_path(HAND)).capacity)


@pytest.mark.parametrize("path", [HAND, HUMANOIDS, str(SCENES / "pile.xml")])
def test_round_off_changes_nothing(path, unchosen, monkeypatch):
  """Starts that differ by as much as round-off can: trajectories are too short for it to grow to other contacts."""
  model, starts = mujoco.MjModel.from_xml_path(path), states._starts
  before = mjx.put_model(model).capacity

  def moved(m, d, rng):
    for drawn in starts(m, d, rng):
      d.qpos[:] += 1e-14 * np.sin(np.arange(m.nq))
      yield drawn

  monkeypatch.setattr(states, "_starts", moved)
  capacity._CHOSEN.clear()
  assert mjx.put_model(model).capacity == before


def test_options_that_change_no_shapes_do_not_change_the_choice(unchosen):
  model = mujoco.MjModel.from_xml_path(HUMANOIDS)
  before = mjx.put_model(model).capacity
  model.opt.solver, model.opt.iterations, model.opt.tolerance = mujoco.mjtSolver.mjSOL_CG, 300, 0
  model.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4
  assert mjx.put_model(model).capacity == before and len(capacity._CHOSEN) == 2


def test_a_choice_is_remembered_by_content(unchosen, monkeypatch):
  model = mujoco.MjModel.from_xml_path(HUMANOIDS)
  m, calls, simulate = mjx.put_model(model), [], states.simulate
  monkeypatch.setattr(states, "simulate", lambda m: calls.append(m) or simulate(m))
  d = mujoco.MjData(model)
  mujoco.mj_forward(model, d)
  assert mjx.put_data(model, d).contact.dist.shape == mjx.put_data(m, d).contact.dist.shape and not calls
  model.geom_margin += 0.001
  mjx.put_model(model)
  assert len(calls) == 1


def test_simulation_leaves_the_model_and_the_handler_of_warnings():
  model, said = mujoco.MjModel.from_xml_path(HUMANOIDS), []
  model.actuator_gear[:, 0] *= 1e6  # unstable: C resets
  before, buffer = model.opt.solver, model.qpos0.copy()
  mujoco.set_mju_user_warning(said.append)
  try:
    found = states.simulate(model)
    assert mujoco.get_mju_user_warning() is not None and not said
  finally:
    mujoco.set_mju_user_warning(None)
  assert model.opt.solver == before and np.array_equal(model.qpos0, buffer)
  assert len(found.ncon) == 1664 and len(found.xpos) == 128 and np.isfinite(found.xpos).all()


def test_the_end_of_a_trajectory_by_an_error_is_no_error(monkeypatch):
  def fails(m, d):
    raise mujoco.FatalError("mj_stackAlloc: insufficient memory")

  monkeypatch.setattr(mujoco, "mj_step", fails)
  found = states.simulate(load("pile"))
  assert found.ncon.shape == (0,) and found.xpos.shape == (0, 17, 3)


@pytest.mark.parametrize("name", ["convex", "pairs", "pile"])
@pytest.mark.parametrize("override", [False, True])
def test_pairs_within_reach_are_those_of_the_broad_phase(name, override):
  model = mujoco.MjModel.from_xml_path(str(SCENES / f"{name}.xml"))
  if override:
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_OVERRIDE)
    model.opt.o_margin = 0.05
  m = mjx.put_model(model, ncon_max="all", dtype=np.float64)
  found = states.simulate(model)
  pos, mat = found.xpos[::9], found.xmat[::9]
  s = capacity._overridden(model, {**fields.split(model)[0], **fields.split(model)[1]})
  counts = near.count(m.plan.collision, s, pos, mat)
  native = jax.tree.map(lambda x: jnp.asarray(x)[..., None], m)
  bounds = broadphase.bounds(native, *(jnp.moveaxis(jnp.asarray(x), 0, -1) for x in (pos, mat)))
  for k, g in enumerate(m.plan.collision.groups):
    if g.bounded:
      expected = broadphase.overlap(bounds, driver._candidates(m, g), driver._own_reach(native, g, 0.0)) > 0
      np.testing.assert_array_equal(counts[:, k], expected.sum(axis=0))
    else:
      assert not counts[:, k].any()
  assert counts.sum() > 20


@pytest.mark.parametrize("n, most", [(1, 1), (8, 8), (9, 10), (17, 20), (100, 112), (1000, 1024)])
def test_rounded(n, most):
  assert rounded(n) == most


def fall(m, function=mjx.rollout, worlds=3, **options):
  """The row of balls in the last world; the others are as they were, without a contact."""
  d = jax.tree.map(lambda x: jnp.broadcast_to(x, (worlds, *x.shape)), mjx.make_data(m))
  d = d.replace(qpos=d.qpos.at[-1].set(FALLEN))
  return jax.vmap(lambda d: function(m, d, steps=3, **options))(d)


def arguments(text):
  """The arguments that a warning proposes first."""
  call = ast.parse(text[text.index("put_model(") :].split(" would")[0]).body[0].value
  return {k.arg: ast.literal_eval(k.value) for k in call.keywords}


@pytest.mark.parametrize(
  "given, policy",
  [
    pytest.param(dict(ncon_max=3), lambda m, d: d.ctrl, marks=pytest.mark.slow),
    (dict(ncon_max=5, pair_max={"sphere-sphere": 1}), None),
  ],
)
def test_an_overflow_is_counted_and_said_once_with_arguments_that_suffice(given, policy, unwarned):
  model = mujoco.MjModel.from_xml_string(ROW)
  small = mjx.put_model(model, **given)
  with pytest.warns(mjx.CapacityWarning, match="rollout: contacts did not fit.*in 1 of 3 worlds") as said:
    end, _ = fall(small, ctrl=policy)
  assert len(said) == 1 and said[0].filename == __file__
  s, limits = end.status, np.array(small.plan.collision.limits)
  kinds = {mjx.Warning.CONTACTFULL: s.most[:, 0] > limits[0], mjx.Warning.PAIRFULL: (s.most[:, 1:] > limits[1:]).any(axis=1)}
  for kind, full in kinds.items():
    np.testing.assert_array_equal(s.count[:, kind], np.where(full, 3, 0))
    np.testing.assert_array_equal(s.bits & (1 << kind) != 0, full)
  assert not s.most[:-1].any() and (s.most[-1] > limits).any()
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    fall(small, ctrl=policy)
    wide = mjx.put_model(model, **arguments(str(said[0].message)))
    end, _ = fall(wide, ctrl=policy)
  assert not end.status.count.any() and wide.plan.sizes["ncon"] >= end.status.most[-1, 0] == 7


def test_no_warning_where_all_fits_or_inside_of_jit(unwarned):
  model = mujoco.MjModel.from_xml_string(ROW)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    fall(mjx.put_model(model, ncon_max=7))
    end, _ = mjx.jit(fall)(mjx.put_model(model, ncon_max=3))
  assert end.status.count[-1, mjx.Warning.CONTACTFULL] == 3 and end.status.most[-1, 0] == 7


def test_shapes_and_numbers_of_most():
  model = mujoco.MjModel.from_xml_string(ROW)
  every, few = mjx.put_model(model, ncon_max="all"), mjx.put_model(model, ncon_max=8, pair_max=4)
  assert mjx.make_data(every).status.most.shape == (0,) and mjx.make_data(few).status.most.shape == (2,)
  d = mjx.forward(few, mjx.make_data(few).replace(qpos=jnp.asarray(FALLEN)))
  np.testing.assert_array_equal(d.status.most, [7, 3])
  # the largest so far, until the user resets
  np.testing.assert_array_equal(mjx.forward(few, d.replace(qpos=few.qpos0)).status.most, [7, 3])
  np.testing.assert_array_equal(mjx.reset(few, d).status.most, [0, 0])
  # put_data counts what it leaves out
  data = mujoco.MjData(model)
  data.qpos[:] = FALLEN
  mujoco.mj_forward(model, data)
  np.testing.assert_array_equal(mjx.put_data(mjx.put_model(model, ncon_max=3), data).status.most, [7])


def test_the_choice_stays_with_the_model():
  model = mujoco.MjModel.from_xml_path(HUMANOIDS)
  m = mjx.put_model(model, dtype=np.float32)
  same = pickle.loads(pickle.dumps(m))
  heavier = m.with_params(body_mass=m.body_mass * 2)
  many = jax.vmap(lambda x: m.with_params(body_mass=m.body_mass * x))(jnp.ones(2, np.float32))
  assert same.layout == m.layout == heavier.layout == many.layout and same.capacity == m.capacity


def test_environments_remember_what_did_not_fit(unwarned):
  class Row(envs.Env):
    """Balls that come down in a row."""

    xml_path = "row"

    def start(self, m, d, key):
      return d

    def observe(self, m, d):
      return d.qpos

    def score(self, m, before, d, action):
      return {"zero": 0 * d.qpos[0]}

  model = mujoco.MjModel.from_xml_string(ROW.replace("<worldbody>", '<option timestep="0.01"/><worldbody>'))
  env = Row.__new__(Row)
  env.mj_model, env._mjx_model, env.ctrl_dt, env.n_substeps = model, mjx.put_model(model, ncon_max=2), 0.2, 20
  worlds = wrap(env, episode_length=2)
  step, state = mjx.jit(worlds.step), mjx.jit(worlds.reset)(jax.random.split(jax.random.key(0), 2))
  for _ in range(2):
    state = step(state, jnp.zeros((2, 0)))
  assert (state.done > 0).all() and not state.data.status.count.any()  # a new episode
  np.testing.assert_array_equal(state.data.status.most, [[4], [4]])
  with pytest.warns(mjx.CapacityWarning, match="2 of 2 worlds"):
    capacity.warn_of_shortage(env.model, state.data, "train")


def stock():
  """Files of models that other packages bring."""
  import importlib.util
  import pathlib

  for name, (package, file) in OTHERS.items():
    if found := importlib.util.find_spec(package):
      yield name, pathlib.Path(found.submodule_search_locations[0]) / file
  for file in sorted(MJX_DATA.glob("humanoid/*_humanoids.xml")):
    yield file.stem, file


@pytest.mark.parametrize("path", [pytest.param(p, id=n) for n, p in stock()])
def test_a_world_of_a_stock_model_takes_little_memory(path):
  """Data and the largest matrix of the solver: rows by rows if it is dual, rows by dofs otherwise. In single precision."""
  try:
    model = mujoco.MjModel.from_xml_path(str(path))
  except ValueError as error:  # some packages leave out assets
    pytest.skip(f"C does not compile it: {str(error).splitlines()[0]}")
  try:
    m = mjx.put_model(model, dtype=np.float32)
  except mjx.UnsupportedModelError as error:  # named by put_model, so nothing has to fit
    pytest.skip(str(error).splitlines()[0])
  d = jax.eval_shape(lambda: mjx.make_data(m))
  rows = m.plan.sizes["nefc"]
  dual = model.opt.solver == mujoco.mjtSolver.mjSOL_PGS or model.opt.noslip_iterations > 0
  size = sum(4 * x.size for x in jax.tree.leaves(d)) + 4 * rows * (rows if dual else m.nv)
  assert size < 20e6 < 2e9
