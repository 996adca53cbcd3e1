"""Derivatives of the actuators: forward = reverse = differences for each law, and finite where a law has a corner."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import mujoco
import numpy as np
from derivatives import assert_gradients
from models import load

import mjx_lite as mjx
from mjx_lite.actuator import activation
from mjx_lite.testing.compare import optimal

STATE = ("ctrl", "act", "actuator_length", "actuator_velocity")
PARAMETERS = ("actuator_gainprm", "actuator_biasprm", "actuator_dynprm")


@functools.cache
def moving(name):
  """A scene on its way, with controls inside their range and muscles that pull."""
  model = optimal(load(name))
  model.actuator_group[:] = 0
  data, rng = mujoco.MjData(model), np.random.default_rng(2)
  for i in range(60):
    if i % 20 == 0:
      data.ctrl[:] = rng.uniform(0.1, 0.5, model.nu)
    mujoco.mj_step(model, data)
  mujoco.mj_forward(model, data)
  m = mjx.put_model(model)
  return m, mjx.put_data(m, data)


def stage(m, d, **values):
  """Forces, rates and next activations as one vector, by name of what the actuators read."""
  m2 = m.replace(**{k: v for k, v in values.items() if k in PARAMETERS})
  out = mjx.fwd_actuation(m2, d.replace(**{k: v for k, v in values.items() if k in STATE}))
  native = jax.tree.map(lambda x: x[..., None], (m2, out))
  act = activation.advance(native[0], *(getattr(native[1], k) for k in ("act", "act_dot", *STATE[2:])))
  return jnp.concatenate([out.actuator_force, out.act_dot, act[:, 0]])


def point(m, d):
  return {k: getattr(d, k) for k in STATE} | {k: getattr(m, k) for k in PARAMETERS}


def test_each_law():
  """The whole Jacobian, entry by entry."""
  m, d = moving("actuators")
  x, unravel = jax.flatten_util.ravel_pytree(point(m, d))
  name = np.concatenate([np.full(v.size, k) for k, v in sorted(point(m, d).items())])
  f = lambda x: stage(m, d, **unravel(x))  # noqa: E731
  forward, reverse = jax.jit(jax.jacfwd(f))(x), jax.jit(jax.jacrev(f))(x)
  np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-9)
  eps = 1e-6 * jnp.maximum(jnp.abs(x), 1e-2)
  many = jax.jit(jax.vmap(f))
  value, plus, minus = many(x[None])[0], many(x + jnp.diag(eps)), many(x - jnp.diag(eps))
  differences = ((plus - minus) / (2 * eps[:, None])).T
  # a parameter that is zero says that something does not exist: there is a corner, and one side is not allowed
  compared = ~(np.isin(name, PARAMETERS) & (x == 0))
  scale = np.maximum(np.abs(forward), 1e-3 * np.abs(value)[:, None] / np.maximum(np.abs(x), 1e-2)) + 1e-4
  rounding = 1e-15 * np.abs(value).max() / eps
  wrong = (np.abs(forward - differences) > 1e-4 * scale + rounding) & compared
  assert not wrong.any(), [(name[j], j, forward[i, j], differences[i, j]) for i, j in np.argwhere(wrong)[:10]]
  for k in STATE + PARAMETERS:
    assert np.any(forward[:, name == k]), k


def test_finite_in_the_corners():
  """No activation, no velocity; muscles at the ends of their range and at its parabolas' joints, integrals at their limits."""
  m, _ = moving("actuators")
  d, span = mjx.make_data(m), m.actuator_lengthrange
  jacobian = jax.jit(jax.jacrev(lambda at: stage(m, d, **at)))
  points = [point(m, d)]
  # lengths at which the normalised length is at a corner: L = range[0] + (l - l0) / L0
  for relative in (0.5, 0.75, 1.0, 1.3, 1.6):
    length = (relative - 0.75) * (span[:, 1] - span[:, 0]) / 0.3 + span[:, 0]
    one = dict(actuator_length=length, act=jnp.ones_like(d.act), ctrl=jnp.ones_like(d.ctrl))
    points.append(points[0] | one)
  for at in points:
    for name, g in jacobian(at).items():
      assert np.isfinite(g).all(), name


