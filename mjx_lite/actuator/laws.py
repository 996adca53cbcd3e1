"""The simple laws: constant and affine gains and biases, integrators and filters.

A dynamics function returns pairs (addresses in act, rates of change there). A gain function returns the force that the input
makes, a bias function the force without input; both are forces of the group's outputs.

Tests: tests/actuator/test_actuator_trajectories.py, tests/transforms/test_callbacks.py.
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


def no_rate(m: Model, group: Group, state: State) -> Rates:
  """Return no rates, for actuators without states."""
  return []


def no_force(m: Model, group: Group, state: State) -> jax.Array:
  """Return a force of zero."""
  return jnp.zeros((len(group.outputs), 1), state.length.dtype)


def integrator(m: Model, group: Group, state: State) -> Rates:
  """Return the rates of integrators: each state is the integral of a control."""
  num = m.actuator_ctrlnum[group.actuators]
  ctrl = np.concatenate([a + np.arange(n) for a, n in zip(group.first_ctrl, num, strict=True)])
  act = np.concatenate([a + 1 + np.arange(-n, 0) for a, n in zip(group.last_act, num, strict=True)])
  return [(act, rows(state.ctrl, ctrl))]


def filter_(m: Model, group: Group, state: State) -> Rates:
  """Return the rates of a first-order filter of the control; on a circle, the state moves along the shorter arc."""
  act = rows(state.act, group.last_act)
  ctrl = circle.wrap(m, group.actuators, rows(state.ctrl, group.first_ctrl), act)
  return [(group.last_act, (ctrl - act) / _timeconst(m, group))]


def filterexact_next(m: Model, group: Group, act: jax.Array, act_dot: jax.Array, velocity: jax.Array) -> Rates:
  """Return the states of filters after a step in which the control is constant."""
  tau = _timeconst(m, group)
  decay = -jnp.expm1(-m.opt.timestep / tau)
  return [(group.last_act, rows(act, group.last_act) + rows(act_dot, group.last_act) * tau * decay)]


def _timeconst(m, group):
  tau = rows(m.actuator_dynprm, group.actuators)[:, 0]
  return jnp.maximum(tau, safe.smallest(tau.dtype))


def fixed(m: Model, group: Group, state: State) -> jax.Array:
  """Apply a constant gain; the setpoint of a servo on a circle is the equivalent value nearest to the length."""
  setpoint = circle.wrap(m, group.actuators, rows(state.gain_input, group.actuators), rows(state.length, group.outputs))
  return rows(m.actuator_gainprm, group.actuators)[:, 0] * setpoint


def affine_gain(m: Model, group: Group, state: State) -> jax.Array:
  """Apply a gain that is affine in length and velocity."""
  return _affine(rows(m.actuator_gainprm, group.actuators), group, state) * rows(state.gain_input, group.actuators)


def affine_bias(m: Model, group: Group, state: State) -> jax.Array:
  """Return a force that is affine in length and velocity."""
  return _affine(rows(m.actuator_biasprm, group.actuators), group, state)


def _affine(prm, group, state):
  return prm[:, 0] + prm[:, 1] * rows(state.length, group.outputs) + prm[:, 2] * rows(state.velocity, group.outputs)


def user_rates(m: Model, group: Group, state: State) -> Rates:
  """Return the rates of the user's function."""
  act = np.concatenate([m.actuator_actadr[i] + np.arange(m.actuator_actnum[i]) for i in group.actuators])
  assert state.user.rates is not None
  return [(act, rows(state.user.rates, act))]


def user_gain(m: Model, group: Group, state: State) -> jax.Array:
  """Apply the gain of the user's function."""
  assert state.user.gain is not None
  return rows(state.user.gain * state.gain_input, group.actuators)


def user_bias(m: Model, group: Group, state: State) -> jax.Array:
  """Return the force of the user's function."""
  assert state.user.bias is not None
  return rows(state.user.bias, group.actuators)
