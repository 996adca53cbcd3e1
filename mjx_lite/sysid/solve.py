"""Levenberg-Marquardt with bounds: loop and trust region of optimistix, with a descent that respects the bounds.

Tests: tests/sysid/test_fit.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx

_DAMPING = 1e-2  # damping of the first step, relative to the squared norms of the columns
_FACES = 4  # maximum number of times that a step is solved again because it met a bound
_REJECTED = 12  # stop after this number of consecutive rejected steps: further decrease is below rounding
_GAIN = 1e-4  # converged if no single unknown can reduce the sum of squares by more than this fraction
_PART = 0.9  # largest step towards a bound, as a fraction of the distance to the bound
_NEAR = 1e-3  # distance to a bound, in scaled units, below which a step may reach the bound
_quiet = lambda **kwargs: None  # noqa: E731


class Solution(NamedTuple):
  """The least-squares solution."""

  z: jax.Array  # (n,) scaled unknowns
  residual: jax.Array  # (R,)
  jacobian: jax.Array  # (R, n)
  iterations: jax.Array  # ()
  converged: jax.Array  # ()


class Progress(NamedTuple):
  """State of the search between iterations."""

  found: Solution  # the best solution so far
  next_z: jax.Array  # (n,) the next point to evaluate
  stop: jax.Array  # () whether to stop
  state: Any  # arrays of optimistix's state


@jax.custom_jvp
def _residual(z, linearised):
  """Return the residual at z from the pair (residual, Jacobian) that was computed before; the derivative is this Jacobian."""
  return linearised[0]


@_residual.defjvp
def _(primals, tangents):
  r, J = primals[1]
  return r, J @ tangents[0]


def _residual_and_aux(z, linearised):
  """Return the residual in the form that optimistix takes: (residual, auxiliary output)."""
  return _residual(z, linearised), None


def begin(z: Any, linearised: Any, low: Any, high: Any) -> Progress:
  """Make the initial Progress for `advance`: `next_z` is z, all other arrays are zeros of the right shape."""

  def empty(z, linearised, low, high):
    state = eqx.filter(_initial(_Bounded(0.0, _Descent(low, high)), z, linearised), eqx.is_array)
    (r, J), one = linearised, jnp.array(0)
    return Progress(Solution(z, r, J, one, one > 0), z, one > 0, state)

  shapes = jax.eval_shape(empty, z, linearised, low, high)
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  return zeros._replace(next_z=np.asarray(z))


def advance(
  past: Progress,
  first: jax.Array,
  linearised: tuple[jax.Array, jax.Array],
  low: jax.Array,
  high: jax.Array,
  *,
  tolerance: float,
) -> Progress:
  """Take one iteration of least squares between bounds; an unknown with low = high is fixed.

  Args:
    past: the Progress from `begin`, or from the previous iteration.
    first: whether `past` is from `begin`.
    linearised: residual (R,) and Jacobian (R, n) at `past.next_z`.
    low: lower bounds (n,).
    high: upper bounds (n,).
    tolerance: relative and absolute change at which to stop.
  """
  solver = _Bounded(tolerance, _Descent(low, high))
  fresh, static = eqx.partition(_initial(solver, past.next_z, linearised), eqx.is_array)
  state = eqx.combine(jax.tree.map(lambda a, b: jnp.where(first, a, b), fresh, past.state), static)
  z = jnp.where(first, past.next_z, past.found.z)
  z, state, _ = solver.step(_residual_and_aux, z, linearised, {}, state, frozenset())
  stop, result = solver.terminate(_residual_and_aux, z, linearised, {}, state, frozenset())
  r, J = state.f_info.residual, state.f_info.jac.as_matrix()
  done = stop & (result == optx.RESULTS.successful) & _stationary(z, r, J, low, high)
  found = Solution(z, r, J, state.num_steps, done)
  return Progress(found, state.y_eval, stop | (result != optx.RESULTS.successful), eqx.filter(state, eqx.is_array))


def _initial(solver, z, linearised):
  """Return optimistix's state before the first step."""
  shape = jax.eval_shape(lambda: linearised[0])
  return solver.init(_residual_and_aux, z, linearised, {}, shape, None, frozenset())


