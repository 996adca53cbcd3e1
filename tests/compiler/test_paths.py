"""What the engine borrows is probed; where a faster path fails, a slower one is taken with a word, and the same numbers."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
import straight

import mjx_lite as mjx
from mjx_lite.batching import worlds
from mjx_lite.compiler import paths, regions, scalars, workarounds
from mjx_lite.compiler.backends import llvm, llvm_machine

pytestmark = pytest.mark.usefixtures("single_precision")

BALL = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
HINGE = BALL.replace("<freejoint/>", "<joint name='j'/>")


@pytest.fixture
def unwarned(monkeypatch):
  """Nothing has been warned of, probed or traced."""
  monkeypatch.setattr(paths, "_warned", set())
  monkeypatch.setattr(workarounds, "_failures", {})
  worlds.clear_caches()
  yield monkeypatch
  worlds.clear_caches()


def pair(xml=straight.SWING, count=3):
  m = mjx.put_model(mujoco.MjModel.from_xml_string(xml))
  return m, jax.tree.map(lambda x: jnp.stack([x] * count), mjx.make_data(m))


def batched():
  """Another function object each time: JAX keeps compiled programs by function."""
  return jax.jit(jax.vmap(lambda m, d: mjx.step(m, d), in_axes=(None, 0)))


@pytest.mark.parametrize("borrowed", [*workarounds.BORROWED, llvm.KERNELS], ids=lambda b: b.name)
def test_probes_pass_here(borrowed):
  """XLA's options aside, of which each version has its own: one that is gone is left out."""
  if borrowed is workarounds.OPTIONS:
    assert "xla_cpu_prefer_vector_width" in workarounds.compiler_options()
  else:
    assert not workarounds.failure(borrowed)
  assert borrowed.what and borrowed.without and borrowed.until


def broken():
  raise RuntimeError("as in a version to come")


@pytest.mark.parametrize("module, name", [
  (llvm, "KERNELS"), (workarounds, "REGIONS"), (workarounds, "DEAD_CODE"), (workarounds, "BATCHED"), (workarounds, "STACK"),
  (workarounds, "EMIT"),
])  # fmt: skip
def test_a_probe_that_fails_is_said_once(module, name, unwarned):
  m, d = pair()
  want = batched()(m, d)
  worlds.clear_caches()
  if name == "DEAD_CODE":
    unwarned.delitem(workarounds.pe.dce_rules, worlds.native_p)
    worlds._register_dead_code.cache_clear()
  unwarned.setattr(module, name, getattr(module, name)._replace(probe=broken))
  unwarned.setattr(workarounds, "_failures", {})
  used = {
    "REGIONS": lambda: regions.evaluate(jax.make_jaxpr(jnp.sin)(1.0), jnp.ones(())),
    "EMIT": lambda: llvm_machine.objects((), "define void @step() {\nret void\n}"),  # the step's machine code is there already
  }.get(name, lambda: batched()(m, d))
  if name == "BATCHED":
    small = mjx.put_model(mujoco.MjModel.from_xml_string(straight.SWING), ncon_max=1)
    start = jax.tree.map(lambda x: jnp.stack([x] * 2), mjx.make_data(small))
    used = lambda: jax.vmap(lambda d: mjx.rollout(small, d, steps=1, record=())[0])(start)  # noqa: E731
  with pytest.warns(mjx.SlowPathWarning, match="as in a version to come") as found:
    used()
  assert len(found) == 1
  used()
  straight.assert_close(batched()(m, d), want)
  assert "as in a version to come" in str(mjx.explain(m))
  worlds._register_dead_code.cache_clear()


def test_an_operation_without_a_rule(unwarned):
  """Said once for a model and a reason, and again for another model."""
  m, d = pair()
  want = batched()(m, d)
  worlds.clear_caches()
  unwarned.delitem(scalars.RULES, "sqrt")
  with pytest.warns(mjx.SlowPathWarning, match="step takes a slower path .* operation sqrt has no rule"):
    got = batched()(m, d)
  straight.assert_close(got, want)
  batched()(m, d)  # the same model: nothing is said
  other = pair(straight.SWING.replace('name="', 'name="other_', 1))
  if other[0].layout != m.layout:
    with pytest.warns(mjx.SlowPathWarning, match="operation sqrt"):
      batched()(*other)
  (found,) = mjx.explain(m).paths["step of a batch"]
  assert found.path != paths.MACHINE_CODE and found.reason == "operation sqrt has no rule"


