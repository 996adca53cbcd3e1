"""Gradient shooting: gradient descent on the controls, with the exact reverse-mode derivative of the cost of a trajectory.

Tests: tests/control/test_control.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import mjx_lite as mjx
from mjx_lite.control.dynamics import Cost, check_ctrl, ctrl_bounds, simulate

_MOMENTUM, _MEMORY = 0.9, 0.99  # Adam's decay rates: of the mean of the gradients, and of the mean of their squares
_TINY = 1e-12


class Shot(NamedTuple):
  """The best controls of all iterations."""

  ctrl: jax.Array  # (T, nu)
  cost: jax.Array  # ()
  costs: jax.Array  # (iterations,) cost of the controls of each iteration
  lost: jax.Array  # () number of iterations with a gradient that was not finite; these iterations use the momentum only


def shoot(
  m: mjx.Model,
  d: mjx.Data,
  ctrl: jax.Array,
  cost: Cost,
  *,
  steps: int = 1,
  bounds: tuple[jax.Array, jax.Array] | None = None,
  iterations: int = 200,
  rate: float = 0.05,
) -> Shot:
  """Optimize controls by projected Adam. Compile the call: `mjx.jit(lambda m, d, u: shoot(m, d, u, cost))`.

  Each iteration is one reverse pass, whatever the number of controls. The method suits long trajectories, many controls, and
  well-conditioned costs. For ill-conditioned costs `ilqr` needs far fewer iterations.

  Args:
    m: the model.
    d: the initial state.
    ctrl: initial controls (T, nu).
    cost: residuals along the trajectory and at its end.
    steps: number of steps for which each control is held.
    bounds: lower and upper bounds of the controls, (nu,) each; the model's ranges by default.
    iterations: number of iterations.
    rate: learning rate of the first iteration, relative to half the width of the bounds (relative to 1 without bounds). The
      rate falls linearly to zero.

  Reference: Kingma and Ba, Adam, ICLR 2015.
  """
  check_ctrl(m, jnp.asarray(ctrl))
  low, high = ctrl_bounds(m) if bounds is None else bounds
  ctrl = jnp.clip(jnp.asarray(ctrl, d.qpos.dtype), low, high)
  width = jnp.where(jnp.isfinite(high - low), 0.5 * (high - low), 1)
  slope = jax.value_and_grad(lambda u: simulate(m, d, u, cost, steps)[1])

  def one(carry, i):
    u, mean, square, best, lost = carry
    total, g = slope(u)
    finite = jnp.all(jnp.isfinite(g))
    g = jnp.where(finite, g * width, 0)
    best = mjx.where(total < best.cost, best._replace(ctrl=u, cost=total), best)
    mean, square = _MOMENTUM * mean + (1 - _MOMENTUM) * g, _MEMORY * square + (1 - _MEMORY) * g * g
    age = i + 1  # bias correction: both means begin at zero
    step = mean / (1 - _MOMENTUM**age) / (jnp.sqrt(square / (1 - _MEMORY**age)) + _TINY)
    u = jnp.clip(u - rate * (1 - i / iterations) * width * step, low, high)
    return (u, mean, square, best, lost + ~finite), total

  none = Shot(ctrl, jnp.full((), jnp.inf, ctrl.dtype), jnp.zeros(0, ctrl.dtype), jnp.zeros((), jnp.int32))
  start = (ctrl, jnp.zeros_like(ctrl), jnp.zeros_like(ctrl), none, none.lost)
  (u, _, _, best, lost), costs = jax.lax.scan(one, start, jnp.arange(iterations, dtype=ctrl.dtype))
  total = simulate(m, d, u, cost, steps)[1]  # after the last step
  best = mjx.where(total < best.cost, best._replace(ctrl=u, cost=total), best)
  return best._replace(costs=costs, lost=lost)