def least_squares(
  linearised: Callable[[Any], Any], step: Callable[..., Progress], start: Progress, iterations: int
) -> Solution:
  """Run the iterations on the host. `linearised` and `step` are separate programs, which compile in parallel.

  Args:
    linearised: function of z; `step` assembles the residual and the Jacobian from its result.
    step: compiled `advance`; its arguments are a Progress, whether it is the first, and the result of `linearised`.
    start: the Progress from `begin`.
    iterations: maximum number of evaluations.
  """
  now = start
  for i in range(iterations):
    now = step(now, np.asarray(i == 0), linearised(now.next_z))
    if now.stop:
      break
  return now.found


def _fixed(z, slope, low, high):
  """Return the mask (n,) of unknowns that cannot move: fixed, or at a bound with the descent direction outwards."""
  return (low >= high) | ((z <= low) & (slope > 0)) | ((z >= high) & (slope < 0))


def _stationary(z, r, J, low, high):
  """Return whether no single unknown can reduce the cost much to first order.

  The check is needed because steps also stop at cliffs and at non-finite values.
  """
  slope, size = r @ J, jnp.sum(J * J, axis=0)
  gain = jnp.where(_fixed(z, slope, low, high) | (size <= 0), 0, slope * slope / jnp.where(size > 0, size, 1))
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
    """Stop also if the next step is negligible, or if shorter steps were rejected `_REJECTED` times: the rest is rounding."""
    small = jnp.all(jnp.abs(state.y_eval - y) < 1e-3 * self.rtol * (1 + jnp.abs(y))) & (state.num_steps_since_acceptance == 0)
    return state.terminate | small | (state.num_steps_since_acceptance >= _REJECTED), state.result


class _State(eqx.Module):
  y: jax.Array
  triangle: jax.Array  # R of (J, r) = Q R: |J x + r| = |R (x, 1)|


class _Descent(optx.AbstractDescent):
  """Damped step within bounds: the damping is scaled by the norms of the columns.

  Unknowns that meet a bound are fixed there, and the step of the other unknowns is solved again.
  """

  low: jax.Array
  high: jax.Array

  def init(self, y, f_info_struct):
    n = y.shape[0] + 1
    return _State(jnp.zeros_like(y), jnp.zeros((n, n), y.dtype))

  def query(self, y, f_info, state):
    J = f_info.jac.as_matrix()
    augmented = jnp.concatenate([J, f_info.residual[:, None]], axis=1)
    n = augmented.shape[1]
    augmented = jnp.concatenate([augmented, jnp.zeros((n, n), J.dtype)])  # at least as many rows as columns
    return _State(y, jnp.linalg.qr(augmented, mode="r"))

  def step(self, step_size, state):
    R, r = state.triangle[:, :-1], state.triangle[:, -1]
    y, n = state.y, state.y.shape[0]
    size = jnp.sqrt(jnp.sum(R * R, axis=0))
    largest = jnp.max(size)
    effective = size > 100 * jnp.finfo(y.dtype).eps * largest  # an unknown without effect gets the largest damping
    size = jnp.where(effective, size, jnp.where(largest > 0, largest, 1))
    damping = jnp.sqrt(_DAMPING / step_size) * jnp.diag(size)
    slope = r @ R
    fixed = _fixed(y, slope, self.low, self.high)
    # approach a distant bound in several steps: at the bound an unknown may have no effect (friction of zero)
    low = jnp.where(y - self.low > _NEAR, y - _PART * (y - self.low), self.low)
    high = jnp.where(self.high - y > _NEAR, y + _PART * (self.high - y), self.high)

    def solve(fixed, at):
      """Solve for the step; the fixed unknowns make the steps `at`."""
      rows = jnp.concatenate([jnp.where(fixed, 0, R), damping])
      right = jnp.concatenate([-(r + R @ at), jnp.zeros(n, y.dtype)])
      return jnp.where(fixed, at, lx.linear_solve(lx.MatrixLinearOperator(rows), right, lx.QR(), throw=False).value)

    def fix_more(_, carry):
      fixed, at = carry
      step = solve(fixed, at)
      met = (y + step < low) | (y + step > high)
      stop = jnp.where(fixed, at, jnp.clip(y + step, low, high) - y)
      return fixed | met, jnp.where(fixed | met, stop, 0)

    step = solve(*jax.lax.fori_loop(0, _FACES, fix_more, (fixed, jnp.zeros_like(y))))
    return jnp.clip(y + step, low, high) - y, optx.RESULTS.successful