def test_a_rule_that_fails(unwarned):
  """The traceback is in `explain`, the results are XLA's."""
  m, d = pair()
  want = batched()(m, d)
  worlds.clear_caches()

  def bad(p, eqn, *xs):
    raise KeyError("rule of tomorrow")

  unwarned.setitem(scalars.RULES, "sqrt", bad)
  with pytest.warns(mjx.SlowPathWarning, match="the rule of operation sqrt failed: KeyError"):
    straight.assert_close(batched()(m, d), want)
  assert 'raise KeyError("rule of tomorrow")' in str(mjx.explain(m))


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_compiler_that_fails(error, unwarned):
  """What LLVM raises is no reason to stop; that there is no memory is."""
  m, d = pair()

  def target(*args):
    raise error("no such target")

  assert llvm.is_on()
  unwarned.setattr(llvm_machine, "target", target)
  if error is MemoryError:
    with pytest.raises(MemoryError):
      batched()(m, d)
  else:
    with pytest.warns(mjx.SlowPathWarning, match="building the kernel failed: RuntimeError: no such target"):
      batched()(m, d)


def test_what_the_user_raises_passes(unwarned):
  """A function of the user's that fails, and shapes that do not fit."""
  m, d = pair()

  def control(m, d):
    raise ZeroDivisionError("mine")

  with pytest.raises(ZeroDivisionError, match="mine"):
    jax.jit(lambda m, d: mjx.step(m, d.replace(ctrl=control(m, d))))(m, mjx.make_data(m))
  with pytest.raises(ValueError, match="qpos"):
    batched()(m, d.replace(qpos=d.qpos[:, :1]))


def test_a_path_is_recorded():
  """A path that is not tried has its reason too."""
  m, _ = pair()
  found = mjx.explain(m)
  assert {p.path for p in found.paths["step of one world"]} == {paths.MACHINE_CODE}
  for name in ("gradient of one world", "gradient of a batch"):
    assert {p.function for p in found.paths[name]} == {"step", "derivative of step"}
    assert {p.path for p in found.paths[name]} == {paths.MACHINE_CODE}
  swing = mujoco.MjModel.from_xml_string(straight.SWING)
  found = mjx.explain(mjx.put_model(swing, ncon_max=1))
  assert {p.path for calls in found.paths.values() for p in calls} == {paths.MACHINE_CODE}
  with jax.enable_x64(True):
    found = mjx.explain(mjx.put_model(swing)).paths
  assert {p.path for name in ("step of a batch", "gradient of a batch") for p in found[name]} == {paths.MACHINE_CODE}


# ---------------------------------------------------------------------------------------------------- axes of length zero