def test_step():
  """Through the whole step, from the inputs to the next state."""
  m, d = moving("actuators")
  rng = np.random.default_rng(1)
  w = [jnp.asarray(rng.normal(size=n)) for n in (m.nv, m.na)]

  def f(ctrl, act, qvel, gain, bias, dyn):
    m2 = m.replace(actuator_gainprm=gain, actuator_biasprm=bias, actuator_dynprm=dyn)
    out = mjx.step(m2, d.replace(ctrl=ctrl, act=act, qvel=qvel))
    return jnp.dot(w[0], out.qvel) + jnp.dot(w[1], out.act)

  at = (d.ctrl, d.act, d.qvel, m.actuator_gainprm, m.actuator_biasprm, m.actuator_dynprm)
  directions = [rng.normal(size=x.shape) * (jnp.abs(x) if k > 2 else 1) for k, x in enumerate(at)]
  assert_gradients(f, at, directions, atol=1e-6)


def test_every_transmission_over_positions():
  """Lengths, and moments along a velocity, of every actuator over every dof: the whole Jacobian."""
  m, d = moving("transmissions")
  rng = np.random.default_rng(3)
  along = jnp.asarray(rng.normal(size=m.nv))

  def f(rotation):
    at = mjx.fwd_position(m, d.replace(qpos=mjx.integrate_pos(m, d.qpos, rotation, 1.0), qvel=along))
    return jnp.concatenate([at.actuator_length, mjx.fwd_velocity(m, at).actuator_velocity])

  zero = jnp.zeros(m.nv)
  forward, reverse = mjx.jit(jax.jacfwd(f))(zero), mjx.jit(jax.jacrev(f))(zero)
  np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-10)
  eps, many = 1e-6, mjx.jit(jax.vmap(f))
  plus, minus = many(eps * jnp.eye(m.nv)), many(-eps * jnp.eye(m.nv))
  names = [mjx.id2name(m, mjx.ObjType.ACTUATOR, i) for i in range(m.nactuator)]
  for i in range(2 * m.nactuator):
    differences = (plus - minus)[:, i] / (2 * eps)
    np.testing.assert_allclose(forward[i], differences, rtol=1e-6, atol=1e-7, err_msg=f"{names[i % m.nactuator]}, row {i}")
  moving_moments = [names[i] for i in range(m.nactuator) if np.any(forward[m.nactuator + i])]
  assert {"reach", "turn", "both", "across", "crank", "thrust", "stick"} <= set(moving_moments)


def test_delay():
  """With respect to the samples, to the delay and to time."""
  m, d = moving("delays")
  values = np.unique(m.plan.actuator.history.value)[1:]
  rng = np.random.default_rng(1)
  w = jnp.asarray(rng.normal(size=m.nout))

  def f(samples, delay, time):
    m2 = m.replace(actuator_delay=delay)
    return jnp.dot(w, mjx.fwd_actuation(m2, d.replace(history=d.history.at[values].set(samples), time=time)).actuator_force)

  samples = jnp.asarray(rng.uniform(-0.4, 0.4, len(values)))
  delay = m.actuator_delay + jnp.where(m.actuator_delay > 0, 2e-4, 0)  # away from the samples
  at = (samples, delay, d.time)
  direction = (jnp.ones_like(samples), jnp.where(delay > 0, rng.uniform(1, 2, m.nactuator), 0), jnp.ones(()))
  both = jax.jit(jax.value_and_grad(f, argnums=range(3)))
  for k, g in enumerate(both(*at)[1]):
    ends = [both(*at[:k], at[k] + s * 1e-7 * direction[k], *at[k + 1 :])[0] for s in (1, -1)]
    assert np.any(g)
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-7, jnp.vdot(g, direction[k]), rtol=1e-6, err_msg=f"argument {k}")
