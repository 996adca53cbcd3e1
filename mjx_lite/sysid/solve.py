"""Levenberg-Marquardt with bounds on optimistix: its loop and its trust region, with a descent that respects bounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
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


class Progress(NamedTuple):
  """Where the search is: all arrays of optimistix's state, and what it says of it."""

  found: Solution  # the best so far
  next_z: jax.Array  # (n,) where to evaluate next
  stop: jax.Array  # ()
  state: Any


@jax.custom_jvp
def _residual(z, linearised):
  """The residual at z, which was computed already together with its Jacobian."""
  return linearised[0]


@_residual.defjvp
def _(primals, tangents):
  r, J = primals[1]
  return r, J @ tangents[0]


def _given(z, linearised):
  """In the form that optimistix takes, with something else beside it."""
  return _residual(z, linearised), None


def begin(z: Any, linearised: Any, low: Any, high: Any) -> Progress:
  """The progress from which `advance` makes the first: zeros but for `next_z`, of the others' shapes alone."""

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
  """One iteration towards the minimum of the residual's square between bounds; where low = high a number is held.

  Args:
    past: of `begin`, or of the iteration before.
    first: whether it is of `begin`.
    linearised: residual (R,) and Jacobian (R, n) at `past.next_z`.
    low: (n,).
    high: (n,).
    tolerance: relative and absolute change at which to stop.
  """
  solver = _Bounded(tolerance, _Descent(low, high))
  fresh, static = eqx.partition(_initial(solver, past.next_z, linearised), eqx.is_array)
  state = eqx.combine(jax.tree.map(lambda a, b: jnp.where(first, a, b), fresh, past.state), static)
  z = jnp.where(first, past.next_z, past.found.z)
  z, state, _ = solver.step(_given, z, linearised, {}, state, frozenset())
  stop, result = solver.terminate(_given, z, linearised, {}, state, frozenset())
  r, J = state.f_info.residual, state.f_info.jac.as_matrix()
  done = stop & (result == optx.RESULTS.successful) & _flat(z, r, J, low, high)
  found = Solution(z, r, J, state.num_steps, done)
  return Progress(found, state.y_eval, stop | (result != optx.RESULTS.successful), eqx.filter(state, eqx.is_array))


def _initial(solver, z, linearised):
  """Optimistix's state before the first step."""
  shape = jax.eval_shape(lambda: linearised[0])
  return solver.init(_given, z, linearised, {}, shape, None, frozenset())


def least_squares(
  linearised: Callable[[Any], Any], step: Callable[..., Progress], start: Progress, iterations: int
) -> Solution:
  """The loop, on the host: what is evaluated and what is done with it are programs of their own, and compile side by side.

  Args:
    linearised: from z to what `step` makes residual and Jacobian of.
    step: `advance`, compiled: of a Progress, whether it is the first, and what `linearised` gave.
    start: of `begin`.
    iterations: at most so many evaluations.
  """
  now = start
  for i in range(iterations):
    now = step(now, np.asarray(i == 0), linearised(now.next_z))
    if now.stop:
      break
  return now.found


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
    """Stop too where the next step is nothing, or no shorter step is better: the rest is rounding."""
    small = jnp.all(jnp.abs(state.y_eval - y) < 1e-3 * self.rtol * (1 + jnp.abs(y))) & (state.num_steps_since_acceptance == 0)
    return state.terminate | small | (state.num_steps_since_acceptance >= _REJECTED), state.result


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