@pytest.mark.parametrize("function", [
  lambda x: jnp.sum(x, axis=0), lambda x: jnp.sum(x, axis=1), lambda x: jnp.prod(x + 1), lambda x: jnp.any(x > 0, axis=0),
  lambda x: jnp.all(x > 0), lambda x: jnp.cumsum(x, axis=0), lambda x: jnp.sort(x, axis=0), lambda x: x @ jnp.ones((3, 2)),
  lambda x: x.T @ jnp.ones((x.shape[0], 2)), lambda x: jnp.concatenate([x, x]), lambda x: jnp.pad(x, ((0, 1), (0, 0))),
  lambda x: x[:, ::-1], lambda x: x.reshape(-1), lambda x: jnp.where(x > 0, x, 0.0), lambda x: jnp.sqrt(x) * 2 + x**3,
  lambda x: jnp.max(x, axis=0, initial=-1.0), lambda x: jnp.min(x, axis=1), lambda x: jnp.argmax(x, axis=1),
  lambda x: jax.lax.scan(lambda c, r: (c + jnp.sum(r), r * c), 0.0, x),
  lambda x: jax.lax.map(lambda r: r * 2, x), lambda x: jax.lax.dynamic_slice(x, (0, 1), (x.shape[0], 2)),
  lambda x: x.at[:, 0].set(1.0), lambda x: x[jnp.zeros((0,), int)], lambda x: jnp.take(x, jnp.array([0, 2]), axis=1),
  lambda x: jax.lax.dynamic_update_slice(x, x[:, :1], (0, 1)), lambda x: jnp.repeat(x, 2, axis=0), lambda x: jnp.linalg.norm(x),
  lambda x: jax.lax.fori_loop(0, 3, lambda k, y: y * 2 + k, x), lambda x: jnp.stack([x, x]), lambda x: jnp.transpose(x),
  lambda x: jax.lax.top_k(x, 2), lambda x: jnp.einsum("ij,kj->ik", x, x), lambda x: jnp.sign(x).astype(int) % 3,
])  # fmt: skip
@pytest.mark.parametrize("shape", [(0, 3), (2, 3)])
def test_numbers_of_nothing(function, shape):
  """Each operation as JAX has it, where an array has no numbers; one without a rule is `Unsupported`, and nothing else."""
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  closed = jax.make_jaxpr(function)(x)
  p = scalars.Program()
  try:
    outs = p.run(closed, [p.constant(x)])
  except scalars.Unsupported as error:
    assert error.__cause__ is None, error
    assert shape[0] or "has no rule" in str(error), f"{error}, though there is nothing to compute"
    pytest.skip(str(error))
  for out, want in zip(outs, jax.tree.leaves(function(jnp.asarray(x))), strict=True):
    assert out.shape == want.shape
    values = [p.value(k) for k in out.ravel().tolist()]
    if None not in values:
      np.testing.assert_allclose(np.array(values).reshape(out.shape), want, rtol=1e-6)


# of models without actuators, nine of ten had an array without numbers where a rule could not take one
@pytest.mark.parametrize("xml", [
  BALL,
  BALL.replace("<freejoint/>", "<joint/>"), BALL.replace("<freejoint/>", "<joint type='ball'/>"),
  BALL.replace("<freejoint/>", "<joint type='slide' range='-1 1'/>"), BALL.replace("<freejoint/>", ""),
  BALL.replace("<geom size='.1'/>", "<geom size='.1' contype='0' conaffinity='0'/><site name='a'/>"),
  BALL.replace("<worldbody>", "<worldbody><geom type='plane' size='1 1 1'/>"),
  BALL.replace("<body>", "<body><body pos='1 0 0'><joint/><geom size='.1'/></body>"),
  HINGE.replace("</mujoco>", "<tendon><fixed><joint joint='j' coef='1'/></fixed></tendon></mujoco>"),
  HINGE.replace("</mujoco>", "<actuator><motor joint='j'/></actuator></mujoco>"),
])  # fmt: skip
@pytest.mark.parametrize("bits", [32, 64])
def test_minimal_models_with_other_masses(xml, bits):
  """Eager, jitted, under vmap, as C has them after `mj_setConst`."""
  mj_model = mujoco.MjModel.from_xml_string(xml)
  with jax.enable_x64(bits == 64):
    m = mjx.put_model(mj_model)
    eager = m.with_params(body_mass=m.body_mass * 2)
    jitted = jax.jit(lambda m, mass: m.with_params(body_mass=mass))(m, m.body_mass * 2)
    mj_model.body_mass[:] *= 2
    mujoco.mj_setConst(mj_model, mujoco.MjData(mj_model))
    for name in ("body_subtreemass", "dof_invweight0", "body_invweight0"):
      for got in (eager, jitted):
        np.testing.assert_allclose(getattr(got, name), getattr(mj_model, name), rtol=2e-5 if bits == 32 else 1e-12)

    def moved(mass, d):
      return mjx.step(m.with_params(body_mass=mass), d).qvel

    masses = jnp.stack([m.body_mass, m.body_mass * 2])
    d = mjx.make_data(m)
    got = jax.jit(jax.vmap(moved, in_axes=(0, None)))(masses, d)
    for k, mass in enumerate(np.asarray(masses)):
      mj_model.body_mass[:] = mass
      mujoco.mj_setConst(mj_model, mujoco.MjData(mj_model))
      c = mujoco.MjData(mj_model)
      mujoco.mj_step(mj_model, c)
      np.testing.assert_allclose(got[k], c.qvel, rtol=1e-5 if bits == 32 else 1e-10, atol=1e-6 if bits == 32 else 1e-12)
