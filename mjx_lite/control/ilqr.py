"""Iterative LQR: Newton's method on a trajectory with Gauss-Newton Hessians and bounds on the controls.

Tests: tests/control/test_control.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mjx_lite as mjx
from mjx_lite.control.dynamics import Cost, check_ctrl, ctrl_bounds, difference, half_square, hold, linearize, moved
from mjx_lite.model.types import STATE

ALPHAS = 0.5 ** np.arange(10)  # step lengths of the line search, evaluated as one batch
_QP_ITERATIONS = 10
_DAMPING = 1e-6  # initial value of mu, which is added to the diagonal of Quu


class Ilqr(NamedTuple):
  """A trajectory with its stabilizing feedback u = ctrl[t] + gain[t] x."""

  ctrl: jax.Array  # (T, nu)
  qpos: jax.Array  # (T + 1, nq)
  qvel: jax.Array  # (T + 1, nv)
  gain: jax.Array  # (T, nu, nx)
  cost: jax.Array  # ()
  iterations: jax.Array  # () number of iterations
  converged: jax.Array  # () whether the decrease of the cost, or the predicted decrease, fell below the tolerance


def ilqr(
  m: mjx.Model,
  d: mjx.Data,
  ctrl: jax.Array,
  cost: Cost,
  *,
  steps: int = 1,
  bounds: tuple[jax.Array, jax.Array] | None = None,
  iterations: int = 100,
  tolerance: float = 1e-6,
) -> Ilqr:
  """Optimize the controls of a trajectory. Compile the call: `mjx.jit(lambda m, d, u: ilqr(m, d, u, cost))`.

  Derivatives of the steps are exact, also through contacts. All knots are linearised as one batch, and all step lengths of
  the line search are simulated as one batch.

  Args:
    m: the model.
    d: the initial state.
    ctrl: initial controls (T, nu); zeros are enough unless they are a saddle point of the cost.
    cost: residuals along the trajectory and at its end.
    steps: number of steps for which each control is held.
    bounds: lower and upper bounds of the controls, (nu,) each; the model's ranges by default.
    iterations: maximum number of iterations.
    tolerance: stop when an iteration decreases the cost by less than this fraction of the cost.

  Reference: Tassa, Mansard and Todorov, Control-limited differential dynamic programming, ICRA 2014.
  """
  check_ctrl(m, jnp.asarray(ctrl))
  low, high = ctrl_bounds(m) if bounds is None else bounds
  ctrl = jnp.clip(jnp.asarray(ctrl, d.qpos.dtype), low, high)
  p = _Problem(m=m, d=d, cost=cost, steps=steps, low=low, high=high, alphas=jnp.asarray(ALPHAS, ctrl.dtype))

  def proceed(now):
    return (now.iterations < iterations) & ~now.converged & (now.mu < 1e10)

  end = jax.lax.while_loop(proceed, lambda now: _improve(p, now, tolerance), _begin(p, ctrl))
  return Ilqr(
    ctrl=end.ctrl,
    qpos=end.path["qpos"],
    qvel=end.path["qvel"],
    gain=end.gain,
    cost=end.cost,
    iterations=end.iterations,
    converged=end.converged,
  )


class _Problem(NamedTuple):
  """The arguments of `ilqr` that do not change in an iteration."""

  m: mjx.Model
  d: mjx.Data  # the initial state
  cost: Cost
  steps: int
  low: jax.Array  # (nu,)
  high: jax.Array  # (nu,)
  alphas: jax.Array  # step lengths of the line search


class _Iterate(NamedTuple):
  """A trajectory and the state of the search between iterations."""

  path: dict[str, jax.Array]  # states before each control and at the end, (T + 1, n) each
  ctrl: jax.Array  # (T, nu)
  gain: jax.Array  # (T, nu, nx)
  cost: jax.Array  # ()
  mu: jax.Array  # () damping
  iterations: jax.Array  # ()
  converged: jax.Array  # ()


def _begin(p, ctrl):
  """Simulate the initial trajectory without feedback."""
  gain = jnp.zeros((*ctrl.shape, 2 * p.m.nv + p.m.na), ctrl.dtype)
  still = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(ctrl) + 1, *x.shape)), _state(p.d))
  path, ctrl, cost = _forward(p, still, ctrl, jnp.zeros_like(ctrl), gain, jnp.zeros((), ctrl.dtype))
  return _Iterate(
    path=path,
    ctrl=ctrl,
    gain=gain,
    cost=cost,
    mu=jnp.full((), _DAMPING, ctrl.dtype),
    iterations=jnp.zeros((), jnp.int32),
    converged=jnp.zeros((), bool),
  )


def _forward(p, path, ctrl, k, K, alpha):
  """Simulate the trajectory with step length alpha along (k, K); path is the linearised trajectory."""

  def one(now, x):
    reference, u, k, K = x
    u = jnp.clip(u + alpha * k + K @ difference(p.m, now.replace(**reference), now), p.low, p.high)
    return hold(p.m, now, u, p.steps), (_state(now), u, half_square(p.cost.running(p.m, now, u)))

  last, (states, ctrl, running) = jax.lax.scan(one, p.d, (jax.tree.map(lambda x: x[:-1], path), ctrl, k, K))
  states = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), states, _state(last))
  return states, ctrl, jnp.sum(running) + half_square(p.cost.final(p.m, last))


def _improve(p, now, tolerance):
  """Take one iteration: linearise all knots, run the backward pass, and search along its direction."""
  m, d, path, ctrl = p.m, p.d, now.path, now.ctrl
  at = jax.tree.map(lambda x: x[:-1], path)
  A, B = jax.vmap(lambda s, u: linearize(m, d.replace(**s, ctrl=u), p.steps))(at, ctrl)
  quadratic = jax.vmap(lambda s, u: _quadratic(m, d.replace(**s), u, p.cost.running))(at, ctrl)
  end = d.replace(**jax.tree.map(lambda x: x[-1], path))
  k, K, promised = _backward(A, B, quadratic, _final(m, end, p.cost.final), p.low - ctrl, p.high - ctrl, now.mu)
  tried = jax.vmap(lambda alpha: _forward(p, path, ctrl, k, K, alpha))(p.alphas)
  costs = jnp.where(jnp.isfinite(tried[2]), tried[2], jnp.inf)
  best = jnp.argmin(costs)
  new_path, new_ctrl, new_cost = jax.tree.map(lambda x: x[best], tried)
  better = costs[best] < now.cost
  # with heavy damping a small predicted decrease is no sign of convergence
  small = jnp.where(better, now.cost - new_cost, promised) <= tolerance * now.cost
  converged = small & (better | (now.mu <= _DAMPING))
  path, ctrl, K = mjx.where(better, (new_path, new_ctrl, K), (path, ctrl, now.gain))
  mu = jnp.where(better, now.mu / 5, jnp.maximum(now.mu, _DAMPING) * 10)
  return _Iterate(
    path=path,
    ctrl=ctrl,
    gain=K,
    cost=jnp.where(better, new_cost, now.cost),
    mu=mu,
    iterations=now.iterations + 1,
    converged=converged,
  )


def _state(d: mjx.Data) -> dict[str, jax.Array]:
  """Return the fields of Data that the next step reads."""
  return {name: getattr(d, name) for name in STATE}


def _quadratic(m: mjx.Model, d: mjx.Data, u: jax.Array, residual: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Return gradient and Gauss-Newton Hessian of the running cost with respect to (x, u)."""
  nx = 2 * m.nv + m.na

  def move(z):
    return residual(m, moved(m, d, z[:nx]), u + z[nx:])

  zero = jnp.zeros(nx + m.nu, u.dtype)
  r, J = move(zero), jax.jacfwd(move)(zero)
  return J.T @ r, J.T @ J


