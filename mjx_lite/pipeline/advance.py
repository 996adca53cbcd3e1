"""Integrators: from accelerations to the state of the next step.

Tests: tests/integrate/test_integrators.py, tests/sensor/test_sensors.py.
"""

import jax
import jax.numpy as jnp

from mjx_lite.actuator import activation, history
from mjx_lite.integrate import advance, rk4
from mjx_lite.integrate import euler as euler_
from mjx_lite.integrate import implicit as implicit_
from mjx_lite.model import pytree
from mjx_lite.model.enums import IntegratorType
from mjx_lite.model.status import Warning
from mjx_lite.model.types import Data, Model
from mjx_lite.pipeline.dynamics import forward_without_sensors
from mjx_lite.pipeline.metric import free_blocks, smooth_vel_derivatives
from mjx_lite.pipeline.sensors import compute_for_sensors
from mjx_lite.pipeline.velocity import energy_pos, energy_vel
from mjx_lite.sensor import driver as sensor
from mjx_lite.smooth import (
  plastic,
)
from mjx_lite.tendon import force as tendon_force


def euler(m: Model, d: Data) -> Data:
  """Advance the state by semi-implicit Euler, implicit in the joints' damping. Source: `mj_Euler`."""
  force = d.qfrc_smooth + d.qfrc_constraint
  return advance_state(m, d, euler_.acceleration(m, d.cinert, d.cdof, d.M, d.qvel, d.qacc, force))


def implicit(m: Model, d: Data) -> Data:
  """Advance the state implicitly in velocity, by the option `implicit` or `implicitfast`. Source: `mj_implicit`."""
  if not m.nv:
    return advance_state(m, d, d.qacc)
  force = d.qfrc_smooth + d.qfrc_constraint
  packed, trees = smooth_vel_derivatives(m, d, bias=m.opt.integrator == IntegratorType.IMPLICIT)
  if m.opt.integrator == IntegratorType.IMPLICIT:
    return advance_state(m, d, implicit_.full(m, d.M, packed, trees, force))
  acc = implicit_.fast(m, d.cinert, d.cdof, d.M, packed, trees, force)
  if len(m.plan.derivative.free_body):
    acc = implicit_.solve_free(m, acc, free_blocks(m, d, packed, trees), force)
  return advance_state(m, d, acc)


def step_map(m: Model, d: Data) -> Data:
  """Advance the state by the discrete integrator: qacc is the change of velocity itself. Source: `mj_discrete`."""
  return advance_state(m, d, d.qacc)


def rungekutta4(m: Model, d: Data) -> Data:
  """Advance the state by Runge-Kutta of order 4, with three more evaluations of forward, without sensors.

  Derived fields are those of the fourth stage, as in C. But actuator lengths and velocities and tendon lengths are those of the
  first stage if the end of the step reads them. C leaves `ten_J` of the first stage too; here it is of the fourth stage, as are
  the constraint rows, which are written out with it.

  Source: `mj_RungeKutta`.
  """
  h = m.opt.timestep
  # the scan's carry needs a constant structure: without optional fields, and with shared arrays broadcast to all worlds
  lacking = dict.fromkeys(name for name in pytree.optional_fields(Data) if name not in pytree.kept(d))

  def rates(d, qvel):
    return rk4.Rates(qvel, d.qacc, d.act_dot)

  def stage(carry, coefficients):
    last, rate, total = carry
    fraction, weight = coefficients
    ahead = fraction * h
    displacement = ahead * rate.qvel
    moved = last.replace(
      qpos=advance.integrate_pos(m, d.qpos, displacement, 1), qvel=d.qvel + ahead * rate.qacc,
      act=d.act + ahead * rate.act_dot, time=d.time + ahead,
    )  # fmt: skip
    moved = forward_without_sensors(m, moved).replace(**lacking)
    moved = jax.tree.map(lambda x, like: jnp.broadcast_to(x, like.shape), moved, d)
    rate = rates(moved, rk4.position_rate(m, displacement, moved.qvel))
    return (moved, rate, jax.tree.map(lambda s, x: s + weight * x, total, rate)), None

  first = rates(d, d.qvel)
  carry = d, first, jax.tree.map(lambda x: rk4.FIRST_WEIGHT * x, first)
  (last, _, mean), _ = jax.lax.scan(stage, carry, jnp.asarray(rk4.STAGES, d.qpos.dtype))
  last = energy_vel(m, energy_pos(m, last)) if m.opt.use_energy else last.replace(energy=jnp.zeros_like(d.energy))
  whose = {
    "actuator_velocity": d if activation.reads_velocity(m) else last, "ten_length": d if m.nplastic else last, "ten_J": last,
  }  # fmt: skip
  left = {k: getattr(x, k) for k, x in whose.items()}
  left["actuator_length"] = jnp.where(activation.reads_length(m), d.actuator_length, last.actuator_length)
  began = {k: getattr(d, k) for k in left}
  start = last.replace(qpos=d.qpos, qvel=d.qvel, act=d.act, time=d.time, act_dot=mean.act_dot, **began)
  past = record_history(m, d)  # sensor values of the first stage
  return advance_state(m, start, mean.qacc, mean.qvel, past).replace(qacc=mean.qacc, act_dot=last.act_dot, **left)


def advance_state(m: Model, d: Data, qacc: jax.Array, qvel: jax.Array | None = None, past: jax.Array | None = None) -> Data:
  """Advance the state with an acceleration (nv, W).

  Positions move with the velocity `qvel` (nv, W), or with the new velocity if `qvel` is None. The new history is `past`, or the
  history recorded from d if `past` is None.

  Source: `mj_advance`.
  """
  h = m.opt.timestep
  after = d.qvel + h * qacc
  qvel = after if qvel is None else qvel
  qpos = advance.integrate_pos(m, d.qpos, qvel, h)
  moved = tendon_force.yielded(m, plastic.advance(m, qpos, d.plastic), d.ten_length, d.ten_J, qpos, qvel)
  return d.replace(
    history=record_history(m, d) if past is None else past,
    act=activation.advance(m, d.act, d.act_dot, d.actuator_length, d.actuator_velocity),
    qvel=after, qpos=qpos, plastic=moved, time=d.time + h, qacc_warmstart=d.qacc,
  )  # fmt: skip


def record_history(m: Model, d: Data) -> jax.Array:
  """Return the history with the controls and the sensors of this step.

  A world that was reset for its bad acceleration records no sensors, because the sensors were read in the bad state.
  """
  past, p = history.record(m, d.history, d.time, d.ctrl), m.plan.sensor
  stages = [x for x in (p.position, p.velocity, p.acceleration) if len(x.late.ids)]
  new = past
  for stage in stages:
    new = sensor.record(m, compute_for_sensors(m, d, stage), new, stage)
  if not stages or not m.opt.use_autoreset:
    return new
  return jnp.where(d.status.bits & (1 << int(Warning.BADQACC)) != 0, past, new)


# integrator -> function (m, d after forward) -> d one step later
INTEGRATORS = {
  IntegratorType.EULER: euler,
  IntegratorType.RK4: rungekutta4,
  IntegratorType.IMPLICIT: implicit,
  IntegratorType.IMPLICITFAST: implicit,
  IntegratorType.DISCRETE: step_map,
}
