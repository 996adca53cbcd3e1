"""Activations: their rates are integrated here, for every integrator.

Tests: tests/actuator/test_actuator_trajectories.py, tests/actuator/test_actuator_gradients.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mjx_lite.actuator import circle, so3
from mjx_lite.actuator.table import NEXT
from mjx_lite.model.enums import DynType, GainType
from mjx_lite.model.types import Model
from mjx_lite.ops.select import put, rows

_ANCHORED = (DynType.INTEGRATOR, DynType.FILTER, DynType.FILTEREXACT)


def next_activation(m: Model, act: jax.Array, act_dot: jax.Array, velocity: jax.Array) -> jax.Array:
  """Compute the activations (na, W) after a step, clamped to their range.

  The step is an Euler step, or exact where a formula exists.

  Args:
    act: (na, W).
    act_dot: (na, W) rates of change.
    velocity: (nout, W) of the actuators' outputs.

  Source: `mj_nextActivation`.
  """
  p = m.plan.actuator
  out = act + m.opt.timestep * act_dot
  for group in p.dynamics:
    if group.kind in NEXT:
      for adr, value in NEXT[group.kind](m, group, act, act_dot, velocity):
        out = put(out, adr, value)
  limited = (m.actuator_actlimited.astype(bool) & (m.actuator_dyntype != DynType.DCMOTOR))[p.act_owner]
  adr = np.flatnonzero(limited)
  if not adr.size:
    return out
  bounds = rows(m.actuator_actrange, p.act_owner[adr])
  return put(out, adr, jnp.clip(rows(out, adr), bounds[:, 0], bounds[:, 1]))


def advance(m: Model, act: jax.Array, act_dot: jax.Array, length: jax.Array, velocity: jax.Array) -> jax.Array:
  """Compute the activations (na, W) at the end of a step.

  The activations of disabled actuators have rate zero. A setpoint on a circle is replaced by the equivalent value nearest to
  the length before the step.

  Args:
    act: (na, W).
    act_dot: (na, W) rates of change, as the integrator combines them.
    length: (nout, W) of the actuators' outputs.
    velocity: (nout, W) of the actuators' outputs.

  Source: `mj_advance`.
  """
  if not m.na or not m.opt.use_actuation:
    return act
  off = disabled(m)[m.plan.actuator.act_owner]
  if off.any():
    act_dot = jnp.where(off[:, None], 0, act_dot)
  out = next_activation(m, act, act_dot, velocity)
  for actuators, adr in _anchored(m):
    out = put(out, adr, circle.wrap(m, actuators, rows(out, adr), rows(length, m.actuator_outadr[actuators])))
  for group in m.plan.actuator.gains:
    if group.kind == GainType.SO3:
      out = so3.reanchor(m, group, out)
  return out


def _anchored(m):
  """Yield, by kind, the actuators whose activation is a setpoint that may be on a circle, and the addresses in act."""
  for group in m.plan.actuator.dynamics:
    if group.kind in _ANCHORED:
      single = np.flatnonzero(m.actuator_outnum[group.actuators] == 1)
      yield group.actuators[single], group.last_act[single]


def reads_length(m: Model) -> jax.Array:
  """Return whether `advance` reads lengths (W or 1): whether a setpoint is on a circle."""
  none = jnp.zeros(1, bool)
  return functools.reduce(
    jnp.logical_or, ((circle.period(m, actuators) > 0).any(axis=0) for actuators, _ in _anchored(m)), none
  )


def reads_velocity(m: Model) -> bool:
  """Return whether `advance` reads velocities: whether a motor has states."""
  return any(group.kind == DynType.DCMOTOR for group in m.plan.actuator.dynamics)


def disabled(m: Model) -> np.ndarray:
  """Return the mask (nactuator,) of the actuators whose group is disabled. Source: `mj_actuatorDisabled`."""
  group = m.actuator_group
  return (group >= 0) & (group <= 30) & ((m.opt.disableactuator >> np.clip(group, 0, 30)) & 1 == 1)