def _final(m: mjx.Model, d: mjx.Data, residual: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Return gradient and Gauss-Newton Hessian of the final cost with respect to x."""
  move = lambda x: residual(m, moved(m, d, x))  # noqa: E731
  zero = jnp.zeros(2 * m.nv + m.na, d.qpos.dtype)
  r, J = move(zero), jax.jacfwd(move)(zero)
  return J.T @ r, J.T @ J


def _backward(A, B, quadratic, final, low, high, mu):
  """Run the backward pass: changes of the controls k (T, nu), feedback K (T, nu, nx), predicted decrease of the cost ()."""
  nx = A.shape[-1]

  def one(value, x):
    Vx, Vxx = value
    A, B, (g, H), low, high = x
    AB = jnp.concatenate([A, B], axis=1)
    g, H = g + AB.T @ Vx, H + AB.T @ Vxx @ AB
    Qu, Quu, Qux = g[nx:], H[nx:, nx:], H[nx:, :nx]
    k, K = _box(Quu + mu * jnp.eye(len(Qu), dtype=Qu.dtype), Qu, Qux, low, high)
    Vx = g[:nx] + K.T @ (Quu @ k + Qu) + Qux.T @ k
    Vxx = H[:nx, :nx] + K.T @ Quu @ K + K.T @ Qux + Qux.T @ K
    return (Vx, 0.5 * (Vxx + Vxx.T)), (k, K, -Qu @ k - 0.5 * k @ Quu @ k)

  k, K, gain = jax.lax.scan(one, final, (A, B, quadratic, low, high), reverse=True)[1]
  return k, K, jnp.sum(gain)


def _box(H, g, Hx, low, high):
  """Minimize k'H k / 2 + g'k between bounds by projected Newton; return k and its feedback, zero where k is at a bound."""
  value = lambda k: 0.5 * k @ H @ k + g @ k  # noqa: E731
  eye = jnp.eye(len(g), dtype=g.dtype)

  def free_of(k):
    slope = H @ k + g
    free = ~(((k <= low) & (slope > 0)) | ((k >= high) & (slope < 0)))
    return slope, free, jnp.where(free[:, None] & free, H, eye)

  def one(k, _):
    slope, free, Hf = free_of(k)
    step = -jnp.linalg.solve(Hf, jnp.where(free, slope, 0))
    tried = jnp.clip(k + jnp.asarray(ALPHAS, k.dtype)[:, None] * step, low, high)
    values = jax.vmap(value)(tried)
    best = jnp.argmin(values)
    return jnp.where(values[best] < value(k), tried[best], k), None

  k, _ = jax.lax.scan(one, jnp.clip(jnp.zeros_like(g), low, high), length=_QP_ITERATIONS)
  _, free, Hf = free_of(k)
  return k, -jnp.linalg.solve(Hf, jnp.where(free[:, None], Hx, 0))
