"""Planning by sampling: predictive sampling, MPPI and CEM. The methods differ only in how sampled costs update the plan.

Tests: tests/control/test_control.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.control.dynamics import Cost, ctrl_bounds, simulate


class Plan(NamedTuple):
  """Normal distribution of the controls at knots in time; controls between knots are interpolated."""

  mean: jax.Array  # (knots, nu)
  std: jax.Array  # (knots, nu)


def predictive(plan: Plan, samples: jax.Array, costs: jax.Array) -> Plan:
  """Choose the best sample. Reference: Howell and others, Predictive sampling, arXiv 2212.00541."""
  return plan._replace(mean=samples[jnp.argmin(costs)])


def mppi(plan: Plan, samples: jax.Array, costs: jax.Array, temperature: float = 0.05) -> Plan:
  """Average the samples with weights exp(-cost / (temperature x standard deviation of the costs)).

  Reference: Williams, Aldrich and Theodorou, Model predictive path integral control, JGCD 40(2), 2017.
  """
  low = jnp.min(costs)
  finite = jnp.where(jnp.isfinite(costs), costs, low)
  spread = jnp.sqrt(jnp.mean((finite - jnp.mean(finite)) ** 2)) + 1e-12
  weight = jax.nn.softmax(-(costs - low) / (temperature * spread))
  return plan._replace(mean=jnp.tensordot(weight, samples, 1))


def cem(plan: Plan, samples: jax.Array, costs: jax.Array, elite: float = 0.1, floor: float = 0.05) -> Plan:
  """Compute mean and standard deviation of the best samples, a fraction `elite` of all; the deviation is at least `floor`.

  Reference: Rubinstein, The cross-entropy method for combinatorial and continuous optimization, 1999.
  """
  count = max(2, round(elite * len(samples)))
  chosen = samples[jnp.argsort(costs)[:count]]
  mean = jnp.mean(chosen, axis=0)
  return Plan(mean, jnp.maximum(jnp.sqrt(jnp.mean((chosen - mean) ** 2, axis=0)), floor))


METHODS: dict[str, Callable[..., Plan]] = {"predictive": predictive, "mppi": mppi, "cem": cem}


def interpolate(knots: jax.Array, length: int) -> jax.Array:
  """Interpolate controls (length, nu) linearly between knots; the first and last controls are the first and last knots.

  Args:
    knots: (n, nu).
    length: number of controls.
  """
  n = len(knots)
  at = np.linspace(0, n - 1, length)
  weight = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n)))  # hat functions: two nonzero weights per control
  return jnp.asarray(weight, knots.dtype) @ knots


def improve(
  m: mjx.Model,
  d: mjx.Data,
  plan: Plan,
  cost: Cost,
  key: jax.Array,
  *,
  length: int,
  method: str = "predictive",
  samples: int = 64,
  steps: int = 1,
  **options: float,
) -> tuple[Plan, jax.Array]:
  """Improve a plan by one iteration: draw samples, simulate the samples as one batch, update the plan.

  Compile this function, and call it until the cost is low enough.

  Args:
    m: the model.
    d: the initial state.
    plan: the plan so far; its mean is one of the samples.
    cost: residuals along the trajectory and at its end, as for `ilqr`.
    key: a key of jax.random.
    length: number of controls in a trajectory.
    method: one of `METHODS`.
    samples: number of trajectories.
    steps: number of steps for which each control is held.
    **options: options of the method: `temperature` of 'mppi'; `elite` and `floor` of 'cem'.

  Returns:
    the new plan, and the lowest cost of a sample. The best sample is the new plan's mean only for 'predictive'.
  """
  if method not in METHODS:
    raise ValueError(f"method '{method}' is unknown: use one of {', '.join(METHODS)}.")
  plan = Plan(*(jnp.asarray(x, d.qpos.dtype) for x in plan))
  low, high = ctrl_bounds(m)
  noise = jax.random.normal(key, (samples, *plan.mean.shape), plan.mean.dtype).at[0].set(0)
  tried = jnp.clip(plan.mean + plan.std * noise, low, high)
  costs = jax.vmap(lambda knots: simulate(m, d, interpolate(knots, length), cost, steps)[1])(tried)
  costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
  return METHODS[method](plan, tried, costs, **options), jnp.min(costs)


def shift(plan: Plan, fraction: float) -> Plan:
  """Shift the plan forward in time and repeat its last controls, for model predictive control.

  Args:
    plan: the plan.
    fraction: elapsed time as a fraction of the plan's length.
  """
  n = len(plan.mean)
  at = np.minimum(np.arange(n) + fraction * (n - 1), n - 1)
  weight = jnp.asarray(np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n))), plan.mean.dtype)
  return Plan(weight @ plan.mean, weight @ plan.std)
