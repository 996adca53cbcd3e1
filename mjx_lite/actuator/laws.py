"""The simple laws: constant and affine gains and biases, integrators and filters.

A dynamics function returns pairs (addresses in act, rates of change there). A gain function returns the force that the input
makes, a bias function the force without input; both are forces of the group's outputs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import circle
from mjx_lite.actuator.plan import Group
from mjx_lite.actuator.state import State
from mjx_lite.math import safe
from mjx_lite.model.types import Model
from mjx_lite.ops.select import rows

Rates = list[tuple[np.ndarray, jax.Array]]


def no_rate(m: Model, k: Group, x: State) -> Rates:
  """Return no rates, for actuators without states."""
  return []


def no_force(m: Model, k: Group, x: State) -> jax.Array:
  """Return a force of zero."""
  return jnp.zeros((len(k.out), 1), x.length.dtype)


def integrator(m: Model, k: Group, x: State) -> Rates:
  """Return the rates of integrators: each state is the integral of a control."""
  num = m.actuator_ctrlnum[k.who]
  ctrl = np.concatenate([a + np.arange(n) for a, n in zip(k.ctrl, num, strict=True)])
  act = np.concatenate([a + 1 + np.arange(-n, 0) for a, n in zip(k.act, num, strict=True)])
  return [(act, rows(x.ctrl, ctrl))]


def filter_(m: Model, k: Group, x: State) -> Rates:
  """Return the rates of a first-order filter of the control; on a circle, the state moves along the shorter arc."""
  act = rows(x.act, k.act)
  ctrl = circle.wrap(m, k.who, rows(x.ctrl, k.ctrl), act)
  return [(k.act, (ctrl - act) / _timeconst(m, k))]


def filterexact_next(m: Model, k: Group, act: jax.Array, act_dot: jax.Array, velocity: jax.Array) -> Rates:
  """Return the states of filters after a step in which the control is constant."""
  tau = _timeconst(m, k)
  decay = -jnp.expm1(-m.opt.timestep / tau)
  return [(k.act, rows(act, k.act) + rows(act_dot, k.act) * tau * decay)]


def _timeconst(m, k):
  tau = rows(m.actuator_dynprm, k.who)[:, 0]
  return jnp.maximum(tau, safe.smallest(tau.dtype))


def fixed(m: Model, k: Group, x: State) -> jax.Array:
  """Apply a constant gain; the setpoint of a servo on a circle is the equivalent value nearest to the length."""
  drive = circle.wrap(m, k.who, rows(x.drive, k.who), rows(x.length, k.out))
  return rows(m.actuator_gainprm, k.who)[:, 0] * drive


def affine_gain(m: Model, k: Group, x: State) -> jax.Array:
  """Apply a gain that is affine in length and velocity."""
  return _affine(rows(m.actuator_gainprm, k.who), k, x) * rows(x.drive, k.who)


def affine_bias(m: Model, k: Group, x: State) -> jax.Array:
  """Return a force that is affine in length and velocity."""
  return _affine(rows(m.actuator_biasprm, k.who), k, x)


def _affine(prm, k, x):
  return prm[:, 0] + prm[:, 1] * rows(x.length, k.out) + prm[:, 2] * rows(x.velocity, k.out)


def user_rates(m: Model, k: Group, x: State) -> Rates:
  """Return the rates of the user's function."""
  act = np.concatenate([m.actuator_actadr[i] + np.arange(m.actuator_actnum[i]) for i in k.who])
  assert x.user.rates is not None
  return [(act, rows(x.user.rates, act))]


def user_gain(m: Model, k: Group, x: State) -> jax.Array:
  """Apply the gain of the user's function."""
  assert x.user.gain is not None
  return rows(x.user.gain * x.drive, k.who)


def user_bias(m: Model, k: Group, x: State) -> jax.Array:
  """Return the force of the user's function."""
  assert x.user.bias is not None
  return rows(x.user.bias, k.who)
