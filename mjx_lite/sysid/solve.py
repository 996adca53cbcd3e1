"""Levenberg-Marquardt with bounds on optimistix: its loop and its trust region, with a descent that respects bounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx

_DAMPING = 1e-2  # of the first step, relative to the columns' squares
_FACES = 4  # times that a step is solved again because it met a bound
_REJECTED = 12  # so many steps rejected in a row: nothing better can be told apart
_GAIN = 1e-4  # of the squares, that one number could still save where a solution counts as one
_PART = 0.9  # of the way to a bound that a step goes at most
_NEAR = 1e-3  # of the scale: from here to the bound itself
_quiet = lambda **kwargs: None  # noqa: E731


class Solution(NamedTuple):
  """The least-squares solution."""

  z: jax.Array  # (n,)
  residual: jax.Array  # (R,)
  jacobian: jax.Array  # (R, n)
  iterations: jax.Array  # ()
  converged: jax.Array  # ()


def least_squares(
  residual: Callable[[jax.Array, Any], jax.Array],
  linearised: Callable[[jax.Array, Any], tuple[jax.Array, jax.Array]],
  z: jax.Array,
  args: Any,
  low: jax.Array,
  high: jax.Array,
  *,
  tolerance: float,
  iterations: int,
) -> Solution:
  """Minimum of |residual(z, args)|^2 between bounds; where low = high a number is held.

  Args:
    residual: (n,), args -> (R,).
    linearised: the same with the Jacobian (R, n).
    z: (n,) where to start.
    args: a pytree.
    low: (n,).
    high: (n,).
    tolerance: relative and absolute change at which to stop.
    iterations: at most so many evaluations.
  """

  @jax.custom_jvp
  def fn(z, args):
    return residual(z, args)

  @fn.defjvp
  def _(primals, tangents):
    r, J = linearised(*primals)
    return r, J @ tangents[0]

  solver = _Bounded(tolerance, _Descent(low, high))
  found = optx.least_squares(fn, solver, z, args, max_steps=iterations, throw=False)
  z, r, J = found.value, found.stats["residual"], found.stats["jacobian"]
  done = (found.result == optx.RESULTS.successful) & _flat(z, r, J, low, high)
  return Solution(z, r, J, found.stats["num_steps"], done)


def _held(z, slope, low, high):
  """Numbers that do not move: fixed, or at a bound that the slope pushes them against."""
  return (low >= high) | ((z <= low) & (slope > 0)) | ((z >= high) & (slope < 0))


def _flat(z, r, J, low, high):
  """Whether no number can gain anything to first order: steps may also end at a cliff, or where nothing is finite."""
  slope, size = r @ J, jnp.sum(J * J, axis=0)
  gain = jnp.where(_held(z, slope, low, high) | (size <= 0), 0, slope * slope / jnp.where(size > 0, size, 1))
  return jnp.max(gain) < jnp.maximum(_GAIN * (r @ r), 1e-2)


class _Bounded(optx.AbstractGaussNewton):
  rtol: float
  atol: float
  descent: Any
  norm: Callable[..., Any]
  search: Any
  verbose: Callable[..., None]

  def __init__(self, tolerance: float, descent: "_Descent"):
    self.rtol = self.atol = tolerance
    self.norm, self.descent, self.verbose = optx.max_norm, descent, _quiet
    self.search = optx.ClassicalTrustRegion(high_cutoff=0.75, high_constant=10.0, low_constant=0.2)

  def terminate(self, fn, y, args, options, state, tags):
    """Stop too where no shorter step is better: the rest is rounding."""
    return state.terminate | (state.num_steps_since_acceptance >= _REJECTED), state.result

  def postprocess(self, fn, y, aux, args, options, state, tags, result):
    """Hand on the last linearisation."""
    return y, aux, {"residual": state.f_info.residual, "jacobian": state.f_info.jac.as_matrix()}


class _State(eqx.Module):
  y: jax.Array
  triangle: jax.Array  # R of (J, r) = Q R: |J x + r| = |R (x, 1)|


class _Descent(optx.AbstractDescent):
  """Damped step, by the columns' own sizes, that ends at the bounds: along with those that are met the rest is solved again."""

  low: jax.Array
  high: jax.Array

  def init(self, y, f_info_struct):
    n = y.shape[0] + 1
    return _State(jnp.zeros_like(y), jnp.zeros((n, n), y.dtype))

  def query(self, y, f_info, state):
    J = f_info.jac.as_matrix()
    both = jnp.concatenate([J, f_info.residual[:, None]], axis=1)
    both = jnp.concatenate([both, jnp.zeros((both.shape[1], both.shape[1]), J.dtype)])  # at least as many rows as columns
    return _State(y, jnp.linalg.qr(both, mode="r"))

  def step(self, step_size, state):
    R, r = state.triangle[:, :-1], state.triangle[:, -1]
    y, n = state.y, state.y.shape[0]
    size = jnp.sqrt(jnp.sum(R * R, axis=0))
    most = jnp.max(size)
    seen = size > 100 * jnp.finfo(y.dtype).eps * most  # a number that moves nothing is to stay where it is
    size = jnp.where(seen, size, jnp.where(most > 0, most, 1))
    damping = jnp.sqrt(_DAMPING / step_size) * jnp.diag(size)
    slope = r @ R
    held = _held(y, slope, self.low, self.high)
    # a far bound is approached, not jumped to: there a number may move nothing any more (friction of zero)
    low = jnp.where(y - self.low > _NEAR, y - _PART * (y - self.low), self.low)
    high = jnp.where(self.high - y > _NEAR, y + _PART * (self.high - y), self.high)

    def solve(held, at):
      """The step where those that are held make the steps `at`."""
      rows = jnp.concatenate([jnp.where(held, 0, R), damping])
      right = jnp.concatenate([-(r + R @ at), jnp.zeros(n, y.dtype)])
      return jnp.where(held, at, lx.linear_solve(lx.MatrixLinearOperator(rows), right, lx.QR(), throw=False).value)

    def again(_, carry):
      held, at = carry
      step = solve(held, at)
      met = (y + step < low) | (y + step > high)
      stop = jnp.where(held, at, jnp.clip(y + step, low, high) - y)
      return held | met, jnp.where(held | met, stop, 0)

    step = solve(*jax.lax.fori_loop(0, _FACES, again, (held, jnp.zeros_like(y))))
    return jnp.clip(y + step, low, high) - y, optx.RESULTS.successful
