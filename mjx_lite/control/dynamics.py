"""Functions shared by the controllers: tangent coordinates of states, piecewise-constant controls, costs of residuals.

Tests: tests/control/test_control.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import mjx_lite as mjx


class Cost(NamedTuple):
  """Half of the sum of squares of residuals along a trajectory and at its end.

  Both residual functions take the Model and a Data whose state (`qpos`, `qvel`, `act`, `time`) is current. Call
  `mjx.kinematics` inside a residual function that needs poses. Squares give the Gauss-Newton Hessian, which is positive
  semidefinite.
  """

  running: Callable[[mjx.Model, mjx.Data, jax.Array], jax.Array]  # (m, d, u) -> (r,)
  final: Callable[[mjx.Model, mjx.Data], jax.Array]  # (m, d) -> (r,)


def difference(m: mjx.Model, a: mjx.Data, b: mjx.Data) -> jax.Array:
  """Return the difference from state a to state b in tangent coordinates (2 nv + na,): the x of `mjx.transition_jac`.

  Args:
    m: the model.
    a: the first state.
    b: the second state.
  """
  one = jnp.ones((), a.qpos.dtype)
  return jnp.concatenate([mjx.differentiate_pos(m, one, a.qpos, b.qpos), b.qvel - a.qvel, b.act - a.act])


def moved(m: mjx.Model, d: mjx.Data, dx: jax.Array) -> mjx.Data:
  """Return the state displaced from d by a tangent vector; the inverse of `difference`.

  Args:
    m: the model.
    d: the state.
    dx: tangent vector (2 nv + na,).
  """
  dq, dv, da = jnp.split(dx, [m.nv, 2 * m.nv])
  return d.replace(qpos=mjx.integrate_pos(m, d.qpos, dq, jnp.ones((), d.qpos.dtype)), qvel=d.qvel + dv, act=d.act + da)


def hold(m: mjx.Model, d: mjx.Data, u: jax.Array, steps: int = 1) -> mjx.Data:
  """Return the state after some steps under one constant control.

  Args:
    m: the model.
    d: the initial state.
    u: control (nu,).
    steps: number of steps.
  """
  return mjx.rollout(m, d.replace(ctrl=u), steps=steps, record=())[0]


def linearize(m: mjx.Model, d: mjx.Data, steps: int = 1) -> tuple[jax.Array, jax.Array]:
  """Return A (nx, nx) and B (nx, nu) of some steps with constant d.ctrl, in tangent coordinates; exact, also through contact.

  Args:
    m: the model.
    d: the state, with the control.
    steps: number of steps.
  """
  if steps == 1:
    jac = mjx.transition_jac(m, d)
    return jac.A, jac.B

  def one(carry, _):
    d, A, B = carry
    jac = mjx.transition_jac(m, d)
    return (hold(m, d, d.ctrl), jac.A @ A, jac.A @ B + jac.B), None

  nx = 2 * m.nv + m.na
  start = (d, jnp.eye(nx, dtype=d.qpos.dtype), jnp.zeros((nx, m.nu), d.qpos.dtype))
  (_, A, B), _ = jax.lax.scan(one, start, length=steps)
  return A, B


def dynamics(m: mjx.Model, d: mjx.Data, steps: int = 1) -> Callable[..., jax.Array]:
  """Return the step as a function `f(x, u, t) -> x` with x = (qpos, qvel, act), the form that trajax takes.

  Optimistix takes the same function as `fn(y, args)`. Hydrax does not need this function: Hydrax calls `put_model`,
  `make_data` and `step` by MJX's names, which this package has too.

  Args:
    m: the model.
    d: the inputs that are not in x: applied forces, mocap poses, ...
    steps: number of steps for which u is held.
  """

  def f(x: jax.Array, u: jax.Array, t: Any = 0) -> jax.Array:
    if x.shape != (size := m.nq + m.nv + m.na,):
      raise ValueError(f"x has shape {x.shape}; the required shape is (nq + nv + na,) = ({size},).")
    qpos, qvel, act = jnp.split(x, [m.nq, m.nq + m.nv])
    after = hold(m, d.replace(qpos=qpos, qvel=qvel, act=act), u, steps)
    return jnp.concatenate([after.qpos, after.qvel, after.act])

  return f


def simulate(m: mjx.Model, d: mjx.Data, ctrl: jax.Array, cost: Cost, steps: int = 1) -> tuple[mjx.Data, jax.Array]:
  """Simulate a trajectory under piecewise-constant controls; return the last state and the cost.

  Args:
    m: the model.
    d: the initial state.
    ctrl: controls (T, nu).
    cost: residuals along the trajectory and at its end.
    steps: number of steps for which each control is held.
  """
  check_ctrl(m, ctrl)

  def one(d, u):
    return hold(m, d, u, steps), half_square(cost.running(m, d, u))

  d, running = jax.lax.scan(one, d, ctrl)
  return d, jnp.sum(running) + half_square(cost.final(m, d))


def half_square(r: jax.Array) -> jax.Array:
  """Return the cost of residuals (r,): half the sum of squares."""
  if jnp.ndim(r) != 1:  # a scalar is probably a cost, which would be squared again
    raise ValueError(f"the functions of a Cost must return residuals (r,), not a cost: the returned shape is {jnp.shape(r)}.")
  return 0.5 * jnp.sum(r * r)


def check_ctrl(m: mjx.Model, ctrl: jax.Array) -> None:
  """Raise ValueError for controls whose shape is not (T, nu)."""
  if ctrl.ndim != 2 or ctrl.shape[1] != m.nu or not len(ctrl):
    raise ValueError(f"ctrl has shape {ctrl.shape}; the required shape is (T, {m.nu}), with one row per control.")


def ctrl_bounds(m: mjx.Model) -> tuple[jax.Array, jax.Array]:
  """Return lower and upper bounds of the controls, (nu,) each; infinite where a control has no range."""
  limited, ends = jnp.asarray(m.actuator_ctrllimited, bool), m.actuator_ctrlrange
  return jnp.where(limited, ends[:, 0], -jnp.inf), jnp.where(limited, ends[:, 1], jnp.inf)
